"""Rate limits: never more than allowed, against a model, and what users are told to wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faces import Face, holder

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError

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
    limit = kit.rate_limit("api", component="one", limit=1000, per=1000.0, burst=3)
    assert [limit.hit("u").allowed for _ in range(4)] == [True, True, True, False]
    assert 0.9 < limit.hit("u").retry_after <= 1


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
    limit = kit.rate_limit("api", component="many", limit=2, per=0.05, algorithm=algorithm)
    assert limit.hit("u")
    client = holder(kit, "many", "api:u")
    assert 0 < client.pttl("api:u") <= 51
    threading.Event().wait(0.06)  # longer than `per`
    assert client.exists("api:u") == 0
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
