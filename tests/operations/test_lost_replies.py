"""A command whose reply is lost is sent again, and says what it did the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faces import Face, faced

from shardkit import ShardMap
from shardkit.messaging import RecordTally, Total
from shardkit.testing import MemoryServers

IN: Any = {"component": "data"}


def join(face: Face, name: str) -> Any:
    chats = face.kit.chats(**IN)
    face.run(chats.create("ada", [], chat=name))
    return chats.deferred.join(name, "bob", "eve", "ada")


def acknowledge(face: Face, name: str) -> Any:
    chats = face.kit.chats(**IN)
    face.run(chats.create("ada", [], "hello", chat=name))
    return chats.deferred.acknowledge(name, "ada", 1)


def create(face: Face, name: str) -> Any:
    return face.kit.files(**IN).deferred.create(name, ["ada"])


def close(face: Face, name: str) -> Any:
    face.run(face.kit.files(**IN).create(name, ["ada"]))
    return face.kit.files(**IN).deferred.close(name)


def release_messages(face: Face, name: str) -> Any:
    boxes = face.kit.mailboxes(**IN)
    face.run(boxes.send(name, "ada", "hello"))
    return boxes.deferred.release(name, face.run(boxes.fetch(name, lease=60)))


def flush(face: Face, name: str) -> Any:
    tally = RecordTally(str, lambda key: [Total(name, "kind", key)])
    tally.add(["a", "b", "a"])
    return face.kit.totals(**IN).deferred.flush("source", tally)


def resize(face: Face, name: str) -> Any:
    seats = face.kit.semaphore(name, limit=3, **IN)
    face.run(seats.resize(3))
    return seats.deferred.resize(5)


def break_holds(face: Face, name: str) -> Any:
    lock = face.kit.lock(name, **IN)
    assert face.run(lock.acquire())
    return lock.deferred.break_holds("test")


def release(face: Face, name: str) -> Any:
    lock = face.kit.lock(name, **IN)
    return lock.deferred.release(face.run(lock.acquire()))


CALLS: dict[Callable[[Face, str], Any], Any] = {
    join: 2,
    acknowledge: True,
    create: True,
    close: True,
    release_messages: 1,
    flush: True,
    resize: 3,
    break_holds: 1,
    release: True,
}


def losing_replies(server: Any, steps: Any) -> Any:
    """Run steps, and lose the first reply of each exchange."""
    answer = None
    try:
        while True:
            step = steps.send(answer)
            server.lose_answer()
            answer = yield step
    except StopIteration as done:
        return done.value


@pytest.fixture(params=["blocking", "awaiting"])
def lossy(request: pytest.FixtureRequest) -> Any:
    servers = MemoryServers(ShardMap.parse("components: {data: {entry: {}}}"))
    with faced(request.param, servers.shard_map, connector=servers) as face:

        def lose(steps: Any) -> Any:
            return face.run(face.kit.driver.run(losing_replies(servers.server_of("data"), steps)))

        yield face, lose


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_call_whose_reply_is_lost_returns_what_it_did(lossy: Any, call: Any) -> None:
    face, lose = lossy
    face.run(face.kit.driver.run(call(face, "known")))  # the servers know the scripts after that
    assert lose(call(face, "x")) == CALLS[call]


def test_a_reentrant_acquisition_and_its_release_count_once(lossy: Any) -> None:
    face, lose = lossy
    lock = face.kit.lock("x", reentrant=True, owner="ada", **IN)

    def times() -> list[int]:
        return [holder.acquired for holder in face.run(lock.inspect()).holders]

    holds = [face.run(lock.acquire()), lose(lock.deferred.acquire())]
    assert times() == [2]
    other = face.kit.lock("x", **IN)
    for hold, left in zip(holds, ([1], []), strict=True):
        assert face.run(other.acquire(blocking_timeout=0)) is None
        assert lose(lock.deferred.release(hold)) is True
        assert times() == left
        assert face.run(lock.release(hold)) is False
        assert times() == left
    assert face.run(other.acquire(blocking_timeout=0))
