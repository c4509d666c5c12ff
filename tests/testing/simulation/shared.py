"""What simulated protocols share: clients of several roles and of both faces, and counts."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.config.store import (
    components_at as components_at,
    pull as pull,
    push as push,
    read_epoch as read_epoch,
    read_history as read_history,
)
from shardkit.testing import Client, Protocol
from shardkit.testing.simulation.protocol import is_outage as is_outage


@cache
def map_of(host: str) -> ShardMap:
    """Return the map of two shards on a host."""
    shards = ", ".join(f"{{host: {host}, port: {n}}}" for n in (1, 2))
    text = f"components: {{data: {{entry: {{host: home}}, shards: [{shards}]}}}}"
    return ShardMap.parse(text, f"the map of {host}")


async def persist(call: Callable[[], Any], attempts: int = 8) -> Any:
    """Repeat a call that may be repeated until it is answered, as an application would."""
    for attempt in range(attempts):
        try:
            return await call()
        except Exception as error:
            if not is_outage(error) or attempt == attempts - 1:
                raise
            await asyncio.sleep(0.5 * 2**attempt)
    return None


async def settled(found: Any) -> Any:
    """What a call of either face returns."""
    return await found if inspect.isawaitable(found) else found


async def rest(client: Client, seconds: float) -> None:
    """Sleep, as a client of its face does."""
    if isinstance(client.kit, AsyncShardKit):
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs it


async def use_register(client: Client, hash_: Any, call: str, field: str, n: int) -> None:
    """Set, get or delete a field of a hash, as a call of a linearizable register."""

    async def put(value: bytes) -> None:
        await hash_.hset(field, value)

    async def get() -> bytes | None:
        value: bytes | None = await hash_.hget(field)
        return value

    async def remove() -> None:
        await hash_.hdel(field)

    if call == "set":
        await client.call(put, b"%d.%d" % (client.number, n), key=field, name=call)
    else:
        await client.call(get if call == "get" else remove, key=field, name=call)


def run_blocking(steps: Coroutine[Any, Any, None]) -> None:
    """Run what awaits `settled` results of the blocking face and `rest` only, to its end."""
    with suppress(StopIteration):
        steps.send(None)


def alone(client: Callable[[Client], Any], **attributes: Any) -> Protocol:
    """A protocol of one client, without faults."""
    members = {"clients": 1, "faults": (), "client": staticmethod(client), **attributes}
    return type("Alone", (Protocol,), members)()


class Roles(Protocol):
    """Clients of several kinds, by the names of the methods that they run."""

    roles: tuple[str, ...] = ("blocking", "awaiting")

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        return [getattr(self, role) for role in self.roles]


class BothFaces(Roles):
    """A client of each face does the same: `use`, which awaits `settled` results, and `rest`."""

    async def use(self, client: Client) -> None:
        """Do what a client of either face does."""
        raise NotImplementedError

    def blocking(self, client: Client) -> None:
        run_blocking(self.use(client))

    async def awaiting(self, client: Client) -> None:
        await self.use(client)


class Counted(Protocol):
    """What is counted was executed once if it was answered, and at most once if not."""

    def setup(self, kit: ShardKit) -> None:
        self.sent: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def note(self, keys: Iterable[str], replies: Iterable[Any]) -> None:
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, Exception):
                assert is_outage(reply), reply
            else:
                self.answered[key] += 1

    def check_counts(self, executed: Mapping[str, int]) -> None:
        for key, sent in self.sent.items():
            assert self.answered[key] <= executed[key] <= sent, (key, executed[key])
