"""Entries that change: nothing is left of what they were, whoever used it, and no call fails."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as aioredis
from arranged import map_of
from link_helpers import FACES, clients_of, closed, eventually, of
from places import at_place
from sockets import connections

from shardkit import AsyncShardKit, Entry, ShardKit
from shardkit.config.component import Component
from shardkit.local import LocalServer, LocalServers
from shardkit.network.connections import clients
from shardkit.network.connections.clients import Clients
from shardkit.network.topology import FixedMap

MAP = """
components:
  cluster: {entry: {cluster: true, port: 7301}}
  watched: {entry: {sentinel: {service: main, sentinels: [[s1, 26379]]}}}
"""


class Changing(FixedMap):
    """A map in memory that the test replaces."""

    def __init__(self, **entries: Entry | list[Entry]) -> None:
        self.change(**entries)

    def change(self, **entries: Entry | list[Entry]) -> None:
        components = {
            name: {"shards": [each.fields for each in entry]}
            if isinstance(entry, list)
            else {"entry": entry.fields}
            for name, entry in entries.items()
        }
        self.shard_map = map_of(**components)


@pytest_asyncio.fixture
async def held() -> AsyncIterator[Clients]:
    """Clients of no kit."""
    found = Clients()
    yield found
    found.close()
    await found.aclose()


@pytest.fixture(params=FACES)
def get(held: Clients, request: pytest.FixtureRequest) -> Any:
    return held.get if request.param == "blocking" else held.aget


def entry(server: LocalServer, **fields: Any) -> Entry:
    return Entry({**server.entry.fields, **fields})


@pytest_asyncio.fixture(params=[ShardKit, AsyncShardKit])
async def over(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Opens a kit of either face over a source, until the end of the test."""
    kits: list[Any] = []

    def opened(source: Changing) -> Any:
        kits.append(request.param(source))
        return kits[-1]

    yield opened
    for kit in kits:
        await of(kit.close() if request.param is ShardKit else kit.aclose())


async def reread(kit: Any) -> None:
    kit.topology.expire()
    await of((await of(kit.client("a"))).ping())


async def test_other_entries_keep_the_login_that_one_changes(over: Any) -> None:
    with LocalServer(users={"admin": "a", "old": "o", "new": "n"}) as server:
        place = {"port": server.port, "username": "old", "password": "o"}
        replacing = {**place, "username": "new", "password": "n"}
        source = Changing(a=Entry({**place, "db": 1}), b=Entry({**place, "db": 2}))
        kit = over(source)
        kept, other = [await of(kit.client(name)) for name in "ab"]
        for client in (kept, other):
            assert await of(client.acl_whoami()) == "old"
        source.change(a=Entry({**replacing, "db": 1}), b=Entry({**place, "db": 2}))
        await reread(kit)
        assert await of(kept.acl_whoami()) == "new"
        assert await of(other.acl_whoami()) == "old"


@pytest.mark.parametrize("limit", [{"max_connections": 1}, {"blocking_pool": {"size": 1}}], ids=str)
async def test_a_kept_client_finds_room_beside_idle_connections_of_other_entries(
    here: LocalServer, there: LocalServer, over: Any, limit: dict[str, Any]
) -> None:
    unchanged = entry(here, db=2, **limit)
    source = Changing(a=entry(here, db=1, **limit), b=unchanged)
    kit = over(source)
    kept, other = [await of(kit.client(name)) for name in "ab"]
    assert await of(kept.set("k", 1))
    assert await of(other.ping())
    source.change(a=entry(there, db=1, **limit), b=unchanged)
    await reread(kit)
    for _ in range(2):
        assert await of(other.ping())
        assert await of(kept.get("k")) == b"1"  # at the old server
    assert await of((await of(kit.client("a"))).get("k")) is None


async def test_idle_loops_retire_their_clients(here: LocalServer, there: LocalServer) -> None:
    source = Changing(c=entry(here))
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    async with AsyncShardKit(source) as kit:
        await kit.load("c")

        async def use() -> None:
            await (await kit.client("c")).ping()
            await kit.hash("h", component="c").hset("f", "v")

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(use(), other))
        assert clients_of(here) >= 1
        source.change(c=entry(there))
        kit.topology.expire()
        await use()
        assert await eventually(lambda: clients_of(here) == 0)
        ending = asyncio.run_coroutine_threadsafe(other.shutdown_asyncgens(), other)
        await asyncio.wrap_future(ending)
    other.call_soon_threadsafe(other.stop)
    thread.join()
    other.close()


async def test_late_callers_are_safe(here: LocalServer, there: LocalServer, get: Any) -> None:
    first, second, third = (
        Component("c", shards=(entry(server), entry(server, db=1)))
        for server in (here, there, here)
    )
    get(first, 0)
    there_first = get(second, 0)
    newest = get(third, 0)
    assert get(first, 0) is newest  # they say the same
    late = get(second, 1)  # built only now, two versions later
    assert get(third, 0) is newest
    for client in (there_first, get(second, 0), late):
        assert await of(client.ping())
    assert await eventually(lambda: clients_of(there) == 0)


@pytest.mark.parametrize("raw", [None, True])
@pytest.mark.parametrize("blocks", [True, False])
async def test_wherever_another_thread_reads_a_change_nobody_is_left_at_the_old_place(
    here: LocalServer, there: LocalServer, blocks: bool, raw: bool | None
) -> None:
    """The other thread's turn comes at every place in a call with the version before."""
    first, second, third = (
        Component("c", shards=[entry(server, protocol=3)] * 2) for server in (here, there, here)
    )
    switched: list[int] = []

    async def use(n: int) -> bool:
        held = Clients()
        get: Any = held.get if blocks else held.aget
        get(first, 0, raw)
        found: list[Any] = []

        def change() -> None:
            if not held._lock._is_owned():  # type: ignore[attr-defined]
                switched.append(n)  # else the other waits, and its turn comes after that
                thread = threading.Thread(target=held.changed, args=(third,))
                thread.start()
                thread.join()

        again = at_place(n, lambda: found.append(get(second, 1, raw)), change, (clients.__name__,))
        held.changed(third)  # at the latest
        pong = found[0].ping()
        assert pong if blocks else await pong
        assert await eventually(lambda: clients_of(there) == 0), n
        held.close()
        await held.aclose()
        return again

    n = 1
    while await use(n):
        n += 1
    assert len(switched) > 20


async def test_a_client_that_is_built_while_its_kit_closes_is_closed(
    here: LocalServer, monkeypatch: pytest.MonkeyPatch, held: Clients, get: Any
) -> None:
    build = Clients._built
    made: list[Any] = []

    def close_and_build(self: Clients, *args: Any, **kwargs: Any) -> Any:
        held.close()
        made.append(build(self, *args, **kwargs))
        return made[0]

    monkeypatch.setattr(Clients, "_built", close_and_build)
    with closed():
        get(Component("c", entry(here)), None, raw=False)
    assert await eventually(lambda: made[0].owner.closed)


def alive(*kinds: type) -> int:
    """How many objects of some kinds the process has, those of other tests included."""
    gc.collect()
    return sum(isinstance(each, kinds) for each in gc.get_objects())


async def test_many_changes_leave_nothing_behind(here: LocalServer, there: LocalServer) -> None:
    before = alive(aioredis.ConnectionPool)
    async with AsyncShardKit(Changing(c=entry(here))) as kit:
        source: Any = kit.topology.source
        await kit.load("c")
        for n in range(60):
            kit.topology.expire()
            source.change(c=entry((here, there)[n % 2], client_name=f"n{n}"))
            await kit.hash("h", component="c").hget("f")
        await asyncio.sleep(0)
        gc.collect()
        assert alive(aioredis.ConnectionPool) - before <= 3
        assert clients_of(here) + clients_of(there) <= 2


@pytest.fixture
def watched(own_servers: LocalServers) -> tuple[Component, int]:
    """A component behind a Sentinel, and the Sentinel's port."""
    component = own_servers.shard_map.components["watched"]
    assert component.entry is not None
    [[_, port]] = component.entry.fields["sentinel"]["sentinels"]
    return component, port


async def test_draining_a_cluster_breaks_no_call_under_way(
    held: Clients, own_servers: LocalServers
) -> None:
    """The entry changes while calls wait for their replies, and a holder goes on."""
    component = own_servers.shard_map.components["cluster"]
    before = sum(connections()[server.port] for server in own_servers.servers)
    client: Any = held.aget(component, None)
    await asyncio.gather(*[client.set("k", 4) for _ in range(5)])
    calls = [asyncio.create_task(client.get("k")) for _ in range(5)]
    await asyncio.sleep(0)
    fields = dict(component.entry.fields, client_name="new") if component.entry else {}
    held.changed(Component("cluster", Entry(fields)))
    assert await asyncio.gather(*calls) == [b"4"] * 5
    assert await client.get("k") == b"4"  # a holder's call: its connection goes with it
    ports = {node.port for node in client.get_nodes()}
    assert await eventually(lambda: sum(connections()[port] for port in ports) == before)


async def test_sentinels_are_let_go(
    held: Clients, get: Any, watched: tuple[Component, int], here: LocalServer
) -> None:
    component, port = watched
    client: Any = get(component, None)
    assert await of(client.ping())
    assert connections()[port]
    held.changed(Component("watched", entry(here)))
    assert await eventually(lambda: not connections()[port])
    assert await of(client.ping())  # a holder's
    assert await eventually(lambda: not connections()[port])


async def test_only_own_pools_disconnect_from_sentinels(
    get: Any, watched: tuple[Component, int]
) -> None:
    component, port = watched
    own, shared = get(component, None, False), get(component, None)
    assert await of(own.ping())
    assert connections()[port]
    await of(own.connection_pool.way.disconnect(inuse_connections=False))
    await of(shared.connection_pool.disconnect())  # of what is the kit's, it says nothing
    assert connections()[port]
    await of(own.connection_pool.way.disconnect())
    assert await eventually(lambda: connections()[port] <= 1)  # what listens for failovers


@pytest.mark.parametrize("kind", ["one", "watched", "cluster"])
def test_a_private_client_dropped_in_a_loops_last_turn_leaves_nothing_to_warn_of(
    here: LocalServer, own_servers: LocalServers, kind: str, recwarn: pytest.WarningsRecorder
) -> None:
    """The loop never turns again, and nobody shuts its generators down."""
    found = {"one": entry(here)}
    for name in ("watched", "cluster"):
        component = own_servers.shard_map.components[name]
        assert component.entry is not None
        found[name] = component.entry
    kit = AsyncShardKit(Changing(**found))

    async def use() -> None:
        await kit.load(kind)
        client = await kit.client(kind, private=True)
        await client.set("k", 1)
        del client
        gc.collect()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    loop.close()
    del loop
    gc.collect()
    asyncio.run(kit.aclose())
    gc.collect()
    assert not [str(each.message) for each in recwarn.list]
    assert clients_of(here) == 0
