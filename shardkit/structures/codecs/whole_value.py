"""Codecs that compress each value by itself, for large ones: pages, reports, pickles of caches.

A value of some kilobytes repeats itself, so it needs no dictionary. Behind a byte 01 it is stored
as the compressor wrote it, behind a byte 00 as the inner codec did: packing made it no shorter.
Which codec pays depends on the values: `compare_codecs` measures your own.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any, NamedTuple

from shardkit.errors import InvalidArgumentError, extra
from shardkit.structures.codecs.plain import (
    GROWTH,
    Codec,
    check_growth,
    inflated,
    most_made,
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


class WholeValue:
    """A codec that compresses the output of another one, each value by itself.

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
                f"compressor={compressor!r}", f"give one of {', '.join(COMPRESSORS)}"
            )
        self._compressor = COMPRESSORS[compressor]()
        self.inner = inner
        self.name = f"{compressor}-{inner.name}"
        self.growth = check_growth(self.name, growth)

    def encode(self, value: Any) -> bytes:
        """See `Codec.encode`; packed, if that is shorter, and can be read."""
        plain = self.inner.encode(value)
        packed = self._compressor.compress(plain)
        if len(packed) < len(plain) <= most_made(len(packed), self.growth):
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

    Raises:
        InvalidArgumentError: there are no values, or one does not fit a codec.
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
