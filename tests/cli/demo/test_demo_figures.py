"""What is counted: on real servers, and what awk says about the same log."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path

import pytest

from shardkit import ShardKit
from shardkit.cli.demo.access_log import AccessLog, LogBatch
from shardkit.cli.demo.counting import VisitCounter, measure_memory
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
