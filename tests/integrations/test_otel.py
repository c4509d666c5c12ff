"""OpenTelemetry and Prometheus: what is told of calls, once, without keys and values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from arranged import map_of
from faces import Face
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, generate_latest
from redis.exceptions import ResponseError

import shardkit
from shardkit import ShardMap, events
from shardkit.errors import ShardErrors
from shardkit.integrations import otel, prometheus
from shardkit.local import LocalServer
from shardkit.testing import MemoryServers


class Telemetry:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    @contextmanager
    def told(self, **options: Any) -> Iterator[Telemetry]:
        """Export what is done inside."""
        stop = otel.instrument(tracer_provider=self.tracers, meter_provider=self.meters, **options)
        try:
            yield self
        finally:
            stop()

    def spans(self) -> list[Any]:
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found

    def points(self, name: str) -> list[Any]:
        data: Any = self.reader.get_metrics_data()
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def of_pool(self, name: str, pool: str) -> list[Any]:
        """The points of a metric of connections, of one pool."""
        label = "db.client.connection.pool.name"
        return [point for point in self.points(name) if point.attributes[label] == pool]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with Telemetry().told() as found:
        yield found


@contextmanager
def counted(**options: Any) -> Iterator[CollectorRegistry]:
    """A registry of Prometheus for what is done inside."""
    registry = CollectorRegistry()
    stop = prometheus.instrument(registry, **options)
    try:
        yield registry
    finally:
        stop()


def times(registry: CollectorRegistry, name: str) -> tuple[float, float]:
    """How many times a histogram has of ``one``, and their sum."""
    labels = {"component": "one", "shard": ""}
    count, total = (
        registry.get_sample_value(f"shardkit_{name}_seconds_{end}", labels)
        for end in ("count", "sum")
    )
    assert count is not None
    assert total is not None
    return count, total


def test_an_operation_is_a_span_with_its_servers_below(face: Face, telemetry: Telemetry) -> None:
    users = face.kit.hash("SECRET-KEY", component="few")
    face.run(users.hset(mapping={n * 1000: "SECRET-VALUE" for n in range(20)}))
    telemetry.spans()
    face.run(users.hmget(*[n * 1000 for n in range(20)]))
    spans = telemetry.spans()
    [call] = [span for span in spans if span.name == "ShardedHash.hmget"]
    servers = [span for span in spans if span is not call]
    assert {span.attributes["shardkit.shard"] for span in servers} == {f"few:{n}" for n in range(4)}
    for span in servers:
        assert span.parent.span_id == call.context.span_id
        assert span.attributes["db.system.name"] == "redis"
        assert span.attributes["db.namespace"] == "10"
        assert span.attributes["server.address"]
        assert span.attributes["server.port"] > 0
        assert span.attributes["db.operation.name"].split()[-1] in ("HMGET", "HGET")
        assert call.start_time <= span.start_time <= span.end_time <= call.end_time
    assert "SECRET" not in "".join(span.to_json() for span in spans)


def test_databases_of_a_server_that_share_an_exchange_are_one_span(
    face: Face, telemetry: Telemetry
) -> None:
    face.run(face.kit.key_sharded("many").mget([str(n) for n in range(100)]))
    spans = [span for span in telemetry.spans() if span.kind.name == "CLIENT"]
    assert len({span.attributes["server.port"] for span in spans}) == len(spans) == 4
    assert sum(span.attributes["db.operation.batch.size"] for span in spans) == 100
    assert all("and 1 more" not in span.attributes["shardkit.shard"] for span in spans)


def test_a_pipeline_says_its_size_and_a_failure_its_type(face: Face, telemetry: Telemetry) -> None:
    pipe = face.kit.key_sharded("one").pipeline()
    for n in range(7):
        pipe.set(f"k{n}", n)
    face.run(pipe.execute())
    [request, call] = telemetry.spans()
    assert (request.name, call.name) == ("PIPELINE SET 0", "pipeline")
    assert request.attributes["db.operation.batch.size"] == 7
    users = face.kit.hash("h", component="one")

    async def late() -> None:
        async with face.kit.deadline(0):
            found = users.hget(7)
            if face.runner:
                await found

    with pytest.raises(ShardErrors) as failed:
        asyncio.run(late()) if face.runner is None else face.runner.run(late())
    assert "the deadline of 0 s has passed; the command was not executed" in str(failed.value)
    spans = telemetry.spans()
    assert not any(span.status.is_ok for span in spans)
    assert {span.attributes["error.type"].rpartition(".")[2] for span in spans} == {
        "DeadlineExceeded",
        "ShardsUnavailable",
    }


def test_a_refused_command_is_marked_and_after_the_end_nothing_is_told(face: Face) -> None:
    with Telemetry().told() as found:
        client: Any = face.run(face.kit.client("one"))
        face.run(client.set("text", "x"))
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            face.run(client.hget("text", "f"))
        assert [span.attributes.get("shardkit.refused") for span in found.spans()] == [None, True]
        assert found.points("db.client.connection.count")
    face.run(client.get("text"))
    assert found.spans() == []
    assert found.points("db.client.connection.count") == []
    assert found.points("db.client.connection.pending_requests") == []


def test_a_call_that_began_before_is_no_span() -> None:
    found = Telemetry()
    stop = events.subscribe(lambda event: None)
    with ExitStack() as telling, events.observed("call"):
        telling.enter_context(found.told())
        with events.observed("inner"):
            pass
    stop()
    stop()  # once more changes nothing
    assert [span.name for span in found.spans()] == ["inner"]


def test_prometheus_counts_what_was_sent_again() -> None:
    with counted() as registry:
        events.emit(events.CommandsRetried(3, 1))
        events.emit(events.CommandsRetried(2, 2))
        assert registry.get_sample_value("shardkit_commands_retried_total") == 5


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("a:6379/1", {"server.address": "a", "server.port": 6379, "db.namespace": "1"}),
        ("[::1]:6379/0", {"server.address": "::1", "server.port": 6379, "db.namespace": "0"}),
        ("cluster node a:7000", {"server.address": "a", "server.port": 7000, "db.namespace": "0"}),
        ("/run/redis.sock/3", {"server.address": "/run/redis.sock", "db.namespace": "3"}),
        ("main", {"server.address": "main"}),
    ],
)
def test_a_place_is_told_by_its_parts(address: str, place: dict[str, Any]) -> None:
    assert otel._place(address) == place


def test_nothing_is_counted_twice_beside_the_instrumentation_of_redis_py(
    face: Face, telemetry: Telemetry
) -> None:
    RedisInstrumentor().instrument(tracer_provider=telemetry.tracers)
    try:
        client: Any = face.kit.client("one")
        client = face.run(client)
        users = face.kit.hash("h", component="one")
        face.run(users.hset(7, "v"))
        telemetry.spans()
        face.run(client.set("k", 1))
        face.run(client.get("k"))
        face.run(client.blpop("none", timeout=0.01))
        face.run(client.pipeline().get("k").get("k").execute())
        face.run(users.hget(7))
        spans = telemetry.spans()
        assert {span.instrumentation_scope.name for span in spans} == {"shardkit"}
        commands = [span for span in spans if "db.operation.name" in span.attributes]
        names = [span.attributes["db.operation.name"] for span in commands]
        assert names == ["SET", "GET", "BLPOP", "PIPELINE GET", "HGET"]
        counted = telemetry.points("db.client.operation.duration")
        for name in {*names} - {"HGET"}:
            [point] = [p for p in counted if p.attributes["db.operation.name"] == name]
            assert point.count == names.count(name)
    finally:
        RedisInstrumentor().uninstrument()


def test_keys_are_told_if_somebody_asks_for_them(face: Face) -> None:
    with Telemetry().told(keys=2) as found:
        client: Any = face.run(face.kit.client("one"))
        users = face.kit.hash("users", component="one")
        router = face.kit.key_sharded("one")
        face.run(client.ping())
        found.spans()
        for call in (
            lambda: client.set("k", "SECRET-VALUE"),
            lambda: client.blpop("none", timeout=0.01),
            lambda: client.pipeline().set(b"b\xff", "SECRET-VALUE").mget("x", "y").execute(),
            lambda: router.mset({"x": "SECRET-VALUE", "y": "SECRET-VALUE", "z": "SECRET-VALUE"}),
            lambda: client.publish("channel", "SECRET-VALUE"),
        ):
            face.run(call())
        spans = [span for span in found.spans() if "db.operation.name" in span.attributes]
        assert [list(span.attributes["shardkit.keys"]) for span in spans] == [
            *(["k"], ["none"], ["b\\xff", "x"], ["x", "y"], []),
        ]
        face.run(users.hset(7, "SECRET-VALUE"))
        keys = [span.attributes.get("shardkit.keys", ()) for span in found.spans()]
        assert any(key.startswith("users") for each in keys for key in each)
        assert "SECRET" not in "".join(span.to_json() for span in spans)


@pytest.mark.parametrize("awaiting", [False, True])
async def test_a_pool_tells_of_those_who_wait_and_for_how_long_a_connection_is_used(
    own_map: ShardMap, awaiting: bool, telemetry: Telemetry
) -> None:
    """Of a pool of one connection, for which a second caller waits while the first one has it."""
    entry: Any = own_map.components["own"].entry
    fields = {**entry.fields, "multiplex": False, "blocking_pool": {"size": 1, "timeout": 30}}
    shard_map = map_of(alone={"entry": fields})

    def of(name: str) -> list[Any]:
        return telemetry.of_pool(f"db.client.connection.{name}", "alone")

    kit: Any = await shardkit.aconnect(shard_map) if awaiting else shardkit.connect(shard_map)
    try:
        client = await kit.client("alone") if awaiting else kit.client("alone")
        pool = client.connection_pool
        held = await pool.get_connection() if awaiting else pool.get_connection()
        getting = client.get("k") if awaiting else asyncio.to_thread(client.get, "k")
        waiting = asyncio.ensure_future(getting)
        for _ in range(5000):
            if any(point.value for point in of("pending_requests")):
                break
            await asyncio.sleep(0.001)
        assert sum(point.value for point in of("pending_requests")) == 1
        await pool.release(held) if awaiting else pool.release(held)
        await waiting
        assert sum(point.value for point in of("pending_requests")) == 0
        for name in ("wait_time", "use_time"):
            [point] = of(name)
            assert point.count == 2
            assert 0 < point.sum < 30
    finally:
        await kit.aclose() if awaiting else kit.close()


def test_prometheus_has_labels_by_component_and_shard_and_not_too_many(face: Face) -> None:
    with counted(max_shards=2, max_names=3) as registry:
        router = face.kit.key_sharded("few")
        face.run(router.mset({f"SECRET{n}": n for n in range(100)}))
        for name in ("GET", "STRLEN", "TTL", "PTTL", "TYPE"):
            face.run(router.each(name, ["SECRET1", "SECRET2"]))
        text = generate_latest(registry).decode()
        labels = {"component": "few", "command": "SET"}
        assert registry.get_sample_value("shardkit_commands_total", labels)
    assert 'command="other"' in text
    assert 'shard="other"' in text
    shards = {line.partition('shard="')[2].partition('"')[0] for line in text.splitlines()}
    assert len(shards - {""}) <= 3
    assert "SECRET" not in text
    assert generate_latest(registry) == b""


def test_prometheus_has_how_long_servers_took_for_what_was_sent(face: Face) -> None:
    with counted() as registry:
        for n in range(3):
            face.run(face.kit.hash("h", component="one").hset(n, "v"))
        count, took = times(registry, "request_duration")
    assert count >= 3
    assert 0 < took < 30


def test_a_breaker_is_a_gauge() -> None:
    text = "{components: {a: {entry: {port: 1, breaker: {failures: 1, min_seconds: 0}}}}}"
    memory = MemoryServers(ShardMap.parse(text))
    server = {"server": "localhost:1/0"}
    with (
        counted() as registry,
        shardkit.connect(memory.shard_map, connector=memory) as kit,
    ):
        memory.server_of("a").down()
        with pytest.raises(ShardErrors, match=r"1 shard failed \(a\)"):
            kit.hash("h", component="a").hget(7)
        assert registry.get_sample_value("shardkit_breaker_open", server) == 1
        memory.server_of("a").up()
        [breaker] = kit.breakers.all()
        breaker.close()
        assert registry.get_sample_value("shardkit_breaker_open", server) == 0


def test_a_refused_command_is_an_error_span_of_every_way_to_send_it(
    telemetry: Telemetry, kit: shardkit.ShardKit
) -> None:
    client, router = kit.client("one"), kit.key_sharded("many")
    client.set("text", "x")
    router["text"].set("text", "x")
    telemetry.spans()
    calls: list[Any] = [
        lambda: client.incr("text"),
        lambda: client.pipeline().incr("text").execute(),
        lambda: router.pipeline().incr("text").execute(),
        lambda: router.pipeline().incr("text").get("k").set("l", 1).execute(),
    ]
    for call in calls:
        with pytest.raises(ResponseError, match=r"integer|1 shard failed"):
            call()
        spans = telemetry.spans()
        servers = [span for span in spans if "db.system.name" in span.attributes]
        failed = [span for span in servers if span.status.status_code is StatusCode.ERROR]
        assert [span.attributes["error.type"] for span in failed] == [
            "redis.exceptions.ResponseError"
        ]
        for span in spans:
            if span.name == "pipeline":
                assert span.status.status_code is StatusCode.ERROR
                assert span.attributes["error.type"] == "shardkit.errors.CommandsRefused"


def test_a_search_for_a_missing_script_is_no_error(
    telemetry: Telemetry, own_server: LocalServer
) -> None:
    text = f"components: {{one: {{entry: {{port: {own_server.port}}}}}}}"
    with own_server.client() as admin, shardkit.connect(ShardMap.parse(text)) as kit:
        numbers = kit.sorted_set("scores", component="one")
        numbers.zadd({"a": 1})
        admin.script_flush()
        numbers.zadd({"b": 2})
    assert not [s for s in telemetry.spans() if s.status.status_code is StatusCode.ERROR]
