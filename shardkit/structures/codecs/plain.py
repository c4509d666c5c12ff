"""Codecs without a dictionary: none, text, JSON and MessagePack.

A codec accepts only what it returns unchanged: what would come back as another value is refused
when it is written, by reading back what was encoded. Only tuples come back as lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from shardkit.errors import InvalidArgumentError, StructureError, extra
from shardkit.network.connections.replies import MAX_REPLY_BYTES
from shardkit.operations.arguments import shown

V = TypeVar("V", covariant=True)


class Codec(Protocol[V]):
    """Converts values to stored bytes and back."""

    @property
    def name(self) -> str:
        """Its name in a structure's stored parameters, which determines the format."""

    @property
    def integers(self) -> bool:
        """Whether numbers are stored as text, on which HINCRBY and HINCRBYFLOAT work."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes to store; InvalidArgumentError if the value does not fit the codec."""

    def decode(self, stored: bytes) -> V:
        """Return the value; StructureError if the bytes were not written by this codec."""


class Raw:
    """``codec=None``: takes str, bytes, int and float; returns bytes."""

    name = "none"
    integers = True

    def encode(self, value: str | bytes | int | float) -> bytes:
        """Return the bytes to store: text as UTF-8, numbers as their digits."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return utf8(value)
        if isinstance(value, float):
            return repr(float(value)).encode()
        if isinstance(value, int) and not isinstance(value, bool):
            try:
                return b"%d" % value
            except ValueError:
                raise refused(value, "is too long", "give its digits as text") from None
        raise refused(
            value,
            f"is a {type(value).__name__}",
            "give str, bytes, int or float, or open the structure with codec='json'",
        )

    def decode(self, stored: bytes) -> bytes:
        """Return the bytes."""
        return stored


class Text:
    """``codec="text"``: str."""

    name = "text"
    integers = True

    def encode(self, value: str) -> bytes:
        """Return its UTF-8."""
        if isinstance(value, str):
            return utf8(value)
        raise refused(value, f"is a {type(value).__name__}", "codec='text' takes str")

    def decode(self, stored: bytes) -> str:
        """Return the text."""
        try:
            return stored.decode()
        except UnicodeDecodeError:
            raise unreadable(stored, "UTF-8") from None


class Serialized:
    """A codec of nested values; the base of `Json` and `MessagePack`."""

    name: str
    integers: bool
    format: str

    def __init__(self, write: Callable[[Any], bytes], read: Callable[[bytes], Any]) -> None:
        self._write = write
        self._read = read

    def encode(self, value: Any) -> bytes:
        """Return the bytes to store; an error names the path to what does not fit in a value."""
        try:
            stored = self._write(value)
            if self._read(stored) == value:
                return stored
        except Exception as failure:
            path, part = next(self._faults("value", value), ("value", value))
            raise self._misfit(path, part) from failure
        for path, part in self._faults("value", value):
            raise self._misfit(path, part)
        return stored  # a tuple came back as a list

    def decode(self, stored: bytes) -> Any:
        """Return the value."""
        try:
            return self._read(stored)
        except Exception:
            raise unreadable(stored, self.format) from None

    def _misfit(self, path: str, part: object) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{path} {shown(part)}, a {type(part).__name__}, would not come back from "
            f"{self.format} as it is",
            "turn it into something that does, for example text",
        )

    def _faults(self, path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
        """Yield path and value of everything that does not survive being written and read."""
        if depth > 200:  # a cycle, or too deep for a message
            yield path[:60] + "…", value
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                yield from self._faults(f"{path}[{index}]", item, depth + 1)
        elif isinstance(value, dict):
            for key, item in value.items():
                if not self._survives({key: None}):
                    yield f"the key in {path}", key
                yield from self._faults(f"{path}[{shown(key)}]", item, depth + 1)
        elif not self._survives(value):
            yield path, value

    def _survives(self, value: Any) -> bool:
        try:
            back = self._read(self._write(value))
            changed = isinstance(value, bytearray | memoryview)  # to bytes, which equal it
            return (bool(back == value) and not changed) or (_nan(back) and _nan(value))
        except Exception:
            return False


class Json(Serialized):
    """``codec="json"``: JSON values, stored without spaces, letters as UTF-8.

    With msgspec installed, reading and writing is several times faster, in the same format.
    """

    name = "json"
    integers = True
    format = "JSON"

    def __init__(self) -> None:
        try:
            import msgspec
        except ModuleNotFoundError:
            write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            read = json.JSONDecoder(parse_constant=int)  # refuses NaN and Infinity
            super().__init__(
                lambda value: write.encode(value).encode(),
                lambda stored: read.decode(stored.decode()),
            )
        else:
            super().__init__(msgspec.json.Encoder().encode, msgspec.json.Decoder().decode)


class MessagePack(Serialized):
    """``codec="msgpack"``: JSON values, bytes, and dict keys of other types. It needs msgspec."""

    name = "msgpack"
    integers = False
    format = "MessagePack"

    def __init__(self) -> None:
        with extra("codecs", "values in MessagePack"):
            import msgspec
        super().__init__(msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode)

    def encode(self, value: Any) -> bytes:
        """Return the bytes to store; see `Serialized.encode`."""
        stored = super().encode(value)
        if any(sign in stored for sign in _BYTES):
            for path, part in self._faults("value", value):
                raise self._misfit(path, part)
        return stored


_BYTES = (b"\xc4", b"\xc5", b"\xc6")  # MessagePack's signs before bytes; letters have them, too


def utf8(text: str) -> bytes:
    """Return the UTF-8 of a value."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise refused(text, "cannot be encoded as UTF-8", "remove lone surrogates") from None


def refused(value: object, why: str, remedy: str) -> InvalidArgumentError:
    """Return the error that refuses a value."""
    return InvalidArgumentError(f"value {shown(value)} {why}", remedy)


def unreadable(stored: bytes, as_what: str) -> StructureError:
    """Return the error that refuses bytes that were stored."""
    return StructureError(
        f"stored value {shown(stored)} cannot be read as {as_what}",
        "write it again (it is damaged, or another program wrote it)",
    )


def _nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


GROWTH = 64  # times the stored bytes
_ALWAYS = 1 << 17  # bytes that may be made of however few, as of a block of zstd


def most_inflated(stored: int, growth: int = GROWTH) -> int:
    """Return how many bytes a number of stored bytes may become: at most those of a reply."""
    return min(max(_ALWAYS, growth * stored), MAX_REPLY_BYTES)


def check_growth(codec: str, growth: int) -> int:
    """Return ``growth=`` of a codec, if it is one."""
    if not isinstance(growth, int) or isinstance(growth, bool) or growth < 1:
        raise InvalidArgumentError(f"{codec}: growth={shown(growth)}", "give an integer, 1 or more")
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
    most = most_inflated(len(stored), growth)
    inflated_data: bytes | None = None
    with suppress(MemoryError):
        inflated_data = decompressor.decompress(stored, most + 1)
    if inflated_data is None or len(inflated_data) > most:
        raise too_large(most)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("not one whole stream")
    return inflated_data
