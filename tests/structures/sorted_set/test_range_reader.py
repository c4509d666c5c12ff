"""Reading a sorted set in order takes commands in proportion to its members."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from shardkit import ShardKit
from shardkit.operations import Command, Operation, Page
from shardkit.structures.sorted_set import groups
from shardkit.structures.sorted_set.groups import Row


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
