"""Lists whose stored ends contradict their parts, or are not numbers."""

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


@pytest.mark.long(48)
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
def test_lost_parts_stop_a_pop(face: Face, kit: ShardKit, lost: str) -> None:
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


def test_a_list_with_one_part_has_one_number_of_values(face: Face, kit: ShardKit) -> None:
    client = holder(kit, "many", "jobs")
    face.run(face.kit.list("jobs", component="many", part_size=3).rpush(1, 2))
    client.hset("{jobs}:ends", "right", 1)
    for call in CALLS.values():
        with pytest.raises(DamagedDataError, match="left=2 right=1, where the same number twice"):
            face.run(call(face.kit.list("jobs", component="many", part_size=3)))


@pytest.mark.parametrize("end", ["{jobs}:0", "{jobs}:3"])
def test_a_changed_end_part_is_detected(face: Face, kit: ShardKit, end: str) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=3)
    face.run(jobs.rpush(*range(11)))
    assert face.run(jobs.lindex(4)) == "4"
    holder(kit, "many", "jobs").rpush(end, "x")
    with pytest.raises(DamagedDataError, match=f"{end}".replace("{", r"\{").replace("}", r"\}")):
        face.run(jobs.lindex(4))


def test_a_check_of_a_list_whose_last_part_is_far_away_ends(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=1)
    face.run(jobs.rpush(*range(100)))
    client = holder(kit, "many", "jobs")
    client.rename("{jobs}:99", "{jobs}:1000000000000")
    client.hset("{jobs}:ends", "last", 10**12)
    found = face.list(jobs.check())
    assert {each.found for each in found} == {"0 values"}
    assert len(found) == 64 - 99 % 64 + 64
    assert face.run(jobs.rebuild()) == 100


def test_a_list_without_parts_is_rebuilt_empty(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=3)
    face.run(jobs.rpush(*range(5)))
    holder(kit, "many", "jobs").delete("{jobs}:0", "{jobs}:1")
    [found] = face.list(jobs.check())
    assert found.loses == "values of lost parts, lost already"
    assert face.run(jobs.rebuild()) == 0
    assert face.list(jobs.check()) == []
    assert not holder(kit, "many", "jobs").exists("{jobs}:signal")
    assert face.run(jobs.rpush("new")) == 1
    assert face.run(jobs.blpop(1)) == "new"


def test_the_parts_of_a_list_are_found_among_many_other_keys(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("jobs", component="one", part_size=3)
    face.run(jobs.rpush(*range(11)))
    client: Any = kit.client("one")
    client.mset({f"other:{n}": n for n in range(4000)})
    client.hset("{jobs}:ends", "first", "x")
    assert face.run(jobs.rebuild()) == 11
    assert client.lrange("{jobs}:signal", 0, -1) == [b"1"]  # there are values to wake for
    assert face.run(jobs.lrange(0, -1)) == list(map(str, range(11)))
    assert client.dbsize() == 4000 + 4 + 3


@pytest.mark.parametrize("beyond", ["{jobs}:-1", "{jobs}:4"])
def test_a_full_part_beyond_an_end_is_damage(face: Face, kit: ShardKit, beyond: str) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=3)
    face.run(jobs.rpush(*range(11)))
    holder(kit, "many", "jobs").rpush(beyond, *"xyz")
    for call in (lambda: face.run(jobs.rpush("new")), lambda: face.run(jobs.llen())):
        with pytest.raises(DamagedDataError, match=f"first=0 last=3, where {beyond} within"):
            call()
    assert face.run(jobs.rebuild()) == 14
