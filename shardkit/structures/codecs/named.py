"""Codecs by name, as ``codec=`` of a structure gives them."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from time import perf_counter
from typing import Any, Literal, NamedTuple, overload

from shardkit.config.problem import mask
from shardkit.errors import InvalidArgumentError, extra
from shardkit.operations.arguments import shown
from shardkit.structures.codecs.compression import Compressed, Packing, Tokens, Zstd
from shardkit.structures.codecs.plain import (
    GROWTH,
    Codec,
    Json,
    MessagePack,
    Raw,
    Text,
    V,
    check_growth,
    inflated,
    most_inflated,
    unreadable,
)

_PLAIN, _PACKED = b"\0", b"\1"


class Compressor(NamedTuple):
    """A compression: a function, what makes decompressors, and their errors."""

    compress: Callable[[bytes], bytes]
    decompressor: Callable[[], Any]
    errors: tuple[type[Exception], ...]


def _lz4() -> Compressor:
    with extra("codecs", "values compressed by lz4"):
        frame = import_module("lz4.frame")
    errors = (RuntimeError, ValueError, EOFError)
    return Compressor(frame.compress, frame.LZ4FrameDecompressor, errors)


_BROKEN = (OSError, EOFError, ValueError, zlib.error)

COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "lz4": _lz4,
    "gzip": lambda: Compressor(
        partial(gzip.compress, compresslevel=6, mtime=0), partial(zlib.decompressobj, 31), _BROKEN
    ),
    "bz2": lambda: Compressor(bz2.compress, bz2.BZ2Decompressor, _BROKEN),
}

_STREAMS = 100  # of one value: each costs a copy of what is behind it
_LZMA_BYTES = 1 << 27  # of a decompressor: twice those of xz -9


class _Whole:
    """A function of a package, as a decompressor of Python."""

    unused_data, eof = b"", True

    def __init__(self, decompress: Callable[[bytes, int], bytes]) -> None:
        self.decompress = decompress


def _zstd_frames(stored: bytes, most: int) -> bytes:
    zstd = import_module("zstandard").ZstdDecompressor()
    return bytes(zstd.stream_reader(stored, read_across_frames=True).read(most))


def _brotli(module: Any) -> _Whole:
    process = module.Decompressor().process  # bounded from brotli 1.2 on
    return _Whole(lambda stored, most: process(stored, output_buffer_limit=most))


# Those without a mark at their beginning are the last: they read a part of what is none.
_FORMATS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("zlib", lambda module: module.decompressobj(47)),  # gzip's, too
    ("bz2", lambda module: module.BZ2Decompressor()),
    ("lz4.frame", lambda module: module.LZ4FrameDecompressor()),
    ("lzma", lambda module: module.LZMADecompressor(memlimit=_LZMA_BYTES)),
    ("compression.zstd", lambda module: module.ZstdDecompressor()),
    ("backports.zstd", lambda module: module.ZstdDecompressor()),
    ("zstandard", lambda _: _Whole(_zstd_frames)),
    ("zlib", lambda module: module.decompressobj(-15)),  # DEFLATE alone
    *((name, _brotli) for name in ("brotli", "brotlicffi")),
)


@cache
def _decompressors() -> list[Callable[[], Any]]:
    decompressors: list[Callable[[], Any]] = []
    for name, decompressor in _FORMATS:
        with suppress(ImportError):
            decompressors.append(partial(decompressor, import_module(name)))
    return decompressors


def is_bounded(stored: bytes, growth: int) -> bool:
    """Return whether stored bytes may be given to a decompressor without a bound.

    In the formats of zlib, gzip, bzip2, xz, LZMA, LZ4, zstd, Brotli and DEFLATE they may become
    ``growth`` times as many, as those of a codec. It costs a decompression.
    """
    most = most_inflated(len(stored), growth)
    for make in _decompressors():
        rest, room = stored, most
        try:
            for _ in range(_STREAMS):
                stream = make()
                room -= len(stream.decompress(rest, room + 1))
                rest = (stream.unused_data or b"").lstrip(b"\0")  # between gzip's members
                if room >= 0 and not stream.eof:
                    raise EOFError  # it only begins like this format
                if room < 0 or not rest:
                    return room >= 0
        except MemoryError:
            return False
        except Exception:  # another format, or none
            continue
        return False
    return True


class WholeValue:
    """A codec that compresses the output of another one, each value by itself.

    For values of some kilobytes, which repeat themselves and need no dictionary. Behind a byte 01
    one is stored as the compressor wrote it, behind 00 as the other codec did, if that is no
    longer.

    Args:
        compressor: ``lz4``, the fastest, which needs its library; ``gzip``; or ``bz2``, the
            smallest for long text.
        inner: the other codec.
        growth: how many times its stored bytes a value may have, beyond 128 KiB. One that would
            have more is written as it is, and not read.
    """

    integers = False

    def __init__(self, compressor: str, inner: Codec[Any], growth: int = GROWTH) -> None:
        if compressor not in COMPRESSORS:
            raise InvalidArgumentError(
                f"compressor={shown(compressor)}", f"give one of {', '.join(COMPRESSORS)}"
            )
        self._compressor = COMPRESSORS[compressor]()
        self.inner = inner
        self.name = f"{compressor}-{inner.name}"
        self.growth = check_growth(self.name, growth)

    def encode(self, value: Any) -> bytes:
        """See `Codec.encode`; packed, if that is shorter, and can be read."""
        plain = self.inner.encode(value)
        packed = self._compressor.compress(plain)
        if len(packed) < len(plain) <= most_inflated(len(packed), self.growth):
            return _PACKED + packed
        return _PLAIN + plain

    def decode(self, stored: bytes) -> Any:
        """See `Codec.decode`."""
        mark, content = stored[:1], stored[1:]
        if mark == _PLAIN:
            return self.inner.decode(content)
        try:
            if mark != _PACKED:
                raise ValueError
            plain = inflated(self._compressor.decompressor(), content, self.growth)
        except self._compressor.errors:
            raise unreadable(stored, self.name) from None
        return self.inner.decode(plain)


class CodecResult(NamedTuple):
    """The measurements of a codec with sample values.

    Attributes:
        name: the codec's name.
        size: the mean bytes of a stored value.
        encode: the mean microseconds to encode a value.
        decode: the mean microseconds to decode a value.
    """

    name: str
    size: float
    encode: float
    decode: float


def compare_codecs(values: Iterable[Any], codecs: Iterable[Codec[Any]]) -> list[CodecResult]:
    """Measure codecs on values of your own; return the results, smallest first.

    Args:
        values: some hundred sample values.
        codecs: what to compare, as `codec` makes them. One with a dictionary has to have it: take
            the ``codec`` of a hash that was trained.
    """
    sample = list(values)
    if not sample:
        raise InvalidArgumentError("codecs compared on no values", "give a sample of them")
    results = []
    for one in codecs:
        start = perf_counter()
        stored = [one.encode(value) for value in sample]
        encoded = perf_counter()
        for value in stored:
            one.decode(value)
        decoded = perf_counter()
        scale = 1e6 / len(sample)
        mean = sum(map(len, stored)) / len(sample)
        times = (encoded - start) * scale, (decoded - encoded) * scale
        results.append(CodecResult(one.name, mean, *times))
    return sorted(results, key=lambda result: result.size)


RAW = Raw()
TEXT = Text()
JSON = Json()

_INNER: dict[str, Callable[[], Codec[Any]]] = {
    "text": lambda: TEXT,
    "json": lambda: JSON,
    "msgpack": MessagePack,
}
_PACKINGS: dict[str, Callable[[], Packing]] = {"tokens": Tokens, "zstd": Zstd}


@overload
def codec(given: None) -> Codec[bytes]: ...
@overload
def codec(given: Literal["text"]) -> Codec[str]: ...
@overload
def codec(given: Codec[V]) -> Codec[V]: ...
@overload
def codec(given: str) -> Codec[Any]: ...
@overload
def codec(given: str | Codec[V] | None) -> Codec[Any]: ...
def codec(given: str | Codec[Any] | None) -> Codec[Any]:
    """Return the codec for a structure's ``codec=``: a name, a codec, or None; refuses others."""
    if given is None:
        return RAW
    if isinstance(given, str):
        packing, _, inner = given.partition("-")
        if packing in _INNER and not inner:
            return _INNER[packing]()
        if packing in _PACKINGS and (inner or "json") in _INNER:
            return Compressed(_PACKINGS[packing](), _INNER[inner or "json"]())
        if packing in COMPRESSORS and (inner or "json") in _INNER:
            return WholeValue(packing, _INNER[inner or "json"]())
    elif all(hasattr(given, name) for name in ("name", "integers", "encode", "decode")):
        return given
    raise InvalidArgumentError(
        f"codec={shown(mask('host', given))}",
        f"give None, one of {', '.join(_INNER)}, {', '.join(_PACKINGS)}, "
        f"{', '.join(COMPRESSORS)}, or two joined "
        "(tokens-text), or a Codec",
    )


def encode_json(what: str, value: Any) -> bytes:
    """Return the JSON of a value, as `Json` encodes it; ``what`` is the thing, for the error."""
    try:
        return JSON.encode(value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{what} cannot be represented in JSON: {error.message}", error.remedy
        ) from None
