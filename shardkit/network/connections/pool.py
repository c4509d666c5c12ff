"""redis-py's pools, made quicker, and able to drain.

These pools lend connections without most of redis-py's bookkeeping, which is a third of the cost of
a short call. A pool accepts each connection back once, and only its own. A draining pool still
lends connections, and closes each on release.

Connections belong to a *way to connect*: an address, a user, TLS, a protocol, timeouts. All shards
and components that are reached in this way share them, whatever their database::

    unique:7   structures ─────► pool of database 7 ──┐
               kit.client(…) ──► its copy ────────────┤
    unique:11  …             ──► pool of database 11 ─┼─► pool of the way ─► connections
    hits       …             ──► pool of database 3 ──┘
               its copy, once it was disconnected, reset, or made other connections ─► its own

So a server has as many connections of a process as threads use it at the same time, and what a
library does to the pool of its client affects only users of that client. A lent connection knows
its user's database: it is opened before its first use (see `databases.py`), and commands have
SELECT in front while another one is selected.
"""

from __future__ import annotations

import asyncio
import copy
import math
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import count
from typing import Any, Self

import redis
import redis.asyncio as aioredis
from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.credentials import CredentialProvider
from redis.exceptions import MaxConnectionsError, RedisError

from shardkit.network.connections.connection import is_reusable, released_error, require_open
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.policy import NO_POLICY, CallPolicy, overloaded
from shardkit.network.connections.redis_private import (
    close_connection_now,
    close_left,
    forget_lost,
    health_check_is_due,
    idle_of,
    in_use_of,
    lock_of,
    renew_locks,
    set_created,
)
from shardkit.network.connections.sentinels import HearsOfFailovers
from shardkit.operations.deadlines import current
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import reraise_handlers

IDLE_SECONDS = 60.0  # idle connections are closed after this time, except for one in each pool
SWEEP_SECONDS = 5.0  # between two searches for them in blocking pools
MOST_PER_SWEEP = 200
POLL_SECONDS = 1.0  # between a waiting caller's checks for connections that were never released


watchers: list[Callable[[CallPolicy, float, float], object]] = []
"""Called when a connection is released, with its server's policy, and the seconds for which its
user waited for it and used it."""


class _Common(HearsOfFailovers):
    """What blocking and awaiting pools share."""

    draining = False
    closed = False
    policy = NO_POLICY
    credentials: CredentialProvider | None = None  # asked at each connect, in place of the kwargs
    database: ClientDatabase  # of its users
    wait_seconds: float | None = 0.0  # for a connection if all are in use; None for ever
    as_redis_py = False  # whether its clients send commands by redis-py's own code alone
    max_connections: int
    origin: Any = None  # of a pool that shares: the pool whose connections it lends
    multiplexed: Any = None  # the connection of all tasks; see `network/links/multiplexer.py`
    connection_class: type[Any]
    connection_kwargs: dict[str, Any]
    client: Any  # a way's, from which those of its databases are copied
    way: Any  # the pool that owns its connections: itself, unless it shares
    number: int  # in the order in which calls that need several take connections
    users: set[ClientDatabase]  # whose clients share its connections
    lanes: dict[float | None, object]  # see `Endpoint`
    may_multi = True  # whether writes reach another database by MULTI; see `framing`
    given_kwargs: dict[str, Any]  # those of a pool that shares, until somebody changes them
    pending: Callable[[], int]
    _guard: Any = nullcontext()  # of its collections; an event loop's need none

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.users, self.lanes = set(), {}
        self.number = next(_numbers)
        super().__init__(*args, **kwargs)
        self.way = self
        self.database = ClientDatabase(int(self.connection_kwargs.get("db") or 0))
        _live_pools.add(self)

    def share(
        self, database: ClientDatabase | None = None, policy: CallPolicy | None = None
    ) -> Self:
        """Return a pool that lends the same connections until somebody changes it.

        With ``database`` and ``policy`` they are those of its users.
        """
        shared = copy.copy(self)
        shared.origin = self
        shared.multiplexed = None
        shared.connection_kwargs = dict(self.connection_kwargs)
        if database is not None:
            shared.database, shared.policy = database, policy or self.policy
            shared.connection_kwargs["db"] = database.number
            shared.draining = database.left
        shared.given_kwargs = dict(shared.connection_kwargs)
        if isinstance(shared, _ReusingPool):
            renewed_in_children(shared)
        _live_pools.add(shared)
        if shared.policy.breaker is not None:
            shared.policy.breaker.pools.add(shared)
        return shared

    def separate_connection(self, **instead: Any) -> Any:
        """Return a connection with some other arguments, which the pool does not manage."""
        return self._equipped(self.connection_class(**{**self.connection_kwargs, **instead}))

    @property
    def below(self) -> list[Any]:
        """The pools of connections to the Sentinels that it asks."""
        return []

    @property
    def shares(self) -> bool:
        """Whether its connections are those of another pool."""
        return self.way is not self

    def separate(self) -> None:
        """Stop sharing: have connections of its own from now on."""
        if self.shares:
            self.reset()  # type: ignore[attr-defined]

    def set_retry(self, retry: Any) -> None:
        """Set how connections retry; see redis-py's."""
        self.separate()
        super().set_retry(retry)  # type: ignore[misc]

    def _separate_if_changed(self) -> None:
        """Separate before a connection is made that the other pool would not have made."""
        origin = self.origin
        if origin is not None and (
            self.connection_class is not origin.connection_class
            or self.connection_kwargs != self.given_kwargs
        ):
            self.separate()

    def _equipped(self, connection: Any) -> Any:
        credentials = (self.draining and self.database.login) or self.credentials
        if credentials is not None:
            connection.credential_provider = credentials
        number = int(self.connection_kwargs.get("db") or 0)
        if number != self.database.number:  # somebody has changed it
            self.database = ClientDatabase(number, self.database.shard, self.database.label)
        connection.database, connection.may_multi = self.database, self.way.may_multi
        if self.policy is not NO_POLICY:
            connection.policy = self.policy
        if self.shares:
            connection.db = 0  # of no user's in particular
        return connection

    def _gone(self, database: ClientDatabase) -> list[Any]:
        """Have connections that have opened a database closed on release; return idle ones."""
        for connection in in_use_of(self):
            if database in getattr(connection, "opened", ()):
                connection.ends = True
        idle = idle_of(self)
        everybody = self.draining and not self.shares
        gone = [each for each in idle if everybody or database in each.opened]
        for connection in gone:
            idle.remove(connection)
        return gone

    def drain(self) -> None:
        """Close idle connections that have opened the database, and others when released.

        The pool of a way has no users then, and closes all.
        """
        self.draining = True
        if self.shares:
            self.way.leave(self.database)
        else:
            self._close_gone(self.database)
            self.stop_listening()
            for pool in self.below:
                pool.drain()

    def leave(self, database: ClientDatabase) -> None:
        """Close connections that have opened a database, whose entry has changed; see `drain`."""
        database.left = True
        self._close_gone(database)
        self.users.discard(database)
        if not self.users:
            self.drain()

    def _close_gone(self, database: ClientDatabase) -> None:
        with self._guard:
            gone = self._gone(database)
        for connection in gone:
            self._close_now(connection)

    def drop_idle(self) -> None:
        """Close idle connections."""
        idle = idle_of(self)
        with suppress(IndexError):
            while True:
                self._close_now(idle.pop())

    def _make_room(self) -> None:
        """Close idle connections, which a draining pool does not use, if they are in the way."""
        while idle_of(self) and sum(self.connection_counts()) >= self.max_connections:
            self._close_now(idle_of(self).pop(0))

    @staticmethod
    def _close_now(connection: Any) -> None:
        """Close a connection; not in a task, as the event loop may end before that runs."""
        close_connection_now(connection)

    def _left_to_wait(self, began: float) -> float:
        """Return the seconds that a caller should wait for a connection before it polls.

        Raises:
            MaxConnectionsError: it has waited for ``wait_seconds``.
            DeadlineExceeded: the caller's deadline has passed.
        """
        waited, deadline = time.monotonic() - began, current.get()
        left = math.inf if self.wait_seconds is None else self.wait_seconds - waited
        if deadline is not None:
            if deadline.left() <= 0:
                raise deadline.passed(waited)
            left = min(left, deadline.left())
        if left <= 0:
            raise too_many(self.max_connections, waited)
        return min(left, POLL_SECONDS)

    def _require_few(self) -> None:
        """Raise OverloadError if ``max_waiting`` callers use a connection or wait for one."""
        waiting = len(in_use_of(self)) + self.pending()
        if waiting >= self.policy.max_waiting:
            raise overloaded(waiting, self.policy.max_waiting)

    def _tell_use(self, connection: Any) -> None:
        """Report the use of a released connection to the watchers."""
        lent, connection.lent = getattr(connection, "lent", None), None
        if lent is not None:  # else it was lent before there were watchers
            since, waited = lent
            used = time.monotonic() - since
            for watcher in tuple(watchers):
                watcher(self.policy, waited, used)

    def connection_counts(self) -> tuple[int, int]:
        """Return how many connections are idle, and how many in use."""
        return len(idle_of(self)), len(in_use_of(self))

    def connections(self) -> list[Any]:
        """Return the connections, idle and in use."""
        return [*idle_of(self), *in_use_of(self)]

    def __repr__(self) -> str:
        where = self.connection_kwargs
        server = where.get("path") or f"{where.get('host')}:{where.get('port')}"
        if hasattr(self, "service_name"):
            server = f"sentinel:{self.service_name}"
        state = ", draining" if self.draining else ""
        if self.way.multiplexed is not None:
            state += f"; {self.way.multiplexed.state}"
        return (
            f"<{type(self).__name__} {server}/{where.get('db', 0)}: "
            f"{len(in_use_of(self))} in use, {len(idle_of(self))} idle{state}>"
        )


class _Freed(threading.Condition):
    """Gives released connections to waiting callers, the longest waiting first."""

    pending = 0  # waiting callers, of all pools that share

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.given: deque[Any] = deque()  # to those who are about to wake up


class _ReusingPool(_Common):
    """A pool for threads.

    Its connections are in one of redis-py's two collections: idle, or in use. All others do not
    belong to it (any more).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        renewed_in_children(self)

    def __del__(self) -> None:
        """Close idle connections in silence: their sockets would warn if collected before them."""
        if self.origin is None:
            for connection in getattr(self, "_idle", ()):
                connection.disconnect()

    def reset(self) -> None:
        """Forget every connection; new ones get the current `connection_kwargs`."""
        super().reset()  # type: ignore[misc]
        forget_lost(self)
        self.way = self
        # redis-py's collections and lock, under names of our own because that is faster.
        self._idle, self._in_use, self._guard = idle_of(self), in_use_of(self), lock_of(self)
        self._freed = _Freed(self._guard)

    def get_idle(self, check_health: bool = True) -> Any:
        """Return a connection that can be used at once, in any database, or None.

        If it is due for a health check and fails, the others, idle for longer, are closed, too.
        """
        breaker = self.policy.breaker
        if breaker is not None and breaker.opened:
            return None
        while self._idle and not self.draining:
            connection = None
            try:
                with self._guard:
                    if not self._idle:
                        return None
                    connection = self._idle.pop()
                    self._in_use.add(connection)
                check = getattr(connection, "is_reusable", None)  # a holder's own class has none
                if is_reusable(connection) if check is None else check():
                    if watchers:
                        connection.lent = time.monotonic(), 0.0
                    connection.database, connection.policy = self.database, self.policy
                    if not check_health or not connection.health_check_interval:
                        return connection
                    connection.check_health()
                    if getattr(connection, "is_connected", True):
                        return connection
                    self.drop_idle()
            except (RedisError, OSError) as error:  # the server closed it
                self._drop(connection)
                reraise_handlers(error)
                continue
            except BaseException:
                self._drop(connection)
                raise
            self._drop(connection)
        return None

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Return a connected connection in the pool's database; for redis-py's own code.

        Raises: as `borrow`, and what the server answers to SELECT.
        """
        connection = self.borrow()
        connection.handed_out = True
        if getattr(connection, "entered", self.database) is not self.database:
            try:
                connection.enter()
            except BaseException:
                self._drop(connection)
                raise
        return connection

    def borrow(self) -> Any:
        """Return a connected connection in any database, an idle one if there is any.

        Raises:
            MaxConnectionsError: ``max_connections`` are in use, for ``wait_seconds``.
            OverloadError: ``max_waiting`` callers use a connection or wait for one.
            ConnectionError, TimeoutError: redis-py's.
            ClosedError: the pool was closed for good.
        """
        began = time.monotonic()
        connection = self.reserve(began, check_health=True)
        if not getattr(connection, "is_connected", False):
            self.connect(connection)
        if watchers:
            connection.lent = (now := time.monotonic()), now - began
        return connection

    def reserve(self, began: float, check_health: bool = False) -> Any:
        """Return an idle connection, or one that is not connected yet: see `connect`.

        Raises: as `borrow`.
        """
        self.policy.require_closed_breaker()
        while True:
            connection = self.get_idle(check_health)
            if connection is not None:
                return connection
            require_open(self)
            self._require_few()
            try:
                with self._guard:
                    if self.draining:
                        self._make_room()
                    connection = self.make_connection()
                    self._in_use.add(connection)
                    return connection
            except MaxConnectionsError:
                if self.wait_seconds == 0:
                    raise
            connection = self._wait_for_room(began)
            if connection is not None:
                return connection

    def connect(self, connection: Any) -> None:
        """Connect a reserved connection; if that fails, forget it.

        Raises: as `borrow`.
        """
        try:
            connection.connect()
            require_open(self)  # it may have been closed in the meantime
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, RedisError | OSError):
                require_open(self)
            raise

    def _wait_for_room(self, began: float) -> Any:
        """Wait until a connection is released, and return it; None if it is time to look again."""
        with self._guard:
            freed = self._freed
            if not self._idle and len(self._in_use) >= self.max_connections:
                freed.pending += 1
                try:
                    freed.wait(self._left_to_wait(began))
                finally:
                    freed.pending -= 1
            connection = freed.given.popleft() if freed.given else None
        if connection is not None and not connection.is_reusable():
            self._drop(connection)
            return None
        if connection is not None:
            connection.database, connection.policy = self.database, self.policy
        return connection

    def pending(self) -> int:
        """Return how many callers wait for a connection."""
        return self._freed.pending

    def make_connection(self) -> Any:
        """Return a new connection, which is not connected yet.

        Raises:
            MaxConnectionsError: there are ``max_connections``.
        """
        with self._guard:
            self._separate_if_changed()
            existing = len(self._idle) + len(self._in_use)
            if existing >= self.max_connections:
                raise too_many(self.max_connections)
            set_created(self, existing)
            return self._equipped(super().make_connection())  # type: ignore[misc]

    def release(self, connection: Any) -> None:
        """Accept a connection back, once; ignore one of another pool.

        Raises:
            ConnectionError: it was released already.
        """
        with self._guard:
            if connection not in self._in_use:
                require_lent(connection)
                if self.origin is not None:  # lent before they separated
                    self.origin.release(connection)
                return
            self._in_use.remove(connection)
            if connection.handed_out:
                connection = connection.passed_on()
            if watchers:
                self._tell_use(connection)
            now = time.monotonic()
            unusable = connection.unusable
            ends = self.draining or unusable or connection.ends
            freed = self._freed
            if ends:
                freed.notify()
            elif freed.pending > len(freed.given):
                self._in_use.add(connection)
                freed.given.append(connection)
                freed.notify()
            else:
                connection.idle_since = now
                self._idle.append(connection)
        if ends:  # outside the lock
            connection.disconnect()
        if unusable:
            self.drop_idle()
        if now > _sweep.due:
            _sweep.run(now)

    def trim(self, before: float, most: int) -> int:
        """Close at most ``most`` connections released ``before`` a time; return their number.

        The one used last stays.
        """
        with self._guard:
            old = 0
            while old < min(most, len(self._idle) - 1) and self._idle[old].idle_since < before:
                old += 1
            trimmed = self._idle[:old]
            del self._idle[:old]
        for connection in trimmed:
            connection.disconnect()
        return old

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections; on request also shut down those in use, and to Sentinels."""
        self.separate()
        self._disconnect(inuse_connections)
        for pool in self.below if inuse_connections and self.origin is None else ():
            pool.disconnect()

    def separate(self) -> None:
        """Stop sharing: have connections of its own from now on."""
        with self._guard:
            super().separate()

    def _disconnect(self, inuse_connections: bool = True) -> None:
        self.drop_idle()
        if inuse_connections:
            with self._guard:
                in_use = list(self._in_use)
            for connection in in_use:
                connection.closed = self.closed
                getattr(connection, "shut_down", connection.mark_for_reconnect)()

    def close_for_good(self) -> None:
        """Close every connection, and open no other; calls in flight raise ClosedError."""
        self.closed = self.draining = True
        with self._guard:
            self._freed.notify_all()
        self._disconnect()
        self.stop_listening()
        for pool in self.below:
            pool.close_for_good()

    def _drop(self, connection: Any) -> None:
        """Close a connection that was in use, and forget it."""
        if connection is not None:
            with self._guard:
                self._in_use.discard(connection)
                self._freed.notify()
            connection.disconnect()

    @staticmethod
    def _close_now(connection: Any) -> None:
        connection.disconnect()

    def after_fork(self) -> None:
        """Forget the parent's connections and locks, which its threads may have held."""
        renew_locks(self)
        self.reset()


class _AsyncReusingPool(_Common):
    """The awaiting pool."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __del__(self) -> None:
        """Close connections in silence whose clients have outlived their kit."""
        if self.origin is None and hasattr(self, "_waiting"):
            close_left(self)

    def reset(self) -> None:
        """Forget every connection; new ones get the current `connection_kwargs`."""
        super().reset()  # type: ignore[misc]
        self.way, self.multiplexed = self, None

    def get_idle(self) -> Any:
        """Return a connection that can be used at once, in any database, or None."""
        idle = idle_of(self)
        if self.draining or not idle or not idle[-1].is_reusable():
            return None
        breaker, now = self.policy.breaker, asyncio.get_running_loop().time()
        if (breaker is not None and breaker.opened) or health_check_is_due(idle[-1], now):
            return None
        return self._take()

    def _take(self) -> Any:
        """Take the idle connection that was used last."""
        connection = idle_of(self).pop()
        in_use_of(self).add(connection)
        if watchers:
            connection.lent = time.monotonic(), 0.0
        connection.database, connection.policy = self.database, self.policy
        return connection

    def release_nowait(self, connection: Any) -> None:
        """Accept a connection back, once; ignore one of another pool."""
        self._accept(connection)

    async def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Return a connected connection in the pool's database; see the blocking pool's."""
        if not hasattr(self.connection_class, "is_reusable"):
            require_open(self)
            return await super().get_connection()  # type: ignore[misc]
        connection = await self.borrow()
        connection.handed_out = True
        if connection.entered is not self.database:
            try:
                await connection.enter()
            except BaseException:
                await self._drop(connection)
                raise
        return connection

    async def borrow(self) -> Any:
        """Return a connected connection in any database, an idle one if there is any."""
        began = time.monotonic()
        connection = self.get_idle()
        if connection is None:
            if not idle_of(self):
                self._require_few()
            connection = await self._get_or_connect(began)
        if watchers:
            connection.lent = (now := time.monotonic()), now - began
        return connection

    async def _get_or_connect(self, began: float) -> Any:
        self.policy.require_closed_breaker()
        while True:
            while idle_of(self) and not self.draining:
                connection = self._take()
                try:
                    if connection.is_reusable():
                        await connection.check_health()
                        if connection.is_connected:
                            return connection
                        self.drop_idle()
                except BaseException:
                    await self._drop(connection)
                    raise
                await self._drop(connection)
            require_open(self)
            try:
                connection = self.get_available_connection()
                break
            except MaxConnectionsError:
                if self.wait_seconds == 0:
                    raise
                await self._wait_for_room(began)
        try:
            await connection.connect()
            require_open(self)  # it may have been closed in the meantime
        except BaseException:
            await self._drop(connection)
            raise
        return connection

    async def _drop(self, connection: Any) -> None:
        """Close a connection that was in use, and forget it."""
        in_use_of(self).discard(connection)
        self._wake_one()
        await connection.disconnect(nowait=True)

    def pending(self) -> int:
        """Return how many callers wait for a connection."""
        return len(self._waiting)

    async def _wait_for_room(self, began: float) -> None:
        """Wait until a connection is released or can be made, or it is time to poll."""
        woken = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            async with asyncio.timeout(self._left_to_wait(began)):
                await woken
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():  # pass it on
                self._wake_one()
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(woken)

    def _wake_one(self) -> None:
        while self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def make_connection(self) -> Any:
        """Return a new connection, which is not connected yet."""
        self._separate_if_changed()
        return self._equipped(super().make_connection())  # type: ignore[misc]

    def get_available_connection(self) -> Any:
        """Return a connection, perhaps not connected; MaxConnectionsError if all are in use."""
        if not idle_of(self) and len(in_use_of(self)) >= self.max_connections:
            raise too_many(self.max_connections)
        if self.draining:  # its connections are for one use
            self._make_room()
            connection = self.make_connection()
            in_use_of(self).add(connection)
            return connection
        return super().get_available_connection()  # type: ignore[misc]

    async def release(self, connection: Any) -> None:
        """Accept a connection back, once; ignore one of another pool."""
        self.release_nowait(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections; on request also those in use, and to Sentinels."""
        self.separate()
        await self._disconnect(inuse_connections)
        for pool in self.below if inuse_connections and self.origin is None else ():
            await pool.disconnect()

    async def _disconnect(self, inuse_connections: bool = True) -> None:
        idle = [*idle_of(self)]
        idle_of(self).clear()
        await asyncio.gather(*(each.disconnect() for each in idle), return_exceptions=True)
        await super().disconnect(inuse_connections)  # type: ignore[misc]

    async def close_for_good(self) -> None:
        """Close every connection, and open no other; calls in flight raise ClosedError."""
        self.closed = self.draining = True
        for connection in list(in_use_of(self)):
            connection.closed = True
        while self._waiting:
            self._wake_one()
        self.stop_listening()
        await self._disconnect()
        for pool in self.below:
            await pool.close_for_good()

    def _accept(self, connection: Any) -> bool:
        if connection not in in_use_of(self):
            require_lent(connection)
            if self.origin is not None:  # lent before they separated
                self.origin.release_nowait(connection)
            return False
        in_use_of(self).remove(connection)
        if connection.handed_out:
            connection = connection.passed_on()
        if watchers:
            self._tell_use(connection)
        self._wake_one()
        unusable = connection.unusable
        if unusable:
            self.drop_idle()
        if self.draining or unusable or connection.ends:
            close_connection_now(connection)
            return True
        idle = idle_of(self)
        connection.idle_since = now = time.monotonic()
        idle.append(connection)
        if len(idle) > 1 and idle[0].idle_since < now - IDLE_SECONDS:
            close_connection_now(idle.pop(0))
        return True


_numbers = count()
_live_pools: weakref.WeakSet[Any] = weakref.WeakSet()


def live_pools() -> list[Any]:
    """Return all pools of this process with connections of their own, blocking and awaiting."""
    return [pool for pool in list(_live_pools) if not pool.shares]


def too_many(limit: int, waited: float | None = None) -> MaxConnectionsError:
    """Return the error of a pool whose connections are all in use, perhaps after a wait."""
    if waited is not None:
        return MaxConnectionsError(
            f"Too many connections: {limit} are in use, and none was released within "
            f"{waited:.3g} seconds. Use fewer at once, or set a larger blocking_pool size in the "
            "entry"
        )
    return MaxConnectionsError(
        f"Too many connections: {limit} are in use. Use fewer at once, or set a higher "
        "max_connections in the entry"
    )


class _Sweep:
    """Closes long-idle connections of blocking pools when some connection is released.

    So a pool does not keep a connection for each of many former threads. It needs no thread.
    """

    due = 0.0

    def run(self, now: float) -> None:
        self.due = now + SWEEP_SECONDS
        left = MOST_PER_SWEEP
        with suppress(RuntimeError):  # another thread is making a pool; the next sweep does it
            for pool in list(_live_pools):
                if isinstance(pool, _ReusingPool):
                    left -= pool.trim(now - IDLE_SECONDS, left)


_sweep = _Sweep()


class Pool(_ReusingPool, redis.ConnectionPool):
    """redis-py's pool, quicker and able to drain."""


def require_lent(connection: Any) -> None:
    """Refuse a connection that its user has released, unless an exception has interrupted that."""
    if getattr(connection, "released", False) and sys.exception() is None:
        raise released_error()


def _close_if_replaced(connection: Any, pool: Any) -> None:
    """Have a connection closed before its next use if it does not lead to the current master."""
    if pool.master_address != (connection.host, connection.port):
        connection.mark_for_reconnect()


def _pools_over(pool: Any) -> list[Any]:
    """Return a pool and those that share or have shared its connections."""

    def origin(each: Any) -> Any:
        while each.origin is not None:
            each = each.origin
        return each

    return [each for each in list(_live_pools) if origin(each) is pool]


class _OverSentinels:
    """What Sentinel pools of both faces share."""

    sentinel_manager: Any
    switches: int

    @property
    def below(self) -> list[Any]:
        """The pools of connections to the Sentinels."""
        return [client.connection_pool for client in self.sentinel_manager.sentinels]

    def _leave_master(self, successor: tuple[str, int] | None) -> None:
        """Leave a master: close idle connections now, others when they are released.

        ``successor`` is None as long as the replica has not confirmed its role.
        """
        asking: Any = getattr(self, "proxy", self)
        if successor is not None and asking.master_address == successor:
            return
        self.switches += 1
        asking.master_address = None
        for pool in _pools_over(self):
            with pool._guard:
                for connection in in_use_of(pool):
                    connection.ends = True
            pool.drop_idle()


class SentinelPool(_OverSentinels, _ReusingPool, sentinel.SentinelConnectionPool):
    """redis-py's Sentinel pool, quicker and able to drain."""

    leave_master = _OverSentinels._leave_master

    def release(self, connection: Any) -> None:
        """Accept a connection back, once; close it if the Sentinels have named another master."""
        if connection in self._in_use:
            _close_if_replaced(connection, self.way)
        super().release(connection)


class AsyncPool(_AsyncReusingPool, aioredis.ConnectionPool):
    """The awaiting pool, quicker and able to drain."""


class AsyncSentinelPool(_OverSentinels, _AsyncReusingPool, aiosentinel.SentinelConnectionPool):
    """The awaiting Sentinel pool, quicker and able to drain."""

    _loop: asyncio.AbstractEventLoop

    def listen(self) -> None:
        """Hear of failovers from now on."""
        self._loop = asyncio.get_running_loop()
        super().listen()

    def leave_master(self, successor: tuple[str, int] | None) -> None:
        """Leave a master, in the pool's event loop; see the blocking pool's."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._leave_master, successor)

    def _accept(self, connection: Any) -> bool:
        """Accept a connection back; close it if the Sentinels have named another master."""
        if connection in in_use_of(self):
            # The pool of the way asks the Sentinels for those that share, too.
            _close_if_replaced(connection, self.way)
        return super()._accept(connection)
