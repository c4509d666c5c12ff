"""Finds the master of a service: asks several Sentinels, and then the server itself.

A Sentinel that was cut off names the former master for as long as that lasts. So all that answer
are asked, the master with the highest ``config-epoch`` comes first, and a server that is a replica
by its ROLE is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any, TypeAlias

from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit.network.connections.greeting import DatabaseMovedError
from shardkit.network.connections.redis_private import PREVIOUS_MASTER, str_if_bytes
from shardkit.operations.steps import arun_steps, run_steps

Address: TypeAlias = tuple[str, int]
_LOST = (ConnectionError, TimeoutError)


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


class ToMaster:
    """A blocking connection to the first of the masters that is one."""

    connection_pool: Any

    def _connect_retry(self) -> None:
        if self.is_connected:  # type: ignore[attr-defined]
            return
        pool = self.connection_pool
        failure: Exception | None = None
        for address in pool.sentinel_manager.masters(pool.service_name):
            try:
                self.connect_to(address)  # type: ignore[attr-defined]
                self._require_master()
            except DatabaseMovedError:
                raise
            except _LOST as error:
                failure = failure or error
                continue
            if pool.master_address != address:
                pool.master_address = address
                owner = pool.connection_pool_ref()
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
        for address in await pool.sentinel_manager.masters(pool.service_name):
            try:
                await self.connect_to(address)  # type: ignore[attr-defined]
                await self._require_master()
            except DatabaseMovedError:
                raise
            except _LOST as error:
                failure = failure or error
                continue
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
