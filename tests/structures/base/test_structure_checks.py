"""Checks and repairs of structures and components, and data without parameters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from faces import Exchanges, Face, holder, keys_of, sessions

from shardkit import DamagedDataError, ShardKit
from shardkit.errors import ParameterMismatchError
from shardkit.structures import Damage

WORDS = [f"word{n}" for n in range(300)]
DAY = date(2015, 5, 17)


def a_set(kit: Any, **other: Any) -> Any:
    options = {"members": int, "parts": 2, "part_size": 64, **other}
    return kit.set("it", component="many", **options)


def a_hash(kit: Any, **other: Any) -> Any:
    options = {"parts": 2, "part_size": 64, "partition": "crc32", "codec": "json", **other}
    return kit.hash("it", component="many", **options)


def numbers(kit: Any, **other: Any) -> Any:
    return kit.hash("it", component="many", **{"parts": 2, "part_size": 16, **other})


def scores(kit: Any, **other: Any) -> Any:
    options = {"parts": 2, "part_size": 64, "bound": 10, **other}
    return kit.sorted_set("it", component="many", **options)


KINDS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "set": (a_set, lambda it: it.sadd_many(range(300)), lambda it: it.smembers()),
    "planned set": (
        lambda kit: a_set(kit, total=300),
        lambda it: it.sadd_many(range(300)),
        lambda it: it.smembers(),
    ),
    "hash": (
        a_hash,
        lambda it: it.hset(mapping={word: word.upper() for word in WORDS}),
        lambda it: it.hgetall(),
    ),
    "numbers": (
        numbers,
        lambda it: it.hset(mapping={n: f"value {n}" for n in range(300)}),
        lambda it: it.hgetall(),
    ),
    "sorted set": (
        scores,
        lambda it: it.zadd({word: n for n, word in enumerate(WORDS)}),
        lambda it: it.zrange(0, -1, withscores=True),
    ),
}


def swap(kit: ShardKit, one: str, other: str) -> None:
    """Give two keys each other's values; they may be on different shards."""
    first, second = holder(kit, "many", one), holder(kit, "many", other)
    held: list[Any] = [first.dump(one), second.dump(other)]
    first.restore(one, 0, held[1], replace=True)
    second.restore(other, 0, held[0], replace=True)


def found_in(face: Face, name: str) -> list[Damage]:
    return face.list(KINDS[name][0](face.kit).check())


@pytest.mark.parametrize("name", KINDS)
def test_swapped_parts_are_repaired(face: Face, kit: ShardKit, name: str) -> None:
    make, fill, read = KINDS[name]
    face.run(fill(make(face.kit)))
    before = face.run(read(make(face.kit)))
    parts = {k for k in keys_of(kit, "many") if k.rpartition(":")[2].isdigit()}
    largest = sorted(parts, key=lambda k: holder(kit, "many", k).memory_usage(k) or 0)[-2:]
    swap(kit, *largest)
    found = found_in(face, name)
    if name == "numbers":  # what is stored of a number is the same in each part
        return
    assert {each.key for each in found} == set(largest)
    assert all("rebuild() moves" in each.repair for each in found)
    assert {each.shard for each in found} == {
        str(kit.component("many").shard_of(key)) for key in largest
    }
    face.run(make(face.kit).rebuild())
    assert face.run(read(make(face.kit))) == before
    assert found_in(face, name) == []


@pytest.mark.long(8)
@pytest.mark.parametrize("name", ["set", "hash", "sorted set"])
@pytest.mark.parametrize("damage", ["lost", "a string", "count", "parts"])
def test_a_damaged_group_state_is_rebuilt(
    face: Face, kit: ShardKit, name: str, damage: str
) -> None:
    make, fill, read = KINDS[name]
    face.run(fill(make(face.kit)))
    before = face.run(read(make(face.kit)))
    for key in (key for key in keys_of(kit, "many") if key.endswith("}")):
        client = holder(kit, "many", key)
        if damage in ("lost", "a string"):
            client.delete(key)
        if damage == "a string":
            client.set(key, "x")
        if damage == "count":
            client.hset(key, "count", 33)
        if damage == "parts":
            client.hset(key, "parts", 2)
    assert len(found_in(face, name)) == 2
    face.run(make(face.kit).rebuild())
    assert face.run(read(make(face.kit))) == before
    assert found_in(face, name) == []


def test_wrong_types_and_values_are_found(face: Face, kit: ShardKit) -> None:
    face.run(a_hash(face.kit).hset(mapping={word: word for word in WORDS}))
    one, two = sorted(k for k in keys_of(kit, "many") if k.endswith("}:0"))
    holder(kit, "many", one).set(one, "x")
    client: Any = holder(kit, "many", two)
    client.hset(two, client.hkeys(two)[0], b"{")
    found = {each.key: each for each in found_in(face, "hash")}
    assert set(found) == {one, two}
    assert found[one].repair == "rebuild() removes it"
    assert found[two].repair == ""
    assert found[two].found.startswith("b'word")
    assert found[two].expected == "what was stored"
    face.run(a_hash(face.kit).rebuild())
    assert [each.key for each in found_in(face, "hash")] == [two]


@pytest.mark.parametrize("plan", [{}, {"total": 300}], ids=["growing", "planned"])
def test_misplaced_fields_are_found_among_numbers(
    face: Face, kit: ShardKit, plan: dict[str, int]
) -> None:
    it = numbers(face.kit, **plan)
    face.run(it.hset(mapping=dict.fromkeys([*range(300), *WORDS], "x")))
    assert face.list(it.check()) == []
    client: Any = holder(kit, "many", "it:0")
    wrong = [*map(str, range(1000, 1200)), *([] if plan else ["word"])]
    client.hset("it:0", mapping=dict.fromkeys(wrong, "x"))
    [found] = face.list(it.check())
    assert found.key == "it:0"
    assert f"and {len(wrong) - 1} others" in found.found


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_or_invalid_registry_is_rebuilt(face: Face, kit: ShardKit, lost: bool) -> None:
    face.run(numbers(face.kit).hset(mapping=dict.fromkeys(range(300), "v")))
    client = holder(kit, "many", "it:parts")
    client.delete("it:parts") if lost else client.sadd("it:parts", "x")
    [found] = found_in(face, "numbers")
    assert found.key == "it:parts"
    if not lost:
        assert found.found == "a member=b'x'"
        assert found.repair == "rebuild() removes all but ranges"
    assert face.run(numbers(face.kit).rebuild()) == 300
    assert found_in(face, "numbers") == []


@pytest.mark.parametrize("name", ["set", "numbers"])
def test_parts_with_many_entries_are_read_in_pieces(face: Face, kit: ShardKit, name: str) -> None:
    client: Any = holder(kit, "many", "it:0")
    if name == "set":
        it = a_set(face.kit, total=6000, part_size=16_384)
        face.run(it.sadd_many(range(6000)))
        client.sadd("it:0", "x")
        wrong = "member b'x'"
    else:
        it = numbers(face.kit, part_size=8192)
        face.run(it.hset_many((n, n) for n in range(6000)))
        client.hset("it:0", "9000", "x")
        wrong = "b'9000' of another part"
    client.config_resetstat()
    [found] = face.list(it.check())
    assert (found.key, found.found) == ("it:0", wrong)
    calls = client.info("commandstats")["cmdstat_sscan" if name == "set" else "cmdstat_hscan"]
    assert calls["calls"] >= 2 * 6  # what looks wrong is read twice
    assert str(found) == f"{found.shard}: it:0 is damaged: {wrong}, not {found.expected}"


@pytest.mark.parametrize(
    "moment", [("SCARD", "SMEMBERS"), ("SMEMBERS", "EXISTS"), ("EXISTS", "HMGET")]
)
def test_splits_during_a_check_are_no_damage(kit: ShardKit, moment: tuple[str, str]) -> None:
    make, fill, _ = KINDS["set"]
    it = make(kit)
    it.sadd(1)
    sent: list[str] = []
    check = Exchanges(kit, it.deferred.check())
    for step in check:
        sent += [command.args[0] for command in step[:1] if isinstance(step, list)]
        if sent[-2:] == list(moment):
            fill(make(kit))
    assert check.values == []
    assert it.scard() == 300


def test_the_check_counts_large_groups_itself(face: Face, kit: ShardKit, lower: Any) -> None:
    lower(group_keys=2)
    face.run(a_set(face.kit).sadd_many(range(300)))
    assert found_in(face, "set") == []
    key = next(k for k in keys_of(kit, "many") if k.endswith("}"))
    client: Any = holder(kit, "many", key)
    stored = int(client.hget(key, "count"))
    client.hincrby(key, "count", 7)
    [found] = found_in(face, "set")
    assert (found.key, found.found) == (key, f"count={stored + 7}")
    assert found.expected == f"the {stored} members there are"
    assert found.loses == "7 members, lost already"
    client.hset(key, "count", stored - 1)
    [found] = found_in(face, "set")
    assert found.loses == ""


def test_a_part_that_appears_while_a_group_is_rebuilt_is_taken_in(kit: ShardKit) -> None:
    it = a_set(kit)
    it.sadd_many(range(300))
    states = sorted(key for key in keys_of(kit, "many") if key.endswith("}"))
    added: list[Any] = []

    def add(step: Any) -> None:
        if getattr(step[0], "name", "") == "structures/layouts/rebuild_group" and not added:
            key = step[0].args[-5]  # of the part that would be next
            added.append(holder(kit, "many", key).sadd(key, "1000000"))

    assert Exchanges(kit, it.deferred.rebuild()).end(before=add) == 301
    assert added == [1]
    assert a_set(kit).sismember(1_000_000)
    assert found_in(Face(kit, None), "set") == []
    assert sorted(key for key in keys_of(kit, "many") if key.endswith("}")) == states


@pytest.mark.parametrize("damaged", ["a string", "a format"])
def test_unreadable_parameters_are_restored(face: Face, kit: ShardKit, damaged: str) -> None:
    client: Any = holder(kit, "many", "it:meta")

    def damage_it() -> None:
        if damaged == "a string":
            client.set("it:meta", "x")
        else:
            client.hset("it:meta", "format", "x")

    face.run(a_set(face.kit).sadd_many(range(300)))
    damage_it()
    [found] = found_in(face, "set")
    assert (found.key, found.loses) == ("it:meta", "what the key holds")
    assert found.found == ("a value of another type" if damaged == "a string" else "format='x'")
    assert face.run(a_set(face.kit).rebuild()) == 300
    assert found_in(face, "set") == []
    damage_it()
    assert face.run(a_set(face.kit).delete()) is True
    assert keys_of(kit, "many") == set()


def test_what_another_program_wrote_under_the_name_is_refused(face: Face, kit: ShardKit) -> None:
    holder(kit, "many", "h:0").hset("h:0", mapping={"5": "v5"})  # a numeric hash of the book's
    hash_ = face.kit.hash("h", component="many", total=4096, part_size=1024)
    for call in (lambda: hash_.hmget([5, 1030]), lambda: hash_.hset(5, "x")):
        with pytest.raises(DamagedDataError, match="the parameters of h:0"):
            face.run(call())
    assert keys_of(kit, "many") == {"h:0"}


def a_list(kit: Any) -> Any:
    return kit.list("jobs", component="many", part_size=8, values=int)


@pytest.mark.parametrize(
    ("what", "act", "left"),
    [
        ("ends lost", lambda c: c.delete("{jobs}:ends"), [*range(100)]),
        ("ends moved", lambda c: c.hset("{jobs}:ends", "last", 3), [*range(100)]),
        ("a part lost", lambda c: c.delete("{jobs}:2"), [*range(16), *range(24, 100)]),
        ("a part cut", lambda c: c.lpop("{jobs}:2", 3), [*range(16), *range(19, 100)]),
        ("the second cut", lambda c: c.lpop("{jobs}:1", 3), [*range(8), *range(11, 100)]),
        ("a part longer", lambda c: c.rpush("{jobs}:2", 7), [*range(24), 7, *range(24, 100)]),
        ("a hash", lambda c: c.delete("{jobs}:1") and c.hset("{jobs}:1", "a", "b"), None),
    ],
)
def test_damaged_lists_are_repaired(
    face: Face, kit: ShardKit, what: str, act: Callable[[Any], Any], left: list[int] | None
) -> None:
    face.run(a_list(face.kit).rpush(*range(100)))
    assert face.list(a_list(face.kit).check()) == []
    act(holder(kit, "many", "{jobs}:ends"))
    assert face.list(a_list(face.kit).check()) != []
    length = face.run(a_list(face.kit).rebuild())
    values = face.run(a_list(face.kit).lrange(0, -1))
    assert values == ([*range(8), *range(16, 100)] if left is None else left)
    assert length == len(values)
    assert face.list(a_list(face.kit).check()) == []
    face.run(a_list(face.kit).rpush(1000))
    assert face.run(a_list(face.kit).lpop()) == 0
    assert face.run(a_list(face.kit).rpop()) == 1000


def test_damaged_packed_records_are_found_and_repaired(face: Face, kit: ShardKit) -> None:
    def records() -> Any:
        return face.kit.packed("p", component="many", fields={"a": "u8"}, part_size=64)

    face.run(records().set_many({n: {"a": 1} for n in range(300)}))
    assert face.list(records().check()) == []
    cut: Any = holder(kit, "many", "p:1")
    cut.set("p:1", cut.get("p:1")[:50])
    longer = holder(kit, "many", "p:2")
    longer.append("p:2", "xyz")
    typed = holder(kit, "many", "p:3")
    typed.delete("p:3")
    typed.rpush("p:3", 1)
    found = face.list(records().check())
    assert {each.key: each.found for each in found} == {
        "p:1": "50 bytes",
        "p:2": "67 bytes",
        "p:3": "a value of another type",
    }
    holder(kit, "many", "p:parts").sadd("p:parts", "x")
    [no_part] = face.list(records().check())
    assert (no_part.key, no_part.found) == ("p:parts", "a member=b'x'")
    holder(kit, "many", "p:parts").delete("p:parts")
    assert [each.key for each in face.list(records().check())] == ["p:parts"]
    assert face.run(records().rebuild()) == 5
    assert face.list(records().check()) == []
    assert face.run(records().aggregate()).count == 64 + 50 + 64 + 44


@pytest.mark.parametrize("precision", ["60-bit", "bitmap"])
def test_visitors_without_parameters_are_rebuilt(
    face: Face, kit: ShardKit, precision: str, lower: Any
) -> None:
    lower(missing_parameters_pause=0)
    planned = {"first_day": 100} if precision == "60-bit" else {}

    def visitors(**options: Any) -> Any:
        return face.kit.unique_visitors(component="many", precision=precision, **planned, **options)

    came = sessions(50) if precision == "60-bit" else list(range(50))
    face.run(visitors().visit_many(came, DAY))
    holder(kit, "many", "unique:meta").delete("unique:meta")
    with pytest.raises(DamagedDataError, match=r"unique:meta is damaged: nothing.*rebuild\(\)"):
        face.run(visitors(part_size=64).visit(came[0], DAY))
    [found] = face.list(visitors().check(DAY))
    assert (found.key, found.repair) == (
        "unique:meta",
        "rebuild() stores those that it is opened with",
    )
    assert face.run(visitors().rebuild(DAY)) == 50
    assert face.list(visitors().check(DAY)) == []
    assert face.run(visitors().visit_many(came, DAY)) == 0


def test_a_day_without_plan_and_parameters_is_damaged(face: Face, kit: ShardKit) -> None:
    def visitors() -> Any:
        return face.kit.unique_visitors(component="many", first_day=100)

    came = sessions(200)
    face.run(visitors().visit_many(came, DAY))
    plan, meta = f"unique:{DAY}:expected", f"unique:{DAY}:meta"
    expected = holder(kit, "many", plan).get(plan)
    for key in (plan, meta):
        holder(kit, "many", key).delete(key)
    before = keys_of(kit, "many")
    with pytest.raises(DamagedDataError, match=rf"{meta} is damaged: nothing.*at {plan}"):
        face.run(visitors().visit(came[0], DAY))
    assert keys_of(kit, "many") == before
    holder(kit, "many", plan).set(plan, expected)  # type: ignore[arg-type]  # as it was read
    assert face.run(visitors().visit_many(came, DAY)) == 0
    assert face.list(visitors().check(DAY)) == []


MADE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **{name: KINDS[name][:2] for name in KINDS},
    "list": (lambda kit: kit.list("it", component="many"), lambda it: it.rpush(*range(300))),
    "packed": (
        lambda kit: kit.packed("it", component="many", fields={"a": "u8"}),
        lambda it: it.set_many({n: {"a": 1} for n in range(300)}),
    ),
    "search": (
        lambda kit: kit.search("it", component="many", parts=16),
        lambda it: it.index("1", "some words"),
    ),
}


@pytest.mark.parametrize("name", ["set", "hash", "numbers", "sorted set", "list", "packed"])
def test_what_is_rebuilt_expires_with_its_structure(face: Face, kit: ShardKit, name: str) -> None:
    made: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        **MADE,
        "list": (a_list, lambda it: it.rpush(*range(100))),
    }
    make, fill = made[name]
    face.run(fill(make(face.kit)))
    face.run(make(face.kit).expire(1000))
    lost = ("}", ":parts", ":top", "}:ends", "{jobs}:2")
    for key in (key for key in keys_of(kit, "many") if key.endswith(lost)):
        holder(kit, "many", key).delete(key)
    assert face.list(make(face.kit).check()) != []
    face.run(make(face.kit).rebuild())
    assert face.list(make(face.kit).check()) == []
    face.run(fill(make(face.kit)))
    ends = {key: holder(kit, "many", key).ttl(key) for key in keys_of(kit, "many")}
    assert {key for key, left in ends.items() if not 900 < left <= 1000} == set()


OTHERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "set": (
        lambda kit: kit.set("it", component="one", parts=64, part_size=16),
        lambda it: it.sadd(*range(3000)),
        lambda kit: kit.set("it", component="one", parts=2),
    ),
    "sorted set": (
        lambda kit: kit.sorted_set("it", component="one", parts=8, part_size=16, bound=5),
        lambda it: it.zadd({f"m{n}": n for n in range(300)}),
        lambda kit: kit.sorted_set("it", component="one", parts=64, part_size=128),
    ),
    "hash": (
        lambda kit: kit.hash("it", component="one", parts=1, part_size=16),
        lambda it: it.hset(mapping={f"f{n}": n for n in range(50)} | {n: n for n in range(99)}),
        lambda kit: kit.hash("it", component="one", parts=64, part_size=512),
    ),
    "packed": (
        lambda kit: kit.packed("it", component="one", fields={"a": "u8"}, part_size=64),
        lambda it: it.set_many({n: {"a": 1} for n in range(300)}),
        lambda kit: kit.packed("it", component="one", fields={"b": "u32"}),
    ),
    "search": (
        lambda kit: kit.search(
            "it", component="one", parts=9, chunk=64, attributes={"size": "number"}
        ),
        lambda it: it.index_many((f"{n}", f"words of {n}", {"size": n}) for n in range(300)),
        lambda kit: kit.search("it", component="one", parts=2),
    ),
    "ads": (
        lambda kit: kit.ads("it", component="one", parts=5),
        lambda it: it.index_many((f"{n}", ["Rome"], f"wine {n}", "cpm", n) for n in range(30)),
        lambda kit: kit.ads("it", component="one", parts=1),
    ),
}


@pytest.mark.long(4)
@pytest.mark.parametrize("name", OTHERS)
def test_force_removes_parts_of_other_parameters(face: Face, kit: ShardKit, name: str) -> None:
    make, fill, make_other = OTHERS[name]
    client: Any = kit.client("one")
    client.set("it:17x", "an application's")
    client.hset("item:{4}", "a", "b")
    face.run(fill(make(face.kit)))
    with pytest.raises(ParameterMismatchError, match="meta: 'it' was created with other"):
        face.run(make_other(face.kit).delete())
    assert face.run(make_other(face.kit).delete(force=True))
    kept = {key for key in client.scan_iter() if client.ttl(key) == -1}
    assert kept == {b"it:17x", b"item:{4}"}


def first(kit: ShardKit, start: str, end: str = "") -> str:
    return min(k for k in keys_of(kit, "many") if k.startswith(start) and k.endswith(end))


def visitors(face: Face, precision: str) -> Any:
    planned = {} if precision in ("bitmap", "hyperloglog") else {"first_day": 500}
    return face.kit.unique_visitors("u", component="many", precision=precision, **planned)


@pytest.mark.parametrize("precision", ["exact", "60-bit", "compact", "hyperloglog", "bitmap"])
def test_a_damaged_day_is_found(face: Face, kit: ShardKit, precision: str) -> None:
    came: Any = range(300) if precision == "bitmap" else sessions(300)
    assert face.run(visitors(face, precision).visit_many(came, DAY)) > 250

    def found() -> list[Damage]:
        return face.list(visitors(face, precision).check(DAY))

    assert found() == []
    count = f"u:{DAY}"
    if precision != "hyperloglog":
        holder(kit, "many", count).incr(count, 5)
        assert [each.key for each in found()] == [count]
        face.run(visitors(face, precision).recount(DAY))
        assert found() == []
        part = first(kit, f"u:{DAY}:0")
        client: Any = holder(kit, "many", part)
        if precision == "bitmap":
            client.setrange(part, 20_000, b"x")
        else:
            client.sadd(part, 2**70 if precision == "compact" else 1)
        assert part in [each.key for each in found()]
    client = holder(kit, "many", count)
    client.set(count, "none")
    assert count in [each.key for each in found()]
    if precision == "exact":
        client.delete(count)
        assert "no count" in [each.found for each in found()]


def test_a_task_that_is_nowhere_is_found(face: Face, kit: ShardKit) -> None:
    queues = face.kit.queues(component="many")
    for n in range(10):
        face.run(queues.enqueue("mail", "send", [n], delay=1000 * (n % 2)))
    assert face.list(queues.check("mail")) == []
    waiting = "queues:{mail}"
    client: Any = holder(kit, "many", waiting)
    client.delete(waiting)
    client.zadd(f"{waiting}:delayed", {"strange": 1})
    found = face.list(queues.check("mail"))
    assert [each.key for each in found] == [f"{waiting}:tasks"] * 5 + [f"{waiting}:delayed"]
    assert face.run(queues.restore("mail")) == 5
    assert len(face.list(queues.check("mail"))) == 1
    client.set(f"{waiting}:dead", "x")
    assert [each.key for each in face.list(queues.check("mail"))] == [f"{waiting}:dead"]


def test_days_are_not_combined_over_a_damaged_part_or_count(face: Face, kit: ShardKit) -> None:
    other = date(2015, 5, 18)
    bits = visitors(face, "bitmap")
    for day in (DAY, other):
        face.run(bits.visit_many(range(300), day))
    assert face.run(bits.count_union([DAY, other])) == 300
    part = first(kit, f"u:{DAY}:0")
    client: Any = holder(kit, "many", part)
    client.set(part, client.get(part)[1:])
    with pytest.raises(DamagedDataError, match=part):
        face.run(visitors(face, "bitmap").count_union([DAY, other]))
    for key in keys_of(kit, "many"):
        holder(kit, "many", key).delete(key)
    face.run(visitors(face, "60-bit").visit_many(sessions(300), DAY))
    holder(kit, "many", f"u:{DAY}:meta").delete(f"u:{DAY}:meta")
    holder(kit, "many", f"u:{DAY}").set(f"u:{DAY}", "many")
    with pytest.raises(DamagedDataError, match="count=b'many'"):
        face.run(visitors(face, "60-bit").count_union([DAY, other]))
