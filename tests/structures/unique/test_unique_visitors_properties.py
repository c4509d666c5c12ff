"""Unique visitors against a model in Python, over random visits, days and mishaps."""

from __future__ import annotations

import itertools
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import pytest
from faces import Face, sessions
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shardkit import ShardKit
from shardkit.structures.unique.sizing import expected_after

BUDGET = settings(
    max_examples=10,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FRESH = itertools.count()
DAYS = [date(2016, 2, 28) + timedelta(days=n) for n in range(4)]  # over a leap day
KNOWN = sessions(40)
FIRST_DAY = 10

spelled = st.builds(
    lambda session, spell: spell(session),
    st.sampled_from(KNOWN),
    st.sampled_from([str, str.upper, str.encode, UUID, lambda s: s.replace("-", "")]),
)
days = st.sampled_from(DAYS)


def first_digits(session: Any) -> str:
    text = session.decode() if isinstance(session, bytes) else str(session)
    return text.replace("-", "").lower()[:15]


def machine(face: Face, kit: ShardKit, component: str) -> type[RuleBasedStateMachine]:
    """A machine that counts visits with two processes' counters, and with sets in Python."""

    class Visits(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.name = f"u{next(FRESH)}"
            self.counters = [self.another(), self.another()]
            self.came: dict[date, set[str]] = {day: set() for day in DAYS}
            self.plans: dict[date, int] = {}
            self.known_counts: dict[date, int] = {}

        def another(self) -> Any:
            return face.kit.unique_visitors(
                self.name, component=component, part_size=4, first_day=FIRST_DAY
            )

        def plan(self, day: date) -> int:
            before = self.known_counts.get(day - timedelta(days=1))
            return self.plans.setdefault(
                day, expected_after(FIRST_DAY if before is None else before)
            )

        def visited(self, day: date, new: set[str]) -> int:
            new = new - self.came[day]
            self.came[day] |= new
            if new:
                self.known_counts[day] = len(self.came[day])
            return len(new)

        @rule(session=spelled, day=days, who=st.integers(0, 1))
        def visit(self, session: Any, day: date, who: int) -> None:
            self.plan(day)
            new = self.visited(day, {first_digits(session)})
            assert face.run(self.counters[who].visit(session, day)) is bool(new)

        @rule(many=st.lists(spelled, max_size=60), day=days, who=st.integers(0, 1))
        def visit_many(self, many: list[Any], day: date, who: int) -> None:
            if many:
                self.plan(day)
            new = self.visited(day, set(map(first_digits, many)))
            assert face.run(self.counters[who].visit_many(iter(many), day)) == new

        @rule(day=days, who=st.integers(0, 1))
        def expect(self, day: date, who: int) -> None:
            assert face.run(self.counters[who].expected(day)) == self.plan(day)

        @rule(who=st.integers(0, 1))
        def start_again(self, who: int) -> None:
            self.counters[who] = self.another()

        @rule(day=days)
        def read_ids(self, day: date) -> None:
            found = face.run(face.run(self.counters[0].visitors(day)).smembers())
            assert sorted(found) == sorted(int(digits, 16) for digits in self.came[day])

        @rule(day=days, wrong=st.integers(0, 50))
        def repair(self, day: date, wrong: int) -> None:
            if day in self.plans and self.came[day]:
                key = self.counters[0].count_key(day)
                found = kit.component(component)
                number = None if found.entry else found.shard_of(key).number
                kit.client(component, number).set(key, wrong)  # type: ignore[union-attr]
                self.known_counts[day] = len(self.came[day])
            assert face.run(self.counters[1].recount(day)) == len(self.came[day])

        @rule(day=days)
        def delete(self, day: date) -> None:
            there = day in self.plans
            assert face.run(self.counters[0].remove(day)) is there
            self.counters[1] = self.another()  # a process that has ended since
            self.came[day] = set()
            self.plans.pop(day, None)
            self.known_counts.pop(day, None)

        @invariant()
        def counts(self) -> None:
            found = face.run(self.counters[1].counts(DAYS))
            assert found == {day: len(came) for day, came in self.came.items()}

    return Visits


@pytest.mark.long(2)
@pytest.mark.parametrize("component", ["one", "many", "both"])
def test_visitors_are_counted_as_sets_count_them(face: Face, kit: ShardKit, component: str) -> None:
    run_state_machine_as_test(machine(face, kit, component), settings=BUDGET)
