from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from link_helpers import Face, opened, two

from shardkit import ShardMap
from shardkit.local import LocalServer


@pytest_asyncio.fixture
async def face(kind: str, shard_map: ShardMap) -> AsyncIterator[Face]:
    """A kit of either kind over the suite's empty servers."""
    async with opened(kind, shard_map) as found:
        yield found


@pytest.fixture
def beside(kind: str, own_server: LocalServer) -> Callable[..., Any]:
    """Open a kit of either kind on the map `two` of a bad server and a good one."""

    @asynccontextmanager
    async def opening(bad: AbstractContextManager[Any], **fields: Any) -> AsyncIterator[Face]:
        with bad as server:
            async with opened(kind, two(server.port, own_server.port, **fields)) as found:
                found.bad = server
                yield found

    return opening
