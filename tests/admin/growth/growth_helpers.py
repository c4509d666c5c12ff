"""Servers to grow: a config server, a master, and others; and clients that write all the time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import client_of
from click.testing import CliRunner, Result
from faces import PATIENCE, eventually
from moments import killed_at, write_record

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import Move, MovePlan, moves, plan_move, start_move, start_split
from shardkit.cli.app import app
from shardkit.errors import LocalServerError
from shardkit.local import LocalServer
from shardkit.testing import RecordedCall, Register, check_linearizable

CHANGES_KEY = "config:changes"

# How long a call may take, on a machine that does much else.
PATIENT = 3.0 * PATIENCE
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

    def at(self, number: int, **fields: Any) -> dict[str, Any]:
        """An entry that names a server."""
        return {"host": "127.0.0.1", "port": self.servers[number].port, **fields}

    def describe(self, components: dict[str, Any], **options: Any) -> None:
        describe(self.config, components, **options)

    def push(self, master: int, replicas: tuple[int, ...] = ()) -> None:
        """Describe ``users`` on a server, which others replicate."""
        named = {"replicas": [self.at(each) for each in replicas]} if replicas else {}
        self.describe({"users": {"shards": [self.at(master, db=db, **named) for db in (1, 2)]}})

    def move_server(self, to: int = 1, **options: Any) -> Move:
        """Move the first server."""
        return start_move(self.config, self.name(0), self.name(to), **options)

    def move_shard(self, **options: Any) -> Move:
        """Move one of the two shards to the second server."""
        return start_move(self.config, ["users:1"], self.name(1), **{"hold": PATIENT, **options})

    def move(self, of_shards: bool, **options: Any) -> Move:
        return self.move_shard(**options) if of_shards else self.move_server(**options)

    def kill_move(self, *moments: str, of: str = "shard", **options: Any) -> str:
        """Have a move of a shard or the server, or a split, be killed; return what it is called.

        At the moment "" it is done.
        """
        with killed_at(*moments) if moments[0] else nullcontext():
            if of == "split":
                new = {"shards": 3, "over": [self.name(1)], "hold": PATIENT}
                start_split(self.config, "users", **{**new, **options})
            else:
                self.move(of == "shard", **options)
        return {"shard": "users:1", "server": self.name(0), "split": "users"}[of]

    def snapshot(self) -> dict[Any, Any]:
        """What the config server has."""
        return {key: self.config.dump(key) for key in self.config.scan_iter("config:*")}

    def restore(self, snapshot: dict[Any, Any]) -> None:
        """Lose what the config server has had since a snapshot."""
        self.config.flushall()
        for key, value in snapshot.items():
            self.config.restore(key, 0, value)

    def plan(self, of_shards: bool) -> MovePlan:
        """What a move would do, and what prevents it."""
        what = ["users:1"] if of_shards else self.name(0)
        return plan_move(self.config, what, self.name(1))

    def kill_command(self, chance: random.Random, *words: str) -> None:
        """Run a command in a process that is killed at a random moment."""
        process = subprocess.Popen(
            [sys.executable, "-m", "shardkit", *words],
            env={**os.environ, "SHARDKIT_CONFIG": self.url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.4 + 2 * chance.random())  # the moment at which it is killed
        process.kill()
        process.wait()
        self.config.delete("config:growth:lease")  # as it ends by itself in ten seconds

    def run(self, *words: str, code: int = 0) -> Result:
        """Run a command of shardkit, which ends with this code."""
        done = CliRunner().invoke(app, [*words, "--config", self.url])
        assert done.exit_code == code, done.output
        return done

    def replicated(self, *replicas: int) -> list[LocalServer]:
        """Have servers follow the first one, and push that; return all servers."""
        for each in replicas:
            follow(self.servers[each], self.servers[0])
        self.push(0, replicas)
        return self.servers

    def is_kept(self) -> bool:
        """Whether a move's old databases are kept up to date, and others may work on it."""
        phases = [move.phase for move in moves(self.config)]
        return phases == ["kept"] and not self.config.exists("config:growth:lease")

    def masters(self) -> list[str]:
        stored = [json.loads(self.config.get(f"config:redis:users:{n}")) for n in (0, 1)]
        return [f"{each['host']}:{each['port']}" for each in stored]

    def value(self, key: str) -> int:
        """The value of a key where its entry says that it is."""
        with shardkit.connect(self.url) as kit:
            return int(kit.key_sharded("users")[key].get(key) or 0)


def describe(config: redis.Redis, components: dict[str, Any], **options: Any) -> None:
    """Push components, as a shard map has them."""
    push(config, ShardMap.parse(json.dumps({"components": components})), **options)


REDIS = shutil.which("redis-server")
no_redis = pytest.mark.skipif(REDIS is None, reason="needs redis-server")
on_redis_too = pytest.mark.parametrize(
    "fleet", [None, pytest.param(REDIS, marks=no_redis)], ids=["embedded", "redis"], indirect=True
)
"""Have a test run on the embedded servers, and on those of the redis-server that is installed."""


class Running:
    """The servers of a fleet, which are used again by the next test unless one has changed them."""

    def __init__(self, binary: str | None) -> None:
        self._stack = ExitStack()
        names = ("config", "a", "b", "c")
        self.servers = [
            self._stack.enter_context(
                LocalServer(name=name, config={} if name == "config" else FAST, binary=binary)
            )
            for name in names
        ]
        self._before = [self._state(server) for server in self.servers]

    def stop(self) -> None:
        self._stack.close()

    @staticmethod
    def _state(server: LocalServer) -> Any:
        with server.client() as client:
            client.replicaof("NO", "ONE")
            client.execute_command("CLIENT", "UNPAUSE")
            client.execute_command("CLIENT", "KILL", "SKIPME", "YES")
            client.flushall()
            Path(server.directory, "dump.rdb").unlink(missing_ok=True)  # of a copy or a SAVE
            client.script_flush()
            client.function_flush()
            client.config_resetstat()
            client.config_rewrite()  # or it restarts with a role that a test had written
            return server.pid, client.config_get("*"), client.acl_list()

    def is_as_before(self) -> bool:
        """Empty the servers; return whether they are as they were started."""
        try:
            return self._before == [self._state(server) for server in self.servers]
        except (redis.RedisError, OSError, LocalServerError):
            return False


@pytest.fixture(scope="session")
def running() -> Iterator[dict[str | None, Running]]:
    """The servers that wait for the next test, by their binary."""
    waiting: dict[str | None, Running] = {}
    yield waiting
    for each in waiting.values():
        each.stop()


@pytest.fixture
def fleet(request: pytest.FixtureRequest, running: dict[str | None, Running]) -> Iterator[Fleet]:
    """Three empty servers, of which the second and third replicate nobody."""
    binary = getattr(request, "param", None)
    servers = running.pop(binary, None) or Running(binary)
    config, *others = servers.servers
    found = Fleet(config, others)
    yield found
    found.config.close()
    if servers.is_as_before():
        running[binary] = servers
    else:
        servers.stop()


def recorded(fleet: Fleet, of_shards: bool, **fields: Any) -> Move:
    """Write the record of a move, as a mover that was killed leaves it."""
    a, b = fleet.name(0), fleet.name(1)
    move = Move(a, "replication", a, b, [], **fields)
    if of_shards:
        move = Move("users:1", "keys", a, b, ["users:1"], [f"{a}/2"], [f"{b}/2"], **fields)
    fleet.config.delete(CHANGES_KEY)
    write_record(fleet.config, move)
    return move


def damage(config: redis.Redis, move: Move, **fields: Any) -> str:
    """Change fields of a record; return what it is called."""
    stored = json.loads(config.hget(CHANGES_KEY, move.id))  # type: ignore[arg-type]
    config.hset(CHANGES_KEY, move.id, json.dumps({**stored, **fields}))
    return f"{CHANGES_KEY} {move.id}"


def certified(move: Any) -> dict[str, Any]:
    """The certificate of a move, which has found no difference."""
    assert move.certificate is not None
    assert move.certificate["same"], move.certificate["different"]
    return dict(move.certificate)


def filled(fleet: Fleet) -> dict[str, Any]:
    """Write keys of every type, most to the second of two shards; return what they are."""
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        router.mset({f"k{n}": "v" * n for n in range(200)})
        router["one soon"].set("one soon", 1, ex=1000)
        router["one hash"].hset("one hash", mapping={f"f{n}": n for n in range(3000)})
        router["one set"].sadd("one set", *range(500))
        router["one zset"].zadd("one zset", {f"m{n}": n / 3 for n in range(1500)})
        router["one list"].rpush("one list", *range(2500))
        router["one stream"].xadd("one stream", {"a": 1}, id="1-1")
        router["one stream"].xgroup_create("one stream", "readers", "0")
        router["one stream"].xreadgroup("readers", "one", {"one stream": ">"})
        router["{tag}:1"].set("{tag}:1", "tagged")
    return there(fleet)


def there(fleet: Fleet) -> dict[str, Any]:
    """What `filled` wrote, as a client finds it."""
    with shardkit.connect(fleet.url) as kit:
        router: Any = kit.key_sharded("users")
        assert 0 < router["one soon"].ttl("one soon") <= 1000
        return {
            "strings": router.mget([f"k{n}" for n in range(200)]),
            "hash": router["one hash"].hgetall("one hash"),
            "encodings": [
                router[key].object("encoding", key) for key in ("one hash", "one set", "one zset")
            ],
            "set": router["one set"].smembers("one set"),
            "zset": router["one zset"].zrange("one zset", 0, -1, withscores=True),
            "list": router["one list"].lrange("one list", 0, -1),
            "pending": router["one stream"].xpending("one stream", "readers"),
            "tagged": router["{tag}:1"].get("{tag}:1"),
        }


def strays(client: redis.Redis) -> list[str]:
    """The keys of a database that are not shardkit's own."""
    return [key.decode() for key in client.scan_iter() if not key.startswith(b"config:")]


def small(fleet: Fleet) -> None:
    """Describe two shards on one server, with a few keys each."""
    fleet.push(0)
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users").mset({f"k{n}": n for n in range(50)})


def kill_small_move(fleet: Fleet, *moments: str, of: str = "shard", **options: Any) -> str:
    """Have a move of what `small` describes be killed; see `Fleet.kill_move`."""
    small(fleet)
    return fleet.kill_move(*moments, of=of, **options)


def still_there(fleet: Fleet) -> bool:
    """Whether entries lead to the keys of `small`."""
    with shardkit.connect(fleet.url) as kit:
        values = kit.key_sharded("users").mget([f"k{n}" for n in range(50)])
    return bool(values == [b"%d" % n for n in range(50)])


def restart_empty(server: LocalServer) -> None:
    """Have a server lose its keys."""
    client_of(server).config_set("save", "")
    server.kill()
    for snapshot in Path(server.directory).rglob("*.rdb"):
        snapshot.unlink()
    server.restart()


def replication(server: LocalServer) -> dict[str, Any]:
    return dict(client_of(server).info("replication"))


def follow(replica: LocalServer, master: LocalServer) -> None:
    client_of(replica).replicaof("127.0.0.1", str(master.port))
    assert eventually(lambda: replication(replica)["master_link_status"] == "up", 60)


# Between a client's rounds: at full speed they take the processor from what they are a test of.
# ``make kills`` has them write without a pause.
PAUSE = 0.0 if "KILLS" in os.environ else 0.004


LEAST = "min-replicas-to-write"


def ask_for_a_replica(master: LocalServer, *others: LocalServer) -> None:
    """Have servers take writes only with a replica, and wait until the master counts its own."""
    for server in (master, *others):
        with server.client() as client:
            client.config_set(LEAST, 1)
            client.config_rewrite()
    with master.client() as client:
        assert eventually(lambda: client.info("replication")["min_slaves_good_slaves"], 30)


FAILURES = (redis.RedisError, shardkit.ShardKitError, ExceptionGroup)


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
        self.acknowledged: Counter[str] = Counter()
        self.uncertain: Counter[str] = Counter()
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

    @contextmanager
    def _noting(self, who: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            self.errors.append(f"{who}: {error!r}")

    @contextmanager
    def _counting(self, name: str, key: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
            self.acknowledged[key] += 1
        except FAILURES as error:
            self.uncertain[key] += 1
            self.errors.append(f"{name}: {error!r}")
        self.longest[name] = max(self.longest.get(name, 0.0), time.monotonic() - began)

    @contextmanager
    def _recording(self, client: str, name: str, key: str, *args: str) -> Iterator[RecordedCall]:
        record = RecordedCall(client, name, args, key, time.monotonic())
        self.history.append(record)
        with self._noting(client):
            yield record
            record.ended = time.monotonic()

    def _end_keys(self, kit: Any, router: Any, n: int) -> None:
        """Write a key and delete it, and one that expires."""
        with self._noting("ending"):
            with self._durable(kit):
                router[f"gone{n}"].set(f"gone{n}", n)
                router[f"soon{n}"].set(f"soon{n}", n, px=100)
            self.gone.append(f"soon{n}")
            with self._durable(kit):
                router[f"gone{n}"].delete(f"gone{n}")
            self.gone.append(f"gone{n}")

    def _blocking(self) -> None:
        with shardkit.connect(self._url) as kit:
            router, n = kit.key_sharded("users"), 0
            ids = kit.set("ids", component="users", total=10_000, members=int)
            while not self._end.wait(PAUSE):
                n += 1
                key = f"b{n % 7}"
                with self._counting("blocking", key), self._durable(kit):
                    router[key].incr(key)
                with self._counting("structure", "ids"), self._durable(kit):
                    ids.sadd(n)
                if n % 5 == 0:
                    self._end_keys(kit, router, n)
                # Other keys again and again: the check takes long for many calls of one key.
                self._shared = name = f"shared{n // 50}"
                with self._recording("blocking", "set", name, str(n)):
                    router[name].set(name, str(n))

    def _awaiting(self) -> None:
        async def run() -> None:
            async with await shardkit.aconnect(self._url) as kit:
                router, n = kit.key_sharded("users"), 0
                while not self._end.is_set():
                    await asyncio.sleep(PAUSE)  # see there
                    n += 1
                    key = f"a{n % 7}"
                    with self._counting("awaiting", key):
                        async with self._durable(kit):
                            await router[key].incr(key)

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
                with self._counting("decorated", key), self._durable(kit):
                    count(key)
                name = self._shared
                with self._recording("decorated", "get", name) as record:
                    record.result = read(name)

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


@contextmanager
def losing_nothing(
    fleet: Fleet, shards: int | None = 2, may_fail: tuple[str, ...] = ()
) -> Iterator[Writers]:
    """Have clients write inside, of whom no call fails otherwise, and check what they were told."""
    with writing(fleet, shards=shards) as writers:
        yield writers
    errors = [each for each in writers.errors if not any(said in each for said in may_fail)]
    assert errors == [], errors
    assert writers.gone
    check_nothing_lost(fleet, writers)
    check_linearizable(writers.history, Register())


def check_nothing_lost(fleet: Fleet, writers: Writers) -> None:
    """Every acknowledged increment is there, once; what was not acknowledged may be there.

    What was deleted or has expired is not there.
    """
    assert sum(writers.acknowledged.values()) > 20  # there was load
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        for key, count in writers.acknowledged.items():
            if key == "ids":
                found = kit.set("ids", component="users", total=10_000, members=int).scard()
            else:
                found = int(router[key].get(key) or 0)
            unsure = writers.uncertain[key]
            assert count <= found <= count + unsure, (key, count, found, unsure)
        assert eventually(
            lambda: not [key for key in writers.gone if router[key].exists(key)], 30
        ), "what was deleted or has expired is there"


@contextmanager
def counting(url: str, *components: str, cut_off: int = 0, unsent: str = "-") -> Iterator[None]:
    """Have threads count in many keys; in the end the counters must say what was acknowledged.

    At most ``cut_off`` calls may fail, besides those whose error contains ``unsent``.
    """
    ended, errors = threading.Event(), list[str]()
    counted, uncertain = Counter[tuple[str, str]](), Counter[tuple[str, str]]()

    def write(name: str, router: Any) -> None:
        n = 0
        while not ended.wait(0.002):
            n += 1
            key = f"counted{n % 50}"
            try:
                router[key].incr(key)
                counted[name, key] += 1
            except FAILURES as error:
                errors.append(repr(error))
                uncertain[name, key] += 1

    with shardkit.connect(url) as kit:
        routers = {name: kit.key_sharded(name) for name in components}
        threads = [threading.Thread(target=write, args=each) for each in routers.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        for (name, key), count in counted.items():
            found = int(routers[name][key].get(key) or 0)
            assert count <= found <= count + uncertain[name, key], (name, key)
    errors = [error for error in errors if unsent not in error]
    assert len(errors) <= cut_off, errors
