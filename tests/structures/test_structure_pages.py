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
        ("sets", "memory_set", ["figures"], "(?:ids|text), .*?", 10),
        ("lists", "list", ["bytes"], ".*, p.*?", None),
        ("unique", "unique", ["memory"], "[^|]+", None),
        ("sorted-sets", "sorted_set", ["bytes", "figures"], ".*?", None),
    ],
)
def test_the_bytes_are_those_that_were_measured(
    page: str, file: str, place: list[str], names: str, count: int | None
) -> None:
    figures = json.loads(read(f"benchmarks/results/{file}.json"))
    for name in place:
        figures = figures[name]
    valkey, redis = figures.values()
    pattern = rf"^\| ({names}) \| ([0-9.]+) \| ([0-9.]+) \|$"
    rows = re.findall(pattern, read(f"docs/{page}.md"), re.MULTILINE)
    assert len(rows) == (count or len(valkey))
    for name, on_valkey, on_redis in rows:
        name = name.replace("`set-max-intset-entries`", "limit").replace("`", "")
        assert abs(valkey[name] - float(on_valkey)) <= 0.051
        assert abs(redis[name] - float(on_redis)) <= 0.051


def test_the_times_are_those_that_were_measured() -> None:
    results = json.loads(read("benchmarks/results/list.json"))
    measured = [
        results["microseconds"][server][f"a job of 70, {layout}"]
        for server in results["microseconds"]
        for layout in ("plain", "parts of 1000")
    ]
    rows = re.findall(
        r"^\| ([A-Z].*?)((?: \| [0-9.,]+ / [0-9.,]+){4}) \|$", read("docs/lists.md"), re.MULTILINE
    )
    assert [name for name, _ in rows] == list(measured[0])
    for name, cells in rows:
        for cell, times in zip(cells.split(" | ")[1:], measured, strict=True):
            for told, time in zip(cell.split(" / "), times[name], strict=True):
                assert abs(float(told.replace(",", "")) - time) <= 0.51
