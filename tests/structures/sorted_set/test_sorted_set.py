"""Sorted sets in parts: storage, refused input, concurrent writes, order; against a plain ZSET."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from faces import Exchanges, Face, keys_of, over, sends
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shardkit import ShardErrors, ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError
from shardkit.operations import Command, Page, Replies

INFINITY = float("inf")
PLAN: dict[str, Any] = {"component": "one", "part_size": 16, "parts": 1, "bound": 4}


def scored(count: int, seed: int = 1) -> dict[str, float]:
    random = Random(seed)
    return {f"user:{n}": float(random.randrange(count)) for n in range(count)}


@pytest.mark.parametrize(
    ("kind", "given", "comes_back"),
    [(int, ["17", 18, b"-3"], {17, 18, -3}), (bytes, ["a", b"\xff", 5], {b"a", b"\xff", b"5"})],
)
def test_members_have_their_type(
    face: Face, kind: type, given: list[Any], comes_back: set[Any]
) -> None:
    each = face.kit.sorted_set("s", component="many", members=kind)
    assert face.run(each.zadd((member, 1) for member in given)) == 3
    assert {member for member, _ in face.run(each.top(5))} == comes_back
    assert {member for member, _ in face.list(each.zscan_iter())} == comes_back
    assert face.run(each.zmscore(list(comes_back))) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("bound", [1, 5])
def test_bounds_are_right_after_many_wrote_at_once(kit: ShardKit, bound: int) -> None:
    plan: dict[str, Any] = {"part_size": 8, "parts": 2, "bound": bound}
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        # A structure of its own each, which does not see how the others let parts split.
        each = kit.sorted_set("s", component="few", **plan)
        random = Random(seed)
        try:
            for _ in range(40):
                some = [f"m{random.randrange(150)}" for _ in range(random.choice([1, 1, 20]))]
                match random.randrange(5):
                    case 0:
                        each.zrem(*some)
                    case 1:
                        each.zremrangebyrank(0, 2)
                    case 2:
                        each.zincrby(random.randrange(-50, 50), some[0])
                    case 3:
                        low = random.randrange(100)
                        each.zremrangebyscore(low, low + 2)
                    case _:
                        each.zadd({member: random.randrange(100) for member in some})
        except BaseException as error:
            failures.append(error)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(write, range(5)))
    assert failures == []
    each = kit.sorted_set("s", component="few", **plan)
    check_bounds(kit, "few", each)
    rows = sorted(((score, member) for member, score in each.zscan_iter()), reverse=True)
    assert each.zcard() == len(rows)
    assert [(score, member) for member, score in each.top(60)] == rows[:60]


def test_a_lost_bound_that_the_state_does_not_know_of_is_named(face: Face, kit: ShardKit) -> None:
    each = face.kit.sorted_set("s", component="one", part_size=16, parts=1, bound=4)
    face.run(each.zadd(scored(50)))
    client: Any = kit.client("one")
    client.delete("s:{0}:top")
    client.hset("s:{0}", "top", 0)
    with pytest.raises(DamagedDataError, match=r"s:\{0\} is damaged: top=0"):
        face.run(each.zadd({"new": 1}))
    assert face.run(each.rebuild()) == 50
    assert face.run(each.zadd({"new": 1})) == 1
    check_bounds(kit, "one", each)


def test_a_plain_zset_is_copied(face: Face, kit: ShardKit) -> None:
    client: Any = kit.client("one")
    client.zadd("plain", scored(1500))
    each = face.kit.sorted_set("s", component="one")
    assert face.run(each.copy_from("plain")) == 1500
    assert face.run(each.copy_from("plain")) == 0
    assert dict(face.list(each.zscan_iter())) == scored(1500)


def carried_out(face: Face, result: Any) -> Any:
    streams = hasattr(result, "__aiter__") or hasattr(result, "__next__")
    return face.list(result) if streams else face.run(result)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.zadd({"a": float("nan")}), "s: member 'a': score=nan; give a number"),
        (lambda s: s.zadd({"a": "7"}), "s: member 'a': score='7'; give a number"),
        (lambda s: s.zadd({"a": True}), "s: member 'a': score=True"),
        (lambda s: s.zadd({"a": 10**400}), "s: member 'a': score=1000"),
        (lambda s: s.zadd({"ok": 1, None: 1}), "s: member None is a NoneType"),
        (lambda s: s.zadd({"ok": 1, b"\xff": 1}), r"s: member b'\xff' is not UTF-8"),
        (lambda s: s.zadd("ab"), "s: mapping='ab'; give a mapping or a list"),
        (lambda s: s.zadd(["ab"]), "s: 'ab' in pairs; give tuples (member, score)"),
        (lambda s: s.zadd([("a", 1, 2)]), "s: ('a', 1, 2) in pairs; give tuples"),
        (lambda s: s.zadd(7), "s: mapping=7; give a mapping or a list"),
        (lambda s: s.zadd({"a": 1}, nx=True, gt=True), "s: nx=True, gt=True are mutually"),
        (lambda s: s.zadd_many([], gt=True, lt=True), "s: gt=True, lt=True are mutually exclusive"),
        (lambda s: s.zincrby(float("nan"), "a"), "s: member 'a': amount=nan"),
        (lambda s: s.zcount("x", 1), "s: min='x'; give a score"),
        (lambda s: s.zcount(1, "(nan"), "s: max='(nan'"),
        (lambda s: s.zremrangebyscore(None, 1), "s: min=None"),
        (lambda s: s.zlexcount("a", "+"), 's: min=\'a\'; give "-", "+", "[member"'),
        (lambda s: s.top(-1), "s: limit=-1; give an integer, 0 to 10,000"),
        (lambda s: s.bottom(10_001), "s: limit=10001"),
        (lambda s: s.zpopmin(1.5), "s: count=1.5"),
        (lambda s: s.page("a"), "s: cursor='a'; give a member and its score"),
        (lambda s: s.page(("a", None)), "s: cursor=('a', None)"),
        (lambda s: s.zrange(0.5, 1), "s: start=0.5"),
        (lambda s: s.zrange(0, "7"), "s: end='7'"),
        (lambda s: s.zrange(0, 1, offset=1, num=1), "s: offset and num without byscore or bylex"),
        (lambda s: s.zrange("-", "+", bylex=True, byscore=True), "s: bylex=True excludes"),
        (lambda s: s.zrange("-", "+", bylex=True, withscores=True), "s: bylex=True excludes"),
        (lambda s: s.zrevrange(0, None), "s: end=None"),
        (lambda s: s.zrangebyscore("a", 1), "s: min='a'"),
        (lambda s: s.zrangebyscore(0, 1, start=1), "s: only one of start (offset) and num"),
        (lambda s: s.zrangebyscore(0, 1, start=1, num=True), "s: num=True"),
        (lambda s: s.zrangebylex("a", "+"), "s: min='a'"),
        (lambda s: s.zremrangebyrank(0, "x"), "s: max='x'"),
        (lambda s: s.zadd({"a": 1, "b": 2}, incr=True), "s: incr=True with 2 members"),
        (lambda s: s.zmscore("ab"), "s: members='ab'; give a list"),
        (lambda s: s.range_iter("a"), "s: min='a'"),
        (lambda s: s.lex_range_iter("a"), "s: min='a'"),
        (lambda s: s.zscan_iter(None, 0), "s: count=0"),
    ],
)
def test_invalid_arguments_are_named(face: Face, kit: ShardKit, call: Any, said: str) -> None:
    each = face.kit.sorted_set("s", component="many")
    with pytest.raises(InvalidArgumentError) as raised:
        carried_out(face, call(each))
    assert str(raised.value).startswith(said)
    assert keys_of(kit, "many") == set()


def test_a_sum_that_is_no_number_changes_nothing(face: Face, kit: ShardKit) -> None:
    each = face.kit.sorted_set("s", component="one")
    face.run(each.zadd({"a": INFINITY}))
    with pytest.raises(ShardErrors) as raised:
        face.run(each.zincrby(-INFINITY, "a"))
    assert "not a number" in str(raised.value.exceptions[0])
    assert face.run(each.zscore("a")) == INFINITY
    check_bounds(kit, "one", each)


def test_more_of_the_first_in_one_group_than_in_its_share_are_found(face: Face) -> None:
    each = face.kit.sorted_set("s", component="many", parts=16, bound=0)
    names = [f"m{n}" for n in range(3000)]
    of_one = [name for name in names if each.layout.place(name.encode())[0] == 3][:100]
    scores = {name: float(name in of_one) for name in names}
    face.run(each.zadd(scores))
    assert face.run(each.top(90)) == [(name, 1.0) for name in sorted(of_one)[:-91:-1]]
    with_bound = face.kit.sorted_set("t", component="many", parts=16, bound=90)
    face.run(with_bound.zadd(scores))
    assert face.run(with_bound.top(90)) == face.run(each.top(90))


@pytest.mark.parametrize("desc", [False, True])
def test_a_script_returns_few_members_of_a_large_group(
    face: Face, kit: ShardKit, lower: Any, desc: bool
) -> None:
    """Ten thousand rows of one group held its server for 0.08 seconds."""
    lower(sorted_set_rows=20, sorted_set_parts=10)
    each = face.kit.sorted_set("s", **PLAN)
    scores = scored(1200)
    face.run(each.zadd(scores))
    order = sorted(((score, name) for name, score in scores.items()), reverse=desc)
    rows = [(name, score) for score, name in order]
    work = Work(kit, kit.sorted_set("s", **PLAN).deferred.page(limit=500, desc=desc))
    assert work.rows == rows[:500]
    assert work.largest <= 32
    assert face.run(each.zrange(0, -1, desc, withscores=True)) == rows
    lex = face.kit.sorted_set("l", **PLAN)
    face.run(lex.zadd(dict.fromkeys(scores, 0)))
    assert (
        face.run(lex.zrange(*("-+", "+-")[desc], desc, bylex=True))
        == sorted(scores)[:: -1 if desc else 1]
    )


def test_all_ranks_include_the_last_while_others_add_members(face: Face, small_pages: None) -> None:
    each = face.kit.sorted_set("s", **PLAN)
    scores = {f"m{n:03}": float(n) for n in range(400)}
    face.run(each.zadd(scores))
    read = Exchanges(face, each.deferred.zrange(0, -1))
    read.until("structures/sorted_set/range")
    face.run(each.zadd({f"a{n}": 500 for n in range(20)} | {f"b{n}": -1 for n in range(20)}))
    read.end()
    assert [name for name in read.result if name in scores] == list(scores)


def test_a_member_that_moves_between_two_pages_is_popped_once(kit: ShardKit, lower: Any) -> None:
    lower(sorted_set_rows=20, sorted_set_parts=10)
    each = kit.sorted_set("s", **PLAN)
    each.zadd({f"m{n:03}": n for n in range(400)})
    pop = Exchanges(kit, each.deferred.zpopmin(100))
    pop.until("structures/sorted_set/range")
    next(iter(pop))
    each.zadd({"m000": 99.5})
    pop.end()
    names = [name for name, _ in pop.result]
    assert len(set(names)) == len(names) == 100
    assert each.zcard() == 300


@pytest.mark.parametrize(
    ("act", "key", "found"),
    [
        (lambda client: client.set("s:{0}:top", "x"), "s:{0}:top", "a value of another type"),
        (
            lambda client: client.hset("s:{0}", "bottom", "4 x"),
            "s:{0}:bottom",
            "4 members, noted as b'4 x'",
        ),
        (
            lambda client: client.hset("s:{0}", "bottom", "4 00"),
            "s:{0}:bottom",
            "4 members, noted as b'4 00'",
        ),
    ],
)
def test_a_bound_that_is_none_is_found_and_rebuilt(
    face: Face, kit: ShardKit, act: Callable[[Any], Any], key: str, found: str
) -> None:
    each = face.kit.sorted_set("s", component="one", part_size=16, parts=1, bound=4)
    face.run(each.zadd(scored(4)))
    assert face.list(each.check()) == []
    act(kit.client("one"))
    [damage] = face.list(each.check())
    assert (damage.key, damage.found, damage.repair) == (key, found, "rebuild() makes it again")
    assert face.run(each.rebuild()) == 4
    assert face.list(each.check()) == []


def test_without_bounds_a_check_finds_what_parts_have_lost(face: Face, kit: ShardKit) -> None:
    each = face.kit.sorted_set("s", component="one", part_size=16, parts=1, bound=0)
    face.run(each.zadd(scored(50)))
    assert face.list(each.check()) == []
    client: Any = kit.client("one")
    lost = client.zcard("s:{0}:1")
    client.delete("s:{0}:1")
    [damage] = face.list(each.check())
    assert (damage.key, damage.loses) == ("s:{0}", f"{lost} members, lost already")


def test_many_keys_take_several_exchanges(kit: ShardKit, lower: Any) -> None:
    each = kit.sorted_set("s", component="one", part_size=16, parts=4, bound=4)
    each.zadd(scored(500))
    lower(sorted_set_keys=2)
    count = Exchanges(kit, each.deferred.zcount("-inf", "inf"))
    assert list(map(len, count)) == [1, 1, 1, 1]
    assert count.result == 500
    assert each.rebuild() == 500


@pytest.mark.parametrize("act", ["zremrangebyscore", "rebuild"])
def test_visits_spare_groups_of_other_parameters(kit: ShardKit, act: str) -> None:
    each = kit.sorted_set("s", component="one", part_size=16, parts=4, bound=4)
    each.zadd(scored(100))
    args = (0, 1) if act == "zremrangebyscore" else ()
    visit = Exchanges(kit, getattr(each.deferred, act)(*args))
    visit.until("structures/sorted_set/rebuild")
    assert kit.sorted_set("s", component="one", part_size=16, parts=4, bound=4).delete()
    other = kit.sorted_set("s", component="one", part_size=32, parts=4, bound=4)
    other.zadd(scored(100))
    with pytest.raises(ParameterMismatchError, match="'s' was created with other parameters"):
        visit.end()
    assert other.zcard() == 100
    assert list(other.check()) == []


class Work:
    """How many parts were visited, and how many members read, by some steps."""

    def __init__(self, kit: ShardKit, steps: Iterator[Any]) -> None:
        self.parts = self.members = self.largest = 0
        self.rows: list[Any] = []
        generator: Any = steps
        step = next(generator)
        try:
            while True:
                if isinstance(step, Page):
                    self.rows += step
                    step = next(generator)
                    continue
                replies = kit.driver.link.send(step)
                for command, reply in zip(step, replies, strict=True):
                    self._count(command, reply)
                step = generator.send(replies)
        except StopIteration as done:
            self.rows += done.value or []

    def _count(self, command: Any, reply: Any) -> None:
        if not isinstance(command, Command):
            return
        if command.name == "structures/sorted_set/range":
            self.members += (len(reply) - 1) // 2
            self.largest = max(self.largest, (len(reply) - 1) // 2)
        if command.name in ("structures/sorted_set/range", "structures/sorted_set/count"):
            self.parts += int(command.args[2]) - 1


@pytest.fixture
def small_pages(lower: Any) -> None:
    """Pages so small that a few thousand members are many."""
    lower(sorted_set_first_page=10, sorted_set_page=100)


def filled(kit: ShardKit, count: int, distinct: int) -> tuple[Any, list[tuple[int, float]]]:
    scores = kit.sorted_set(
        f"s{count}:{distinct}", component="many", members=int, part_size=32, parts=4
    )
    random = Random(count)
    found = {n: float(random.randrange(distinct)) for n in range(count)}
    scores.zadd_many(found.items())
    return scores, sorted(found.items(), key=lambda row: (row[1], str(row[0])))


@pytest.mark.long(2)
@pytest.mark.parametrize("distinct", [1, 50, 10**9])
@pytest.mark.parametrize("desc", [False, True])
def test_a_rank_far_inside_is_found_without_reading_what_precedes_it(
    kit: ShardKit, small_pages: None, distinct: int, desc: bool
) -> None:
    scores, order = filled(kit, 16_000, distinct)
    if desc:
        order.reverse()
    for start, stop in [
        *[(200, 210), (8000, 8009), (15_700, 15_800), (-7000, -6990), (5000, -9000)],
        *[(15_999, 15_999), (15_990, 20_000), (16_000, 16_001), (9000, 8000), (-16_001, -15_999)],
    ]:
        work = Work(kit, scores.deferred.zrange(start, stop, desc, withscores=True))
        expected = order[start:] if stop == -1 else order[max(start, -16_000) : stop + 1]
        if stop == -15_999:
            expected = order[:2]
        assert work.rows == expected, (start, stop)
        assert work.members <= 1.6 * len(expected) + 0.1 * 16_000 + 200


@pytest.mark.parametrize("desc", [False, True])
def test_a_rank_whose_row_is_in_the_sample_is_read_from_before_it(
    kit: ShardKit, small_pages: None, desc: bool
) -> None:
    """The first pivot is the wanted row itself: what follows it would lack it."""
    send, sampled = kit.driver.link.send, list[bytes]()

    def sample(batch: Any) -> Any:
        """Answer the first reads of whole parts by a few rows."""
        if not sampled or not sends(batch, "ZRANGE"):
            return send(batch)
        replies = Replies([[*sampled], *([] for _ in batch[1:])])
        sampled.clear()
        return replies

    scores, order = filled(over(kit, SimpleNamespace(send=sample)), 1000, 10**9)
    if desc:
        order.reverse()
    for member, score in (order[rank] for rank in (0, 750, 751, 752)):
        sampled += [b"%d" % member, repr(score).encode()]
    assert scores.zrange(750, 759, desc, withscores=True) == order[750:760]
    assert not sampled


BUDGET = settings(
    max_examples=6,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FRESH = itertools.count()

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


@pytest.mark.long(2)
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


def full_range(client: Any, key: Any) -> list[tuple[bytes, float]]:
    rows: list[tuple[bytes, float]] = client.zrange(key, 0, -1, withscores=True)
    return rows


def stored(kit: ShardKit, component: str, name: str) -> dict[str, dict[str, Any]]:
    """By group: its state, its top and bottom, and what its parts hold together, in order."""
    found = kit.component(component)
    numbers: list[int | None] = [*range(len(found.shards))] or [None]
    groups: dict[str, dict[str, Any]] = defaultdict(lambda: {"rows": [], "parts": 0})
    for client in {id(c): c for c in (kit.client(component, n) for n in numbers)}.values():
        for key in map(bytes.decode, client.scan_iter(f"{name}:{{*}}*")):
            group, _, what = key.removeprefix(f"{name}:").partition("}")
            what = what.removeprefix(":")
            if not what:
                groups[group]["state"] = client.hgetall(key)
            elif what in ("top", "bottom"):
                groups[group][what] = full_range(client, key)
            else:
                groups[group]["parts"] += 1
                groups[group]["rows"] += full_range(client, key)
    for group in groups.values():
        group["rows"].sort(key=lambda row: (row[1], row[0]))
    return groups


def check_bounds(kit: ShardKit, component: str, sorted_set: Any) -> None:
    """Check that every group has its best members at hand, enough of them, and not too many."""
    layout: Any = sorted_set.layout
    for group in stored(kit, component, sorted_set.name).values():
        rows = group["rows"]
        assert int(group["state"].get(b"count", 0)) == len(rows)
        top, bottom = group.get("top", []), group.get("bottom", [])
        for bound in (top, bottom):
            assert min(layout.bound_size, len(rows)) <= len(bound) <= 2 * layout.bound_size
        assert top == (rows[-len(top) :] if top else [])
        assert bottom == rows[: len(bottom)]
