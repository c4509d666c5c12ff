"""docs/lists.md: its figures were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "lists.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "list.json").read_text())


def test_the_bytes_are_those_that_were_measured() -> None:
    valkey, redis = RESULTS["bytes"].values()
    rows = re.findall(r"^\| (.*, p.*?) \| ([0-9.]+) \| ([0-9.]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == len(valkey)
    for layout, on_valkey, on_redis in rows:
        assert abs(valkey[layout] - float(on_valkey)) <= 0.051
        assert abs(redis[layout] - float(on_redis)) <= 0.051


def test_the_times_are_those_that_were_measured() -> None:
    measured = [
        RESULTS["microseconds"][server][f"a job of 70, {layout}"]
        for server in RESULTS["microseconds"]
        for layout in ("plain", "parts of 1000")
    ]
    rows = re.findall(r"^\| ([A-Z].*?)((?: \| [0-9.,]+ / [0-9.,]+){4}) \|$", TEXT, re.MULTILINE)
    assert [name for name, _ in rows] == list(measured[0])
    for name, cells in rows:
        for cell, times in zip(cells.split(" | ")[1:], measured, strict=True):
            for told, time in zip(cell.split(" / "), times[name], strict=True):
                assert abs(float(told.replace(",", "")) - time) <= 0.51
