"""Structures on a component that is a cluster: nothing changes for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from typing import Any

import pytest
from faces import Face, faced, sessions

import shardkit
from shardkit import ShardMap
from shardkit.errors import CrossShardError
from shardkit.local import LocalCluster, LocalServer

DAY = date(2015, 5, 17)
NEXT = DAY + timedelta(days=1)


@pytest.fixture
def both_map(cluster: LocalCluster, own_server: LocalServer) -> ShardMap:
    components = {
        "cluster": {"entry": dict(cluster.entry.fields)},
        "single": {"entry": {"port": own_server.port}},
    }
    return ShardMap.parse(json.dumps({"components": components}))


@pytest.fixture(params=["blocking", "awaiting"])
def on_cluster(request: pytest.FixtureRequest, both_map: ShardMap) -> Iterator[Face]:
    with faced(request.param, both_map) as face:
        yield face


def test_a_set_over_a_cluster(on_cluster: Face) -> None:
    face = on_cluster
    plan: dict[str, Any] = {"total": 1000, "part_size": 50, "members": int}
    a, b = (face.kit.set(name, component="cluster", **plan) for name in "ab")
    near = face.kit.set("{near}:1", component="cluster", **plan)
    nearer = face.kit.set("{near}:2", component="cluster", **plan)
    single = face.kit.set("c", component="single", **plan)
    for members, numbers in [
        (a, range(400)),
        (b, range(200, 600)),
        (near, range(300)),
        (nearer, range(100, 300)),
        (single, range(250)),
    ]:
        assert face.run(members.sadd_many(numbers)) == len(numbers)
        assert face.run(members.scard()) == len(numbers)
    assert sorted(face.run(a.sinter(b))) == list(range(200, 400))
    assert sorted(face.run(near.sdiff(nearer))) == list(range(100))
    assert sorted(face.run(single.sinter(a, b, near))) == list(range(200, 250))
    assert face.run(b.sdiffstore(a, b)) == 200
    assert face.run(nearer.sunionstore(near, nearer)) == 300
    assert face.run(single.sinterstore(a, near)) == 300
    assert face.run(a.delete()) is True
    assert face.run(a.scard()) == 0


def test_values_move_within_a_slot_only(on_cluster: Face) -> None:
    face = on_cluster
    todo, doing = (face.kit.list(f"{{jobs}}:{n}", component="cluster") for n in ("todo", "doing"))
    face.run(todo.rpush(1))
    assert face.run(todo.lmove(doing)) == "1"
    with pytest.raises(CrossShardError, match="do not live together"):
        face.run(doing.lmove(face.kit.list("other", component="cluster")))
    assert face.run(doing.llen()) == 1


def test_waiting_over_a_cluster(on_cluster: Face, cluster_map: ShardMap) -> None:
    jobs = on_cluster.kit.list("jobs", component="cluster", part_size=3)
    with shardkit.connect(cluster_map) as kit, ThreadPoolExecutor() as pool:
        other = kit.list("jobs", component="cluster", part_size=3)

        def push() -> None:
            client = kit.client("cluster")
            while not any(
                info["blocked_clients"]
                for info in client.info("clients", target_nodes="all").values()
            ):
                threading.Event().wait(0.002)
            other.rpush("x")

        pushing = pool.submit(push)
        assert on_cluster.run(jobs.blpop()) == "x"
        pushing.result(30)
        assert on_cluster.run(jobs.brpop(0.01)) is None


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
