"""Awaiting calls that wait at a fence while their entry changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from arranged import map_of

from shardkit import aconnect
from shardkit.local import LocalServer


async def test_calls_that_wait_at_a_fence_follow_a_changed_entry_in_their_order(
    tmp_path: Path,
) -> None:
    path = tmp_path / "map.yaml"
    with LocalServer() as server, server.client(db=3) as admin:

        def write(timeout: int) -> None:
            entry = {"port": server.port, "db": 3, "socket_timeout": timeout}
            path.write_text(map_of(data={"entry": entry}).to_yaml(), encoding="utf-8")

        write(50)
        admin.set("config:fence", "closed")
        async with await aconnect(str(path)) as kit:
            client = await kit.client("data")
            waiting = [asyncio.ensure_future(client.incr("count")) for _ in range(3)]
            waiting.append(asyncio.ensure_future(kit.hash("h", component="data").hset("f", "v")))
            await asyncio.sleep(0.2)  # they have been sent, or wait
            write(60)
            while await kit.client("data") is client:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
            assert not any(each.done() for each in waiting)
            admin.delete("config:fence")
            assert await asyncio.gather(*waiting) == [1, 2, 3, 1]
            assert admin.get("count") == b"3"
