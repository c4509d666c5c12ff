"""Several locks at once, all or none; and one lock on a majority of servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
from faces import Face, faced, holder
from redis.exceptions import NoPermissionError

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import (
    CommandsRefused,
    DamagedDataError,
    InvalidArgumentError,
    LockLostError,
    LockTimeoutError,
    NotHolderError,
)
from shardkit.local import LocalServer


def test_several_locks_are_acquired_all_or_none(face: Face) -> None:
    run = face.run
    several = face.kit.multi_lock(["b", "a", "c"], component="many", blocking_timeout=0.01)
    taken = face.kit.lock("c", component="many")
    hold = run(taken.acquire())
    assert run(several.acquire()) is None
    for name in "ab":
        assert not run(face.kit.lock(name, component="many").locked())
    run(taken.release(hold))
    holds = run(several.acquire())
    assert [each.name for each in holds] == ["a", "b", "c"]
    several.check()
    assert run(face.kit.lock("b", component="many").acquire(blocking_timeout=0)) is None
    assert run(several.release()) is True
    with pytest.raises(NotHolderError, match=r"a\+b\+c: not held; acquire it first"):
        run(several.release())


def test_when_one_of_several_locks_fails_the_others_are_released(face: Face, kit: ShardKit) -> None:
    holder(kit, "many", "lock:{b}").set("lock:{b}", "text")
    with pytest.raises(DamagedDataError, match="a STRING"):
        face.run(face.kit.multi_lock(["a", "b"], component="many").acquire())
    assert not kit.lock("a", component="many").locked()


def test_threads_that_want_the_same_locks_in_any_order_all_get_them(kit: ShardKit) -> None:
    def work(seed: int) -> int:
        random, done = Random(seed), 0
        for _ in range(15):
            names = random.sample("abcd", 3)
            with kit.multi_lock(names, component="many", blocking_timeout=30):
                done += 1
        return done

    with ThreadPoolExecutor(4) as pool:
        assert [each.result(60) for each in [pool.submit(work, n) for n in range(4)]] == [15] * 4


def test_several_locks_are_told_when_one_is_lost(kit: ShardKit) -> None:
    several = kit.multi_lock(["a", "b"], component="many", renew=False)
    with pytest.raises(LockLostError, match="a lock was lost"), several:
        kit.lock("a", component="many").break_holds("test")
    with (
        kit.lock("a", component="many"),
        pytest.raises(LockTimeoutError, match="a: timed out after 0 s"),
    ):
        kit.multi_lock(["a"], component="many", blocking_timeout=0).__enter__()
    for names in ([], ["a", "a"]):
        with pytest.raises(InvalidArgumentError, match="each once"):
            kit.multi_lock(names, component="many")


def test_a_hold_of_another_lock_is_refused_and_stays_held(face: Face) -> None:
    run = face.run
    lock = face.kit.lock("other", component="many")
    hold = run(lock.acquire())
    several = face.kit.multi_lock(["a", "b"], component="many")
    held = run(several.acquire())
    for release, given in (
        (face.kit.lock("a", component="many").release, hold),
        (face.kit.lock("other", component="one").release, hold),
        (face.kit.semaphore("other", component="many", limit=1).release, hold),
        (several.release, [held[0], hold]),
        (several.release, [held[0], 5]),
    ):
        with pytest.raises(InvalidArgumentError, match=r"hold.*give .* acquire returned"):
            run(release(given))
    with pytest.raises(InvalidArgumentError, match=r"hold=<Hold of lock:\{other\}"):
        run(face.kit.lock("a", component="many").extend(hold=hold))
    assert not hold.released
    assert run(lock.release(hold)) is True
    assert run(several.release(held)) is True


@pytest.mark.parametrize("wait", [-1, -5, 1e12])
def test_how_long_to_wait_is_checked_before_anything_is_acquired(
    kit: ShardKit, wait: float
) -> None:
    several = kit.multi_lock(["a"], component="many")
    quorum = kit.quorum_lock("q", components=["x", "y", "z"])  # there are no such servers
    for lock in (several, quorum):
        with pytest.raises(InvalidArgumentError, match=r"blocking_timeout=.*give seconds, 0 to"):
            lock.acquire(blocking_timeout=wait)
    assert not kit.lock("a", component="many").locked()
    with pytest.raises(InvalidArgumentError, match="blocking_timeout="):
        kit.quorum_lock("q", components=["x", "y", "z"], blocking_timeout=wait)
    with pytest.raises(InvalidArgumentError, match="blocking_timeout="):
        kit.multi_lock(["a"], component="many", blocking_timeout=wait)
    with pytest.raises(InvalidArgumentError, match=r"components=\['x', 'y', 5\]"):
        kit.quorum_lock("q", components=["x", "y", 5])  # type: ignore[list-item]


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
        other = face.kit.quorum_lock("x", components=["q0", "q1", "q2"], blocking_timeout=0.05)
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


async def test_a_block_has_a_lock_of_a_majority_or_is_told_that_it_was_not_to_be_had(
    three: list[LocalServer],
) -> None:
    places = ["q0", "q1", "q2"]
    with shardkit.connect(map_of(three)) as kit:
        async with await shardkit.aconnect(map_of(three)) as akit:
            lock = akit.quorum_lock("w", components=places, blocking_timeout=0)
            said = r"quorum:\{w\}: timed out after 0 s; wait longer, or check for servers"
            async with lock as held:
                held.check()
                with pytest.raises(LockTimeoutError, match=said):
                    await akit.quorum_lock("w", components=places, blocking_timeout=0).__aenter__()
                with pytest.raises(LockTimeoutError, match=said):
                    kit.quorum_lock("w", components=places, blocking_timeout=0).__enter__()
            with kit.quorum_lock("w", components=places, blocking_timeout=0) as again:
                assert again.token > held.token


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_what_is_damaged_on_a_minority_does_no_harm_and_on_a_majority_is_named(
    three: list[LocalServer], kind: str
) -> None:
    with faced(kind, map_of(three)) as face:
        for server in three:
            with server.client() as client:
                client.flushall()
        lock = face.kit.quorum_lock("x", components=["q0", "q1", "q2"], blocking_timeout=0)
        other = face.kit.quorum_lock("x", components=["q0", "q1", "q2"], blocking_timeout=0)
        for server, damaged in zip(three, (False, True, True), strict=True):
            assert face.run(lock.acquire())
            assert face.run(other.acquire()) is None
            assert face.run(lock.release()) is True
            if damaged:
                with server.client() as client:
                    client.hset("quorum:{x}", "token", "x")
        with pytest.raises(DamagedDataError, match=r"q[12]: quorum:\{x\} is damaged: token=x"):
            face.run(lock.acquire())


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_rights_that_a_majority_lacks_are_named_at_once(
    three: list[LocalServer], kind: str
) -> None:
    with faced(kind, map_of(three)) as face:
        lock = face.kit.quorum_lock("r", components=["q0", "q1", "q2"], blocking_timeout=None)
        for server in three[1:]:
            assert face.run(lock.acquire())
            assert face.run(lock.release()) is True
            with server.client() as client:
                client.execute_command("ACL", "SETUSER", "default", "-evalsha")
        try:
            with pytest.raises(CommandsRefused, match="2 shards failed") as refused:
                face.run(lock.acquire())
            assert isinstance(refused.value.error, NoPermissionError)
        finally:
            for server in three[1:]:
                with server.client() as client:
                    client.execute_command("ACL", "SETUSER", "default", "+evalsha")


def test_a_hold_on_a_majority_is_lost_with_it(three: list[LocalServer]) -> None:
    with shardkit.connect(map_of(three)) as kit:
        lock: Any = kit.quorum_lock("y", components=["q0", "q1", "q2"], renew=False, ttl=5)
        other = kit.quorum_lock("z", components=["q0", "q1", "q2"])
        with lock as hold:
            with pytest.raises(InvalidArgumentError, match=r"q0 quorum:.y. is of another lock"):
                other.release(hold)
            hold.holds[0].lose("test")
            hold.check()
            hold.holds[1].lose("test")
            with pytest.raises(LockLostError, match="majority"):
                hold.check()
        assert lock.acquire()
        for server in three[:2]:
            with server.client() as client:
                client.flushall()
        assert lock.release() is False
        with pytest.raises(InvalidArgumentError, match="at least three"):
            kit.quorum_lock("y", components=["q0", "q1"])
        with pytest.raises(NotHolderError, match=r"quorum:\{y\}: not held; acquire it first"):
            lock.release()
