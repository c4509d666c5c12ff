"""A network elsewhere: on a cluster, before a disk, and over servers of which one is killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faces import Face, faced
from social_helpers import LIMITS, act, compare, opened, populate, seen

from shardkit import ShardMap
from shardkit.errors import ShardErrors
from shardkit.local import LocalCluster, LocalServers
from shardkit.social.content.sqlite_store import SQLiteStatusStore

MAP = """
components:
  people: {entry: {port: 7001}}
  lines: {shards: [{port: 7001, db: 1}, {port: 7003}]}
  relations: {shards: [{port: 7001, db: 2}, {port: 7002}]}
"""


@pytest.fixture(scope="module")
def cluster_map() -> Iterator[ShardMap]:
    with LocalCluster() as cluster:
        components = {"cluster": {"entry": dict(cluster.entry.fields)}}
        yield ShardMap.parse(json.dumps({"components": components}))


def test_a_network_over_a_cluster(cluster_map: ShardMap) -> None:
    with faced("blocking", cluster_map) as face:
        network = opened(face, "cluster")
        model = populate(face, network)
        dice = random.Random(7)
        for _ in range(80):
            act(face, network, model, dice)
        compare(face, network, model)


@pytest.mark.parametrize("limit", [None, 3])
def test_a_network_before_a_disk(face: Face, tmp_path: Path, limit: int | None) -> None:
    """Redis has the latest three statuses only, or all; the disk has them all."""
    store = SQLiteStatusStore(tmp_path / "statuses.db")
    network = opened(face, store=store, status_limit=limit)
    model = populate(face, network)
    dice = random.Random(limit)
    for _ in range(80):
        act(face, network, model, dice)
    compare(face, network, model)
    assert store.get_many(model.posts).keys() == model.posts.keys()
    store.close()


def test_what_a_killed_server_has_lost_is_reconciled() -> None:
    """One of two servers of relations comes back without its data."""
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        faced("blocking", servers.shard_map) as face,
    ):
        where = {"users": "people", "timelines": "lines", "followers": "relations"}
        network: Any = face.kit.social(**where, **{**LIMITS, "relation_shards": 2})
        model = populate(face, network, users=12)
        dice = random.Random(1)
        for _ in range(100):
            act(face, network, model, dice)
        servers.server_of("relations", 1).kill()
        refused = 0
        for _ in range(60):
            try:
                act(face, network, model, dice)
            except ShardErrors:
                refused += 1
        assert refused
        servers.server_of("relations", 1).restart()
        network.repair(0)
        for uid in model.users:
            network.reconcile(uid)
        for each in model.lists:
            network.reconcile_list(each)
        after = seen(face, network, model.users, model.lists)
        after.mutes = model.mutes
        compare(face, network, after)
