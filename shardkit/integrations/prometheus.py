"""Prometheus: what shardkit does as metrics of prometheus_client, with few labels.

Labels are components, shards and names of commands, never keys. Beyond a limit of different values
they say ``other``, so that the number of time series is bounded. See docs/observability.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from shardkit import events
from shardkit.errors import extra
from shardkit.network.connections.policy import CallPolicy
from shardkit.network.connections.pool import watchers
from shardkit.operations.arguments import check_integer, check_public

with extra("prometheus", "metrics of Prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["instrument"]

T = TypeVar("T")

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


def instrument(
    registry: CollectorRegistry = REGISTRY, *, max_shards: int = 256, max_names: int = 200
) -> Callable[[], None]:
    """Count all that shardkit does in this process; return what unregisters the metrics.

    Args:
        registry: where the metrics are registered.
        max_shards: the first ``max_shards`` shards have labels; all further ones are ``other``.
        max_names: the same of commands, calls, errors and servers.
    """
    metrics = _Metrics(registry, max_shards, max_names)
    unsubscribe = events.subscribe(metrics)
    watchers.append(metrics.used)

    def stop() -> None:
        unsubscribe()
        watchers.remove(metrics.used)
        for metric in metrics.all:
            registry.unregister(metric)

    return stop


class _LabelValues:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= self._limit:
                return "other"
            self._known.add(value)
        return value


class _Metrics:
    def __init__(self, registry: CollectorRegistry, max_shards: int, max_names: int) -> None:
        check_integer("prometheus", "max_shards", max_shards, 0, 2**31)
        check_integer("prometheus", "max_names", max_names, 0, 2**31)
        self._shard = _LabelValues(max_shards)
        self._command, self._call = _LabelValues(max_names), _LabelValues(max_names)
        self._error, self._server = _LabelValues(max_names), _LabelValues(max_names)
        on_shard = ["component", "shard"]
        self.all: list[Any] = []

        def metric(kind: type[T], name: str, text: str, *labels: str, **options: Any) -> T:
            metric = kind(f"shardkit_{name}", text, labels, registry=registry, **options)  # type: ignore[call-arg]
            self.all.append(metric)
            return metric

        timed = partial(metric, Histogram, buckets=_BUCKETS)
        sending = "From sending commands to a server to their last reply"
        self._requests = timed("request_duration_seconds", sending, *on_shard)
        calling = "Calls of operations, pipelines and routers"
        self._calls = timed("call_duration_seconds", calling, "call")
        waiting = "How long callers waited for a connection"
        self._waits = timed("connection_wait_seconds", waiting, *on_shard)
        queued = "How long commands waited to be written to a connection that tasks share"
        self._queue_waits = timed("queue_wait_seconds", queued, *on_shard)
        several = "Commands sent; those of a batch of several kinds as 'several'"
        self._commands = metric(Counter, "commands", several, "component", "command")
        failing = "Requests without replies"
        self._failures = metric(Counter, "request_failures", failing, *on_shard, "error")
        self._retries = metric(Counter, "commands_retried", "Commands sent again")
        self._opened = metric(Counter, "connections_opened", "Connections made", *on_shard)
        self._closed = metric(Counter, "connections_closed", "Connections closed", *on_shard)
        self._breakers = metric(Gauge, "breaker_open", "1 while a breaker is open", "server")

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.CommandsSent):
            command = self._command(event.name or "several")
            self._commands.labels(self._labels(event.shard)[0], command).inc(event.count)
        elif isinstance(event, events.CommandsFinished):
            labels = self._labels(event.sent.shard)
            self._requests.labels(*labels).observe(event.seconds)
            if event.waited is not None:
                self._queue_waits.labels(*labels).observe(event.waited)
        elif isinstance(event, events.CommandsFailed):
            error = self._error(type(event.error).__name__)
            self._failures.labels(*self._labels(event.sent.shard), error).inc()
        elif isinstance(event, events.CommandsRetried):
            self._retries.inc(event.count)
        elif isinstance(event, events.CallFinished):
            self._calls.labels(self._call(event.name)).observe(event.seconds)
        elif isinstance(event, events.ConnectionOpened):
            self._opened.labels(*self._labels(event.shard)).inc()
        elif isinstance(event, events.ConnectionClosed):
            self._closed.labels(*self._labels(event.shard)).inc()
        elif isinstance(event, events.BreakerOpened):
            self._breakers.labels(self._server(event.address)).set(1)
        elif isinstance(event, events.BreakerClosed):
            self._breakers.labels(self._server(event.address)).set(0)

    def used(self, policy: CallPolicy, waited: float, used: float) -> None:
        self._waits.labels(*self._labels(str(policy.shard or policy.address))).observe(waited)

    def _labels(self, shard: str) -> tuple[str, str]:
        """Return a shard's component and number; both ``other`` beyond the limit."""
        if self._shard(shard) == "other":
            return "other", "other"
        component, _, number = shard.rpartition(":")
        return (component, number) if component and number.isdigit() else (shard, "")


check_public(globals())
