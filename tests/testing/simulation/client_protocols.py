"""What is simulated of clients: workers, deadlines and breakers, entries that move, closing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from shared import BothFaces, Counted, Roles, is_outage, map_of, push, rest, run_blocking, settled

from shardkit import ShardKit
from shardkit.errors import (
    BreakerOpenError,
    ClosedError,
    ConfigError,
    ShardErrors,
)
from shardkit.queues import AsyncWorker, Worker
from shardkit.testing import CLIENTS, NETWORK, Client, Protocol


class Workers(Roles):
    """Workers of both faces, with threads, leases and retries: no task is lost.

    Each is executed at least once, or still there; one is not executed again once its worker was
    told that it is done.
    """

    faults = (*NETWORK, *CLIENTS, "cancel")
    ids = ("a", "b")
    most_steps = 3000

    def setup(self, kit: ShardKit) -> None:
        self.executed: Counter[str] = Counter()
        self.done: set[str] = set()
        queues = self.queues(kit)
        for id_ in self.ids:
            queues.enqueue("q", "work", [id_], id=id_)

    def queues(self, kit: Any) -> Any:
        return kit.queues(component="data", attempts=50, retry_delay=0.1)

    def note(self, id_: str) -> None:
        assert id_ not in self.done, f"{id_} is executed again"
        self.executed[id_] += 1

    def blocking(self, client: Client) -> None:
        def work(id_: str) -> None:
            self.note(id_)
            time.sleep(client.choose((0.0, 1.2)))
            if client.choose((False, True)):
                raise ValueError("it fails now and then")

        worker = Worker(self.queues(client.kit), "q", {"work": work}, concurrency=2, lease=1)
        worker.run(burst=True)

    async def awaiting(self, client: Client) -> None:
        async def work(id_: str) -> None:
            self.note(id_)
            await asyncio.sleep(client.choose((0.0, 1.2)))

        worker = AsyncWorker(self.queues(client.kit), "q", {"work": work}, concurrency=2, lease=1)
        await worker.run(burst=True, signals=False)

    def waiting(self, kit: ShardKit) -> set[str]:
        number = kit.component("data").shard_of("queues:{q}").number
        conn: Any = kit.client("data", number)
        return {each.decode() for each in conn.hkeys("queues:{q}:tasks")}

    def invariant(self, kit: ShardKit) -> None:
        self.done = set(self.ids) - self.waiting(kit)
        assert self.done <= set(self.executed), f"{self.done - set(self.executed)} are lost"

    def at_end(self, kit: ShardKit) -> None:
        time.sleep(20)  # what the dead had leased is free by then
        left, queues = self.waiting(kit), self.queues(kit)
        taken = set()
        while (task := queues.take("q", lease=60, timeout=0)) is not None:
            taken.add(task.id)
        assert taken == left


class Deadlines(BothFaces):
    """Calls to several servers in a block with a deadline, whatever the servers do.

    Each ends in time; one that a breaker refuses, at once. When the faults are over, servers are
    asked again.
    """

    shards = 3
    faults = (*NETWORK, "crash", "cut_off")
    appendfsync = "always"
    seconds = 0.5

    def hash(self, kit: Any) -> Any:
        return kit.hash("h", component="data", parts=4)

    def setup(self, kit: ShardKit) -> None:
        self.hash(kit).hset(mapping=dict.fromkeys("abcd", 1))

    def ended(self, client: Client, started: float, error: Exception | None) -> None:
        took = client.time - started
        assert took < self.seconds + 0.1, f"took {took} s"
        if error is None:
            return
        assert is_outage(error), error
        causes = error.exceptions if isinstance(error, ShardErrors) else [error]
        if all(isinstance(getattr(each, "error", each), BreakerOpenError) for each in causes):
            assert took < 0.1, f"took {took} s although the breaker was open"

    async def use(self, client: Client) -> None:
        for n in range(9):
            started, error = client.time, None
            try:
                with client.kit.deadline(self.seconds):
                    await settled(self.read(client))
            except Exception as found:
                error = found
            self.ended(client, started, error)
            if n >= 4:
                if error is None:
                    return
                await rest(client, 70)
        raise AssertionError("servers are not asked again")

    def read(self, client: Client) -> Any:
        if client.number:
            return self.hash(client.kit).hmget(["a", "b", "c", "d"])
        pipe = client.kit.key_sharded("data").pipeline()
        for key in "abcd":
            pipe.get(key)
        return pipe.execute()


class Together(BothFaces):
    """Operations of several structures in lock step: each is done once, those that fail alone."""

    shards = 3
    faults = (*NETWORK, "kill", "freeze")
    names = ("l0", "l1", "l2", "l3")

    def setup(self, kit: ShardKit) -> None:
        self.pushed: Counter[tuple[str, str]] = Counter()

    def lists(self, kit: Any) -> list[Any]:
        return [kit.list(name, component="data", part_size=3) for name in self.names]

    async def use(self, client: Client) -> None:
        for n in range(2):
            value = f"{client.number}.{n}"
            pushes = [found.deferred.rpush(value) for found in self.lists(client.kit)]
            await settled(client.kit.together(*pushes))
            self.pushed.update((name, value) for name in self.names)

    def at_end(self, kit: ShardKit) -> None:
        stored: Counter[tuple[str, str]] = Counter()
        for name, found in zip(self.names, self.lists(kit), strict=True):
            stored.update((name, value) for value in found.lrange(0, -1))
        assert all(count == 1 for count in stored.values()), "something was done twice"
        assert set(self.pushed) <= set(stored), set(self.pushed) - set(stored)


class Moving(Counted, BothFaces):
    """Entries move to other servers and back while clients count.

    No count is lost or doubled, and no connection stays where no entry leads any more.
    """

    config_server = True
    faults = (*NETWORK, *CLIENTS, "entry", "entry")
    hosts: ClassVar[tuple[str, ...]] = ("data", "moved")

    def changes(self) -> Sequence[Callable[[ShardKit], object]]:
        return [self.move, self.move_back]

    def move(self, kit: ShardKit, host: str = "moved") -> None:
        source: Any = kit.topology.source
        push(source.client(), map_of(host), force=True)

    def move_back(self, kit: ShardKit) -> None:
        self.move(kit, "data")

    async def use(self, client: Client) -> None:
        router = client.kit.key_sharded("data")
        for n in range(5):
            key = f"k{n % 2}"
            self.sent[key] += 1
            try:
                conn = await settled(router[key])
                await settled(conn.incr(key))
                self.answered[key] += 1
            except Exception as error:
                if not self.allows(error):
                    raise
            await rest(client, client.choose((0.0, 1.2)))
        before = await settled(client.kit.component("data"))
        await rest(client, 4)
        self.check_connections(client, before, await settled(client.kit.component("data")))

    def check_connections(self, client: Client, before: Any, after: Any) -> None:
        if before.epoch == after.epoch:  # nothing has changed for four seconds
            there = {f"{entry.fields['host']}:{entry.fields['port']}" for entry in after.shards}
            left = set(client.connections) - there - {"config:6379", "home:6379"}
            assert not left, f"connections to {left} although entries say {there}"

    def at_end(self, kit: ShardKit) -> None:
        counted: Counter[str] = Counter()
        for host in self.hosts:
            self.move(kit, host)
            kit.topology.expire()
            router = kit.key_sharded("data")
            for key in ("k0", "k1"):
                counted[key] += int(router[key].get(key) or 0)
        self.check_counts(counted)

    def allows(self, error: Exception) -> bool:
        return isinstance(error, ConfigError) or super().allows(error)


class Closing(Roles):
    """A kit is closed while its threads and tasks use it.

    They get their answers or ClosedError, at once; afterwards no connection is left, and nothing
    works, whatever was looked up before or is known in the process.
    """

    config_server = True
    faults = ("late", "never")
    most_faults = 1

    def setup(self, kit: ShardKit) -> None:
        kit.directory.set("flags", "checkout", {"new": True})

    def prepared(self, kit: Any, client: Any) -> list[Callable[[], Any]]:
        """Everything that would use a server, looked up while the kit is open."""
        hashed, directory = kit.hash("h", component="data", parts=4), kit.directory
        router = kit.key_sharded("data")
        pipe, listener = client.pipeline().get("k"), client.pubsub()
        return [
            lambda: hashed.hget("a"),
            lambda: hashed.hset(mapping={"a": 1, "b": 1}),
            lambda: directory.get("flags", "checkout", max_age=60),
            lambda: directory.set("flags", "other", {}),
            lambda: directory.names("flags"),
            lambda: kit.component("data"),
            lambda: kit.client("data", 0),
            lambda: kit.client("data", private=True),
            lambda: client.incr("k"),
            lambda: client.blpop("nothing", 1),
            lambda: router.mget(["a", "b"]),
            lambda: router.pipeline().set("a", 1).set("b", 1).execute(),
            lambda: pipe.execute(),
            lambda: listener.subscribe("news"),
            lambda: kit.hash("new", component="data", parts=4).hset("f", "v"),
        ]

    async def use(self, calls: Iterator[Callable[[], Any]]) -> None:
        """Make calls until one says that the kit is closed."""
        for call in calls:
            try:
                await settled(call())
            except ClosedError:
                return
            except Exception as error:
                self.check(error)

    def check(self, error: Exception) -> None:
        for each in error.exceptions if isinstance(error, ExceptionGroup) else [error]:
            cause = getattr(each, "error", None) or each
            assert isinstance(each, ClosedError) or is_outage(cause), repr(error)

    async def check_closed(self, client: Client, uses: list[Callable[[], Any]]) -> None:
        assert client.connections == [], client.connections
        for number, call in enumerate(uses):
            try:
                await settled(call())
            except ClosedError:
                continue
            raise AssertionError(f"a closed kit does call {number}")
        await rest(client, 0.01)
        assert client.connections == [], client.connections

    def blocking(self, client: Client) -> None:
        kit = client.kit
        uses = self.prepared(kit, kit.client("data", 0))
        kit.directory.get("flags", "checkout")
        calls = iter([client.choose(uses[:12]) for _ in range(8)])
        threads = [threading.Thread(target=lambda: run_blocking(self.use(calls))) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(client.choose((0.001, 0.0, 0.002, 0.004)))
        kit.close()
        closed = client.time
        for thread in threads:
            thread.join()
        assert client.time - closed < 0.5, "who waited was not told"
        run_blocking(self.check_closed(client, uses))

    async def awaiting(self, client: Client) -> None:
        kit = client.kit
        uses = self.prepared(kit, await kit.client("data", 0))
        await kit.directory.get("flags", "checkout")
        calls = iter([client.choose(uses[:12]) for _ in range(8)])
        tasks = [asyncio.ensure_future(self.use(calls)) for _ in range(3)]
        await asyncio.sleep(client.choose((0.001, 0.0, 0.002, 0.004)))
        await kit.aclose()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.01)
        await self.check_closed(client, uses)


class Streaming(Roles):
    """A set is read as a stream while its parts split.

    What was there when a stream began is given out once, and nothing that nobody has added.
    """

    roles = ("writer", "blocking", "awaiting")
    clients = 3
    faults = (*NETWORK, *CLIENTS, "cancel")

    def set(self, kit: Any) -> Any:
        return kit.set("s", component="data", part_size=4, parts=1, members=int)

    def setup(self, kit: ShardKit) -> None:
        self.there = set(range(6))  # for certain
        self.tried = set(self.there)
        self.set(kit).sadd(*self.there)

    async def writer(self, client: Client) -> None:
        found = self.set(client.kit)
        for n in range(10, 28, 6):
            some = range(n, n + 6)
            self.tried.update(some)
            await found.sadd(*some)
            self.there.update(some)

    def check(self, before: set[int], seen: Counter[int]) -> None:
        assert set(seen) <= self.tried
        assert before <= set(seen), f"{before - set(seen)} are missing"
        assert all(count == 1 for count in seen.values()), seen

    def blocking(self, client: Client) -> None:
        before = set(self.there)
        self.check(before, Counter(self.set(client.kit).sscan_iter(count=1)))

    async def awaiting(self, client: Client) -> None:
        found = self.set(client.kit)
        for _ in range(client.choose((1, 2))):
            before = set(self.there)
            self.check(before, Counter([member async for member in found.sscan_iter(count=1)]))


class Decorated(Counted, Roles):
    """Decorated functions and generators of both faces get the connection of their key's shard."""

    faults = (*NETWORK, *CLIENTS, "cancel")
    keys = ("a", "b", "d")

    def blocking(self, client: Client) -> None:
        @client.kit.sharded_connection("data")
        def push(conn: Any, key: str) -> None:
            conn.rpush(key, client.number)

        @client.kit.sharded_connection("data", key="name")
        def every(conn: Any, start: int, name: str) -> Any:
            for at in range(start, conn.llen(name)):
                yield conn.lindex(name, at)

        for key in self.keys:
            self.sent[key] += 1
            push(key)
            self.answered[key] += 1
            least = self.answered[key]
            assert len(list(every(0, key))) >= least

    async def awaiting(self, client: Client) -> None:
        @client.kit.sharded_connection("data")
        async def push(conn: Any, key: str) -> None:
            await conn.rpush(key, client.number)

        @client.kit.sharded_connection("data", key="name")
        async def every(conn: Any, start: int, name: str) -> Any:
            for at in range(start, await conn.llen(name)):
                yield await conn.lindex(name, at)

        for key in self.keys:
            self.sent[key] += 1
            await push(key)
            self.answered[key] += 1
            least = self.answered[key]
            assert len([value async for value in every(0, key)]) >= least

    def at_end(self, kit: ShardKit) -> None:
        router = kit.key_sharded("data")
        self.check_counts({key: router[key].llen(key) for key in self.sent})


CLIENT: dict[str, type[Protocol]] = {
    "streams": Streaming,
    "decorated functions": Decorated,
    "workers": Workers,
    "deadlines": Deadlines,
    "together": Together,
    "moving entries": Moving,
    "closing": Closing,
}
