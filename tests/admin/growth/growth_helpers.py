"""Servers to grow: a config server, a master, and others; and clients that write all the time."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import redis

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import gate, shard_move
from shardkit.local import LocalServer
from shardkit.testing.simulation.linearizability import RecordedCall

# How long a call may take, on a machine that does much else.
PATIENT = 3.0
FAST = {"repl-diskless-sync-delay": 0, "repl-ping-replica-period": 1}


class Fleet:
    """A config server, and a component ``users`` of two shards on one server."""

    def __init__(self, config: LocalServer, servers: list[LocalServer]) -> None:
        self.config_server = config
        self.servers = servers
        self.config = config.client()
        self.url = f"redis://127.0.0.1:{config.port}"

    def name(self, number: int) -> str:
        return f"127.0.0.1:{self.servers[number].port}"

    def push(self, master: int, replicas: tuple[int, ...] = ()) -> None:
        """Describe ``users`` on a server, which others replicate."""
        listed = [{"host": "127.0.0.1", "port": self.servers[each].port} for each in replicas]
        entry: dict[str, Any] = {"host": "127.0.0.1", "port": self.servers[master].port}
        if listed:
            entry["replicas"] = listed
        components = {"users": {"shards": [{**entry, "db": 1}, {**entry, "db": 2}]}}
        push(self.config, ShardMap.parse(json.dumps({"components": components})))

    def replicated(self, *replicas: int) -> list[LocalServer]:
        """Have servers follow the first one, and push that; return all servers."""
        for each in replicas:
            follow(self.servers[each], self.servers[0])
        self.push(0, replicas)
        return self.servers

    def masters(self) -> list[str]:
        stored = [json.loads(self.config.get(f"config:redis:users:{n}")) for n in (0, 1)]
        return [f"{each['host']}:{each['port']}" for each in stored]

    def value(self, key: str) -> int:
        """The value of a key where its entry says that it is."""
        with shardkit.connect(self.url) as kit:
            return int(kit.key_sharded("users")[key].get(key) or 0)


REDIS = shutil.which("redis-server")
no_redis = pytest.mark.skipif(REDIS is None, reason="needs redis-server")
on_redis_too = pytest.mark.parametrize(
    "fleet", [None, pytest.param(REDIS, marks=no_redis)], ids=["embedded", "redis"], indirect=True
)
"""Have a test run on the embedded servers, and on those of the redis-server that is installed."""


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Three servers, of which the second and third replicate nobody."""
    binary = getattr(request, "param", None)
    with (
        LocalServer(name="config", binary=binary) as config,
        LocalServer(name="a", config=FAST, binary=binary) as a,
        LocalServer(name="b", config=FAST, binary=binary) as b,
        LocalServer(name="c", config=FAST, binary=binary) as c,
    ):
        found = Fleet(config, [a, b, c])
        yield found
        found.config.close()


CLOSING = frozenset({"close_for", "make_permanent", "is_permanent", "change", "lift"})


def module_of(name: str) -> Any:
    """Return the module in which a mover of shards calls a function."""
    return gate if name in CLOSING else shard_move


class Killed(BaseException):
    """The mover was killed."""


def killed(*args: object, **options: object) -> Any:
    """Be called in the place of a mover's function."""
    raise Killed


@contextmanager
def killed_at(owner: Any, *names: str) -> Iterator[None]:
    """Have a mover inside be killed where it calls one of these functions."""
    with pytest.MonkeyPatch.context() as patched:
        for name in names:
            patched.setattr(owner, name, killed)
        yield


def certified(move: Any) -> dict[str, Any]:
    """The certificate of a move, which has found no difference."""
    assert move.certificate is not None
    assert move.certificate["same"], move.certificate["different"]
    return dict(move.certificate)


def filled(fleet: Fleet) -> None:
    """Write keys of every type, with and without expiry."""
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users").mset({f"k{n}": "v" * n for n in range(200)})
        client = kit.client("users", 1)
        assert isinstance(client, redis.Redis)
        client.set("soon", 1, ex=1000)
        client.hset("hash", mapping={f"f{n}": n for n in range(3000)})
        client.sadd("set", *range(500))
        client.zadd("zset", {f"m{n}": n / 3 for n in range(1500)})
        client.rpush("list", *range(2500))
        client.xadd("stream", {"a": 1})


def small(fleet: Fleet) -> None:
    """Describe two shards on one server, with a few keys each."""
    fleet.push(0)
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users").mset({f"k{n}": n for n in range(50)})


def still_there(fleet: Fleet) -> bool:
    """Whether entries lead to the keys of `small`."""
    with shardkit.connect(fleet.url) as kit:
        values = kit.key_sharded("users").mget([f"k{n}" for n in range(50)])
    return bool(values == [b"%d" % n for n in range(50)])


def follow(replica: LocalServer, master: LocalServer) -> None:
    with replica.client() as client:
        client.replicaof("127.0.0.1", str(master.port))
        while client.info("replication")["master_link_status"] != "up":
            time.sleep(0.01)


# Between a client's rounds: at full speed they take the processor from what they are a test of.
# ``make kills`` has them write without a pause.
PAUSE = 0.0 if "KILLS" in os.environ else 0.001


LEAST = "min-replicas-to-write"


def ask_for_a_replica(master: LocalServer, *others: LocalServer) -> None:
    """Have servers take writes only with a replica, and wait until the master counts its own."""
    for server in (master, *others):
        with server.client() as client:
            client.config_set(LEAST, 1)
            client.config_rewrite()
    with master.client() as client:
        end = time.monotonic() + 30
        while not client.info("replication")["min_slaves_good_slaves"]:
            assert time.monotonic() < end, "the master counts no replica as good"
            time.sleep(0.01)


class Writers:
    """Clients that count, set, read, delete and expire without end, and note what they were told.

    Args:
        url: the config server's.
        replicas: how many replicas must have a write before it counts as acknowledged.
        shards: how many shards decorated functions say that there are.
    """

    def __init__(self, url: str, replicas: int = 0, shards: int | None = 2) -> None:
        self._url = url
        self._replicas = replicas
        self._shards = shards
        self._end = threading.Event()
        self.acknowledged: dict[str, int] = {}
        self.uncertain: dict[str, int] = {}
        self.longest: dict[str, float] = {}
        self.errors: list[str] = []
        self.gone: list[str] = []
        self.history: list[RecordedCall] = []
        self._shared = "shared0"
        self._threads = [
            threading.Thread(target=target)
            for target in (self._blocking, self._awaiting, self._decorated)
        ]

    def _durable(self, kit: Any) -> Any:
        """Return a block whose writes are acknowledged when it ends."""
        if not self._replicas:
            return nullcontext()
        return kit.durable(replicas=self._replicas, timeout=5.0)

    def _count(self, kit: Any, name: str, key: str, call: Any) -> None:
        began = time.monotonic()
        try:
            with self._durable(kit):
                call()
        except (redis.RedisError, shardkit.ShardKitError, ExceptionGroup) as error:
            self.uncertain[key] = self.uncertain.get(key, 0) + 1
            self.errors.append(f"{name}: {error!r}")
        else:
            self.acknowledged[key] = self.acknowledged.get(key, 0) + 1
        self.longest[name] = max(self.longest.get(name, 0.0), time.monotonic() - began)

    def _record(self, client: str, name: str, key: str, args: tuple[Any, ...], call: Any) -> None:
        record = RecordedCall(client, name, args, key, time.monotonic())
        self.history.append(record)
        try:
            result = call()
        except (redis.RedisError, shardkit.ShardKitError, ExceptionGroup) as error:
            self.errors.append(f"{client}: {error!r}")
            return
        record.ended = time.monotonic()
        record.result = result

    def _end_keys(self, kit: Any, router: Any, n: int) -> None:
        """Write a key and delete it, and one that expires."""
        try:
            with self._durable(kit):
                router[f"gone{n}"].set(f"gone{n}", n)
                router[f"soon{n}"].set(f"soon{n}", n, px=100)
            self.gone.append(f"soon{n}")
            with self._durable(kit):
                router[f"gone{n}"].delete(f"gone{n}")
            self.gone.append(f"gone{n}")
        except (redis.RedisError, shardkit.ShardKitError, ExceptionGroup) as error:
            self.errors.append(f"ending: {error!r}")

    def _blocking(self) -> None:
        with shardkit.connect(self._url) as kit:
            router, n = kit.key_sharded("users"), 0
            ids = kit.set("ids", component="users", total=10_000, members=int)
            while not self._end.wait(PAUSE):
                n += 1
                key = f"b{n % 7}"
                self._count(kit, "blocking", key, lambda key=key: router[key].incr(key))
                self._count(kit, "structure", "ids", lambda n=n: ids.sadd(n))
                if n % 5 == 0:
                    self._end_keys(kit, router, n)
                # Other keys again and again: the check takes long for many calls of one key.
                self._shared, value = f"shared{n // 50}", str(n)
                self._record(
                    "blocking",
                    "set",
                    self._shared,
                    (value,),
                    lambda name=self._shared, value=value: router[name].set(name, value) and None,
                )

    def _awaiting(self) -> None:
        async def run() -> None:
            async with await shardkit.aconnect(self._url) as kit:
                router, n = kit.key_sharded("users"), 0
                while not self._end.is_set():
                    await asyncio.sleep(PAUSE)  # see there
                    n += 1
                    key, began = f"a{n % 7}", time.monotonic()
                    try:
                        async with self._durable(kit):
                            await router[key].incr(key)
                    except (redis.RedisError, shardkit.ShardKitError) as error:
                        self.uncertain[key] = self.uncertain.get(key, 0) + 1
                        self.errors.append(f"awaiting: {error!r}")
                    else:
                        self.acknowledged[key] = self.acknowledged.get(key, 0) + 1
                    took = time.monotonic() - began
                    self.longest["awaiting"] = max(self.longest.get("awaiting", 0.0), took)

        asyncio.run(run())

    def _decorated(self) -> None:
        with shardkit.connect(self._url) as kit:

            @kit.sharded_connection("users", shards=self._shards)
            def count(conn: Any, key: str) -> int:
                return int(conn.incr(key))

            @kit.sharded_connection("users", shards=self._shards)
            def read(conn: Any, key: str) -> Any:
                value = conn.get(key)
                return None if value is None else value.decode()

            n = 0
            while not self._end.wait(PAUSE):
                n += 1
                key = f"d{n % 7}"
                self._count(kit, "decorated", key, lambda key=key: count(key))
                name = self._shared
                self._record("decorated", "get", name, (), lambda name=name: read(name))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        while len(self.longest) < 4:
            time.sleep(0.01)

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def writing(fleet: Fleet, replicas: int = 0, shards: int | None = 2) -> Iterator[Writers]:
    """Have clients write inside; see `Writers`."""
    writers = Writers(fleet.url, replicas, shards)
    writers.start()
    try:
        time.sleep(0.1)  # they write before, between and after
        yield writers
        time.sleep(0.1)  # see above
    finally:
        writers.stop()


def check_nothing_lost(fleet: Fleet, writers: Writers) -> None:
    """Every acknowledged increment is there, once; what was not acknowledged may be there.

    What was deleted or has expired is not there.
    """
    assert sum(writers.acknowledged.values()) > 100
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        for key, count in writers.acknowledged.items():
            if key == "ids":
                found = kit.set("ids", component="users", total=10_000, members=int).scard()
            else:
                found = int(router[key].get(key) or 0)
            unsure = writers.uncertain.get(key, 0)
            assert count <= found <= count + unsure, (key, count, found, unsure)
        assert writers.gone
        end = time.monotonic() + 30
        while left := [key for key in writers.gone if router[key].exists(key)]:
            assert time.monotonic() < end, f"was deleted or expired, and is there: {left}"
            time.sleep(0.05)
