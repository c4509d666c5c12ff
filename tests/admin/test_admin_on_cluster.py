"""What operators ask of a cluster is asked of its nodes."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from arranged import map_of

from shardkit import ShardMap
from shardkit.admin import biggest_keys, execute
from shardkit.errors import ConfigError
from shardkit.local import LocalCluster


@pytest.fixture
def components(cluster: LocalCluster, cluster_map: ShardMap) -> list[Any]:
    """One component on the cluster, with 100 keys."""
    with cluster.client() as client:
        for n in range(100):
            client.set(f"k{n}", "v" * (n + 1))
    return list(cluster_map.components.values())


def test_the_keys_of_all_nodes_are_looked_at(components: list[Any]) -> None:
    looked_at: list[int] = []
    found = biggest_keys(components, 3, by="elements", progress=looked_at.append)
    assert [(each.key, each.elements) for each in found] == [
        (b"k99", 100), (b"k98", 99), (b"k97", 98),
    ]  # fmt: skip
    assert looked_at[-1] == 100


def test_every_node_is_asked_whatever_one_answers(
    cluster: LocalCluster, components: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    refusing = cluster.nodes[1]
    far = map_of(far={"entry": {"host": "${NOWHERE}", "port": 1}}).components
    with refusing.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-config|get")
        try:
            found = execute([*components, *far.values()], ["CONFIG", "GET", "port"])
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+config|get")
    assert found.keys() == {*(f"127.0.0.1:{node.port}" for node in cluster.nodes), "${NOWHERE}:1"}
    for server, answer in found.items():
        port = server.rpartition(":")[2]
        if port == "1":
            assert isinstance(answer, ConfigError)
            assert "NOWHERE" in str(answer)
        elif int(port) == refusing.port:
            assert isinstance(answer, redis.ResponseError)
        else:
            assert port in str(answer)
