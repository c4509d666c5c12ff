"""Structures on a cluster, where nothing changes for them; the pages' figures were measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from arranged import map_of
from faces import Face, faced, sessions

from shardkit import ShardMap
from shardkit.local import LocalCluster, LocalServer

DAY = date(2015, 5, 17)


@pytest.fixture
def both_map(cluster: LocalCluster, own_server: LocalServer) -> ShardMap:
    return map_of(
        cluster={"entry": dict(cluster.entry.fields)}, single={"entry": {"port": own_server.port}}
    )


@pytest.fixture(params=["blocking", "awaiting"])
def on_cluster(request: pytest.FixtureRequest, both_map: ShardMap) -> Iterator[Face]:
    with faced(request.param, both_map) as face:
        yield face


@pytest.mark.parametrize("name", ["far", "{near}"])
def test_hyperloglogs_are_merged_over_a_cluster(on_cluster: Face, name: str) -> None:
    face = on_cluster
    visitors: Any = face.kit.unique_visitors(name, component="cluster", precision="hyperloglog")
    for n in range(4):
        face.run(visitors.visit_many(sessions(400)[n * 100 :], DAY + timedelta(days=n)))
    days = [DAY + timedelta(days=n) for n in range(4)]
    assert face.run(visitors.count_union(days)) == face.run(visitors.count(DAY))
    for day in days:
        assert face.run(visitors.remove(day)) is True


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
