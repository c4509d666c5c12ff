"""Health of a kit's shards, and a tiny endpoint for probes.

::

    kit.health().ok                             # await kit.health() of an async kit
    app = shardkit.network.health.asgi(kit)             # or wsgi(kit)
        GET …/live   200 while the process runs and the kit is open
        GET …/ready  200 if every shard is reachable, 503 otherwise; both with JSON
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from redis.exceptions import RedisError

from shardkit.config.component import Component
from shardkit.errors import ClosedError, ShardKitError
from shardkit.network.connections.policy import policy_of
from shardkit.network.survey import ServerFacts
from shardkit.operations.commands import Shard
from shardkit.operations.deadlines import DeadlineBlock
from shardkit.operations.server_errors import meaning

__all__ = ["Health", "ShardHealth", "asgi", "wsgi"]

TIMEOUT = 2.0
_THREADS = 16


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """The health of one shard's server; of a cluster that of all its masters together.

    Attributes:
        shard: ``unique:7``.
        address: the server, ``a.internal:6379/1``.
        reachable: whether it answered in time.
        error: why it did not answer.
        latency: the duration of a PING, in seconds.
        role: ``master``, ``replica`` or ``cluster``.
        replication_lag: the bytes that this replica, or the slowest replica of this master, lags;
            None if there is none, or its link is down.
        memory: the bytes that it uses.
        max_memory: its limit; 0 for none.
        breaker: ``closed``, ``open`` or ``off``.
    """

    shard: str
    address: str
    reachable: bool
    error: str = ""
    latency: float | None = None
    role: str = ""
    replication_lag: int | None = None
    memory: int | None = None
    max_memory: int | None = None
    breaker: str = "off"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a kit.

    Attributes:
        shards: each shard's.
        ages: by component, the seconds since its entries were read.
        broken: by component, why it cannot be used.
    """

    shards: tuple[ShardHealth, ...]
    ages: Mapping[str, float]
    broken: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether every shard is reachable and every component usable."""
        return not self.broken and all(shard.reachable for shard in self.shards)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {"ok": self.ok, **asdict(self)}


def health_of(kit: Any, seconds: float) -> Health:
    """Ask every server of a blocking kit, in threads."""
    components, broken = _components(kit.components(), kit.topology.component)
    distinct = _distinct(components)

    def ask(where: tuple[Component, Shard]) -> ShardHealth:
        component, shard = where
        client: Any = None
        try:
            with DeadlineBlock(seconds):
                client = kit.clients.get(component, shard.number, raw=False)
                started = time.perf_counter()
                client.ping(**_nodes(client))
                latency = time.perf_counter() - started
                return _healthy(component, shard, client, latency, client.info(**_nodes(client)))
        except (RedisError, OSError, ShardKitError) as error:
            return _failed(component, shard, client, error)

    with ThreadPoolExecutor(min(_THREADS, len(distinct) or 1), "shardkit-health") as threads:
        asked = list(threads.map(ask, distinct))
    return _health(kit, components, broken, asked)


async def ahealth_of(kit: Any, seconds: float) -> Health:
    """Ask every server of an async kit."""
    names = await kit.components()
    outcomes = await kit.topology.aload(names)

    def component_of(name: str) -> Component:
        component: Component | Exception = outcomes[name]
        if isinstance(component, Exception):
            raise component
        return component

    components, broken = _components(names, component_of)
    distinct = _distinct(components)

    async def ask(where: tuple[Component, Shard]) -> ShardHealth:
        component, shard = where
        client: Any = None
        try:
            with DeadlineBlock(seconds):
                client = kit.clients.aget(component, shard.number, raw=False)
                started = time.perf_counter()
                await client.ping(**_nodes(client))
                latency = time.perf_counter() - started
                info = await client.info(**_nodes(client))
                return _healthy(component, shard, client, latency, info)
        except (RedisError, OSError, ShardKitError) as error:
            return _failed(component, shard, client, error)

    asked = await asyncio.gather(*map(ask, distinct))
    return _health(kit, components, broken, asked)


def _components(
    names: Iterable[str], find: Callable[[str], Component]
) -> tuple[list[Component], dict[str, str]]:
    components, broken = [], {}
    for name in names:
        try:
            components.append(find(name))
        except ClosedError:
            raise
        except ShardKitError as error:
            broken[name] = str(error)
    return components, broken


def _distinct(components: Iterable[Component]) -> list[tuple[Component, Shard]]:
    """Return the shards to ask: of those at one address the first."""
    first: dict[str, tuple[Component, Shard]] = {}
    for component in components:
        for shard, entry in component.entries():
            first.setdefault(entry.address, (component, shard))
    return list(first.values())


def _health(
    kit: Any,
    components: Iterable[Component],
    broken: Mapping[str, str],
    asked: Iterable[ShardHealth],
) -> Health:
    by_address = {each.address: each for each in asked}
    shards, ages = [], {}
    for component in components:
        ages[component.name] = kit.topology.age(component.name)
        for shard, entry in component.entries():
            shards.append(replace(by_address[entry.address], shard=str(shard)))
    return Health(tuple(shards), ages, broken)


def _nodes(client: Any) -> dict[str, Any]:
    """Return the nodes that a cluster's client asks: its masters."""
    return {"target_nodes": client.PRIMARIES} if hasattr(client, "PRIMARIES") else {}


def _healthy(
    component: Component, shard: Shard, client: Any, latency: float, info: Mapping[str, Any]
) -> ShardHealth:
    is_cluster = bool(info) and all(
        isinstance(each, Mapping) and "role" in each for each in info.values()
    )
    nodes = [ServerFacts(info=each) for each in (info.values() if is_cluster else [info])]
    lags = [lag for node in nodes if (lag := node.replication_lag) is not None]
    return ShardHealth(
        str(shard),
        component.entry_of(shard).address,
        reachable=True,
        latency=latency,
        role="cluster" if is_cluster else str(info.get("role", "")).replace("slave", "replica"),
        replication_lag=max(lags, default=None),
        memory=sum(node.info.get("used_memory", 0) for node in nodes),
        max_memory=sum(node.info.get("maxmemory", 0) for node in nodes),
        breaker=_breaker(client),
    )


def _failed(component: Component, shard: Shard, client: Any, error: Exception) -> ShardHealth:
    known = meaning(error)
    address = component.entry_of(shard).address
    text = known.text if known else str(error)
    return ShardHealth(str(shard), address, reachable=False, error=text, breaker=_breaker(client))


def _breaker(client: Any) -> str:
    breaker = policy_of(client).breaker if client is not None else None
    if breaker is None:
        return "off"
    return "open" if breaker.opened else "closed"


# ---- endpoints


def asgi(kit: Any, timeout: float = TIMEOUT) -> Callable[..., Awaitable[None]]:
    """Return an ASGI application that answers probes: ``/live`` and ``/ready``.

    Args:
        kit: a kit of either face.
        timeout: how long to wait for a server, in seconds.
    """

    async def app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            return

        if scope["path"].rstrip("/").endswith("/live"):
            status, body = _live(kit)
        else:
            try:
                if inspect.iscoroutinefunction(kit.health):
                    status, body = _ready(await kit.health(timeout))
                else:
                    status, body = _ready(await asyncio.to_thread(kit.health, timeout))
            except ShardKitError as error:
                status, body = 503, {"ok": False, "error": str(error)}
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    return app


def wsgi(kit: Any, timeout: float = TIMEOUT) -> Callable[..., list[bytes]]:
    """Return a WSGI application that answers probes; see `asgi`. The kit is a blocking one."""

    def app(environ: Mapping[str, Any], start_response: Any) -> list[bytes]:
        if environ.get("PATH_INFO", "").rstrip("/").endswith("/live"):
            status, body = _live(kit)
        else:
            try:
                status, body = _ready(kit.health(timeout))
            except ShardKitError as error:
                status, body = 503, {"ok": False, "error": str(error)}
        line = {200: "200 OK", 503: "503 Service Unavailable"}[status]
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        start_response(line, headers)
        return [json.dumps(body).encode()]

    return app


def _live(kit: Any) -> tuple[int, dict[str, Any]]:
    return (503 if kit.topology.closed else 200), {"ok": not kit.topology.closed}


def _ready(health: Health) -> tuple[int, dict[str, Any]]:
    return (200 if health.ok else 503), health.as_dict()
