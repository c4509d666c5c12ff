"""`lpos` and `linsert` search a list in steps, between which others write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faces import Exchanges

from shardkit import ShardKit


@pytest.fixture
def jobs(kit: ShardKit, lower: Any) -> Any:
    """A list of five parts, each searched by a script of its own."""
    lower(list_search=1, list_step=1)
    parts = kit.list("jobs", component="many", part_size=4)
    parts.rpush("a", "b", "x", "c", "d", "x", "e", "f", "g", "h", "i", "x", "j", "k", "l", "m", "x")
    return parts


def between(kit: ShardKit, steps: Any, at: int, act: Callable[[], Any]) -> Any:
    """Run an operation; act before its exchange of this number."""
    operation = Exchanges(kit, steps)
    assert operation.stop_after(at)
    act()
    return operation.end()


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
