"""A closed kit: every method says so, in forks too; and what a kit does in the background."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count, pairwise
from typing import Any
from zlib import crc32

import pytest
from arranged import ask, exit_code, forked, meanwhile
from faces import PATIENCE, Exchanges, Face, Time, clocked, sends
from link_helpers import clients_of, closed, eventually, hearing, listed, of, opened

import shardkit
from shardkit import ClosedError, ShardErrors, ShardKit, ShardMap
from shardkit.admin import push
from shardkit.coordination import Leg
from shardkit.local import LocalServer, LocalServers
from shardkit.search import Analyzer

FORKING = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        # An address: glibc may hang when a child resolves a name that its parent resolves, too.
        entry = f"{{host: 127.0.0.1, port: {running.port}, db: 1}}"
        plan = f"components: {{c: {{entry: {entry}}}}}"
        with running.client() as client:
            push(client, ShardMap.parse(plan))
        yield running


def url_of(server: LocalServer) -> str:
    return f"redis://127.0.0.1:{server.port}"


@pytest.fixture
def kit(server: LocalServer) -> Iterator[ShardKit]:
    with shardkit.connect(url_of(server)) as opened:
        opened.directory.set("flags", "checkout", {"new": True})
        yield opened


def uses(kit: Any, client: Any, private: Any) -> dict[str, Callable[[], Any]]:
    """Everything that would use a server, prepared while the kit was open."""
    directory, router, pairs = kit.directory, kit.key_sharded("c"), kit.id_pair_sharded("c")
    words, visitors = kit.hash("h", component="c"), kit.unique_visitors(component="c")
    pipe = client.pipeline().get("k")

    def generator(conn: Any, key: str) -> Iterator[Any]:
        yield conn

    async def coroutine(conn: Any, key: str) -> None: ...

    async def agenerator(conn: Any, key: str) -> AsyncIterator[Any]:
        yield conn

    one, shard = kit.redis_connection("c"), kit.sharded_connection("c")
    return {
        "directory.get": lambda: directory.get("flags", "checkout", max_age=60),
        "directory.set": lambda: directory.set("flags", "checkout", {}),
        "directory.delete": lambda: directory.delete("flags", "checkout"),
        "directory.names": lambda: directory.names("flags"),
        "kit.directory": lambda: kit.directory.get("flags", "checkout"),
        "component": lambda: kit.component("c"),
        "components": lambda: kit.components(),
        "load": lambda: kit.load() if hasattr(kit, "load") else kit.components(),
        "client": lambda: kit.client("c"),
        "private client": lambda: kit.client("c", private=True),
        "a call of a client": lambda: client.get("k"),
        "a blocking call": lambda: client.blpop("jobs", 1),
        "a call of a private client": lambda: private.get("k"),
        "a client's pipeline": lambda: pipe.execute(),
        "a subscription": lambda: client.pubsub().subscribe("news"),
        "an operation": lambda: words.hget("f"),
        "a write": lambda: words.hset("f", "v"),
        "several steps": lambda: visitors.count(),
        "a new structure": lambda: kit.hash("new", component="c").hset("f", "v"),
        "router[key]": lambda: router["k"].get("k"),
        "router[a, b]": lambda: pairs[1, 2],
        "shard_of": lambda: router.shard_of("k"),
        "group": lambda: router.group(["k"]),
        "len": lambda: len(router),
        "iteration": lambda: list(router),
        "router.client": lambda: router.client(0),
        "router.load": lambda: router.load() if hasattr(router, "load") else router["k"],
        "mget": lambda: router.mget(["a", "b"]),
        "scan_iter": lambda: listed(router.scan_iter()),
        "a pipeline": lambda: router.pipeline().set("a", 1).set("b", 1).execute(),
        "redis_connection": lambda: one(lambda conn: conn)(),
        "sharded_connection": lambda: shard(lambda conn, key: conn)("k"),
        "a generator": lambda: next(shard(generator)("k")),
        "a coroutine": lambda: shard(coroutine)("k"),
        "an async generator": lambda: anext(shard(agenerator)("k")),
    }


async def test_a_closed_kit_says_so_in_every_method(
    kit: ShardKit, server: LocalServer, kind: str
) -> None:
    async with opened(kind, url_of(server)) as face:
        client, private = [await of(face.kit.client("c", private=own)) for own in (False, True)]
        for each in (client, private):
            await of(each.get("k"))
        prepared = uses(face.kit, client, private)
        assert await of(face.kit.directory.get("flags", "checkout", max_age=60)) == {"new": True}
        steps = face.kit.hash("h", component="c").deferred.hlen()
        await face.kit.aclose()
        for use in prepared.values():
            with closed():
                await of(use())
        with pytest.raises(ExceptionGroup) as group:
            await of(face.kit.together(steps))
        assert [type(error) for error in group.value.exceptions] == [ClosedError]
    kit.close()
    assert await eventually(lambda: clients_of(server) == 0)


async def test_a_closed_async_kit_is_let_go_at_once_not_when_a_timer_fires(
    server: LocalServer,
) -> None:
    shard_map = ShardMap.parse(f"components: {{c: {{entry: {{port: {server.port}}}}}}}")
    kit = await shardkit.aconnect(shard_map)
    await kit.hash("h", component="c").hset("f", "v")
    left = weakref.ref(kit)
    await kit.aclose()
    del kit
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_client_whose_kit_nobody_has_serves_on_but_follows_no_entry(
    server: LocalServer, blocks: bool
) -> None:
    shard_map = ShardMap.parse(f"components: {{c: {{entry: {{port: {server.port}}}}}}}")
    kit: Any = shardkit.connect(shard_map) if blocks else await shardkit.aconnect(shard_map)
    client = await of(kit.client("c"))
    assert await of(client.set("k", 0))
    left = weakref.ref(kit)
    del kit
    gc.collect()
    assert left() is None
    assert await of(client.set("k", 1))
    with server.client() as asking:
        asking.set("config:fence", "{}")  # its shards move, to where nobody can tell it any more
        await of(client.connection_pool.disconnect())
        with closed():
            await of(client.get("k"))
        asking.delete("config:fence")
        client.connection_pool.drain()  # as if another client were in its place
        assert await of(client.get("k")) == b"1"
        asking.replicaof("127.0.0.1", "1")
        with closed():
            await of(client.set("k", 2))
        asking.replicaof("NO", "ONE")
        asking.delete("k")
    await of(client.close() if blocks else client.aclose())
    del client
    gc.collect()  # a connection that was left open would warn
    assert len(ask(server, "client_list")) == 1


@FORKING
def test_children_that_are_forked_while_threads_use_the_kit_go_on(kit: ShardKit) -> None:
    uses: list[Callable[[], object]] = [
        lambda: kit.directory.get("flags", "checkout", max_age=0),
        lambda: kit.hash("h", component="c").hset("f", "v"),
        lambda: kit.client("c", private=True).get("k"),
    ]

    def use_all() -> None:
        for use in uses:
            use()

    use_all()  # Python's own locks, of modules that are being imported, are not free in a child
    with meanwhile(uses[0]), meanwhile(uses[1]), meanwhile(uses[2]):
        assert [exit_code(forked(use_all)) for _ in range(20)] == [0] * 20
    assert exit_code(forked(kit.close)) == 0
    assert kit.client("c").get("k") is None  # a child's closing concerns nobody else


@FORKING
def test_a_child_that_is_forked_while_words_are_stemmed_stems() -> None:
    pytest.importorskip("snowballstemmer")
    analyzer, numbers = Analyzer(stemmer="english"), count()

    def stem() -> None:
        analyzer.terms(" ".join(f"running{next(numbers)}s" for _ in range(100)))

    with meanwhile(stem), meanwhile(stem), meanwhile(stem):
        for n in range(20):
            assert exit_code(forked(lambda n=n: analyzer.terms(f"a word{n}"))) == 0


async def test_closing_while_a_cluster_or_a_sentinel_is_asked_says_so() -> None:
    plan = """
    components:
      cluster: {entry: {cluster: true, port: 7301}}
      watched: {entry: {sentinel: {service: main, sentinels: [[s1, 26379]]}}}
    """
    with LocalServers(ShardMap.parse(plan), ports="free") as servers:
        for component in ("cluster", "watched"):
            kit = await shardkit.aconnect(servers.shard_map)
            client = await kit.client(component)
            asked = asyncio.ensure_future(client.get("k"))
            for _ in range(3):  # turns of the loop: by then it connects
                await asyncio.sleep(0)
            await kit.aclose()
            with closed():
                await asked


def test_closing_under_a_call_of_a_clusters_client_says_so(cluster_map: ShardMap) -> None:
    with shardkit.connect(cluster_map) as kit:
        client: Any = kit.client("cluster")
        with hearing(lambda event: kit.close()), closed():
            client.dbsize()
        with closed():
            client.get("k")


MAP = f"""
defaults: {{socket_timeout: {0.5 * PATIENCE}}}
components:
  c: {{shards: [{{port: 7001}}, {{port: 7002}}, {{port: 7003}}, {{port: 7004}}], placement: slot}}
"""
NAMES = [f"n{number}" for number in range(40)]


def stopped_before(face: Face, steps: Any, script: str) -> bool:
    """Carry out what comes before a script, as a client that is killed; return whether it comes."""
    return any(sends(step, script) for step in Exchanges(face, steps))


def left_on(server: LocalServer) -> tuple[set[str], set[str], set[str]]:
    """What upkeep has to do on a server: counters to clean, transfers in flight, notes of pairs."""
    with server.client() as client:
        counters = {
            n for key in client.scan_iter("counters:*:known") for n in client.zrange(key, 0, -1)
        }
        records = [client.hvals(key) for key in client.scan_iter("bank:log:*", _type="hash")]
        notes = {n for key in client.scan_iter("pending:*") for n in client.zrange(key, 0, -1)}
    return (
        {name.decode() for name in counters},
        {record.partition(b" ")[2].decode() for of_log in records for record in of_log},
        {note.decode() for note in notes},
    )


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_server_that_fails_leaves_the_others_upkept(
    mortal: Face, own_servers: LocalServers, fault: str
) -> None:
    face, servers, now = mortal, own_servers.servers, Time(1_700_000_000)
    run = face.run
    counters = clocked(face.kit, now=now).counters(component="c", precisions={60: 1})
    ids = clocked(face.kit, new_id=map(str, count()).__next__)
    bank = ids.transfers("bank", component="c", grace=0.01)
    network = face.kit.social(component="c", parts=4, relation_parts=4)
    users = [run(network.create_user(name, name)) for name in NAMES]
    in_flight, pairs = set(), set()
    for name in NAMES:
        run(counters.add(name))
        run(bank.issue(Leg(name, {"gold": 1})))
        legs = Leg(name, {"gold": -1}), Leg(f"{name}'s", {"gold": 1})
        if stopped_before(face, bank.deferred.transfer(*legs), "coordination/transfer_resolve"):
            in_flight.add(json.dumps([leg.account for leg in legs]))
    for one, other in pairwise(users):
        assert stopped_before(face, network.deferred.follow(one, other), "social/record_count")
        pairs.add(f"user:{one}:{other}")
    now.at += 10**6
    down, *others = servers
    before = [left_on(server) for server in servers]
    assert [set().union(*kind) for kind in zip(*before, strict=True)] == [
        set(NAMES),
        in_flight,
        pairs,
    ]
    shard_of = run(face.kit.component("c")).shard_of

    def needs_it(note: str) -> bool:
        """Whether a transfer, or a note of a pair, needs the server that fails."""
        if note.startswith("["):
            keys = [f"bank:{{{account}}}" for account in json.loads(note)]
        else:
            _, follower, followed = note.split(":")
            keys = [f"{{social:u{int(uid) % 4}}}" for uid in (follower, followed)]
            keys.append(f"profile:{{social:{followed}}}")
        return any(shard_of(key).number == 0 for key in keys)

    getattr(down, fault)()
    upkeep: list[Any] = [counters.clean, bank.recover, lambda: network.repair(-10)]
    for call in upkeep:
        with pytest.raises(ShardErrors, match=r"1 shard failed \(c:0\)"):
            run(call())
    for server, (_, *notes) in zip(others, before[1:], strict=True):
        assert any(map(needs_it, notes[0] | notes[1]))
        undone = [set(filter(needs_it, kind)) for kind in notes]
        assert all(kind < all_ for kind, all_ in zip(undone, notes, strict=True))
        assert left_on(server) == (set(), *undone)
    if fault == "pause":
        down.resume()


def test_transfers_that_need_a_dead_server_hold_up_no_later_ones(
    mortal: Face, own_servers: LocalServers
) -> None:
    face, run = mortal, mortal.run
    shard_of = run(face.kit.component("c")).shard_of
    dead, source, target = (
        next(name for name in NAMES if shard_of(f"bank:{{{name}}}").number == number)
        for number in range(3)
    )
    ids = (str(n) for n in count() if crc32(b"%d" % n) % 16 == 0)  # all of one log, on server 3
    kit = clocked(face.kit, new_id=ids.__next__)
    bank = kit.transfers("bank", component="c", grace=0.01)
    assert run(bank.issue(Leg(source, {"gold": 200})))
    for account in [dead] * 101 + [target]:
        legs = Leg(source, {"gold": -1}), Leg(account, {"gold": 1})
        steps = bank.deferred.transfer(*legs)
        assert stopped_before(face, steps, "coordination/transfer_resolve")
    own_servers.servers[0].kill()
    time.sleep(0.02)  # the grace of the last one
    with pytest.raises(ShardErrors, match=r"1 shard failed \(c:0\)"):
        run(bank.recover())
    [account] = run(bank.read(target))
    assert (account.balances, account.in_flight) == ({"gold": 1}, {})
