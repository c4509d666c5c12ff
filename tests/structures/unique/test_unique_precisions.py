"""Counting in every precision, on one server and many, on both faces."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from datetime import date, timedelta
from random import Random
from typing import Any

import pytest
from faces import SESSION, Exchanges, Face, faced, holder, keys_of, sessions
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shardkit import ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError
from shardkit.local import LocalServer

DAY = date(2015, 5, 17)
NEXT = DAY + timedelta(days=1)
KEY = f"unique:{DAY}"
COMPONENTS = ("one", "many", "both")
# Each with parameters that make several parts of few visitors.
SMALL: dict[str, dict[str, Any]] = {
    "exact": {"part_size": 50, "first_day": 1000},
    "60-bit": {"part_size": 50, "first_day": 1000},
    "compact": {"part_size": 50, "first_day": 1000},
    "hyperloglog": {},
    "bitmap": {"part_size": 100},
}
EXACT = [precision for precision in SMALL if precision != "hyperloglog"]
SETS = ["exact", "60-bit", "compact"]


def some(precision: str, count: int, seed: int = 0) -> list[Any]:
    """Different visitors of a precision."""
    if precision == "bitmap":
        return Random(seed).sample(range(2000), count)
    return sessions(count, seed)


def counter(kit: Any, precision: str, component: str, name: str = "unique") -> Any:
    return kit.unique_visitors(name, component=component, precision=precision, **SMALL[precision])


@pytest.fixture(params=COMPONENTS)
def component(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SMALL)
def visitors(request: pytest.FixtureRequest, face: Face, component: str) -> Any:
    return counter(face.kit, request.param, component)


@pytest.mark.parametrize("call", ["remove", "expire"])
@pytest.mark.parametrize(
    ("precision", "damage"),
    [
        ("exact", {"expected": 1, "meta": None}),
        ("60-bit", {"expected": 1, "meta": None}),
        ("compact", {"expected": 1, "meta": None}),
        ("60-bit", {"meta": {"total": 1}}),
        ("bitmap", {"parts": None}),
    ],
)
def test_all_parts_of_a_day_go_with_it_even_if_its_plan_or_register_was_changed(
    face: Face, kit: ShardKit, precision: str, damage: dict[str, Any], call: str
) -> None:
    client: Any = kit.client("one")

    def fresh() -> Any:
        return counter(face.kit, precision, "one")

    face.run(fresh().visit_many(some(precision, 600), DAY))
    assert len(client.keys("unique:2015-05-17:*")) > 2
    for name, value in damage.items():
        key = f"unique:2015-05-17:{name}"
        assert client.exists(key)
        if isinstance(value, dict):
            client.hset(key, mapping=value)
        elif value is None:
            client.delete(key)
        else:
            client.set(key, value)
    assert face.run(fresh().remove(DAY) if call == "remove" else fresh().expire(DAY, 1000)) is True
    left = [key for key in client.keys("unique:2015-05-17*") if b"deleted" not in key]
    assert all(client.ttl(key) > 0 for key in left)
    assert call == "expire" or left == []


@pytest.mark.parametrize("precision", ["exact", "60-bit"])
def test_a_plan_of_far_too_many_parts_makes_no_removal_of_them(
    face: Face, kit: ShardKit, precision: str
) -> None:
    client: Any = kit.client("one")
    face.run(counter(face.kit, precision, "one").visit_many(some(precision, 600), DAY))
    before = set(client.keys("unique:*"))
    client.set("unique:2015-05-17:expected", 2**31)
    for call, *args in (("remove",), ("expire", 1000)):
        fresh = counter(face.kit, precision, "one")
        with pytest.raises(DamagedDataError, match=r"17:expected is damaged: a plan of \d+ parts"):
            face.run(getattr(fresh, call)(DAY, *args))
    assert set(client.keys("unique:*")) == before
    assert {client.ttl(key) for key in before} == {-1}
    client.delete("unique:2015-05-17:expected")
    assert face.run(counter(face.kit, precision, "one").remove(DAY)) is True


@pytest.mark.parametrize("precision", SETS)
def test_visits_repair_a_parts_expiry(
    face: Face, component: str, kit: ShardKit, precision: str
) -> None:
    visitors = counter(face.kit, precision, component)
    earlier, later = some(precision, 400)[:200], some(precision, 400)[200:]
    face.run(visitors.visit_many(earlier, DAY))
    assert face.run(visitors.expire(DAY, timedelta(days=30))) is True
    there = {face.run(visitors.locate(each, DAY)).key for each in earlier}
    key, visitor = next(
        (key, each) for each in later if (key := face.run(visitors.locate(each, DAY)).key) in there
    )
    client = holder(kit, component, key)
    due = client.pexpiretime(key)
    assert client.pexpire(key, 10**9)
    assert face.run(visitors.visit(visitor, DAY)) is True
    assert client.pexpiretime(key) == due > 0


def test_a_days_precision_outlives_lost_parameters(face: Face, kit: ShardKit) -> None:
    for precision in SETS:
        face.run(counter(face.kit, precision, "one", precision).visit(SESSION, DAY))
        kit.client("one").delete(f"{precision}:meta")  # type: ignore[union-attr]
    for precision, other in [("exact", "60-bit"), ("compact", "exact")]:
        with pytest.raises(DamagedDataError, match=f"{precision}:meta is damaged: nothing"):
            face.run(counter(face.kit, other, "one", precision).visit(SESSION, DAY))
        # Even if these parameters are stored, those of the day decide.
        with pytest.raises(ParameterMismatchError, match=f"{precision}:2015-05-17:meta"):
            face.run(counter(face.kit, other, "one", precision).rebuild(DAY))
        kit.client("one").delete(f"{precision}:meta")  # type: ignore[union-attr]


def test_recount_repairs_a_crash_between_adding_and_counting(kit: ShardKit) -> None:
    for precision in EXACT:
        known = some(precision, 100)
        visitors: Any = counter(kit, precision, "both", precision)
        assert visitors.visit_many(known[:50], DAY) == 50
        Exchanges(kit, visitors.deferred.visit_many(known, DAY)).until("INCRBY")
        assert visitors.count(DAY) == 50
        assert visitors.visit_many(known, DAY) == 0
        assert visitors.recount(DAY) == 100


def test_exact_lists_sessions(face: Face, component: str) -> None:
    visitors = face.kit.unique_visitors(component=component, precision="exact", first_day=100)
    came = [*sessions(30), "Ada", "ada", "a" * 16, "城市", "a" * 15 + "\0", "a" * 1024]
    assert face.run(visitors.visit_many(came, DAY)) == 36
    assert face.run(visitors.visit(came[0].upper().encode(), DAY)) is False
    assert sorted(face.list(visitors.ids(DAY))) == sorted(came)
    assert visitors.visitor_id("ada") == face.run(visitors.locate("ada", DAY)).id == "ada"


def test_a_hyperloglog_estimates_in_one_key(face: Face, component: str, kit: ShardKit) -> None:
    visitors = counter(face.kit, "hyperloglog", component)
    assert face.run(visitors.visit_many(sessions(12_000), DAY)) == pytest.approx(12_000, rel=0.03)
    assert face.run(visitors.visit_many(sessions(12_000), DAY)) == 0
    assert keys_of(kit, component) == {"unique:meta", "unique:2015-05-17"}
    [session] = sessions(1)
    place = face.run(visitors.locate(session, DAY))
    assert (place.id, place.part, place.key) == (session, 0, "unique:2015-05-17")


def test_what_a_precision_cannot_do_is_refused_by_its_name(face: Face, kit: ShardKit) -> None:
    estimate = counter(face.kit, "hyperloglog", "both")
    bitmap = counter(face.kit, "bitmap", "both")
    compact = counter(face.kit, "compact", "both")
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: estimate.expected(DAY), "'hyperloglog' plans nothing; count"),
        (lambda: estimate.count_intersection([DAY]), "'hyperloglog' has no intersection; count"),
        (lambda: estimate.visitors(DAY), "'hyperloglog' has no set of integers; list"),
        (lambda: estimate.remove(DAY, keep_count=True), "has nothing but its count; leave out"),
        (lambda: estimate.expire(DAY, 9, keep_count=True), "has nothing but its count"),
        (lambda: bitmap.expected(DAY), "'bitmap' plans nothing"),
        (lambda: bitmap.visitors(DAY), "'bitmap' has no set of integers"),
        (lambda: compact.visitors(DAY), "'compact' has no set of integers; list ids"),
    ]
    for call, message in calls:
        with pytest.raises(InvalidArgumentError, match="unique: precision=") as caught:
            face.run(call())
        assert message in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="'hyperloglog' stores no ids; count"):
        face.list(estimate.ids(DAY))
    for other in (estimate, bitmap):
        with pytest.raises(InvalidArgumentError, match="plans nothing"):
            other.parts(100)
    with pytest.raises(InvalidArgumentError, match="would count its characters"):
        face.run(compact.visit_many(SESSION, DAY))
    assert keys_of(kit, "both") == set()


def test_an_invalid_visitor_changes_nothing(face: Face, visitors: Any, kit: ShardKit) -> None:
    good = some(visitors.precision, 1)[0]
    for bad in (None, "", b"\xff", 1.5, True, [good], -1):
        for call in (
            lambda bad=bad: visitors.visit(bad, DAY),
            lambda bad=bad: visitors.visit_many([good, bad], DAY),
            lambda bad=bad: visitors.locate(bad, DAY),
        ):
            with pytest.raises(InvalidArgumentError, match=r"^unique: .*for precision="):
                face.run(call())
    for bad_days in ([DAY, None], ["2015-05-17"]):
        with pytest.raises(InvalidArgumentError, match="unique: day="):
            face.run(visitors.count_union(bad_days))
    with pytest.raises(InvalidArgumentError, match="1,001 days at once; give at most 1,000"):
        face.run(visitors.count_union(DAY + timedelta(days=n) for n in range(1001)))
    assert keys_of(kit, visitors.component) == set()


def test_days_created_by_other_rules_keep_them(face: Face, kit: ShardKit) -> None:
    """As many parts as were once made for 2,097,152 visitors: 8,192, not 5,120."""
    old: Any = kit.set("unique:2015-05-17", component="both", total=2_097_152, members=int)
    old.sadd(383061330139657245)
    kit.client("both").mset(  # type: ignore[union-attr]
        {"unique:2015-05-17": 1, "unique:2015-05-17:expected": 2_097_152}
    )
    visitors = face.kit.unique_visitors(component="both")
    assert face.run(visitors.rebuild(DAY)) == 1
    assert face.run(visitors.visit(SESSION, DAY)) is False
    assert face.run(visitors.recount(DAY)) == 1
    assert face.run(visitors.visitors(DAY)).parts == 8192
    assert face.run(visitors.expected(DAY)) == 2_097_152
    assert face.run(visitors.visit_many(sessions(10), NEXT)) == 10
    assert face.run(visitors.count_union([DAY, NEXT])) == 11


def test_oversized_parts_are_logged(
    own_map: ShardMap, own_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in ("blocking", "awaiting"):
        with faced(kind, own_map) as face:
            for precision in ("60-bit", "compact"):
                caplog.clear()
                visitors = face.kit.unique_visitors(
                    f"{kind}-{precision}-{own_server.port}",
                    component="own",
                    precision=precision,
                    part_size=1024,
                )
                with caplog.at_level(logging.WARNING, logger="shardkit"):
                    assert face.run(visitors.count(DAY)) == 0
                    face.run(visitors.visit(SESSION, DAY))
                    face.run(visitors.visit_many([SESSION], NEXT))
                assert len(caplog.messages) == 1
                assert "set-max-intset-entries is 512" in caplog.messages[0]


BUDGET = settings(
    max_examples=5,
    stateful_step_count=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FRESH = itertools.count()
DAYS = [DAY + timedelta(days=n) for n in range(4)]


def machine(
    face: Face, kit: ShardKit, precision: str, component: str
) -> type[RuleBasedStateMachine]:
    """Visits, and what days have in common, by two processes' counters and by sets in Python."""
    known = some(precision, 80)
    many = st.lists(st.integers(0, 79), min_size=1, max_size=60)
    days = st.sampled_from(DAYS)
    who = st.integers(0, 1)

    class Visits(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.name = f"p{next(FRESH)}"
            self.came: dict[date, set[Any]] = {day: set() for day in DAYS}
            self.counters = [self.another(), self.another()]

        def another(self) -> Any:
            given = {**SMALL[precision], "part_size": 4}
            if "first_day" in given:
                given["first_day"] = 20
            return face.kit.unique_visitors(
                self.name, component=component, precision=precision, **given
            )

        @property
        def counter(self) -> Any:
            return self.counters[0]

        @rule(who=who)
        def start_again(self, who: int) -> None:
            self.counters[who] = self.another()

        @rule(numbers=many, day=days, who=who)
        def visit_many(self, numbers: list[int], day: date, who: int) -> None:
            new = {known[n] for n in numbers} - self.came[day]
            self.came[day] |= new
            visits = self.counters[who].visit_many((known[n] for n in numbers), day)
            assert face.run(visits) == len(new)

        @rule(number=st.integers(0, 79), day=days, who=who)
        def visit(self, number: int, day: date, who: int) -> None:
            new = known[number] not in self.came[day]
            self.came[day].add(known[number])
            assert face.run(self.counters[who].visit(known[number], day)) is new

        @rule(day=days, wrong=st.integers(0, 50))
        def repair(self, day: date, wrong: int) -> None:
            count = len(self.came[day])
            if count:
                if precision == "bitmap":  # a higher count is damage: a part may be lost
                    wrong = min(wrong, count)
                key = self.counter.count_key(day)
                found = kit.component(component)
                client: Any = kit.client(component) if found.entry else holder(kit, component, key)
                client.set(key, wrong)
            assert face.run(self.counters[1].recount(day)) == count

        @rule(day=days)
        def delete(self, day: date) -> None:
            assert face.run(self.counter.remove(day)) is bool(self.came[day])
            self.counters[1] = self.another()  # a process that has ended since
            self.came[day] = set()

        @rule(day=days)
        def list_ids(self, day: date) -> None:
            found = face.list(self.counter.ids(day))
            assert len(found) == len(set(found)) == len(self.came[day])
            if precision != "compact":
                assert set(found) == {self.counter.visitor_id(one) for one in self.came[day]}

        @rule(chosen=st.lists(days, min_size=1, max_size=4))
        def combine(self, chosen: list[date]) -> None:
            came = [self.came[day] for day in chosen]
            assert face.run(self.counter.count_union(chosen)) == len(set.union(*came))
            both = face.run(self.counter.count_intersection(chosen))
            assert both == len(set.intersection(*came))

        @invariant()
        def counts(self) -> None:
            found = face.run(self.counters[1].counts(DAYS))
            assert found == {day: len(came) for day, came in self.came.items()}

    return Visits


@pytest.mark.long(4)
@pytest.mark.parametrize(
    ("precision", "component"),
    [
        *itertools.product(EXACT, ["both"]),
        *(("60-bit", "many"), ("60-bit", "one"), ("exact", "many")),
        *(("compact", "one"), ("bitmap", "one")),
    ],
)
def test_visitors_are_counted_as_sets_count_them(
    face: Face, kit: ShardKit, component: str, precision: str
) -> None:
    run_state_machine_as_test(machine(face, kit, precision, component), settings=BUDGET)


def test_large_days_with_unrelated_plans_are_refused(face: Face, kit: ShardKit, lower: Any) -> None:
    for day, total in ((DAY, 509 * 256), (NEXT, 521 * 256)):
        odd: Any = kit.set(f"unique:{day}", component="one", total=total, members=int)
        assert odd.sadd_many(range(day.day, 1000 + day.day)) == 1000
    visitors = face.kit.unique_visitors(component="one")
    assert face.run(visitors.count_union([DAY, NEXT])) == 1001
    assert face.run(visitors.count_intersection([DAY, NEXT])) == 999
    lower(visitors_compared=1999)
    with pytest.raises(ParameterMismatchError, match="have no large common divisor") as caught:
        face.run(visitors.count_union([DAY, NEXT]))
    assert "unique:2015-05-17: 509, unique:2015-05-18: 521" in str(caught.value)


@pytest.mark.parametrize("component", COMPONENTS)
def test_sessions_that_differ_in_the_sixteenth_digit_are_two(face: Face, component: str) -> None:
    found = face.kit.unique_visitors(
        component=component, precision="64-bit", part_size=50, first_day=1000
    )
    some = [f"{first}50e8400e29b41d{last}" for first in "07f" for last in "4f"]
    assert [face.run(found.visit(session, DAY)) for session in some] == [True] * 6
    assert face.run(found.visit(some[-1].upper(), DAY)) is False
    assert face.run(found.count(DAY)) == face.run(found.recount(DAY)) == 6
    signed = {int.from_bytes(bytes.fromhex(each), signed=True) for each in some}
    assert set(face.list(found.ids(DAY))) == signed
    assert {found.visitor_id(each) for each in some} == signed
    assert min(signed) < 0 < max(signed)
    assert face.run(found.visit_many(some[:2], NEXT)) == 2
    assert face.run(found.count_union([DAY, NEXT])) == 6
    assert face.run(found.count_intersection([DAY, NEXT])) == 2
    assert face.run(face.run(found.visitors(DAY)).smembers()) == signed


def test_parts_of_signed_ids_are_as_compact_as_others(kit: ShardKit) -> None:
    found = kit.unique_visitors(component="one", precision="64-bit", part_size=50, first_day=10)
    found.visit_many([f"{n % 16:x}" * 16 for n in range(16)], DAY)
    client = kit.client("one")
    parts = [key for key in keys_of(kit, "one") if key.rpartition(":")[2].isdigit()]
    assert {client.object("encoding", key) for key in parts if ":2015-05-17:" in key} == {b"intset"}
    assert found.odds(10**6).missed == pytest.approx(2.7e-8, rel=0.02)
    assert found.odds(10**6, uuid4=True).bits == 60


def test_a_plan_or_a_size_for_too_many_parts_is_named(face: Face, kit: ShardKit) -> None:
    options = {**SMALL["60-bit"], "part_size": 1}
    visitors = face.kit.unique_visitors(component="many", precision="60-bit", **options)
    face.run(visitors.visit_many(some("60-bit", 20), DAY))
    plan, meta = f"unique:{DAY}:expected", f"unique:{DAY}:meta"
    for key, damage_it in (
        (plan, lambda client: client.set(plan, 2**40)),
        (meta, lambda client: client.hset(meta, "total", 2**40)),
    ):
        client: Any = holder(kit, "many", key)
        before = client.dump(key)
        damage_it(client)
        other = face.kit.unique_visitors(component="many", precision="60-bit", **options)
        found = face.list(other.check(DAY))
        assert [(each.key, each.expected) for each in found] == [(key, "2**32 parts at most")]
        assert (found[0].repair, found[0].loses) == ("restore it, or remove(day)", "the day's ids")
        with pytest.raises(DamagedDataError, match=r"2\*\*32 parts at most was expected"):
            face.run(other.visit(some("60-bit", 1)[0], DAY))
        client.restore(key, 0, before, replace=True)
    assert face.list(visitors.check(DAY)) == []


@pytest.mark.parametrize(
    ("precision", "suffix", "command", "wrong"),
    [("60-bit", "expected", "SET", "expected=b'x'"), ("bitmap", "parts", "SADD", "a member=b'x'")],
)
def test_an_invalid_plan_or_part_is_found(
    face: Face, kit: ShardKit, precision: str, suffix: str, command: str, wrong: str
) -> None:
    visitors = counter(face.kit, precision, "many")
    face.run(visitors.visit_many(some(precision, 20), DAY))
    key = f"unique:{DAY}:{suffix}"
    holder(kit, "many", key).execute_command(command, key, "x")
    [found] = face.list(visitors.check(DAY))
    assert (found.key, found.found) == (key, wrong)


def test_incomplete_bitmaps_do_not_repair_a_count(face: Face, kit: ShardKit) -> None:
    visitors = counter(face.kit, "bitmap", "many")
    face.run(visitors.visit_many(range(300), DAY))
    parts = f"unique:{DAY}:parts"
    client = holder(kit, "many", parts)
    client.srem(parts, 0, 1)
    with pytest.raises(DamagedDataError, match="count=300, where the 100 ids that its parts have"):
        face.run(visitors.recount(DAY))
    assert face.run(visitors.count(DAY)) == 300
    client.sadd(parts, 1)
    assert face.run(visitors.recount(DAY)) == 200  # as if some had been counted twice


@pytest.mark.parametrize("precision", ["60-bit", "bitmap"])
@pytest.mark.parametrize("component", ["many", "both"])
def test_visits_name_an_invalid_count(
    face: Face, kit: ShardKit, component: str, precision: str
) -> None:
    visitors = counter(face.kit, precision, component)
    face.run(visitors.visit_many(some(precision, 20), DAY))
    client: Any = kit.client("both") if component == "both" else holder(kit, component, KEY)
    client.set(KEY, "x")
    with pytest.raises(DamagedDataError, match=f"{KEY} is damaged: .*where a count was expected"):
        face.run(visitors.visit_many(some(precision, 20, seed=1), DAY))


def test_later_bitmap_parts_expire_too(face: Face, kit: ShardKit) -> None:
    visitors = counter(face.kit, "bitmap", "many")
    face.run(visitors.visit(1, DAY))
    assert face.run(visitors.expire(DAY, 1000))
    face.run(visitors.visit(1234, DAY))
    keys = keys_of(kit, "many")
    assert f"{KEY}:12" in keys
    forever = {key for key in keys if holder(kit, "many", key).ttl(key) == -1}
    assert forever == {"unique:meta"}


def test_so_many_visitors_are_planned_for_at_most(kit: ShardKit) -> None:
    visitors = kit.unique_visitors(component="many", precision="60-bit", part_size=1024)
    assert visitors.parts(2**41) <= 2**32
    with pytest.raises(InvalidArgumentError, match="expected=2199023255553"):
        visitors.parts(2**41 + 1)
