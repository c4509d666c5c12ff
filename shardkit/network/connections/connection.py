"""redis-py's connections, which wait for blocking commands and read many replies quickly.

The timeout of a blocking command is the time that it may block plus the socket timeout, unless the
entry says ``extend_blocking_timeout: false``.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import select
import selectors
import socket
import threading
import time
from builtins import TimeoutError as BuiltinTimeoutError
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import count
from operator import call
from typing import TYPE_CHECKING, Any, Self

import hiredis
import redis
import redis.asyncio as aioredis
from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit.errors import ClosedError, DeadlineExceeded
from shardkit.events import ConnectionClosed, ConnectionOpened, emit, handlers
from shardkit.network.connections.databases import (
    UNNAMED,
    ClientDatabase,
    DatabaseMovedError,
    Steps,
    opening,
)
from shardkit.network.connections.effects import (
    ANYWHERE,
    STATE,
    WATCHES,
    WHOLE,
    PackedCommands,
)
from shardkit.network.connections.framing import (
    ADDED,
    CHANGES,
    CONFIRMED,
    INSERTED,
    MULTI,
    PLAIN,
    SELECTED,
    WRAPPED,
    form_of,
    framed,
    has_selected,
    refusals,
    unframed,
)
from shardkit.network.connections.headers import AGGREGATES, HeaderCheck
from shardkit.network.connections.policy import NO_POLICY
from shardkit.network.connections.redis_private import (
    NOT_GIVEN,
    AsyncLimitedParser,
    LimitedParser,
    MasterChangingError,
    Reconnects,
    address_of,
    error_parser_of,
    expect_as_one,
    has_connect_callbacks,
    has_unread,
    lost_its_role,
    move_connection,
    postpone_health_check,
    reading_within,
    set_timeout,
    socket_of,
    transport_of,
    undecodable,
    wants_reconnect,
)
from shardkit.network.connections.sentinels import AsyncToMaster, ToMaster
from shardkit.operations.arguments import require_printable
from shardkit.operations.deadlines import Deadline, current, within
from shardkit.operations.forks import process
from shardkit.operations.interruptions import reraise_handlers
from shardkit.operations.steps import arun_steps, run_steps

_LOST = (ConnectionError, TimeoutError, OSError)
# The server is well, or there is none: this says nothing about whether it can be reached.
_OF_PLACES = (DatabaseMovedError, MasterChangingError)


class ServerReplacedError(ConnectionError):
    """The server refused a command because it is a replica now; its entry names another one."""


def _no_pool() -> None:
    """The private pool of a connection that has none."""


EXCHANGE_TIMEOUT = 60.0
MAX_REPLY_BYTES = 4 * 1024**3

INCOMPLETE = object()
READ_BYTES = 64 * 1024
# Larger replies are read into reused buffers; strings of up to a megabyte directly, because
# hiredis would copy them twice.
_BUFFER_BYTES = 1024 * 1024
_BUFFERS: list[bytearray] = []  # the unused ones
_CLOSED = "the server closed the connection"

_AT_ONCE = 16  # commands of an opening whose replies are read at once


class ReplyLimits(Reconnects):
    """Limits on the replies to one exchange; see docs/configuration.md."""

    policy = NO_POLICY
    # The unread replies to commands of redis-py's own code. If there are any on release, the user
    # was interrupted.
    due = 0
    # Whether its user has changed its state, so that nothing is added to what they send.
    own = False
    handed_out = False  # to redis-py's code, or to somebody who uses the pool
    released = False  # of the object that its last user may have kept, see `passed_on`
    database = UNNAMED  # what its user uses
    # What it has opened; the number that is selected; and what it used last, if that is opened.
    opened: set[ClientDatabase]
    selected = 0
    entered: ClientDatabase | None = None
    # Whether its user's database must be selected for what redis-py's code sends next; and how
    # that was done, and what was sent, until the replies have been read.
    selects = False
    may_multi = True  # whether its user has the right to MULTI
    _framed: tuple[int, PackedCommands] | None = None
    _ready: deque[Any]  # replies that were read with others, as bytes
    ends = False  # whether it is closed when it is released
    idle_since = 0.0  # when it was released, in monotonic seconds
    answered_at = 0.0  # when it was released last before it was closed
    connecting = False
    asking = False  # on its own behalf: nothing of its user's is under way
    for_block = False  # whether it is used for a blocking command
    # Whether the server refuses to serve: its name may lead elsewhere by now. The pool closes its
    # idle connections then.
    unusable = False
    exchange_timeout: float | None = EXCHANGE_TIMEOUT  # seconds for all replies
    max_reply_bytes: int = MAX_REPLY_BYTES  # of all replies
    extend_blocking_timeout = True  # for blocking commands, by the time that they may block
    _limited_parser: type[Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in ("exchange_timeout", "max_reply_bytes", "extend_blocking_timeout"):
            if name in kwargs:
                setattr(self, name, kwargs.pop(name))
        if self._limited_parser is not None:
            kwargs.setdefault("parser_class", self._limited_parser)
        self.opened = set()
        self._ready = deque()
        super().__init__(*args, **kwargs)

    def forget_databases(self) -> None:
        """Start as a new connection does, in the database of its arguments."""
        self.opened = set()
        self.selected = int(self.db or 0)  # type: ignore[attr-defined]
        self.entered = None
        self.ends = self.selects = self.own = False

    def forget_replies(self) -> None:
        """Drop replies that nobody has read."""
        self._framed = None
        self._ready.clear()

    def passed_on(self) -> Self:
        """Return this connection as another object: a holder who kept this one cannot use it.

        It ends if its state concerns nobody else, or a reply is still to come.
        """
        kind: Any = type(self)
        other: Self = object.__new__(kind)
        move_connection(self, other)
        self.released, other.handed_out = True, False
        other.ends = bool(other.ends or other.own or other.due)
        other.forget_replies()
        return other

    if not TYPE_CHECKING:  # it would hide misspelled names

        def __getattr__(self, name: str) -> Any:
            if self.released and not name.startswith("__"):
                raise released_error()
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def __repr__(self) -> str:
            return "<a released connection>" if self.released else super().__repr__()

        def __del__(self, *args: Any) -> None:
            if not self.released:
                super().__del__(*args)

    def pack_command(self, *args: Any) -> PackedCommands:
        """Pack a command to be sent."""
        require_printable(args)
        return PackedCommands.of(super().pack_command(*args), (args,))  # type: ignore[misc]

    def pack_commands(self, commands: Iterable[Any]) -> PackedCommands:
        """Pack commands to be sent."""
        commands = list(commands)
        for args in commands:
            require_printable(args)
        return PackedCommands.of(super().pack_commands(commands), commands)  # type: ignore[misc]

    def send_command(self, *args: Any, check_health: bool = True, **options: Any) -> Any:
        """Send a command; of an awaiting connection, a coroutine."""
        packed = self.pack_command(*args)
        return self.send_packed_command(packed, check_health=check_health)  # type: ignore[attr-defined]

    def _note(self, packed: PackedCommands, form: int = PLAIN) -> None:
        """Note what commands do that are about to be sent: the gate, which all of them pass."""
        self.due += packed.replies + ADDED[form]
        does = packed.effects
        if does & STATE and not self.connecting:  # introductions belong to the connection
            self.own = self.ends = True
        elif does & WATCHES:
            self.own = True
        elif does & WHOLE:
            self.own = self.own and self.ends

    def entering(self, database: ClientDatabase) -> bytes:
        """Return what goes in front of commands for an opened database: SELECT, or nothing."""
        self.entered = database
        if self.selected == database.number:
            return b""
        self.selected = database.number
        return database.select

    def enter_later(self) -> None:
        """Be in its user's database, which is open, from the next command on."""
        self.selects = self.database.number != self.selected
        if not self.selects:
            self.entered = self.database

    def select(self, database: ClientDatabase) -> Steps[Exception | None]:
        """Select an opened database, for certain; return the server's error if it refuses."""
        [reply] = yield from self.ask([("SELECT", str(database.number))])
        if isinstance(reply, Exception):
            return reply
        self.entering(database)
        return None

    def unframed(
        self, form: int, replies: Sequence[Any], database: ClientDatabase | None = None
    ) -> Sequence[Any] | None:
        """Return the replies to commands; see `framing.unframed`.

        With ``database``, note that it is selected if it was.
        """
        if form in (WRAPPED, INSERTED) and isinstance(replies[0], NoPermissionError):
            self.may_multi = False
        if database is not None and has_selected(form, replies):
            self.entering(database)
        return unframed(form, replies)

    def _form(self, data: bytes, count: int, does: int) -> Steps[int]:
        """Return how commands reach their user's opened database; it may be selected then.

        Raises:
            ResponseError: the server refuses to select it; nothing was executed.
        """
        database = self.database
        if self.selected == database.number:
            self.entered = database
            return PLAIN
        form = form_of(does, len(data), count, self.may_multi)
        if form == INSERTED and data[: len(MULTI)].upper() != MULTI:
            form = CONFIRMED
        if form != CONFIRMED:
            return form
        error = yield from self.select(database)
        if error is not None:
            raise refusals(error, 1)[0]
        return PLAIN

    def _sending(self, packed: PackedCommands) -> Steps[Any]:
        """Return what is sent for commands, so that they reach their user's database."""
        if self._framed is not None:
            yield from self._settled()
        pieces: Any = packed
        form = PLAIN
        if self.selects and not self.own and not packed.effects & ANYWHERE:
            data = b"".join(packed)
            form = yield from self._form(data, packed.replies, packed.effects)
            if form != PLAIN:
                self._framed = form, packed
                pieces = [framed(form, self.database.select, data)]
            self.selects = False
        self._note(packed, form)
        return pieces

    def _settled(self) -> Steps[None]:
        """Read the replies to framed commands; send them again if their SELECT was refused."""
        assert self._framed is not None
        form, packed = self._framed
        self._framed = None
        replies = yield from self._replies(packed.replies + ADDED[form])
        found = self.unframed(form, replies, self.database)
        if found is None:
            error = yield from self.select(self.database)
            if error is None:
                yield partial(self.send_packed_command, packed, check_health=False)  # type: ignore[attr-defined]
                found = yield from self._replies(packed.replies)
            else:
                self.selects = True
                found = refusals(error, packed.replies)
        self._ready.extend(found)

    def _replies(self, count: int) -> Steps[list[Any]]:
        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append((yield self._read_raw))
            except ResponseError as refused:
                replies.append(refused)
        return replies

    def _next_ready(self, disable_decoding: bool = False, *_: Any, **__: Any) -> Any:
        """Return the next reply of those that were read with others, or raise it."""
        reply = self._ready.popleft()
        if isinstance(reply, Exception):
            raise reply
        encoder = self.encoder  # type: ignore[attr-defined]
        return (
            _decoded(reply, encoder) if encoder.decode_responses and not disable_decoding else reply
        )

    def be_in_any(self) -> None:
        """Note that it may be in any database: SELECT goes in front of whatever comes next."""
        self.entered, self.selected = None, -1

    def introduce(self) -> Steps[None]:
        """Ask what must be known of the server: in the greeting, before subscriptions follow."""
        yield from ()

    def ask(self, commands: Sequence[tuple[str, ...]]) -> Steps[list[Any]]:
        """Send commands and return the replies, in which errors are values."""
        self.asking = True
        try:
            return (yield from self._ask(commands))
        finally:
            self.asking = False

    def _ask(self, commands: Sequence[tuple[str, ...]]) -> Steps[list[Any]]:
        if len(commands) >= _AT_ONCE and int(self.protocol) == 2:  # type: ignore[attr-defined]
            pieces = map(hiredis.pack_command, commands)  # type: ignore[arg-type]
            packed = PackedCommands.doing(ANYWHERE, pieces, 1)
            yield partial(self.send_packed_command, packed, check_health=False)  # type: ignore[attr-defined]
            expect_as_one(self, len(commands))
            together: list[Any] = yield self._read_raw
            for reply in together:
                if isinstance(reply, ConnectionError):  # LOADING, NOAUTH
                    raise reply
            return together
        packed = self.pack_commands(commands)
        packed.effects = ANYWHERE  # these are ours
        yield partial(self.send_packed_command, packed, check_health=False)  # type: ignore[attr-defined]
        return (yield from self._replies(len(commands)))

    def _read_raw(self) -> Any:
        return self.read_response(disable_decoding=True)  # type: ignore[attr-defined]

    def _note_refusal(self, error: Exception) -> None:
        """Note that a reply was an error; it may have left keys watched."""
        self.due = max(0, self.due - 1)
        self.ends = self.ends or self.own
        self.unusable = self.unusable or refuses_to_serve(error)

    def note_failure(self, error: BaseException) -> None:
        """Report to the server's circuit breaker that a reply did not come."""
        if isinstance(error, Exception):
            error.maybe_executed = not (self.connecting or self.asking)  # type: ignore[attr-defined]
        waits = self.for_block or getattr(self, "_blocking_for", None) is not None
        if (
            self.policy.breaker is not None
            and not self.connecting
            and not (waits and isinstance(error, DeadlineExceeded))
            and not has_connect_callbacks(self)
        ):
            # A lost connection fails immediately.
            self.policy.failed(error, math.inf if isinstance(error, TimeoutError) else 0.0)

    def _note_opened(self, started: float) -> None:
        if self.policy.breaker is not None:
            self.policy.breaker.connected()
        if handlers:
            shard, address = str(self.policy.shard or ""), self.policy.address
            emit(ConnectionOpened(shard, address, time.monotonic() - started))

    def _tell_closed(self) -> None:
        emit(ConnectionClosed(str(self.policy.shard or ""), self.policy.address))

    def check_reply(self, seconds: float, size: int) -> None:
        """Raise redis-py's error if incomplete replies have taken too long or are too large."""
        if self.exchange_timeout is not None and seconds > self.exchange_timeout:
            raise TimeoutError(
                f"the replies were not complete after {self.exchange_timeout} seconds "
                "(exchange_timeout)"
            )
        if size > self.max_reply_bytes:
            raise InvalidResponse(
                f"the replies are larger than {self.max_reply_bytes:,} bytes (max_reply_bytes)"
            )


def _decoded(reply: Any, encoder: Any) -> Any:
    """Return a reply that was read as bytes as redis-py decodes it."""
    if isinstance(reply, bytes):
        return encoder.decode(reply)
    if isinstance(reply, list | set | tuple):
        return type(reply)(_decoded(each, encoder) for each in reply)
    if isinstance(reply, dict):
        return {_decoded(k, encoder): _decoded(v, encoder) for k, v in reply.items()}
    return reply


def released_error() -> ConnectionError:
    """Return the error of who uses or releases a connection after its release."""
    return ConnectionError(
        "this connection was released: get another one from its pool, and release each once"
    )


def refuses_to_serve(error: Exception) -> bool:
    """Whether a server says that it cannot serve: READONLY, LOADING, MASTERDOWN, NOAUTH."""
    return isinstance(error, ReadOnlyError | MasterDownError | ConnectionError)


class Closable(ReplyLimits):
    """A connection that another thread can close, and that stays closed with its kit.

    The system reuses the number of a closed socket, perhaps for a file. So only its user closes a
    connection; other threads shut its socket down.
    """

    closed = False  # its kit is closed; it does not connect again
    follower: Callable[[], Any] = staticmethod(_no_pool)  # the private pool that lent it
    # What this connection becomes when its user's thread next connects it: another address, and
    # perhaps another class.
    moved_to: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._closing = threading.RLock()  # between shutting a socket down and closing it
        super().__init__(*args, **kwargs)

    @property
    def is_connected(self) -> bool:
        """Whether it has a socket; redis-py's own tells from version 7.2 on."""
        return socket_of(self) is not None

    def shut_down(self) -> None:
        """Shut the socket down, as if the server had closed it; it is closed on release."""
        if self.released:  # in the meantime
            return
        self.mark_for_reconnect()  # type: ignore[attr-defined]
        with self._closing:
            sock = socket_of(self)
            if isinstance(sock, socket.socket):
                with suppress(OSError):
                    # Not TLS's own method, after which data would be sent unencrypted.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection."""
        if self.released:
            return
        if self.pid != process.pid:  # type: ignore[attr-defined]  # the parent may hold the lock
            super().disconnect(*args, **kwargs)  # type: ignore[misc]
            return
        with self._closing:
            if handlers and self.is_connected:
                self._tell_closed()
            super().disconnect(*args, **kwargs)  # type: ignore[misc]
            self.due, self.answered_at = 0, self.idle_since
            self.ends = self.own = self.unusable = False
            self.forget_replies()

    def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Connect, unless the kit is closed; retry as the entry's ``retry`` says."""
        if self.is_connected:
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
        self.policy.require_closed_breaker()
        self.connecting = True
        started = time.monotonic()
        try:
            while True:
                become_moved(self)
                with self._kept_to_deadline(connects=True):
                    super().connect_check_health(*args, **kwargs)  # type: ignore[misc]
                require_open(self)
                if self.moved_to is None:
                    break
                self.disconnect()
            self.own = self.ends = self.ends or has_connect_callbacks(self)  # it has subscribed
        except BaseException as error:
            self.disconnect()
            reraise_handlers(error)
            if self.closed and isinstance(error, _LOST):
                raise closed_error() from error
            error.maybe_executed = False  # type: ignore[attr-defined]
            if not isinstance(error, _OF_PLACES):
                self.policy.failed(error, time.monotonic() - started)
            raise
        finally:
            self.connecting = False
        self._note_opened(started)

    def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Send redis-py's introduction, and open the database; subscriptions follow."""
        super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]
        self.forget_databases()
        self.enter()

    def enter(self) -> None:
        """Be in the database of its user: open it before its first use.

        Raises:
            ConnectionError, ResponseError: it cannot be used; nothing was sent.
        """
        database = self.database
        if database not in self.opened:
            for error in self.open((database,)).values():
                raise error
        self.enter_later()

    def open(
        self, databases: Sequence[ClientDatabase], *, waits: bool = True
    ) -> dict[ClientDatabase, Exception]:
        """Open databases before their first use; see `databases.opening`."""
        return run_steps(opening(self, databases, waits), call)

    def confirm(self, witness: Any, epoch: int) -> None:
        """Read the epoch of the config server that a witness doubts."""
        witness.confirm(epoch)

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the deadline."""
        deadline = current.get()
        if deadline is not None:
            deadline.require_left()
        time.sleep(seconds)

    def check_health(self) -> None:
        """PING if that is due; close a connection that is dead, unless its user changed its state.

        This says nothing about the server, and nothing was sent: the next command connects again.
        """
        connecting, self.connecting = self.connecting, True
        try:
            super().check_health()  # type: ignore[misc]
        except _LOST as error:
            reraise_handlers(error)
            self.disconnect()
            if self.own:
                raise
        finally:
            self.connecting = connecting

    def round_trip(
        self,
        data: bytes,
        raw: bool,
        deadline: Deadline | None = None,
        count: int = 1,
        does: int | None = None,
    ) -> tuple[list[Any], bool]:
        """Send a few commands to their user's database.

        Return the replies, and whether some are errors. ``does`` are the commands' effects; with
        None, they are sent as they are.

        Cost: one exchange; two if a SELECT must be confirmed.
        """
        if does is not None and self.entered is not self.database:
            return self._from_elsewhere(data, raw, deadline, count, does)
        return exchange(self, data, raw, deadline, count)

    def _from_elsewhere(
        self, data: bytes, raw: bool, deadline: Deadline | None, count: int, does: int
    ) -> tuple[list[Any], bool]:
        database, form = self.database, SELECTED
        if database not in self.opened or database.number == self.selected or does & CHANGES:
            with within(deadline or current.get()):
                if database not in self.opened:
                    for error in self.open((database,)).values():
                        raise error
                try:
                    form = run_steps(self._form(data, count, does), call)
                except ResponseError as refused:
                    return refusals(refused, count), True
        sent = framed(form, database.select, data)
        replies, some = self.round_trip(sent, raw, deadline, count + ADDED[form])
        if form == PLAIN:
            return replies, some
        found = self.unframed(form, replies, database)
        if found is not None:
            return list(found), some
        with within(deadline or current.get()):
            refusal = run_steps(self.select(database), call)
        if refusal is not None:
            return refusals(refusal, count), True
        return self.round_trip(data, raw, deadline, count)

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command; raise ClosedError if the kit was closed in the meantime."""
        if check_health:
            self.check_health()
        if not self.is_connected:
            self.connect_check_health(check_health=False)
        packed = command if type(command) is PackedCommands else PackedCommands.by_hand(command)
        pieces = run_steps(self._sending(packed), call) if packed.replies else packed
        try:
            if current.get() is None:
                super().send_packed_command(pieces, False)  # type: ignore[misc]
            else:
                with self._kept_to_deadline():
                    super().send_packed_command(pieces, False)  # type: ignore[misc]
        except Exception as error:
            reraise_handlers(error)
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply; raise ClosedError if the kit was closed in the meantime."""
        if self._framed is not None:
            try:
                run_steps(self._settled(), call)
            except BaseException:
                self.disconnect()
                raise
        if self._ready:
            return self._next_ready(*args, **kwargs)
        try:
            reply = super().read_response(*args, **kwargs)  # type: ignore[misc]
        except _LOST as error:
            reraise_handlers(error)
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise
        except ResponseError as error:
            self._note_refusal(error)
            pool = self.follower()
            if pool is not None and lost_its_role(error):
                pool.leave(self, error)
            raise
        self.due = max(0, self.due - 1)
        return reply

    def can_read(self, timeout: float | None = 0) -> Any:
        """Return whether something arrives within ``timeout`` seconds, and before the deadline."""
        deadline = current.get() if timeout != 0 else None
        if deadline is None:
            return super().can_read(timeout)  # type: ignore[misc]
        found = super().can_read(deadline.shorten(timeout))  # type: ignore[misc]
        if not found:
            deadline.require_left()
        return found

    @contextmanager
    def _kept_to_deadline(self, connects: bool = False) -> Iterator[None]:
        """Shorten the timeouts for connecting or writing to the caller's deadline."""
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
    """The same for awaiting connections, which belong to one event loop and need no lock."""

    closed = False
    follower: Callable[[], Any] = staticmethod(_no_pool)
    draining = False  # whether it is closed on release
    moved_to: Any = None
    socket_timeout: float | None

    def should_reconnect(self) -> bool:
        """Whether it must be closed before the next use."""
        return self.draining or super().should_reconnect()  # type: ignore[misc]

    def tell_closed(self) -> None:
        """Emit the event that it is being closed, if it is connected."""
        if handlers and self.is_connected:  # type: ignore[attr-defined]
            self._tell_closed()

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection; drop unwritten data, whose sender has got an error."""
        if self.released:
            return
        self.tell_closed()
        self.answered_at = self.idle_since
        transport = transport_of(self)
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()
        self.due = 0
        self.ends = self.own = self.unusable = False
        self.forget_replies()
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Connect, unless the kit is closed; retry as the entry's ``retry`` says."""
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
        self.policy.require_closed_breaker()
        self.connecting = True
        started = time.monotonic()
        try:
            while True:
                become_moved(self)
                async with kept_to_deadline():
                    await super().connect_check_health(*args, **kwargs)  # type: ignore[misc]
                if self.moved_to is None:
                    break
                await self.disconnect(nowait=True)
            self.own = self.ends = self.ends or has_connect_callbacks(self)  # it has subscribed
        except _LOST as error:
            if self.closed:
                raise closed_error() from error
            error.maybe_executed = False  # type: ignore[union-attr]
            if not isinstance(error, _OF_PLACES):
                self.policy.failed(error, time.monotonic() - started)
            raise
        finally:
            self.connecting = False
        self._note_opened(started)
        try:
            require_open(self)
        except ClosedError:
            await self.disconnect(nowait=True)
            raise

    async def on_connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Send redis-py's introduction, and open the database; subscriptions follow."""
        await super().on_connect_check_health(*args, **kwargs)  # type: ignore[misc]
        self.forget_databases()
        await self.enter()

    async def enter(self) -> None:
        """Be in the database of its user: open it before its first use."""
        database = self.database
        if database not in self.opened:
            for error in (await self.open((database,))).values():
                raise error
        self.enter_later()

    async def open(
        self, databases: Sequence[ClientDatabase], *, waits: bool = True
    ) -> dict[ClientDatabase, Exception]:
        """Open databases before their first use; see `databases.opening`."""
        return await arun_steps(opening(self, databases, waits), call)

    async def confirm(self, witness: Any, epoch: int) -> None:
        """Read the epoch of the config server that a witness doubts."""
        await witness.aconfirm(epoch)

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def check_health(self) -> None:
        """PING if that is due; see the blocking connection's."""
        connecting, self.connecting = self.connecting, True
        try:
            await super().check_health()  # type: ignore[misc]
        except _LOST:
            await self.disconnect(nowait=True)
            if self.own:
                raise
        finally:
            self.connecting = connecting

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a command; raise ClosedError if the kit was closed in the meantime.

        Before Python 3.12, redis-py's `asyncio.wait_for` ignores a cancellation that comes when the
        command has just been written, and a BLPOP would continue.
        """
        if check_health:
            await self.check_health()
        if not self.is_connected:  # type: ignore[attr-defined]
            await self.connect_check_health(check_health=False)
        packed = command if type(command) is PackedCommands else PackedCommands.by_hand(command)
        pieces = await arun_steps(self._sending(packed), call) if packed.replies else packed
        try:
            try:
                async with kept_to_deadline(self), asyncio.timeout(self.socket_timeout):
                    with extended_timeout(self, math.inf):  # asyncio.timeout limits it
                        await super().send_packed_command(pieces, check_health=False)  # type: ignore[misc]
            except BuiltinTimeoutError:
                raise TimeoutError("Timeout writing to socket") from None
        except Exception as error:
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply; raise ClosedError if the kit was closed in the meantime."""
        read = super().read_response  # type: ignore[misc]
        if self._framed is not None:
            try:
                await arun_steps(self._settled(), call)
            except BaseException:
                await self.disconnect(nowait=True)
                raise
        if self._ready:
            return self._next_ready(*args, **kwargs)
        try:
            if current.get() is None:
                reply = await read(*args, **kwargs)
            else:
                async with kept_to_deadline(self):
                    reply = await read(*args, **kwargs)
        except _LOST as error:
            if self.closed:
                raise closed_error() from error
            self.note_failure(error)
            raise
        except ResponseError as error:
            self._note_refusal(error)
            pool = self.follower()
            if pool is not None and lost_its_role(error):
                await pool.leave(self, error)
            raise
        if reply is not None or (len(args) < 2 and kwargs.get("timeout") is None):
            self.due = max(0, self.due - 1)  # else perhaps nothing has come in time
        return reply


@asynccontextmanager
async def kept_to_deadline(connection: Any = None) -> AsyncIterator[None]:
    """Raise DeadlineExceeded inside when the caller's deadline passes, and close the connection."""
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


# Attributes that a connection keeps when it moves.
_KEPT_ON_MOVE = frozenset(
    {"_connect_callbacks", "_closing", "closed", "encoder", "connecting", "for_block"}
)


def become_moved(connection: Any) -> None:
    """Turn an unconnected connection into its ``moved_to``, before it connects."""
    to = vars(connection).pop("moved_to", None)  # it may be set again at any time
    if to is None:
        return
    slots = [name for kind in type(to).__mro__ for name in getattr(kind, "__slots__", ())]
    state = {name: getattr(to, name) for name in (*slots, *vars(to)) if hasattr(to, name)}
    connection.__class__ = type(to)
    for name, value in state.items():
        if name not in _KEPT_ON_MOVE and not name.startswith("__"):
            setattr(connection, name, value)


def require_open(part: Any) -> None:
    """Refuse to use a pool or a connection whose kit is closed."""
    if part.closed:
        raise closed_error()


def closed_error() -> ClosedError:
    """Return the error of calls to a closed kit."""
    return ClosedError("the kit is closed", "open a new one with shardkit.connect")


class _BlockingTimeouts(Closable):
    """Extends the timeout of a blocking command by the time that it may block."""

    socket_timeout: float | None
    _blocking_for: float | None = None
    _limited_parser = LimitedParser

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        packed = command if type(command) is PackedCommands else PackedCommands.by_hand(command)
        blocks = packed.blocks
        if (
            not self.connecting
            and check_health
            and (blocks is not None or self.moved_to is not None)
        ):
            self.check_health()
            if not self.is_connected:
                self.connect()  # type: ignore[attr-defined]
            check_health = False
            # Set before sending, for those who change the address; but after connecting and the
            # health check, which have replies of their own.
            self._blocking_for = blocks
            while self.moved_to is not None and self.waits():
                self.disconnect()
                self.connect()  # type: ignore[attr-defined]
                self._blocking_for = blocks
        super().send_packed_command(packed, check_health)

    def read_response(self, *args: Any, timeout: Any = NOT_GIVEN, **kwargs: Any) -> Any:
        # Otherwise a Sentinel connection stays open when its reader is interrupted.
        kwargs.setdefault("disconnect_on_error", True)
        if timeout is NOT_GIVEN and self._blocking_for is not None and self.extend_blocking_timeout:
            timeout = timeout_for(self._blocking_for, self.socket_timeout)
        try:
            if timeout is NOT_GIVEN:
                return super().read_response(*args, **kwargs)
            with reading_within(self, timeout) as options:
                return super().read_response(*args, **options, **kwargs)
        finally:
            self._blocking_for = None

    def waits(self) -> bool:
        """Whether its user subscribes or is in a blocking command, and may wait for ever."""
        return self._blocking_for is not None or has_connect_callbacks(self)

    def lose(self) -> None:
        """Break the connection under its user."""
        self.shut_down()

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
        """Read replies into a list until it has ``count``; return whether some are errors.

        Error replies are exceptions in the list. With ``more``, further replies follow, which the
        list may get already. After redis-py's ConnectionError or TimeoutError, the connection is
        closed.
        """
        if self.protocol != 2:  # a push message would be mistaken for a reply
            return read_replies(super(), replies, count, raw)
        sock = socket_of(self)
        if sock is None:
            raise ConnectionError(_CLOSED)
        reply_parser = self._parser_on(sock)
        reply_parser.refused = reply_parser.unusable = False
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
            if reply_parser.has_more() or len(replies) > count:
                self.disconnect()  # more replies than requests
            elif self.health_check_interval:
                postpone_health_check(self, time.monotonic())
        self.unusable = self.unusable or reply_parser.unusable
        return reply_parser.refused

    def round_trip(
        self,
        data: bytes,
        raw: bool,
        deadline: Deadline | None = None,
        count: int = 1,
        does: int | None = None,
    ) -> tuple[list[Any], bool]:
        """Do what `Closable.round_trip` does: `send_packed_command` and `read_replies` in one."""
        if does is not None and self.entered is not self.database:
            return self._from_elsewhere(data, raw, deadline, count, does)
        sock = socket_of(self)
        if (
            sock is None
            or self.protocol != 2
            or self.health_check_interval
            or not self._is_plain_tcp
        ):
            return exchange(self, data, raw, deadline, count)
        reply_parser = self._reply_parser
        if reply_parser is None or self._parsed_socket is not sock:
            reply_parser = self._parser_on(sock)
        reply_parser.refused = reply_parser.unusable = False
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
            headers = reply_parser.headers
            headers.feed(received, len(received))
            replies: list[Any] = []
            receiver = None
            while len(replies) < count:
                reply = gets()
                if reply is not INCOMPLETE:
                    replies.append(reply)
                    continue
                if receiver is None:
                    receiver = _Receiver(self, sock, deadline)
                receiver.feed(headers)
        except BaseException as error:
            self._close_and_raise(error, deadline, started)
            raise
        if deadline is not None:
            sock.settimeout(self.socket_timeout)
        if headers.held or reply_parser.reader.has_data():
            self.disconnect()  # more replies than requests
        elif reply_parser.unusable:
            self.unusable = True
        return replies, reply_parser.refused

    def poll_number(self) -> int | None:
        """Return the number of the socket; None if something unread is not there any more."""
        sock = socket_of(self)
        if sock is None or self.protocol != 2 or self._parsed_socket is not sock:
            return None
        if self._reply_parser is None or self._reply_parser.has_more() or has_unread(self):
            return None
        pending = getattr(sock, "pending", None)  # of TLS
        if pending is not None and pending():
            return None
        number: int = sock.fileno()
        return number

    def _parser_on(self, sock: Any) -> ReplyParser:
        if self._reply_parser is None or self._parsed_socket is not sock:
            self._reply_parser, self._parsed_socket = ReplyParser(self, sock), sock
        return self._reply_parser

    def _close_and_raise(
        self, error: BaseException, deadline: Deadline | None, started: float
    ) -> None:
        """Close the connection; raise redis-py's error instead of the socket's."""
        self.disconnect()
        reraise_handlers(error)
        if self.closed and isinstance(error, _LOST):
            raise closed_error() from error
        if (
            deadline is not None
            and isinstance(error, BuiltinTimeoutError | BlockingIOError)
            and deadline.left() <= 0
        ):
            failure: Exception = deadline.passed(time.monotonic() - started)
        elif isinstance(error, BuiltinTimeoutError):
            failure = TimeoutError(f"no reply in time from {address_of(self)}")
        elif isinstance(error, OSError):
            failure = ConnectionError(f"lost the connection to {address_of(self)}: {error}")
        elif isinstance(error, TypeError | RecursionError):  # of hiredis: a list as a map's key
            failure = InvalidResponse(f"{address_of(self)} sent what is no reply: {error}")
        else:
            if isinstance(error, _LOST):
                self.note_failure(error)
            return
        self.note_failure(failure)
        raise failure from None

    def is_reusable(self) -> bool:
        """Whether it is connected and nothing unread has arrived."""
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
    """Return a function that waits for something to read, and tells whether there is."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return poll.poll
    # eventlet removes `select.poll`, and Windows has none.
    selector = selectors.SelectSelector()
    selector.register(sock, selectors.EVENT_READ)
    return selector.select


class _Receiver:
    """Receives the replies of one exchange, within the limits of the connection."""

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
        if self._deadline is not None:  # data that has arrived is read even if it has passed
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

    def feed(self, headers: HeaderCheck) -> None:
        """Give hiredis, which needs more, some bytes; more at a time for large replies."""
        if headers.suspect:
            headers.go_on()
            return
        if self._size < READ_BYTES:
            data = self.some()
            headers.feed(data, len(data))
            return
        self._before()
        buffer = _get_buffer()
        received = self._socket.recv_into(buffer)
        self._after(received)
        headers.feed(buffer, received)
        _BUFFERS.append(buffer)

    def large_strings(self, replies: list[Any], count: int) -> bytes:
        """Read replies into a list as long as they are large strings; return what follows."""
        while len(replies) < count:
            data = self.some()
            header, _, rest = data[:16].partition(b"\r\n")
            if header[:1] != b"$" or not rest or not header[1:].isdigit():
                return data
            length, have = int(header[1:]), len(data) - len(header) - 2
            if not READ_BYTES <= length <= _BUFFER_BYTES - 2:
                return data
            buffer = _get_buffer()
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


def _get_buffer() -> bytearray:
    try:
        return _BUFFERS.pop()
    except IndexError:
        # glibc returns freed memory to the system once it is twice the largest block freed before,
        # and getting it again costs as much as reading the reply. Freeing 8 MiB once prevents that.
        freed = bytes(2**23)
        del freed
        return bytearray(_BUFFER_BYTES)


class ReplyParser:
    """Parses the replies on a connection.

    Attributes:
        poll: waits for something to read.
        headers: feeds the reader.
        reader: hiredis' parser; returns INCOMPLETE while a reply is not complete.
        gets_decoded, gets_raw: return the next reply, as the connection is configured or as bytes.
        refused: whether a reply is an error or contains one.
        unusable: whether an error means that this server must not be used (any more).
    """

    __slots__ = (
        *("_mid_batch", "_parse_error", "gets_decoded", "gets_raw", "headers"),
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
        limit = getattr(connection, "max_reply_bytes", MAX_REPLY_BYTES)  # redis-py's has none
        self.headers = HeaderCheck(self.reader, AGGREGATES, limit)
        self.gets_decoded: Callable[[], Any] = self.reader.gets
        self.gets_raw: Callable[[], Any] = self.reader.gets
        if encoder.decode_responses:
            self.gets_raw = partial(self.reader.gets, False)
            self.gets_decoded = self._decoded

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

    def _error(self, text: str) -> Exception:
        text = text.partition(", with args beginning with")[0]  # what was sent is not shown
        try:
            error: Exception = self._parse_error(text)
        except (ValueError, LookupError):  # a script's own error that is named MOVED
            error = ResponseError(text)
        self.refused = True
        self.unusable = self.unusable or refuses_to_serve(error)
        return error

    def read(
        self,
        receiver: _Receiver,
        replies: list[Any],
        count: int,
        decode: bool,
        more: bool,
    ) -> None:
        """Read replies into a list; see `_FastReplies.read_replies`."""
        reader, headers = self.reader, self.headers
        gets = self.gets_decoded if decode else self.gets_raw
        missing = count - len(replies)
        mid_batch, self._mid_batch = self._mid_batch, more
        if missing <= 0:
            return
        rest = b""
        if not (more or mid_batch or gets == self._decoded):
            rest = receiver.large_strings(replies, count)
            missing = count - len(replies)
            if not missing:
                return
        # Not as one list if part of a reply may have been read. The reader does not tell: between
        # two elements of an array it has no data either.
        if missing == 1 or more or mid_batch or gets == self._decoded:
            headers.feed(rest, len(rest))
            replies.extend(iter(gets, INCOMPLETE))  # all complete ones, without a Python loop
            while len(replies) < count:
                receiver.feed(headers)
                replies.extend(iter(gets, INCOMPLETE))
            return
        reader.feed(b"*%d\r\n" % missing)  # with this header, hiredis builds the list
        headers.feed(rest, len(rest))
        together = gets()
        while together is INCOMPLETE:
            receiver.feed(headers)
            together = gets()
        replies += together


class _AsyncBlockingTimeouts(AsyncClosable):
    """Extends the timeout of a blocking command, for awaiting connections."""

    socket_timeout: float | None
    _limited_parser = AsyncLimitedParser
    _reply_parser: ReplyParser | None = None
    _parsed_socket: Any = None
    _blocking_for: float | None = None

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        packed = command if type(command) is PackedCommands else PackedCommands.by_hand(command)
        if check_health:
            await self.check_health()
        if not self.is_connected:  # type: ignore[attr-defined]
            await self.connect_check_health(check_health=False)
        # See the blocking connection's.
        blocks = self._blocking_for if packed.blocks is None else packed.blocks
        self._blocking_for = blocks
        while not self.connecting and self.moved_to is not None and self.waits():
            await self.disconnect(nowait=True)
            await self.connect()  # type: ignore[attr-defined]
            self._blocking_for = blocks
        await super().send_packed_command(packed, check_health=False)

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
        """Whether its user subscribes or is in a blocking command, and may wait for ever."""
        return self._blocking_for is not None or has_connect_callbacks(self)

    def lose(self) -> None:
        """Break the connection under its user."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def transport(self) -> Any:
        """The asyncio transport."""
        return transport_of(self)

    def reply_parser(self) -> ReplyParser:
        """Return the parser for data from the transport."""
        transport = self.transport
        if self._reply_parser is None or self._parsed_socket is not transport:
            sock = transport.get_extra_info("socket")
            self._reply_parser, self._parsed_socket = ReplyParser(self, sock), transport
        self._reply_parser.refused = self._reply_parser.unusable = False
        return self._reply_parser

    def is_reusable(self) -> bool:
        """Whether it is connected and nothing unread has arrived, in redis-py or in the socket."""
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
    """Extend an awaiting connection's timeout for a command that may block for ``blocks`` seconds.

    After the ``timeout`` of read_response, redis-py would return None, and the reply would be lost.
    """
    usual = connection.socket_timeout
    connection.socket_timeout = timeout_for(blocks, usual)
    try:
        yield
    finally:
        connection.socket_timeout = usual


def is_reusable(connection: Any) -> bool:
    """Whether a connection like redis-py's is connected and nothing unread has arrived."""
    connected = getattr(connection, "is_connected", True)
    return connected and not connection.should_reconnect() and not connection.can_read()


def exchange(
    connection: Any, data: bytes, raw: bool, deadline: Deadline | None = None, count: int = 1
) -> tuple[list[Any], bool]:
    """Send packed commands; return the replies, and whether some may be errors."""
    replies: list[Any] = []
    with within(deadline or current.get()):
        connection.send_packed_command(PackedCommands((data,)))
        refused = read_replies_of(connection)(replies, count, raw)
    return replies, refused


def read_replies_of(connection: Any) -> Callable[..., bool]:
    """Return the function that reads a number of replies from a connection."""
    return getattr(connection, "read_replies", None) or partial(read_replies, connection)


def read_replies(
    connection: Any, replies: list[Any], count: int, raw: bool, more: bool = False
) -> bool:
    """Do what `_FastReplies.read_replies` does, for any connection like redis-py's."""
    refused = False
    read = connection.read_response
    while len(replies) < count:
        try:
            reply = read(disable_decoding=raw)
        except ResponseError as error:
            reply = error
        # An array may contain an error.
        refused = refused or isinstance(reply, Exception | list)
        replies.append(reply)
    return refused


class TcpConnection(_FastReplies, redis.Connection):
    """redis-py's TCP connection."""


class TlsConnection(_FastReplies, redis.SSLConnection):
    """redis-py's TLS connection."""

    _is_plain_tcp = False


class UnixConnection(_FastReplies, redis.UnixDomainSocketConnection):
    """redis-py's Unix socket connection."""


class SentinelConnection(ToMaster, _FastReplies, sentinel.SentinelManagedConnection):
    """redis-py's Sentinel-managed connection."""


class SentinelTlsConnection(ToMaster, _FastReplies, sentinel.SentinelManagedSSLConnection):
    """redis-py's Sentinel-managed TLS connection."""

    _is_plain_tcp = False


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
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            for *_, address in found[1:]:
                self._address = address[:2]
                with suppress(OSError):
                    await super()._connect()  # type: ignore[misc]
                    return
            raise
        except OSError as error:
            # asyncio words it by itself, and that of several addresses without a number.
            if said := re.search(r"\[Errno (\d+)\] Connect call failed", str(error)):
                raise OSError(int(said[1]), os.strerror(int(said[1]))) from None
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


class AsyncTcpConnection(_ToAnyAddress, _AsyncBlockingTimeouts, aioredis.Connection):
    """The awaiting TCP connection."""


class AsyncTlsConnection(_ToAnyAddress, _AsyncBlockingTimeouts, aioredis.SSLConnection):
    """The awaiting TLS connection."""


class AsyncUnixConnection(_AsyncBlockingTimeouts, aioredis.UnixDomainSocketConnection):
    """The awaiting Unix socket connection."""


class AsyncSentinelConnection(
    AsyncToMaster, _ToAnyAddress, _AsyncBlockingTimeouts, aiosentinel.SentinelManagedConnection
):
    """The awaiting Sentinel-managed connection."""


class AsyncSentinelTlsConnection(
    AsyncToMaster, _ToAnyAddress, _AsyncBlockingTimeouts, aiosentinel.SentinelManagedSSLConnection
):
    """The awaiting Sentinel-managed TLS connection."""
