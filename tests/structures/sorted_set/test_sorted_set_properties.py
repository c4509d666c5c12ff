"""A sorted set in parts against a plain ZSET of the server, over random operations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from faces import Face
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sorted_set_helpers import check_bounds

from shardkit import ShardKit

BUDGET = settings(
    max_examples=6,
    stateful_step_count=25,
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
mappings = st.lists(st.tuples(members, scores), min_size=1, max_size=40)
OPTIONS = [
    tuple(words.split()) for words in ("", "ch", "nx", "xx ch", "gt", "lt ch", "xx gt", "xx lt ch")
]
bounds = st.one_of(
    scores.map(float),
    scores.map(lambda score: f"({float(score)!r}"),
    st.sampled_from(["-inf", "+inf", "(inf", "(-inf"]),
)
PLANS: list[dict[str, Any]] = [
    {"parts": 1, "bound": 3, "part_size": 4},
    {"parts": 2, "bound": 1, "part_size": 4},
    {"parts": 4, "bound": 0, "part_size": 16},
    {"parts": 4, "bound": 20, "part_size": 4, "total": 30},
]


def str_of_float(score: Any) -> str:
    return str(float(score))


def decoded(reply: Any) -> Any:
    """What redis-py returned, as a structure with members=str returns it."""
    if isinstance(reply, bytes):
        return reply.decode()
    return [*map(decoded, reply)] if isinstance(reply, list | tuple) else reply


def machine(face: Face, kit: ShardKit, plan: dict[str, Any]) -> type[RuleBasedStateMachine]:
    """A machine that does everything to a plain ZSET, to one over one server and to one over many.

    Each method is called with the same arguments as redis-py's, and must return the same; after
    each step tops and bottoms must be correct.
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

        def same(self, method: str, *args: Any, **options: Any) -> Any:
            expected = decoded(getattr(plain, method)(self.key, *args, **options))
            self.gives(expected, method, *args, **options)
            return expected

        def gives(self, expected: Any, method: str, *args: Any, **options: Any) -> None:
            for each in self.both.values():
                assert decoded(face.run(getattr(each, method)(*args, **options))) == expected

        def streams(self, expected: Any, method: str, *args: Any, **options: Any) -> None:
            for each in self.both.values():
                assert decoded(face.list(getattr(each, method)(*args, **options))) == expected

        @rule(pairs=mappings, chosen=st.sampled_from(OPTIONS), how=st.sampled_from("dpm"))
        def add(self, pairs: list[tuple[str, Any]], chosen: tuple[str, ...], how: str) -> None:
            options = dict.fromkeys(chosen, True)
            if how == "d":
                self.same("zadd", dict(pairs), **options)
                return
            sent = [word.upper() for word in chosen]
            flat = [text for member, score in pairs for text in (repr(float(score)), member)]
            expected = plain.execute_command("ZADD", self.key, *sent, *flat)
            self.gives(expected, "zadd_many" if how == "m" else "zadd", pairs, **options)

        @rule(member=members, amount=st.one_of(st.integers(-9, 9), st.floats(-1e9, 1e9)))
        def increase(self, member: str, amount: float) -> None:
            self.same("zincrby", amount, member)

        @rule(member=members, amount=st.integers(-9, 9), chosen=st.sampled_from(OPTIONS))
        def increase_by_zadd(self, member: str, amount: int, chosen: tuple[str, ...]) -> None:
            self.same("zadd", {member: amount}, incr=True, **dict.fromkeys(chosen, True))

        @rule(some=st.lists(members, min_size=1, max_size=15))
        def remove(self, some: list[str]) -> None:
            self.same("zrem", *some)

        @rule(count=st.integers(0, 5), desc=st.booleans())
        def remove_at_the_boundary(self, count: int, desc: bool) -> None:
            at_end = plain.zrange(self.key, 0, count, desc=desc)
            if at_end:
                self.same("zrem", *at_end)

        @rule(count=st.integers(1, 4), desc=st.booleans())
        def move_from_the_boundary(self, count: int, desc: bool) -> None:
            pairs = plain.zrange(self.key, 0, count, desc=desc, withscores=True)
            moved = {member: 0.25 if score != 0.25 else -1e9 for member, score in pairs}
            if moved:
                self.same("zadd", moved, ch=True)

        @rule(count=st.one_of(st.none(), st.integers(1, 8)), highest=st.booleans())
        def pop(self, count: int | None, highest: bool) -> None:
            self.same("zpopmax" if highest else "zpopmin", count)

        @rule(low=bounds, high=bounds)
        def remove_scores(self, low: Any, high: Any) -> None:
            self.same("zremrangebyscore", low, high)

        @rule(start=st.integers(-12, 12), stop=st.integers(-12, 12))
        def remove_ranks(self, start: int, stop: int) -> None:
            self.same("zremrangebyrank", start, stop)

        @rule()
        def rebuild(self) -> None:
            self.gives(plain.zcard(self.key), "rebuild")

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
        def read_members(self, some: list[str]) -> None:
            if some:
                self.same("zmscore", some)
            for member in some[:3]:
                self.same("zscore", member)
                self.same("zrank", member)
                self.same("zrevrank", member)
                self.same("zrank", member, withscore=True)
                self.same("zrevrank", member, withscore=True, score_cast_func=str_of_float)
            self.same("zcard")

        @rule(
            low=bounds,
            high=bounds,
            limit=st.integers(0, 5),
            part=st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(-1, 5))),
        )
        def ranges(self, low: Any, high: Any, limit: int, part: tuple[int, int] | None) -> None:
            start, num = part or (None, None)
            self.same("zcount", low, high)
            self.same("zrangebyscore", low, high)
            self.same("zrevrangebyscore", high, low, start, num)
            self.same("zrange", low, high, byscore=True, offset=start, num=num)
            self.same("zrange", high, low, desc=True, byscore=True, withscores=True)
            for desc in (False, True):
                if desc:
                    rows = self.same("zrevrangebyscore", high, low, withscores=True)
                else:
                    rows = self.same("zrangebyscore", low, high, start, num, withscores=True)
                    rows = self.same("zrangebyscore", low, high, withscores=True)
                where = {"min": low, "max": high, "desc": desc}
                self.streams(rows, "range_iter", **where)
                self.gives(rows[:limit], "page", limit=limit, **where)
                for n, row in list(enumerate(rows))[:4]:
                    self.gives(rows[n + 1 : n + 1 + limit], "page", tuple(row), limit, **where)

        @rule(start=st.integers(-12, 12), stop=st.integers(-12, 12), desc=st.booleans())
        def ranks(self, start: int, stop: int, desc: bool) -> None:
            self.same("zrange", start, stop, desc)
            self.same("zrange", start, stop, desc, withscores=True)
            self.same("zrevrange", start, stop, True, str_of_float)

        @rule(limit=st.integers(0, 70))
        def ends(self, limit: int) -> None:
            for method, desc in (("top", True), ("bottom", False)):
                rows = plain.zrange(self.key, 0, limit, desc=desc, withscores=True)[:limit]
                self.gives(decoded(rows), method, limit)

        @rule(match=st.sampled_from([None, "*", "1*", "a?*", "[ab]*", "ß"]))
        def iterate(self, match: str | None) -> None:
            expected = sorted(map(decoded, plain.zscan_iter(self.key, match)))
            for each in self.both.values():
                assert sorted(map(decoded, face.list(each.zscan_iter(match, 7)))) == expected

        @invariant()
        def the_bounds_are_what_they_claim(self) -> None:
            for component, each in self.both.items():
                check_bounds(kit, component, each)

    return SortedSets


@pytest.mark.long(3)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_it_does_what_a_zset_does(face: Face, kit: ShardKit, plan: dict[str, Any]) -> None:
    run_state_machine_as_test(machine(face, kit, plan), settings=BUDGET)


WORDS = [
    *("", "a", "aa", "ab", "b", "abcdefgh", "abcdefghi", "abcdefgj", "ß", "城", "\x7f", "z", "A"),
    *(f"w{n}" for n in range(40)),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_ranges_of_equal_scores_match_a_zset(
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
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("zrangebylex", (low, high), {}),
            ("zrangebylex", (low, high, 2, 3), {}),
            ("zrevrangebylex", (high, low), {}),
            ("zrevrangebylex", (high, low, 1, -1), {}),
            ("zlexcount", (low, high), {}),
            ("zrange", (low, high), {"bylex": True, "offset": 1, "num": 9}),
            ("zrange", (high, low), {"bylex": True, "desc": True}),
        ]
        for method, args, options in calls:
            expected = decoded(getattr(plain, method)("plain", *args, **options))
            assert face.run(getattr(words, method)(*args, **options)) == expected
        expected = decoded(plain.zrangebylex("plain", low, high))
        assert face.list(words.lex_range_iter(low, high)) == expected
        assert face.list(words.lex_range_iter(low, high, desc=True)) == expected[::-1]
    rows = [(word.decode(), 7.0) for word in plain.zrange("plain", 0, -1)]
    assert face.run(words.zrange(0, -1, withscores=True)) == rows
    assert face.run(words.page(rows[9], 20, desc=True)) == rows[8::-1]
    check_bounds(kit, "many", words)
