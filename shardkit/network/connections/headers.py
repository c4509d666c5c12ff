"""Refuses replies whose header announces more elements than may arrive.

hiredis allocates an array when its header arrives: 16 GiB for ``*2147483648``, which takes seconds
to be freed. So what is received is searched for long headers before hiredis gets it. The same bytes
may be part of a string. hiredis tells: once it has got everything in front of them, it has unread
bytes inside a string, and none where a header may stand.
"""

from __future__ import annotations

import re
from typing import Any

from redis.exceptions import InvalidResponse

AGGREGATES = (b"*", b"%", b"~", b">", b"|")  # hiredis reads RESP3's at any time
_SIGNS = b"".join(AGGREGATES)
_LIST = ord("*")
_SHORT = 4096  # bytes in which it takes less time to look for all signs at once
_SMALLEST = 8  # bytes of an element, in a list if not in the reply
_LONG = {
    kind: re.compile(re.escape(kind) + rb"(?:([0-9]{7,19})\r\n|[0-9]{0,19}\r?\Z)")
    for kind in AGGREGATES
}


class HeaderCheck:
    """Feeds a hiredis reader, and holds back a header that announces too much.

    Attributes:
        held: how many bytes hiredis has not got yet.
        suspect: whether these begin with a long header, or with part of a string that looks like
            one. Call `go_on` once hiredis has read all that it has.
    """

    __slots__ = ("_data", "_limit", "_reader", "_types", "held", "suspect")

    def __init__(self, reader: Any, types: tuple[bytes, ...], limit: int) -> None:
        self._reader = reader
        self._types = types
        self._limit = limit
        self._data = b""  # its last ``held`` bytes are held back
        self.held = 0
        self.suspect = False

    def feed(self, data: bytes | bytearray, end: int) -> None:
        """Feed the first ``end`` bytes, as far as no long header is among them."""
        if not self.held and end < _SHORT:
            signs = end - len(data[:end].translate(None, _SIGNS))
            # None, or only that of a list which is not long.
            if not signs or (signs == 1 and data[0] == _LIST and 0 < data.find(b"\r", 1, 8) < end):
                self._reader.feed(data, 0, end)
                return
        if self.held:
            data = self._data[-self.held :] + data[:end]
            end = len(data)
        at = self._find(data, 0, end)
        self._reader.feed(data, 0, at)
        self.held = end - at
        self._data = bytes(data[at:end])

    def go_on(self) -> None:
        """Feed what was held back, as it is part of a string.

        Raises:
            InvalidResponse: it is a header.
        """
        data, start = self._data, len(self._data) - self.held
        if not self._reader.has_data():
            count = int(data[start + 1 : start + 21].partition(b"\r")[0])
            raise InvalidResponse(
                f"a reply announces {count:,} elements, more than fit into {self._limit:,} bytes "
                "(max_reply_bytes)"
            )
        at = self._find(data, start + 1, len(data))
        self._reader.feed(data, start, at - start)
        self.held = len(data) - at

    def _find(self, data: bytes | bytearray, start: int, end: int) -> int:
        """Return where a long header or the beginning of one is; else the end."""
        self.suspect, first = False, end
        for kind in self._types:
            at = data.find(kind, start, first)  # faster, where there is none
            if at > start:
                at = data.find(b"\n" + kind, at - 1, first)
            for match in _LONG[kind].finditer(data, at, end) if at >= 0 else ():
                if match.start() >= first:
                    break
                count = int(match[1] or 0) * (2 if kind in b"%|" else 1)
                if match[1] is None or count * _SMALLEST > self._limit:
                    first, self.suspect = match.start(), match[1] is not None
                    break
        return first
