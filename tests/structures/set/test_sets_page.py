"""docs/sets.md: its figures were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "sets.md").read_text(encoding="utf-8")


def test_the_bytes_are_those_that_were_measured() -> None:
    path = ROOT / "benchmarks" / "results" / "memory_set.json"
    valkey, redis = json.loads(path.read_text())["figures"].values()
    rows = re.findall(r"^\| (ids|text), (.*?) \| ([0-9.]+) \| ([0-9.]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 10
    for kind, layout, on_valkey, on_redis in rows:
        name = f"{kind}, {layout}".replace("`set-max-intset-entries`", "limit")
        assert abs(valkey[name] - float(on_valkey)) <= 0.051
        assert abs(redis[name] - float(on_redis)) <= 0.051
