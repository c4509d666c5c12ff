"""A list in parts on a component that is a cluster: all its keys are in one slot."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from faces import Face, faced

import shardkit
from shardkit import ShardMap
from shardkit.errors import CrossShardError
from shardkit.local import LocalCluster


@pytest.fixture(scope="module")
def cluster_map() -> Iterator[ShardMap]:
    with LocalCluster() as cluster:
        entry = dict(cluster.entry.fields)
        yield ShardMap.parse(json.dumps({"components": {"cluster": {"entry": entry}}}))


@pytest.fixture(params=["blocking", "awaiting"])
def on_cluster(request: pytest.FixtureRequest, cluster_map: ShardMap) -> Iterator[Face]:
    with shardkit.connect(cluster_map) as kit:
        kit.client("cluster").flushall()
    with faced(request.param, cluster_map) as face:
        yield face


def test_lists_over_a_cluster(on_cluster: Face) -> None:
    face = on_cluster
    lists = [face.kit.list(f"jobs:{n}", component="cluster", part_size=3) for n in range(12)]
    for jobs in lists:
        assert face.run(jobs.rpush_many(range(20))) == 20
        assert face.run(jobs.lpush("a", "b")) == 22
        assert face.run(jobs.lindex(10)) == "8"
        assert face.run(jobs.lrange(-2, -1)) == ["18", "19"]
        assert face.run(jobs.lpop(5)) == ["b", "a", "0", "1", "2"]
        assert face.run(jobs.ltrim(1, -2)) is True
        assert face.list(jobs.items(reverse=True)) == [str(n) for n in range(18, 3, -1)]
        assert face.run(jobs.lpos(10)) == 6
        assert face.run(jobs.linsert("AFTER", 10, "x")) == 16
        assert face.run(jobs.lrem(1, "x")) == 1
        assert face.run(jobs.expire(100)) is True
    lengths = face.kit.together(*(jobs.deferred.llen() for jobs in lists))
    assert face.run(lengths) == [15] * 12
    assert [face.run(jobs.delete()) for jobs in lists] == [True] * 12


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
