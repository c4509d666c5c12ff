"""Connections belong to ways to connect: whatever the database, a server has one for each user."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from arranged import alarmed, ask, map_of
from faces import eventually, faced
from link_helpers import alarms_raise, clients_of, in_threads, opened, paused

import shardkit
from shardkit import DeadlineExceeded, ShardErrors, ShardMap, ShardUnavailable
from shardkit.local import LocalServer
from shardkit.operations import Command

FENCE_KEY = "config:fence"

KEYS = [f"k{n}" for n in range(2000)]


@pytest.fixture(scope="module")
def two() -> Iterator[list[LocalServer]]:
    with LocalServer(databases=40) as one, LocalServer(databases=40) as other:
        yield [one, other]


@pytest.fixture
def servers(two: list[LocalServer]) -> list[LocalServer]:
    for server in two:
        with server.client() as client:
            client.flushall()
            client.execute_command("ACL", "SETUSER", "default", "allcommands")
            client.execute_command("ACL", "SETUSER", "other", "on", ">secret", "~*", "+@all")
    return two


def over(servers: list[LocalServer], shards: int = 64, first: int = 1, **fields: Any) -> ShardMap:
    """Shards as databases of servers, and a component of its own in database 0 of the first."""
    places = [{"port": server.port, "db": first, **fields} for server in servers]
    return map_of(
        many={"shards": {"count": shards, "over": places}},
        one={"entry": {"port": servers[0].port, **fields}},
    )


def names(server: LocalServer) -> list[str]:
    with server.client() as client:
        listed = client.client_list()
        return [each["name"] for each in listed if each["name"].startswith("shardkit:")]


def test_a_server_has_one_connection_whatever_the_shards(
    kind: str, servers: list[LocalServer]
) -> None:
    with faced(kind, over(servers)) as face:
        router = face.kit.key_sharded("many")
        assert face.run(router.mset({key: key for key in KEYS})) is True
        assert face.run(router.mget(KEYS)) == [key.encode() for key in KEYS]
        face.run(face.run(face.kit.client("one")).set("k", 1))
        ids = face.kit.set("ids", component="many", members=int, total=50_000)
        face.run(ids.sadd(*range(5000)))
        assert face.run(ids.scard()) == 5000
        client = face.run(face.kit.client("many", 5))
        pipe = client.pipeline()
        pipe.set("a", 1)
        pipe.get("a")
        assert face.run(pipe.execute()) == [True, b"1"]
        assert face.run(client.blpop(["none"], 0.01)) is None
        for server in servers:
            assert len(names(server)) == 1
        [name] = names(servers[0])
        assert {"many", "one"} <= set(name.removeprefix("shardkit:").partition(";")[0].split(","))
    for number, server in enumerate(servers):
        sizes = ask(server, "info", "keyspace")
        assert {int(name.removeprefix("db")) for name in sizes} <= set(range(33)), number


def test_entries_with_urls_share_connections(
    kind: str, servers: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SK_NUMBER", "7")
    place = f"127.0.0.1:{servers[0].port}"
    urls = [f"redis://{place}/1", f"redis://{place}?db=2", f"redis://{place}/${{SK_NUMBER}}"]
    places: list[Any] = [{"url": url} for url in urls]
    places.append({"host": "127.0.0.1", "port": servers[0].port, "db": 3})
    with faced(kind, map_of(many={"shards": places})) as face:
        face.run(face.kit.key_sharded("many").mset(dict.fromkeys(KEYS, 1)))
        for n in range(len(places)):
            face.run(face.run(face.kit.client("many", n)).ping())
        assert len(names(servers[0])) == 1
    assert ask(servers[0], "info", "keyspace").keys() == {"db1", "db2", "db3", "db7"}


@pytest.mark.parametrize(
    "own",
    [{"max_waiting": 7}, {"breaker": False}, {"retry": {"retries": 2}}, {"multiplex": False}],
    ids=str,
)
def test_entries_that_differ_in_a_limit_share_no_connection(
    kind: str, own: dict[str, Any], servers: list[LocalServer]
) -> None:
    places = [{"port": servers[0].port, "db": 1}, {"port": servers[0].port, "db": 2, **own}]
    with faced(kind, map_of(many={"shards": places})) as face:
        face.run(face.kit.key_sharded("many").mset(dict.fromkeys(KEYS, 1)))
        assert len(names(servers[0])) == 2


def test_a_database_out_of_range_fails_alone(kind: str, servers: list[LocalServer]) -> None:
    with faced(kind, over(servers, 64, first=20)) as face:
        router = face.kit.key_sharded("many")
        for _ in range(2):
            with pytest.raises(ShardErrors, match="24 shards failed") as caught:
                face.run(router.mset({key: key for key in KEYS}))
            assert all("has no database of this number" in str(e) for e in caught.value.exceptions)
            lost = {failure.shard for failure in caught.value.exceptions}
            assert lost == {f"many:{n}" for n in range(40, 64)}
        place = face.run(face.kit.component("many")).place
        kept = [key for key in KEYS if f"many:{place(key)}" not in lost]
        assert face.run(router.mget(kept)) == [key.encode() for key in kept]
    for server in servers:
        with server.client() as client:
            written = {int(name.removeprefix("db")) for name in client.info("keyspace")}
            assert written == set(range(20, 40))


def test_a_right_to_select_that_is_taken_away_is_said(
    kind: str, servers: list[LocalServer]
) -> None:
    with faced(kind, over(servers[:1], 4)) as face:
        router = face.kit.key_sharded("many")
        face.run(router.mset(dict.fromkeys(KEYS, 1)))
        ask(servers[0], "execute_command", "ACL", "SETUSER", "default", "-select")
        with pytest.raises(ShardErrors, match="shards failed") as caught:
            face.run(router.mget(KEYS))
        said = [str(failure) for failure in caught.value.exceptions]
        assert all("the user may not run SELECT" in text for text in said)
        with pytest.raises(ShardErrors, match="shards failed") as caught:
            face.run(router.mset(dict.fromkeys(KEYS, 2)))
        assert not any(failure.maybe_executed for failure in caught.value.exceptions)


@pytest.mark.parametrize("opened", [False, True])
def test_a_fence_holds_up_the_commands_of_its_database_alone(
    kind: str, opened: bool, servers: list[LocalServer]
) -> None:
    batch = [Command("many", key, ("INCR", key)) for key in KEYS]
    before: list[int] = []
    with servers[0].client(db=3) as closed, servers[0].client(db=4) as other:
        closed.set(FENCE_KEY, "{}")

        def remove() -> None:
            end = time.monotonic() + 10
            while not other.dbsize() and time.monotonic() < end:
                time.sleep(0.01)
            before.extend([closed.dbsize(), other.dbsize()])
            closed.delete(FENCE_KEY)

        with faced(kind, over(servers, 16)) as face:
            if opened:  # other databases were in use before
                face.run(face.kit.driver.link.send([Command("many", KEYS[0], ("PING",))]))
            remover = threading.Thread(target=remove)
            remover.start()
            assert face.run(face.kit.driver.link.send(batch)) == [1] * len(KEYS)
            remover.join()
            assert face.run(face.kit.driver.link.send(batch)) == [2] * len(KEYS)
    assert before[0] == 1  # the fence alone
    assert before[1] > 100
    assert sum(client.dbsize() for client in [closed, other]) > 200


async def test_a_call_that_ends_at_a_fence_sends_nothing(
    kind: str, servers: list[LocalServer]
) -> None:
    with LocalServer() as config, servers[0].client() as data, config.client() as entries:
        for name, db in (("a", 1), ("b", 2)):
            entry = json.dumps({"port": servers[0].port, "db": db})
            entries.set(f"config:redis:{name}", entry)
        data.select(2)
        async with opened(kind, f"redis://127.0.0.1:{config.port}") as face:
            await face.client_call("a", "ping")
            ids = face.kit.set("ids", component="b", members=int)
            data.set(FENCE_KEY, "{}")
            with face.kit.deadline(0.2), pytest.raises(DeadlineExceeded) as caught:
                await face.client_call("b", "incr", "n")
            assert not caught.value.maybe_executed
            with face.kit.deadline(0.2), pytest.raises(ShardErrors) as failed:
                await face.value(ids.sadd(1))
            assert not failed.value.maybe_executed
            if kind == "awaiting":
                waiting = asyncio.ensure_future(face.client_call("b", "incr", "n"))
                assert await asyncio.wait([waiting], timeout=0.2) == (set(), {waiting})
                waiting.cancel()
            data.delete(FENCE_KEY)
            assert await face.client_call("b", "incr", "m") == 1  # behind the others
            await asyncio.sleep(0.1)  # in which the others would be sent
            assert data.keys() == [b"m"]


def test_a_corrected_entry_is_used_while_the_breaker_of_the_wrong_one_is_open(
    servers: list[LocalServer], tmp_path: Path
) -> None:
    """And an entry that differs in its database alone does not close it."""
    port, path = servers[0].port, tmp_path / "map.yaml"
    limits = "socket_timeout: 0.2, socket_connect_timeout: 0.2"
    limits += ", breaker: {failures: 2, min_seconds: 0, interval: 60, max_interval: 60}"
    wrong = f"components: {{c: {{entry: {{port: {port}, ssl: true, {limits}}}}}}}"
    path.write_text(wrong)
    with shardkit.connect(path) as kit:

        def outcome(expected: str) -> str:
            """Call until the outcome is as expected; return the last one."""
            end, found = time.monotonic() + 10, ""
            while expected not in found and time.monotonic() < end:
                time.sleep(0.02)
                try:
                    kit.client("c").ping()
                    found = "works"
                except Exception as error:
                    found = str(error)
            return found

        assert "circuit breaker" in outcome("circuit breaker")
        path.write_text(wrong.replace("{port", "{db: 1, port"))
        time.sleep(1.2)  # the kit has read it
        assert "circuit breaker" in outcome("circuit breaker")
        path.write_text(wrong.replace("ssl: true, ", ""))
        assert outcome("works") == "works"


def test_calls_over_several_servers_never_wait_for_each_other(servers: list[LocalServer]) -> None:
    """More threads than connections, each needing two: they are taken in one order, and in turn."""
    shard_map = over(servers, 4, blocking_pool={"size": 2, "timeout": 5})
    with shardkit.connect(shard_map) as kit:
        router, end = kit.key_sharded("many"), time.monotonic() + 2

        def work(seed: int) -> int:
            choose, done = random.Random(seed), 0
            while time.monotonic() < end:
                router.mget(choose.sample(KEYS, 30))
                done += 1
            return done

        assert sum(in_threads(12, work)) > 100


INTERRUPTED = """
import ctypes, random, sys, threading, time
import redis, shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer

class Limit(BaseException): pass

def call_within_limits(call):
    while not stop.is_set():
        try:
            while not stop.is_set():
                try:
                    call()
                    done[0] += 1
                except Limit:
                    pass
        except Limit:
            pass

nowhere = ShardMap.parse("components: {one: {entry: {port: 1}}}")
stop, done = threading.Event(), [0]
servers = [LocalServer().start() for _ in range(3)]
entries = [{"port": server.port} for server in servers]
with shardkit.connect(ShardMap.parse(str({"components": {"many": {"shards": entries}}}))) as kit:
    router = kit.key_sharded("many")
    keys = [f"k{n}" for n in range(20)]
    def refused():
        with shardkit.connect(nowhere) as other:
            try:
                other.client("one").get("k")
            except redis.ConnectionError:
                pass
    call = {"batches": lambda: router.mget(keys), "refused": refused}[sys.argv[1]]
    thread = threading.Thread(target=call_within_limits, args=(call,), daemon=True)
    thread.start()
    choose, limit = random.Random(1), ctypes.py_object(Limit)
    for _ in range(200):
        time.sleep(choose.random() * 0.004)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), limit)
    before, end = done[0], time.monotonic() + 20
    while done[0] < before + 10 and time.monotonic() < end:
        time.sleep(0.01)
    print(done[0] >= before + 10)
    stop.set()
    thread.join(10)
    print(thread.is_alive())
"""


class Alarm(Exception):
    """What a signal handler raises."""


@pytest.fixture
def without_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.timeout(60, method="thread")  # SIGALRM is the test's own
@pytest.mark.usefixtures("without_gc")  # it closes connections that were left behind
def test_a_caller_that_is_interrupted_while_threads_connect_sends_nothing_later(
    servers: list[LocalServer],
) -> None:
    batch = [Command("many", key, ("INCR", key)) for key in KEYS]
    with shardkit.connect(over(servers, 8)) as kit:
        with paused(*servers), alarms_raise(Alarm), pytest.raises(Alarm):
            alarmed(partial(kit.driver.link.send, batch))
        time.sleep(0.3)  # the threads, which still connect, have time to send
        gone = eventually(lambda: not any(map(clients_of, servers)))
        assert gone, "the threads have closed what they opened"
        for server in servers:
            assert ask(server, "info", "keyspace") == {}
        assert kit.driver.link.send(batch) == [1] * len(batch)


@pytest.mark.parametrize("calls", ["batches", "refused"])
def test_an_exception_from_outside_while_calls_connect_hangs_nothing(calls: str) -> None:
    """As time limits of task queues raise them, by PyThreadState_SetAsyncExc."""
    program = [sys.executable, "-c", INTERRUPTED, calls]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout.split() == ["True", "False"]


def test_one_silent_server_costs_a_large_batch_only_its_own_replies(
    servers: list[LocalServer],
) -> None:
    shard_map = over(servers, 4, socket_timeout=5)
    keys = [f"k{n}" for n in range(20_000)]
    with shardkit.connect(shard_map) as kit:
        router = kit.key_sharded("many")
        router.mset(dict.fromkeys(keys, 1))
        with paused(servers[0]), kit.deadline(1):
            replies = router.each("GET", keys, raise_on_error=False)
        lost = {reply.shard for reply in replies if isinstance(reply, ShardUnavailable)}
        assert lost == {"many:0", "many:2"}
        assert sum(reply == b"1" for reply in replies) > 9_000


async def test_an_error_of_a_connection_of_ones_own_names_the_shard(kind: str) -> None:
    nobody = map_of(users={"shards": [{"port": 1}, {"port": 1, "db": 1}]})
    named = pytest.raises(ShardUnavailable, match=r"^users:1 \(\S+:1/1\)")
    if kind == "blocking":
        with shardkit.connect(nobody) as kit, named:
            kit.client("users", 1).client()
    else:
        async with await shardkit.aconnect(nobody) as akit:
            client = await akit.client("users", 1)
            with named:
                await client.client().initialize()
