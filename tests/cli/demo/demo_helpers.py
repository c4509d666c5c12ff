"""What the demo's tests share: servers of the laptop map, a log made up by chance, and awk."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

AWK = Path(__file__).with_name("figures.awk")

_ZONES = ("+0000", "+0530", "-0800", "+1345", "-0030")
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64)",
    r"a \"quoted\" agent",
    r"ends in a backslash \\",
    "",
    "-",
    "caf\xe9 ☕ \N{SNOWMAN}",
)
_MALFORMED = (
    "",
    "no log line at all",
    '192.0.2.1 - - [01/Jan/2024:10:00:00 +0000] "GET / HTTP/1.1" 200',
    '192.0.2.1 - - [01/Jan/2024:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "cut sho',
    '192.0.2.1 - - [30/Feb/2024:10:00:00 +0000] "GET / HTTP/1.1" 200 5',
    '192.0.2.1 - - [01/Foo/2024:10:00:00 +0000] "GET / HTTP/1.1" 200 5',
    '192.0.2.1 - - [01/Jan/2024:24:00:00 +0000] "GET / HTTP/1.1" 200 5',
    '192.0.2.1 - - [01/Jan/2024:10:00:00] "GET / HTTP/1.1" 200 5',
    '192.0.2.1 - - "GET / HTTP/1.1" 200 5 "-" "-"',
)


def chance_log(seed: int, lines: int) -> bytes:
    """Return a log of both formats over a turn of the year, in many zones, in no order of days."""
    dice = random.Random(seed)
    start = datetime(2023, 12, 30, 18, tzinfo=UTC)
    return "".join(f"{line}\n" for line in _chance_lines(dice, start, lines)).encode()


def _chance_lines(dice: random.Random, start: datetime, lines: int) -> Iterator[str]:
    for _ in range(lines):
        if dice.random() < 0.02:
            yield dice.choice(_MALFORMED)
            continue
        zone = dice.choice(_ZONES)
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:]))
        local = timezone(-offset if zone[0] == "-" else offset)
        at = (start + timedelta(seconds=dice.randrange(4 * 86_400))).astimezone(local)
        address = f"192.0.2.{dice.randrange(1, 60)}"
        line = f'{address} - bob [{at:%d/%b/%Y:%H:%M:%S} {zone}] "GET /\\"x\\" HTTP/1.1" 200 -'
        if dice.random() < 0.8:
            line += f' "http://site.example/?q=\\"" "{dice.choice(_AGENTS)}"'
            if dice.random() < 0.1:
                line += ' "198.51.100.7" 0.023'
        yield line


def awk_figures(path: Path) -> dict[str, tuple[int, int]]:
    """Return hits and unique visitors by day of a log, plain or gzip, as awk and sort have it."""
    command = """
        set -e
        lines() { case "$2" in *.gz) zcat "$2";; *) cat "$2";; esac | awk -f "$1"; }
        lines "$@" | cut -f1 | sort | uniq -c
        echo
        lines "$@" | sort -u | cut -f1 | uniq -c
    """
    done = subprocess.run(
        ["sh", "-c", command, "sh", str(AWK), str(path)],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C", "PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    assert not done.stderr
    hits, visitors = (
        {day: int(count) for count, day in (line.split() for line in part.splitlines())}
        for part in done.stdout.decode().split("\n\n")
    )
    assert hits.keys() == visitors.keys()
    return {day: (hits[day], visitors[day]) for day in hits}
