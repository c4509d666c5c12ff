"""redis-py's connections, which wait for blocking commands, and read many replies quickly.

The timeout of a command that may block is the time it may block plus the socket timeout, unless the
entry says ``extend_blocking_timeout: false``.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import signal
import socket
import threading
import time
import traceback
from builtins import TimeoutError as BuiltinTimeoutError
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any

import hiredis
import redis
import redis.asyncio as aioredis
from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    InvalidResponse,
    ReadOnlyError,
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit.errors import ClosedError, RoutingError
from shardkit.events import ConnectionClosed, ConnectionOpened, emit, handlers
from shardkit.network.connections.greeting import DatabaseMovedError, Greeting
from shardkit.network.connections.policy import NO_POLICY
from shardkit.network.connections.redis_private import (
    NOT_GIVEN,
    AsyncLimitedParser,
    LimitedParser,
    address_of,
    error_parser_of,
    has_connect_callbacks,
    has_unread,
    lost_its_role,
    postpone_health_check,
    set_timeout,
    socket_of,
    transport_of,
    wants_reconnect,
)
from shardkit.operations.deadlines import Deadline, DeadlineExceeded, current, within
from shardkit.operations.forks import process
from shardkit.routing.command_keys import blocking_seconds

_LOST = (ConnectionError, TimeoutError, OSError)


class ServerReplacedError(ConnectionError):
    """The server refused a command because it is a replica now; its entry names another one."""


def _nobody() -> None:
    """Stands for the private pool of a connection that is not of one."""


EXCHANGE_TIMEOUT = 60.0
MAX_REPLY_BYTES = 4 * 1024**3
_SIGNALS = signal.valid_signals()

INCOMPLETE = object()
READ_BYTES = 64 * 1024
# Replies that are larger than that are read into buffers that are used again; strings of up to a
# megabyte directly, as hiredis would copy them twice.
_BUFFER_BYTES = 1024 * 1024
_BUFFERS: list[bytearray] = []  # those that no read is using
_CLOSED = "the server closed the connection"

_BLOCKING = (
    *("BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BLMPOP", "BZMPOP", "BZPOPMIN", "BZPOPMAX"),
    *("XREAD", "XREADGROUP", "WAIT", "WAITAOF"),
)
# The names that can block, as they may be written; whether a call does, blocking_seconds says.
_MAY_BLOCK = frozenset(
    spelled
    for name in _BLOCKING
    for text in (name, name.lower())
    for spelled in (text, text.encode())
)


class ReplyLimits:
    """Limits on the replies to what was sent at once; see docs/configuration.md.

    Attributes:
        exchange_timeout: how long they may take in all, in seconds; None for ever.
        max_reply_bytes: how large they may be in all.
        extend_blocking_timeout: whether a blocking command may take the time that it may block on
            top of the socket timeout; redis-py's own may not.
        policy: what bounds the calls to its server.
        connecting: whether it is being connected, which is one attempt as a whole.
        for_block: whether it is used for a command that may block.
    """

    policy = NO_POLICY
    connecting = False
    for_block = False
    exchange_timeout: float | None = EXCHANGE_TIMEOUT
    max_reply_bytes: int = MAX_REPLY_BYTES
    extend_blocking_timeout = True
    _limited_parser: type[Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in ("exchange_timeout", "max_reply_bytes", "extend_blocking_timeout"):
            if name in kwargs:
                setattr(self, name, kwargs.pop(name))
        if self._limited_parser is not None:
            kwargs.setdefault("parser_class", self._limited_parser)
        super().__init__(*args, **kwargs)

    def note_failure(self, error: BaseException) -> None:
        """Have the server's breaker count that its reply did not come."""
        waits = self.for_block or getattr(self, "_blocking_for", None) is not None
        if (
            self.policy.breaker is not None
            and not self.connecting
            and not (waits and isinstance(error, DeadlineExceeded))
            and not has_connect_callbacks(self)
        ):
            # One that is lost in between fails at once.
            self.policy.failed(error, math.inf if isinstance(error, TimeoutError) else 0.0)

    def _tell_opened(self, begun: float) -> None:
        shard, address = str(self.policy.shard or ""), self.policy.address
        emit(ConnectionOpened(shard, address, time.monotonic() - begun))

    def _tell_closed(self) -> None:
        emit(ConnectionClosed(str(self.policy.shard or ""), self.policy.address))

    def require_closed_breaker(self) -> None:
        """Refuse to connect while the server's breaker is open."""
        breaker = self.policy.breaker
        if breaker is not None and breaker.opened:
            raise breaker.error()

    def check_reply(self, seconds: float, size: int) -> None:
        """Refuse replies that came for so long, or have become so large, and are not complete.

        Raises:
            TimeoutError, InvalidResponse: redis-py's.
        """
        if self.exchange_timeout is not None and seconds > self.exchange_timeout:
            raise TimeoutError(
                f"the replies were not complete after exchange_timeout: {self.exchange_timeout} "
                "seconds"
            )
        if size > self.max_reply_bytes:
            raise InvalidResponse(
                f"the replies are larger than max_reply_bytes: {self.max_reply_bytes:,}"
            )


class Closable(ReplyLimits):
    """A connection that another thread can close, and that stays closed with its kit.

    A socket's number is given to the next that is opened, a file perhaps. So only the thread that
    uses a connection closes its socket; another one shuts it down, and the user finds it closed.

    Attributes:
        closed: its kit is closed; it does not connect again.
        moved_to: a connection as this one is to be from when it next connects, to another address
            and perhaps of another kind. Only the user's thread changes this one.
        greeting: what it says and asks first; see `shardkit.network.connections.greeting`.
        follower: returns the private pool that lent it, or None.
        due: how many replies to what redis-py's own code sent have not been read, and one more
            while keys are watched. If it is released so, somebody was interrupted in between.
    """

    closed = False
    due = 0
    _watches = False
    follower: Callable[[], Any] = staticmethod(_nobody)
    moved_to: Any = None
    greeting: Greeting | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._closing = threading.RLock()  # between shutting a socket down and closing it
        super().__init__(*args, **kwargs)

    def shut_down(self) -> None:
        """Have its user find the connection closed by the server, and close it on release."""
        self.mark_for_reconnect()  # type: ignore[attr-defined]
        with self._closing:
            sock = socket_of(self)
            if isinstance(sock, socket.socket):
                with suppress(OSError):
                    # Not TLS's own, after which what is sent would go as it is.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection."""
        if self.pid != process.pid:  # type: ignore[attr-defined]  # the lock may be held for ever
            super().disconnect(*args, **kwargs)  # type: ignore[misc]
            return
        with self._closing:
            if handlers and self.is_connected:  # type: ignore[attr-defined]
                self._tell_closed()
            super().disconnect(*args, **kwargs)  # type: ignore[misc]
            self.due, self._watches = 0, False

    def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Connect, unless the kit is closed, or was meanwhile; again, as ``retry`` says.

        A connection that could not be made has executed nothing.
        """
        if self.is_connected:  # type: ignore[attr-defined]
            return
        for retry in count(1):
            try:
                self._connect_once(*args, **kwargs)
                return
            except _LOST as error:
                pause = self.policy.pause_before_retry(retry, error)
                if pause is None:
                    raise
            time.sleep(pause)

    def _connect_once(self, *args: Any, **kwargs: Any) -> None:
        require_open(self)
        self.require_closed_breaker()
        self.connecting = True
        begun = time.monotonic()
        try:
            while True:
                become_moved(self)
                with self._kept_to_deadline(connects=True):
                    super().connect_check_health(*args, **kwargs)  # type: ignore[misc]
                require_open(self)
                if self.moved_to is None:
                    break
                self.disconnect()
        except BaseException as error:
            self.disconnect()
            reraise_handlers(error)
            if self.closed and isinstance(error, _LOST):
                raise closed_error() from error
            if not isinstance(error, DatabaseMovedError):  # the server is well
                self.policy.failed(error, time.monotonic() - begun)
            raise
        finally:
            self.connecting = False
        if self.policy.breaker is not None:
            self.policy.breaker.reached()
        if handlers:
            self._tell_opened(begun)

    def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Introduce itself: redis-py's way, and with its greeting. Subscriptions follow."""
        super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]
        if self.greeting is not None:
            self._greet(self.greeting)

    def _greet(self, greeting: Greeting) -> None:
        commands = greeting.commands(self.client_name)  # type: ignore[attr-defined]
        if not commands:
            return
        replies = self._replies_to(commands)
        witnessed = greeting.heard(commands, replies)
        if witnessed:
            greeting.confirm(witnessed)
        if greeting.fenced(commands, replies):
            for pause, asked in greeting.pauses():
                deadline = current.get()
                if deadline is not None:
                    deadline.require_left()
                time.sleep(pause)
                if not greeting.fenced(asked, self._replies_to(asked)):
                    self._replies_to(greeting.renamed(self.client_name))  # type: ignore[attr-defined]
                    break

    def _replies_to(self, commands: list[tuple[str, ...]]) -> list[Any]:
        self.send_packed_command(self.pack_commands(commands), check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(self.read_response(disable_decoding=True))
            except ResponseError as refused:
                replies.append(refused)
        return replies

    def pack_commands(self, commands: Iterable[Any]) -> Any:
        """Pack commands that are about to be sent."""
        commands = list(commands)
        self.due += len(commands)
        if commands:
            self._note_watch(commands[-1][0])
        return super().pack_commands(commands)  # type: ignore[misc]

    def send_command(self, *args: Any, **kwargs: Any) -> None:
        """Send a command."""
        self.due += 1
        self._note_watch(args[0])
        super().send_command(*args, **kwargs)  # type: ignore[misc]

    def _note_watch(self, name: Any) -> None:
        """Note that keys will be watched after a command that is about to be sent, or no more."""
        if name == "WATCH" and not self._watches:
            self._watches = True
            self.due += 1
        elif self._watches and name in ("EXEC", "UNWATCH", "DISCARD"):
            self._watches = False
            self.due -= 1

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        """Send a command; if the kit was closed meanwhile, say that."""
        try:
            if current.get() is None:
                super().send_packed_command(*args, **kwargs)  # type: ignore[misc]
            else:
                with self._kept_to_deadline():
                    super().send_packed_command(*args, **kwargs)  # type: ignore[misc]
        except Exception as error:
            reraise_handlers(error)
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply; if the kit was closed meanwhile, say that."""
        try:
            reply = super().read_response(*args, **kwargs)  # type: ignore[misc]
        except _LOST as error:
            reraise_handlers(error)
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise
        except ResponseError as error:
            self.due = max(0, self.due - 1)
            pool = self.follower()
            if pool is not None and lost_its_role(error):
                pool.leave(self, error)
            raise
        self.due = max(0, self.due - 1)
        return reply

    @contextmanager
    def _kept_to_deadline(self, connects: bool = False) -> Iterator[None]:
        """Shorten the timeouts to what the caller's deadline leaves; reading does so by itself."""
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
        if connects:
            for name, seconds in usual.items():
                setattr(self, name, deadline.shorten(seconds))
        else:
            set_timeout(self, deadline.shorten(usual["socket_timeout"]))
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


class AsyncClosable(ReplyLimits):
    """The same for awaiting connections, which belong to one event loop and need no lock.

    Attributes:
        draining: it is closed whenever it is released.
        moved_to: a connection as this one is to be from when it next connects, to another address
            and perhaps of another kind. Only the user's thread changes this one.
        greeting: what it says and asks first.
        follower: returns the private pool that lent it, or None.
    """

    closed = False
    follower: Callable[[], Any] = staticmethod(_nobody)
    greeting: Greeting | None = None
    draining = False
    moved_to: Any = None
    socket_timeout: float | None

    def should_reconnect(self) -> bool:
        """Whether it is to be closed before it is used again."""
        return self.draining or super().should_reconnect()  # type: ignore[misc]

    def tell_closed(self) -> None:
        """Tell whoever listens that it is being closed, if it is connected."""
        if handlers and self.is_connected:  # type: ignore[attr-defined]
            self._tell_closed()

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection; what was not written by now never is: its caller has been told."""
        self.tell_closed()
        transport = transport_of(self)
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Connect, unless the kit is closed, or was meanwhile; again, as ``retry`` says."""
        if self.is_connected:  # type: ignore[attr-defined]
            return
        for retry in count(1):
            try:
                await self._connect_once(*args, **kwargs)
                return
            except _LOST as error:
                pause = self.policy.pause_before_retry(retry, error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _connect_once(self, *args: Any, **kwargs: Any) -> None:
        require_open(self)
        self.require_closed_breaker()
        self.connecting = True
        begun = time.monotonic()
        try:
            while True:
                become_moved(self)
                async with kept_to_deadline():
                    await super().connect_check_health(*args, **kwargs)  # type: ignore[misc]
                if self.moved_to is None:
                    break
                await self.disconnect(nowait=True)
        except _LOST as error:
            if self.closed:
                raise closed_error() from error
            if not isinstance(error, DatabaseMovedError):  # the server is well
                self.policy.failed(error, time.monotonic() - begun)
            raise
        finally:
            self.connecting = False
        if self.policy.breaker is not None:
            self.policy.breaker.reached()
        if handlers:
            self._tell_opened(begun)
        try:
            require_open(self)
        except ClosedError:
            await self.disconnect(nowait=True)
            raise

    async def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Introduce itself: redis-py's way, and with its greeting. Subscriptions follow."""
        await super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]
        if self.greeting is not None:
            await self._greet(self.greeting)

    async def _greet(self, greeting: Greeting) -> None:
        commands = greeting.commands(self.client_name)  # type: ignore[attr-defined]
        if not commands:
            return
        replies = await self._replies_to(commands)
        witnessed = greeting.heard(commands, replies)
        if witnessed:
            await greeting.aconfirm(witnessed)
        if greeting.fenced(commands, replies):
            for pause, asked in greeting.pauses():
                await asyncio.sleep(pause)
                if not greeting.fenced(asked, await self._replies_to(asked)):
                    await self._replies_to(greeting.renamed(self.client_name))  # type: ignore[attr-defined]
                    break

    async def _replies_to(self, commands: list[tuple[str, ...]]) -> list[Any]:
        packed = self.pack_commands(commands)  # type: ignore[attr-defined]
        await self.send_packed_command(packed, check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await self.read_response(disable_decoding=True))
            except ResponseError as refused:
                replies.append(refused)
        return replies

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command, connected; if the kit was closed meanwhile, say that.

        Not by redis-py's `asyncio.wait_for`: before Python 3.12 it ignores a task's cancellation
        that comes just when the command has been written, and a BLPOP would go on.
        """
        try:
            try:
                async with kept_to_deadline(self), asyncio.timeout(self.socket_timeout):
                    with extended_timeout(self, math.inf):  # this one limits it
                        await super().send_packed_command(  # type: ignore[misc]
                            command, check_health=check_health
                        )
            except BuiltinTimeoutError:
                raise TimeoutError("Timeout writing to socket") from None
        except Exception as error:
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply; if the kit was closed meanwhile, say that."""
        try:
            if current.get() is None:
                return await super().read_response(*args, **kwargs)  # type: ignore[misc]
            async with kept_to_deadline(self):
                return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        except _LOST as error:
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise
        except ResponseError as error:
            pool = self.follower()
            if pool is not None and lost_its_role(error):
                await pool.leave(self, error)
            raise


@asynccontextmanager
async def kept_to_deadline(connection: Any = None) -> AsyncIterator[None]:
    """Have what is awaited inside end with the caller's deadline, and its connection be closed.

    Raises:
        DeadlineExceeded: it has passed.
    """
    deadline = current.get()
    if deadline is None or deadline.at == math.inf:
        yield
        return
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


# What a connection keeps when it moves: who uses it, and what was said about it.
_OF_ITS_USER = frozenset(
    {"_connect_callbacks", "_closing", "closed", "encoder", "connecting", "for_block"}
)


def become_moved(connection: Any) -> None:
    """Make a connection that is not connected what it is to be, before it connects."""
    to = vars(connection).pop("moved_to", None)  # another one may come at any time
    if to is None:
        return
    slots = [name for kind in type(to).__mro__ for name in getattr(kind, "__slots__", ())]
    state = {name: getattr(to, name) for name in (*slots, *vars(to)) if hasattr(to, name)}
    connection.__class__ = type(to)
    for name, value in state.items():
        if name not in _OF_ITS_USER and not name.startswith("__"):
            setattr(connection, name, value)


def reraise_handlers(error: BaseException) -> None:
    """Raise what a handler of a signal raised, as it was, if that is behind an error.

    Otherwise the TimeoutError of somebody's alarm would be taken for the server's.
    """
    found: BaseException | None = error
    codes = None
    while found is not None:
        frames = [frame for frame, _ in traceback.walk_tb(found.__traceback__)]
        if codes is None:
            codes = {
                getattr(handler, "__code__", None) for handler in map(signal.getsignal, _SIGNALS)
            }
        if any(frame.f_code in codes for frame in frames):
            raise found
        # Only what was raised on the way to this error, not what the caller is just handling.
        earlier = found.__context__
        at = earlier.__traceback__ if earlier is not None else None
        found = earlier if at is not None and at.tb_frame in frames else None


def require_open(part: Any) -> None:
    """Refuse to use a pool or a connection whose kit is closed."""
    if part.closed:
        raise closed_error()


def closed_error() -> ClosedError:
    """Return what a call gets whose kit was closed before its end."""
    return ClosedError("the kit is closed", "open a new one with shardkit.connect")


class _BlockingTimeouts(Closable):
    """Waits for the reply of a blocking command as long as that may block."""

    socket_timeout: float | None
    _blocking_for: float | None = None
    _limited_parser = LimitedParser

    def send_command(self, *args: Any, check_health: bool = True, **kwargs: Any) -> Any:
        blocks = _blocking_seconds(args) if args[0] in _MAY_BLOCK else None
        if (
            not self.connecting
            and check_health
            and (blocks is not None or self.moved_to is not None)
        ):
            if not self.is_connected:  # type: ignore[attr-defined]
                self.connect()  # type: ignore[attr-defined]
            self.check_health()  # type: ignore[attr-defined]
            check_health = False
            # Before it is sent, so that whoever changes the address sees it; and only now, because
            # connecting and a health check have replies of their own.
            self._blocking_for = blocks
            while self.moved_to is not None and self.waits():
                self.disconnect()
                self.connect()  # type: ignore[attr-defined]
                self._blocking_for = blocks
        return super().send_command(*args, check_health=check_health, **kwargs)

    def read_response(self, *args: Any, timeout: Any = NOT_GIVEN, **kwargs: Any) -> Any:
        # Otherwise a Sentinel-managed connection stays open when its reader is interrupted.
        kwargs.setdefault("disconnect_on_error", True)
        if self._blocking_for is None:
            return super().read_response(*args, timeout=timeout, **kwargs)
        if timeout is NOT_GIVEN and self.extend_blocking_timeout:
            timeout = timeout_for(self._blocking_for, self.socket_timeout)
        try:
            return super().read_response(*args, timeout=timeout, **kwargs)
        finally:
            self._blocking_for = None

    def waits(self) -> bool:
        """Whether its user waits for what may never come: subscribed, or in a blocking command."""
        return self._blocking_for is not None or has_connect_callbacks(self)

    def lose(self) -> None:
        """Have its user find the connection lost."""
        self.shut_down()

    def round_trip(
        self, data: bytes, raw: bool, deadline: Deadline | None = None, count: int = 1
    ) -> tuple[list[Any], bool]:
        """Send a few packed commands; see the function."""
        return round_trip(self, data, raw, deadline, count)

    def is_reusable(self) -> bool:
        """Whether it is connected, and the server has neither sent anything nor closed it."""
        return is_reusable(self)

    def set_timeout(self, seconds: float | None) -> None:
        """Set the timeout of reads and writes, in seconds; None waits for ever."""
        set_timeout(self, seconds)


class _FastReplies(_BlockingTimeouts):
    """Reads the replies to many commands at once, in hiredis."""

    protocol: int
    health_check_interval: Any
    _is_plain_tcp = True  # bytes go as they are, not through TLS
    _reply_parser: ReplyParser | None = None
    _parsed_socket: Any = None

    def read_replies(self, replies: list[Any], count: int, raw: bool, more: bool = False) -> bool:
        """Read replies into a list until it has ``count``; errors are exceptions in it.

        Args:
            replies: the list; with ``more`` it may get more than ``count``.
            count: how many it shall have.
            raw: whether to leave text undecoded.
            more: whether further replies will follow.

        Returns:
            Whether there are errors among the replies read, or inside one of them.

        Raises:
            ConnectionError, TimeoutError: redis-py's; the connection is closed then.
        """
        if self.protocol != 2:  # a push message would be taken for an answer
            return read_replies(super(), replies, count, raw)
        sock = socket_of(self)
        if sock is None:
            raise ConnectionError(_CLOSED)
        reply_parser = self._parser_on(sock)
        reply_parser.refused = False
        deadline = current.get()
        started, usual = (0.0, None) if deadline is None else (time.monotonic(), sock.gettimeout())
        try:
            reply_parser.read(_Receiver(self, sock, deadline), replies, count, not raw, more)
        except BaseException as error:
            self._close_and_raise(error, deadline, started)
            raise
        if deadline is not None:
            sock.settimeout(usual)
        if not more:
            if reply_parser.reader.has_data() or len(replies) > count:
                self.disconnect()  # it says more than was asked for
            elif self.health_check_interval:
                postpone_health_check(self, time.monotonic())
        return reply_parser.refused

    def round_trip(
        self, data: bytes, raw: bool, deadline: Deadline | None = None, count: int = 1
    ) -> tuple[list[Any], bool]:
        """Send a few packed commands; return the replies, and whether errors are among them.

        In one pass: what `send_packed_command` and `read_replies` do, without what is only of use
        to many.

        Args:
            data: the commands.
            raw: whether to leave text undecoded.
            deadline: by when the replies have to be there.
            count: how many commands there are.

        Raises:
            ConnectionError, TimeoutError: redis-py's; the connection is closed then.
        """
        sock = socket_of(self)
        if (
            sock is None
            or self.protocol != 2
            or self.health_check_interval
            or not self._is_plain_tcp
        ):
            return round_trip(self, data, raw, deadline, count)
        reply_parser = self._reply_parser
        if reply_parser is None or self._parsed_socket is not sock:
            reply_parser = self._parser_on(sock)
        reply_parser.refused = False
        started = 0.0
        try:
            if deadline is not None:
                started = time.monotonic()
                sock.settimeout(deadline.shorten(self.socket_timeout))
            sent = sock.send(data)
            if sent != len(data):
                sock.sendall(memoryview(data)[sent:])
            gets = reply_parser.gets_raw if raw else reply_parser.gets_decoded
            received = sock.recv(READ_BYTES)
            if not received:
                raise ConnectionError(_CLOSED)
            reply_parser.reader.feed(received)
            replies: list[Any] = []
            receiver = None
            while len(replies) < count:
                reply = gets()
                if reply is not INCOMPLETE:
                    replies.append(reply)
                    continue
                if receiver is None:
                    receiver = _Receiver(self, sock, deadline)
                receiver.feed(reply_parser.reader)
        except BaseException as error:
            self._close_and_raise(error, deadline, started)
            raise
        if deadline is not None:
            sock.settimeout(self.socket_timeout)
        if reply_parser.reader.has_data():
            self.disconnect()  # it says more than was asked for
        return replies, reply_parser.refused

    def _parser_on(self, sock: Any) -> ReplyParser:
        if self._reply_parser is None or self._parsed_socket is not sock:
            self._reply_parser, self._parsed_socket = ReplyParser(self, sock), sock
        return self._reply_parser

    def _close_and_raise(
        self, error: BaseException, deadline: Deadline | None, started: float
    ) -> None:
        """Close the connection; raise redis-py's error in place of the socket's."""
        self.disconnect()
        reraise_handlers(error)
        if self.closed and isinstance(error, _LOST):
            raise closed_error() from error
        if (
            deadline is not None
            and isinstance(error, BuiltinTimeoutError | BlockingIOError)
            and deadline.left() <= 0
        ):
            found: Exception = deadline.passed(time.monotonic() - started)
        elif isinstance(error, BuiltinTimeoutError):
            found = TimeoutError(f"Timeout talking to {address_of(self)}")
        elif isinstance(error, OSError):
            found = ConnectionError(f"{error} while talking to {address_of(self)}")
        else:
            if isinstance(error, _LOST):
                self.note_failure(error)
            return
        self.note_failure(found)
        raise found from None

    def is_reusable(self) -> bool:
        """Whether it is connected, and the server has neither sent anything nor closed it."""
        sock = socket_of(self)
        if sock is None or wants_reconnect(self):
            return False
        if not self._is_plain_tcp or self._reply_parser is None or self._parsed_socket is not sock:
            return is_reusable(self)
        return not has_unread(self) and not self._reply_parser.poll(0)

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self._reply_parser = self._parsed_socket = None
        super().disconnect(*args, **kwargs)


def _poller(sock: Any) -> Callable[[float], Any]:
    """Return what tells whether there is anything to read, given how long to wait."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return poll.poll
    # eventlet takes `select.poll` away, and Windows has none.
    selector = selectors.SelectSelector()
    selector.register(sock, selectors.EVENT_READ)
    return selector.select


class _Receiver:
    """Receives the replies to what was just sent, within the limits of their connection.

    Args:
        connection: the connection.
        sock: its socket.
        deadline: by when the replies have to be there.
    """

    __slots__ = ("_connection", "_deadline", "_size", "_socket", "_started", "_usual")

    def __init__(self, connection: ReplyLimits, sock: Any, deadline: Deadline | None) -> None:
        self._connection = connection
        self._socket = sock
        self._deadline = deadline
        self._started = time.monotonic()
        self._size = 0
        self._usual = None if deadline is None else sock.gettimeout()

    def _before(self) -> None:
        if self._size:
            self._connection.check_reply(time.monotonic() - self._started, self._size)
        if self._deadline is not None:  # what has come already is read even if it has passed
            self._socket.settimeout(self._deadline.shorten(self._usual))

    def _after(self, received: int) -> None:
        if not received:
            raise ConnectionError(_CLOSED)
        self._size += received

    def some(self) -> bytes:
        """Return some bytes."""
        self._before()
        data: bytes = self._socket.recv(READ_BYTES)
        self._after(len(data))
        return data

    def feed(self, reader: Any) -> None:
        """Give hiredis some bytes; more at a time if there are many."""
        if self._size < READ_BYTES:
            reader.feed(self.some())
            return
        self._before()
        buffer = _take_buffer()
        received = self._socket.recv_into(buffer)
        self._after(received)
        reader.feed(buffer, 0, received)
        _BUFFERS.append(buffer)

    def large_strings(self, replies: list[Any], count: int) -> bytes:
        """Read replies into a list as long as they are large strings; return what follows."""
        while len(replies) < count:
            data = self.some()
            header, _, begun = data[:16].partition(b"\r\n")
            if header[:1] != b"$" or not begun or not header[1:].isdigit():
                return data
            length, have = int(header[1:]), len(data) - len(header) - 2
            if not READ_BYTES <= length <= _BUFFER_BYTES - 2:
                return data
            buffer = _take_buffer()
            with memoryview(buffer) as view:
                view[:have] = memoryview(data)[len(header) + 2 :]
                while have < length + 2:  # not a byte of the next reply
                    self._before()
                    received = self._socket.recv_into(view[have : length + 2])
                    self._after(received)
                    have += received
                if bytes(view[length : length + 2]) != b"\r\n":
                    raise InvalidResponse("a string does not end where it should")
                replies.append(bytes(view[:length]))
            _BUFFERS.append(buffer)
        return b""


def _take_buffer() -> bytearray:
    try:
        return _BUFFERS.pop()
    except IndexError:
        # glibc gives what was freed back to the system as soon as it is twice the largest block
        # that was freed before, and getting it again costs as much as reading it. After one of
        # 8 MiB, the pages of files that are read are not given back each time.
        freed = bytes(2**23)
        del freed
        return bytearray(_BUFFER_BYTES)


class ReplyParser:
    """Parses the replies on a connection.

    Attributes:
        poll: tells whether there is anything to read.
        reader: hiredis' parser; returns INCOMPLETE while a reply is not complete.
        gets_decoded: returns the next reply, decoded as the connection is configured.
        gets_raw: returns the next reply as bytes.
        refused: set when a reply is an error or contains one, so that replies need no inspection.
        unusable: set when an error says that this is not, or no longer, the server to talk to.
    """

    __slots__ = (
        *("_mid_batch", "_parse_error", "gets_decoded", "gets_raw"),
        *("poll", "reader", "refused", "unusable"),
    )

    def __init__(self, connection: Any, sock: Any) -> None:
        self.poll = _poller(sock)
        self.refused = self.unusable = self._mid_batch = False
        self._parse_error = error_parser_of(connection)
        encoder = connection.encoder
        decode = {"encoding": encoder.encoding, "errors": encoder.encoding_errors}
        self.reader = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=self._error,
            notEnoughData=INCOMPLETE,
            **(decode if encoder.decode_responses else {}),
        )
        self.gets_decoded: Callable[[], Any] = self.reader.gets
        self.gets_raw: Callable[[], Any] = self.reader.gets
        if encoder.decode_responses:
            self.gets_raw = partial(self.reader.gets, False)
            self.gets_decoded = self._decoded

    def _decoded(self) -> Any:
        """Return the next reply; one that cannot be decoded is an error, and the next follows."""
        try:
            return self.reader.gets()
        except UnicodeDecodeError as error:
            self.refused = True
            return ResponseError(f"the reply cannot be decoded: {error}")

    def _error(self, text: str) -> Exception:
        try:
            error: Exception = self._parse_error(text)
        except (ValueError, LookupError):  # a script's own, which is called MOVED but is none
            error = ResponseError(text)
        self.refused = True
        if isinstance(error, ReadOnlyError | ConnectionError):
            self.unusable = True
        return error

    def read(
        self,
        receiver: _Receiver,
        replies: list[Any],
        count: int,
        decode: bool,
        more: bool,
    ) -> None:
        """Read replies into a list; see `_Direct.read_replies`."""
        reader, gets = self.reader, self.gets_decoded if decode else self.gets_raw
        missing = count - len(replies)
        mid_batch, self._mid_batch = self._mid_batch, more
        if missing <= 0:
            return
        begun = b""
        if not (more or mid_batch or gets == self._decoded):
            begun = receiver.large_strings(replies, count)
            missing = count - len(replies)
            if not missing:
                return
        # Not as one list if a reply may have been read in part. The reader does not tell: between
        # two elements of an array it has no data either.
        if missing == 1 or more or mid_batch or gets == self._decoded:
            reader.feed(begun)
            replies.extend(
                iter(gets, INCOMPLETE)
            )  # all that is there, without a step of Python each
            while len(replies) < count:
                receiver.feed(reader)
                replies.extend(iter(gets, INCOMPLETE))
            return
        reader.feed(b"*%d\r\n" % missing)  # with this header, hiredis builds the list
        reader.feed(begun)
        found = gets()
        while found is INCOMPLETE:
            receiver.feed(reader)
            found = gets()
        replies += found


class _AsyncBlockingTimeouts(AsyncClosable):
    """The same for awaiting connections, whose ``timeout`` argument means something else."""

    socket_timeout: float | None
    _limited_parser = AsyncLimitedParser
    _packed: tuple[Any, float | None] | None = None
    _reply_parser: ReplyParser | None = None
    _parsed_socket: Any = None
    _blocking_for: float | None = None

    def pack_command(self, *args: Any) -> Any:
        packed = super().pack_command(*args)  # type: ignore[misc]
        if args[0] in _MAY_BLOCK:
            self._packed = packed, _blocking_seconds(args)
        return packed

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self.is_connected:  # type: ignore[attr-defined]
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()  # type: ignore[attr-defined]
        # See the blocking connection's.
        if self._packed is not None and self._packed[0] is command:
            self._blocking_for = blocks = self._packed[1]
            self._packed = None
        else:
            blocks = self._blocking_for
        while not self.connecting and self.moved_to is not None and self.waits():
            await self.disconnect(nowait=True)
            await self.connect()  # type: ignore[attr-defined]
            self._blocking_for = blocks
        await super().send_packed_command(command, check_health=False)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        blocks = self._blocking_for
        if blocks is None:
            return await super().read_response(*args, **kwargs)
        try:
            if kwargs.get("timeout") is not None or not self.extend_blocking_timeout:
                return await super().read_response(*args, **kwargs)
            with extended_timeout(self, blocks):
                return await super().read_response(*args, **kwargs)
        finally:
            self._blocking_for = None

    def waits(self) -> bool:
        """Whether its user waits for what may never come: subscribed, or in a blocking command."""
        return self._blocking_for is not None or has_connect_callbacks(self)

    def lose(self) -> None:
        """Have its user find the connection lost."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def transport(self) -> Any:
        """The asyncio transport, for whoever has checked the connection out."""
        return transport_of(self)

    def reply_parser(self) -> ReplyParser:
        """Return the parser of what the transport receives."""
        transport = self.transport
        if self._reply_parser is None or self._parsed_socket is not transport:
            sock = transport.get_extra_info("socket")
            self._reply_parser, self._parsed_socket = ReplyParser(self, sock), transport
        self._reply_parser.refused = self._reply_parser.unusable = False
        return self._reply_parser

    def is_reusable(self) -> bool:
        """Whether it is connected, and the server has neither sent anything nor closed it.

        What came may lie with redis-py or, not seen yet by the event loop, in the socket.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self.should_reconnect():
            return False
        return not has_unread(self) and not self.reply_parser().poll(0)


def timeout_for(blocks: float, socket_timeout: float | None) -> float | None:
    """Return the timeout of a command that may block for ``blocks`` seconds; None is for ever."""
    if not blocks or socket_timeout is None or math.isinf(blocks):
        return None
    return blocks + socket_timeout


@contextmanager
def extended_timeout(connection: Any, blocks: float) -> Iterator[None]:
    """Extend an awaiting connection's timeout for a command that may block for so many seconds.

    Not by the ``timeout`` of read_response: when that is over, redis-py returns None, and the reply
    would be lost.
    """
    usual = connection.socket_timeout
    connection.socket_timeout = timeout_for(blocks, usual)
    try:
        yield
    finally:
        connection.socket_timeout = usual


def _blocking_seconds(args: Sequence[Any]) -> float | None:
    try:
        return blocking_seconds(args)
    except RoutingError:
        return None  # the server will say what is wrong


def is_reusable(connection: Any) -> bool:
    """Whether a connection like redis-py's is connected, and the server has sent nothing."""
    connected = getattr(connection, "is_connected", True)
    return connected and not connection.should_reconnect() and not connection.can_read()


def round_trip(
    connection: Any, data: bytes, raw: bool, deadline: Deadline | None = None, count: int = 1
) -> tuple[list[Any], bool]:
    """Send a few packed commands; return the replies, and whether errors may be among them.

    Raises:
        ConnectionError, TimeoutError: redis-py's.
    """
    replies: list[Any] = []
    with within(deadline or current.get()):
        connection.send_packed_command((data,))
        refused = read_replies_of(connection)(replies, count, raw)
    return replies, refused


def read_replies_of(connection: Any) -> Callable[..., bool]:
    """Return the function that reads a number of replies from a connection."""
    return getattr(connection, "read_replies", None) or partial(read_replies, connection)


def read_replies(
    connection: Any, replies: list[Any], count: int, raw: bool, more: bool = False
) -> bool:
    """Do what `_Direct.read_replies` does, for any connection like redis-py's.

    Raises:
        ConnectionError, TimeoutError: redis-py's.
    """
    refused = False
    read = connection.read_response
    while len(replies) < count:
        try:
            reply = read(disable_decoding=raw)
        except ResponseError as error:
            reply = error
        # An array may contain an error; the caller inspects it.
        refused = refused or isinstance(reply, Exception | list)
        replies.append(reply)
    return refused


class TcpConnection(_FastReplies, redis.Connection):
    """redis-py's TCP connection, which waits for blocking commands."""


class TlsConnection(_FastReplies, redis.SSLConnection):
    """redis-py's TLS connection, which waits for blocking commands."""

    _is_plain_tcp = False


class UnixConnection(_FastReplies, redis.UnixDomainSocketConnection):
    """redis-py's Unix socket connection, which waits for blocking commands."""


class SentinelConnection(_BlockingTimeouts, sentinel.SentinelManagedConnection):
    """redis-py's Sentinel-managed connection, which waits for blocking commands."""


class SentinelTlsConnection(_BlockingTimeouts, sentinel.SentinelManagedSSLConnection):
    """redis-py's Sentinel-managed TLS connection, which waits for blocking commands."""


class AsyncTcpConnection(_AsyncBlockingTimeouts, aioredis.Connection):
    """The awaiting TCP connection, which waits for blocking commands."""


class AsyncTlsConnection(_AsyncBlockingTimeouts, aioredis.SSLConnection):
    """The awaiting TLS connection, which waits for blocking commands."""


class AsyncUnixConnection(_AsyncBlockingTimeouts, aioredis.UnixDomainSocketConnection):
    """The awaiting Unix socket connection, which waits for blocking commands."""


class AsyncSentinelConnection(_AsyncBlockingTimeouts, aiosentinel.SentinelManagedConnection):
    """The awaiting Sentinel-managed connection, which waits for blocking commands."""


class AsyncSentinelTlsConnection(_AsyncBlockingTimeouts, aiosentinel.SentinelManagedSSLConnection):
    """The awaiting Sentinel-managed TLS connection, which waits for blocking commands."""
