"""Packed records on a component that is a cluster: nothing changes for them."""

from __future__ import annotations

import json

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalCluster


def test_locations_over_a_cluster() -> None:
    with LocalCluster() as cluster:
        components = {"cluster": {"entry": dict(cluster.entry.fields)}}
        with shardkit.connect(ShardMap.parse(json.dumps({"components": components}))) as kit:
            users = kit.locations(component="cluster", part_size=64)
            places = [("USA", "CA"), ("CAN", "ON"), ("DEU", None)]
            users.set_many((n, places[n % 3]) for n in range(3000))
            assert users.aggregate() == (
                {"CAN": 1000, "DEU": 1000, "USA": 1000},
                {"CAN": {"ON": 1000}, "USA": {"CA": 1000}},
            )
            assert users.aggregate(range(0, 3000, 3)).countries == {"USA": 1000}
            assert users.get(2999) == ("DEU", None)
            assert users.highest() == 2999
            assert users.records.increment(2999, "region", 3) == 3
            assert users.remove(2999) == 1
            assert users.delete() is True
            assert users.aggregate() == ({}, {})
