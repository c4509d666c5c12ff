"""Starlette, FastAPI and Flask: a kit, middleware and dependencies; and the page's own examples."""

from __future__ import annotations

import asyncio
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import flask
import pytest
import redis
from arranged import map_of
from celery import Celery
from faces import PATIENCE, Face, drawn
from fastapi import FastAPI, Request, Response, WebSocket
from kombu import Connection
from kombu.exceptions import DecodeError
from opentelemetry.instrumentation.redis import RedisInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, generate_latest
from redis.exceptions import ResponseError
from relays import Relay
from test_django import cache  # which configures Django

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardKitError, ShardMap, events
from shardkit.errors import DamagedDataError, InvalidArgumentError, ShardErrors, UnexpectedReply
from shardkit.integrations import otel, prometheus
from shardkit.integrations.asgi import (
    ErrorMiddleware,
    ETagMiddleware,
    MaintenanceMiddleware,
    SessionMiddleware,
    TimingMiddleware,
    cached,
    lifespan,
)
from shardkit.integrations.fastapi import Kit, RateLimited, Session
from shardkit.integrations.wsgi import FlaskSessions, MaintenanceWSGI, TimingWSGI, init_flask
from shardkit.local import LocalServer
from shardkit.network.health import asgi
from shardkit.testing import MemoryServers

with warnings.catch_warnings():  # it wants a newer httpx
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient
    from starlette.websockets import WebSocketDisconnect


@pytest.fixture
def fastapi_app(shard_map: ShardMap) -> FastAPI:
    app = FastAPI(lifespan=lifespan(shard_map))
    app.add_middleware(TimingMiddleware, component="few")
    app.add_middleware(MaintenanceMiddleware, component="few", part="shop")

    app.mount("/health", asgi(components=["few"]))

    @app.get("/users/{number}")
    async def user(number: int, request: Request) -> dict[str, Any]:
        names = request.state.shardkit.hash("names", component="many", total=1000)
        if request.app.state.shardkit is not request.state.shardkit:
            raise AssertionError
        await names.hset(str(number), f"user {number}")
        return {"name": (await names.hget(str(number))).decode()}

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("broken")

    return app


def test_fastapi_has_a_kit_while_it_runs_and_times_requests_by_route(
    fastapi_app: FastAPI, shard_map: ShardMap
) -> None:
    with TestClient(fastapi_app, raise_server_exceptions=False) as client:
        assert client.get("/users/7").json() == {"name": "user 7"}
        assert client.get("/users/8").json() == {"name": "user 8"}
        assert client.get("/nothing").status_code == 404
        assert client.get("/broken").status_code == 500
    with shardkit.connect(shard_map) as kit:  # closing the application sent the times
        times = kit.access_times(component="few")
        ranked = {context for context, _ in times.slowest()}
        assert ranked == {"GET /users/{number}", "GET /broken", "GET (no route)"}
        found = times.get("GET /users/{number}")
        assert found is not None
        assert found.count == 2


def test_an_asgi_application_under_maintenance_answers_503_and_when_to_come_back(
    fastapi_app: FastAPI, shard_map: ShardMap
) -> None:
    with shardkit.connect(shard_map) as kit:
        kit.maintenance(component="few").turn_on("shop", reason="A new till.", ttl=90)
    with TestClient(fastapi_app) as client:
        answer = client.get("/users/7")
        assert answer.status_code == 503
        assert 80 < int(answer.headers["retry-after"]) <= 90
        assert answer.text == "Under maintenance. A new till."
        for probe in ("/health/live", "/health/ready"):
            assert client.get(probe).status_code == 200, "no process is restarted"
        with pytest.raises(WebSocketDisconnect) as refused:
            client.websocket_connect("/talk").__enter__()
        assert refused.value.code == 1013


def test_a_middleware_without_a_kit_says_what_is_missing() -> None:
    app = FastAPI()
    app.add_middleware(MaintenanceMiddleware, component="few")
    with TestClient(app) as client, pytest.raises(RuntimeError, match="lifespan"):
        client.get("/")


def test_flask_has_a_kit_times_its_rules_and_answers_503(shard_map: ShardMap) -> None:
    app = flask.Flask(__name__)
    kit = init_flask(app, shard_map)
    app.wsgi_app = TimingWSGI(app.wsgi_app, kit, component="few")  # type: ignore[method-assign]

    @app.get("/users/<int:number>")
    def user(number: int) -> str:
        found = flask.current_app.extensions["shardkit"]
        found.strings("names", component="many", total=100).set(str(number), f"user {number}")
        return str(found.strings("names", component="many", total=100).get(str(number)).decode())

    with kit:
        client = app.test_client()
        with client.get("/users/7") as answer:
            assert answer.text == "user 7"
        client.get("/nothing").close()
        times = kit.access_times(component="few")
        assert times.flush()
        ranked = {context for context, _ in times.slowest()}
        assert ranked == {"GET /users/<int:number>", "GET (no route)"}
        kit.maintenance(component="few").turn_on()
        guarded = MaintenanceWSGI(app.wsgi_app, kit, component="few")
        app.wsgi_app = guarded  # type: ignore[method-assign]
        refused = client.get("/users/7")
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "60"
        assert client.get("/health/live").status_code == 404, "it reaches the application"


def test_a_wsgi_application_that_raises_is_timed_too(shard_map: ShardMap) -> None:
    def application(environ: Any, start_response: Any) -> Any:
        raise KeyError(environ["PATH_INFO"])

    with shardkit.connect(shard_map) as kit:
        timed = TimingWSGI(application, kit, component="few", context=lambda e: e["PATH_INFO"])
        with pytest.raises(KeyError, match="/x"):
            timed({"PATH_INFO": "/x"}, print)
        times = kit.access_times(component="few")
        times.flush()
        found = times.get("/x")
        assert found is not None
        assert found.count == 1


def test_adapters_take_a_kit_that_exists_and_leave_it_open() -> None:
    servers = MemoryServers(ShardMap.parse("components: {one: {entry: {port: 1}}}"))
    with shardkit.connect(servers.shard_map, connector=servers) as kit:
        app = flask.Flask("x")
        assert init_flask(app, kit) is kit
        assert app.extensions["shardkit"] is kit

    async def main() -> None:
        async with await shardkit.aconnect(servers.shard_map, connector=servers) as opened:
            app = FastAPI(lifespan=lifespan(opened))
            async with app.router.lifespan_context(app) as state:
                assert state == {"shardkit": opened}
            assert (await opened.health()).ok

    asyncio.run(main())


PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"


@pytest.fixture(scope="session")
def shardkit_map() -> ShardMap:
    """The map of the page's examples."""
    return ShardMap.parse("""
        components:
          users: {shards: {count: 4, over: [{host: a.internal}, {host: b.internal}]}}
          metrics: {entry: {host: c.internal}}
    """)


def defined(framework: str, **own: Any) -> dict[str, Any]:
    """What the page's examples of a framework define; ``where`` is the map."""
    for block in re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if f"from {framework}" in block:
            exec(block.replace('"configs/local.yaml"', "where"), own)
    return own


@pytest.fixture
def page() -> dict[str, Any]:
    return defined("fastapi", where="configs/local.yaml", __name__="page")


def test_the_pages_flask_application_serves_all_that_it_has(memory_kit: ShardKit) -> None:
    client = defined("flask", where=memory_kit, __name__="page")["app"].test_client()
    first = client.get("/products/7")
    assert first.json == {"product": 7}
    again = client.get("/products/7", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert client.get("/health/live").status_code == 200


def test_the_pages_test_passes(page: dict[str, Any], async_memory_kit: AsyncShardKit) -> None:
    assert page["test_an_unknown_user_has_no_name"](async_memory_kit) is None, "it asserts itself"


def test_the_pages_application_serves_all_that_it_has(
    page: dict[str, Any], async_memory_kit: AsyncShardKit
) -> None:
    page["app"].dependency_overrides[page["get_kit"]] = lambda: async_memory_kit
    client = TestClient(page["app"], base_url="https://shop")
    first = client.get("/products/7")
    assert first.json() == {"product": 7}
    tag = {"If-None-Match": f'"x", W/{first.headers["etag"]}'}
    again = client.get("/products/7", headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    both = {"methods": ["GET", "HEAD"]}
    page["app"].api_route("/own", **both)(lambda: Response(headers={"ETag": 'W/"a,b"'}))
    page["app"].api_route("/text", **both)(lambda: Response(b"text"))
    for ask in (client.get, client.head):
        own = ask("/own", headers={"If-None-Match": '"x", W/"a,b"'})
        assert (own.status_code, own.headers["etag"]) == (304, 'W/"a,b"')
    assert client.head("/text").headers["etag"] == client.get("/text").headers["etag"]
    answers = [client.post("/log-in?name=Ann") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert 0 < int(answers[5].headers["retry-after"]) <= 12
    assert len({answer.cookies["session"] for answer in answers[:5]}) == 5, "renewed at log-in"


@pytest.fixture
def shop(shard_map: ShardMap) -> Iterator[TestClient]:
    app = FastAPI(lifespan=lifespan(shard_map))
    app.add_middleware(SessionMiddleware, component="many", ttl=100)
    app.add_middleware(ETagMiddleware)
    app.add_middleware(ErrorMiddleware)
    computed: list[int] = []

    @cached("many", ttl=60, key="price:{number}", tags=("prices",))
    async def price(number: int, request: Request) -> dict[str, int]:
        computed.append(number)
        return {"price": len(computed)}

    app.get("/prices/{number}")(price)

    @app.post("/prices/{number}")
    async def change(number: int, kit: Kit) -> None:
        await price.invalidate(number, kit=kit)

    @app.delete("/prices")
    async def forget(kit: Kit) -> None:
        await price.invalidate_tag("prices", kit=kit)

    @app.get("/cart")
    async def cart(session: Session) -> dict[str, Any]:
        return session

    @app.post("/cart")
    async def put(session: Session, item: str, leave: bool = False) -> None:
        if leave:
            session.clear()
        else:
            session.setdefault("items", []).append(item)

    @app.post("/renewed")
    async def renewed(session: Session) -> None:
        session.renew()

    @app.websocket("/talk")
    async def talk(socket: WebSocket) -> None:
        socket.session["talks"] = 1
        await socket.accept()
        socket.session["said"] = await socket.receive_text()
        socket.session.renew()  # too late for a cookie: the id stays

    @app.post("/race")
    async def race(session: Session, kit: Kit) -> None:
        await kit.key_sharded("many").delete(f"session:{session.id}")  # as another request may
        session["late"] = True

    @app.get("/late")
    async def late(kit: Kit) -> None:
        with kit.deadline(0):
            await kit.hash("names", component="many", total=1000).hget("1")

    @app.get("/wrong")
    async def wrong(kit: Kit) -> None:
        kit.rate_limit("x", component="many", limit=-1)

    with TestClient(app, base_url="https://shop", raise_server_exceptions=False) as client:
        yield client


def test_cached_endpoints_are_computed_once_until_they_are_invalidated(shop: TestClient) -> None:
    def prices() -> list[int]:
        return [shop.get(f"/prices/{number}").json()["price"] for number in (7, 8, 7)]

    assert prices() == [1, 2, 1]
    shop.post("/prices/7")
    assert prices() == [3, 2, 3]
    shop.delete("/prices")
    assert prices() == [4, 5, 4]


def test_a_session_is_kept_until_it_is_emptied(shop: TestClient, kit: ShardKit) -> None:
    assert shop.get("/cart", headers={"cookie": "session=" + 43 * "a"}).json() == {}
    shop.cookies.clear()
    assert shop.get("/cart").headers["vary"] == "Cookie"
    assert "vary" not in shop.get("/nothing").headers
    assert shop.post("/cart?item=ring").cookies["session"] != 43 * "a", "no id is adopted"
    shop.post("/cart?item=cup")
    assert shop.get("/cart").json() == {"items": ["ring", "cup"]}
    [stored] = kit.key_sharded("many").scan_iter("session:*")
    assert 90 < kit.key_sharded("many").ttl(stored) <= 100
    assert "HttpOnly; SameSite=Lax; Secure" in shop.get("/cart").headers["set-cookie"]
    shop.post("/cart?item=&leave=true")
    assert not shop.cookies
    shop.post("/cart?item=ring")
    shop.post("/race")
    assert list(kit.key_sharded("many").scan_iter("session:*")) == []


def test_a_websocket_has_a_session(shop: TestClient) -> None:
    with shop.websocket_connect("/talk") as socket:
        socket.send_text("hello")
    [cookie] = [value.decode() for name, value in socket.extra_headers if name == b"set-cookie"]
    given = {"cookie": cookie.partition(";")[0]}
    assert shop.get("/cart", headers=given).json() == {"talks": 1, "said": "hello"}


def test_a_session_that_cannot_be_renewed_stays(shop: TestClient, kit: ShardKit) -> None:
    shop.post("/cart?item=ring")
    clients = [kit.client("many", shard) for shard in range(len(kit.component("many").shards))]
    try:
        for client in clients:
            client.config_set("maxmemory", 1)
        assert shop.post("/renewed").status_code >= 500
    finally:
        for client in clients:
            client.config_set("maxmemory", 0)
    assert shop.get("/cart").json() == {"items": ["ring"]}
    before = shop.cookies["session"]
    shop.post("/renewed")
    assert shop.cookies["session"] != before
    assert shop.get("/cart").json() == {"items": ["ring"]}
    assert shop.get("/cart", headers={"cookie": f"session={before}"}).json() == {}


@pytest.mark.parametrize("stored", ["7", "{", 5000 * "["])
def test_a_damaged_session_is_an_error_of_the_tree(
    shard_map: ShardMap, kit: ShardKit, stored: str
) -> None:
    app = FastAPI(lifespan=lifespan(shard_map))
    app.add_middleware(SessionMiddleware, component="many")
    kit.key_sharded("many").set(f"session:{43 * 'a'}", stored)
    with TestClient(app) as client, pytest.raises(DamagedDataError, match="no JSON"):
        client.get("/", headers={"cookie": f"session={43 * 'a'}"})


def test_errors_of_servers_are_503_and_bad_input_is_400(shop: TestClient) -> None:
    late = shop.get("/late")
    assert (late.status_code, late.headers["retry-after"]) == (503, "1")
    assert "127.0.0.1" not in late.text
    wrong = shop.get("/wrong")
    assert wrong.status_code == 400
    assert "limit" in wrong.json()["detail"]


def test_what_cannot_be_used_is_refused_when_the_application_is_built() -> None:
    with pytest.raises(InvalidArgumentError, match="limit"):
        RateLimited("x", component="many", limit=0)
    with pytest.raises(InvalidArgumentError, match="async def"):
        cached("many", ttl=1, key="k")(print)


def test_flask_has_sessions_and_answers_503(shard_map: ShardMap) -> None:
    with LocalServer() as server:
        gone = {"entry": {"port": server.port}}
    app = flask.Flask(__name__)
    with init_flask(app, shard_map) as kit:
        app.session_interface = FlaskSessions(kit, component="many")  # type: ignore[assignment]

        @app.post("/<name>")
        def log_in(name: str) -> str:
            flask.session["name"] = name
            return ""

        @app.get("/")
        def front() -> str:
            return str(flask.session.pop("name", "nobody"))

        @app.get("/wrong")
        def wrong() -> str:
            return str(kit.rate_limit("x", component="many", limit=-1))

        client = app.test_client()
        answer = client.get("/")
        assert (answer.text, answer.headers["vary"]) == ("nobody", "Cookie")
        assert "vary" not in client.get("/favicon.ico").headers
        app.config["SESSION_COOKIE_PARTITIONED"] = app.config["SESSION_COOKIE_SECURE"] = True
        assert "Partitioned" in app.test_client().post("/Bob").headers["set-cookie"]
        app.config["SESSION_COOKIE_PARTITIONED"] = app.config["SESSION_COOKIE_SECURE"] = False
        client.post("/Ann")
        assert client.get_cookie("session") is not None
        assert [client.get("/").text for _ in range(2)] == ["Ann", "nobody"]
        assert client.get_cookie("session") is None
        assert client.get("/wrong").status_code == 400
    lost = ShardMap.parse(str({"components": {"gone": gone}}))
    with shardkit.connect(lost) as kit:
        app.session_interface = FlaskSessions(kit, component="gone")  # type: ignore[assignment]
        client.set_cookie("session", 43 * "a")
        answer = client.get("/")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


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


pytest.importorskip("celery")


GARBAGE = [
    *(b"$-1\r\n", b":7\r\n", b":9223372036854775807\r\n", b"*0\r\n", b"*1\r\n*1\r\n*0\r\n"),
    *(b"*2\r\n$-1\r\n$-1\r\n", b"*2\r\n:1\r\n:-1\r\n", b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
    *(b"$0\r\n\r\n", b"$3\r\nabc\r\n", b"$2\r\n\xff\xfe\r\n", b"-WHAT is this\r\n"),
    b"*2\r\n-WHAT is this\r\n:1\r\n",
]
# A text is what GET promises, so that a serializer may refuse it.
SERIALIZERS = pickle.UnpicklingError, EOFError, DecodeError


@pytest.fixture
def relay() -> Iterator[Relay]:
    with LocalServer() as server, closing(Relay(server.port)) as relay:
        where = {"host": "127.0.0.1", "port": relay.port, "socket_timeout": 2 * PATIENCE}
        shards = [{**where, "db": number} for number in (1, 2)]
        shardkit.configure(map_of(many={"shards": shards}))
        yield relay
        shardkit.configure(None)


def errors_of(relay: Relay, calls: dict[str, Callable[[], Any]]) -> list[Any]:
    """Make calls of which one of the first replies is garbage; return their errors."""
    errors = []
    for what, call in calls.items():
        cases = list(product(range(2), GARBAGE))
        for at, reply in Random(what).sample(cases, drawn(4, len(cases))):
            relay.count, relay.nth = 0, {at: reply}
            try:
                call()
            except Exception as error:
                errors.append((what, at, reply, error))
            finally:
                relay.nth = {}
    return errors


def raw_of(errors: list[Any]) -> list[Any]:
    """Errors of neither tree, and unexpected replies of a server that is not named."""
    return [
        each
        for each in errors
        if not isinstance(each[-1], (ShardKitError, redis.RedisError, *SERIALIZERS))
        or (isinstance(each[-1], UnexpectedReply) and not each[-1].address)
    ]


@pytest.mark.parametrize("ignores", [False, True])
def test_djangos_cache_gets_garbage(relay: Relay, ignores: bool) -> None:
    many = cache("many", IGNORE_EXCEPTIONS=ignores)
    many.set_many({"a": {"b": 1}, "n": 5})

    def of_missing(call: Callable[..., Any], *args: Any) -> None:
        with suppress(ValueError):  # Django's, for a key that is not there
            call(*args)

    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: many.get("a"),
        "set": lambda: many.set("a", {"b": 1}),
        "add": lambda: many.add("a", 1),
        "touch": lambda: many.touch("a"),
        "touch for ever": lambda: many.touch("a", None),
        "delete": lambda: many.delete("none"),
        "has_key": lambda: many.has_key("a"),
        "incr": lambda: of_missing(many.incr, "n"),
        "incr_version": lambda: of_missing(many.incr_version, "n"),
        "get_or_set": lambda: many.get_or_set("computed", lambda: 7),
        "get_many": lambda: many.get_many(["a", "n", "none"]),
        "set_many": lambda: many.set_many({"a": 1, "b": 2}),
        "delete_many": lambda: many.delete_many(["x", "y"]),
        "keys": lambda: many.keys("*"),
        "ttl": lambda: many.ttl("a"),
        "expire": lambda: many.expire("a", 9),
        "persist": lambda: many.persist("a"),
        "clear": many.clear,
    }
    errors = errors_of(relay, calls)
    assert raw_of(errors) == []
    if ignores:
        assert [each for each in errors if not isinstance(each[-1], SERIALIZERS)] == []


def test_celerys_results_and_queues_get_garbage(relay: Relay) -> None:
    app = Celery("garbage", backend="shardkit://many", broker="shardkit://many")
    results = app.backend
    part = SimpleNamespace(group="g", id="t", group_index=0, chord={"task": "a.b", "options": {}})

    def consume() -> None:
        with Connection("shardkit://many") as connection:
            queue = connection.SimpleQueue("q")
            queue.put({"a": 1})
            with suppress(queue.Empty):
                queue.get(block=False).ack()
            queue.close()

    calls: dict[str, Callable[[], Any]] = {
        "store": lambda: results.store_result("t", 1, "SUCCESS"),
        "get": lambda: results.get_task_meta("t"),
        "mget": lambda: list(results.get_many(["t"], timeout=0.2, max_iterations=1)),
        "forget": lambda: results.forget("u"),
        "chord": lambda: results.set_chord_size("g", 2),
        "part": lambda: results.on_chord_part_return(part, "SUCCESS", 1),
        "consume": consume,
    }
    assert raw_of(errors_of(relay, calls)) == []


async def test_a_near_copy_is_used_for_its_own_kit_only() -> None:
    source = ["first"]

    @cached("many", ttl=600, key="k:{name}", near=100_000, max_age=30)
    async def load(kit: Any, name: str) -> str:
        return source[0]

    with LocalServer() as one, LocalServer() as other:
        here, there = (map_of(many={"shards": [{"port": each.port}]}) for each in (one, other))
        async with (
            await shardkit.aconnect(here) as first,
            await shardkit.aconnect(there) as second,
        ):
            async with asyncio.timeout(60):
                while True:
                    assert await load(first, "a") == "first"
                    # Nothing else shows that there is a copy.
                    if any(copies.copies for copies in first.near_copies.values()):
                        break
                    await asyncio.sleep(0.01)  # until its server announces changes
            source[0] = "second"
            assert await load(second, "a") == "second"
            assert [await load(first, "a"), await load(second, "a")] == ["first", "second"]
