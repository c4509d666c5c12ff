"""The dictionaries of one structure, stored beside it in the HASH ``<name>:dictionary``.

A dictionary is written once and never changed: with HSETNX the first of several trainers wins, and
the others read what it wrote. So every dictionary that a value refers to exists as long as the
structure does. Values stored before one was trained stay readable too.

Others may delete the structure and train again. So a process compares a digest of its dictionaries
with the server's at most once a second, before it encodes and after it has read values. Within that
second, parts refuse a write of an earlier generation, and the write is encoded again. Codecs
without dictionaries pay nothing for all this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.operations.commands import Command, To
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.parameters import LEASE
from shardkit.structures.codecs.compression import (
    MOST_DICTIONARIES,
    Coder,
    Compressed,
    dictionary_of,
)
from shardkit.structures.codecs.plain import Codec, Raw, V

T = TypeVar("T")


class CodedValues(Generic[V]):
    """The values of one structure, coded; shared by all its faces, like its `Metadata`."""

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
                found = f"no dictionary {min(missing)}"
                raise damage(self._to, self.key, found, "that of stored values")

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
