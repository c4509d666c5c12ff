"""The most that stored bytes may become, so that a few of them cannot fill a reader's memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.network.connections.replies import MAX_REPLY_BYTES

GROWTH = 64  # times the stored bytes
_ALWAYS = 1 << 17  # bytes that may be made of however few, as of a block of zstd


def most_made(stored: int, growth: int = GROWTH) -> int:
    """Return how many bytes may be made of so many stored ones: no more than a reply may have."""
    return min(max(_ALWAYS, growth * stored), MAX_REPLY_BYTES)


def check_growth(codec: str, growth: int) -> int:
    """Return ``growth=`` of a codec, if it is one."""
    if not isinstance(growth, int) or isinstance(growth, bool) or growth < 1:
        raise InvalidArgumentError(f"{codec}: growth={growth!r}", "give an integer, 1 or more")
    return growth


def too_large(most: int) -> StructureError:
    """Return the error for stored bytes that would become more than they may."""
    return StructureError(
        f"a stored value would become more than {most:,} bytes",
        "write it again, or, if it is yours, give its codec a larger growth=",
    )


def inflated(decompressor: Any, stored: bytes, growth: int = GROWTH) -> bytes:
    """Return what a new decompressor of Python, zlib or lz4 makes of stored bytes.

    Raises:
        StructureError: that is too large.
        ValueError: they are not one whole stream, and nothing else.
    """
    most = most_made(len(stored), growth)
    made: bytes | None = None
    with suppress(MemoryError):
        made = decompressor.decompress(stored, most + 1)
    if made is None or len(made) > most:
        raise too_large(most)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("not one whole stream")
    return made
