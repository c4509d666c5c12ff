"""A server that lost its master is no master any more: what it refuses goes to its successor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from arranged import ask, map_of
from faces import Face, faced
from link_helpers import FACES, of

from shardkit import LuaScript, ShardMap
from shardkit.admin import push
from shardkit.local import LocalServer

COUNT = LuaScript("return redis.call('INCR', KEYS[1])")


Three: TypeAlias = tuple[LocalServer, LocalServer, LocalServer]


@pytest.fixture
def three() -> Iterator[Three]:
    """The old master, the new one, and the config server."""
    with (
        LocalServer(config={"replica-serve-stale-data": "no"}) as old,
        LocalServer() as new,
        LocalServer() as config,
    ):
        yield old, new, config


def described(server: LocalServer) -> ShardMap:
    return map_of(c={"shards": [{"port": server.port}]})


def done(face: Face, call: Callable[[], Any]) -> Any:
    """Make a call in the face's event loop, if it has one."""

    async def later() -> Any:
        return await of(call())

    return face.run(later()) if face.runner else call()


@pytest.mark.parametrize("call", ["structure", "client", "script"])
@pytest.mark.parametrize("kind", FACES)
def test_what_it_refuses_is_executed_by_the_new_master_in_the_same_call(
    kind: str, call: str, three: Three
) -> None:
    old, new, config = three
    with config.client() as client:
        push(client, described(old), force=True, check=False)
        with faced(kind, f"redis://{config.address}") as face:
            words = face.kit.hash("words", component="c")
            counter = face.kit.key_sharded("c")
            calls = {
                "structure": lambda: words.hget("1"),
                "client": lambda: counter["n"].get("n"),
                "script": lambda: COUNT(counter["n"], keys=["n"]),
            }
            face.run(words.hset("1", "old"))
            assert done(face, calls["script"]) == 1
            ask(old, "replicaof", "127.0.0.1", 1)
            push(client, described(new), force=True, check=False)
            assert done(face, calls[call]) == {"script": 1}.get(call)
