"""Changes of many parts take steps: other clients see all of a change or nothing; damaged ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from faces import Exchanges, Face, holder

from shardkit import DamagedDataError, ShardKit
from shardkit.errors import ParameterMismatchError
from shardkit.structures.list import scripts

VALUES = [*"axbxcxdxexfxgxhx", "y", *"ixjxkxlx"]  # 25, in parts of 2

# What is done, and what it leaves of VALUES.
CHANGES: dict[str, tuple[Callable[[Any], Any], Any, list[str]]] = {
    "lrem all": (lambda jobs: jobs.lrem(0, "x"), 12, [*"abcdefghyijkl"]),
    "lrem left": (lambda jobs: jobs.lrem(5, "x"), 5, [*"abcdefxgxhxyixjxkxlx"]),
    "lrem right": (lambda jobs: jobs.lrem(-5, "x"), 5, [*"axbxcxdxexfxgxhyijkl"]),
    "linsert": (lambda jobs: jobs.linsert("BEFORE", "y", "z"), 26, [*"axbxcxdxexfxgxhxzyixjxkxlx"]),
    "ltrim": (lambda jobs: jobs.ltrim(9, -9), True, [*"xfxgxhxy"]),
    "ltrim all": (lambda jobs: jobs.ltrim(5, 2), True, []),
    "delete": (lambda jobs: jobs.delete(), True, []),
    "expire": (lambda jobs: jobs.expire(100), True, VALUES),
    "persist": (lambda jobs: jobs.persist(), True, VALUES),
    "expire at once": (lambda jobs: jobs.expire(0), True, []),
}
USES: dict[str, tuple[Callable[[Any], Any], Callable[[list[str]], list[str]]]] = {
    "rpush": (lambda jobs: jobs.rpush("new"), lambda values: [*values, "new"]),
    "lpush": (lambda jobs: jobs.lpush("new"), lambda values: ["new", *values]),
    "lpop": (lambda jobs: jobs.lpop(), lambda values: values[1:]),
    "rpop": (lambda jobs: jobs.rpop(), lambda values: values[:-1]),
    "lmove": (lambda jobs: jobs.lmove(jobs), lambda values: [*values[1:], *values[:1]]),
    "lindex": (lambda jobs: jobs.lindex(0), lambda values: values),
    "llen": (lambda jobs: jobs.llen(), lambda values: values),
}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "PARTS_PER_SEARCH", 3)
    monkeypatch.setattr(scripts, "PARTS_PER_STEP", 2)


def made(kit: ShardKit, name: str, change: str) -> Any:
    jobs = kit.list(name, component="many", part_size=2)
    jobs.rpush(*VALUES)
    if change in ("persist", "ltrim"):
        jobs.expire(1000)
    return jobs


def run_until(kit: ShardKit, steps: Any, exchanges: int) -> bool:
    """Run some exchanges of an operation; return whether it has not ended."""
    return Exchanges(kit, steps).stop_after(exchanges)


@pytest.mark.long(4)
@pytest.mark.parametrize("change", CHANGES)
def test_the_next_client_completes_a_change(kit: ShardKit, change: str) -> None:
    call, _, left = CHANGES[change]
    unfinished = 0
    for number, (name, (use, then)) in enumerate(USES.items()):
        for exchanges in range(1, 30):
            jobs = made(kit, f"{name}:{exchanges}", change)
            if not run_until(kit, call(jobs.deferred), exchanges):
                break
            client = holder(kit, "many", jobs.meta_key)
            begun = client.hget(f"{jobs.name}:ends", "unfinished") is not None
            unfinished += begun
            other = kit.list(f"{name}:{exchanges}", component="many", part_size=2)
            if number % 2:
                other.lindex(-1)  # knows the ends, or thinks so
            use(other)
            found = other.lrange(0, -1)
            assert found == then(left) or (not begun and found == then(VALUES))
            assert list(other.check()) == []
            if begun:
                parts = client.keys(f"{jobs.name}:[0-9-]*")
                assert len(parts) == (len(found) + 1) // 2 or change != "delete"
                if change == "expire":
                    assert all(0 < client.ttl(key) <= 100 for key in parts)
                    assert 0 < other.ttl() <= 100
                if change == "persist":
                    assert all(client.ttl(key) == -1 for key in (*parts, f"{jobs.name}:ends"))
            other.delete()
            assert not client.keys(f"{jobs.name}:[0-9me]*")
    assert unfinished >= 7


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_returns_the_same_whoever_ends_it(face: Face, kit: ShardKit, change: str) -> None:
    call, returned, left = CHANGES[change]
    jobs = made(kit, "jobs", change)
    other = kit.list("jobs", component="many", part_size=2)
    client = holder(kit, "many", jobs.meta_key)
    begun = []

    def end_it(_: Any) -> None:
        if client.hget("{jobs}:ends", "unfinished") is not None:
            begun.append(change)
            assert other.llen() == len(left)

    assert Exchanges(kit, call(jobs.deferred)).end(before=end_it) == returned
    assert len(begun) == 1
    assert other.lrange(0, -1) == left
    again = made(kit, "again", change)
    assert face.run(call(face.kit.list("again", component="many", part_size=2))) == returned
    assert again.lrange(0, -1) == left


def test_no_script_removes_more_than_some_thousand_values(kit: ShardKit) -> None:
    jobs = kit.list("jobs", component="many", part_size=10_000)
    jobs.rpush_many("x" if n % 5 else f"{n}" for n in range(25_000))
    client: Any = holder(kit, "many", jobs.meta_key)
    lengths = [25_000]

    def count(_: Any) -> None:
        lengths.append(sum(map(client.llen, client.keys("{jobs}:[0-9]*"))))

    assert Exchanges(kit, jobs.deferred.lrem(-17_000, "x")).end(before=count) == 17_000
    count(None)
    assert max(before - after for before, after in itertools.pairwise(lengths)) == 2500
    kept = [f"{n}" if n % 5 == 0 else "x" for n in range(25_000)]
    skipped = [n for n in range(25_000) if n % 5][-17_000:]
    gone = set(skipped)
    assert [*jobs.items()] == [value for n, value in enumerate(kept) if n not in gone]
    assert list(jobs.check()) == []


@pytest.mark.parametrize(
    "stored",
    [
        *("", "2", "2 dance 1 2", "2 shift 1", "2 shift 1 x 1", "2 shift 1 2 0", "2 pack 1 2 1 0"),
        "2 unlink 0 12 1 0 2",
    ],
)
def test_an_unfinished_change_that_makes_no_sense_is_named(kit: ShardKit, stored: str) -> None:
    jobs = made(kit, "jobs", "lrem all")
    client = holder(kit, "many", jobs.meta_key)
    # What is removed stands there, but not where to say how many were.
    client.hset("{jobs}:ends", mapping={"part_size": 0, "unfinished": stored, "removes": "x"})
    for call in (lambda: jobs.lpop(), lambda: jobs.lindex(1), lambda: jobs.llen()):
        with pytest.raises(DamagedDataError, match="ends"):
            call()
    [damage] = jobs.check()
    assert damage.key == "{jobs}:ends"
    if stored in ("", "2", "2 dance 1 2"):
        assert (damage.found, damage.expected) == (f"unfinished={stored}", "a task")
    assert jobs.rebuild() == len(VALUES)
    assert jobs.lrange(0, -1) == VALUES
    client.hset("{jobs}:ends", mapping={"part_size": 0, "unfinished": stored})
    assert jobs.delete()
    assert not client.keys("{jobs}:*")


@pytest.mark.long(3)
@pytest.mark.parametrize("change", CHANGES)
def test_invalid_task_numbers_do_no_harm(kit: ShardKit, change: str) -> None:
    call, _, left = CHANGES[change]
    named = 0
    for exchanges in (1, 3, 5):
        jobs = made(kit, "jobs", change)
        if not run_until(kit, call(jobs.deferred), exchanges):
            break
        client = holder(kit, "many", jobs.meta_key)
        stored = client.hget("{jobs}:ends", "unfinished")
        if stored is None:
            jobs.delete()
            continue
        keys = {key: client.dump(key) for key in client.keys("{jobs}:*")}
        size, kind, *numbers = stored.split()
        fields = [(b"unfinished", n) for n in range(len(numbers))] + [(b"first", 0), (b"last", 0)]
        for field, n in fields:
            for number in (b"1000000000000", b"-1000000000000"):
                client.flushdb()
                for key, payload in keys.items():
                    client.restore(key, 0, payload)
                task = b" ".join((size, kind, *numbers[:n], number, *numbers[n + 1 :]))
                client.hset("{jobs}:ends", field, task if field == b"unfinished" else number)
                other = kit.list("jobs", component="many", part_size=2)
                try:
                    found = other.llen()
                except DamagedDataError:
                    named += 1
                    other.rebuild()
                else:
                    # Nothing says how many values were to be removed, or when to expire.
                    assert found in (len(left), 13 if kind == b"remove" else 0)
                assert list(other.check()) == []
        jobs.delete()
    assert named >= 2


@pytest.mark.parametrize("damage", [{"first": 1}, {"unfinished": "2 pack 0 6 1 12"}])
def test_a_change_checks_the_list(kit: ShardKit, damage: dict[str, Any]) -> None:
    jobs = made(kit, "jobs", "lrem all")
    client = holder(kit, "many", jobs.meta_key)
    assert run_until(kit, jobs.deferred.lrem(0, "x"), 7)
    assert client.hget("{jobs}:ends", "unfinished") == b"2 pack 3 6 1 12"
    client.hset("{jobs}:ends", mapping=damage)
    before = {key: client.dump(key) for key in client.keys("{jobs}:*")}
    with pytest.raises(DamagedDataError, match="is damaged"):
        kit.list("jobs", component="many", part_size=2).llen()
    assert {key: client.dump(key) for key in client.keys("{jobs}:*")} == before


def test_who_knows_the_ends_of_a_list_ends_a_change_of_it_all_the_same(kit: ShardKit) -> None:
    jobs = made(kit, "jobs", "lrem all")
    other = kit.list("jobs", component="many", part_size=2)
    assert other.lindex(2) == "b"
    assert run_until(kit, jobs.deferred.lrem(0, "x"), 1)
    assert other.lindex(2) == "c"
    assert holder(kit, "many", jobs.meta_key).hget("{jobs}:ends", "unfinished") is None


def test_a_list_that_is_being_changed_otherwise_tells_its_own_time_to_live(kit: ShardKit) -> None:
    for expires in (False, True):
        jobs = made(kit, f"jobs{expires}", "lrem all")
        if expires:
            jobs.expire(1000)
        assert run_until(kit, jobs.deferred.lrem(0, "x"), 1)
        assert (jobs.ttl() == -1) is not expires


def test_a_list_in_which_others_begin_a_change_at_every_look_is_named(kit: ShardKit) -> None:
    jobs = made(kit, "jobs", "expire")
    looking = Exchanges(kit, kit.list("jobs", component="many", part_size=2).deferred.lindex(0))
    looks: list[Any] = []

    def begin_another(step: Any) -> None:
        if step[0].args[:2] == ("HMGET", "{jobs}:ends"):
            looks.append(step)
            assert run_until(kit, jobs.deferred.expire(100 + len(looks)), 1)

    with pytest.raises(ParameterMismatchError, match="other clients keep deleting and creating it"):
        looking.end(before=begin_another)
    assert len(looks) == scripts.ATTEMPTS
    assert jobs.lrange(0, -1) == VALUES


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
