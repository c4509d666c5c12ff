"""Near copies of servers that answer but announce no changes: busy ones, or without a right."""

from __future__ import annotations

import json
import socket
import time
from contextlib import closing, suppress
from typing import Any

import pytest
import redis
from faces import PATIENCE, eventually

import shardkit
from shardkit import ShardErrors, ShardMap
from shardkit.local import LocalServer

LARGE = 10_000_000
SPIN = "local ends = os.clock() + ARGV[1] / 1000 while os.clock() < ends do end"


def map_of(server: LocalServer, **fields: Any) -> ShardMap:
    entry = {"port": server.port, "socket_timeout": 1, "breaker": False, **fields}
    return ShardMap.parse(json.dumps({"components": {"many": {"shards": [entry]}}}))


def spinning(milliseconds: int) -> bytes:
    parts = [b"EVAL", SPIN.encode(), b"0", b"%d" % milliseconds]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def write_before_it_is_busy(server: LocalServer, client: redis.Redis) -> bool:
    """Make it busy right after a write, in the same turn of its loop; return whether that went."""
    ways = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    with closing(ways[0]) as first, closing(ways[1]) as writer, closing(ways[2]) as last:
        first.sendall(spinning(100))  # the others arrive meanwhile, in this order
        time.sleep(0.03)  # until it executes that
        writer.sendall(b"SET k new\r\n")
        time.sleep(0.03)  # until that has come
        last.sendall(spinning(3_600_000))
        writer.settimeout(20 * PATIENCE)
        if writer.recv(100) == b"+OK\r\n":
            return True
        client.script_kill()
        return False


def answer(router: Any) -> Any:
    with suppress(ShardErrors, redis.RedisError):
        return router.get("k")
    return None


def test_a_busy_server_confirms_nothing() -> None:
    """It answers HELLO, but does not announce what it has executed before it became busy."""
    with LocalServer() as server, server.client() as client:
        # The milliseconds until it says that it is busy: before an answer is missed.
        client.config_set("lua-time-limit", 600)
        client.set("k", "old")
        with shardkit.connect(map_of(server)) as kit:
            router = kit.near("many", LARGE, max_age=0.5).key_sharded("many")
            [copies] = kit.near_copies.values()  # nothing else shows that there is a copy
            assert eventually(lambda: router.get("k") and copies.copies)
            assert eventually(lambda: write_before_it_is_busy(server, client))
            time.sleep(0.5 + 0.1 * PATIENCE)  # until no copy may be used
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                assert answer(router) is None
            client.script_kill()
            assert eventually(lambda: answer(router) == b"new")


@pytest.mark.parametrize("refused", ["client|tracking", "ping"])
def test_without_a_right_that_announcements_need_a_copy_is_used_for_its_age(refused: str) -> None:
    with LocalServer() as server, server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", f"-{refused}"
        )
        with shardkit.connect(map_of(server, username="app", password="pw")) as kit:
            router = kit.near("many", LARGE, max_age=0.3).key_sharded("many")

            def is_kept() -> bool:
                client.set("k", 1)
                assert router.get("k") in (None, b"1", b"2")
                client.set("k", 2)
                return router.get("k") == b"1"

            assert eventually(is_kept)
            assert eventually(lambda: router.get("k") == b"2")
