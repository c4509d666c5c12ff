"""redis-py's connections, blocking and awaiting, which wait for blocking commands.

The timeout of a blocking command is the time that it may block plus the socket timeout, unless the
entry says ``extend_blocking_timeout: false``. Many replies are read at once.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
import threading
import time
from builtins import TimeoutError as BuiltinTimeoutError
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio as aioredis
from redis.exceptions import ConnectionError, InvalidResponse, ResponseError, TimeoutError

from shardkit.errors import DeadlineExceeded
from shardkit.network.connections.connection_state import (
    LOST,
    ConnectionState,
    closed_error,
    require_open,
    timeout_for,
)
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.effects import PackedCommands
from shardkit.network.connections.framing import CONFIRMED, refusals
from shardkit.network.connections.redis_private import (
    INCOMPLETE,
    LATE,
    NOT_GIVEN,
    AsyncLimitedParser,
    LimitedParser,
    address_of,
    close_left,
    has_connect_callbacks,
    has_unread,
    postpone_health_check,
    set_timeout,
    socket_of,
    transport_of,
    unread,
)
from shardkit.network.connections.replies import CLOSED, READ_BYTES, SCALARS
from shardkit.operations.deadlines import Deadline, current, within
from shardkit.operations.forks import process
from shardkit.operations.interruptions import reraise_handlers
from shardkit.operations.steps import arun_steps, run_steps


class Closable(ConnectionState):
    """A connection that another thread can close, and that stays closed with its kit.

    The system reuses the number of a closed socket, perhaps for a file. So only its user closes a
    connection that is in a call; other threads shut its socket down, which ends the call.
    """

    direct = True
    asks_for_login, asks_for_epoch = "get_credentials", "fetch"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._closing = threading.RLock()  # between shutting a socket down and closing it
        self.calls: list[None] = []  # one for each that redis-py's code has under way on the socket
        super().__init__(*args, **kwargs)

    @property
    def is_connected(self) -> bool:
        """Whether it has a socket; redis-py's own tells from version 7.2 on."""
        return socket_of(self) is not None

    def shut_down(self) -> None:
        """Shut the socket down, as if the server had closed it; it is closed on release.

        Or now if the kit is closed: somebody may keep the connection for as long as the process
        lives. A call that begins at the same time finds one or the other.
        """
        if self.released:  # in the meantime
            return
        self.ends = True
        with self._closing:
            sock = socket_of(self)
            if isinstance(sock, socket.socket):
                with suppress(OSError):
                    # Not TLS's own method, after which data would be sent unencrypted.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
                if self.closed and self.handed_out and not self.calls:
                    self.disconnect()

    def _end_call(self) -> None:
        """Close the connection after a call if the kit was closed in the meantime."""
        self.calls.pop()
        if self.closed and not self.calls:
            self.disconnect()

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection."""
        if self.released:
            return
        if self.pid != process.pid:  # the parent may hold the lock
            super().disconnect(*args, **kwargs)
            return
        with self._closing:
            self.tell_closed()
            super().disconnect(*args, **kwargs)
            self.forget_use()

    def leave_to_parent(self) -> None:
        """Close a forked child's copy: the connection, and what it was told, are the parent's."""
        self._closing = threading.RLock()  # a thread of the parent may hold it
        super().disconnect()
        self.pid = process.pid
        self.inherited = self.own and not has_connect_callbacks(self)
        self.forget_use()

    run = staticmethod(run_steps)

    def _retried(self, connect: Callable[[Any], Steps[None]]) -> None:
        self.retry.call_with_retry(lambda: self.run(connect(self)), lambda _: None)  # type: ignore[attr-defined]

    def _connect_in_time(self, *args: Any, **kwargs: Any) -> None:
        try:
            with self._kept_to_deadline():
                super(ConnectionState, self).connect_check_health(*args, **kwargs)  # type: ignore[misc]
        except BaseException:  # an interrupt, too: its greeting may not be over
            self.disconnect()
            raise

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the deadline."""
        deadline = current.get()
        if deadline is not None:
            deadline.require_left()
        time.sleep(seconds)

    def round_trip(
        self,
        data: bytes,
        raw: bool,
        deadline: Deadline | None = None,
        count: int = 1,
        more: bool = False,
    ) -> tuple[list[Any], bool]:
        """Send a few commands as they are, if there are any, and read ``count`` replies.

        Return the replies, in which errors are values, and whether some may be errors or contain
        one. With ``more``, further replies follow. After redis-py's ConnectionError or
        TimeoutError, the connection is closed. Cost: one exchange.
        """
        replies: list[Any] = []  # of a connection that may be redis-py's own
        with within(deadline or current.get()):
            if data:
                self.send_packed_command(PackedCommands((data,)))
            while len(replies) < count:
                try:
                    replies.append(self.read_response(disable_decoding=raw))
                except ResponseError as error:
                    replies.append(error)
        return replies, any(isinstance(reply, Exception | list) for reply in replies)

    def is_reusable(self) -> bool:
        """Whether it is connected and nothing unread has arrived."""
        return self.is_connected and not self.ends and not self.can_read()

    def from_elsewhere(
        self, data: bytes, raw: bool, deadline: Deadline | None, count: int, does: int
    ) -> tuple[list[Any], bool]:
        """Do what `round_trip` does in their user's database; ``does`` are their effects.

        Cost: one exchange; two if a SELECT must be confirmed.
        """
        database = self.database
        if database not in self.opened:
            with within(deadline or current.get()):
                self.enter()
        form, sent, replies_due = self.encode(database, does, data, count)
        if form != CONFIRMED:
            replies, some = self.round_trip(sent, raw, deadline, replies_due)
            values = self.decode(form, replies, database)
            if values is not None:
                return list(values), some
        with within(deadline or current.get()):
            refusal = run_steps(self.select(database))
        if refusal is not None:
            return refusals(refusal, count), True
        return self.round_trip(data, raw, deadline, count)

    def _send_in_time(self, pieces: Any) -> None:
        send = super(ConnectionState, self).send_packed_command  # type: ignore[misc]
        self.calls.append(None)
        try:
            require_open(self)
            if current.get() is None:
                send(pieces, False)
            else:
                with self._kept_to_deadline():
                    send(pieces, False)
        finally:
            self._end_call()

    def read_response(self, *args: Any, timeout: Any = NOT_GIVEN, **kwargs: Any) -> Any:
        """Read a reply; raise ClosedError if the kit was closed in the meantime.

        That of a blocking command may take as long as it blocks, and the socket timeout.
        """
        if self._ready:
            return self._next_ready(*args, **kwargs)
        if self.protocol != 2:
            self._note_blocking()
        if timeout is NOT_GIVEN and self._blocking_for is not None and self.extend_blocking_timeout:
            timeout = timeout_for(self._blocking_for, self.socket_timeout)
        read, reply = super().read_response, self._at_hand(*args, **kwargs)
        self.calls.append(None)
        try:
            if reply is not INCOMPLETE:
                if isinstance(reply, ConnectionError | InvalidResponse):
                    self.disconnect()
                if isinstance(reply, Exception):
                    raise reply
            elif self.closed:
                raise closed_error(self.closed)
            elif timeout is NOT_GIVEN:
                reply = read(*args, **kwargs)
            else:
                set_timeout(self, timeout)
                try:
                    reply = read(*args, **kwargs)
                finally:
                    set_timeout(self, self.socket_timeout)
        except LOST as error:
            self.report(error)
            raise
        except ResponseError as error:
            run_steps(self.refused(error))
            raise
        finally:
            self._end_call()
            self._blocking_for = None
        self.due = max(0, self.due - 1)
        return self.usable(reply, *args, **kwargs)

    def can_read(self, timeout: float | None = 0) -> Any:
        """Return whether something arrives within ``timeout`` seconds, and before the deadline."""
        deadline = current.get() if timeout != 0 else None
        self.calls.append(None)
        try:
            require_open(self)
            has_come = super().can_read(deadline.shorten(timeout) if deadline else timeout)  # type: ignore[misc]
        except LOST as error:
            reraise_handlers(error)
            raise
        finally:
            self._end_call()
        if deadline is not None and not has_come:
            deadline.require_left()
        return has_come

    @contextmanager
    def _kept_to_deadline(self) -> Iterator[None]:
        deadline = current.get()
        if deadline is None or deadline.at == math.inf:
            yield
            return
        usual = {
            name: getattr(self, name)
            for name in ("socket_timeout", "socket_connect_timeout")
            if hasattr(self, name)
        }
        started = time.monotonic()
        if deadline.at <= started:
            raise deadline.passed()
        for name, seconds in usual.items():
            setattr(self, name, deadline.shorten(seconds))
        set_timeout(self, self.socket_timeout)
        try:
            yield
        except (TimeoutError, BuiltinTimeoutError) as error:
            if deadline.left() > 0 or isinstance(error, DeadlineExceeded):
                raise
            reraise_handlers(error)
            self.disconnect()
            raise deadline.passed(time.monotonic() - started) from None
        finally:
            for name, seconds in usual.items():
                setattr(self, name, seconds)
            set_timeout(self, usual["socket_timeout"])


class _FastReplies(Closable):
    """Reads the replies to commands at once, in hiredis."""

    _limited_parser = LimitedParser

    def round_trip(
        self,
        data: bytes,
        raw: bool,
        deadline: Deadline | None = None,
        count: int = 1,
        more: bool = False,
    ) -> tuple[list[Any], bool]:
        """Do what `Closable.round_trip` does, in one pass."""
        sock, parser = socket_of(self), self.reply_parser
        if sock is None or self.protocol != 2:  # a push message would be mistaken for a reply
            return super().round_trip(data, raw, deadline, count)
        parser.refused = parser.unusable = False
        headers, received = parser.headers, b""
        started, usual = 0.0, None
        try:
            if deadline is not None:
                started, usual = time.monotonic(), sock.gettimeout()
                sock.settimeout(deadline.shorten(usual))
            if data:
                sent = sock.send(data)
                if sent != len(data):
                    sock.sendall(memoryview(data)[sent:])
                received = sock.recv(READ_BYTES)
                if not received:
                    raise ConnectionError(CLOSED)
                if count == 1 and received[0] in SCALARS:
                    parser.reader.feed(received)  # what follows is not parsed
                else:
                    headers.feed(received, len(received))
            # All complete ones, without a Python loop.
            gets = parser.gets_raw if raw else parser.gets_decoded
            replies = list(islice(iter(gets, INCOMPLETE), count))
            if len(replies) < count:
                size, since = len(received), time.monotonic()
                while len(replies) < count:
                    size = parser.receive(sock, size, since, deadline, usual)
                    replies.extend(islice(iter(gets, INCOMPLETE), count - len(replies)))
        except BaseException as error:
            self._close_and_raise(error, deadline, started)
            raise
        if deadline is not None:
            sock.settimeout(usual)
        if parser.unusable:
            self.unusable = True
        if not more:
            if headers.held or parser.reader.has_data():
                self.disconnect()  # more replies than requests
            elif self.health_check_interval:
                postpone_health_check(self, time.monotonic())
        return replies, parser.refused

    def poll_number(self) -> int | None:
        """Return the number of the socket; None if something unread is not there any more."""
        sock = socket_of(self)
        if sock is None or self.protocol != 2 or self.reply_parser.has_more():
            return None
        pending = getattr(sock, "pending", None)  # of TLS
        if pending is not None and pending():
            return None
        number: int = sock.fileno()
        return number

    def _close_and_raise(
        self, error: BaseException, deadline: Deadline | None, started: float
    ) -> None:
        """Close the connection; raise redis-py's error instead of the socket's."""
        self.disconnect()
        reraise_handlers(error)
        failure, is_late = error, isinstance(error, LATE)
        if is_late and deadline is not None and deadline.left() <= 0:
            failure = deadline.passed(time.monotonic() - started)
        elif isinstance(error, BuiltinTimeoutError):
            failure = TimeoutError(f"no reply in time from {address_of(self)}")
        elif isinstance(error, OSError):
            failure = ConnectionError(f"lost the connection to {address_of(self)}: {error}")
        elif isinstance(error, TypeError):  # of hiredis: a list as a map's key
            failure = InvalidResponse(f"{address_of(self)} sent what is no reply: {error}")
        if isinstance(failure, LOST):
            self.report(failure)
        if failure is not error:
            raise failure from None

    def is_reusable(self) -> bool:
        sock = socket_of(self)
        if sock is None or self.ends:
            return False
        parser = self.reply_parser
        return not (parser.headers.held or parser.reader.has_data() or parser.poll(0))


class TcpConnection(_FastReplies, redis.Connection):
    """redis-py's TCP connection."""


class TlsConnection(_FastReplies, redis.SSLConnection):
    """redis-py's TLS connection."""


class UnixConnection(_FastReplies, redis.UnixDomainSocketConnection):
    """redis-py's Unix socket connection."""


# ---- awaiting


class AsyncClosable(ConnectionState):
    """The same for awaiting connections, which belong to one event loop and need no lock."""

    asks_for_login, asks_for_epoch = "get_credentials_async", "afetch"

    if not TYPE_CHECKING:

        def __del__(self, *_: Any) -> None:
            close_left(transport_of(self))

    def is_reusable(self) -> bool:
        """Whether it is connected and nothing unread has arrived, as far as can be seen."""
        return bool(self.is_connected) and not self.ends

    def _require_loop(self) -> None:
        """Refuse another event loop than that of the pool that lent it."""
        if (home := self.home()) is not None:
            home.require_loop()

    def shut_down(self) -> None:
        """Break the connection under its user."""
        if (transport := transport_of(self)) is not None:
            transport.abort()

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection; drop unwritten data, whose sender has got an error."""
        if self.released:
            return
        if not self.closed:
            self._require_loop()
        self.tell_closed()
        transport = transport_of(self)
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()
        self.forget_use()
        await super().disconnect(*args, **kwargs)

    run = staticmethod(arun_steps)

    async def _retried(self, connect: Callable[[Any], Steps[None]]) -> None:
        async def ignore(_: Exception) -> None:
            """Try again."""

        await self.retry.call_with_retry(lambda: self.run(connect(self)), ignore)  # type: ignore[attr-defined]

    async def _connect_in_time(self, *args: Any, **kwargs: Any) -> None:
        try:
            async with kept_to_deadline():
                await super(ConnectionState, self).connect_check_health(*args, **kwargs)  # type: ignore[misc]
        except BaseException:  # a cancellation, too: its greeting may not be over
            await self.disconnect(nowait=True)
            raise

    pause = staticmethod(asyncio.sleep)

    async def _send_in_time(self, pieces: Any) -> None:
        """Send commands.

        Before Python 3.12, redis-py's `asyncio.wait_for` ignores a cancellation that comes when the
        command has just been written, and a BLPOP would continue.
        """
        send = super(ConnectionState, self).send_packed_command  # type: ignore[misc]
        self._require_loop()
        if self.connecting:
            await asyncio.sleep(0)  # read what has come: a refusal, before the server closes it
            if unread(self).startswith((b"-ERR max number of clients", b"-DENIED")):
                await self.read_response()
        try:
            async with kept_to_deadline(self), asyncio.timeout(self.socket_timeout):
                with extended_timeout(self, math.inf):  # asyncio.timeout limits it
                    await send(pieces, check_health=False)
        except BuiltinTimeoutError:
            raise TimeoutError("Timeout writing to socket") from None
        except ConnectionError as error:
            if self.connecting:  # what it has said last may be lost
                raise ConnectionError(f"{error} Has the server reached maxclients?") from error
            raise

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply; raise ClosedError if the kit was closed in the meantime."""
        if self._ready:
            return self._next_ready(*args, **kwargs)
        if self.protocol != 2:
            self._note_blocking()
        self._require_loop()
        read, blocks = super().read_response, self._blocking_for
        reply = self._at_hand(*args, **kwargs)
        extends = kwargs.get("timeout") is None and self.extend_blocking_timeout
        try:
            if reply is not INCOMPLETE:
                if isinstance(reply, ConnectionError | InvalidResponse):
                    await self.disconnect(nowait=True)
                if isinstance(reply, Exception):
                    raise reply
            elif blocks is None and current.get() is None:
                reply = await read(*args, **kwargs)
            else:
                extended: Any = nullcontext()
                if blocks is not None and extends:
                    extended = extended_timeout(self, blocks)
                with extended:
                    async with kept_to_deadline(self, reads=True):
                        reply = await read(*args, **kwargs)
        except LOST as error:
            self.report(error)
            raise
        except ResponseError as error:
            await arun_steps(self.refused(error))
            raise
        finally:
            self._blocking_for = None
        if reply is not None or (len(args) < 2 and kwargs.get("timeout") is None):
            self.due = max(0, self.due - 1)  # else perhaps nothing has come in time
        return self.usable(reply, *args, **kwargs)


@asynccontextmanager
async def kept_to_deadline(connection: Any = None, *, reads: bool = False) -> AsyncIterator[None]:
    """Raise DeadlineExceeded inside when the caller's deadline passes, and close the connection.

    Replies that have arrived are read even if it has passed.
    """
    deadline = current.get()
    if deadline is None or deadline.at == math.inf:
        yield
        return
    if not reads:
        deadline.require_left()
    started = time.monotonic()
    try:
        async with asyncio.timeout(deadline.left()) as limit:
            yield
    except BuiltinTimeoutError:
        if not limit.expired():
            raise
        if connection is not None:
            await connection.disconnect(nowait=True)
        raise deadline.passed(time.monotonic() - started) from None


class _AsyncReplies(AsyncClosable):
    """Tells what has arrived, for awaiting connections."""

    direct = True
    _limited_parser = AsyncLimitedParser

    @property
    def transport(self) -> Any:
        return transport_of(self)

    def is_reusable(self) -> bool:
        transport = self.transport
        if transport is None or transport.is_closing() or self.ends:
            return False
        return not has_unread(self) and not self.reply_parser.poll(0)


@contextmanager
def extended_timeout(connection: Any, blocks: float) -> Iterator[None]:
    """Extend an awaiting connection's timeout for a command that may block for ``blocks`` seconds.

    After the ``timeout`` of read_response, redis-py would return None, and the reply would be lost.
    """
    usual = connection.socket_timeout
    connection.socket_timeout = timeout_for(blocks, usual)
    try:
        yield
    finally:
        connection.socket_timeout = usual


class _ToAnyAddress:
    """Tries a host's other addresses when the first is silent, as blocking connections do."""

    host: str
    port: int
    _address: Any = None  # the host and port to try

    async def _connect(self) -> None:
        try:
            await super()._connect()  # type: ignore[misc]
        except BuiltinTimeoutError:
            loop = asyncio.get_running_loop()
            infos = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            for *_, address in infos[1:]:
                self._address = address[:2]
                with suppress(OSError):
                    await super()._connect()  # type: ignore[misc]
                    return
            raise
        except OSError as error:
            # asyncio words it by itself, and that of several addresses without a number.
            if match := re.search(r"\[Errno (\d+)\] Connect call failed", str(error)):
                raise OSError(int(match[1]), os.strerror(int(match[1]))) from None
            raise
        finally:
            self._address = None

    def _connection_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = super()._connection_arguments()  # type: ignore[misc]
        if self._address is not None:
            arguments["host"], arguments["port"] = self._address
            if "ssl" in arguments:
                arguments["server_hostname"] = self.host
        return arguments


class AsyncTcpConnection(_ToAnyAddress, _AsyncReplies, aioredis.Connection):
    """The awaiting TCP connection."""


class AsyncTlsConnection(_ToAnyAddress, _AsyncReplies, aioredis.SSLConnection):
    """The awaiting TLS connection, which reads its certificates whenever it connects."""

    async def _connect(self) -> None:
        self.ssl_context.context = None  # redis-py's, with certificates that may have expired
        await super()._connect()


class AsyncUnixConnection(_AsyncReplies, aioredis.UnixDomainSocketConnection):
    """The awaiting Unix socket connection."""
