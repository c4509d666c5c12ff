"""A server that sends anything: one error of the tree, or of redis-py's, and no more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis
from arranged import map_of
from click.testing import CliRunner
from faces import drawn
from link_helpers import of, opened, two
from relays import Relay
from resources import bounded
from scripted_server import scripted

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
    "no RESP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("what", REPLIES)
async def test_garbage_is_an_error_of_the_tree(kind: str, what: str) -> None:
    names = ("GET", "EVALSHA", "EVAL", "INFO", "HELLO", "HGETALL")
    with scripted(**dict.fromkeys(names, REPLIES[what])) as server:
        shard_map = two(server.port, server.port, socket_timeout=2, max_reply_bytes=10**6)
        async with opened(kind, shard_map) as face:
            client: Any = await of(face.kit.client("data", 0))
            calls = (
                lambda: client.get("x"),
                lambda: client.pipeline(transaction=False).get("x").get("y").execute(),
                lambda: face.kit.set("s", component="data").sadd("x"),
                lambda: face.kit.hash("h", component="data").hget("x"),
            )
            raw: list[Exception] = []
            for call in calls:
                with bounded():
                    try:
                        await of(call())
                    except (ShardKitError, redis.RedisError):
                        pass
                    except Exception as error:
                        raw.append(error)
            assert raw == []


@pytest.mark.parametrize("number", ["x", "", "9" * 5000, "1.5e400"])
@pytest.mark.parametrize(
    "command", ["status", "check", "clients", "doctor", "keys", "advise", "top --json"]
)
def test_a_number_that_is_none_is_said_of_the_server(number: str, command: str) -> None:
    said = f"redis_version:7.2.4\r\nused_memory:{number}\r\nconnected_clients:{number}\r\n"
    listed = f"id={number} addr=1.2.3.4:5 name= age={number} idle={number}\n"
    pages = {"SCAN": b"*2\r\n$1\r\n0\r\n*0\r\n", "ZRANGE": b"*0\r\n", "CONFIG": b"*0\r\n"}
    with scripted(INFO=bulk(said), CLIENT=bulk(listed), **pages) as server:
        url = f"redis://127.0.0.1:{server.port}"
        with TemporaryDirectory() as folder:
            path = Path(folder) / "map.yaml"
            path.write_text(f"components: {{c: {{entry: {{url: '{url}'}}}}}}")
            result = CliRunner().invoke(app, [*command.split(), "-c", str(path)])
    assert result.exit_code in (0, 1)
    assert "should not happen" not in result.output


KINDS = (b":7\r\n", b"*0\r\n", b"$3\r\nabc\r\n", b"*1\r\n*0\r\n", b"*2\r\n:1\r\n:-1\r\n")
# What commands ask that once ended in an error that should not happen.
ASKED = {
    "config diff {map}": ("MGET",),
    "status --json": ("ZRANGE", "CONFIG"),
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
        path.write_text(f"components: {{one: {{entry: {{port: {relay.port}, db: 1}}}}}}")
        push(config, ShardMap.load(path))
        data.sadd("some", *range(1000))
        data.set("a", 1)
        words = command.format(map=path, other=f"127.0.0.1:{other.port}").split()
        wrong = []
        for name in ASKED[command]:
            for reply in KINDS[: drawn(2, len(KINDS))]:
                relay.replaced = {name: reply}
                at = ["-c", f"redis://127.0.0.1:{relay.port}"]
                result = CliRunner().invoke(app, [*words, *at])
                if result.exit_code not in (0, 1, 2) or "should not happen" in result.output:
                    wrong.append((name, reply, result.output))
        assert wrong == []


def bulk(text: str) -> bytes:
    return f"${len(text)}\r\n{text}\r\n".encode()


def drip(_: list[bytes]) -> Iterator[bytes]:
    """A reply of which each byte comes in time."""
    yield b"$1000\r\n"
    for _byte in range(1000):
        time.sleep(0.1)  # each byte comes well before a timeout
        yield b"x"


@pytest.mark.parametrize("of", ["a config server", "a Sentinel"])
def test_a_reply_that_drips_ends_with_the_exchange_timeout(of: str) -> None:
    with scripted(**dict.fromkeys(("SCAN", "MGET", "GET", "SENTINEL"), drip)) as server:
        where = {"host": "127.0.0.1", "port": server.port, "exchange_timeout": 0.5}
        began = time.monotonic()
        if of == "a Sentinel":
            asked = {"service": "m", "sentinels": [["127.0.0.1", server.port]]}
            entry = {"sentinel": asked, "exchange_timeout": 0.5}
            with (
                connect(map_of(c={"entry": entry})) as kit,
                pytest.raises(redis.RedisError, match="were not complete"),
            ):
                kit.client("c").get("x")
        else:
            with (
                connect(Entry(where)) as kit,
                pytest.raises(ShardKitError, match="were not complete"),
            ):
                kit.components()
        assert time.monotonic() - began < 30  # the reply takes 100
