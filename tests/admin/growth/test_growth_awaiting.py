"""Moves and failovers that are awaited: the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from inspect import isfunction

import pytest
from faces import eventually
from growth_helpers import Fleet

import shardkit
import shardkit.admin.growth.awaiting as awaiting
from shardkit.admin import growth
from shardkit.errors import InvalidArgumentError
from shardkit.local import LocalServer


def test_every_function_that_works_on_servers_can_be_awaited() -> None:
    offered = {name for name in growth.__all__ if isfunction(getattr(growth, name))}
    of_no_server = {"plan_growth", "compare", "with_operations"}
    awaited = {name: vars(awaiting)[name] for name in offered if name in vars(awaiting)}
    assert awaited.keys() == offered - of_no_server
    assert all(each.__wrapped__ is getattr(growth, name) for name, each in awaited.items())


def test_who_waits_no_more_is_not_told_what_came_of_it() -> None:
    troubles: list[dict[str, object]] = []

    def working() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name.startswith("shardkit-moves")]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, trouble: troubles.append(trouble))
        server.pause()
        task = asyncio.create_task(awaiting.moves(config))
        [thread] = await asyncio.to_thread(eventually, working)
        task.cancel()
        with pytest.raises(asyncio.CancelledError, match=r"^$"):
            await task
        server.resume()
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)  # what the thread has left for the loop to do is done first

    with LocalServer() as server, server.client() as config:
        asyncio.run(main())
    assert troubles == []


def test_moves_are_awaited_while_the_event_loop_goes_on(fleet: Fleet) -> None:
    fleet.push(0)
    told: list[tuple[str, threading.Thread]] = []

    async def main() -> None:
        turns, moved = 0, asyncio.Event()

        async def write() -> None:
            nonlocal turns
            while not moved.is_set():
                await router["count"].incr("count")
                turns += 1

        async with await shardkit.aconnect(fleet.url) as akit:
            router = akit.key_sharded("users")
            task = asyncio.create_task(write())
            move = await awaiting.start_move(
                fleet.config,
                ["users:1"],
                fleet.name(1),
                hold=3,
                progress=lambda what: told.append((what, threading.current_thread())),
            )
            assert move.phase == "done"
            assert [each.phase for each in await awaiting.moves(fleet.config)] == ["done"]
            back = await awaiting.reverse_move(fleet.config, "users:1", hold=3)
            assert back.phase == "done"
            whole = await awaiting.start_move(fleet.config, fleet.name(0), fleet.name(2))
            assert whole.phase == "done"
            moved.set()
            await task
            assert turns > 3
            assert int(await router["count"].get("count")) == turns
        with pytest.raises(InvalidArgumentError, match="is neither a shard"):
            await awaiting.fail_over(fleet.config, "nobody:1")

    asyncio.run(main())
    assert {thread for _, thread in told} == {threading.main_thread()}
    assert "holding writers" in {what for what, _ in told}
