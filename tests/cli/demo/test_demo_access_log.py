"""Reading and parsing access logs."""

from __future__ import annotations

import gzip
import io
import os
from datetime import date
from pathlib import Path

import pytest

from shardkit.cli.demo.access_log import LONGEST, AccessLog, AccessLogParser, utc_date

COMMON = b'192.0.2.7 - bob [03/Mar/2025:10:00:00 +0000] "GET / HTTP/1.1" 200 512'
COMBINED = COMMON + b' "http://a.example/" "Mozilla/5.0 (X11)"'
DAY = date(2025, 3, 3)


def parsed(*lines: bytes) -> dict[date, list[tuple[bytes, bytes]]]:
    batch = AccessLogParser().parse([line + b"\n" for line in lines])
    assert not batch.malformed
    assert batch.lines == len(lines)
    return batch.visits


def opened(data: bytes) -> AccessLog:
    return AccessLog(io.BytesIO(data), "log")


def all_lines(log: AccessLog, size: int = 2) -> list[bytes]:
    return [line for batch in log.batches(size) for line in batch]


# ---- one line


def test_the_visitor_of_a_combined_line_is_address_and_agent() -> None:
    assert parsed(COMBINED) == {DAY: [(b"192.0.2.7", b"Mozilla/5.0 (X11)")]}


def test_the_visitor_of_a_common_line_is_its_address_as_with_an_empty_agent() -> None:
    assert parsed(COMMON, COMMON + b' "-" ""') == {DAY: [(b"192.0.2.7", b"")] * 2}


@pytest.mark.parametrize(
    ("line", "agent"),
    [
        (COMMON + rb' "-" "a \"quoted\" one"', rb"a \"quoted\" one"),
        (COMMON + rb' "\"\"" "ends in \\"', rb"ends in \\"),
        (COMBINED + b' "203.0.113.1" 0.004', b"Mozilla/5.0 (X11)"),
        (COMBINED + b"\r", b"Mozilla/5.0 (X11)"),
        (COMMON + b"\r", b""),
        (COMBINED.replace(b"GET / HTTP/1.1", rb"\x16\x03\x01"), b"Mozilla/5.0 (X11)"),
        (COMBINED.replace(b"GET / HTTP/1.1", b"-"), b"Mozilla/5.0 (X11)"),
        (COMBINED.replace(b"200 512", b"304 -"), b"Mozilla/5.0 (X11)"),
        (COMBINED.replace(b"X11", "☃".encode()), b"Mozilla/5.0 (\xe2\x98\x83)"),
        (COMBINED.replace(b"X11", b"\xff\x00"), b"Mozilla/5.0 (\xff\x00)"),
        (COMBINED[:-3], b"Mozilla/5.0 (X1"),
        (COMBINED[:-3] + rb"\"", rb"Mozilla/5.0 (X1\""),
        (COMBINED[:-3] + b"\r", b"Mozilla/5.0 (X1"),
    ],
)
def test_lines_of_real_logs_are_parsed(line: bytes, agent: bytes) -> None:
    assert parsed(line) == {DAY: [(b"192.0.2.7", agent)]}


def test_a_line_without_a_line_break_at_the_end_of_the_log_counts() -> None:
    assert AccessLogParser().parse([COMBINED]).visits == {
        DAY: [(b"192.0.2.7", b"Mozilla/5.0 (X11)")]
    }


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


@pytest.mark.parametrize(
    ("minute", "zone", "expected"),
    [
        (b"03/Mar/2025:23:30", b"+0000", date(2025, 3, 3)),
        (b"03/Mar/2025:23:30", b"-0100", date(2025, 3, 4)),
        (b"03/Mar/2025:00:30", b"+0100", date(2025, 3, 2)),
        (b"01/Mar/2024:05:00", b"+0530", date(2024, 2, 29)),
        (b"01/Jan/2025:13:44", b"+1345", date(2024, 12, 31)),
        (b"31/Dec/2024:12:00", b"-1200", date(2025, 1, 1)),
        (b"01/Jan/1970:00:00", b"+0000", date(1970, 1, 1)),
        (b"01/Jan/1970:00:00", b"+0001", None),
        (b"00/Mar/2025:23:30", b"+0000", None),
        (b"29/Feb/2025:23:30", b"+0000", None),
        (b"03/Mar/2025:23:30", b"+0060", None),
    ],
)
def test_days_are_those_of_utc(minute: bytes, zone: bytes, expected: date | None) -> None:
    assert utc_date(minute, zone) == expected


# ---- a log


LINES = [b"%d\n" % n for n in range(5)]


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_lines_come_in_batches_of_the_size_asked_for(size: int) -> None:
    batches = list(opened(b"".join(LINES)).batches(size))
    assert [line for batch in batches for line in batch] == LINES
    assert all(len(batch) == size for batch in batches[:-1])


def test_an_empty_log_has_no_batches() -> None:
    assert list(opened(b"").batches(10)) == []
    assert list(opened(gzip.compress(b"")).batches(10)) == []


def test_gzip_is_known_by_its_content_and_members_are_joined() -> None:
    data = (
        gzip.compress(b"".join(LINES[:2])) + gzip.compress(b"") + gzip.compress(b"".join(LINES[2:]))
    )
    log = opened(data)
    assert all_lines(log) == LINES
    assert log.damage == ""


def test_a_line_may_go_on_in_the_next_member() -> None:
    assert all_lines(opened(gzip.compress(b"one ") + gzip.compress(b"line\n"))) == [b"one line\n"]


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


def test_a_file_says_how_far_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(b"".join(LINES))
    with AccessLog.open(path) as log:
        assert (log.size, log.position) == (10, 0)
        assert all_lines(log) == LINES
        assert log.position == log.size


@pytest.mark.parametrize("compress", [False, True])
def test_a_pipe_can_be_read(compress: bool) -> None:
    reading, writing = os.pipe()
    text = b"".join(LINES)
    os.write(writing, gzip.compress(text) if compress else text)
    os.close(writing)
    with open(reading, "rb") as pipe, AccessLog(pipe, "pipe") as log:
        assert log.size is None
        assert all_lines(log) == LINES
