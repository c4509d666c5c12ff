"""Commands around WATCH end with the deadline of the entry, as all others do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from faces import PATIENCE
from link_helpers import FACES, Face, mapped, of, opened, paused

from shardkit.errors import DeadlineExceeded
from shardkit.local import LocalCluster, LocalServer

LIMITS = {"deadline": 0.3 * PATIENCE, "socket_timeout": 5 * PATIENCE, "breaker": False}


@pytest.fixture(scope="module", params=["a server", "a cluster"])
def place(request: pytest.FixtureRequest) -> Any:
    kind: Any = LocalServer if request.param == "a server" else LocalCluster
    with kind() as running:
        yield running


@pytest_asyncio.fixture(params=FACES)
async def limited(request: pytest.FixtureRequest, place: Any) -> AsyncIterator[Face]:
    entry = place.entry.fields if hasattr(place, "nodes") else {"port": place.port}
    async with opened(request.param, mapped({**entry, **LIMITS})) as face:
        yield face


@pytest.mark.parametrize("name", ["watch", "get"])
async def test_commands_before_multi_end_with_the_deadline(
    limited: Face, place: Any, name: str
) -> None:
    client = await of(limited.kit.client("data"))
    await of(client.set("k", 1))
    pipe = client.pipeline(transaction=True)
    await of(pipe.watch("k"))
    with (
        paused(*getattr(place, "nodes", [place])),
        pytest.raises(DeadlineExceeded, match=r"the deadline of .* has passed"),
    ):
        await of(getattr(pipe, name)("k"))
    assert await of(client.get("k")) == b"1"


@pytest.mark.parametrize("name", ["unwatch", "reset"])
async def test_a_pipeline_that_is_dropped_waits_no_longer_than_the_deadline(
    limited: Face, place: Any, name: str
) -> None:
    client = await of(limited.kit.client("data"))
    pipe = client.pipeline(transaction=True)
    await of(pipe.watch("k"))
    # The socket's timeout would be raised.
    with paused(*getattr(place, "nodes", [place])), suppress(DeadlineExceeded):
        await of(getattr(pipe, name)())
    await of(pipe.reset())
    await of(client.set("k", 1))
    assert await of(pipe.get("k").execute()) == [b"1"]


async def test_a_connection_of_ones_own_is_taken_before_the_deadline(
    limited: Face, place: Any
) -> None:
    if hasattr(place, "nodes"):
        pytest.skip("clients of clusters have no connection of their own")
    client = await of(limited.kit.client("data"))
    take = client.client if limited.blocks else client.client().initialize
    with paused(place), pytest.raises(DeadlineExceeded, match=r"the deadline of .* has passed"):
        await of(take())
    assert await of(client.set("k", 1)) is True
