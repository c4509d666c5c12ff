"""`lpos` and `linsert` search a list in steps, between which others write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faces import Exchanges, Face, holder

from shardkit import ShardKit
from shardkit.structures.list import scripts


@pytest.fixture
def jobs(kit: ShardKit, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A list of five parts, each searched by a script of its own."""
    monkeypatch.setattr(scripts, "PARTS_PER_SEARCH", 1)
    monkeypatch.setattr(scripts, "PARTS_PER_STEP", 1)
    parts = kit.list("jobs", component="many", part_size=4)
    parts.rpush("a", "b", "x", "c", "d", "x", "e", "f", "g", "h", "i", "x", "j", "k", "l", "m", "x")
    return parts


def between(kit: ShardKit, steps: Any, at: int, act: Callable[[], Any]) -> Any:
    """Run an operation; act before its exchange of this number."""
    operation = Exchanges(kit, steps)
    assert operation.stop_after(at)
    act()
    return operation.end()


@pytest.mark.parametrize(("size", "most"), [(10_000, 2), (1000, 20), (10, 500)])
@pytest.mark.parametrize("search", ["lpos", "linsert"])
def test_searches_are_limited_per_script(kit: ShardKit, search: str, size: int, most: int) -> None:
    jobs = kit.list("jobs", component="many", part_size=size)
    jobs.rpush_many(range(12 * most * size // 5))
    client: Any = holder(kit, "many", jobs.meta_key)
    searches = {
        "lpos": lambda: jobs.deferred.lpos("none", count=0),
        "linsert": lambda: jobs.deferred.linsert("BEFORE", "none", "new"),
    }
    searched = []

    def count(_: Any) -> None:
        stats = client.info("commandstats")
        searched.append(stats.get("cmdstat_lpos", {"calls": 0})["calls"])
        client.config_resetstat()

    client.config_resetstat()
    found = Exchanges(kit, searches[search]()).end(before=count)
    count(None)
    assert found == {"lpos": [], "linsert": -1}[search]
    assert searched[-3:] == [most, most, -(-12 * most // 5) - 2 * most]
    assert sum(searched) == -(-12 * most // 5)


@pytest.mark.parametrize("rank", [1, 2, -1, -2])
@pytest.mark.parametrize("at", range(1, 5))
def test_indexes_are_from_the_last_step(kit: ShardKit, jobs: Any, rank: int, at: int) -> None:
    def push_and_pop() -> None:
        jobs.lpush(*range(6))
        jobs.lpop(9)  # with the first "x"
        jobs.rpush("n", "o")
        jobs.rpop(4)  # with the last one

    found = between(kit, jobs.deferred.lpos("x", rank=rank, count=0), at, push_and_pop)
    stayed = [index for index, value in enumerate(jobs.items()) if value == "x"]
    assert stayed == [2, 8]
    assert found == (stayed if rank > 0 else stayed[::-1])


@pytest.mark.parametrize("rank", [1, -1])
@pytest.mark.parametrize("at", range(1, 5))
def test_shrunken_lists_are_searched_again(kit: ShardKit, jobs: Any, rank: int, at: int) -> None:
    def shrink() -> None:
        jobs.lpop(16)
        jobs.lpush("x", "y")

    found = between(kit, jobs.deferred.lpos("x", rank=rank, count=0), at, shrink)
    assert jobs.lrange(0, -1) == ["y", "x", "x"]
    assert found == ([1, 2] if rank > 0 else [2, 1])


def test_insertions_survive_concurrent_writes(kit: ShardKit, jobs: Any) -> None:
    def write() -> None:
        jobs.lpop(6)
        jobs.lpush("j")  # where it has searched already
        jobs.rpush("n")

    assert between(kit, jobs.deferred.linsert("AFTER", "j", "new"), 3, write) == 14
    values = ["j", "e", "f", "g", "h", "i", "x", "j", "new", "k", "l", "m", "x", "n"]
    assert jobs.lrange(0, -1) == values
    assert list(jobs.check()) == []


def test_no_insertion_beside_a_removed_value(kit: ShardKit, jobs: Any) -> None:
    steps = jobs.deferred.linsert("AFTER", "j", "new")
    assert between(kit, steps, 2, lambda: jobs.lrem(1, "j")) == -1
    steps = jobs.deferred.linsert("AFTER", "m", "new")
    assert between(kit, steps, 2, lambda: jobs.delete()) == 0
    assert jobs.llen() == 0


def test_all_indexes_are_found_over_many_steps(face: Face) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=1000)
    face.run(jobs.rpush_many(n % 2 for n in range(45_000)))
    assert face.run(jobs.lpos("1", count=0)) == list(range(1, 45_000, 2))
    assert face.run(jobs.lpos("1", rank=-2, count=0)) == list(range(44_997, 0, -2))
    assert face.run(jobs.lpos("0", rank=22_001, count=3)) == [44_000, 44_002, 44_004]
    assert face.run(jobs.lpos("0", rank=22_001, maxlen=44_000)) is None
    assert face.run(jobs.linsert("BEFORE", "2", "x")) == -1
