"""The health of a kit's shards, and an endpoint for probes.

::

    kit.health().ok                             # on an async kit: (await kit.health()).ok
    app = shardkit.network.health.asgi(kit)     # or wsgi(kit)
        GET …/live   200 unless the kit is closed
        GET …/ready  200 if enough shards are reachable, 503 otherwise; both with JSON
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from redis.exceptions import NoPermissionError

from shardkit.config.component import Component
from shardkit.errors import ClosedError, ConfigServerError, InvalidArgumentError
from shardkit.network.connections.policy import policy_of
from shardkit.network.rights import missing_right
from shardkit.network.survey import ServerFacts
from shardkit.network.topology.cache import Outcomes, Topology
from shardkit.operations.arguments import Seconds, check_public, check_seconds, is_number, shown
from shardkit.operations.commands import Shard
from shardkit.operations.deadlines import DeadlineBlock
from shardkit.operations.server_errors import meaning
from shardkit.operations.steps import arun_steps, run_steps

__all__ = ["Health", "ShardHealth", "asgi", "wsgi"]

TIMEOUT = 2.0
Threshold: TypeAlias = Literal["all", "any"] | float


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """The health of one shard's server; for a cluster, of all its masters together.

    Attributes:
        shard: ``unique:7``.
        address: the server, ``a.internal:6379/1``.
        reachable: whether the server answered in time.
        error: why the server did not answer.
        latency: how long a PING took, in seconds.
        role: ``master``, ``replica`` or ``cluster``.
        replication_lag: bytes by which the slowest replica lags its master, or this server if it is
            a replica; None without replicas, or if the link is down.
        memory: bytes in use.
        max_memory: the limit in bytes; 0 for none.
        breaker: the circuit breaker: ``closed``, ``open`` or ``off``.
        unknown: why role, lag and memory of a reachable server are unknown.
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
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a kit.

    Attributes:
        shards: the health of each shard.
        ages: by component, the seconds since its entries were read.
        broken: by component, why it cannot be used.
        saved: the components whose entries come from the disk, as the config server is away.
    """

    shards: tuple[ShardHealth, ...]
    ages: Mapping[str, float]
    broken: Mapping[str, str]
    saved: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every shard is reachable and every component usable."""
        return not self.broken and all(shard.reachable for shard in self.shards)

    def ready(self, components: Collection[str] = (), threshold: Threshold = "any") -> bool:
        """Whether enough shards are reachable.

        Args:
            components: the components that count; by default all.
            threshold: ``all``, ``any``, or the share of their shards that must be reachable, above
                0 and up to 1. A component that cannot be used counts as a shard.
        """
        share = checked_share(threshold)
        counts = self.counts(components).values()
        reachable, total = (sum(row) for row in zip(*counts, strict=True)) if counts else (0, 0)
        return reachable >= share * total and (reachable > 0 or not total)

    def counts(self, components: Collection[str] = ()) -> dict[str, tuple[int, int]]:
        """Return how many shards of components are reachable, and how many there are."""
        counts: dict[str, tuple[int, int]] = dict.fromkeys(components, (0, 1))
        for name in self.broken:
            if not components or name in components:
                counts[name] = (0, 1)
        for name in self.ages:
            if not components or name in components:
                own = [s.reachable for s in self.shards if s.shard.partition(":")[0] == name]
                counts[name] = (sum(own), len(own))
        return counts

    def as_dict(self) -> dict[str, Any]:
        """Return the health as plain data, for JSON."""
        return {"ok": self.ok, **asdict(self)}


def checked_share(threshold: Threshold) -> float:
    """Return the share of shards that a threshold demands; 0 for any one of them."""
    if threshold in ("all", "any"):
        return float(threshold == "all")
    if is_number(threshold) and 0 < threshold <= 1:
        return float(threshold)
    raise InvalidArgumentError(
        f"threshold={shown(threshold)}", "give all, any, or a share above 0 and up to 1"
    )


def health_of(kit: Any, seconds: float) -> Health:
    """Return the health of a blocking kit; asks the servers in threads, each for ``seconds``."""
    try:
        with DeadlineBlock(seconds):
            outcomes = {name: _outcome(kit.topology, name) for name in kit.components()}
    except ConfigServerError:  # nothing lists the components
        if not (outcomes := kit.topology.known()):
            raise
    targets = _targets(outcomes)

    def probe(target: tuple[Component, Shard]) -> ShardHealth:
        return run_steps(_probe(kit.clients.get, *target, seconds), lambda answer: answer)

    try:
        # A thread for each, so that no server waits for others that do not answer.
        with ThreadPoolExecutor(len(targets) or 1, "shardkit-health") as threads:
            results = list(threads.map(probe, targets))
    except RuntimeError:  # no thread starts after the main one has ended, or beyond a limit
        results = list(map(probe, targets))
    return _health(kit, outcomes, zip(targets, results, strict=True))


async def ahealth_of(kit: Any, seconds: float) -> Health:
    """Return the health of an async kit; asks the servers in tasks, each for ``seconds``."""
    try:
        with DeadlineBlock(seconds):
            outcomes: Outcomes = await kit.topology.aload(await kit.components())
    except ConfigServerError:  # nothing lists the components
        if not (outcomes := kit.topology.known()):
            raise

    async def provide(answer: Any) -> Any:
        return await answer

    targets = _targets(outcomes)
    probes = [_probe(kit.clients.aget, *target, seconds) for target in targets]
    results = await asyncio.gather(*(arun_steps(probe, provide) for probe in probes))
    return _health(kit, outcomes, zip(targets, results, strict=True))


def _probe(
    get: Callable[..., Any], component: Component, shard: Shard, seconds: float
) -> Generator[Any, Any, ShardHealth]:
    """Ask one server; yields what redis-py's methods return, and is sent their values."""
    client: Any = None
    address = component.entry_of(shard).address
    made = partial(ShardHealth, str(shard), address)
    try:
        with DeadlineBlock(seconds):
            client = get(component, shard.number, raw=False)
            # A cluster's client asks its masters.
            nodes = {"target_nodes": client.PRIMARIES} if hasattr(client, "PRIMARIES") else {}
            started = time.perf_counter()
            yield client.ping(**nodes)
            latency = time.perf_counter() - started
            try:
                info = yield client.info(**nodes)
            except NoPermissionError as error:
                unknown = missing_right(error, "health", address, shard)
                return made(True, latency=latency, breaker=_breaker(client), unknown=unknown)
            return made(True, latency=latency, breaker=_breaker(client), **_facts_of(info))
    except Exception as error:  # a credential provider may raise any
        error = getattr(error, "error", None) or error  # without the names of shard and server
        known = meaning(error)
        text = known.text if known else str(error) or repr(error)
        return made(False, error=text, breaker=_breaker(client))


def _outcome(topology: Topology, name: str) -> Component | Exception:
    try:
        return topology.component(name)
    except Exception as error:
        return error


def _targets(outcomes: Outcomes) -> list[tuple[Component, Shard]]:
    targets: dict[str, tuple[Component, Shard]] = {}
    for component in outcomes.values():
        if isinstance(component, ClosedError):
            raise component
        if isinstance(component, Component):
            for shard, entry in component.entries():
                targets.setdefault(entry.address, (component, shard))
    return list(targets.values())


def _health(
    kit: Any,
    outcomes: Outcomes,
    results: Iterable[tuple[tuple[Component, Shard], ShardHealth]],
) -> Health:
    by_address = {component.entry_of(shard).address: state for (component, shard), state in results}
    shards, ages, broken = [], {}, {}
    for name, component in outcomes.items():
        if isinstance(component, Exception):
            broken[name] = str(component)
            continue
        ages[name] = kit.topology.age(name)
        for shard, entry in component.entries():
            fields = asdict(by_address[entry.address])
            shards.append(ShardHealth(**{**fields, "shard": str(shard)}))
    return Health(tuple(shards), ages, broken, tuple(kit.topology.from_disk()))


def _facts_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ShardHealth` that INFO tells."""
    whole = bool(info) and all(
        isinstance(node, Mapping) and "role" in node for node in info.values()
    )
    nodes = [ServerFacts(info=node) for node in (info.values() if whole else [info])]
    role = str(info.get("role", "")).replace("slave", "replica")
    lags = [lag for node in nodes if (lag := node.replication_lag) is not None]
    return {
        "role": "cluster" if whole else role,
        "replication_lag": max(lags, default=None),
        "memory": sum(node.info.get("used_memory", 0) for node in nodes),
        "max_memory": sum(node.info.get("maxmemory", 0) for node in nodes),
    }


def _breaker(client: Any) -> str:
    breaker = policy_of(client).breaker if client is not None else None
    return "off" if breaker is None else breaker.state


# ---- endpoints


def asgi(
    kit: Any = None,
    timeout: Seconds = TIMEOUT,
    *,
    components: str | Collection[str] = (),
    threshold: Threshold = "any",
    details: bool = False,
) -> Callable[..., Awaitable[None]]:
    """Return an ASGI application that answers probes: ``/live`` and ``/ready``.

    Args:
        kit: a blocking or an async kit, or a function that returns it, or None while there is none;
            by default the kit of `shardkit.integrations.asgi.lifespan`.
        timeout: seconds to wait for a server.
        components: the components that the application needs; by default all of the kit.
        threshold: ``any`` (the default), ``all``, or the share of their shards that must be
            reachable, above 0 and up to 1. With ``all``, one dead shard takes every process out.
        details: whether ``/ready`` shows each shard with its address, and errors. By default it
            shows the numbers of shards only, because anybody may ask.

    Raises:
        InvalidArgumentError: the threshold is none of these.
    """
    probe = _Probe(components, threshold, details)
    seconds = check_seconds("health", "timeout", timeout)

    async def app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            return
        served = kit_in(scope) if kit is None else _kit(kit)
        if scope["path"].rstrip("/").endswith("/live"):
            status, body = _live(served)
        elif served is not None and inspect.iscoroutinefunction(served.health):
            try:
                status, body = probe.answer(await served.health(seconds))
            except Exception as error:
                status, body = probe.failure(error)
        else:
            try:
                status, body = await asyncio.to_thread(probe.ask, served, seconds)
            except RuntimeError:  # as in `health_of`
                status, body = probe.ask(served, seconds)
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    return app


def wsgi(
    kit: Any,
    timeout: Seconds = TIMEOUT,
    *,
    components: str | Collection[str] = (),
    threshold: Threshold = "any",
    details: bool = False,
) -> Callable[..., list[bytes]]:
    """Return a WSGI application that answers probes for a blocking kit; see `asgi`.

    ``kit`` may be a function that returns the kit, or None while there is none.
    """
    probe = _Probe(components, threshold, details)
    seconds = check_seconds("health", "timeout", timeout)

    def app(environ: Mapping[str, Any], start_response: Any) -> list[bytes]:
        is_live = environ.get("PATH_INFO", "").rstrip("/").endswith("/live")
        served = _kit(kit)
        status, body = _live(served) if is_live else probe.ask(served, seconds)
        line = {200: "200 OK", 503: "503 Service Unavailable"}[status]
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        start_response(line, headers)
        return [json.dumps(body).encode()]

    return app


def kit_in(scope: Mapping[str, Any]) -> Any:
    """Return the kit that `shardkit.integrations.asgi.lifespan` has opened; None without one."""
    kit = scope.get("state", {}).get("shardkit")
    if kit is None:
        kit = getattr(getattr(scope.get("app"), "state", None), "shardkit", None)
    return kit


def _kit(given: Any) -> Any:
    return given() if callable(given) else given


def _live(kit: Any) -> tuple[int, dict[str, Any]]:
    closed = kit is not None and kit.topology.closed
    return (503 if closed else 200), {"ok": not closed}


class _Probe:
    def __init__(
        self, components: str | Collection[str], threshold: Threshold, details: bool
    ) -> None:
        checked_share(threshold)
        self._components = [components] if isinstance(components, str) else list(components)
        self._threshold = threshold
        self._details = details

    def ask(self, kit: Any, timeout: float) -> tuple[int, dict[str, Any]]:
        try:
            return self.answer(kit.health(timeout)) if kit is not None else (503, {"ok": False})
        except Exception as error:
            return self.failure(error)

    def answer(self, health: Health) -> tuple[int, dict[str, Any]]:
        ready = health.ready(self._components, self._threshold)
        counts = health.counts(self._components).items()
        shown = {name: {"reachable": some, "shards": of} for name, (some, of) in counts}
        body = health.as_dict() if self._details else {"components": shown}
        return (200 if ready else 503), {**body, "ok": ready}

    def failure(self, error: Exception) -> tuple[int, dict[str, Any]]:
        kind = type(error).__name__
        return 503, {"ok": False, "error": str(error) if self._details else kind}


check_public(globals())
