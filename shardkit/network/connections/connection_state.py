"""What a connection of either face has been told, and what it sends when. It does no I/O.

What both faces do in the same order is written in steps, see `operations/steps.py`: connecting,
opening and entering databases, health checks, and commands for another database.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Self

from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    InvalidResponse,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)

from shardkit.errors import ClosedError, DeadlineExceeded
from shardkit.events import ConnectionClosed, ConnectionOpened, emit, handlers
from shardkit.network.connections.credentials import RenewedLogin
from shardkit.network.connections.databases import (
    UNNAMED,
    ClientDatabase,
    DatabaseMovedError,
    Steps,
    opening,
)
from shardkit.network.connections.effects import ANYWHERE, STATE, WATCHES, WHOLE, PackedCommands
from shardkit.network.connections.framing import CONFIRMED, PLAIN, SelectedDatabase, refusals
from shardkit.network.connections.policy import NO_POLICY
from shardkit.network.connections.redis_private import (
    CONNECT_REPEATS,
    INCOMPLETE,
    PREVIOUS_MASTER,
    MasterChangingError,
    address_of,
    has_connect_callbacks,
    lost_its_role,
    move_connection,
    slots_of,
)
from shardkit.network.connections.replies import (
    CLOSED,
    MAX_REPLY_BYTES,
    ReplyParser,
    decoded,
    refuses_to_serve,
)
from shardkit.network.connections.reply_kinds import require_kind
from shardkit.network.connections.sentinels import Master, require_master
from shardkit.operations.arguments import printable
from shardkit.operations.interruptions import reraise_handlers
from shardkit.operations.reply_kinds import READING_ERRORS, is_over_reply
from shardkit.operations.steps import run_by_face

LOST = (ConnectionError, TimeoutError, OSError)
# The server is well, or there is none: this says nothing about whether it can be reached.
_OF_PLACES = (DatabaseMovedError, MasterChangingError)


class ServerReplacedError(ConnectionError):
    """The server refused a command because it is a replica now; its entry names another one."""


EXCHANGE_TIMEOUT = 60.0
ENDED = "the event loop of this client has ended"
ELSEWHERE = "this client belongs to another event loop"


class ConnectionState(SelectedDatabase):
    """Limits on the replies to one exchange; see docs/configuration.md."""

    direct = False  # whether commands may bypass redis-py's code
    closed: bool | str = False  # its kit is, or its event loop has `ENDED`: it connects no more
    follower: Callable[[], Any] = staticmethod(lambda: None)  # the private pool that made it
    # What this connection becomes when its user's thread next connects it: another address, and
    # perhaps another class.
    moved_to: Any = None
    policy = NO_POLICY
    master: Master | None = None  # that it leads to, which Sentinels find
    # The unread replies to commands of redis-py's own code. If there are any on release, the user
    # was interrupted.
    due = 0
    # Whether its user has changed its state, so that nothing is added to what they send.
    own = False
    inherited = False  # whether a forked child lacks a state that the parent has changed
    handed_out = False  # to redis-py's code, or to somebody who uses the pool
    login: RenewedLogin | None = None  # where its user and password come from, if they may change
    login_expires = False  # whether it must log in again some time
    released = False  # of the object that its last user may have kept, see `passed_on`
    database = UNNAMED  # what its user uses
    _ready: deque[Any]  # replies that were read with others, as bytes
    ends = False  # whether it is closed when it is released
    awaits_wakeups = False
    home: Callable[[], Any] = staticmethod(lambda: None)  # the `Connections` that have lent it
    lent: tuple[float, float] | None = None  # since when, and after waiting how long, if watched
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
    reply_parser: ReplyParser = None  # type: ignore[assignment]  # once connected, not in memory
    _limited_parser: type[Any] | None = None
    asks_slots = False  # whether the next reply is that to CLUSTER SLOTS, as redis-py asks for them
    _blocking_for: float | None = None  # the seconds for which a command that was sent may block
    # Of redis-py's connections.
    protocol: int
    health_check_interval: Any
    socket_timeout: float | None
    is_connected: Any
    credential_provider: Any
    asks_for_login: str  # the name of the method of its login
    asks_for_epoch: str  # and of a config server's
    host: str
    port: int
    run: Callable[[Steps[Any]], Any]
    disconnect: Callable[..., Any]
    shut_down: Callable[[], None]
    pause: Callable[..., Any]
    _connect_in_time: Callable[..., Any]
    _retried: Callable[..., Any]
    _send_in_time: Callable[[Any], Any]
    connect: Callable[[], Any]
    read_response: Callable[..., Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in ("exchange_timeout", "max_reply_bytes", "extend_blocking_timeout"):
            if name in kwargs:
                setattr(self, name, kwargs.pop(name))
        if self._limited_parser is not None:
            kwargs.setdefault("parser_class", self._limited_parser)
        self.opened = set()
        self._ready = deque()
        super().__init__(*args, **kwargs)

    def parses(self, sock: Any) -> ReplyParser:
        """Return the parser of what its new socket receives, for redis-py's code, too."""
        self.reply_parser = ReplyParser(self, sock)
        return self.reply_parser

    def mark_for_reconnect(self) -> None:
        """Be closed on release; also for redis-py's clusters."""
        self.ends = True

    def forget_databases(self) -> None:
        """Start as a new connection does, in the database of its arguments."""
        self.opened = set()
        self.selected = int(self.db or 0)  # type: ignore[attr-defined]
        self.entered = None
        self.ends = self.own = False

    def forget_use(self) -> None:
        """Start anew once it is closed."""
        self.due, self.answered_at = 0, self.idle_since
        self.ends = self.own = self.unusable = False
        self.forget_replies()

    def forget_replies(self) -> None:
        """Drop replies that nobody has read."""
        self._blocking_for, self.asks_slots = None, False
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
            if self.released:
                return "<a released connection>"
            if self.master is not None:
                return f"<{type(self).__name__} to sentinel:{self.master.service}>"
            return super().__repr__()

        def __del__(self, *args: Any) -> None:
            if not self.released:
                super().__del__(*args)

    def pack_command(self, *args: Any) -> PackedCommands:
        """Pack a command to be sent."""
        packed = PackedCommands.of(super().pack_command(*printable(args)), (args,))  # type: ignore[misc]
        packed.asks_slots = args == ("CLUSTER SLOTS",)
        return packed

    def pack_commands(self, commands: Iterable[Any]) -> PackedCommands:
        """Pack commands to be sent."""
        commands = list(commands)
        pieces = super().pack_commands(list(map(printable, commands)))  # type: ignore[misc]
        return PackedCommands.of(pieces, commands)

    def send_command(self, *args: Any, check_health: bool = True, **options: Any) -> Any:
        """Send a command; of an awaiting connection, a coroutine."""
        return self.send_packed_command(self.pack_command(*args), check_health=check_health)

    @run_by_face
    def send_packed_command(self, command: Any, check_health: bool = True) -> Steps[None]:
        """Send commands; raise ClosedError if the kit was closed in the meantime."""
        packed = command if type(command) is PackedCommands else PackedCommands.by_hand(command)
        if check_health and self.health_check_interval:
            yield self.check_health
        if not self.is_connected:
            if not packed.replies:  # it was framed for what the closed connection had opened
                lost = ConnectionError(CLOSED)
                lost.maybe_executed = False  # type: ignore[attr-defined]
                raise lost
            yield partial(self.connect_check_health, check_health=False)
        blocks = self._blocking_for if packed.blocks is None else packed.blocks
        while True:
            if packed.replies:
                is_elsewhere = self.entered is not self.database
                keeps = self.own or self.connecting or packed.effects & ANYWHERE
                if is_elsewhere and not keeps and (yield from self._exchanges(packed)):
                    return
                self._note(packed)
            if self.connecting:
                break
            # Set before sending, for those who change the address; but after connecting, the
            # health check and SELECT, which have replies of their own.
            self._blocking_for, self.asks_slots = blocks, packed.asks_slots
            if self.moved_to is None or not self.waits():
                break
            yield partial(self.disconnect, True)  # at once
            yield self.connect
        yield from self._send_reporting(packed)

    def _send_reporting(self, pieces: Any) -> Steps[None]:
        try:
            yield partial(self._send_in_time, pieces)
        except Exception as error:
            self.report(error)
            raise

    def _note(self, packed: PackedCommands, added: int = 0) -> None:
        """Note what commands do that are about to be sent: the gate, which all of them pass."""
        self.due += packed.replies + added
        does = packed.effects
        if does & STATE and not self.connecting:  # introductions belong to the connection
            self.own = self.ends = True
        elif does & WATCHES:
            self.own = True
        elif does & WHOLE:
            self.own = self.own and self.ends

    def select(self, database: ClientDatabase) -> Steps[Exception | None]:
        """Select an opened database, for certain; return the server's error if it refuses."""
        [reply] = yield from self.ask([("SELECT", str(database.number))])
        if isinstance(reply, Exception):
            return reply
        self.entering(database)
        return None

    def _exchanges(self, packed: PackedCommands) -> Steps[bool]:
        """Select the user's database; return whether with the commands, whose replies are ready.

        Raises:
            ResponseError: the server refuses SELECT; nothing was executed.
        """
        data, database = b"".join(packed), self.database
        try:
            form, data, count = self.encode(database, packed.effects, data, packed.replies)
            if form not in (PLAIN, CONFIRMED):
                self._note(packed, count - packed.replies)
                yield from self._send_reporting([data])
                replies = self.decode(form, (yield from self.replies(count)), database)
                if replies is not None:
                    self._ready.extend(replies)
                    return True
        except BaseException:
            self.shut_down()  # SELECT may not have been sent, and some replies may still be to come
            raise
        refusal = None if form == PLAIN else (yield from self.select(database))
        if refusal is not None:
            raise refusals(refusal, 1)[0]
        return False

    def replies(self, count: int, raw: bool = True) -> Steps[list[Any]]:
        """Read replies; errors are values."""
        replies: list[Any] = []
        for _ in range(count):
            try:
                replies.append((yield partial(self.read_response, disable_decoding=raw)))
            except ResponseError as refused:
                replies.append(refused)
        return replies

    def usable(self, reply: Any, *_: Any, push_request: bool = False, **__: Any) -> Any:
        """Return a reply; raise InvalidResponse for slots or messages that redis-py cannot read."""
        if push_request:
            require_kind("SUBSCRIBE", reply)
            return decoded(reply, self.encoder)  # type: ignore[attr-defined]
        if self.asks_slots:
            self.asks_slots = False
            require_kind("CLUSTER SLOTS", reply or ())  # without any, redis-py raises IndexError
            for node in chain.from_iterable(nodes for _, _, *nodes in reply):
                node[0] = node[0] or ""  # without a host, it is that of the connection
        return reply

    def _note_blocking(self) -> None:
        """Note whether the next reply, which pushes may precede, is of a command that may block."""
        if (parser := self.reply_parser) is not None:  # not in memory
            parser.may_block = self.for_block or self._blocking_for is not None

    def _at_hand(self, disable_decoding: bool = False, *_: Any, **__: Any) -> Any:
        """Return the next reply if it was received with others, without redis-py's code.

        It may be an error, of the server or of the reply; INCOMPLETE if there is none.
        """
        parser = self.reply_parser
        if parser is None or self.protocol != 2 or self.ends:  # pushes may come
            return INCOMPLETE
        try:
            return parser.gets_raw() if disable_decoding else parser.gets_decoded()
        except (InvalidResponse, TypeError) as error:  # the latter of hiredis
            return InvalidResponse(f"a reply cannot be used: {error}")

    def _next_ready(self, disable_decoding: bool = False, *_: Any, **__: Any) -> Any:
        reply = self._ready.popleft()
        if isinstance(reply, Exception):
            raise reply
        encoder = self.encoder  # type: ignore[attr-defined]
        return reply if disable_decoding else decoded(reply, encoder)

    @property
    def is_replaced(self) -> bool:
        """Whether it leads to a master that Sentinels have replaced, or are about to."""
        return self.master is not None and self.master.address != (self.host, self.port)

    def introduce(self) -> Steps[None]:
        """Ask what must be known of the server: in the greeting, before subscriptions follow."""
        if self.master is not None:
            yield from require_master(self)

    def ask(self, commands: Sequence[tuple[str, ...]]) -> Steps[list[Any]]:
        """Send commands and return the replies, in which errors are values."""
        self.asking = True
        try:
            packed = self.pack_commands(commands)
            packed.effects = ANYWHERE  # these are ours
            yield partial(self.send_packed_command, packed, check_health=False)
            return (yield from self.replies(len(commands)))
        finally:
            self.asking = False

    def refused(self, error: ResponseError) -> Steps[None]:
        """Note that a reply was an error; leave a server that is no master any more.

        Keys may still be watched; redis-py shows all of the text.
        """
        if sent := getattr(error, "args_sent", ""):
            error.args = (f"{error}{sent}",)
        self.due = max(0, self.due - 1)
        self.ends = self.ends or self.own
        self.unusable = self.unusable or refuses_to_serve(error)
        if self.master is not None and isinstance(error, ReadOnlyError):
            yield partial(self.disconnect, True)  # at once
            raise ConnectionError(PREVIOUS_MASTER) from error
        pool = self.follower()
        if pool is not None and lost_its_role(error):
            yield partial(pool.leave_server, self, error)

    @run_by_face
    def connect_check_health(self, *args: Any, **kwargs: Any) -> Steps[None]:
        """Connect, unless the kit is closed; retry as the entry's ``retry`` says."""
        if self.is_connected:
            return
        if self.inherited:
            raise ConnectionError(
                "this connection is its parent process's: get another one from its pool"
            )
        for retry in count(1):
            try:
                if self.master is None:
                    yield partial(self.connect_once, *args, **kwargs)
                elif CONNECT_REPEATS:
                    yield from self.master.connect(self)
                else:
                    yield partial(self._retried, self.master.connect)
                return
            except LOST as error:
                pause = self.policy.pause_before_retry(retry, error)
                if isinstance(error, AuthenticationError) and self.login is not None:
                    refused = self.login.pause_after_refusal(retry)
                    pause = refused if pause is None else pause
                if pause is None:
                    raise
            yield partial(self.pause, pause)

    @run_by_face
    def connect_once(self, *args: Any, **kwargs: Any) -> Steps[None]:
        """Connect to the address that it has, unless the kit is closed or its breaker open."""
        require_open(self)
        self.policy.require_closed_breaker()
        self.connecting = True
        started = time.monotonic()
        try:
            while True:
                become_moved(self)
                yield partial(self._connect_in_time, *args, **kwargs)
                if self.moved_to is None and not self.closed:
                    break
                yield partial(self.disconnect, True)  # at once
                require_open(self)
            self.own = self.ends = self.ends or has_connect_callbacks(self)  # it has subscribed
        except LOST as error:
            reraise_handlers(error)
            if self.closed:
                raise closed_error(self.closed) from error
            error.maybe_executed = False  # type: ignore[union-attr]
            if not isinstance(error, _OF_PLACES):
                self.policy.failed(error, time.monotonic() - started)
            raise
        finally:
            self.connecting = False
        if self.policy.breaker is not None:
            self.policy.breaker.connected()
        if handlers:
            shard, address = str(self.policy.shard or ""), self.policy.address
            emit(ConnectionOpened(shard, address, time.monotonic() - started))
            require_open(self)  # a handler may have closed it

    @run_by_face
    def enter(self) -> Steps[None]:
        """Be in the database of its user: open it before its first use.

        Raises:
            ConnectionError, ResponseError: it cannot be used; nothing was sent.
        """
        database = self.database
        if database not in self.opened:
            for error in (yield from opening(self, (database,), waits=True)).values():
                raise error
        if database.number == self.selected:
            self.entered = database

    @run_by_face
    def open(
        self, databases: Sequence[ClientDatabase], *, waits: bool = True
    ) -> Steps[dict[ClientDatabase, Exception]]:
        """Open databases before their first use; see `databases.opening`."""
        return (yield from opening(self, databases, waits))

    @run_by_face
    def check_health(self) -> Steps[None]:
        """Log in again or PING if that is due; close a dead one, unless its user changed its state.

        This says nothing about the server, and nothing was sent: the next command connects again.
        """
        connecting, self.connecting = self.connecting, True
        try:
            is_free = not (self.own or self.due)
            if self.login_expires and is_free and self.login.is_due():  # type: ignore[union-attr]
                given = yield getattr(self.login, self.asks_for_login)
                try:
                    [reply] = yield from self.ask([("AUTH", *given)])
                except AuthenticationError:
                    self.login.pause_after_refusal(1)  # type: ignore[union-attr]
                    raise
                if isinstance(reply, Exception):
                    raise ConnectionError(f"AUTH was refused: {reply}")
            yield super().check_health  # type: ignore[misc]
        except LOST as error:
            reraise_handlers(error)
            yield partial(self.disconnect, True)
            if self.own:
                raise
        finally:
            self.connecting = connecting

    @run_by_face
    def on_connect_check_health(self, *args: Any, **kwargs: Any) -> Steps[None]:
        """Send redis-py's introduction, and open the database; subscriptions follow."""
        try:
            yield partial(super().on_connect_check_health, *args, **kwargs)  # type: ignore[misc]
        except READING_ERRORS as error:
            if not is_over_reply(error):  # of a provider of credentials
                raise
            raise ConnectionError("the reply to HELLO cannot be used") from error
        self.login_expires = self.login is not None and self.login.expires
        self.forget_databases()
        yield self.enter

    def waits(self) -> bool:
        """Whether its user subscribes or is in a blocking command, and may wait for ever."""
        return self._blocking_for is not None or has_connect_callbacks(self)

    def report(self, error: BaseException) -> None:
        """Report a failure; raise the exception behind it instead, or that the kit was closed."""
        reraise_handlers(error)
        if self.closed:
            raise closed_error(self.closed) from error
        self.note_failure(error)

    def note_failure(self, error: BaseException) -> None:
        """Report to the server's circuit breaker that a reply did not come."""
        if isinstance(error, Exception):
            unsent = isinstance(error, DeadlineExceeded) and not error.waited
            error.maybe_executed = not (self.connecting or self.asking or unsent)  # type: ignore[attr-defined]
            error.server = address_of(self)  # type: ignore[attr-defined]
        waits = self.for_block or self._blocking_for is not None
        if (
            self.policy.breaker is not None
            and not self.connecting
            and not (waits and isinstance(error, DeadlineExceeded))
            and not has_connect_callbacks(self)
        ):
            # A lost connection fails immediately.
            self.policy.failed(error, math.inf if isinstance(error, TimeoutError) else 0.0)

    def tell_closed(self) -> None:
        """Emit the event that it is being closed, if it is connected."""
        if handlers and self.is_connected:
            emit(ConnectionClosed(str(self.policy.shard or ""), self.policy.address))


def released_error() -> ConnectionError:
    """Return the error of who uses or releases a connection after its release."""
    return ConnectionError(
        "this connection or its pub/sub was released: get another one, and release each once"
    )


# Attributes that a connection keeps when it moves.
_KEPT_ON_MOVE = frozenset(
    {"_connect_callbacks", "_closing", "closed", "encoder", "connecting", "for_block"}
)


def become_moved(connection: Any) -> None:
    """Turn an unconnected connection into its ``moved_to``, before it connects."""
    to = vars(connection).pop("moved_to", None)  # it may be set again at any time
    if to is None:
        return
    kind: Any = type(to)
    connection.__class__ = kind
    for name in (*slots_of(kind), *vars(to)):
        if name not in _KEPT_ON_MOVE and hasattr(to, name):
            setattr(connection, name, getattr(to, name))


def require_open(part: Any) -> None:
    """Refuse to use a pool or a connection whose kit is closed."""
    if part.closed:
        raise closed_error(part.closed)


def closed_error(why: object = True) -> ClosedError:
    """Return the error of calls to a closed kit, or to the client of another event loop."""
    if isinstance(why, str):
        return ClosedError(why, "ask the kit for a client in each event loop")
    return ClosedError("the kit is closed", "open a new one with shardkit.connect")


def timeout_for(blocks: float, socket_timeout: float | None) -> float | None:
    """Return the timeout of a command that may block for ``blocks`` seconds; None is for ever."""
    if not blocks or socket_timeout is None or math.isinf(blocks):
        return None
    return blocks + socket_timeout
