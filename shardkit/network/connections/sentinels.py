"""Finds the master of a service: asks several Sentinels, and then the server itself.

A Sentinel that was cut off names the former master for as long as that lasts. So all that answer
are asked, the master with the highest ``config-epoch`` comes first, and a server that is a replica
by its ROLE is passed over.

A thread for each Sentinel hears of failovers (``+switch-master``), for all pools of the process.
The former master takes writes until it is told that it is a replica, seconds later, and these are
lost. So each pool leaves it at once: idle connections close, others when they are released.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit import log_records
from shardkit.network.connections.databases import DatabaseMovedError
from shardkit.network.connections.redis_private import PREVIOUS_MASTER, str_if_bytes
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.steps import arun_steps, run_steps

Address: TypeAlias = tuple[str, int]
_LOST = (ConnectionError, TimeoutError)
_BEAT = 2.0  # seconds without a message after which a Sentinel must answer a PING
_PAUSE = 4.0  # seconds before a Sentinel is tried again
_SWITCHED = "+switch-master"

logger = logging.getLogger("shardkit")


class _Manager:
    """What the blocking and the awaiting manager share."""

    sentinels: list[Any]
    not_found: type[Exception]

    def __init__(self) -> None:
        super().__init__([])  # type: ignore[call-arg]
        self._silent: set[Any] = set()  # those that did not answer last time

    def _ask(self, service: str) -> Generator[Any, Any, list[Address]]:
        """Yield Sentinels, be sent their answers; return the masters, the likeliest first.

        Silent ones come last, and are not asked if most of the others answer.

        Raises:
            MasterNotFoundError: none names a master.
        """
        votes: Counter[tuple[int, Address]] = Counter()
        errors, answered = [], 0
        for client in sorted(self.sentinels, key=self._silent.__contains__):
            if client in self._silent and 2 * answered > len(self.sentinels):
                break
            answer: Mapping[str, Any] | Exception = yield client
            if isinstance(answer, Exception):
                self._silent.add(client)
                errors.append(f"{client} - {answer!r}")
                continue
            self._silent.discard(client)
            answered += 1
            state = answer.get(service)
            if state and self.check_master_state(state, service):  # type: ignore[attr-defined]
                votes[state.get("config-epoch", 0), (state["ip"], state["port"])] += 1
        if not votes:
            more = f" : {', '.join(errors)}" if errors else ""
            raise self.not_found(f"No master found for {service!r}{more}")
        ranked = sorted(votes, key=lambda named: (named[0], votes[named]), reverse=True)
        return list(dict.fromkeys(address for _, address in ranked))


class SentinelManager(_Manager, sentinel.Sentinel):
    """The Sentinels of a service, blocking."""

    not_found = sentinel.MasterNotFoundError

    def masters(self, service: str) -> list[Address]:
        """Return the masters that Sentinels name, the likeliest first."""

        def ask(client: Any) -> Any:
            try:
                return client.sentinel_masters()
            except _LOST as error:
                return error

        return run_steps(self._ask(service), ask)

    def discover_master(self, service_name: str) -> Address:
        """Return the likeliest master."""
        return self.masters(service_name)[0]


class AsyncSentinelManager(_Manager, aiosentinel.Sentinel):
    """The Sentinels of a service, awaiting."""

    not_found = aiosentinel.MasterNotFoundError

    async def masters(self, service: str) -> list[Address]:
        """Return the masters that Sentinels name, the likeliest first."""

        async def ask(client: Any) -> Any:
            try:
                return await client.sentinel_masters()
            except _LOST as error:
                return error

        return await arun_steps(self._ask(service), ask)


class SentinelListener:
    """Tells the pools of a process which masters a Sentinel has replaced, in a thread.

    The thread starts with the first pool, and ends with the last. ``connect`` makes a connection to
    the Sentinel, which is not connected yet.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._pools: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.RLock()  # a pool may be collected by whoever holds it
        self._ended: threading.Event | None = None  # of the current thread
        self._connection: Any = None
        renewed_in_children(self)

    def join(self, pool: Any) -> None:
        """Have a pool told from now on, until it leaves or is collected."""
        with self._lock:
            if pool in self._pools:
                return
            self._pools.add(pool)
            weakref.finalize(pool, self._end_if_alone).atexit = False
            if self._ended is not None:
                return
            self._ended = ended = threading.Event()
        name = "shardkit-sentinel"
        try:
            threading.Thread(target=self._run, args=(ended,), name=name, daemon=True).start()
        except RuntimeError:  # no more threads can be started
            self._ended = None
            self._pools.discard(pool)

    def leave(self, pool: Any) -> None:
        """Tell a pool no more."""
        with self._lock:
            self._pools.discard(pool)
            self._end_if_alone()

    def _end_if_alone(self) -> None:
        with self._lock:
            ended, connection = self._ended, self._connection
            if ended is None or list(self._pools):
                return
            self._ended = None
            ended.set()
        if connection is not None:
            connection.shut_down()

    def _run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            connection = self._connect()
            try:
                connection.connect()
                connection.send_command("SUBSCRIBE", _SWITCHED)
                self._connection = connection
                while not ended.is_set():
                    self._read(connection)
            except (RedisError, OSError, ValueError) as error:
                if not ended.is_set():
                    about = log_records.fields(
                        "sentinel-feed-ended", sentinel=repr(connection), cause=str(error)
                    )
                    logger.debug(
                        "%r does not tell of failovers: %s", connection, error, extra=about
                    )
            except Exception:  # nobody is there to be told
                about = log_records.fields("sentinel-reader-failed", sentinel=repr(connection))
                logger.exception("%r cannot be read", connection, extra=about)
            finally:
                with suppress(RedisError, OSError):
                    connection.disconnect()
            ended.wait(_PAUSE)

    def _read(self, connection: Any) -> None:
        """Read a message; have the Sentinel answer if none comes."""
        if not connection.can_read(_BEAT):
            connection.send_command("PING", check_health=False)
        message = connection.read_response(timeout=_BEAT)
        if not isinstance(message, list) or str_if_bytes(message[0]) != "message":
            return
        service, *_, host, port = str_if_bytes(message[2]).split(" ")
        with self._lock:
            pools = [pool for pool in self._pools if pool.service_name == service]
        for pool in pools:
            pool.switch_master((host, int(port)))
        if pools:
            about = log_records.fields("master-switched", service=service, server=f"{host}:{port}")
            logger.info("sentinel:%s: the master is %s:%s now", service, host, port, extra=about)

    def after_fork(self) -> None:
        """Forget the parent's thread and connection in a forked child."""
        self._lock, self._ended, self._connection = threading.RLock(), None, None
        self._pools = weakref.WeakSet()


class HearsOfFailovers:
    """The part of a pool that Sentinels tell of new masters."""

    listeners: tuple[SentinelListener, ...] = ()
    switches = 0  # how many masters it has left
    draining: bool

    def listen(self) -> None:
        """Hear of failovers from now on."""
        for listener in () if self.draining else self.listeners:
            listener.join(self)

    def stop_listening(self) -> None:
        """Hear of no more failovers."""
        for listener in self.listeners:
            listener.leave(self)


class ToMaster:
    """A blocking connection to the first of the masters that is one."""

    connection_pool: Any

    def _connect_retry(self) -> None:
        if self.is_connected:  # type: ignore[attr-defined]
            return
        pool = self.connection_pool
        failure: Exception | None = None
        owner = pool.connection_pool_ref()
        if owner is not None:
            owner.listen()
        seen = getattr(owner, "switches", 0)
        for address in pool.sentinel_manager.masters(pool.service_name):
            try:
                self.connect_to(address)  # type: ignore[attr-defined]
                self._require_master()
            except DatabaseMovedError:
                raise
            except _LOST as error:
                failure = failure or error
                continue
            if getattr(owner, "switches", 0) != seen:  # the Sentinels were asked before that
                self.disconnect()  # type: ignore[attr-defined]
                self._connect_retry()
                return
            if pool.master_address != address:
                pool.master_address = address
                if owner is not None:
                    owner.disconnect(inuse_connections=False)
            return
        assert failure is not None
        raise failure

    def _require_master(self) -> None:
        try:
            self.send_command("ROLE", check_health=False)  # type: ignore[attr-defined]
            role = self.read_response()[0]  # type: ignore[attr-defined]
        except ResponseError:
            return  # its user may not ask
        if str_if_bytes(role) != "master":
            self.disconnect()  # type: ignore[attr-defined]
            raise ConnectionError(PREVIOUS_MASTER)


class AsyncToMaster:
    """The awaiting connection; see `ToMaster`."""

    connection_pool: Any

    async def _connect_retry(self) -> None:
        if self.is_connected:  # type: ignore[attr-defined]
            return
        pool = self.connection_pool
        failure: Exception | None = None
        pool.listen()
        seen = pool.switches
        for address in await pool.sentinel_manager.masters(pool.service_name):
            try:
                await self.connect_to(address)  # type: ignore[attr-defined]
                await self._require_master()
            except DatabaseMovedError:
                raise
            except _LOST as error:
                failure = failure or error
                continue
            if pool.switches != seen:
                await self.disconnect(nowait=True)  # type: ignore[attr-defined]
                await self._connect_retry()
                return
            if pool.master_address != address:
                pool.master_address = address
                await pool.disconnect(inuse_connections=False)
            return
        assert failure is not None
        raise failure

    async def _require_master(self) -> None:
        try:
            await self.send_command("ROLE", check_health=False)  # type: ignore[attr-defined]
            role = (await self.read_response())[0]  # type: ignore[attr-defined]
        except ResponseError:
            return
        if str_if_bytes(role) != "master":
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise ConnectionError(PREVIOUS_MASTER)
