"""Sets, hashes and unique visitors on a component that is a cluster: nothing changes for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from faces import Face, faced

from shardkit import ShardMap
from shardkit.local import LocalCluster, LocalServer


@pytest.fixture(scope="module")
def cluster_map() -> Iterator[ShardMap]:
    with LocalCluster() as cluster, LocalServer() as server:
        components = {
            "cluster": {"entry": dict(cluster.entry.fields)},
            "single": {"entry": {"port": server.port}},
        }
        yield ShardMap.parse(json.dumps({"components": components}))


@pytest.fixture(params=["blocking"])
def on_cluster(request: pytest.FixtureRequest, cluster_map: ShardMap) -> Iterator[Face]:
    with faced(request.param, cluster_map) as face:
        for component in ("cluster", "single"):
            client = (
                face.run(face.kit.client(component)) if face.runner else face.kit.client(component)
            )
            face.run(client.flushall())
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


def test_a_set_that_grows_over_a_cluster(on_cluster: Face) -> None:
    face = on_cluster
    plan: dict[str, Any] = {"part_size": 32, "groups": 8, "members": int}
    a, b = (face.kit.set(name, component="cluster", **plan) for name in "ab")
    assert face.run(a.sadd_many(range(3000))) == 3000
    assert face.run(b.sadd_many(range(2000, 2500))) == 500
    assert face.run(a.scard()) == 3000
    assert face.run(a.smismember(*range(2990, 3010))) == [True] * 10 + [False] * 10
    assert sorted(face.run(a.sinter(b))) == list(range(2000, 2500))
    assert face.run(b.sdiffstore(a, b)) == 2500
    assert sorted(face.run(b.smembers())) == [*range(2000), *range(2500, 3000)]
    assert face.run(a.delete()) is True


def test_a_hash_over_a_cluster(on_cluster: Face) -> None:
    face = on_cluster
    cities = face.kit.hash("cities", component="cluster", part_size=32, groups=8)
    mapping = {n: f"city {n}" for n in range(1000)} | {f"t{n}": f"town {n}" for n in range(1000)}
    assert face.run(cities.hset(mapping=mapping)) == 2000
    assert face.run(cities.hmget(7, "t7", "x")) == [b"city 7", b"town 7", None]
    assert face.run(cities.hlen()) == 2000
    assert len(face.run(cities.hgetall())) == 2000
    assert face.run(cities.hincrby("n", 2**60)) == 2**60
    assert face.run(cities.delete()) is True
