"""OpenTelemetry: spans and metrics of calls and commands, by the stable database conventions.

A call is a span, and below it each server that it asks. No span has a value, nor a key unless you
ask for them. What redis-py's own code sends for handed-out clients is hidden from
opentelemetry-instrumentation-redis while this is on, so that nothing is counted twice. See
docs/observability.md and https://opentelemetry.io/docs/specs/semconv/database/.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from shardkit import events
from shardkit.errors import RoutingError, extra, few
from shardkit.network.connections.policy import CallPolicy
from shardkit.network.connections.pool import live_pools, watchers
from shardkit.operations.arguments import check_integer, check_public
from shardkit.routing.command_keys import key_positions

with extra("otel", "traces and metrics of OpenTelemetry"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider

__all__ = ["instrument"]

# As the conventions say, in seconds.
_BUCKETS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10]
_DURATION, _CREATE = "db.client.operation.duration", "db.client.connection.create_time"
_WAIT, _USE = "db.client.connection.wait_time", "db.client.connection.use_time"
_QUEUE = "shardkit.queue.wait_time"
_TIMES = {
    _DURATION: "Duration of database client operations.",
    _CREATE: "The time it took to create a new connection.",
    _WAIT: "The time it took to obtain an open connection from the pool.",
    _USE: "The time between borrowing a connection and returning it to the pool.",
    _QUEUE: "How long commands waited to be written to a connection of many tasks.",
}
_POOL = "db.client.connection.pool.name"


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    keys: int = 0,
) -> Callable[[], None]:
    """Make spans and metrics of all that shardkit does in this process; return what ends it.

    Args:
        tracer_provider: where spans go; the global one by default.
        meter_provider: where metrics go; the global one by default.
        keys: how many of the keys of its commands a server's span has at most, as
            ``shardkit.keys``; none by default, because keys may contain secrets.
    """
    check_integer("otel", "keys", keys, 0, 2**31)
    telemetry = _Telemetry(
        trace.get_tracer("shardkit", tracer_provider=tracer_provider),
        metrics.get_meter("shardkit", meter_provider=meter_provider),
        keys,
    )
    unsubscribe = events.subscribe(telemetry)
    watchers.append(telemetry.used)
    before, events.hidden.make = events.hidden.make, _hidden

    def stop() -> None:
        telemetry.active = False
        unsubscribe()
        watchers.remove(telemetry.used)
        events.hidden.make = before

    return stop


@contextmanager
def _hidden() -> Iterator[None]:
    token = context.attach(context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
    try:
        yield
    finally:
        context.detach(token)


class _Telemetry:
    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter, keys: int) -> None:
        self.active = True
        self._tracer = tracer
        self._keys = keys
        self._times = {
            name: meter.create_histogram(
                name, unit="s", description=text, explicit_bucket_boundaries_advisory=_BUCKETS
            )
            for name, text in _TIMES.items()
        }
        meter.create_observable_up_down_counter(
            "db.client.connection.count",
            callbacks=[self._connections],
            unit="{connection}",
            description="The number of connections in the state described by the attribute.",
        )
        meter.create_observable_up_down_counter(
            "db.client.connection.pending_requests",
            callbacks=[self._pending],
            unit="{request}",
            description="The number of current pending requests for an open connection.",
        )

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.CommandsFinished):
            self._commands(event.sent, event.seconds, event.refused)
            if event.waited is not None:
                pool = event.sent.shard or event.sent.address
                self._times[_QUEUE].record(event.waited, {_POOL: pool})
        elif isinstance(event, events.CommandsFailed):
            self._commands(event.sent, event.seconds, False)
        elif isinstance(event, events.CallStarted):
            span = self._tracer.start_span(event.name, kind=SpanKind.INTERNAL)
            event.note = span, context.attach(trace.set_span_in_context(span))
        elif isinstance(event, events.CallFinished):
            if event.started.note is not None:
                span, token = event.started.note
                context.detach(token)
                if event.error is not None:
                    _mark(span, event.error)
                span.end()
        elif isinstance(event, events.ConnectionOpened):
            self._times[_CREATE].record(event.seconds, {_POOL: event.shard or event.address})

    def _commands(self, sent: events.CommandsSent, seconds: float, refused: bool) -> None:
        group = sent.group or [sent]
        if sent is not group[-1]:
            return  # one span for the exchange
        count = sum(event.count for event in group)
        error = next((event.error for event in group if event.error is not None), None)
        names = {event.name for event in group}
        name = names.pop() if len(names) == 1 else ""
        if count > 1:
            name = f"PIPELINE {name}".rstrip()
        attributes: dict[str, Any] = {
            "db.system.name": "redis",
            "db.operation.name": name,
            **_place(sent.address),
        }
        if len({event.address for event in group}) > 1:  # databases of the server
            del attributes["db.namespace"]
        if error is not None:
            attributes["error.type"] = _type(error)
        self._times[_DURATION].record(seconds, attributes)
        if count > 1:
            attributes["db.operation.batch.size"] = count
        attributes["shardkit.shard"] = few([event.shard for event in group], ", ")
        if refused:
            attributes["shardkit.refused"] = True
        if self._keys:
            commands = (args for event in group for args in event.commands_of())
            attributes["shardkit.keys"] = _keys(commands, self._keys)
        now = time.time_ns()
        span = self._tracer.start_span(
            f"{name} {attributes.get('db.namespace', '')}".rstrip(),
            kind=SpanKind.CLIENT,
            start_time=now - int(seconds * 1e9),
            attributes=attributes,
        )
        if error is not None:
            _mark(span, error)
        span.end(now)

    def used(self, policy: CallPolicy, waited: float, used: float) -> None:
        name = {_POOL: _pool_name(policy)}
        self._times[_WAIT].record(waited, name)
        self._times[_USE].record(used, name)

    def _pending(self, options: CallbackOptions) -> Iterable[Observation]:
        if not self.active:
            return
        counts: Counter[str] = Counter()
        for pool in live_pools():
            counts[_pool_name(pool.policy)] += pool.pending()
        for name, count in counts.items():
            yield Observation(count, {_POOL: name})

    def _connections(self, options: CallbackOptions) -> Iterable[Observation]:
        if not self.active:
            return
        counts: Counter[tuple[str, str]] = Counter()
        for pool in live_pools():
            for state, count in zip(("idle", "used"), pool.connections.counts(), strict=True):
                counts[_pool_name(pool.policy), state] += count
        for (name, state), count in counts.items():
            yield Observation(count, {_POOL: name, "db.client.connection.state": state})


def _pool_name(policy: CallPolicy) -> str:
    return str(policy.shard or policy.address)


def _keys(commands: Iterable[Sequence[Any]], most: int) -> list[str]:
    keys: dict[str, None] = {}
    for args in commands:
        try:
            positions = key_positions(args)
        except (RoutingError, TypeError):  # the server says what is wrong
            continue
        for key in (args[position] for position in positions):
            text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
            keys[text] = None
        if len(keys) >= most:
            break
    return list(keys)[:most]


def _mark(span: trace.Span, error: BaseException) -> None:
    """Say in a span that it failed, and why in one word: a message might have a key in it."""
    span.set_attribute("error.type", _type(error))
    span.set_status(Status(StatusCode.ERROR, _type(error)))


def _type(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


@lru_cache(4096)
def _place(address: str) -> dict[str, Any]:
    """Return the attributes of a server's address, ``a.internal:6379/1``."""
    match = re.fullmatch(r"(?:cluster node |cluster:)?\[?(.*?)\]?:(\d+)(?:/(\d+))?", address)
    if match is None:
        server, _, number = address.rpartition("/")
        if number.isdigit():
            return {"server.address": server, "db.namespace": number}
        return {"server.address": address}
    return {
        "server.address": match[1],
        "server.port": int(match[2]),
        "db.namespace": match[3] or "0",
    }


check_public(globals())
