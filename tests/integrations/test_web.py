"""Starlette, FastAPI and Flask: a kit, times by route, and maintenance."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import flask
import pytest
from fastapi import FastAPI, Request

import shardkit
from shardkit import ShardMap
from shardkit.integrations.asgi import MaintenanceMiddleware, TimingMiddleware, lifespan
from shardkit.integrations.fastapi import Kit
from shardkit.integrations.wsgi import MaintenanceWSGI, TimingWSGI, init_flask
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
        kit.maintenance(component="few").turn_on("shop", reason="A new till.", seconds=90)
    with TestClient(fastapi_app) as client:
        answer = client.get("/users/7")
        assert answer.status_code == 503
        assert 80 < int(answer.headers["retry-after"]) <= 90
        assert answer.text == "Under maintenance. A new till."
        assert client.get("/health/live").status_code == 200, "no process is restarted"


def test_middleware_uses_the_kit_of_an_application_that_starts_again(
    fastapi_app: FastAPI, shard_map: ShardMap
) -> None:
    for number in (7, 8):
        with TestClient(fastapi_app) as client:
            assert client.get(f"/users/{number}").json() == {"name": f"user {number}"}
    with shardkit.connect(shard_map) as kit:
        found = kit.access_times(component="few").get("GET /users/{number}")
        assert found is not None
        assert found.count == 2


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


def test_health_and_a_dependency_use_the_kit_that_the_lifespan_opens_later(
    shard_map: ShardMap,
) -> None:
    app = FastAPI(lifespan=lifespan(shard_map))
    app.mount("/health", asgi(components=["one"]))

    @app.get("/count")
    async def count(kit: Kit) -> int:
        client: Any = await kit.client("one")
        return int(await client.incr("n"))

    with TestClient(app) as client:
        assert client.get("/health/live").json() == {"ok": True}
        assert client.get("/health/ready").json() == {
            "ok": True,
            "components": {"one": {"reachable": 1, "shards": 1}},
        }
        assert [client.get("/count").json() for _ in range(2)] == [1, 2]


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
