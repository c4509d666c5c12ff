"""Sorted sets in parts: storage, refused input, concurrent writes, and reading in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from faces import Exchanges, Face, keys_of
from sorted_set_helpers import check_bounds, stored

from shardkit import ShardErrors, ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError
from shardkit.operations import Command, Operation, Page
from shardkit.structures.sorted_set import groups
from shardkit.structures.sorted_set.groups import Row

COMPONENTS = ["one", "many"]
INFINITY = float("inf")


def scored(count: int, seed: int = 1) -> dict[str, float]:
    random = Random(seed)
    return {f"user:{n}": float(random.randrange(count)) for n in range(count)}


@pytest.fixture(params=COMPONENTS)
def component(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


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


def test_parts_and_bounds_are_compact(face: Face, kit: ShardKit, component: str) -> None:
    each = face.kit.sorted_set("s", component=component, parts=4, bound=50)
    face.run(each.zadd(scored(5000)))
    groups = stored(kit, component, "s")
    assert len(groups) == 4
    assert all(20 < group["parts"] < 60 for group in groups.values())
    check_bounds(kit, component, each)
    found = kit.component(component)
    clients: list[Any] = [kit.client(component, n) for n in ([*range(len(found.shards))] or [None])]
    encodings = {
        client.object("encoding", key) for client in clients for key in client.scan_iter("s:{*}:*")
    }
    assert encodings == {b"listpack"}


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


def test_none_to_ten_thousand_members_are_popped_or_shown_at_once(face: Face) -> None:
    each = face.kit.sorted_set("s", component="one")
    for name in ("zpopmin", "zpopmax", "top", "bottom"):
        face.run(each.zadd({"a": 1, "b": 2, "c": 3}))
        read = getattr(each, name)
        assert face.run(read(0)) == []
        assert face.run(each.zcard()) == 3
        for count in (-1, 10_001):
            with pytest.raises(InvalidArgumentError, match=f"={count}; give an integer, 0 to 10,"):
                face.run(read(count))
        assert len(face.run(read(10_000))) == 3


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


def test_many_keys_take_several_exchanges(kit: ShardKit, monkeypatch: pytest.MonkeyPatch) -> None:
    each = kit.sorted_set("s", component="one", part_size=16, parts=4, bound=4)
    each.zadd(scored(500))
    monkeypatch.setattr("shardkit.structures.sorted_set.groups.KEYS_PER_EXCHANGE", 2)
    count = Exchanges(kit, each.deferred.zcount("-inf", "inf"))
    assert list(map(len, count)) == [1, 1, 1, 1]
    assert count.result == 500
    assert each.rebuild() == 500


@pytest.mark.parametrize("act", ["zremrangebyscore", "rebuild"])
def test_visits_spare_groups_of_other_parameters(kit: ShardKit, act: str) -> None:
    each = kit.sorted_set("s", component="one", part_size=16, parts=4, bound=4)
    each.zadd(scored(100))
    steps: Any = each.deferred.zremrangebyscore(0, 1) if act != "rebuild" else each.layout.rebuild()
    visit = Exchanges(kit, steps)
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
        self.parts = self.members = 0
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
        if command.name in ("structures/sorted_set/range", "structures/sorted_set/count"):
            self.parts += int(command.args[2]) - 1


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages so small that a few thousand members are many."""
    monkeypatch.setattr(groups, "FIRST_PAGE", 10)
    monkeypatch.setattr(groups, "LARGEST_PAGE", 100)


def filled(kit: ShardKit, count: int, distinct: int) -> tuple[Any, list[tuple[int, float]]]:
    scores = kit.sorted_set(
        f"s{count}:{distinct}", component="many", members=int, part_size=32, parts=4
    )
    random = Random(count)
    found = {n: float(random.randrange(distinct)) for n in range(count)}
    scores.zadd_many(found.items())
    return scores, sorted(found.items(), key=lambda row: (row[1], str(row[0])))


@pytest.mark.parametrize("distinct", [1, 50, 10**9])
def test_iterating_in_order_visits_each_part_a_bounded_number_of_times(
    kit: ShardKit, small_pages: None, distinct: int
) -> None:
    for count in (1000, 4000, 16_000):
        scores, order = filled(kit, count, distinct)
        for desc in (False, True):
            work = Work(kit, scores.deferred.range_iter(desc=desc))
            assert work.rows == (order[::-1] if desc else order)
            assert work.parts <= 12 * sum(scores.layout.parts)
            assert work.members <= 1.6 * count


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


def test_a_sample_that_misleads_does_not_change_what_is_returned(
    kit: ShardKit, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of each group, which is the sample, holds the highest members only."""
    monkeypatch.setattr(groups, "SAMPLE", 1)
    scores, order = filled(kit, 4000, 10**9)
    assert all(parts >= 64 for parts in scores.layout.parts)
    raised = {n for n in range(4000) if scores.layout.place(b"%d" % n)[1] % 64 == 0}
    scores.zadd(dict.fromkeys(raised, math.inf))
    order = sorted(
        [(n, math.inf if n in raised else score) for n, score in order],
        key=lambda row: (row[1], str(row[0])),
    )
    assert scores.zrange(1000, 1010, withscores=True) == order[1000:1011]
    assert scores.zrange(2000, 2010, desc=True, withscores=True) == order[::-1][2000:2011]


@pytest.mark.parametrize("desc", [False, True])
def test_a_rank_whose_row_is_in_the_sample_is_read_from_before_it(
    kit: ShardKit, small_pages: None, monkeypatch: pytest.MonkeyPatch, desc: bool
) -> None:
    """The first pivot is the wanted row itself: what follows it would lack it."""
    scores, order = filled(kit, 1000, 10**9)
    if desc:
        order.reverse()
    sampled = [(order[rank][1], b"%d" % order[rank][0]) for rank in (0, 750, 751, 752)]

    def sample(size: int) -> Operation[list[Row]]:
        yield from ()
        return sampled

    monkeypatch.setattr(scores.layout, "sample", sample)
    assert scores.zrange(750, 759, desc, withscores=True) == order[750:760]
