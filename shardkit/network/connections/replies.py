"""Parses the replies to many commands at once, in hiredis, and receives them from sockets.

hiredis allocates an array when its header arrives: 16 GiB for ``*2147483648``, which takes seconds
to be freed. So what is received is searched for long headers before hiredis gets it. The same bytes
may be part of a string. hiredis tells: once it has got everything in front of them, it has unread
bytes inside a string, and none where a header may stand.
"""

from __future__ import annotations

import re
import select
import selectors
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import hiredis
from redis.exceptions import (
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from shardkit.network.connections.redis_private import INCOMPLETE, parse_error, undecodable
from shardkit.operations.deadlines import Deadline

_AGGREGATES = (b"*", b"%", b"~", b">", b"|")  # hiredis reads RESP3's at any time
_SIGNS = b"".join(_AGGREGATES)
_LIST, _ATTRIBUTE = b"*|"
SCALARS = b"$+:-"  # first bytes of replies without elements
_SHORT = 4096  # bytes in which it takes less time to look for all signs at once
_SMALLEST = 8  # bytes of an element, in a list if not in the reply
_LONG = {
    kind: re.compile(rb"%b(?:([0-9]{%d,19})\r\n|[0-9]{0,19}\r?\Z)" % (re.escape(kind), digits))
    for kind, digits in zip(_AGGREGATES, (7, 7, 7, 7, 1), strict=True)  # no attribute can be read
}


class HeaderCheck:
    """Feeds a hiredis reader, and holds back a header that announces too much.

    Attributes:
        held: how many bytes hiredis has not got yet.
        suspect: whether these begin with a long header, or with part of a string that looks like
            one. Call `go_on` once hiredis has read all that it has.
    """

    __slots__ = ("_data", "_limit", "_reader", "held", "suspect")

    def __init__(self, reader: Any, limit: int) -> None:
        self._reader = reader
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
            if data[start] == _ATTRIBUTE:
                raise InvalidResponse("a reply has attributes, which hiredis mistakes for replies")
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
        for kind in _AGGREGATES:
            at = data.find(kind, start, first)  # faster, where there is none
            if at == start and not _LONG[kind].match(data, at, end):  # as that of most lists
                at = data.find(kind, start + 1, first)
            if at > start:
                at = data.find(b"\n" + kind, at - 1, first)
            for match in _LONG[kind].finditer(data, at, end) if at >= 0 else ():
                if match.start() >= first:
                    break
                count = int(match[1] or 0) * (2 if kind in b"%|" else 1)
                too_many = kind == b"|" or count * _SMALLEST > self._limit
                if match[1] is None or too_many:
                    first, self.suspect = match.start(), match[1] is not None
                    break
        return first


MAX_REPLY_BYTES = 4 * 1024**3
READ_BYTES = 64 * 1024
_MORE_BYTES = 128 * 1024  # of larger replies; more at once take longer
CLOSED = "the server closed the connection"
# The connection would stay in its transaction, and the next commands would be answered QUEUED.
_LACKS_EXEC = re.compile("ERR unknown command ['`]EXEC['`]", re.IGNORECASE)


def refuses_to_serve(error: Exception) -> bool:
    """Whether a server says that it cannot serve: READONLY, LOADING, MASTERDOWN, NOAUTH."""
    return isinstance(error, ReadOnlyError | MasterDownError | ConnectionError)


def _poller(sock: Any) -> Callable[[float | None], Any]:
    """Return a function that waits some milliseconds for something to read, and tells whether."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if not hasattr(sock, "pending"):
            return poll.poll
        return lambda milliseconds: sock.pending() or poll.poll(milliseconds)  # TLS's
    # eventlet removes `select.poll`, and Windows has none.
    selector = selectors.SelectSelector()
    selector.register(sock, selectors.EVENT_READ)
    return lambda milliseconds: selector.select(milliseconds and milliseconds / 1000)


class ReplyParser:
    """Parses the replies on a connection's socket, within its limits.

    Attributes:
        poll: waits for something to read.
        headers: feeds the reader.
        reader: hiredis' parser; returns INCOMPLETE while a reply is not complete.
        gets_decoded, gets_raw: return the next reply, as the connection is configured or as bytes.
        refused: whether a reply is an error or contains one.
        unusable: whether an error means that this server must not be used (any more).
        may_block: whether the next reply is that of a command that may block.
    """

    def __init__(self, connection: Any, sock: Any) -> None:
        self.poll = _poller(sock)
        self.refused = self.unusable = self.may_block = False
        self._encoder = encoder = connection.encoder
        decode = {"encoding": encoder.encoding, "errors": encoder.encoding_errors}
        self.reader = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=self._error,
            notEnoughData=INCOMPLETE,
            **(decode if encoder.decode_responses else {}),
        )
        self.max_bytes: int = connection.max_reply_bytes
        self._size = 0  # of what `received` was given, since its last reply
        self._seconds: float | None = connection.exchange_timeout
        self.headers = HeaderCheck(self.reader, self.max_bytes)
        self.gets_decoded: Callable[[], Any] = self.reader.gets
        self.gets_raw: Callable[[], Any] = self.reader.gets
        if encoder.decode_responses:
            self.gets_raw = partial(self.reader.gets, False)
            usual = connection.protocol == 2
            self.gets_decoded = self._decoded if usual else self._decoded_among_pushes

    def check(self, seconds: float, size: int) -> None:
        """Raise redis-py's error if incomplete replies have taken too long or are too large."""
        if self._seconds is not None and seconds > self._seconds:
            raise TimeoutError(
                f"the replies were not complete after {self._seconds} seconds (exchange_timeout)"
            )
        if size > self.max_bytes:
            raise InvalidResponse(
                f"the replies are larger than {self.max_bytes:,} bytes (max_reply_bytes)"
            )

    def receive(
        self, sock: Any, size: int, since: float, deadline: Deadline | None, usual: float | None
    ) -> int:
        """Give hiredis, which needs more, some bytes; more at a time for large replies.

        ``size`` bytes have come since the time ``since``; return how many have by now. One reading
        brings at most `READ_BYTES` more than the connection allows.
        """
        headers = self.headers
        if headers.suspect:
            headers.go_on()
            return size
        if size:
            self.check(time.monotonic() - since, size)
        if deadline is not None:  # data that has arrived is read even if it has passed
            sock.settimeout(deadline.shorten(usual))
        most = READ_BYTES if size < READ_BYTES else _MORE_BYTES
        data = sock.recv(min(most, self.max_bytes - size + READ_BYTES))
        if not data:
            raise ConnectionError(CLOSED)
        headers.feed(data, len(data))
        return size + len(data)

    def received(self, data: bytes) -> Iterator[Any]:
        """Yield what has become complete of what a server sends unasked, as bytes.

        Raises:
            InvalidResponse: it is no reply, or one that is too large.
        """
        self.headers.feed(data, len(data))
        self._size += len(data)
        while True:
            for reply in iter(self.gets_raw, INCOMPLETE):
                self._size = 0
                yield reply
            if not self.headers.suspect:
                break
            self.headers.go_on()
        self.check(0.0, self._size)

    def has_more(self) -> bool:
        """Whether there is more than the replies that were read."""
        return self.headers.held > 0 or self.reader.has_data()

    def _decoded(self) -> Any:
        """Return the next reply, or the error that it cannot be decoded."""
        try:
            return self.reader.gets()
        except UnicodeDecodeError as error:
            self.refused = True
            return undecodable(error)

    def _decoded_among_pushes(self) -> Any:
        """Return the next reply or push; bytes of a push that cannot be decoded, or else the error.

        Of what hiredis cannot decode, it does not say whether it was a push.
        """
        reply = self.gets_raw()
        try:
            return decoded(reply, self._encoder)
        except ResponseError as error:
            if isinstance(reply, hiredis.PushNotification):
                return reply
            self.refused = True
            return error

    def _error(self, text: str) -> Exception:
        if _LACKS_EXEC.match(text):
            raise InvalidResponse("the server lacks EXEC: set `select: confirmed`, use no MULTI")
        text, *args = re.split("(?=, with args beginning with)", text)  # what was sent is not shown
        try:
            error = parse_error(text)
        except (ValueError, LookupError):  # a script's own error that is named MOVED
            error = ResponseError(text)
        error.args_sent = "".join(args)  # type: ignore[attr-defined]
        self.refused = True
        self.unusable = self.unusable or refuses_to_serve(error)
        return error


def decoded(reply: Any, encoder: Any) -> Any:
    """Return a reply that was read as bytes as redis-py decodes it, if it does."""
    if not encoder.decode_responses:
        return reply
    if isinstance(reply, bytes):
        try:
            return encoder.decode(reply)
        except UnicodeDecodeError as error:
            raise undecodable(error) from None
    if isinstance(reply, list | set | tuple):
        return type(reply)(decoded(part, encoder) for part in reply)
    if isinstance(reply, dict):
        return {decoded(k, encoder): decoded(v, encoder) for k, v in reply.items()}
    return reply
