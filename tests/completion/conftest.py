"""A cluster for the tests of completion."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from shardkit import ShardMap
from shardkit.local import LocalCluster


@pytest.fixture(scope="package")
def cluster_map() -> Iterator[ShardMap]:
    """A map of one component, a cluster of three masters."""
    with LocalCluster() as cluster:
        components = {"cluster": {"entry": dict(cluster.entry.fields)}}
        yield ShardMap.parse(json.dumps({"components": components}))
