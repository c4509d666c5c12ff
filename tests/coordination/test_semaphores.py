"""Semaphores and read-write locks: never more than may, in order, each with a time of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faces import Face, eventually

from shardkit.errors import InvalidArgumentError, ParameterMismatchError


def test_at_most_the_limit_hold_it_and_who_fails_is_told_at_once(face: Face) -> None:
    run, semaphore = face.run, face.kit.semaphore("s", component="many", limit=3)
    holds = [run(semaphore.acquire(blocking_timeout=0)) for _ in range(5)]
    assert [hold is not None for hold in holds] == [True, True, True, False, False]
    assert run(semaphore.release(holds[1]))
    assert run(semaphore.release(holds[1])) is False
    assert len(run(semaphore.inspect()).holders) == 2
    assert run(semaphore.acquire(blocking_timeout=0)) is not None
    assert run(semaphore.acquire(blocking_timeout=0)) is None


def test_every_holder_has_a_time_of_its_own(kit: Any) -> None:
    semaphore = kit.semaphore("s", component="one", limit=2, renew=False)
    long, short = semaphore.acquire(ttl=60), semaphore.acquire(ttl=0.05)
    assert semaphore.acquire(
        blocking_timeout=5, ttl=0.05
    )  # when the short one has ended, and not the long one
    assert semaphore.held(long)
    # What has ended by the server's clock is not refreshed, even if nobody has removed it yet.
    assert eventually(lambda: short.lost)
    assert semaphore.extend(5, short) is False
    assert semaphore.extend(5, long) is True
    assert len(semaphore.inspect().holders) <= 2


def test_the_limit_is_the_same_for_all_and_can_be_changed(face: Face) -> None:
    run = face.run
    two = face.kit.semaphore("s", component="one", limit=2)
    assert run(two.resize(2)) == 0
    assert run(two.acquire(blocking_timeout=0))
    with pytest.raises(ParameterMismatchError, match="limit=3, but it was created with 2"):
        run(face.kit.semaphore("s", component="one", limit=3).acquire())
    assert run(two.acquire(blocking_timeout=0))
    assert run(two.acquire(blocking_timeout=0)) is None
    assert run(two.resize(3)) == 2
    assert run(two.acquire(blocking_timeout=0))
    with pytest.raises(InvalidArgumentError, match="limit=0"):
        run(two.resize(0))


def test_readers_share_and_a_writer_waits_before_later_readers(kit: Any) -> None:
    def lock() -> Any:
        return kit.read_write_lock("x", component="many")

    order: list[str] = []

    def use(side: Any, text: str) -> None:
        with side:
            order.append(text)

    first, second = lock().read, lock().read
    a, b = first.acquire(blocking_timeout=0), second.acquire(blocking_timeout=0)
    assert lock().write.acquire(blocking_timeout=0) is None
    with ThreadPoolExecutor() as pool:
        waiting = []
        sides = [lock().write, lock().read, lock().read, lock().write]
        for n, (side, text) in enumerate(zip(sides, ["w1", "r", "r", "w2"], strict=True)):
            waiting.append(pool.submit(use, side, text))
            assert eventually(lambda n=n: len(first.inspect().waiters) == n + 1)
        assert lock().read.acquire(blocking_timeout=0) is None  # a writer waits
        first.release(a)
        assert order == []
        second.release(b)
        for each in waiting:
            each.result(30)
    assert order == ["w1", "r", "r", "w2"]
    state = lock().write.inspect()
    assert (state.holders, state.waiters) == ([], [])


def test_holders_share_only_while_none_excludes(face: Face) -> None:
    run, lock = face.run, face.kit.read_write_lock("x", component="one")
    writer = run(lock.write.acquire())
    assert run(lock.read.acquire(blocking_timeout=0)) is None
    assert [each.mode for each in run(lock.read.inspect()).holders] == ["exclusive"]
    run(lock.write.release(writer))
    readers = [run(lock.read.acquire(blocking_timeout=0)) for _ in range(5)]
    assert all(readers)
    assert run(lock.write.acquire(blocking_timeout=0)) is None
    assert repr(lock) == "ReadWriteLock('x', component='one')"
