"""Several locks at once, all or none; and one lock on a majority of servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
from faces import Face, faced

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import InvalidArgumentError, LockLostError, LockTimeoutError, NotHolderError
from shardkit.local import LocalServer


def test_several_locks_are_acquired_all_or_none(face: Face) -> None:
    run = face.run
    several = face.kit.multi_lock(["b", "a", "c"], component="many", wait=0.01)
    taken = face.kit.lock("c", component="many")
    hold = run(taken.acquire())
    assert run(several.acquire()) is None
    for name in "ab":
        assert not run(face.kit.lock(name, component="many").locked())
    run(taken.release(hold))
    holds = run(several.acquire())
    assert [each.name for each in holds] == ["a", "b", "c"]
    several.check()
    assert run(face.kit.lock("b", component="many").acquire(wait=0)) is None
    assert run(several.release()) is True
    with pytest.raises(NotHolderError):
        run(several.release())


def test_threads_that_want_the_same_locks_in_any_order_all_get_them(kit: ShardKit) -> None:
    def work(seed: int) -> int:
        random, done = Random(seed), 0
        for _ in range(15):
            names = random.sample("abcd", 3)
            with kit.multi_lock(names, component="many", wait=30):
                done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        assert [each.result(60) for each in [pool.submit(work, n) for n in range(4)]] == [15] * 4


def test_several_locks_are_told_when_one_is_lost(kit: ShardKit) -> None:
    several = kit.multi_lock(["a", "b"], component="many", renew=False)
    with pytest.raises(LockLostError, match="a lock was lost"), several:
        kit.lock("a", component="many").break_holds("test")
    with kit.lock("a", component="many"), pytest.raises(LockTimeoutError):
        kit.multi_lock(["a"], component="many", wait=0).__enter__()
    for names in ([], ["a", "a"]):
        with pytest.raises(InvalidArgumentError, match="each once"):
            kit.multi_lock(names, component="many")


@pytest.fixture(scope="module")
def three() -> Iterator[list[LocalServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(LocalServer()) for _ in range(3)]


def map_of(servers: list[LocalServer]) -> ShardMap:
    components = {f"q{n}": {"entry": {"port": each.port}} for n, each in enumerate(servers)}
    return ShardMap.parse(
        json.dumps({"defaults": {"socket_timeout": 0.3}, "components": components})
    )


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_majority_is_enough_and_tokens_increase(three: list[LocalServer], kind: str) -> None:
    with faced(kind, map_of(three)) as face:
        for server in three:
            with server.client() as client:
                client.flushall()
        lock = face.kit.quorum_lock("x", components=["q0", "q1", "q2"])
        other = face.kit.quorum_lock("x", components=["q0", "q1", "q2"], wait=0.05)
        first = face.run(lock.acquire())
        first.check()
        assert face.run(other.acquire()) is None
        assert face.run(lock.release()) is True
        # A server whose clock is ahead gave the first a large token, and is gone now.
        with three[0].client() as client:
            client.hset("quorum:{x}", "token", 9_000_000_000_000_000)
        ahead = face.run(lock.acquire())
        assert ahead.token == 9_000_000_000_000_001
        face.run(lock.release())
        three[0].pause()
        try:
            last = face.run(lock.acquire())
            assert last.token > ahead.token
            assert face.run(other.acquire()) is None
            assert face.run(lock.release()) is True
            three[1].pause()
            assert face.run(other.acquire()) is None
        finally:
            three[0].resume()
            three[1].resume()


def test_a_hold_on_a_majority_is_lost_with_it(three: list[LocalServer]) -> None:
    with shardkit.connect(map_of(three)) as kit:
        lock: Any = kit.quorum_lock("y", components=["q0", "q1", "q2"], renew=False, ttl=5)
        with lock as hold:
            hold.holds[0].lose("test")
            hold.check()
            hold.holds[1].lose("test")
            with pytest.raises(LockLostError, match="majority"):
                hold.check()
        with pytest.raises(InvalidArgumentError, match="at least three"):
            kit.quorum_lock("y", components=["q0", "q1"])
        with pytest.raises(NotHolderError):
            lock.release()
