"""The pages of structures: their figures were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest


def read(path: str) -> str:
    return (Path(__file__).parents[2] / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "file", "place", "names", "count"),
    [
        ("sets", "memory_set", ["figures"], "(?:ids|text), .*?", 6),
        ("unique", "unique", ["memory"], "[^|]+", 8),
        ("sorted-sets", "sorted_set", ["bytes", "figures"], ".*?", 2),
    ],
)
def test_the_bytes_are_those_that_were_measured(
    page: str, file: str, place: list[str], names: str, count: int
) -> None:
    figures = json.loads(read(f"benchmarks/results/{file}.json"))
    for name in place:
        figures = figures[name]
    valkey, redis = figures.values()
    pattern = rf"^\| ({names}) \| ([0-9.]+) \| ([0-9.]+) \|$"
    rows = re.findall(pattern, read(f"docs/{page}.md"), re.MULTILINE)
    assert len(rows) == count
    for name, on_valkey, on_redis in rows:
        name = name.replace("`set-max-intset-entries`", "limit").replace("`", "")
        assert abs(valkey[name] - float(on_valkey)) <= 0.051
        assert abs(redis[name] - float(on_redis)) <= 0.051
