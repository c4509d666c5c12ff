"""The promises of docs/guarantees.md as a table: each promise for each way, kind of call and face.

Each call appends a number to a list, in one of seven kinds; a proxy, or a server in memory, does
what goes wrong. Reads of a replica read the list instead. `NO_MEANING` has cells that cannot be.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, product
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import redis
from arranged import ask, map_of
from faces import PATIENCE, Face, eventually, faced
from faulty_proxy import faulty
from link_helpers import alarms_raise, hearing, in_threads, of
from redis.exceptions import OutOfMemoryError

from shardkit import (
    DeadlineExceeded,
    LuaScript,
    ShardErrors,
    ShardKitError,
    ShardUnavailable,
    events,
)
from shardkit.local import LocalCluster, LocalServer
from shardkit.local.sentinel import SentinelServer
from shardkit.testing.fakes.servers import MemoryConnector

FACES = ("blocking", "awaiting")
TEXT = "return redis.call('RPUSH', KEYS[1], ARGV[1])"
APPEND, SHA = LuaScript(TEXT), hashlib.sha1(TEXT.encode()).hexdigest()
DATABASES = (1, 2)
_numbers = count()


async def command(client: Any, cell: Cell, *numbers: int) -> Any:
    return [await of(client.rpush(cell.key, n)) for n in numbers][-1]


async def pipeline(client: Any, cell: Cell, *numbers: int, transaction: bool = False) -> Any:
    pipe = client.pipeline(transaction=transaction)
    for n in numbers:
        pipe.rpush(cell.key, n)
    pipe.llen(cell.key)
    *_, added, length = await of(pipe.execute())
    assert added <= length
    return added


async def transaction(client: Any, cell: Cell, *numbers: int) -> Any:
    return await pipeline(client, cell, *numbers, transaction=True)


async def watch(client: Any, cell: Cell, *numbers: int) -> Any:
    """As often as redis-py repeats it."""

    def body(pipe: Any) -> None:
        pipe.multi()
        for n in numbers:
            pipe.rpush(cell.key, n)

    async def awaited(pipe: Any) -> None:
        body(pipe)

    return (await of(client.transaction(awaited if cell.face.runner else body, cell.key)))[-1]


async def pub_sub(client: Any, cell: Cell, *numbers: int) -> Any:
    """What a subscriber receives is appended by the test."""
    pubsub = client.pubsub()
    try:
        await of(pubsub.subscribe(cell.key))
        message = await of(pubsub.get_message(timeout=10))
        assert message["type"] == "subscribe"
        for n in numbers:
            cell.admin.publish(cell.key, n)
        for _ in numbers:
            message = await of(pubsub.get_message(timeout=10))
            length = cell.admin.rpush(cell.key, message["data"])
        return length
    finally:
        await of(pubsub.aclose() if hasattr(pubsub, "aclose") else pubsub.close())


async def blocking(client: Any, cell: Cell, *numbers: int) -> Any:
    stock = cell.stock(numbers)
    for n in numbers:
        moved = await of(client.blmove(stock, cell.key, 0.1, "LEFT", "RIGHT"))
        assert moved == b"%d" % n
    return cell.length()


async def script(client: Any, cell: Cell, *numbers: int) -> Any:
    return [await of(APPEND(client, keys=[cell.key], args=[n])) for n in numbers][-1]


Commands: TypeAlias = list[tuple[Any, ...]]


def raw(*exchanges: Callable[[Cell, tuple[int, ...]], Commands]) -> Any:
    """The same over a connection of the client's pool; the last reply of each exchange counts."""

    async def call(client: Any, cell: Cell, *numbers: int) -> Any:
        pool = client.connection_pool
        connection = await of(pool.get_connection())
        reply: Any = None
        try:
            for exchange in exchanges:
                commands = exchange(cell, numbers)
                await of(connection.send_packed_command(connection.pack_commands(commands)))
                replies = [await reply_of(connection) for _ in commands]
                reply = replies[-1]
                for refused in replies:
                    if isinstance(refused, Exception):
                        raise refused
        finally:
            await of(pool.release(connection))
        return reply[-1] if isinstance(reply, list) else reply

    return call


async def reply_of(connection: Any) -> Any:
    try:
        return await of(connection.read_response())
    except redis.ResponseError as error:
        return error


def pushes(cell: Cell, numbers: tuple[int, ...]) -> Commands:
    return [("RPUSH", cell.key, n) for n in numbers]


def in_multi(cell: Cell, numbers: tuple[int, ...]) -> Commands:
    return [("MULTI",), *pushes(cell, numbers), ("EXEC",)]


async def raw_pub_sub(client: Any, cell: Cell, *numbers: int) -> Any:
    pool = client.connection_pool
    connection = await of(pool.get_connection())
    try:
        await of(connection.send_command("SUBSCRIBE", cell.key))
        assert (await of(connection.read_response()))[0] == b"subscribe"
        for n in numbers:
            cell.admin.publish(cell.key, n)
        for _ in numbers:
            message = await of(connection.read_response())
            length = cell.admin.rpush(cell.key, message[2])
        return length
    finally:
        await of(pool.release(connection))


async def raw_blocking(client: Any, cell: Cell, *numbers: int) -> Any:
    move = ("BLMOVE", cell.stock(numbers), cell.key, "LEFT", "RIGHT", 0.1)
    for n in numbers:
        assert await raw(lambda cell, numbers: [move])(client, cell) == b"%d" % n
    return cell.length()


async def read(client: Any, cell: Cell, *numbers: int) -> Any:
    values = await of(client.lrange(cell.key, 0, -1))
    assert [*map(int, values)] == cell.values()
    return len(values)


async def read_in_pipeline(router: Any, cell: Cell, *numbers: int) -> Any:
    pipe = router.pipeline()
    pipe.lrange(cell.key, 0, -1).llen(cell.key)
    values, length = await of(pipe.execute())
    assert [*map(int, values)] == cell.values()
    return length


KINDS: dict[str, Any] = {
    "command": command,
    "pipeline": pipeline,
    "transaction": transaction,
    "WATCH": watch,
    "pub/sub": pub_sub,
    "blocking": blocking,
    "script": script,
}
RAW_KINDS: dict[str, Any] = {
    "command": raw(pushes),
    "pipeline": raw(lambda cell, numbers: [*pushes(cell, numbers), ("LLEN", cell.key)]),
    "transaction": raw(in_multi),
    "WATCH": raw(lambda cell, _: [("WATCH", cell.key), ("LLEN", cell.key)], in_multi),
    "pub/sub": raw_pub_sub,
    "blocking": raw_blocking,
    "script": raw(lambda cell, numbers: [("EVALSHA", SHA, 1, cell.key, n) for n in numbers]),
}
READING_KINDS: dict[str, Any] = {"command": read, "pipeline": read_in_pipeline}
DECIDES = {
    "command": ("RPUSH", "RPUSH"),
    "pipeline": ("RPUSH", "RPUSH"),
    "transaction": ("EXEC", "RPUSH"),
    "WATCH": ("EXEC", "RPUSH"),
    "pub/sub": ("SUBSCRIBE", "SUBSCRIBE"),
    "blocking": ("BLMOVE", "BLMOVE"),
    "script": ("EVALSHA", "EVALSHA"),
}

Work = Callable[[Any], Awaitable[Any]]


async def decorated(cell: Cell, component: str, work: Work) -> Any:
    if cell.face.runner is None:
        return cell.kit.sharded_connection(component)(lambda conn, key: at_once(work(conn)))(
            cell.key
        )

    async def function(conn: Any, key: str) -> Any:
        return await work(conn)

    return await cell.kit.sharded_connection(component)(function)(cell.key)


async def router(cell: Cell, component: str, work: Work) -> Any:
    return await work(cell.kit.key_sharded(component)[cell.key])


async def shared(cell: Cell, component: str, work: Work, **options: Any) -> Any:
    return await work(await of(cell.kit.client(component, cell.shard, **options)))


async def private(cell: Cell, component: str, work: Work) -> Any:
    return await shared(cell, component, work, private=True)


async def single_connection(cell: Cell, component: str, work: Work) -> Any:
    async def call(client: Any) -> Any:
        one = client.client()
        try:
            return await work(one)
        finally:
            await of(one.aclose() if hasattr(one, "aclose") else one.close())

    return await shared(cell, component, call)


async def of_a_cluster(cell: Cell, component: str, work: Work) -> Any:
    return await work(await of(cell.kit.client(component)))


async def replica(cell: Cell, component: str, work: Work) -> Any:
    if cell.kind == "pipeline":
        return await work(cell.kit.key_sharded(component))
    return await router(cell, component, work)


@dataclass(frozen=True)
class Way:
    take: Any
    component: str = "c"
    kinds: Any = None  # KINDS if None
    in_memory: bool = False


ON_A_SERVER = {
    "decorated": Way(decorated),
    "router": Way(router),
    "shared client": Way(shared),
    "private client": Way(private),
    "client.client()": Way(single_connection),
    "raw pool": Way(shared, kinds=RAW_KINDS),
}
WAYS = {
    **ON_A_SERVER,
    "cluster": Way(of_a_cluster, "cluster"),
    "Sentinel": Way(shared, "watched"),
    "replica": Way(replica, "replicated", READING_KINDS),
    "replica in a cluster": Way(replica, "replicated_cluster", READING_KINDS),
    **{
        f"{name}, in memory": Way(way.take, way.component, way.kinds, in_memory=True)
        for name, way in ON_A_SERVER.items()
    },
}


class Stage:
    """The servers of this module behind their proxies, and a kit of each face on them."""

    def __init__(self, stack: ExitStack) -> None:
        run = stack.enter_context
        at_once = {"repl-diskless-sync-delay": 0}
        server = run(LocalServer(config=at_once))
        replica = run(LocalServer(replica_of=server))
        [node] = run(LocalCluster(masters=1)).nodes
        [master, reading] = run(LocalCluster(1, 1, config=at_once)).nodes
        self.memory = MemoryConnector()
        self.proxies = {
            place: run(faulty(at.port))
            for place, at in {
                "c": server,
                "replicated": replica,
                "cluster": node,
                "replicated_cluster": reading,
            }.items()
        }
        self.proxies["watched"] = self.proxies["c"]
        ports = {place: proxy.port for place, proxy in self.proxies.items()}
        masters: Any = {"main": self.proxies["c"]}
        sentinel = run(SentinelServer(masters, {"main": 1}, down_after=600))
        for each, place in ((node, "cluster"), (reading, "replicated_cluster")):
            ask(each, "config_set", "cluster-announce-port", ports[place])
        with master.client() as client:
            known = client.execute_command
            assert eventually(
                lambda: str(ports["replicated_cluster"]) in str(known("CLUSTER SLOTS"))
            )
        places: dict[str, dict[str, Any]] = {
            "c": {"port": ports["c"]},
            "replicated": {
                "port": ports["c"],
                "replicas": [{"port": ports["replicated"]}],
                "read_from": "prefer_replica",
            },
            "watched": {
                "sentinel": {"service": "main", "sentinels": [["127.0.0.1", sentinel.port]]}
            },
        }
        components: dict[str, Any] = {}
        for prefix, seconds in (("", 10), ("hasty_", 0.25 * PATIENCE)):
            limits = {"socket_timeout": seconds, "breaker": False}
            for name, place in places.items():
                shards = [{**place, **limits, "db": db} for db in DATABASES]
                components[prefix + name] = {"shards": shards}
            in_slots = {"cluster": True, "port": ports["cluster"], **limits}
            components[f"{prefix}cluster"] = {"entry": in_slots}
            of_replicas = {**in_slots, "port": master.port, "read_from": "prefer_replica"}
            components[f"{prefix}replicated_cluster"] = {"entry": of_replicas}
        shard_map = map_of(**components)
        self.faces: dict[tuple[str, bool], Face] = {}
        for face in FACES:
            self.faces[face, False] = run(faced(face, shard_map))
            self.faces[face, True] = run(faced(face, shard_map, connector=self.memory))
        self.in_memory = self.memory.server(f"localhost:{ports['c']}")
        self.admins: dict[str, list[Any]] = {
            "server": [run(server.client(db=db)) for db in (0, *DATABASES)],
            "memory": [run(self.in_memory.client(db=db)) for db in (0, *DATABASES)],
            "cluster": [run(node.client())],
            "replicated_cluster": [run(master.client())],
        }
        for admins in self.admins.values():
            admins[0].script_load(TEXT)

    def cell(self, way: str, kind: str, face: str) -> Cell:
        """Return a cell with two lists, of two shards."""
        name = next(_numbers)
        shard_of = self.faces["blocking", False].kit.key_sharded("c").shard_of
        keys = [f"{{{name}:{n}}}" for n in range(64)]
        first, second = (
            Cell(self, WAYS[way], kind, face, shard, next(k for k in keys if shard_of(k) == shard))
            for shard in (0, 1)
        )
        first.beside = second
        return first


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack)


class Cell:
    """One cell: a way, a kind and a face, and a list of its own on a shard."""

    beside: Cell  # with a list on another shard of the same server

    def __init__(self, stage: Stage, way: Way, kind: str, face: str, shard: int, key: str) -> None:
        self.way, self.kind, self.shard, self.key = way, kind, shard, key
        self.face = stage.faces[face, way.in_memory]
        self.kit = self.face.kit
        self.faults: Any = stage.in_memory if way.in_memory else stage.proxies[way.component]
        in_cluster = way.component in stage.admins
        place = way.component if in_cluster else "memory" if way.in_memory else "server"
        self.elsewhere = [*stage.admins[place]]
        self.admin = self.elsewhere.pop(0 if in_cluster else DATABASES[shard])
        self.named = way.component if in_cluster else f"{way.component}:{shard}"
        # The commands by which a call is executed, and by whose refusal it is not.
        self.decides, self.refusable = DECIDES[kind]
        if way.kinds is READING_KINDS:
            self.decides = self.refusable = "LRANGE"
            self.admin.rpush(key, *range(shard + 1))
            assert self.admin.wait(1, 5000)

    async def call(self, *numbers: int, hasty: bool = False) -> Any:
        """Append numbers to the list; return its length as the call's own reply has it."""
        call = (self.way.kinds or KINDS)[self.kind]
        component = f"hasty_{self.way.component}" if hasty else self.way.component
        return await self.way.take(self, component, lambda client: call(client, self, *numbers))

    async def begin(self) -> None:
        """Make a first call; a replica answers it, once it is known that it can."""
        end = time.monotonic() + 20
        while True:
            seen = len(self.faults.seen) if self.way.kinds is READING_KINDS else 0
            await self.call(0)
            if self.way.kinds is not READING_KINDS or self.decides in self.faults.seen[seen:]:
                return
            assert time.monotonic() < end
            await of(asyncio.sleep(0.02) if self.face.runner else time.sleep(0.02))  # noqa: ASYNC251

    async def error(self, *numbers: int, hasty: bool = False) -> Any:
        """Return the error that a call raises; None if it succeeds."""
        try:
            await self.call(*numbers, hasty=hasty)
        except ShardErrors as errors:  # of the router's pipeline
            return errors.exceptions[0]
        except (redis.RedisError, ShardKitError) as error:
            return error
        return None

    def values(self) -> list[int]:
        return [int(value) for value in self.admin.lrange(self.key, 0, -1)]

    def length(self) -> int:
        return int(self.admin.llen(self.key))

    def stock(self, numbers: tuple[int, ...]) -> str:
        """Return the key of a list with numbers, for one call."""
        key = f"{self.key}:stock:{next(_numbers)}"
        self.admin.rpush(key, *numbers)
        return key

    def run(self, work: Awaitable[Any]) -> Any:
        return self.face.run(work) if self.face.runner else at_once(work)


def at_once(work: Any) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a call of the blocking face waits")


async def at_most_once(cell: Cell) -> None:
    await cell.begin()
    for n, lose in enumerate((cell.faults.lose_answer, cell.faults.lose_command), 1):
        lose(cell.decides)
        error = await cell.error(n)
        cell.faults.clear()
        assert cell.values().count(n) == 1 if error is None else cell.values().count(n) <= 1


async def order(cell: Cell) -> None:
    await cell.call(0, 1, 2)
    assert cell.values() == [0, 1, 2]
    cell.faults.answer("LOADING Redis is loading the dataset in memory", cell.refusable)
    in_one = cell.kind in ("pipeline", "transaction", "WATCH")
    calls: list[tuple[int, ...]] = [(3, 4, 5)] if in_one else [(3,), (4,), (5,)]
    errors = [await cell.error(*numbers) for numbers in calls]
    values = cell.values()
    assert values == sorted(set(values))
    if errors == [None] * len(calls):
        assert values == [0, 1, 2, 3, 4, 5]
    cell.faults.clear()
    if cell.kind != "pub/sub":  # subscribers receive what others publish
        await order_of_each_of_eight(cell)


async def order_of_each_of_eight(cell: Cell) -> None:
    """Threads, or tasks, that share a client."""
    callers = [range(10 * n, 10 * n + 3) for n in range(1, 9)]

    async def append(numbers: range) -> None:
        for n in numbers:
            while await cell.call(n) is None:  # EXEC, as another one was earlier
                pass

    if cell.face.runner:
        await asyncio.gather(*map(append, callers))
    else:
        in_threads(len(callers), lambda n: at_once(append(callers[n])))
    values = [n for n in cell.values() if n >= 10]
    assert sorted(values) == [*chain(*callers)]
    for numbers in callers:
        assert [n for n in values if n in numbers] == [*numbers]


async def right_database(cell: Cell) -> None:
    both = (cell, cell.beside)
    for n in range(2):
        for each in both:
            assert await each.call(n) == each.length()
    for each in both:
        each.faults.answer("NOPERM no permissions to run the 'select' command", "SELECT")
        assert await each.error(2) is None or each.values() == [0, 1]
        each.faults.clear()
    for each in both:
        assert await each.call(3) == each.length()
        for admin in each.elsewhere:
            assert not admin.exists(each.key)


async def right_caller(cell: Cell) -> None:
    await cell.begin()
    cell.faults.hang(cell.decides)
    with cell.kit.deadline(0.1):
        assert await cell.error(1) is not None
    cell.faults.clear()  # the reply comes, late
    for n in (2, 3):
        assert await cell.call(n) == cell.length()
        assert await cell.beside.call(n) == cell.beside.length()


async def error_class(cell: Cell) -> None:
    """Of what is lost and of what is refused; it names the shard."""
    named = cell.way.kinds is not RAW_KINDS and cell.kind != "pub/sub"
    await cell.begin()
    if cell.way.kinds is not READING_KINDS:
        cell.faults.down()
        unreached = await cell.error(1)
        cell.faults.clear()
        cell.faults.lose_answer(cell.decides)
        lost = await cell.error(2)
        for error in (unreached, lost) if cell.kind != "pub/sub" else (unreached,):
            assert isinstance(error, ShardUnavailable if named else redis.ConnectionError)
            assert not named or error.shard == cell.named
        await cell.call(3)
    cell.faults.answer("OOM command not allowed", cell.refusable)
    refused = await cell.error(4)
    in_multi = cell.decides == "EXEC" and not cell.way.in_memory  # the proxy has no other refusal
    error = getattr(refused, "error", refused)  # of a router's pipeline
    assert isinstance(error, redis.ResponseError if in_multi else OutOfMemoryError)
    assert not named or refused.shard == cell.named


async def maybe_executed(cell: Cell) -> None:
    await cell.begin()
    for n, (fault, expected) in enumerate(EXECUTED.items(), 1):
        if fault == "down":
            cell.faults.down()
        elif fault == "answer":
            cell.faults.answer("OOM command not allowed", cell.refusable)
        else:
            getattr(cell.faults, fault)(cell.decides)
        seen = [] if cell.way.in_memory else cell.faults.seen
        before = len(seen)
        error = await cell.error(n, hasty=fault == "hang")
        cell.faults.clear()
        assert getattr(error, "maybe_executed", False) is expected, fault
        # On a busy machine, a hasty call ends before.
        late = seen and cell.decides not in seen[before:]
        if fault == "lose_answer" or (fault == "hang" and not late):
            assert eventually(lambda n=n: n in cell.values()), fault
        else:
            assert n not in cell.values(), fault
    assert len(cell.values()) == len(set(cell.values())), "none is executed twice"


EXECUTED = {
    "down": False,
    "answer": False,
    "lose_command": True,
    "lose_answer": True,
    "hang": True,
}


async def deadline(cell: Cell) -> None:
    await cell.begin()
    if not cell.way.in_memory:
        cell.faults.hang(cell.decides)
        started = time.monotonic()
        with cell.kit.deadline(0.1):
            error = await cell.error(1)
        assert isinstance(error, DeadlineExceeded), repr(error)
        assert time.monotonic() - started < 5
        cell.faults.clear()
    with cell.kit.deadline(0):
        late = await cell.error(2)
    assert isinstance(late, DeadlineExceeded), repr(late)
    assert late.maybe_executed is False
    assert 2 not in cell.values()
    await cell.call(3)


async def events_are_sent(cell: Cell) -> None:
    await cell.begin()
    told: list[Any] = []
    with hearing(told.append):
        await cell.call(1)
        cell.faults.lose_answer(cell.decides)
        await cell.error(2)
    ours = {cell.refusable, "MULTI", "EXEC"}  # others are of background jobs
    sent = [
        each
        for each in told
        if isinstance(each, events.CommandsSent) and ours & set(each.names_of())
    ]
    assert len(sent) == 2 + (cell.way.kinds is READING_KINDS)  # the third by the master
    ends = [e for e in told if isinstance(e, events.CommandsFinished | events.CommandsFailed)]
    failed = [
        [isinstance(end, events.CommandsFailed) for end in ends if end.sent is e] for e in sent
    ]
    assert failed == [[False], [True], [False]][: len(sent)]


async def reads_fall_back(cell: Cell) -> None:
    refusals = [
        "MASTERDOWN Link with MASTER is down",
        "LOADING Redis is loading the dataset in memory",
    ]
    if cell.way.component == "replicated_cluster":
        refusals.append("CLUSTERDOWN The cluster is down")
    for fault in ("down", "lose_command", "lose_answer", *refusals):
        await cell.begin()
        if fault == "down":
            cell.faults.down()
        elif fault in refusals:
            cell.faults.answer(fault, cell.decides)
        else:
            getattr(cell.faults, fault)(cell.decides)
        assert await cell.call(1) == cell.length()
        cell.faults.clear()


async def dead_idle_connection(cell: Cell) -> None:
    await cell.begin()
    for n in (1, 2):
        cell.faults.down()
        cell.faults.up()
        await of(asyncio.sleep(0.01) if cell.face.runner else time.sleep(0.01))  # noqa: ASYNC251
        assert await cell.call(n) == cell.length()


class Own(redis.TimeoutError):
    """What a caller raises."""


async def callers_exception(cell: Cell) -> None:
    await cell.begin()
    before = len(cell.faults.seen)

    def is_sent() -> bool:
        return cell.decides in cell.faults.seen[before:]

    cell.faults.hang(cell.decides)
    if cell.face.runner:
        task = asyncio.ensure_future(cell.call(1))
        assert await asyncio.to_thread(eventually, is_sent)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:

        def interrupt() -> None:  # not earlier: a finalizer would swallow it
            if eventually(is_sent):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

        with alarms_raise(partial(Own, "of my own")), ThreadPoolExecutor(1) as threads:
            threads.submit(interrupt)
            with pytest.raises(Own, match=r"^of my own$"):
                await cell.call(1)
    cell.faults.clear()
    assert await cell.call(2) == cell.length()


PROMISES: dict[str, Callable[[Cell], Awaitable[None]]] = {
    "At most once": at_most_once,
    "Order": order,
    "Right database": right_database,
    "Right caller": right_caller,
    "Error class": error_class,
    "`maybe_executed`": maybe_executed,
    "Deadline": deadline,
    "Events": events_are_sent,
    "Reads fall back": reads_fall_back,
    "A dead idle connection costs no call": dead_idle_connection,
    "A caller's exception": callers_exception,
}
# Promise, way, kind and face of cells that cannot be (patterns), and why.
NO_MEANING = {
    ("Reads fall back", "(?!replica.*).*", ".*", ".*"): "there is no master to fall back to",
    (".*", "replica.*", "(?!command|pipeline).*", ".*"): "goes to the master",
    ("At most once|Order|`maybe_executed`", "replica.*", ".*", ".*"): "reads may be repeated",
    ("Right database", ".*cluster", ".*", ".*"): "a cluster without numbered databases has one",
    ("`maybe_executed`", ".*", "pub/sub", ".*"): "a subscription executes nothing",
    ("Events", "raw pool.*", ".*", ".*"): "only its user knows what an exchange is",
    ("Events", ".*", "pub/sub", ".*"): "messages are no replies",
    ("A caller's exception", ".* in memory", ".*", ".*"): "no call waits for a server in memory",
}
CELLS = [*product(PROMISES, WAYS, KINDS, FACES)]


def matching(rows: dict[tuple[str, ...], str], cell: tuple[str, ...]) -> list[str]:
    return [why for row, why in rows.items() if all(map(re.fullmatch, row, cell))]


@pytest.mark.long(420)
@pytest.mark.parametrize(
    ("promise", "way", "kind", "face"), [cell for cell in CELLS if not matching(NO_MEANING, cell)]
)
@pytest.mark.timeout(60, method="thread")  # SIGALRM is the test's own
def test_a_promise_is_kept(stage: Stage, promise: str, way: str, kind: str, face: str) -> None:
    cell = stage.cell(way, kind, face)
    try:
        cell.run(PROMISES[promise](cell))
    finally:
        cell.faults.clear()


def test_each_row_of_reasons_has_cells_of_its_own() -> None:
    def has_cells(row: tuple[str, ...]) -> bool:
        others: dict[tuple[str, ...], str] = {each: "" for each in NO_MEANING if each != row}
        return any(matching({row: ""}, c) and not matching(others, c) for c in CELLS)

    assert [row for row in NO_MEANING if not has_cells(row)] == []


def test_each_promise_of_the_page_has_its_row() -> None:
    page = (Path(__file__).parents[2] / "docs/guarantees.md").read_text("utf-8")
    section = page.partition("## Promises of a connection")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| **")]
    promises = {row.split("**")[1].rstrip("."): row.split(" | ")[-1] for row in rows}
    own = {name for name, tests in promises.items() if "`network/test_promises.py`" in tests}
    assert own == {*PROMISES}
    assert promises.keys() - PROMISES.keys() == ELSEWHERE


# Promises that do not depend on kinds of calls.
ELSEWHERE = {
    *("What belongs to an entry stays with it", "Small calls do not wait for large ones"),
    *("A cached value", "A near copy", "While servers change"),
}
