"""Fixtures of the tests of search: a kit of each face, as the structures' tests have it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardkit import ShardMap

sys.path.append(str(Path(__file__).parents[1] / "structures"))  # where Face is

from structures_helpers import Face, faced


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, shard_map: ShardMap) -> Iterator[Face]:
    """A kit of each face over empty servers."""
    with faced(request.param, shard_map) as opened:
        yield opened
