"""Reading access logs, and the figures of the demo."""

from __future__ import annotations

import gzip
import ipaddress
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

from demo_helpers import AWK, chance_log

OPTIONS = ("--workers", "2", "--kill", "1", "--json")


def country_of(visitor: str) -> str | None:
    """The made-up country of an address: that of the first number of IPv4."""
    try:
        address = ipaddress.IPv4Address(visitor.partition(" ")[0])
    except ValueError:
        return None
    return f"Country {address.packed[0]}"


def test_processes_that_are_killed_count_what_one_process_and_awk_count(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = chance_log(3, 9_000).splitlines(keepends=True)
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
