"""Clients that are kept beyond their event loop say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from arranged import map_of

import shardkit
from shardkit.errors import ClosedError
from shardkit.local import LocalCluster, LocalServer

CALLS: dict[str, Callable[[Any], Any]] = {
    "command": lambda client: client.get("k"),
    "blocking": lambda client: client.blpop("list", 1),
    "pipeline": lambda client: client.pipeline().get("k").execute(),
    "watch": lambda client: client.pipeline(transaction=True).watch("k"),
}


@pytest.mark.parametrize("name", ["data", "whole"])
@pytest.mark.parametrize(("private", "shuts_down"), [(False, True), (True, True), (False, False)])
def test_a_client_of_an_ended_loop_names_the_loop(
    private: bool, name: str, shuts_down: bool
) -> None:
    async def opened() -> Any:
        kit = await shardkit.aconnect(shards)
        client: Any = await kit.client(name, private=private)
        assert await client.set("k", 1) is True
        return kit, client

    async def calls() -> int:
        assert await (await kit.client(name)).get("k") == b"1"  # the kit is usable
        for call in CALLS.values():
            with pytest.raises(ClosedError, match=r"^the event loop of this client has ended; "):
                await call(client)
        await kit.aclose()
        with pytest.raises(ClosedError, match="the kit is closed"):
            await kit.client(name)
        return len(CALLS)

    with LocalServer() as server, LocalCluster() as cluster:
        whole = {"entry": {**cluster.entry.fields}}
        shards = map_of(data={"entry": {"port": server.port}}, whole=whole)
        first = asyncio.new_event_loop()
        kit, client = first.run_until_complete(opened())
        if shuts_down:
            first.run_until_complete(first.shutdown_asyncgens())
        first.close()
        assert asyncio.run(calls()) == 4
