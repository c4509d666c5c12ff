"""A sorted set in parts against a plain ZSET of the server, over random operations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from faces import Face
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sorted_set_helpers import check_bounds, full_range

from shardkit import ShardKit

BUDGET = settings(
    max_examples=6,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FRESH = itertools.count()
INFINITY = float("inf")

# Few members and few scores: so that scores are equal, and members are met again.
members = st.one_of(
    st.integers(0, 60).map(str),
    st.sampled_from(["", "a", "ab", "abcdefgh", "abcdefghi", "ß", "城市", "{x}", "\0", "-"]),
)
scores = st.one_of(
    st.sampled_from([0.0, -0.0, 1, 2, 3.5, -1.5, INFINITY, -INFINITY, 0.1, 1e300, 5e-324, 2**53]),
    st.integers(-3, 3),
    st.integers(-3, 3),
    st.floats(allow_nan=False),
)
mappings = st.lists(st.tuples(members, scores), max_size=40)
OPTIONS = [
    (),
    ("ch",),
    ("nx",),
    ("xx", "ch"),
    ("gt",),
    ("lt", "ch"),
    ("xx", "gt"),
    ("xx", "lt", "ch"),
]
limits = st.one_of(
    scores.map(float),
    scores.map(lambda score: f"({float(score)!r}"),
    st.sampled_from(["-inf", "+inf", "(inf", "(-inf"]),
)
PLANS: list[dict[str, Any]] = [
    {"groups": 1, "bound": 3, "part_size": 4},
    {"groups": 2, "bound": 1, "part_size": 4},
    {"groups": 4, "bound": 0, "part_size": 16},
    {"groups": 4, "bound": 20, "part_size": 4, "total": 30},
]


def as_sent(limit: float | str) -> str:
    return limit if isinstance(limit, str) else repr(limit)


def machine(face: Face, kit: ShardKit, plan: dict[str, Any]) -> type[RuleBasedStateMachine]:
    """A machine that does everything to a plain ZSET, to one over one server and to one over many.

    Each reply must be what the server says about the plain one; after each step tops and bottoms
    must be what they claim to be.
    """
    plain: Any = kit.client("one")

    class SortedSets(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.key = f"{next(FRESH)}:plain"
            self.both = {
                component: face.kit.sorted_set(
                    f"{next(FRESH)}:{component}", component=component, **plan
                )
                for component in ("one", "many")
            }

        def same(self, expected: Any, method: str, *args: Any, **options: Any) -> None:
            for each in self.both.values():
                assert face.run(getattr(each, method)(*args, **options)) == expected

        def same_rows(self, expected: Any, method: str, *args: Any, **options: Any) -> None:
            rows = [(member.decode(), score) for member, score in expected]
            for each in self.both.values():
                assert face.list(getattr(each, method)(*args, **options)) == rows

        @rule(pairs=mappings, chosen=st.sampled_from(OPTIONS), how=st.sampled_from("dpm"))
        def add(self, pairs: list[tuple[str, Any]], chosen: tuple[str, ...], how: str) -> None:
            if how == "d":
                pairs = list(dict(pairs).items())
            sent = [word.upper() for word in chosen]
            flat = [text for member, score in pairs for text in (repr(float(score)), member)]
            expected = plain.execute_command("ZADD", self.key, *sent, *flat) if pairs else 0
            options = dict.fromkeys(chosen, True)
            given = dict(pairs) if how == "d" else pairs
            self.same(expected, "zadd_many" if how == "m" else "zadd", given, **options)

        @rule(member=members, amount=st.one_of(st.integers(-9, 9), st.floats(-1e9, 1e9)))
        def increase(self, member: str, amount: float) -> None:
            self.same(plain.zincrby(self.key, amount, member), "zincrby", amount, member)

        @rule(some=st.lists(members, max_size=15))
        def remove(self, some: list[str]) -> None:
            self.same(plain.zrem(self.key, *some) if some else 0, "zrem", *some)

        @rule(count=st.integers(0, 5), reverse=st.booleans())
        def remove_at_the_boundary(self, count: int, reverse: bool) -> None:
            at_end = plain.zrange(self.key, 0, count, desc=reverse)
            expected = plain.zrem(self.key, *at_end) if at_end else 0
            self.same(expected, "zrem", *at_end)

        @rule(count=st.integers(1, 4), reverse=st.booleans())
        def move_from_the_boundary(self, count: int, reverse: bool) -> None:
            pairs = plain.zrange(self.key, 0, count, desc=reverse, withscores=True)
            moved = {member: 0.25 if score != 0.25 else -1e9 for member, score in pairs}
            if moved:
                self.same(plain.zadd(self.key, moved, ch=True), "zadd", moved, ch=True)

        @rule(count=st.integers(0, 8), reverse=st.booleans())
        def pop(self, count: int, reverse: bool) -> None:
            popped = (plain.zpopmax if reverse else plain.zpopmin)(self.key, count or None)
            rows = [(member.decode(), score) for member, score in popped]
            self.same(rows, "zpopmax" if reverse else "zpopmin", count or 1)

        @rule(low=limits, high=limits)
        def remove_range(self, low: Any, high: Any) -> None:
            expected = plain.zremrangebyscore(self.key, as_sent(low), as_sent(high))
            self.same(expected, "zremrangebyscore", low, high)

        @rule()
        def rebuild(self) -> None:
            self.same(plain.zcard(self.key), "rebuild")

        @initialize(pairs=st.lists(st.tuples(members, scores), min_size=30, max_size=60))
        def begin(self, pairs: list[tuple[str, Any]]) -> None:
            plain.zadd(self.key, dict(pairs))
            for each in self.both.values():
                face.run(each.zadd(dict(pairs)))

        @precondition(lambda self: plain.zcard(self.key) < 5)
        @rule()
        def delete(self) -> None:
            for each in self.both.values():
                face.run(each.delete())
            plain.delete(self.key)

        @rule(some=st.lists(members, max_size=10))
        def look(self, some: list[str]) -> None:
            self.same(plain.zmscore(self.key, some) if some else [], "zmscore", *some)
            for member in some[:3]:
                self.same(plain.zscore(self.key, member), "zscore", member)
                self.same(plain.zrank(self.key, member), "zrank", member)
                self.same(plain.zrevrank(self.key, member), "zrevrank", member)
            self.same(plain.zcard(self.key), "zcard")

        @rule(low=limits, high=limits, reverse=st.booleans(), count=st.integers(0, 5))
        def ranges(self, low: Any, high: Any, reverse: bool, count: int) -> None:
            ends = as_sent(low), as_sent(high)
            self.same(plain.zcount(self.key, *ends), "zcount", low, high)
            if reverse:
                expected = plain.zrevrangebyscore(self.key, *ends[::-1], withscores=True)
            else:
                expected = plain.zrangebyscore(self.key, *ends, withscores=True)
            self.same_rows(expected, "zrangebyscore", low, high, reverse=reverse)
            rows = [(member.decode(), score) for member, score in expected]
            where = {"reverse": reverse, "low": low, "high": high}
            self.same(rows[:count], "page", count=count, **where)
            for start, after in list(enumerate(rows))[:6]:
                found = rows[start + 1 : start + 1 + count]
                self.same(found, "page", after, count, **where)

        @rule(start=st.integers(-12, 12), stop=st.integers(-12, 12), reverse=st.booleans())
        def ranks(self, start: int, stop: int, reverse: bool) -> None:
            expected = plain.zrange(self.key, start, stop, desc=reverse, withscores=True)
            self.same_rows(expected, "zrange", start, stop, reverse=reverse)

        @rule(count=st.integers(0, 70))
        def ends(self, count: int) -> None:
            for method, reverse in (("top", True), ("bottom", False)):
                rows = plain.zrange(self.key, 0, count, desc=reverse, withscores=True)[:count]
                self.same([(m.decode(), s) for m, s in rows], method, count)

        @rule()
        def iterate(self) -> None:
            expected = full_range(plain, self.key)
            for each in self.both.values():
                found = face.list(each.zscan_iter())
                assert len(found) == len(expected)
                assert {member.encode(): score for member, score in found} == dict(expected)

        @invariant()
        def the_bounds_are_what_they_claim(self) -> None:
            for component, each in self.both.items():
                check_bounds(kit, component, each)

    return SortedSets


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_sorted_set_in_parts_does_what_a_zset_does(
    face: Face, kit: ShardKit, plan: dict[str, Any]
) -> None:
    run_state_machine_as_test(machine(face, kit, plan), settings=BUDGET)


WORDS = [
    *("", "a", "aa", "ab", "b", "abcdefgh", "abcdefghi", "abcdefgj", "ß", "城", "\x7f", "z", "A"),
    *(f"w{n}" for n in range(40)),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_ranges_of_members_with_equal_scores_are_those_of_a_zset(
    face: Face, kit: ShardKit, plan: dict[str, Any]
) -> None:
    plain: Any = kit.client("one")
    words = face.kit.sorted_set("words", component="many", **plan)
    assert face.run(words.zadd(dict.fromkeys(WORDS, 7))) == plain.zadd(
        "plain", dict.fromkeys(WORDS, 7)
    )
    for low, high in [
        *[("-", "+"), ("[a", "[ab"), ("(a", "(b"), ("[ab", "+"), ("-", "(w2"), ("+", "-")],
        *[("[w1", "[w3"), ("(ß".encode(), "+"), ("[", "(a")],
    ]:
        expected = [word.decode() for word in plain.zrangebylex("plain", low, high)]
        assert face.list(words.zrangebylex(low, high)) == expected
        assert face.list(words.zrangebylex(low, high, reverse=True)) == expected[::-1]
        assert face.run(words.zlexcount(low, high)) == len(expected)
    rows = [(word.decode(), 7.0) for word in plain.zrange("plain", 0, -1)]
    assert face.list(words.zrange()) == rows
    assert face.run(words.page(rows[9], 20, reverse=True)) == rows[8::-1]
    check_bounds(kit, "many", words)
