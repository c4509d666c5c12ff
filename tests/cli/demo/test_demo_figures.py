"""What is counted: on real servers, and what awk says about the same log."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path

import pytest

from shardkit import ShardKit
from shardkit.cli.demo import sample
from shardkit.cli.demo.access_log import AccessLog, LogBatch
from shardkit.cli.demo.counting import VISITORS, VisitCounter, loads, measure_memory, session_of
from shardkit.cli.demo.replay import ReplayResult, replay


def replayed(counting: VisitCounter, path: Path, batch_size: int = 10_000) -> ReplayResult:
    with AccessLog.open(path) as log:
        return replay(log, counting, batch_size)


def counted(counting: VisitCounter) -> dict[str, tuple[int, int]]:
    return {day.day.isoformat(): (day.hits, day.visitors) for day in counting.days()}


def log_of(path: Path, *entries: tuple[date, int]) -> Path:
    """Write a log: on each of the days, in order, as many visitors."""
    path.write_text(
        "".join(
            f'192.0.2.1 - - [{day:%d/%b/%Y}:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "{n}"\n'
            for day, visitors in entries
            for n in range(visitors)
        )
    )
    return path


def test_counts_can_be_deleted(demo_kit: ShardKit, tmp_path: Path) -> None:
    counting = VisitCounter(demo_kit)
    replayed(counting, log_of(tmp_path / "log", (date(2025, 3, 3), 10)))
    demo_kit.client("hits").set("another", "key")
    counting.forget()
    assert counting.days() == []
    assert [load.keys for load in loads(demo_kit, "unique", VISITORS)] == [0] * 16
    assert demo_kit.client("unique").keys("*2025*") == []
    assert demo_kit.client("hits").keys() == [b"another"]


class InterruptedCounting(VisitCounter):
    """Ctrl-C is pressed while the second batch is being counted."""

    batches, presses = 0, 1

    def count(self, batch: LogBatch) -> None:
        self.batches += 1
        for _ in range(self.presses if self.batches == 2 else 0):
            signal.raise_signal(signal.SIGINT)
        super().count(batch)


def test_a_batch_that_is_being_counted_when_ctrl_c_is_pressed_is_counted_in_full(
    demo_kit: ShardKit, tmp_path: Path
) -> None:
    counting = InterruptedCounting(demo_kit)
    result = replayed(counting, log_of(tmp_path / "log", (date(2025, 3, 3), 100)), 20)
    assert result.interrupted
    assert result.lines == 40
    assert result.speed > 0
    assert counted(counting) == {"2025-03-03": (40, 40)}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait_for_the_batch(demo_kit: ShardKit, tmp_path: Path) -> None:
    counting = InterruptedCounting(demo_kit)
    counting.presses = 2
    result = replayed(counting, log_of(tmp_path / "log", (date(2025, 3, 3), 100)), 20)
    assert (result.interrupted, result.lines) == (True, 20)


def test_a_log_is_replayed_in_a_thread_too_and_tells_how_far_it_is(
    demo_kit: ShardKit, tmp_path: Path
) -> None:
    counting, told = VisitCounter(demo_kit), []
    path = log_of(tmp_path / "log", (date(2025, 3, 3), 100))

    def run() -> ReplayResult:
        with AccessLog.open(path) as log:
            return replay(log, counting, 40, lambda result: told.append(result.lines))

    with ThreadPoolExecutor(1) as threads:  # where Python lets nobody handle signals
        result = threads.submit(run).result()
    assert told == [40, 80, 100]
    assert (result.lines, result.interrupted) == (100, False)
    assert counted(counting) == {"2025-03-03": (100, 100)}


# ---- how days are planned


def test_a_day_is_planned_for_by_the_day_before(demo_kit: ShardKit, tmp_path: Path) -> None:
    day = date(2025, 3, 3)
    one = timedelta(days=1)
    counting = VisitCounter(demo_kit, first_day=1_000)
    log = log_of(
        tmp_path / "log",
        *((day, 700), (day + one, 10), (day + 2 * one, 3)),
        (day + 9 * one, 5),  # after a gap
        (day - one, 4),  # out of order: its morrow is there already
    )
    replayed(counting, log, 50)
    assert [(figures.day - day, figures.planned, figures.parts) for figures in counting.days()] == [
        (-one, 2_048, 5),
        (0 * one, 2_048, 5),
        (one, 2_048, 5),
        (2 * one, 16, 1),
        (9 * one, 2_048, 5),
    ]


def test_days_of_one_batch_follow_one_another(demo_kit: ShardKit, tmp_path: Path) -> None:
    day = date(2025, 3, 3)
    counting = VisitCounter(demo_kit, first_day=1_000)
    later_first = ((day + timedelta(days=1), 10), (day, 100))
    replayed(counting, log_of(tmp_path / "log", *later_first))
    assert [figures.planned for figures in counting.days()] == [2_048, 256]


# ---- where it is, and what it weighs


def test_the_shards_have_all_visitors_who_weigh_a_fraction_of_a_plain_set(
    demo_kit: ShardKit, tmp_path: Path
) -> None:
    path = tmp_path / "sample.log"
    path.write_bytes(sample.log())
    counting = VisitCounter(demo_kit)
    result = replayed(counting, path)
    shares = list(loads(demo_kit, "unique", VISITORS))
    days = counting.days()
    assert len(shares) == 16
    assert sum(share.ids for share in shares) == sum(day.visitors for day in days)
    # Each part that has members is a key, and so are each day's parameters.
    assert sum(share.keys for share in shares) <= sum(day.parts + 1 for day in days)
    assert all(8 * share.ids < share.size < 16 * share.ids + 1_000 for share in shares)
    assert result.visitor is not None
    day, visitor = result.visitor
    place, there = counting.locate(visitor, day)
    assert there
    assert place.id == int(session_of(visitor)[:15], 16)
    assert demo_kit.client(*place.shard).sismember(place.key, str(place.id))
    assert not counting.locate((b"192.0.2.1", b"never came"), day)[1]
    memory = measure_memory(counting, days)
    assert memory is not None
    assert (memory.days, memory.visitors) == (5, sum(day.visitors for day in days))
    assert 8 * memory.visitors < memory.parts < 12 * memory.visitors
    assert 30 * memory.visitors < memory.plain_set < 90 * memory.visitors
    assert memory.uuid_text_set > memory.plain_set
    # What the shards say of their keys, with the counts and plans beside them, is about the same.
    assert 0.8 * memory.parts < sum(share.size for share in shares) < 1.1 * memory.parts


def test_the_busiest_days_are_weighed_as_far_as_there_is_time(
    demo_kit: ShardKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardkit.cli.demo.counting.MOST", 100)
    counting = VisitCounter(demo_kit)
    first = date(2025, 3, 3)
    days = [(first + timedelta(days=n), visitors) for n, visitors in enumerate((30, 60, 40))]
    replayed(counting, log_of(tmp_path / "log", *days))
    memory = measure_memory(counting, counting.days())
    assert memory is not None
    assert (memory.days, memory.visitors) == (2, 100)


def test_nothing_weighs_nothing(demo_kit: ShardKit) -> None:
    assert measure_memory(VisitCounter(demo_kit), []) is None
