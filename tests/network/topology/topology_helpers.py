"""A source of entries under the test's control, and waiting for what happens elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from arranged import map_of
from link_helpers import Face, mapped

from shardkit import ShardMap
from shardkit.errors import MissingEntryError
from shardkit.network.topology import Reading, Source, Topology, Values


def component(name: str = "c", shards: int = 2, port: int = 7001, epoch: int = 1) -> Any:
    described = {"entry": {"port": port}, "shards": [{"port": port + n} for n in range(shards)]}
    return replace(map_of(**{name: described}).components[name], epoch=epoch)


async def aeventually(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 - other tasks make it so
            await asyncio.sleep(0)


def settle(topology: Topology) -> None:
    """Wait until nothing is being read in the background."""
    for thread in threading.enumerate():
        if thread.name == "shardkit-config":
            thread.join(20)
            assert not thread.is_alive()


def look(topology: Topology, name: str) -> Any:
    """A component as it is now: a call finds that it is stale, the next has what was read."""
    topology.component(name)
    settle(topology)
    return topology.component(name)


async def follows(face: Face, port: int) -> bool:
    """Whether component ``one`` leads to a port in time."""
    for _ in range(600):
        found = await face.value(face.kit.component("one"))
        if found.entry.address.endswith(f":{port}/0"):
            return True
        await asyncio.sleep(0.05)
    return False


def one_at(port: int) -> ShardMap:
    return mapped({"port": port}, "one")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Directory(Source):
    """A config server that is not there: counts how often it is asked, fails and hangs at will."""

    def __init__(self, *components: Any) -> None:
        self.components = {each.name: each for each in components}
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.open = threading.Event()  # while it is not set, whoever asks hangs
        self.open.set()
        self.hanging = 0

    def read(self, name: str, known: Any, *, compare: bool = False) -> Reading:
        yield [name]
        if name not in self.components:
            raise MissingEntryError(f"config:redis:{name} is missing", "push it")
        return replace(self.components[name])  # what a real source reads is a new object every time

    def fetch(self, keys: list[str]) -> Values:
        self.asked += keys
        self.hanging += 1
        self.open.wait(20)
        self.hanging -= 1
        if self.error is not None:
            raise self.error
        return [None]

    async def afetch(self, keys: list[str]) -> Values:
        self.asked += keys
        self.hanging += 1
        try:
            while not self.open.is_set():  # noqa: ASYNC110 - other threads set it
                await asyncio.sleep(0.005)
        finally:
            self.hanging -= 1
        if self.error is not None:
            raise self.error
        return [None]

    def names(self) -> list[str]:
        if self.error is not None:
            raise self.error
        return sorted(self.components)

    def __str__(self) -> str:
        return "the directory"
