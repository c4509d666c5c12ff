"""Health of a kit, and its endpoint for probes."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from arranged import ask, map_of
from faces import Face, faced
from link_helpers import paused, resolving
from redis.credentials import CredentialProvider

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.errors import ClosedError, InvalidArgumentError
from shardkit.local import LocalServer
from shardkit.network.health import asgi, wsgi
from shardkit.testing import MemoryServers


def test_every_shard_of_healthy_servers_is_described(face: Face) -> None:
    health = face.run(face.kit.health())
    assert health.ok, health
    assert len(health.shards) == 16 + 4 + 1 + 1 + 4
    for shard in health.shards:
        assert shard.reachable
        assert shard.role == "master"
        assert shard.latency > 0
        assert shard.memory > 0
        assert shard.breaker == "closed"
        assert shard.error == ""
    assert set(health.ages) == {"many", "few", "one", "both"}
    assert all(0 <= age < math.inf for age in health.ages.values())
    assert json.loads(json.dumps(health.as_dict()))["ok"] is True


def test_only_the_stopped_server_is_unreachable(
    kind: str, own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving("two.internal", 1, monkeypatch).append(2)  # addresses, as localhost often has
    shards = [{"port": own_server.port}, {"host": "two.internal", "port": 1, "breaker": False}]
    shard_map = map_of(data={"shards": shards})
    with faced(kind, shard_map) as face:
        health = face.run(face.kit.health())
    assert not health.ok
    assert [shard.reachable for shard in health.shards] == [True, False]
    assert [shard.breaker for shard in health.shards] == ["closed", "off"]
    assert health.shards[1].error == "Error 111 connecting to two.internal:1. Connection refused."


def test_a_component_that_is_broken_is_named_and_others_are_described(kind: str) -> None:
    with LocalServer() as server, server.client() as config:
        push(config, ShardMap.parse(f"components: {{a: {{entry: {{port: {server.port}}}}}}}"))
        config.set("config:redis:b", "{ broken")
        with faced(kind, f"redis://{server.address}") as face:
            health = face.run(face.kit.health())
    assert not health.ok
    assert [shard.shard for shard in health.shards] == ["a"]
    assert list(health.broken) == ["b"]
    assert "config:redis:b" in health.broken["b"]


def test_health_reports_what_is_known_while_the_config_server_hangs(kind: str) -> None:
    with LocalServer() as server, server.client() as config:
        push(config, ShardMap.parse(f"components: {{a: {{entry: {{port: {server.port}}}}}}}"))
        with faced(kind, f"redis://{server.address}") as face:
            assert face.run(face.kit.health()).ok
            with paused(server):
                health = face.run(face.kit.health(0.1))
    assert [(shard.shard, shard.reachable) for shard in health.shards] == [("a", False)]
    assert list(health.ages) == ["a"]


async def probe(app: Any, path: str) -> tuple[int, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "path": path}, None, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_the_asgi_endpoint_answers_probes(kind: str, shard_map: ShardMap) -> None:
    async def main() -> None:
        blocks = kind == "blocking"
        kit: Any = shardkit.connect(shard_map) if blocks else await shardkit.aconnect(shard_map)
        app = asgi(kit, timedelta(seconds=5), details=True)
        assert (await probe(app, "/live")) == (200, {"ok": True})
        status, body = await probe(app, "/health/ready")
        assert (status, body["ok"]) == (200, True)
        assert len(body["shards"]) == 26
        status, body = await probe(asgi(lambda: kit, components=["few", "one"]), "/ready")
        assert status == 200
        assert body == {
            "ok": True,
            "components": {
                "few": {"reachable": 4, "shards": 4},
                "one": {"reachable": 1, "shards": 1},
            },
        }
        assert (await probe(asgi(kit, components=["nosuch"]), "/ready"))[0] == 503
        if kind == "awaiting":
            await kit.aclose()
        else:
            kit.close()
        assert (await probe(app, "/live"))[0] == 503
        assert (await probe(app, "/ready"))[0] == 503

    asyncio.run(main())


async def test_the_asgi_endpoint_starts_and_stops_with_its_server(shard_map: ShardMap) -> None:
    told = iter(("lifespan.startup", "lifespan.shutdown"))
    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return {"type": next(told)}

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"])

    with shardkit.connect(shard_map) as kit:
        await asgi(kit)({"type": "lifespan"}, receive, send)
        await asgi(kit)({"type": "websocket", "path": "/live"}, receive, send)  # not answered
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_the_wsgi_endpoint_answers_probes(own_server: LocalServer) -> None:
    shards = [{"port": own_server.port}, {"port": 1}]
    shard_map = map_of(data={"shards": shards})
    said: list[Any] = []
    with shardkit.connect(shard_map) as kit:
        app = wsgi(kit, threshold="all", details=True)
        [body] = app({"PATH_INFO": "/ready"}, lambda *args: said.append(args))
        assert said[0][0] == "503 Service Unavailable"
        assert [shard["reachable"] for shard in json.loads(body)["shards"]] == [True, False]
        assert app({"PATH_INFO": "/live"}, lambda *args: said.append(args)) == [b'{"ok": true}']
        assert said[1][0] == "200 OK"
        kit.close()
        assert app({"PATH_INFO": "/live"}, lambda *args: said.append(args)) == [b'{"ok": false}']
        [body] = app({"PATH_INFO": "/ready"}, lambda *args: said.append(args))
    assert [line for line, _ in said[2:]] == ["503 Service Unavailable"] * 2
    assert json.loads(body) == {
        "ok": False,
        "error": "the kit is closed; open a new one with shardkit.connect",
    }


def test_health_answers_after_the_main_thread_has_ended(own_server: LocalServer) -> None:
    program = f"""
import asyncio, atexit, shardkit, threading

from shardkit.network.health import asgi, wsgi
from shardkit.testing import MemoryServers
components = "{{a: {{entry: {{port: {own_server.port}}}}}}}"
kit = shardkit.connect(shardkit.ShardMap.parse("components: " + components))
def serve():
    threading.main_thread().join()
    print(kit.health().ok)
    wsgi(kit)({{"PATH_INFO": "/ready"}}, lambda status, _: print(status))
    asyncio.run(asgi(kit)({{"type": "http", "path": "/ready"}}, None, send))
async def send(message):
    print(message.get("status"))
threading.Thread(target=serve).start()
atexit.register(lambda: print(kit.health().ok))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("True\n200 OK\n200\nNone\nTrue\n", "")


def ready(kit: Any, **options: Any) -> str:
    statuses: list[str] = []
    wsgi(kit, **options)({"PATH_INFO": "/ready"}, lambda status, _: statuses.append(status))
    return statuses[0][:3]


def test_readiness_depends_on_components_and_threshold_and_shows_no_address() -> None:
    text = "components: {shop: {shards: [{port: 1}, {port: 2}, {port: 3}, {port: 4}]}, "
    servers = MemoryServers(ShardMap.parse(text + "archive: {entry: {port: 5}}}"))
    with shardkit.connect(servers.shard_map, connector=servers) as kit:
        assert ready(kit, threshold="all") == "200"
        servers.server_of("archive").down()
        assert ready(kit) == "200"
        assert ready(kit, threshold="all") == "503"
        assert ready(kit, threshold="all", components=["shop"]) == "200"
        assert ready(kit, components="archive") == "503"
        servers.server_of("shop", 0).down()
        servers.server_of("shop", 1).down()
        assert ready(kit, components=["shop"], threshold=0.5) == "200"
        assert ready(kit, components=["shop"], threshold=0.51) == "503"
        [body] = wsgi(kit)({"PATH_INFO": "/ready"}, lambda *_: None)
        assert json.loads(body) == {
            "ok": True,
            "components": {
                "shop": {"reachable": 2, "shards": 4},
                "archive": {"reachable": 0, "shards": 1},
            },
        }
        for number in (2, 3):
            servers.server_of("shop", number).down()
        assert ready(kit) == "503"
        for wrong in ("most", 0, 1.5, True, None):
            with pytest.raises(InvalidArgumentError, match="threshold="):
                wsgi(kit, threshold=wrong)  # type: ignore[arg-type]


def test_a_user_without_info_is_healthy_with_unknown_details(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    rights = ("on", ">pw", "~*", "+@all", "-@dangerous")
    with LocalServer() as server:  # of which nothing was said yet
        ask(server, "execute_command", "ACL", "SETUSER", "app", *rights)
        entry = {"port": server.port, "username": "app", "password": "pw"}
        shard_map = map_of(data={"shards": [entry, entry]})
        with faced(kind, shard_map) as face:
            for _ in range(3):
                health = face.run(face.kit.health())
    assert health.ok
    assert health.ready(threshold="all")
    assert {(each.reachable, each.role, each.memory, each.unknown) for each in health.shards} == {
        (True, "", None, "the user may not run INFO")
    }
    [warning] = [each for each in caplog.records if hasattr(each, "shardkit")]
    assert warning.shardkit["event"] == "right-missing"  # type: ignore[attr-defined]
    assert "+info" in warning.getMessage()


def test_servers_in_memory_are_healthy(kind: str) -> None:
    servers = MemoryServers(ShardMap.parse("components: {shop: {entry: {port: 1}}}"))
    with faced(kind, servers.shard_map, connector=servers) as face:
        [shard] = face.run(face.kit.health()).shards
    assert (shard.reachable, shard.role, shard.max_memory) == (True, "master", 0)
    with shardkit.connect(servers.shard_map, connector=servers) as kit:
        client = kit.client("shop")
        client.set("k", 1)
        assert client.info()["redis_version"].startswith("7.")
        assert client.info("keyspace") == {"db0": {"keys": 1, "expires": 0, "avg_ttl": 0}}


class Sealed(CredentialProvider):
    """A provider whose vault is away."""

    def get_credentials(self) -> Any:
        raise LookupError("the vault is sealed")


def test_a_provider_that_raises_makes_its_component_unreachable(
    kind: str, shard_map: ShardMap
) -> None:
    with faced(kind, shard_map, credential_providers={"one": Sealed()}) as face:
        health = face.run(face.kit.health())
    assert [(each.shard, each.error) for each in health.shards if not each.reachable] == [
        ("one", "the vault is sealed")
    ]


def test_closing_a_kit_during_health(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ClosedError("the kit is closed", "open a new one with shardkit.connect")

    def closed(name: str) -> Any:
        raise error

    async def loaded(names: list[str]) -> dict[str, Any]:
        return dict.fromkeys(names, error)

    monkeypatch.setattr(face.kit.topology, "component", closed)
    monkeypatch.setattr(face.kit.topology, "aload", loaded, raising=face.runner is not None)
    with pytest.raises(ClosedError, match="the kit is closed"):
        face.run(face.kit.health())
