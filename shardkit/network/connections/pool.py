"""The connections of a server, and the pools that lend them.

Connections belong to a *way to connect*: an address, a user, TLS, a protocol, timeouts. All shards
and components that are reached in this way share them, whatever their database::

    unique:7   structures ─────► pool of database 7 ──┐
               kit.client(…) ──► its copy ────────────┤
    unique:11  …             ──► pool of database 11 ─┼─► Connections: idle and lent ones, waiters
    hits       …             ──► pool of database 3 ──┘
               its copy, once it was disconnected, reset, or made other connections ─► its own

So a server has as many connections of a process as threads use it at the same time, and what a
library does to the pool of its client affects only users of that client. A lent connection knows
its user's database: it is opened before its first use (see `databases.py`), and commands have
SELECT in front while another one is selected.

A pool is what redis-py's clients and other libraries take for one. It has no connections itself,
only what they are made of. It accepts each back once, and only its own. A draining pool still
lends connections, and closes each on release.
"""

from __future__ import annotations

import asyncio
import copy
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import redis
import redis.asyncio as aioredis
from redis.credentials import CredentialProvider
from redis.exceptions import MaxConnectionsError, RedisError

from shardkit.network.connections.connection import AsyncTcpConnection, TcpConnection
from shardkit.network.connections.connection_state import (
    ELSEWHERE,
    ENDED,
    ConnectionState,
    closed_error,
    released_error,
    require_open,
)
from shardkit.network.connections.credentials import RenewedLogin
from shardkit.network.connections.databases import ClientDatabase, Steps
from shardkit.network.connections.policy import NO_POLICY, CallPolicy, overloaded
from shardkit.network.connections.redis_private import (
    Encoder,
    close_connection_now,
    health_check_is_due,
    himport_registry,
)
from shardkit.network.connections.sentinels import Master
from shardkit.operations.deadlines import Deadline, current, within
from shardkit.operations.forks import process, renewed_in_children
from shardkit.operations.interruptions import reraise_handlers
from shardkit.operations.steps import arun_steps, run_by_face, run_steps

IDLE_SECONDS = 60.0  # idle connections are closed after this time, except for one in each pool
POLL_SECONDS = 1.0  # between a waiting caller's checks for connections that were never released
MOST_CONNECTIONS = 100  # as in redis-py's pools
_NOT_OF_CONNECTIONS = ("cache", "cache_config", "cache_factory", "maint_notifications_config")

watchers: list[Callable[[CallPolicy, float, float], object]] = []
"""Called when a connection is released, with its server's policy, and the seconds for which its
user waited for it and used it."""


class Connections:
    """The connections of a way to connect, for threads.

    Attributes:
        idle: those that lie idle, the one to be lent next at the end.
        in_use: weak references to the others, as an exception from outside may prevent a release.
        waiting: weak references to the callers that wait for one, the longest waiting first. Each
            gets a released connection, or word that there is room, and hands on what it gets too
            late.
    """

    def __init__(self) -> None:
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Forget the parent's connections and lock, which its threads may have held."""
        self.ref = weakref.ref(self)
        for connection in self.lent if hasattr(self, "in_use") else ():  # in use by the parent, too
            connection.leave_to_parent()
        self.guard: Any = threading.RLock()  # of the collections; one thread may take it twice
        self.idle: list[Any] = []
        self.in_use: set[weakref.ref[Any]] = set()
        self.waiting: deque[Any] = deque()

    @property
    def lent(self) -> list[Any]:
        """Those in use."""
        return [connection for ref in self.in_use.copy() if (connection := ref()) is not None]

    def __iter__(self) -> Iterator[Any]:
        return iter([*self.idle, *self.lent])

    def counts(self) -> tuple[int, int]:
        """Return how many connections are idle, and how many lent."""
        return len(self.idle), len(self.in_use)

    def lend(self, connection: Any) -> None:
        """Note that a connection is in use."""
        self.in_use.add(ref(connection, self.in_use.discard))
        connection.home = self.ref

    def release(self, connection: Any, ends: bool) -> bool:
        """Accept a lent connection back, closed if it ``ends``; return whether it was lent.

        Another one that was idle for too long is closed. So a pool does not keep a connection for
        each of many former threads.
        """
        with self.guard:
            try:
                self.in_use.remove(ref(connection))
            except KeyError:
                return False
            if connection.handed_out:
                connection = connection.passed_on()
            ends = ends or connection.ends or connection.unusable
            ends = ends or (connection.master is not None and connection.is_replaced)
            connection.idle_since = now = time.monotonic()
            if ends:
                self._give(None)
            elif not (self.waiting and self._give(connection)):
                self.idle.append(connection)
            is_old = len(self.idle) > 1 and self.idle[0].idle_since < now - IDLE_SECONDS
            old = self.idle.pop(0) if is_old else None
        if connection.lent is not None:
            (since, waited), connection.lent = connection.lent, None
            for watcher in tuple(watchers):
                watcher(connection.policy, waited, now - since)
        if ends:  # outside the lock
            if connection.unusable:
                self.drop_idle()
            self.close(connection)
        if old is not None:
            self.close(old)
        return True

    def drop(self, connection: Any) -> None:
        """Close a lent connection, and forget it."""
        with self.guard:
            self.in_use.discard(ref(connection))
            self._give(None)
        self.close(connection)

    def drop_idle(self) -> None:
        """Close idle connections."""
        with self.guard:
            idle, self.idle = self.idle, []
        for connection in idle:
            self.close(connection)

    def end(self, database: ClientDatabase | None = None) -> None:
        """Close connections, lent ones when they are released: those that have opened a database.

        Without ``database``, all. Those that only wait for wake-ups are closed at once.
        """
        with self.guard:
            lent = [used for used in self.lent if database is None or database in used.opened]
            for connection in lent:
                connection.ends = True
            gone = [idle for idle in self.idle if database is None or database in idle.opened]
            for connection in gone:
                self.idle.remove(connection)
        for connection in gone:
            self.close(connection)
        for connection in lent:
            if connection.awaits_wakeups:
                self.shut(connection)

    @staticmethod
    def close(connection: Any) -> None:
        """Close a connection that nobody uses."""
        connection.disconnect()

    @staticmethod
    def shut(connection: Any) -> None:
        """Close a connection under its user."""
        connection.shut_down()

    def _give(self, connection: Any) -> bool:
        """Give a connection, or with None word that there is room, to a waiting caller if any."""
        while self.waiting:
            ticket = self.waiting.popleft()()
            if ticket is not None and not ticket.done():
                if connection is not None:
                    self.lend(connection)
                ticket.set_result(connection)
                return True
        return False

    def wait(self, limit: int, seconds: float) -> Any:
        """Wait for a connection, and return it; None if it is time to look again.

        ``limit`` is how many there may be.
        """
        ticket = Future[Any]()
        with self.guard:
            if self.idle or len(self.in_use) < limit:
                return None
            self.waiting.append(weakref.ref(ticket))
        try:
            wait((ticket,), seconds)
        except BaseException:
            self._hand_on(ticket)
            raise
        return self._given_to(ticket)

    def _given_to(self, ticket: Any) -> Any:
        with self.guard, suppress(ValueError):
            self.waiting.remove(weakref.ref(ticket))
        return ticket.result() if ticket.done() and not ticket.cancelled() else None

    def _hand_on(self, ticket: Any) -> None:
        connection = self._given_to(ticket)
        if connection is None:
            self._give(None)
        else:
            self.release(connection, False)


class AsyncConnections(Connections):
    """The connections of a way to connect, for the tasks of an event loop."""

    def __init__(self) -> None:
        self.after_fork()
        self._loop, self._pid = asyncio._get_running_loop(), process.pid

    def require_loop(self) -> None:
        """Refuse another event loop than theirs; a forked child's takes them over."""
        running = asyncio._get_running_loop()
        if self._loop is None or self._pid != process.pid:
            self._loop, self._pid = running, process.pid
        elif self._loop is not running:
            raise closed_error(ENDED if self._loop.is_closed() else ELSEWHERE)

    @staticmethod
    def close(connection: Any) -> None:
        """Close it now; not in a task, as the event loop may end before that runs."""
        close_connection_now(connection)

    shut = close

    async def wait(self, limit: int, seconds: float) -> Any:
        """Wait for a connection; see the threads'."""
        if self.idle or len(self.in_use) < limit:
            return None
        ticket = asyncio.get_running_loop().create_future()
        self.waiting.append(weakref.ref(ticket))
        try:
            async with asyncio.timeout(seconds):
                return await ticket
        except TimeoutError:
            return self._given_to(ticket)
        except BaseException:
            self._hand_on(ticket)
            raise


class _Common:
    """What blocking and awaiting pools share."""

    connections_of: type[Connections]
    connection_class: type[Any]
    connection_kwargs: dict[str, Any] = {}  # noqa: RUF012 - hides redis-py's property
    cache: Any = None  # redis-py's, of replies
    draining = False
    closed: bool | str = False
    policy = NO_POLICY
    credentials: CredentialProvider | None = None  # asked at each connect, in place of the kwargs
    database: ClientDatabase  # of its users
    wait_seconds: float | None = 0.0  # for a connection if all are lent; None for ever
    as_redis_py = False  # whether its clients send commands by redis-py's own code alone
    master: Master | None = None  # that Sentinels are asked for
    multiplexed: Any = None  # the connection of all tasks; see `network/links/multiplexer.py`
    client: Any  # a way's, from which those of its databases are copied
    acquire: Callable[[], Any]
    may_multi = True  # whether writes reach another database by MULTI; see `framing`
    # Of a pool that shares: the one with whose arguments connections are made; and its own, until
    # somebody changes them.
    _origin: Any = None
    _given: Any = None

    def __init__(
        self,
        connection_class: type[Any] | None = None,
        max_connections: int | None = None,
        **connection_kwargs: Any,
    ) -> None:
        self.connection_class = connection_class or self.connection_class
        self.max_connections = max_connections or MOST_CONNECTIONS
        for name in _NOT_OF_CONNECTIONS:
            connection_kwargs.pop(name, None)
        self.connection_kwargs = {**himport_registry(), **connection_kwargs}
        self.himport_registry = self.connection_kwargs.get("himport_registry")
        self.pid = os.getpid()
        self.number = next(_numbers)  # in the order in which calls that need several take some
        self.users: set[ClientDatabase] = set()  # whose clients share its connections
        self.database = ClientDatabase(int(connection_kwargs.get("db") or 0))
        self.connections = self.connections_of()
        _live_pools.add(self)

    def share(
        self, database: ClientDatabase | None = None, policy: CallPolicy | None = None
    ) -> Self:
        """Return a pool that lends the same connections until somebody changes it.

        With ``database`` and ``policy`` they are those of its users.
        """
        shared = copy.copy(self)
        vars(shared).pop("_shardkit_kept", None)  # see `kept_with`
        shared._origin = self.way
        shared.multiplexed = None
        shared.connection_kwargs = dict(self.connection_kwargs)
        if database is not None:
            shared.database, shared.policy = database, policy or self.policy
            shared.connection_kwargs["db"] = database.number
            shared.draining = database.left
        shared._given = shared.connection_class, dict(shared.connection_kwargs)
        shared.register()
        return shared

    def register(self) -> None:
        """Have it listed among the pools of this process, of its breaker and of its master."""
        _live_pools.add(self)
        if self.policy.breaker is not None:
            self.policy.breaker.pools.add(self)
        if self.master is not None:
            self.master.lines.add(self.connections)

    @property
    def way(self) -> Any:
        """The pool with whose arguments its connections are made: itself, unless it shares."""
        return self._origin or self

    @property
    def shares(self) -> bool:
        return self._origin is not None

    def separate(self) -> None:
        """Stop sharing: have connections of its own from now on."""
        with self.connections.guard:
            if self.shares:
                self.reset()

    def reset(self) -> None:
        """Forget every connection; new ones get the current `connection_kwargs`."""
        with self.connections.guard:
            self._origin = self.multiplexed = None
            self.connections = self.connections_of()
            self.register()

    def make_connection(self, **instead: Any) -> Any:
        """Return a new connection, which the pool does not manage; some arguments may differ."""
        connection = self.connection_class(**{**self.connection_kwargs, **instead})
        connection.master = self.master
        if login := (self.draining and self.database.login) or self.credentials:
            connection.login = connection.credential_provider = RenewedLogin(login)
        number = int(self.connection_kwargs.get("db") or 0)
        if number != self.database.number:  # somebody has changed it
            self.database = ClientDatabase(number, self.database.shard, self.database.label)
        connection.database, connection.may_multi = self.database, self.way.may_multi
        connection.policy = self.policy
        if self.shares:
            connection.db = 0  # of no user's in particular
        return connection

    def _take_usable(self, connection: Any = None) -> Any:
        """Lend an idle connection that can be used at once, in any database; None if none can.

        Or a given ``connection``, which is lent already, if that can be used.
        """
        breaker, connections = self.policy.breaker, self.connections
        if connection is None and (self.draining or (breaker is not None and breaker.opened)):
            return None
        while connection is not None or connections.idle:
            try:
                if connection is None:
                    with connections.guard:
                        if not connections.idle:
                            return None
                        connection = connections.idle.pop()
                        # As `lend` does, without a further call.
                        connections.in_use.add(ref(connection, connections.in_use.discard))
                if connection.is_reusable():
                    connection.database, connection.policy = self.database, self.policy
                    if watchers:
                        connection.lent = time.monotonic(), 0.0
                    return connection
            except BaseException as error:
                if connection is not None:
                    connections.drop(connection)
                if not isinstance(error, RedisError | OSError):
                    raise
                reraise_handlers(error)  # otherwise the server closed it
            else:
                connections.drop(connection)
            connection = None
        return None

    def _acquired(self, connection: Any, connects: bool = True) -> Steps[Any]:
        """Lend a connection that was taken, or one that can be, or a new one; see `acquire`."""
        began = time.monotonic()
        while True:
            if connection is None:
                connection = self._lend()
            if connection is None:
                seconds = self._left_to_wait(began)
                given = yield partial(self.connections.wait, self.max_connections, seconds)
                if given is None or (connection := self._take_usable(given)) is None:
                    continue
            if connects:
                if not connection.is_connected:
                    yield from self._or_dropped(connection, connection.connect)
                else:
                    yield from self._or_dropped(connection, connection.check_health)  # if it is due
                    if not connection.is_connected:  # nor those that were idle for longer
                        (connection.home() or self.connections).drop(connection)
                        self.connections.drop_idle()
                        connection = None
                        continue
            if watchers:
                connection.lent = (now := time.monotonic()), now - began
            return connection

    def _lend(self) -> Any:
        """Lend an idle connection or a new one; None if ``max_connections`` are lent."""
        self.policy.require_closed_breaker()
        connection = self._take_usable()
        if connection is None:
            require_open(self)
            waiting = self.connections.counts()[1] + self.pending()
            if waiting >= self.policy.max_waiting:
                raise overloaded(waiting, self.policy.max_waiting)
            connection = self._lend_new()
        return connection

    def _lend_new(self) -> Any:
        """Lend a new connection, not connected yet; None if there are ``max_connections``."""
        if self.shares and self._given != (self.connection_class, self.connection_kwargs):
            self.separate()  # the other pool would not have made it
        connections = self.connections
        with connections.guard:
            while self.draining and connections.idle:  # it does not use them: others' make room
                if sum(connections.counts()) < self.max_connections:
                    break
                connections.close(connections.idle.pop(0))
            if sum(connections.counts()) >= self.max_connections:
                return None
            connection = self.make_connection()
            connection.closed = self.closed  # in the meantime
            connections.lend(connection)
            return connection

    def _or_dropped(self, connection: Any, call: Callable[[], Any]) -> Steps[None]:
        try:
            yield call
        except BaseException:
            (connection.home() or self.connections).drop(connection)
            raise

    @run_by_face
    def get_connection(self, *args: Any, **kwargs: Any) -> Steps[Any]:
        """Return a connected connection in the pool's database; for redis-py's own code.

        Raises: as `acquire`, and what the server answers to SELECT.
        """
        connection = yield self.acquire
        connection.handed_out = True
        if connection.entered is not self.database:
            yield from self._or_dropped(connection, connection.enter)
        return connection

    def release_nowait(self, connection: Any) -> None:
        """Accept a connection back, once, even if it was lent before this pool was separated.

        Raises:
            ConnectionError: it was released already.
        """
        home = getattr(connection, "home", ConnectionState.home)()  # redis-py's has none
        if not (home or self.connections).release(connection, self.draining):
            require_lent(connection)

    def _left_to_wait(self, began: float) -> float:
        """Return the seconds that a caller should wait for a connection before it looks again.

        Raises:
            MaxConnectionsError: it has waited for ``wait_seconds``.
            DeadlineExceeded: the caller's deadline has passed.
        """
        if self.wait_seconds == 0:
            raise too_many(self.max_connections)
        waited, deadline = time.monotonic() - began, current.get()
        left = math.inf if self.wait_seconds is None else self.wait_seconds - waited
        if deadline is not None:
            if deadline.left() <= 0:
                raise deadline.passed(waited)
            left = min(left, deadline.left())
        if left <= 0:
            raise too_many(self.max_connections, waited)
        return min(left, POLL_SECONDS)

    def pending(self) -> int:
        return len(self.connections.waiting)

    # ---- its end

    def drain(self) -> None:
        """Close idle connections that have opened the database, and others when released.

        The pool of a way has no users then, and closes all.
        """
        self.draining = True
        if self.shares:
            self.way.leave(self.database)
            return
        self.connections.end()
        self._stop_listening()
        for pool in self.below:
            pool.drain()

    def leave(self, database: ClientDatabase) -> None:
        """Close connections that have opened a database, whose entry has changed; see `drain`."""
        database.left = True
        self.connections.end(database)
        self.users.discard(database)
        if not self.users:
            self.drain()

    def drop_idle(self) -> None:
        self.connections.drop_idle()

    @property
    def below(self) -> list[Any]:
        return [] if self.master is None else self.master.pools

    def _disconnect(self, inuse_connections: bool) -> None:
        self.drop_idle()
        for connection in self.connections.lent if inuse_connections else ():
            self.connections.shut(connection)

    @run_by_face
    def disconnect(self, inuse_connections: bool = True) -> Steps[None]:
        self.separate()
        self._disconnect(inuse_connections)
        for pool in self.below if inuse_connections and self._given is None else ():
            yield pool.disconnect

    def close_for_good(self, why: bool | str = True) -> None:
        """Close every connection, and open no other; calls in flight raise ClosedError.

        An event loop's, in the loop. ``why`` is for `closed_error`.
        """
        self.closed, self.draining = why, True
        with self.connections.guard:
            for connection in self.connections.lent:
                connection.closed = why
            while self.connections.waiting:
                self.connections._give(None)  # those who wait
        self._stop_listening()
        self._disconnect(True)
        for pool in self.below:
            pool.close_for_good(why)

    def _stop_listening(self) -> None:
        if self.master is not None and not self.shares:
            self.master.stop_listening()

    # ---- what redis-py's code and other libraries call

    def set_retry(self, retry: Any) -> None:
        self.separate()
        self.connection_kwargs["retry"] = retry
        for connection in self.connections:
            connection.retry = retry

    def get_connection_count(self) -> list[tuple[int, dict[str, Any]]]:
        idle, lent = self.connections.counts()
        return [(idle, {"state": "idle"}), (lent, {"state": "used"})]

    def maint_notifications_enabled(self) -> bool:
        """Return False: servers are not asked to announce their maintenance."""
        return False

    def update_maint_notifications_config(self, *args: Any, **kwargs: Any) -> Any:
        """Do nothing: servers are not asked to announce their maintenance."""

    update_connection_kwargs = update_connection_settings = update_maint_notifications_config
    update_connections_settings = update_maint_notifications_config

    def re_auth_callback(self, token: Any) -> Any:
        self.drop_idle()
        for connection in self._get_in_use_connections():
            connection.set_re_auth_token(token)

    def update_active_connections_for_reconnect(self, *args: Any, **kwargs: Any) -> Any:
        for connection in self._get_in_use_connections():
            connection.ends = True

    def _get_free_connections(self) -> list[Any]:
        return list(self.connections.idle)

    def _get_in_use_connections(self) -> set[Any]:
        return set(self.connections.lent)

    def __repr__(self) -> str:
        where = self.connection_kwargs
        server = where.get("path") or f"{where.get('host')}:{where.get('port')}"
        if self.master is not None:
            server = f"sentinel:{self.master.service}"
        state = ", draining" if self.draining else ""
        if self.way.multiplexed is not None:
            state += f"; {self.way.multiplexed.state}"
        idle, lent = self.connections.counts()
        return (
            f"<{type(self).__name__} {server}/{where.get('db', 0)}: "
            f"{lent} in use, {idle} idle{state}>"
        )


class Pool(_Common, redis.ConnectionPool):
    """A pool for threads."""

    connections_of = Connections
    connection_class = TcpConnection
    run = staticmethod(run_steps)
    release = _Common.release_nowait

    def acquire(self, connects: bool = True) -> Any:
        """Return a connection in any database, an idle one if there is any.

        Without ``connects``, it may have to be connected or checked: see `connect`.

        Raises:
            MaxConnectionsError: ``max_connections`` are in use, for ``wait_seconds``.
            OverloadError: ``max_waiting`` callers use a connection or wait for one.
            ConnectionError, TimeoutError: redis-py's.
            ClosedError: the pool was closed for good.
        """
        connection = self._take_usable()
        if connection is not None and not (
            connects and (connection.health_check_interval or connection.login_expires)
        ):
            return connection
        return run_steps(self._acquired(connection, connects))

    def exchange(
        self, data: bytes, raw: bool, deadline: Deadline | None, count: int, does: int
    ) -> tuple[list[Any], bool]:
        """Send a few commands to the pool's database, and return the replies as a connection does.

        What it raises tells by ``maybe_executed`` whether they may have been executed.
        """
        connection, sent, complete = None, False, False
        try:
            usable = self._take_usable()
            if usable is None or usable.health_check_interval or usable.login_expires:
                with within(deadline or current.get()):
                    usable = run_steps(self._acquired(usable))
            connection = usable
            if deadline is not None:
                deadline.require_left()
            sent = True
            answer: tuple[list[Any], bool]
            if connection.entered is connection.database:
                answer = connection.round_trip(data, raw, deadline, count)
            else:
                answer = connection.from_elsewhere(data, raw, deadline, count, does)
            complete = True
        except BaseException as error:
            if not hasattr(error, "maybe_executed"):
                with suppress(AttributeError):  # anybody's
                    error.maybe_executed = sent  # type: ignore[attr-defined]
            raise
        finally:
            if connection is not None:
                if not complete:
                    connection.disconnect()
                (connection.home() or self.connections).release(connection, self.draining)
        return answer

    def connect(self, connection: Any) -> None:
        """Connect a lent connection; if that fails, forget it. Raises: as `acquire`."""
        run_steps(self._or_dropped(connection, connection.connect))

    def disconnect_free_connections(self, *args: Any, **kwargs: Any) -> None:
        """Close idle connections."""
        self.drop_idle()

    if not TYPE_CHECKING:

        @property
        def _lock(self) -> Any:
            return self.connections.guard


class AsyncPool(_Common, aioredis.ConnectionPool):
    """A pool for the tasks of an event loop."""

    connections: AsyncConnections
    connections_of = AsyncConnections
    connection_class = AsyncTcpConnection
    encoder_class = Encoder
    run = staticmethod(arun_steps)

    def _take_usable(self, connection: Any = None) -> Any:
        self.connections.require_loop()
        return super()._take_usable(connection)

    def get_idle(self) -> Any:
        """Return a connection that can be used at once, in any database; None if there is none."""
        connection = self._take_usable()
        if (
            connection is not None
            and (connection.health_check_interval or connection.login_expires)
            and health_check_is_due(connection, asyncio.get_running_loop().time())
        ):
            connection.lent = None
            self.connections.release(connection, False)
            return None
        return connection

    async def acquire(self) -> Any:
        """Return a connected connection in any database; see the blocking pool's."""
        connection = self._take_usable()
        if connection is not None and not (
            connection.health_check_interval or connection.login_expires
        ):
            return connection
        return await arun_steps(self._acquired(connection))

    async def release(self, connection: Any) -> None:
        """Accept a connection back, once; ignore one of another pool."""
        self.release_nowait(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close connections; see `_Common`. A coroutine function, as redis-py's is."""
        self.connections.require_loop()
        await super().disconnect(inuse_connections)

    aclose = disconnect

    async def re_auth_callback(self, token: Any) -> None:
        """Have connections log in with a new token; see redis-py's."""
        super().re_auth_callback(token)

    def can_get_connection(self) -> bool:
        """Whether a connection is idle, or can be made."""
        idle, lent = self.connections.counts()
        return bool(idle) or lent < self.max_connections

    def get_available_connection(self) -> Any:
        """Return a connection, perhaps not connected; MaxConnectionsError if all are in use.

        For redis-py's own code. A cluster's node takes its connections so.
        """
        connection = self._lend()
        if connection is None:
            raise too_many(self.max_connections)
        connection.handed_out = True
        return connection

    async def ensure_connection(self, connection: Any) -> None:
        """Connect a connection that is not."""
        await connection.connect()

    async def update_active_connections_for_reconnect(self) -> None:
        """Have connections in use closed before their next use."""
        super().update_active_connections_for_reconnect()

    async def update_connections_settings(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: servers are not asked to announce their maintenance."""

    apply_moving_notification = cleanup_moving_notification = update_connections_settings
    run_proactive_reconnect = update_maint_notifications_config = update_connections_settings


def require_lent(connection: Any) -> None:
    """Refuse a connection that its user has released, unless an exception has interrupted that."""
    if getattr(connection, "released", False) and sys.exception() is None:
        raise released_error()


_numbers = count()
_live_pools: weakref.WeakSet[Any] = weakref.WeakSet()


def live_pools() -> list[Any]:
    """Return all pools of this process with connections of their own, blocking and awaiting."""
    return [pool for pool in list(_live_pools) if not pool.shares]


def too_many(limit: int, waited: float | None = None) -> MaxConnectionsError:
    """Return the error of a pool whose connections are all in use, perhaps after a wait."""
    within, remedy = "", "set a higher max_connections"
    if waited is not None:
        within = f", and none was released within {waited:.3g} seconds"
        remedy = "set a larger blocking_pool size"
    return MaxConnectionsError(
        f"Too many connections: {limit} are in use{within}. "
        f"Use fewer at once, or {remedy} in the entry"
    )
