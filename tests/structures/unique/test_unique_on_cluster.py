"""Every precision on a component that is a cluster: nothing changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest
from faces import Face, faced, sessions

from shardkit import ShardMap
from shardkit.local import LocalCluster

DAY = date(2015, 5, 17)
NEXT = DAY + timedelta(days=1)


@pytest.fixture(scope="module")
def cluster_map() -> Iterator[ShardMap]:
    with LocalCluster() as cluster:
        components = {"cluster": {"entry": dict(cluster.entry.fields)}}
        yield ShardMap.parse(json.dumps({"components": components}))


@pytest.fixture(scope="module", params=["blocking", "awaiting"])
def on_cluster(request: pytest.FixtureRequest, cluster_map: ShardMap) -> Iterator[Face]:
    with faced(request.param, cluster_map) as face:
        yield face


@pytest.mark.parametrize("precision", ["exact", "60-bit", "compact", "bitmap"])
def test_visitors_are_counted_over_a_cluster(on_cluster: Face, precision: str) -> None:
    face = on_cluster
    given = {"part_size": 50} if precision == "bitmap" else {"part_size": 50, "first_day": 200}
    visitors: Any = face.kit.unique_visitors(
        precision, component="cluster", precision=precision, **given
    )
    known: list[Any] = [*range(300)] if precision == "bitmap" else sessions(300)
    assert face.run(visitors.visit_many(known[:200], DAY)) == 200
    assert face.run(visitors.visit_many(known[150:], NEXT)) == 150
    assert face.run(visitors.visit(known[0], DAY)) is False
    assert face.run(visitors.visit(known[0], NEXT)) is True
    assert face.run(visitors.recount(DAY)) == face.run(visitors.count(DAY)) == 200
    assert face.run(visitors.count_union([DAY, NEXT])) == 300
    assert face.run(visitors.count_intersection([DAY, NEXT])) == 51
    assert len(face.list(visitors.ids(NEXT))) == 151
    assert face.run(visitors.remove(DAY)) is True
    assert face.run(visitors.remove(NEXT)) is True


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


def test_parts_that_live_together_are_counted_by_the_server(on_cluster: Face) -> None:
    face = on_cluster
    visitors: Any = face.kit.unique_visitors("{tag}", component="cluster", first_day=2000)
    known = sessions(600)
    assert face.run(visitors.visit_many(known[:400], DAY)) == 400
    assert face.run(visitors.visit_many(known[300:], NEXT)) == 300
    assert face.run(visitors.count_union([DAY, NEXT])) == 600
    assert face.run(visitors.count_intersection([DAY, NEXT])) == 100
    assert face.run(visitors.remove(DAY)) is face.run(visitors.remove(NEXT)) is True
