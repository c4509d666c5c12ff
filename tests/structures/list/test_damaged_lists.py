"""Lists whose stored ends contradict their parts, or are no numbers at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faces import Face, holder

from shardkit import DamagedDataError, ShardKit

CALLS: dict[str, Callable[[Any], Any]] = {
    "lpop": lambda jobs: jobs.lpop(5),
    "rpop": lambda jobs: jobs.rpop(5),
    "rpush": lambda jobs: jobs.rpush(*range(9)),
    "lpush_many": lambda jobs: jobs.lpush(*range(9)),
    "ltrim": lambda jobs: jobs.ltrim(1, 2),
    "expire": lambda jobs: jobs.expire(100),
    "lrem": lambda jobs: jobs.lrem(0, "3"),
    "linsert": lambda jobs: jobs.linsert("BEFORE", "10", "y"),
    "lpos": lambda jobs: jobs.lpos("10"),
    "lrange": lambda jobs: jobs.lrange(0, -1),
    "lindex": lambda jobs: jobs.lindex(-1),
    "llen": lambda jobs: jobs.llen(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "damage",
    [
        {"last": 2147483648},
        {"last": "2e3"},
        {"first": -(2**52)},
        {"first": 9},
        {"left": 0},
        {"right": 10**6},
        {"right": "x"},
        {"part_size": 7},
    ],
)
def test_a_damaged_number_is_named_and_nothing_is_written(
    face: Face, kit: ShardKit, call: str, damage: dict[str, Any]
) -> None:
    client = holder(kit, "many", "jobs")
    face.run(face.kit.list("jobs", component="many", part_size=3).rpush(*range(11)))
    client.hset("{jobs}:ends", mapping=damage)
    before = {key: client.dump(key) for key in client.scan_iter()}
    jobs = face.kit.list("jobs", component="many", part_size=3)
    with pytest.raises(DamagedDataError) as raised:
        face.run(CALLS[call](jobs))
    assert raised.value.key.startswith("{jobs}:")
    assert raised.value.component == "many"
    assert raised.value.shard.startswith("many:")
    assert {key: client.dump(key) for key in client.scan_iter()} == before


@pytest.mark.parametrize("lost", ["{jobs}:0", "{jobs}:1", "{jobs}:3", "{jobs}:ends"])
def test_a_lost_part_is_named_before_anything_is_popped(
    face: Face, kit: ShardKit, lost: str
) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=3)
    client = holder(kit, "many", "jobs")
    face.run(jobs.rpush(*range(11)))
    client.delete(lost)
    before = {key: client.dump(key) for key in client.scan_iter()}
    for call in (
        lambda: jobs.lpop(11),
        lambda: jobs.rpop(11),
        lambda: jobs.lrange(0, -1),
        lambda: jobs.lrem(0, 5),
    ):
        with pytest.raises(DamagedDataError) as raised:
            face.run(call())
        assert raised.value.key == lost
    with pytest.raises(DamagedDataError, match="was expected; restore it, or delete it"):
        face.list(jobs.items())
    assert {key: client.dump(key) for key in client.scan_iter()} == before
