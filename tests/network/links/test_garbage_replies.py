"""Servers and nodes that send anything, or byte by byte: an error of the tree, or redis-py's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import map_of
from click.testing import CliRunner
from faces import PATIENCE, Face, drawn, faced
from link_helpers import of
from redis.exceptions import RedisClusterException
from relays import Relay
from resources import bounded
from scripted_server import ScriptedServer, bulk, drip, scripted

from shardkit import Entry, ShardKitError, ShardMap, connect
from shardkit.admin import push
from shardkit.cli.app import app
from shardkit.local import LocalServer

REPLIES = {
    "a map with an array as key": b"%1\r\n*0\r\n+x\r\n",
    "an ASK without address": b"-ASK 99999 x\r\n",
    "a MOVED of words": b"-MOVED to another place\r\n",
    "pushes without end": b">2\r\n+a\r\n+b\r\n" * 10_000,
    "an attribute": b"|1\r\n+a\r\n+b\r\n+c\r\n",
    "a long map": b"%2147483647\r\n",
    "a long set after others": b"*30\r\n" + b"~0\r\n" * 29 + b"~2147483647\r\n",
    "a string that does not end": b"$70000\r\n" + b"x" * 70_000 + b"no",
    "a text": b"+OK\r\n",
    "no RESP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}
KINDS = (
    *(b":7\r\n", b"*0\r\n", b"$3\r\nabc\r\n", b"*1\r\n*0\r\n", b"*2\r\n:1\r\n:-1\r\n"),
    *(b"$-1\r\n", b"*2\r\n*1\r\n:1\r\n$-1\r\n", b"$2\r\n\xff\xfe\r\n"),
)
LATE = b"*18\r\n" + b"*0\r\n" * 17 + b"*2147483647\r\n"
ENDLESS = b"*1\r\n*3\r\n:0\r\n:%d\r\n*2\r\n+127.0.0.1\r\n:1\r\n" % (2**63 - 1)  # slots
OF_NODES = (*KINDS, ENDLESS, b"*1\r\n*3\r\n:0\r\n:x\r\n*0\r\n", b"-WHAT is this\r\n", LATE)
NAMES = (
    "SUBSCRIBE",
    "GET",
    "EVALSHA",
    "EVAL",
    "BLPOP",
    "DBSIZE",
    "SCAN",
    "ZRANGE",
    "HGETALL",
    "EXEC",
)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "get": lambda kit, client: client.get("x"),
    "hgetall": lambda kit, client: client.hgetall("x"),
    "scores": lambda kit, client: client.zrange("x", 0, -1, withscores=True),
    "blpop": lambda kit, client: client.blpop(["x"], 1),
    "pipeline": lambda kit, client: client.pipeline(False).get("x").hgetall("y").execute(),
    "transaction": lambda kit, client: client.pipeline(transaction=True).get("x").execute(),
    "set": lambda kit, client: kit.set("s", component="c").sadd("x"),
    "hash": lambda kit, client: kit.hash("h", component="c").hget("x"),
    "dbsize": lambda kit, client: client.dbsize(),
    "scan": lambda kit, client: client.scan(),
    "subscriber": lambda kit, client: receive(client.pubsub()),
}
# In front of or within replies, by the server of an entry with ``protocol: 3``.
PUSHES = (
    *(b">3\r\n+message\r\n+c\r\n$1\r\n\xff\r\n", b">2\r\n$1\r\n\xff\r\n:1\r\n", b">0\r\n"),
    *(b">2\r\n:1\r\n*0\r\n", b">1\r\n-ERR x\r\n", b">1\r\n+message\r\n"),
    *(b">2\r\n+MOVING\r\n:1\r\n", b">2\r\n+invalidate\r\n*1\r\n$1\r\n\xff\r\n"),
)
ENDING = (b"|1\r\n+a\r\n+b\r\n", b">1\r\n%1\r\n*0\r\n+x\r\n")  # a call and its connection


def described(port: int, **fields: Any) -> ShardMap:
    limits = {"max_reply_bytes": 10**6, "socket_timeout": 2 * PATIENCE}
    return map_of(c={"entry": {"host": "127.0.0.1", "port": port, **limits, **fields}})


def error_of(face: Face, call: Callable[[Any, Any], Any]) -> Exception | None:
    try:
        with bounded():
            result = call(face.kit, face.run(face.kit.client("c")))
            (face.runner or asyncio).run(of(result))
    except Exception as error:
        return error
    return None


async def receive(pubsub: Any) -> None:
    try:
        await of(pubsub.subscribe("x"))
        await of(pubsub.get_message(timeout=0.1))
    finally:
        await of(pubsub.aclose() if hasattr(pubsub, "aclose") else pubsub.close())


def raw_errors(face: Face) -> list[Any]:
    """What calls raise that nobody has to expect."""
    expected = ShardKitError, redis.RedisError, RedisClusterException, type(None)
    errors = {name: error_of(face, call) for name, call in CALLS.items()}
    return [each for each in errors.items() if not isinstance(each[1], expected)]


@pytest.mark.parametrize("what", REPLIES)
def test_garbage_is_an_error_of_the_tree(kind: str, what: str) -> None:
    garbled = dict.fromkeys((*NAMES, "INFO", "HELLO"), REPLIES[what])
    raw = []
    with scripted(**garbled) as server:
        for fields in ({}, {"protocol": 3, "socket_timeout": PATIENCE / 10}):  # no reply to HELLO
            with faced(kind, described(server.port, **fields)) as face:
                raw += raw_errors(face)
    assert raw == []


async def _raw(client: Any, keys: list[str]) -> list[Any]:
    pool = client.connection_pool
    connection = await of(pool.get_connection())
    try:
        packed = connection.pack_commands([("GET", key) for key in keys])
        await of(connection.send_packed_command(packed))
        return [await of(connection.read_response()) for _ in keys]
    finally:
        await of(pool.release(connection))


async def _together(client: Any, keys: list[str]) -> list[Any]:
    calls = [client.get(key) for key in keys]
    return list(await asyncio.gather(*map(of, calls)))


WAYS: dict[str, Callable[[Any, list[str]], Any]] = {
    "calls": _together,
    "pipeline": lambda client, keys: of(piped(client.pipeline(False), keys)),
    "transaction": lambda client, keys: of(piped(client.pipeline(True), keys)),
    "raw": _raw,
}


def piped(pipe: Any, keys: list[str]) -> Any:
    for key in keys:
        pipe.get(key)
    return pipe.execute()


def pushing(push: bytes, queues: bool) -> dict[str, Any]:
    """Answers with a push in front of them, and one behind it."""

    def reply(args: list[bytes]) -> Iterator[bytes]:
        value = b"+QUEUED\r\n" if queues else bulk(args[1])
        for piece in (push, value) if args[1] != b"k1" else (value, push):
            yield piece
            time.sleep(0.001)

    return {"GET": reply, "EXEC": push + b"*3\r\n" + b"".join(map(bulk, (b"k0", b"k1", b"k2")))}


@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_no_push_is_taken_for_a_reply(kind: str, way: str, decodes: bool) -> None:
    keys, got = ["k0", "k1", "k2"], []
    expected: list[Any] = keys if decodes else [key.encode() for key in keys]
    with scripted(HELLO=b"%1\r\n+proto\r\n:3\r\n") as server:
        fields = {"protocol": 3, "decode_responses": decodes, "host": "127.0.0.1"}
        entry = {"port": server.port, "socket_timeout": 2 * PATIENCE, **fields}
        for push in (*PUSHES, *ENDING):
            server.answers |= pushing(push, way == "transaction")
            with faced(kind, map_of(c={"entry": entry})) as face:
                client = face.run(face.kit.client("c"))
                for _ in range(2):
                    try:
                        got.append((face.runner or asyncio).run(WAYS[way](client, keys)))
                    except (ShardKitError, redis.RedisError):
                        got.append("refused")
    assert got == [expected] * 2 * len(PUSHES) + ["refused"] * 2 * len(ENDING)


@pytest.fixture
def node() -> Iterator[ScriptedServer]:
    """A cluster."""
    with scripted(COMMAND=b"*0\r\n") as server:
        at = bulk(b"127.0.0.1") + b":%d\r\n" % server.port + bulk(b"a" * 40)
        server.answers["CLUSTER"] = b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + at
        yield server


@pytest.mark.parametrize("of", ["data", "slots"])
def test_garbage_of_a_cluster_is_an_error_of_the_tree(
    kind: str, of: str, node: ScriptedServer
) -> None:
    raw = []
    for garbage in OF_NODES:
        node.answers |= dict.fromkeys(NAMES if of == "data" else ("CLUSTER",), garbage)
        with faced(kind, described(node.port, cluster=True)) as face:
            raw += [(garbage, each) for each in raw_errors(face)]
    assert raw == []


def test_a_cluster_that_moves_endless_slots_is_an_error_of_the_tree(
    kind: str, node: ScriptedServer
) -> None:
    node.answers["GET"] = b":1\r\n"
    with faced(kind, described(node.port, cluster=True)) as face:
        assert error_of(face, CALLS["get"]) is None
        node.answers |= {"CLUSTER": ENDLESS, "GET": b"-MOVED 0 127.0.0.1:1\r\n"}
        assert raw_errors(face) == []


@pytest.mark.parametrize("name", ["GET", "CLUSTER"])
def test_a_cluster_that_drips_ends_with_the_exchange_timeout(
    kind: str, name: str, node: ScriptedServer
) -> None:
    node.answers[name] = drip
    with faced(kind, described(node.port, cluster=True, exchange_timeout=0.5)) as face:
        error = error_of(face, CALLS["get"])  # the reply takes 100 seconds
    assert isinstance(error, redis.RedisError | RedisClusterException)
    assert "were not complete after 0.5 seconds" in str(error)


@pytest.mark.parametrize("of", ["a config server", "a Sentinel"])
def test_a_config_server_or_sentinel_that_drips_ends_with_the_exchange_timeout(of: str) -> None:
    with scripted(**dict.fromkeys(("SCAN", "MGET", "GET", "SENTINEL"), drip)) as server:
        where: Any = Entry({"host": "127.0.0.1", "port": server.port, "exchange_timeout": 0.5})
        if of == "a Sentinel":
            asked = {"service": "m", "sentinels": [["127.0.0.1", server.port]]}
            where = map_of(c={"entry": {"sentinel": asked, "exchange_timeout": 0.5}})
        began = time.monotonic()
        with (
            connect(where) as kit,
            pytest.raises((redis.RedisError, ShardKitError), match="were not complete"),
        ):
            kit.client("c").get("x") if of == "a Sentinel" else kit.components()
        assert time.monotonic() - began < 30  # the reply takes 100


def said_by(command: str, place: object) -> str:
    """What a command says, which is no bug of ours."""
    result = CliRunner().invoke(app, [*command.split(), "-c", str(place)])
    assert result.exit_code in (0, 1, 2)
    assert "should not happen" not in result.output
    return result.output


@pytest.mark.parametrize("number", ["x", "", "9" * 5000, "1.5e400"])
@pytest.mark.parametrize(
    "command", ["status", "check", "clients", "doctor", "keys", "advise", "top --json"]
)
def test_a_number_that_is_none_is_said_of_the_server(
    number: str, command: str, tmp_path: Path
) -> None:
    said = f"redis_version:7.2.4\r\nused_memory:{number}\r\nconnected_clients:{number}\r\n"
    listed = f"id={number} addr=1.2.3.4:5 name= age={number} idle={number}\n"
    pages = {"SCAN": b"*2\r\n$1\r\n0\r\n*0\r\n", "ZRANGE": b"*0\r\n", "CONFIG": b"*0\r\n"}
    with scripted(INFO=bulk(said.encode()), CLIENT=bulk(listed.encode()), **pages) as server:
        path = tmp_path / "map.yaml"
        path.write_text(f"components: {{c: {{entry: {{port: {server.port}}}}}}}")
        assert said_by(command, path)


# What commands ask that once ended in an error that should not happen.
ASKED = {
    "config show": ("MGET", "SCAN"),
    "config diff {map}": ("MGET",),
    "status": ("ZRANGE", "GET", "SCAN"),
    "status --json": ("ZRANGE", "CONFIG"),
    "check": ("EXISTS", "ZRANGE", "GET", "SCAN"),
    "locate one k --in s --total 9": ("HGETALL",),
    "balance --heat --seconds 0.1": ("INFO", "CONFIG", "HMGET", "ZREVRANGE"),
    "replicas tree": ("INFO",),
    "move abort one": ("MGET",),
    "move shards one --to {other} --dry-run": ("COMMAND", "TYPE", "DUMP", "SCARD"),
}


@pytest.mark.parametrize("command", ASKED)
def test_a_command_says_what_reply_is_of_another_kind(command: str, tmp_path: Path) -> None:
    with (
        LocalServer() as server,
        LocalServer() as other,
        closing(Relay(server.port)) as relay,
        server.client() as config,
        server.client(db=1) as data,
    ):
        path = tmp_path / "map.yaml"
        path.write_text(f"components: {{one: {{shards: [{{port: {relay.port}, db: 1}}]}}}}")
        push(config, ShardMap.load(path))
        data.sadd("some", *range(1000))
        data.set("a", 1)
        words = command.format(map=path, other=f"127.0.0.1:{other.port}")
        said = ""
        for name in ASKED[command]:
            for reply in KINDS[: drawn(3, len(KINDS))]:
                relay.replaced = {name: reply}
                for place in (path, f"redis://127.0.0.1:{relay.port}"):
                    said += said_by(words, place)
    plans_all_the_same = command.endswith("--dry-run")
    assert "cannot be used" in said or "expected" in said or plans_all_the_same
