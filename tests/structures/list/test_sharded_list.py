"""A list in parts does what a plain LIST does: its keys, its parameters, and what it refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from faces import ALL_CASES, Exchanges, Face, holder, keys_of
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ShardKit
from shardkit.errors import (
    CommandRefused,
    CrossShardError,
    DamagedDataError,
    InvalidArgumentError,
    NewerFormatError,
    ParameterMismatchError,
    ShardErrors,
)


def test_an_index_is_found_while_others_change_the_list(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=3)
    other = kit.list("jobs", component="many", part_size=3)
    other.rpush(*range(10))
    assert face.run(jobs.lindex(4)) == "4"
    other.lpop()
    assert face.run(jobs.lindex(4)) == "5"
    other.lpush("a", "b")
    assert face.run(jobs.lindex(0)) == "b"
    other.rpush(*range(10, 20))
    assert face.run(jobs.lindex(20)) == "19"
    assert face.run(jobs.lindex(-1)) == "19"
    other.delete()
    assert face.run(jobs.lindex(3)) is None
    kit.list("jobs", component="many", part_size=5).rpush(*range(10))
    with pytest.raises(ParameterMismatchError, match="part_size is '5', not '3'"):
        face.run(jobs.lindex(3))


@pytest.mark.parametrize("reverse", [False, True])
def test_values_that_stay_come_once_and_in_order(face: Face, reverse: bool) -> None:
    """Both ends lose and get values while the list is iterated over."""
    jobs = face.kit.list("jobs", component="many", part_size=3, values=int)
    face.run(jobs.rpush_many(range(3000)))

    def churn(n: int) -> list[Any]:
        return [
            jobs.lpop(n % 5),
            jobs.rpop(n % 3),
            jobs.rpush_many(range(10_000 + n, 10_000 + n + n % 11)),
            jobs.lpush_many(range(20_000 + n, 20_000 + n + n % 2)),
        ]

    seen = []
    for value in face.iterate(jobs.items(reverse=reverse)):
        seen.append(value)
        if value % 40 == 0:
            for call in churn(len(seen)):
                face.run(call)
    there = [value for value in seen if 1000 <= value < 2000]
    assert there == sorted(range(1000, 2000), reverse=reverse)
    assert len(seen) == len(set(seen))


def test_iteration_ends_however_fast_others_push(kit: ShardKit) -> None:
    jobs = kit.list("jobs", component="many", part_size=2)
    jobs.rpush(*range(10))
    seen = [jobs.rpush(*range(10)) for _ in jobs.items()]
    assert len(seen) == 10


def test_a_name_with_a_tag_of_its_own_keeps_it(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("{user:7}:jobs", component="many", part_size=3)
    face.run(jobs.rpush(1))
    assert "{user:7}:jobs:0" in keys_of(kit, "many")
    assert holder(kit, "many", "user:7").dbsize() == 4
    for name in ("{}", "a{", "{}x", "a}b", "{{a}"):
        odd = face.kit.list(name, component="many", part_size=1)
        assert face.run(odd.rpush(1, 2, 3)) == 3
        assert face.list(odd.items()) == ["1", "2", "3"]
    with pytest.raises(InvalidArgumentError, match="name='}x' of a list cannot be a tag"):
        face.kit.list("}x", component="many")


def test_a_value_moves_to_another_list_in_one_step(face: Face) -> None:
    todo, doing = (
        face.kit.list(f"{{jobs}}:{name}", component="many", part_size=size)
        for name, size in (("todo", 2), ("doing", 5))
    )
    face.run(todo.rpush(*"abcdef"))
    assert face.run(todo.lmove(doing)) == "a"
    assert face.run(todo.blmove(doing, 1, "RIGHT", "LEFT")) == "f"
    assert face.list(doing.items()) == ["f", "a"]
    assert face.run(todo.ltrim(1, 0))
    assert face.run(todo.blmove(doing, 0.01)) is None


def test_lists_that_do_not_live_together_are_refused(face: Face, kit: ShardKit) -> None:
    todo = face.kit.list("{a}:todo", component="many")
    face.run(todo.rpush(1))
    before = keys_of(kit, "many")
    names = [f"{{{n}}}:doing" for n in range(50)]
    apart = next(
        name
        for name in names
        if holder(kit, "many", name).connection_pool is not holder(kit, "many", "a").connection_pool
    )
    for other in (
        face.kit.list(apart, component="many"),
        face.kit.list("{a}:doing", component="one"),
    ):
        for call in (todo.lmove, todo.blmove):
            with pytest.raises(CrossShardError, match="do not live together; give both names one"):
                face.run(call(other))
    numbers = face.kit.list("{a}:doing", component="many", values=int)
    with pytest.raises(InvalidArgumentError, match="holds int, not str; move between lists with"):
        face.run(todo.lmove(numbers))
    with pytest.raises(InvalidArgumentError, match="src='left'; give LEFT or RIGHT"):
        face.run(todo.lmove(todo, "left"))
    with pytest.raises(InvalidArgumentError, match="'doing' is not a list of kit"):
        face.run(todo.lmove("doing"))
    assert keys_of(kit, "many") == before


def test_arguments_out_of_range_are_refused(face: Face) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=3)
    face.run(jobs.rpush(1, 2))
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: jobs.lpop(-1), "count=-1"),
        (lambda: jobs.rpop(10_001), "count=10001"),
        (lambda: jobs.rpop(True), "count=True"),
        (lambda: jobs.lpos(1, rank=0), "rank=0; give 1 for the first, -1 for the last"),
        (lambda: jobs.lpos(1, count=-1), "count=-1"),
        (lambda: jobs.lpos(1, maxlen=-1), "maxlen=-1"),
        (lambda: jobs.lrem("1", 1), "count='1'"),
        (lambda: jobs.linsert("BESIDE", 1, 2), "where='BESIDE'; give BEFORE or AFTER"),
        (lambda: jobs.expire(5, nx=True, gt=True), "nx and gt exclude each other"),
        (lambda: jobs.lindex("1"), "index='1'"),
        (lambda: jobs.lindex(2**53), "index=9007199254740992"),
        (lambda: jobs.lset(1.0, "x"), "index=1.0"),
        (lambda: jobs.lset(2, "x"), "index 2 is outside the list of 2 values; give -2 to 1"),
        (lambda: jobs.lset(-3, "x"), "index -3 is outside the list of 2 values"),
        (lambda: jobs.lrange(0, None), "end=None"),
        (lambda: jobs.ltrim(True, 1), "start=True"),
        (lambda: jobs.blpop(-1), "timeout=-1"),
        (lambda: jobs.blpop(math.nan), "timeout=nan"),
        (lambda: jobs.blpop(math.inf), "timeout=inf"),
        (lambda: jobs.brpop("1"), "timeout='1'"),
        (lambda: jobs.brpop(True), "timeout=True"),
        (lambda: jobs.expire("0"), "time='0'"),
        (lambda: jobs.rpush(*range(10_001)), "rpush of 10,001 values; give at most 10,000"),
    ]
    for call, named in calls:
        with pytest.raises(InvalidArgumentError) as caught:
            face.run(call())
        assert named in str(caught.value)
    assert face.run(jobs.lrange(0, -1)) == ["1", "2"]


def test_a_reply_is_never_longer_than_ten_thousand_values(face: Face) -> None:
    jobs = face.kit.list("jobs", component="many", values=int)
    face.run(jobs.rpush_many(range(10_050)))
    assert face.run(jobs.lrange(20, 10_019)) == [*range(20, 10_020)]
    with pytest.raises(InvalidArgumentError, match=r"would return 10,050 values; .* items\(\)"):
        face.run(jobs.lrange(0, -1))


def refused(face: Face, call: Any) -> str:
    with pytest.raises(ShardErrors) as caught:
        face.run(call())
    [failure] = caught.value.exceptions
    assert isinstance(failure, CommandRefused)
    return str(failure)


def test_a_foreign_key_in_the_way_is_named_and_nothing_is_pushed(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=3)
    client = holder(kit, "many", "jobs")
    face.run(jobs.rpush(1, 2))
    puts: list[tuple[str, Callable[[str], Any]]] = [
        ("{jobs}:1", lambda key: client.set(key, "a string")),
        ("{jobs}:2", lambda key: client.rpush(key, "a plain list")),
    ]
    for key, put in puts:
        put(key)
        assert f"BUSYKEY {key} is in the way" in refused(face, lambda: jobs.rpush(*range(6)))
        assert f"BUSYKEY {key} is in the way" in refused(face, lambda: jobs.rpush_many(range(6)))
        assert face.run(jobs.lrange(0, -1)) == ["1", "2"]
        client.delete(key)
    assert face.run(jobs.rpush(*range(6))) == 8


def test_it_expires_and_persists_as_redis_py_has_it(face: Face, kit: ShardKit) -> None:
    plain: Any = kit.client("one")
    plain.rpush("plain", 1)
    jobs = face.kit.list("jobs", component="many", part_size=3)
    face.run(jobs.rpush(*range(7)))
    client = holder(kit, "many", "jobs")
    for time_, options in [
        (1000, {"xx": True}),
        (1000, {"gt": True}),
        (2000, {"lt": True}),
        (3000, {"nx": True}),
        (3000, {"gt": True}),
        (1000, {"gt": True}),
        (1000, {"xx": True, "gt": True}),
        (1000, {"xx": True, "lt": True}),
        (5000, {}),
    ]:
        assert face.run(jobs.expire(time_, **options)) == plain.expire("plain", time_, **options)
        assert abs(face.run(jobs.ttl()) - plain.ttl("plain")) <= 1
        assert len({client.pexpiretime(key) for key in client.scan_iter()}) == 1
    assert face.run(jobs.pexpire(7_000_000)) is True
    assert abs(face.run(jobs.pttl()) - 7_000_000) < 10_000
    assert face.run(jobs.expireat(4_000_000_000)) is plain.expireat("plain", 4_000_000_000) is True
    assert {round(client.pexpiretime(key), -3) for key in client.scan_iter()} == {4 * 10**12}
    assert face.run(jobs.persist()) is plain.persist("plain") is True
    assert face.run(jobs.persist()) is plain.persist("plain") is False
    assert face.run(jobs.ttl()) == plain.ttl("plain") == -1
    face.run(jobs.rpush(*range(7)))
    assert {client.pttl(key) for key in client.scan_iter()} == {-1}


def test_parts_opened_by_changes_expire_too(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=2)
    face.run(jobs.rpush(*"abcdefgh"))
    face.run(jobs.expire(1000))
    assert face.run(jobs.linsert("BEFORE", "g", "x")) == 9
    assert face.run(jobs.linsert("AFTER", "a", "y")) == 10
    assert face.run(jobs.lrem(1, "c")) == 1
    assert face.list(jobs.items()) == [*"aybdefxgh"]
    client = holder(kit, "many", "jobs")
    assert len({client.pexpiretime(key) for key in client.scan_iter()}) == 1


def test_insertions_spare_foreign_keys(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=2)
    face.run(jobs.rpush(*"abcd"))
    client = holder(kit, "many", "jobs")
    client.set("{jobs}:2", "a string")
    assert "BUSYKEY {jobs}:2 is in the way" in refused(
        face, lambda: jobs.linsert("AFTER", "d", "x")
    )
    assert face.list(jobs.items()) == [*"abcd"]


FRESH = itertools.count()
few = st.one_of(st.integers(0, 9).map(str), st.sampled_from(["", "ß", "a\r\n", "1"]))
indexes = st.integers(-25, 25)
which, sides = st.integers(0, 1), st.sampled_from(["LEFT", "RIGHT"])
ranks = st.one_of(st.none(), st.integers(1, 4), st.integers(-4, -1))


def calls(names: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, Any]]:
    """A call of one of several methods that take the same."""
    return st.tuples(st.sampled_from(names.split()), st.tuples(*arguments))


STEPS = st.one_of(
    st.tuples(st.sampled_from(["lpush", "rpush"]), st.lists(few, min_size=1, max_size=20)),
    calls("lpush_many rpush_many", st.lists(few, max_size=20)),
    calls("lpop rpop", st.none() | st.integers(0, 30)),
    calls("lindex", indexes),
    calls("lset", indexes, st.just("new")),
    calls("lrange ltrim", indexes, indexes),
    calls("lpos", few, ranks, st.none() | st.integers(0, 4), st.none() | st.integers(0, 20)),
    calls("linsert", st.sampled_from(["BEFORE", "after"]), few, few),
    calls("lrem", st.integers(-4, 4), few),
    calls("lmove", which, which, sides, sides),
    calls("delete items"),
)


def decoded(reply: Any) -> Any:
    """What redis-py returned, as a list with values=str returns it."""
    if isinstance(reply, bytes):
        return reply.decode()
    return [*map(decoded, reply)] if isinstance(reply, list) else reply


def check_parts(kit: ShardKit, parts: Any) -> None:
    """What is stored is what the list says: full parts between two ends, and at most one token."""
    client: Any = holder(kit, "many", parts.meta_key)
    found = {
        int(key.rpartition(b":")[2]): client.llen(key)
        for key in client.scan_iter(f"{parts.name}:*", _type="list", count=1000)
        if not key.endswith(b":signal")
    }
    ends = client.hgetall(f"{parts.name}:ends")
    ends.pop(b"values", None)
    ends = {k.decode(): int(v) for k, v in ends.items()}
    tokens = client.llen(f"{parts.name}:signal")
    if not found:
        assert not any(v for k, v in ends.items() if k != "part_size")
        assert tokens == 0
        return
    assert set(found) == set(range(ends["first"], ends["last"] + 1))
    assert found[ends["first"]] == ends["left"]
    assert found[ends["last"]] == ends["right"]
    assert all(found[n] == parts.part_size for n in range(ends["first"] + 1, ends["last"]))
    assert max(found.values()) <= parts.part_size
    assert tokens == 1


@settings(max_examples=10 if ALL_CASES else 5, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=25, max_size=40))
def test_a_list_in_parts_does_what_a_list_does(
    face: Face, kit: ShardKit, lower: Any, steps: list[tuple[str, Any]]
) -> None:
    """Each of two, with parts of each size, returns what redis-py's method does of a plain one."""
    lower(list_search_values=6, list_search=2, list_step=2)
    plain: Any = kit.client("one")
    prefix = next(FRESH)
    keys = first, _ = [f"{prefix}:{name}" for name in "ab"]
    pairs = [
        [face.kit.list(f"{n}{{{prefix}:{size}}}", component="many", part_size=size) for n in "ab"]
        for size in (1, 2, 3, 8)
    ]
    for name, args in [*steps, ("items", ())]:
        if name == "items":
            for n, key in enumerate(keys):
                expected = decoded(plain.lrange(key, 0, -1))
                for pair in pairs:
                    assert face.list(pair[n].items()) == expected
                    assert face.list(pair[n].items(reverse=True)) == expected[::-1]
                    assert face.run(pair[n].llen()) == len(expected)
                    check_parts(kit, pair[n])
        elif name == "lmove":
            source, target, *sides = args
            moved = decoded(plain.lmove(keys[source], keys[target], *sides))
            for pair in pairs:
                assert face.run(pair[source].lmove(pair[target], *sides)) == moved
        elif name.endswith("_many"):
            [values] = args
            length = getattr(plain, name[:5])(first, *values) if values else plain.llen(first)
            for pair in pairs:
                assert face.run(getattr(pair[0], name)(iter(values))) == length
        elif name != "lset" or -plain.llen(first) <= args[0] < plain.llen(first):
            expected = decoded(getattr(plain, name)(first, *args))
            for pair in pairs:
                found = face.run(getattr(pair[0], name)(*args))
                assert found == expected or name == "delete", (name, args)  # parameters are left
                if name in ("linsert", "lrem"):
                    check_parts(kit, pair[0])
    assert face.list(pairs[0][0].items()) == decoded(plain.lrange(first, 0, -1))


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


def test_a_list_with_one_part_has_one_number_of_values(face: Face, kit: ShardKit) -> None:
    client = holder(kit, "many", "jobs")
    face.run(face.kit.list("jobs", component="many", part_size=3).rpush(1, 2))
    client.hset("{jobs}:ends", "right", 1)
    for call in CALLS.values():
        with pytest.raises(DamagedDataError, match="left=2 right=1, where the same number twice"):
            face.run(call(face.kit.list("jobs", component="many", part_size=3)))


def test_a_list_of_a_later_format_is_refused_by_every_call(face: Face, kit: ShardKit) -> None:
    jobs = face.kit.list("jobs", component="many", part_size=9)
    face.run(jobs.rpush(*range(5)))
    holder(kit, "many", "jobs").hset("{jobs}:ends", "format", 2)
    for call in CALLS.values():
        with pytest.raises(NewerFormatError, match=r"jobs}:ends has format 2, this release"):
            face.run(call(jobs))


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
    face.run(jobs.delete())
    assert face.run(jobs.rebuild()) == 0
    assert not face.run(jobs.pexpire(10))
    assert not holder(kit, "many", "jobs").keys("{jobs}*")


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


@pytest.fixture
def sharded_list_search_jobs(kit: ShardKit, lower: Any) -> Any:
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
def test_shrunken_lists_are_searched_again(
    kit: ShardKit, sharded_list_search_jobs: Any, rank: int, at: int
) -> None:
    def shrink() -> None:
        sharded_list_search_jobs.lpop(16)
        sharded_list_search_jobs.lpush("x", "y")

    found = between(
        kit, sharded_list_search_jobs.deferred.lpos("x", rank=rank, count=0), at, shrink
    )
    assert sharded_list_search_jobs.lrange(0, -1) == ["y", "x", "x"]
    assert found == ([1, 2] if rank > 0 else [2, 1])


def test_insertions_survive_concurrent_writes(kit: ShardKit, sharded_list_search_jobs: Any) -> None:
    def write() -> None:
        sharded_list_search_jobs.lpop(6)
        sharded_list_search_jobs.lpush("j")  # where it has searched already
        sharded_list_search_jobs.rpush("n")

    assert (
        between(kit, sharded_list_search_jobs.deferred.linsert("AFTER", "j", "new"), 3, write) == 14
    )
    values = ["j", "e", "f", "g", "h", "i", "x", "j", "new", "k", "l", "m", "x", "n"]
    assert sharded_list_search_jobs.lrange(0, -1) == values
    assert list(sharded_list_search_jobs.check()) == []
