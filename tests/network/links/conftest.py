from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from link_helpers import FACES, Face, opened

from shardkit import ShardMap


@pytest_asyncio.fixture(params=FACES)
async def face(request: pytest.FixtureRequest, shard_map: ShardMap) -> AsyncIterator[Face]:
    """A kit of either kind over the suite's empty servers."""
    async with opened(request.param, shard_map) as found:
        yield found
