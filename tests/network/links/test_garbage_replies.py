"""A server that sends anything: one error of the tree, or of redis-py's, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from link_helpers import of, opened, two
from resources import bounded
from scripted_server import scripted

from shardkit import ShardKitError

REPLIES = {
    "a map with an array as key": b"%1\r\n*0\r\n+x\r\n",
    "an ASK without address": b"-ASK 99999 x\r\n",
    "a MOVED of words": b"-MOVED to another place\r\n",
    "pushes without end": b">2\r\n+a\r\n+b\r\n" * 10_000,
    "an attribute": b"|1\r\n+a\r\n+b\r\n+c\r\n",
    "a long map": b"%2147483647\r\n",
    "a long set after others": b"*30\r\n" + b"~0\r\n" * 29 + b"~2147483647\r\n",
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
