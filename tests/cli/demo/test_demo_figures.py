"""Reading access logs, and the figures of the demo."""

from __future__ import annotations

import gzip
import io
import ipaddress
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from demo_helpers import AWK

from shardkit import ShardKit
from shardkit.cli.demo import logs, sample
from shardkit.cli.demo.access_log import LONGEST, AccessLog, AccessLogParser, LogBatch
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


COMMON = b'192.0.2.7 - bob [03/Mar/2025:10:00:00 +0000] "GET / HTTP/1.1" 200 512'
COMBINED = COMMON + b' "http://a.example/" "Mozilla/5.0 (X11)"'


def opened(data: bytes) -> AccessLog:
    return AccessLog(io.BytesIO(data), "log")


def all_lines(log: AccessLog, size: int = 2) -> list[bytes]:
    return [line for batch in log.batches(size) for line in batch]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0" * 64,
        b"Mar  4 11:02:17 web1 httpd[812]: caught SIGTERM",
        COMMON[:-4],
        COMMON + b' "http://a.example/"',
        COMBINED[: COMBINED.index(b"Mozilla") - 2],
        COMBINED.replace(b"200", b"20x"),
        COMBINED.replace(b" +0000", b""),
        COMBINED.replace(b"03/Mar", b"30/Feb"),
        COMBINED.replace(b"Mar", b"Mai"),
        COMBINED.replace(b"10:00:00", b"24:00:00"),
        COMBINED.replace(b"+0000", b"+2400"),
        COMBINED.replace(b"2025", b"0001"),
        COMBINED.replace(b"2025", b"9999").replace(b"03/Mar", b"31/Dec").replace(b"+", b"-"),
        b"www.site.example:80 " + COMBINED,
        b" " + COMBINED,
    ],
)
def test_a_line_of_no_known_format_is_malformed(line: bytes) -> None:
    late = line.replace(b"-0000", b"-2359").replace(b"10:00", b"23:59")
    batch = AccessLogParser().parse([COMBINED, late])
    assert batch.malformed == [(1, late)]
    assert batch.lines == 2
    assert sum(map(len, batch.visits.values())) == 1


LINES = [b"%d\n" % n for n in range(5)]


@pytest.mark.parametrize("spoil", ["cut", "garbage", "flipped"])
def test_a_damaged_gzip_file_gives_what_can_be_read_and_says_so(spoil: str) -> None:
    text = b"".join(b"%d\n" % n for n in range(100_000))
    data = bytearray(gzip.compress(text))
    if spoil == "cut":
        del data[-200:]
    elif spoil == "garbage":
        data += b"garbage"
    else:
        data[-2000] ^= 0xFF
    log = opened(bytes(data))
    lines = all_lines(log, 1000)
    assert log.damage
    assert len(lines) > 99_000
    assert text.startswith(b"".join(lines[:90_000]))


def test_a_line_longer_than_any_is_cut_off_and_the_next_one_is_whole() -> None:
    long = b"x" * (3 * LONGEST) + b"\n"
    assert all_lines(opened(b"a\n" + long + b"b\n")) == [b"a\n", b"x" * LONGEST, b"b\n"]
    exact = b"x" * (LONGEST - 1) + b"\n"
    assert all_lines(opened(exact + b"b\n")) == [exact, b"b\n"]
    assert all_lines(opened(b"x" * LONGEST + b"\nb\n")) == [b"x" * LONGEST, b"b\n"]


@pytest.mark.parametrize("compress", [False, True])
def test_a_pipe_can_be_read(compress: bool) -> None:
    reading, writing = os.pipe()
    text = b"".join(LINES)
    os.write(writing, gzip.compress(text) if compress else text)
    os.close(writing)
    with open(reading, "rb") as pipe, AccessLog(pipe, "pipe") as log:
        assert log.size is None
        assert all_lines(log) == LINES


OPTIONS = ("--workers", "2", "--kill", "1", "--json")


def country_of(visitor: str) -> str | None:
    """The made-up country of an address: that of the first number of IPv4."""
    try:
        address = ipaddress.IPv4Address(visitor.partition(" ")[0])
    except ValueError:
        return None
    return f"Country {address.packed[0]}"


def test_a_worker_that_fails_ends_the_count_and_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, started = MagicMock(), []
    kit.files().status().open = {logs.READER: 1}

    def start(url: str, kills: int) -> subprocess.Popen[bytes]:
        code = "raise SystemExit(3)" if started else "import time; time.sleep(600)"
        started.append(subprocess.Popen([sys.executable, "-c", code]))
        return started[-1]

    monkeypatch.setattr(logs, "_start", start)
    with pytest.raises(RuntimeError, match="a worker ended with 3"):
        logs.count_logs(kit, "redis://a", tmp_path, 2, 0)
    assert [process.returncode for process in started] == [-signal.SIGKILL, 3]


def test_processes_that_are_killed_count_what_one_process_and_awk_count(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = sample.log().splitlines(keepends=True)[:9_000]
    for n in range(4):
        part = lines[n * 2250 : (n + 1) * 2250]
        if n % 2:
            (folder / f"{n}.log").write_bytes(b"".join(part))
        else:  # two members
            halves = (b"".join(part[:1700]), b"".join(part[1700:]))
            (folder / f"{n}.log.gz").write_bytes(b"".join(map(gzip.compress, halves)))
    awk = subprocess.run(
        ["awk", "-f", AWK],
        input=b"".join(lines),
        capture_output=True,
        check=True,
        env={"LC_ALL": "C"},
    )
    expected: dict[str, Counter[str]] = defaultdict(Counter)
    for line in awk.stdout.decode(errors="replace").splitlines():
        day, _, visitor = line.partition("\t")
        country = country_of(visitor)
        if country is not None:
            expected[day][country] += 1
    run = subprocess.run(
        [sys.executable, "-m", "shardkit", "demo", "logs", folder, *OPTIONS],
        capture_output=True,
        check=False,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["countries"] == expected
    assert found["same"]
    assert found["files"] == 4
    assert found["lines"] == sum(sum(of.values()) for of in expected.values()) > 5_000
