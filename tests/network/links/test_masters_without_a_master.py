"""A server that lost its master is no master any more: what it refuses goes to its successor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from arranged import ask, map_of
from faces import Face, faced
from link_helpers import FACES, of

from shardkit import LuaScript, ShardMap
from shardkit.admin import push
from shardkit.local import LocalServer

COUNT = LuaScript("return redis.call('INCR', KEYS[1])")


@pytest.fixture(scope="module")
def old_and_new() -> Iterator[tuple[LocalServer, LocalServer]]:
    with LocalServer(config={"replica-serve-stale-data": "no"}) as old, LocalServer() as new:
        yield old, new


def described(server: LocalServer) -> ShardMap:
    return map_of(c={"shards": [{"port": server.port}]})


def done(face: Face, call: Callable[[], Any]) -> Any:
    """Make a call in the face's event loop, if it has one."""

    async def later() -> Any:
        return await of(call())

    return face.run(later()) if face.runner else call()


@pytest.mark.parametrize("kind", FACES)
def test_what_it_refuses_is_executed_by_the_new_master_in_the_same_call(
    kind: str, old_and_new: tuple[LocalServer, LocalServer]
) -> None:
    old, new = old_and_new
    ask(old, "replicaof", "NO", "ONE")
    for server in old_and_new:
        ask(server, "flushall")
    with new.client() as config:
        push(config, described(old), force=True, check=False)
        with faced(kind, f"redis://{new.address}") as face:
            words = face.kit.hash("words", component="c")
            counter = face.kit.key_sharded("c")
            face.run(words.hset("1", "old"))
            assert done(face, lambda: COUNT(counter["n"], keys=["n"])) == 1
            calls = {
                "structure": lambda: words.hget("1"),
                "client": lambda: counter["n"].get("n"),
                "script": lambda: COUNT(counter["n"], keys=["n"]),
            }
            for name, call in calls.items():
                ask(old, "replicaof", "127.0.0.1", 1)
                push(config, described(new), force=True, check=False)
                ask(new, "flushdb")
                push(config, described(new), force=True, check=False)
                assert done(face, call) == {"script": 1}.get(name)
                push(config, described(old), force=True, check=False)
                ask(old, "replicaof", "NO", "ONE")
                face.kit.topology.expire()
