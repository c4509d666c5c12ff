"""Fixtures of the tests of completion: a kit of each face, as the structures' tests have it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardkit import ShardMap
from shardkit.local import LocalCluster

sys.path.append(str(Path(__file__).parents[1] / "structures"))  # where Face is

from structures_helpers import Face, faced


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, shard_map: ShardMap) -> Iterator[Face]:
    """A kit of each face over empty servers."""
    with faced(request.param, shard_map) as opened:
        yield opened


@pytest.fixture(scope="package")
def cluster_map() -> Iterator[ShardMap]:
    """A map of one component, a cluster of three masters."""
    with LocalCluster() as cluster:
        components = {"cluster": {"entry": dict(cluster.entry.fields)}}
        yield ShardMap.parse(json.dumps({"components": components}))
