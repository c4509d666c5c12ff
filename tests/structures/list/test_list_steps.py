"""Changes of many parts take steps: other clients see all of a change or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from faces import Exchanges, Face, holder

from shardkit import DamagedDataError, ShardKit
from shardkit.errors import ParameterMismatchError

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
def small_steps(lower: Any) -> None:
    lower(list_search=3, list_step=2)


def made(kit: ShardKit, name: str, change: str) -> Any:
    jobs = kit.list(name, component="many", part_size=2)
    jobs.rpush(*VALUES)
    if change in ("persist", "ltrim"):
        jobs.expire(1000)
    return jobs


def run_until(kit: ShardKit, steps: Any, exchanges: int) -> bool:
    """Run some exchanges of an operation; return whether it has not ended."""
    return Exchanges(kit, steps).stop_after(exchanges)


@pytest.mark.long(3)
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


@pytest.mark.long(8)
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


@pytest.mark.long(4)
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


@pytest.mark.long(2)
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


def test_a_list_whose_expiry_is_being_set_tells_the_new_one(face: Face, kit: ShardKit) -> None:
    assert run_until(kit, made(kit, "jobs", "expire").deferred.expire(1000), 1)
    jobs = face.kit.list("jobs", component="many", part_size=2)
    assert 990 < face.run(jobs.ttl()) <= 1000
    assert 990_000 < face.run(jobs.pttl()) <= 1_000_000


def test_a_list_that_is_being_changed_otherwise_tells_its_own_time_to_live(kit: ShardKit) -> None:
    for expires in (False, True):
        jobs = made(kit, f"jobs{expires}", "lrem all")
        if expires:
            jobs.expire(1000)
        assert run_until(kit, jobs.deferred.lrem(0, "x"), 1)
        assert (jobs.ttl() == -1) is not expires


def test_a_list_in_which_others_begin_a_change_at_every_look_is_named(
    kit: ShardKit, lower: Any
) -> None:
    lower(recreations=3)
    jobs = made(kit, "jobs", "expire")
    looking = Exchanges(kit, kit.list("jobs", component="many", part_size=2).deferred.lindex(0))
    looks: list[Any] = []

    def begin_another(step: Any) -> None:
        if step[0].args[:2] == ("HMGET", "{jobs}:ends"):
            looks.append(step)
            assert run_until(kit, jobs.deferred.expire(100 + len(looks)), 1)

    with pytest.raises(ParameterMismatchError, match="other clients keep deleting and creating it"):
        looking.end(before=begin_another)
    assert len(looks) == 3
    assert jobs.lrange(0, -1) == VALUES
