"""A replica that refuses a read is not waited for: the master answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from arranged import map_of
from faces import PATIENCE, Face, eventually, faced
from faulty_proxy import FaultyProxy, faulty
from link_helpers import FACES, of

from shardkit.local import LocalServer

REFUSALS = {
    "loading": "LOADING Redis is loading the dataset in memory",
    "lost": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[LocalServer, FaultyProxy]]:
    """A master, and the way to its replica."""
    with (
        LocalServer(config={"repl-diskless-sync-delay": 0}) as master,
        LocalServer(replica_of=master) as replica,
        faulty(replica.port) as proxy,
    ):
        yield master, proxy


def done(face: Face, call: Callable[[], Any]) -> Any:
    """Make a call in the face's event loop, if it has one."""

    async def later() -> Any:
        return await of(call())

    return face.run(later()) if face.runner else call()


def reading(face: Face) -> dict[str, Any]:
    """Ways to read on a replica, by the command that it is sent."""
    words = face.kit.hash("words", component="c")
    router = face.kit.key_sharded("c")
    face.run(words.hset("1", "x"))
    done(face, lambda: router["k"].set("k", "x"))
    return {
        "HGET": lambda: words.hget("1"),
        "GET": lambda: router["k"].get("k"),
        "STRLEN": lambda: router.pipeline().strlen("k").execute(),
    }


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("kind", FACES)
def test_the_master_answers_for_a_replica_that_refuses(
    kind: str, refusal: str, pair: tuple[LocalServer, FaultyProxy]
) -> None:
    master, proxy = pair
    entry = {
        "port": master.port,
        "replicas": [{"port": proxy.port}],
        "read_from": "prefer_replica",
        "socket_timeout": 2 * PATIENCE,
    }
    asked = []
    with faced(kind, map_of(c={"shards": [entry]})) as face:
        for command, read in reading(face).items():

            def reaches_replica(command: str = command, read: Any = read) -> bool:
                seen = len(proxy.seen)
                done(face, read)
                return command in proxy.seen[seen:]

            assert eventually(reaches_replica)
            answer = done(face, read)
            before = proxy.seen.count(command)
            for _ in range(50):
                proxy.answer(REFUSALS[refusal], command)
            assert done(face, read) == answer
            asked.append(proxy.seen.count(command) - before)
            proxy.clear()
    assert max(asked) <= 1
