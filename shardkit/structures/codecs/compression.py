"""Codecs that compress what another codec writes, with dictionaries trained on a sample.

A short record compresses little by itself: it repeats other records, not itself. So a dictionary is
trained once, on a sample of the values, and stored beside the structure (`codecs.trained_values`).
Another one may be trained later: the first byte of a value says which dictionary it was written
with, and older ones are kept for reading (docs/codecs.md).

There are two ways of packing: `Zstd`, fast and best from a hundred bytes on; and `Tokens`, for
values of a few dozen bytes (`codecs.token_table`). Of a zstd frame only the content of its block is
stored: the frame's header is constant, and the block's only repeats what is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Generic, TypeAlias, TypeVar

from shardkit.errors import InvalidArgumentError, StructureError, extra
from shardkit.operations.commands import Command, To
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.parameters import LEASE
from shardkit.structures.codecs.plain import (
    GROWTH,
    Codec,
    Raw,
    V,
    check_growth,
    inflated,
    most_inflated,
    unreadable,
)
from shardkit.structures.codecs.token_table import TokenTable, train

MOST_DICTIONARIES = 7
_MARKS = 0xF8
_PLAIN = b"\xf8"


class Compressed:
    """A codec that compresses the output of another one.

    Args:
        packing: the compression, such as ``Zstd()`` or ``Tokens()``.
        inner: the other codec.

    Without a dictionary, a value is stored as the other codec writes it, behind one byte.
    """

    integers = False

    def __init__(self, packing: Packing, inner: Codec[Any]) -> None:
        self.name = f"{packing.name}-{inner.name}"
        self.packing = packing
        self.inner = inner
        self.coders: Mapping[int, Coder] = {}

    def encode(self, value: Any) -> bytes:
        """See `Codec.encode`; packed with the latest dictionary, if that is shorter."""
        plain = self.inner.encode(value)
        coders = self.coders
        if not coders:
            return _PLAIN + plain
        number = max(coders)
        packed = coders[number].pack(plain)
        if packed is None:
            return _PLAIN + plain
        if number > 1 or packed[0] >= _MARKS:
            packed = b"%c%b" % (_MARKS + number, packed)
        return packed if len(packed) <= len(plain) else _PLAIN + plain

    def can_decode(self, stored: bytes) -> bool:
        """Return whether the dictionaries that are here decode a value, as far as there are any."""
        try:
            self.decode(stored)
        except StructureError:
            return dictionary_of(stored) not in self.coders
        return True

    def decode(self, stored: bytes) -> Any:
        """Return the value; StructureError if this codec, and what is here, did not write it."""
        number = dictionary_of(stored)
        if number == 0:
            return self.inner.decode(stored[1:])
        coder = self.coders.get(number)
        if coder is None:
            raise StructureError(
                f"a stored value was written with dictionary {number}, which is missing here",
                "open the structure again, or restore its dictionary if that was removed",
            )
        try:
            plain = coder.unpack(stored[1:] if stored[:1] >= _PLAIN else stored)
        except ValueError:
            raise unreadable(stored, self.name) from None
        return self.inner.decode(plain)


def dictionary_of(stored: bytes) -> int:
    """Return the number of the dictionary that a value was written with; 0 for none."""
    return max(stored[0] - _MARKS, 0) if stored[:1] >= _PLAIN else 1


class Tokens:
    """Packing in tokens of a table; for values of a few dozen bytes.

    Args:
        size: the most tokens to learn. More make values shorter and the dictionary longer: about 4
            bytes per token on the server, 300 in a process.
        growth: how many times its stored bytes a value may have, beyond 128 KiB. One that would
            have more is written as it is, and not read.
    """

    name = "tokens"

    def __init__(self, size: int = 16_384, growth: int = GROWTH) -> None:
        check_integer("Tokens", "size", size, 1, 1 << 20)
        self.size = size
        self.growth = check_growth("Tokens", growth)

    def build_dictionary(self, samples: list[bytes]) -> bytes:
        """Return a table for values like the samples, as it is stored."""
        return train(samples, self.size).dump()

    def coder(self, dictionary: bytes) -> Coder:
        """Return the coder of a table."""
        return TokenTable.load(dictionary, self.growth)


class Zstd:
    """Packing by zstd, with a dictionary. Needs zstandard, or Python 3.14.

    Args:
        level: the compression level, 1 to 22.
        size: the dictionary's largest size in bytes. It is stored compressed, in about 40% of that.

    Values of more than 128 KiB are stored as they are.
    """

    name = "zstd"

    def __init__(self, level: int = 3, size: int = 112_640) -> None:
        with extra("codecs", "values compressed by zstd"):
            self._zstd = _zstd()
        check_integer("Zstd", "level", level, 1, 22)
        check_integer("Zstd", "size", size, 1024, 1 << 27)
        self.level = level
        self.size = size

    def build_dictionary(self, samples: list[bytes]) -> bytes:
        """Return a dictionary for values like the samples, as it is stored."""
        samples = [sample for sample in samples if sample]
        if not samples:
            raise InvalidArgumentError("a dictionary trained on no values", "give a sample of them")
        try:
            content = self._zstd.train(samples, self.size)
        except self._zstd.error:  # too few samples to train on: use them as they are
            content = b"".join(dict.fromkeys(samples))[-self.size :]
        return self._zstd.pack(content)

    def coder(self, dictionary: bytes) -> Coder:
        """Return the coder of a dictionary."""
        try:
            size = self._zstd.size_of(dictionary)  # which is allocated
            if size is not None and 0 <= size <= most_inflated(len(dictionary)):
                return _ZstdCoder(self._zstd, self._zstd.unpack(dictionary), self.level)
            raise ValueError
        except (self._zstd.error, ValueError):
            raise StructureError(
                "the stored zstd dictionary is damaged", "restore it from a backup"
            ) from None


class _Zstandard:
    """zstd by the package zstandard, which reads a short value in 0.7 µs; Python's takes 15."""

    def __init__(self, zstd: Any) -> None:
        self._zstd = zstd
        self.error: type[Exception] = zstd.ZstdError
        self.size_of: Callable[[bytes], int | None] = zstd.frame_content_size
        self.unpack: Callable[[bytes], bytes] = zstd.ZstdDecompressor().decompress

    def train(self, samples: list[bytes], size: int) -> bytes:
        return bytes(self._zstd.train_dictionary(size, samples).as_bytes())

    def pack(self, content: bytes) -> bytes:
        """Return what `unpack` makes a dictionary of."""
        return bytes(self._zstd.ZstdCompressor(level=19, write_checksum=True).compress(content))

    def with_dictionary(self, content: bytes, level: int) -> tuple[Callable[[bytes], bytes], Any]:
        """Return what makes a frame of a value, and what makes a decompressor of one frame."""
        dictionary = self._zstd.ZstdCompressionDict(content)
        parameters = self._zstd.ZstdCompressionParameters.from_level(
            level, window_log=17, write_content_size=False, write_dict_id=False
        )
        compressor = self._zstd.ZstdCompressor(dict_data=dictionary, compression_params=parameters)
        return compressor.compress, self._zstd.ZstdDecompressor(dict_data=dictionary).decompressobj


class _PythonsOwn(_Zstandard):
    """zstd by Python itself, from 3.14 on."""

    def __init__(self, zstd: Any) -> None:
        self._zstd = zstd
        self._option = zstd.CompressionParameter
        self.error = zstd.ZstdError
        self.size_of = lambda frame: zstd.get_frame_info(frame).decompressed_size
        self.unpack = lambda frame: inflated(zstd.ZstdDecompressor(), frame)  # of one frame

    def train(self, samples: list[bytes], size: int) -> bytes:
        return bytes(self._zstd.train_dict(samples, size).dict_content)

    def pack(self, content: bytes) -> bytes:
        options = {self._option.compression_level: 19, self._option.checksum_flag: 1}
        return bytes(self._zstd.compress(content, options=options))

    def with_dictionary(self, content: bytes, level: int) -> tuple[Callable[[bytes], bytes], Any]:
        dictionary = self._zstd.ZstdDict(content, is_raw=not content.startswith(_TRAINED))
        options = {
            self._option.compression_level: level,
            self._option.window_log: 17,
            self._option.content_size_flag: 0,
            self._option.dict_id_flag: 0,
        }
        compressor = self._zstd.ZstdCompressor(options=options, zstd_dict=dictionary)
        compress = partial(compressor.compress, mode=compressor.FLUSH_FRAME)
        return compress, partial(self._zstd.ZstdDecompressor, dictionary)


def _zstd() -> _Zstandard:
    try:
        return _Zstandard(import_module("zstandard"))
    except ModuleNotFoundError:
        with suppress(ModuleNotFoundError):
            return _PythonsOwn(import_module("compression.zstd"))
        raise


# What zstd writes first: a magic number; no checksum, size or dictionary id; a window of 128 KiB.
_FRAME = b"\x28\xb5\x2f\xfd\x00\x38"
_LONGEST = 1 << 17
_HEADERS = len(_FRAME) + 3  # with the block's
_TRAINED = b"\x37\xa4\x30\xec"  # how a dictionary begins that is more than content


class _ZstdCoder(threading.local):
    """Packs with one zstd dictionary, per thread: the libraries' objects are not thread-safe."""

    def __init__(self, zstd: _Zstandard, content: bytes, level: int) -> None:
        self._compress, self._decompressor = zstd.with_dictionary(content, level)
        self._error = zstd.error

    def pack(self, value: bytes) -> bytes | None:
        """Return the content of the frame's block, if there is exactly one and it is compressed."""
        if not 0 < len(value) <= _LONGEST:
            return None
        frame = self._compress(value)
        packed = frame[_HEADERS:]
        return packed if frame[len(_FRAME) : _HEADERS] == _block_header(len(packed)) else None

    def unpack(self, packed: bytes) -> bytes:
        """Return the value, which is never larger than 128 KiB."""
        if not 0 < len(packed) <= _LONGEST:
            raise ValueError("no block of zstd")
        reader = self._decompressor()
        try:
            value: bytes = reader.decompress(_FRAME + _block_header(len(packed)) + packed)
        except self._error:
            raise ValueError("no block of zstd") from None
        return value


def _block_header(size: int) -> bytes:
    """Return the header of the last block, compressed, of a size."""
    return (size << 3 | 0b10_1).to_bytes(3, "little")


# Ways of packing values with a dictionary, and what packs with one: both are pure and thread-safe.
Packing: TypeAlias = Tokens | Zstd
Coder: TypeAlias = TokenTable | _ZstdCoder


T = TypeVar("T")


class CodedValues(Generic[V]):
    """The values of one structure, coded; shared by all its faces, like its `Metadata`.

    A dictionary in the HASH ``<name>:dictionary`` is written once and never changed: with HSETNX
    the first of several trainers wins, and the others read what it wrote. So every dictionary that
    a value refers to exists as long as the structure does. Others may delete the structure and
    train again. So a process compares a digest of its dictionaries with the server's at most once a
    second, before it encodes and after it has read values. Within that second, parts refuse a write
    of an earlier generation, and the write is encoded again.
    """

    def __init__(self, to: To, name: str, codec: Codec[V]) -> None:
        self.key = f"{name}:dictionary"
        self.codec: Codec[V] = codec
        self._to = to
        self._name = name
        self.raw = isinstance(codec, Raw)
        self._compared: float | None = None  # when; None if nothing was read
        self._digest: bytes | None = None
        self._generation: int | None = None
        self._compressed: Compressed | None = None
        if isinstance(codec, Compressed):
            self.codec = self._compressed = Compressed(codec.packing, codec.inner)

    @property
    def inner(self) -> Codec[V]:
        """The codec of values that are not compressed."""
        return self.codec if self._compressed is None else self._compressed.inner

    def load(self) -> Operation[None]:
        """Read the dictionaries, if there are others than at the last comparison.

        Cost: an exchange a second, and one to read them; none for a codec without dictionaries.
        """
        compressed, now = self._compressed, time.monotonic()
        if compressed is None or (self._compared is not None and now - self._compared < LEASE):
            return
        if self._compared is not None:
            [digest] = yield [self._digest_query]
            if digest == self._digest:
                self._compared = now
                return
        yield from self._read(compressed, anew=True)

    def load_missing(self, stored: Iterable[bytes | None]) -> Operation[None]:
        """Read the dictionaries again if those that are here do not decode these values.

        Cost: an exchange a second; one if another process has trained, or deleted the structure.
        """
        compressed = self._compressed
        if compressed is None:
            return
        needed = {dictionary_of(value): value for value in stored if value}
        needed.pop(0, None)
        if needed:
            yield from self.load()
        replaced = not all(map(compressed.can_decode, needed.values()))
        if replaced or needed.keys() - compressed.coders.keys():
            yield from self._read(compressed, anew=replaced)
            missing = needed.keys() - compressed.coders.keys()
            # Numbers beyond those that are there are the values' damage.
            if missing and min(missing) < max(compressed.coders, default=MOST_DICTIONARIES + 1):
                actual = f"no dictionary {min(missing)}"
                raise damage(self._to, self.key, actual, "that of stored values")

    def decode_with(self, stored: Iterable[bytes | None], decode: Callable[[], T]) -> Operation[T]:
        """Decode values; again with the dictionaries of now if that fails.

        Cost: see `load_missing`; one exchange if values are damaged.
        """
        yield from self.load_missing(stored)
        try:
            return decode()
        except StructureError:
            before = self._digest
            self._compared = -LEASE if self._compared is not None else None
            yield from self.load()
            if self._digest == before:
                raise
            return decode()

    def of_generation(
        self, generation: int, pairs: Sequence[tuple[bytes, Any]]
    ) -> Operation[Sequence[tuple[bytes, Any]]]:
        """Return fields and values, encoded again if others have created the structure again.

        Cost: none; one exchange then.
        """
        known, self._generation = self._generation, generation
        if known in (None, generation) or self._compressed is None:
            return pairs
        values = [self._compressed.decode(value) for _, value in pairs]
        self.reset()
        yield from self.load()
        encoded = map(self._compressed.encode, values)
        return [(field, value) for (field, _), value in zip(pairs, encoded, strict=True)]

    def build_dictionary(self, samples: Iterable[Any]) -> bytes:
        """Return a dictionary for values like these, for `add_dictionary`. Pure, but slow."""
        compressed = self._with_dictionaries()
        return compressed.packing.build_dictionary(
            [compressed.inner.encode(value) for value in samples]
        )

    def train(self, samples: Iterable[Any], *, again: bool = False) -> Operation[bool]:
        """Train a dictionary in this process; see `ShardedHash.train`. Three exchanges at most."""
        compressed = self._with_dictionaries()
        yield from self._read(compressed)
        if compressed.coders and not again:
            return False
        return (yield from self.add_dictionary(self.build_dictionary(samples), again=again))

    def add_dictionary(self, dictionary: bytes, *, again: bool = False) -> Operation[bool]:
        """Store a dictionary; see `train`. Two exchanges, three when another process was first."""
        compressed = self._with_dictionaries()
        yield from self._read(compressed)
        coder = compressed.packing.coder(dictionary)
        if compressed.coders and not again:
            return False
        number = max(compressed.coders, default=0) + 1
        if number > MOST_DICTIONARIES:
            raise InvalidArgumentError(
                f"{self._name}: there are {MOST_DICTIONARIES} dictionaries, the most that values "
                "can refer to",
                "copy the values into a new structure",
            )
        [stored] = yield [Command(self._to, self.key, ("HSETNX", self.key, number, dictionary))]
        if not stored:
            yield from self._read(compressed)
            return False
        compressed.coders, self._digest = {**compressed.coders, number: coder}, None
        return True

    def reset(self) -> None:
        """Drop cached state after the structure is deleted, and this key with it."""
        self._compared = None
        if self._compressed is not None:
            self._compressed.coders = {}

    def _with_dictionaries(self) -> Compressed:
        if self._compressed is None:
            raise InvalidArgumentError(
                f"{self._name}: codec {self.codec.name!r} has no dictionary",
                "make the structure with codec='tokens' or 'zstd'",
            )
        return self._compressed

    def _read(self, compressed: Compressed, *, anew: bool = False) -> Operation[None]:
        now = time.monotonic()
        read = Command(self._to, self.key, ("HGETALL", self.key))
        [self._digest, flat] = yield [self._digest_query, read]
        coders: dict[int, Coder] = {} if anew else dict(compressed.coders)
        for field, dictionary in zip(flat[::2], flat[1::2], strict=True):
            number = stored_integer(self._to, self.key, "a field", field, 1, MOST_DICTIONARIES)
            if number not in coders:
                try:
                    coders[number] = compressed.packing.coder(dictionary)
                except StructureError as error:
                    raise damage(
                        self._to, self.key, f"{number}: {error.message}", "a dictionary"
                    ) from None
        compressed.coders, self._compared = coders, now

    @property
    def _digest_query(self) -> Command:
        return lua_call(self._to, "structures/base/dictionaries", [self.key])
