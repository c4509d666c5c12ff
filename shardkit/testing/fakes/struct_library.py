"""The ``struct`` of servers' Lua for servers in memory, whose Lua lacks it.

It knows the byte orders ``<`` and ``>``, integers of 1 to 8 bytes (``b B h H l L i4 I3 …``),
``f`` and ``d``, texts of a fixed length (``c5``) or ended by a zero (``s``), and padding (``x``).
Numbers are not aligned.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

_ITEM = re.compile(r"([<>=])|([bBhHlL]|[iI]\d*|[fd]|c\d+|s|x)|(\s+)")
_WIDTHS = {"b": 1, "h": 2, "l": 8, "i": 4}
# Python's kinds, by whether they are signed, and their width.
_CODES = {
    **{(True, width): code for width, code in zip((1, 2, 4, 8), "bhiq", strict=True)},
    **{(False, width): code for width, code in zip((1, 2, 4, 8), "BHIQ", strict=True)},
}


def pack(form: bytes, *values: object) -> bytes:
    """Return values as bytes, as ``struct.pack`` of servers does.

    Raises:
        ValueError: there are too few values, one is of another kind, or a text is too short.
    """
    items, numbers = _parsed(form)
    if numbers is not None:
        with suppress(struct.error):  # out of range, or a fraction: one by one
            return numbers.pack(*values)
    packed, left = b"", iter(values)
    for order, kind, width in items:
        if kind == "x":
            packed += b"\0"
            continue
        value = next(left, None)
        if value is None:
            raise ValueError("too few values")
        match kind:
            case "s":
                packed += _text(value) + b"\0"
            case "c":
                text = _text(value)
                if len(text) < width:
                    raise ValueError("string too short")
                packed += text[: width or None]
            case "f" | "d":
                packed += struct.pack(order + kind, float(value))  # type: ignore[arg-type]
            case _:
                number = int(value) % (1 << 8 * width)  # type: ignore[call-overload]
                packed += number.to_bytes(width, "little" if order == "<" else "big")
    return packed


def unpack(form: bytes, packed: bytes, position: float = 1) -> tuple[object, ...]:
    """Return the values in bytes, and the position behind them, as servers do.

    Raises:
        ValueError: the bytes end too early.
    """
    at, found = int(position) - 1, list[object]()
    items, numbers = _parsed(form)
    if numbers is not None and len(packed) >= at + numbers.size:
        return (*numbers.unpack_from(packed, at), at + numbers.size + 1)
    for order, kind, width in items:
        if kind == "s":
            end = packed.index(b"\0", at)
            found.append(packed[at:end])
            at = end + 1
            continue
        piece = packed[at : at + width]
        if len(piece) < width:
            raise ValueError("data string too short")
        at += width
        match kind:
            case "x":
                pass
            case "c":
                found.append(piece)
            case "f" | "d":
                found.append(struct.unpack(order + kind, piece)[0])
            case _:
                little = "little" if order == "<" else "big"
                found.append(int.from_bytes(piece, little, signed=kind.islower()))  # type: ignore[arg-type]
    return (*found, at + 1)


def size(form: bytes) -> int:
    """Return how many bytes values of a form take."""
    return sum(width for _, _, width in _parsed(form)[0])


@lru_cache(1024)  # scripts have few, but some write lengths into them
def _parsed(form: bytes) -> tuple[tuple[tuple[str, str, int], ...], struct.Struct | None]:
    """Return a form's items, and Python's struct of them if they are numbers of one byte order."""
    items = tuple(_items(form))
    codes = [
        kind if kind in "fd" else _CODES.get((kind.islower(), width)) for _, kind, width in items
    ]
    if len({order for order, _, _ in items}) != 1 or any(kind in "scx" for _, kind, _ in items):
        return items, None
    if None in codes:
        return items, None
    return items, struct.Struct(items[0][0] + "".join(map(str, codes)))


def _items(form: bytes) -> Iterator[tuple[str, str, int]]:
    """Return the byte order, the kind and the width of each value."""
    text, order, at = form.decode(), "<", 0
    while at < len(text):
        found = _ITEM.match(text, at)
        if found is None:
            raise ValueError(f"servers in memory know no struct format {text[at:]!r}")
        at = found.end()
        if found[1]:
            order = "<" if found[1] == "=" else found[1]
        elif found[2]:
            kind, width = found[2][0], found[2][1:]
            if kind in "fd":
                yield order, kind, 4 if kind == "f" else 8
            elif kind in "sx":
                yield order, kind, int(kind == "x")
            else:
                yield order, kind, int(width or _WIDTHS[kind.lower()])


def _text(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
