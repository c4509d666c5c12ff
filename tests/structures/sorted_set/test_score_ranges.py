"""Ranges of scores over ZSETs on many shards: one order, and a cursor that leaves no gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from faces import Face, drawn
from hypothesis import given, settings, strategies as st

import shardkit
from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError
from shardkit.operations import Command, Shard, ShardOf
from shardkit.structures import part_key, range_over

Row = tuple[bytes, float]


def fill(
    kit: ShardKit, places: Sequence[tuple[Any, str]], rows: Sequence[tuple[Any, float]]
) -> None:
    """Put each row into one of the places."""
    commands = []
    for n, (member, score) in enumerate(rows):
        to, key = places[hash((member, n)) % len(places)]
        commands.append(Command(to, key, ("ZADD", key, repr(score), member)))
    for first in range(0, len(commands), 1000):
        kit.driver.link.send(commands[first : first + 1000])


def parts(component: str, shards: int, name: str = "f") -> list[tuple[Any, str]]:
    return [(ShardOf(component, n, shards), part_key(name, n)) for n in range(shards)]


def paged(kit: ShardKit, places: Sequence[tuple[Any, str]], num: int, **options: Any) -> list[Row]:
    """All pages of everything."""
    found: list[Row] = []
    cursor = None
    while True:
        page = kit.driver.run(range_over(places, "-inf", "+inf", num, cursor, **options))
        found += page
        if len(page) < num:
            return found
        cursor = page[-1]


@pytest.mark.parametrize(
    ("component", "shards"), [("many", 16), ("few", 4), ("one", 16), ("one", 1)]
)
def test_pages_over_all_parts_are_one_order(face: Face, component: str, shards: int) -> None:
    ranges = face.kit.score_ranges("f", component=component, shards=shards, members=int)
    with shardkit.connect(face.kit.topology.source.shard_map) as kit:
        fill(kit, ranges.places, [(n, n // 40) for n in range(1000)])
    order = sorted(((n, float(n // 40)) for n in range(1000)), key=lambda r: (r[1], str(r[0])))
    assert face.list(ranges.range_iter()) == order
    assert face.list(ranges.range_iter(desc=True)) == order[::-1]
    assert face.list(ranges.range_iter("(3", 5)) == [r for r in order if 3 < r[1] <= 5]
    found: list[tuple[int, float]] = []
    cursor = None
    while page := face.run(ranges.page(cursor, 90, min=0)):
        found += page
        cursor = page[-1]
    assert found == order
    before = (str(order[290][0]), 7)
    assert face.run(ranges.page(before, 3, desc=True, min=6, max=7)) == order[289:286:-1]
    assert face.run(ranges.page(limit=0)) == []
    pages = [ranges.deferred.page(limit=2), ranges.deferred.page(limit=1, desc=True)]
    assert face.run(face.kit.together(*pages)) == [order[:2], order[-1:]]


def test_it_returns_what_redis_py_returns_of_one_sorted_set(face: Face, kit: ShardKit) -> None:
    plain: Any = kit.client("one")
    rows = [(n, n // 40) for n in range(1000)]
    plain.zadd("plain", dict(rows))
    ranges = face.kit.score_ranges("f", component="many", shards=16, members=bytes)
    fill(kit, ranges.places, rows)
    for args, options in [
        ((3, 5), {}),
        (("(3", 5), {"withscores": True}),
        ((0, "+inf", 100, 7), {"withscores": True, "score_cast_func": int}),
        ((0, "+inf", 990, -1), {}),
        (("-inf", 2, 50, 5), {}),
        ((5, 4), {}),
    ]:
        low, high, *rest = args
        assert face.run(ranges.zrangebyscore(*args, **options)) == plain.zrangebyscore(
            "plain", *args, **options
        )
        assert face.run(ranges.zrevrangebyscore(high, low, *rest, **options)) == (
            plain.zrevrangebyscore("plain", high, low, *rest, **options)
        )


def test_one_key_is_read_on_every_shard(kit: ShardKit) -> None:
    ranges = kit.score_ranges("profile:7", component="few", shards=4, one_key=True)
    for n in range(4):
        client: Any = kit.client("few", n)
        client.zadd("profile:7", {f"post {n}": n, f"post {n + 4}": n + 4})
    assert kit.score_ranges("x", component="few", shards=4).places[3] == (
        ShardOf("few", 3, 4),
        "{x:3}",
    )
    assert ranges.places[3] == (Shard("few", 3), "profile:7")
    assert ranges.page(limit=3, desc=True) == [("post 7", 7.0), ("post 6", 6.0), ("post 5", 5.0)]


def test_a_page_is_filled_where_one_part_has_it_all(kit: ShardKit) -> None:
    places = parts("many", 16)
    fill(kit, places[5:6], [(n, n) for n in range(3000)])
    fill(kit, places[6:7], [(n, n + 0.5) for n in range(3000, 3010)])
    assert [score for _, score in paged(kit, places, 1000)] == sorted(
        [*map(float, range(3000)), *(n + 0.5 for n in range(3000, 3010))]
    )


scores = st.sampled_from([0.0, 1.0, 1.0, 2.5, -1.0, math.inf, -math.inf, 1e300, 0.1])
names = st.binary(max_size=2)


@settings(max_examples=drawn(40, 120))
@given(
    st.dictionaries(names, scores, max_size=30),
    st.sampled_from([1, 3, 16]),
    st.integers(1, 6),
    st.booleans(),
    st.one_of(st.none(), st.tuples(names, scores)),
    scores,
    scores,
    st.booleans(),
)
def test_it_gives_what_a_plain_sorted_set_gives(
    kit: ShardKit,
    rows: dict[bytes, float],
    shards: int,
    num: int,
    reverse: bool,
    cursor: tuple[bytes, float] | None,
    low: float,
    high: float,
    exclusive: bool,
) -> None:
    places = parts("one", shards)
    client: Any = kit.client("one")
    client.flushdb()
    fill(kit, places, list(rows.items()))
    if rows:
        client.zadd("plain", rows)
    low_end = f"({low!r}" if exclusive else low
    plain = client.zrangebyscore("plain", low_end, high, withscores=True)
    if cursor is not None:
        after = cursor[::-1]
        plain = [
            row
            for row in plain
            if ((row[1], row[0]) < after if reverse else (row[1], row[0]) > after)
        ]
    if reverse:
        plain.reverse()
    found = kit.driver.run(range_over(places, low_end, high, num, cursor, reverse))
    assert found == [tuple(row) for row in plain[:num]]


@pytest.mark.parametrize("reverse", [False, True])
def test_members_removed_and_added_between_pages_leave_no_gap(kit: ShardKit, reverse: bool) -> None:
    places = parts("few", 4)
    fill(kit, places, [(f"{n:04}", 5) for n in range(400)])  # all scores are equal
    found: list[Row] = []
    cursor: Any = None
    while True:
        page = kit.driver.run(range_over(places, 5, 5, 7, cursor, reverse))
        found += page
        if len(page) < 7:
            break
        cursor = page[-1]
        # The cursor's member goes, and others come before it and elsewhere.
        passed = b"0000" if not reverse else b"9999"
        kit.driver.link.send(
            [Command(to, key, ("ZREM", key, page[-1][0], page[0][0])) for to, key in places]
            + [Command(*places[0], ("ZADD", places[0][1], 5, passed + page[0][0]))]
        )
    members = [member for member, _ in found]
    assert len(members) == len(set(members))
    assert {b"%04d" % n for n in range(400)} <= set(members)
    assert members == sorted(members, reverse=reverse)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", 1, 1), "min='x'"),
        ((1, math.nan, 1), "max=nan"),
        ((1, 2, -1), "limit=-1"),
        ((1, 2, 10_001), "limit=10001"),
        ((1, 2, 1, (1.0, b"a")), "score=b'a'"),
        ((1, 2, 1, (None, 1.0)), "cursor=(None, 1.0)"),
        ((1, 2, 1, "ab"), "cursor='ab'"),
    ],
)
def test_invalid_arguments_are_refused(
    kit: ShardKit, arguments: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        kit.driver.run(range_over(parts("one", 1), *arguments))
    assert said in str(error.value)


def test_too_many_sorted_sets_are_refused(kit: ShardKit) -> None:
    most = parts("one", 1) * 10_000
    assert kit.driver.run(range_over(most, "-inf", "inf", 0)) == []
    with pytest.raises(InvalidArgumentError, match="over 10,001 sorted sets; give"):
        kit.driver.run(range_over([*most, *parts("one", 1)], "-inf", "inf", 0))
