"""Rate limits: never more than allowed, against a model, and what users are told to wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from coordination_helpers import line, processes
from faces import PATIENCE, Exchanges, Face, eventually, holder

from shardkit import ShardKit, ShardMap
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    StaleTokenError,
)

BOTH = ["gcra", "sliding_window"]


@pytest.mark.parametrize("algorithm", BOTH)
def test_as_many_as_allowed_pass_and_the_rest_are_told_when(face: Face, algorithm: str) -> None:
    run = face.run
    limit = face.kit.rate_limit("api", component="many", limit=5, per=60, algorithm=algorithm)
    found = [run(limit.hit("u")) for _ in range(7)]
    assert [each.allowed for each in found] == [True] * 5 + [False] * 2
    assert [each.remaining for each in found] == [4, 3, 2, 1, 0, 0, 0]
    assert found[0].retry_after == 0
    expected = 12 if algorithm == "gcra" else 60
    assert expected - 2 < found[-1].retry_after <= expected
    assert 58 < found[-1].reset_after <= 60
    assert bool(found[0])
    assert not found[-1]
    assert run(limit.hit("v")).allowed
    assert run(limit.peek("u")).allowed is False
    assert run(limit.peek("v", 4)).allowed is True
    assert run(limit.peek("v", 5)).retry_after > 0
    assert run(limit.hit("v", 4)).allowed
    assert run(limit.hit("w", 6)) == (False, 5, float("inf"), 0)
    assert run(limit.reset("u", "w", "unknown")) == 1
    assert run(limit.hit("u", 5)).allowed


@pytest.mark.long(2)
@pytest.mark.parametrize("algorithm", BOTH)
def test_many_keys_go_in_one_exchange_with_each_shard(face: Face, algorithm: str) -> None:
    limit = face.kit.rate_limit("api", component="few", limit=2, per=60, algorithm=algorithm)
    keys = [f"u{n % 700}" for n in range(2100)]
    found = face.run(limit.hit_many(keys))
    assert [each.allowed for each in found] == [True] * 1400 + [False] * 700
    assert [each.allowed for each in face.run(limit.hit_many([("x", 3), ("x", 2), "x"]))] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("algorithm", BOTH)
def test_threads_that_wait_get_no_more_than_the_rate(kit: ShardKit, algorithm: str) -> None:
    limit = kit.rate_limit("api", component="one", limit=20, per=0.2, algorithm=algorithm)
    passed: list[float] = []

    def work() -> None:
        for _ in range(15):
            assert limit.wait("u")
            [seconds, micros] = kit.client("one").time()
            passed.append(seconds + micros / 1e6)

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result(30)
    passed.sort()
    most = 20 if algorithm == "sliding_window" else 40
    # What passed later than it was counted: a thread may have been held up in between.
    spans = [later - first for first, later in zip(passed, passed[most:], strict=False)]
    assert sorted(spans)[len(spans) // 2] > 0.15
    assert len(passed) == 60


def test_who_cannot_be_served_in_time_is_told_at_once(face: Face) -> None:
    limit = face.kit.rate_limit("api", component="one", limit=1, per=100)
    assert face.run(limit.wait("u", timeout=0))
    assert face.run(limit.wait("u", timeout=1)) is False
    assert face.run(limit.wait("u", 2)) is False


def test_a_burst_is_what_may_come_at_once(kit: ShardKit) -> None:
    limit = kit.rate_limit("api", component="one", limit=10, per=1000.0, burst=3)
    assert [limit.hit("u").allowed for _ in range(4)] == [True, True, True, False]
    assert 90 < limit.hit("u").retry_after <= 100


@pytest.mark.parametrize("algorithm", BOTH)
def test_a_clock_that_is_set_back_makes_nobody_wait_for_longer(
    kit: ShardKit, algorithm: str
) -> None:
    limit = kit.rate_limit("api", component="one", limit=2, per=10, algorithm=algorithm)
    client: Any = kit.client("one")
    [seconds, _] = client.time()
    future = (seconds + 86_400) * 1_000_000
    if algorithm == "gcra":
        client.set("api:u", future)
    else:
        client.zadd("api:u", {"0000000000000002 2": future})
    assert limit.peek("u").retry_after <= 10
    assert limit.hit("u").retry_after <= 10


@pytest.mark.parametrize("algorithm", BOTH)
def test_what_is_stored_goes_by_itself_and_is_checked(kit: ShardKit, algorithm: str) -> None:
    per = 0.3 * PATIENCE
    limit = kit.rate_limit("api", component="many", limit=2, per=per, algorithm=algorithm)
    assert limit.hit("u")
    client = holder(kit, "many", "api:u")
    assert 0 < client.pttl("api:u") <= 1000 * per + 2  # each of two roundings adds one
    assert eventually(lambda: not client.exists("api:u"))
    client.set("api:u", "text") if algorithm == "gcra" else client.zadd("api:u", {"x": 9e15})
    if algorithm == "gcra":
        with pytest.raises(DamagedDataError, match="api:u is damaged: text, where a time"):
            limit.hit("u")
    else:
        assert limit.hit("u")  # beyond the window: nothing of ours
        client.delete("api:u")
        client.zadd("api:u", {"x": sum(client.time()[:1]) * 1e6})
        with pytest.raises(DamagedDataError, match="api:u is damaged: x, where a sum"):
            kit.rate_limit("api", component="many", limit=2, per=60, algorithm=algorithm).hit("u")


@pytest.mark.parametrize("algorithm", BOTH)
def test_hits_that_the_other_algorithm_has_counted_are_named(face: Face, algorithm: str) -> None:
    other = BOTH[BOTH.index(algorithm) - 1]
    limits = {
        name: face.kit.rate_limit("api", component="many", limit=2, per=60, algorithm=name)
        for name in BOTH
    }
    face.run(limits[other].hit("u"))
    mine = limits[algorithm]
    for call in (lambda: mine.hit("u"), lambda: mine.peek("u"), lambda: mine.hit_many(["v", "u"])):
        with pytest.raises(ParameterMismatchError, match=f"'u' were counted by algorithm='{other}"):
            face.run(call())
    assert face.run(mine.reset("u")) == 1
    assert face.run(mine.hit("u")).allowed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, "limit=0"),
        ({"limit": 5, "per": 0}, "per=0"),
        ({"limit": 5, "algorithm": "leaky"}, "algorithm='leaky'; give one of gcra, sliding_window"),
        ({"limit": 5, "algorithm": "sliding_window", "burst": 2}, "burst=2 with a sliding window"),
        ({"limit": 100_001}, "give at most 100,000 a second"),
    ],
)
def test_what_is_wrong_is_named(kit: ShardKit, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kit.rate_limit("api", component="one", **arguments)
    limit = kit.rate_limit("api", component="one", limit=100_000)  # not too many
    assert limit.hit("u").allowed
    assert limit.reset() == 0
    with pytest.raises(InvalidArgumentError, match="hits=0"):
        limit.hit("u", 0)


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


@pytest.mark.parametrize("component", ["one", "many"])
def test_a_latch_opens_when_it_was_counted_down(kit: ShardKit, component: str) -> None:
    latch = kit.countdown_latch("x", component=component)
    assert latch.wait(0) is True  # never set
    assert latch.set(3) is True
    assert latch.set(5) is False
    assert latch.wait(0.01) is False
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(latch.wait) for _ in range(4)]
        assert [latch.count_down() for _ in range(2)] == [2, 1]
        assert not any(each.done() for each in waiting)
        assert latch.count_down(7) == 0
        assert all(each.result(20) for each in waiting)
    assert latch.count() == 0
    assert latch.count_down() == 0
    assert latch.set(1) is True
    client: Any = holder(kit, component, latch.key) if component == "many" else kit.client("one")
    client.hdel(latch.key, "count")
    with pytest.raises(DamagedDataError, match="no count"):
        latch.count()
    client.delete(latch.key)
    assert latch.count() == 0  # as if it was never set
    client.sadd(f"{latch.key}:waiters", "- waiter")
    with pytest.raises(DamagedDataError, match="no count"):
        latch.count()


def test_who_gives_up_as_it_opens_is_let_in(face: Face) -> None:
    latch = face.kit.countdown_latch("x", component="one")
    face.run(latch.set(1))
    waiting = Exchanges(face, latch.deferred.wait(0))
    for number, _ in enumerate(waiting):
        if number == 2:  # it has subscribed and asked, and gives up
            assert face.run(latch.count_down()) == 0
    assert waiting.result is True


def test_a_barrier_opens_when_all_are_there_and_forgets_who_gave_up(face: Face) -> None:
    run, barrier = face.run, face.kit.barrier("x", component="one", parties=2)
    assert run(barrier.wait(0.01)) is False
    assert run(barrier.wait(0)) is False  # the first has withdrawn
    assert run(face.kit.barrier("y", component="one", parties=1).wait()) is True
    if not face.runner:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(barrier.wait, 20)
            client: Any = face.kit.client("one")
            assert eventually(lambda: client.hlen("barrier:{x}:arrived") == 1)
            with pytest.raises(ParameterMismatchError, match="parties=3, but others wait for 2"):
                face.kit.barrier("x", component="one", parties=3).wait()
            assert barrier.wait(20) is True
            assert waiting.result(20) is True
        for wrong in ("x", 2**53):
            client.hset("barrier:{x}", "round", wrong)
            with pytest.raises(DamagedDataError, match=f"round={wrong}, where an integer"):
                barrier.wait(0)
        client.hset("barrier:{x}", "round", 2**53 - 1)  # the largest that is exact
        assert barrier.wait(0) is False


CANDIDATE = """
election = kit.election("x", component="one", label=argument, ttl=0.5)
leadership = election.campaign(blocking_timeout=None)
print(leadership.token, flush=True)
sys.stdin.readline()
"""


def test_a_leader_that_is_killed_is_followed_in_a_later_term(kit: Any, shard_map: ShardMap) -> None:
    election = kit.election("x", component="one", label="here")
    assert election.leader() is None
    with processes(CANDIDATE, shard_map, "first") as [first]:
        term = int(line(first))
        leader = election.leader()
        assert (leader.label, leader.token) == ("first", term)
        assert election.campaign(blocking_timeout=0) is None
        first.kill()
        first.wait()
        leadership = election.campaign(blocking_timeout=20)
    assert leadership.token > term
    leadership.guard("many").claim("data")
    assert election.resign(leadership)
    assert election.leader() is None
    later = election.campaign()
    later.guard("many").claim("data")
    with pytest.raises(StaleTokenError, match="give up the work under the lock, or"):
        leadership.guard("many").execute(("SET", "data", 1))


def test_steps_of_all_that_coordinates_go_in_one_exchange(face: Face) -> None:
    kit = face.kit
    lock = kit.lock("a", component="many", renew=False)
    found = kit.together(
        lock.deferred.locked(),
        kit.semaphore("b", component="many", limit=2, renew=False).deferred.acquire(),
        kit.countdown_latch("c", component="many").deferred.set(3),
        kit.barrier("d", component="many", parties=1).deferred.wait(),
        kit.election("e", component="many", renew=False).deferred.campaign(),
        kit.rate_limit("f", component="many", limit=5, per=60).deferred.hit("key"),
    )
    locked, semaphore, was_open, passed, elected, hit = face.run(found)
    assert (locked, was_open, passed, hit.allowed) == (False, True, True, True)
    assert [hold.name for hold in (semaphore, elected)] == ["b", "e"]
    assert face.run(kit.countdown_latch("c", component="many").count()) == 3
