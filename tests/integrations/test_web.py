"""Starlette, FastAPI and Flask: a kit, middleware and dependencies; and the page's own examples."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import FastAPI, Request, WebSocket

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError
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
        assert client.get("/").text == "nobody"
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
