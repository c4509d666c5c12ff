"""A cluster whose nodes answer with garbage, or byte by byte: bounded, an error of the tree."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from faces import PATIENCE, Face, faced
from redis.exceptions import RedisClusterException
from scripted_server import ScriptedServer, bulk, scripted

from shardkit import ShardKitError, ShardMap

LATE = b"*18\r\n" + b"*0\r\n" * 17 + b"*2147483647\r\n"
GARBAGE = (
    *(b":7\r\n", b"*0\r\n", b"$3\r\nabc\r\n", b"*1\r\n*0\r\n", b"*2\r\n:1\r\n:-1\r\n"),
    b"$-1\r\n",
    *(b"*1\r\n*3\r\n:0\r\n:x\r\n*0\r\n", b"$2\r\n\xff\xfe\r\n", b"-WHAT is this\r\n", LATE),
)
REDIS_PYS = redis.RedisError, RedisClusterException  # which has a root of its own
NAMES = ("GET", "EVALSHA", "EVAL", "BLPOP", "DBSIZE", "SCAN", "ZRANGE", "HGETALL", "EXEC")
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "get": lambda kit, client: client.get("x"),
    "hgetall": lambda kit, client: client.hgetall("x"),
    "scores": lambda kit, client: client.zrange("x", 0, -1, withscores=True),
    "blpop": lambda kit, client: client.blpop(["x"], 1),
    "pipeline": lambda kit, client: client.pipeline().get("x").hgetall("y").execute(),
    "transaction": lambda kit, client: client.pipeline(transaction=True).get("x").execute(),
    "structure": lambda kit, client: kit.set("s", component="c").sadd("x"),
    "dbsize": lambda kit, client: client.dbsize(),
    "scan": lambda kit, client: client.scan(),
}


def drip(_: list[bytes]) -> Iterator[bytes]:
    yield b"$1000\r\n"
    for _byte in range(1000):
        time.sleep(0.1)
        yield b"x"


@pytest.fixture
def node() -> Iterator[ScriptedServer]:
    with scripted(COMMAND=b"*0\r\n") as server:
        at = bulk(b"127.0.0.1") + b":%d\r\n" % server.port + bulk(b"a" * 40)
        server.answers["CLUSTER"] = b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + at
        yield server


def opened(kind: str, node: ScriptedServer, **limits: float) -> Any:
    where = {"host": "127.0.0.1", "port": node.port, "cluster": True, "max_reply_bytes": 10**6}
    entry = {**where, "socket_timeout": 2 * PATIENCE, **limits}
    return faced(kind, ShardMap.decode(repr({"components": {"c": {"entry": entry}}}).encode(), "m"))


def error_of(face: Face, call: Callable[[Any, Any], Any]) -> Exception | None:
    try:
        face.run(call(face.kit, face.run(face.kit.client("c"))))
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
@pytest.mark.parametrize("of", ["data", "slots"])
def test_garbage_of_a_cluster_is_an_error_of_the_tree(
    kind: str, of: str, node: ScriptedServer
) -> None:
    raw = []
    for garbage in GARBAGE:
        node.answers |= dict.fromkeys(NAMES if of == "data" else ("CLUSTER",), garbage)
        with opened(kind, node) as face:
            for name, call in CALLS.items():
                error = error_of(face, call)
                if not isinstance(error, (ShardKitError, *REDIS_PYS, type(None))):
                    raw.append((name, garbage, error))
    assert raw == []


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
@pytest.mark.parametrize("name", ["GET", "CLUSTER"])
def test_a_cluster_that_drips_ends_with_the_exchange_timeout(
    kind: str, name: str, node: ScriptedServer
) -> None:
    node.answers[name] = drip
    with opened(kind, node, exchange_timeout=0.5) as face:
        error = error_of(face, CALLS["get"])  # the reply takes 100 seconds
    assert isinstance(error, REDIS_PYS)
    assert "were not complete after 0.5 seconds" in str(error)
