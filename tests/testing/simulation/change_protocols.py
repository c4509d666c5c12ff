"""What is simulated of changes: clients that are retired, readers that stop, map files, forks,
event loops that end, queues that move."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shared import Roles

from shardkit import ShardKit, ShardMap
from shardkit.config.entry import read_regular
from shardkit.config.store import push
from shardkit.network.topology import MapFile, Topology, sources
from shardkit.operations.kept import kept_with
from shardkit.queues import AsyncWorker, Worker, WorkerSummary
from shardkit.testing import Client, Protocol

CONFIG = "config:6379"


@cache
def versioned_map(host: str, version: int) -> ShardMap:
    """A map whose shards are all on one host; the clients' name says the version."""
    shards = ", ".join(f"{{host: {host}, port: {n}, decode_responses: true}}" for n in (1, 2))
    entry = f"entry: {{host: {host}, client_name: v{version}}}"
    return ShardMap.parse(
        f"components: {{data: {{{entry}, shards: [{shards}]}}, late: {{{entry}}}}}"
    )


def version_of(component: Any) -> int:
    """The version of the map that an entry is from."""
    return int(component.entry.fields["client_name"].removeprefix("v"))


class Changing(Protocol):
    """Clients of a config server whose entries all lead to one host, and now and then to another.

    Attributes:
        pushed: when the versions were pushed.
    """

    config_server = True
    faults = ("entry",)
    shard_map = versioned_map("data", 0)

    def setup(self, kit: ShardKit) -> None:
        self.pushed = [float("-inf")]
        self.host = "data"

    def change(self, kit: ShardKit, host: str) -> None:
        source: Any = kit.topology.source
        push(source.client(), versioned_map(host, len(self.pushed)), force=True)
        self.host = host
        self.pushed.append(time.monotonic())

    def changes(self) -> Sequence[Callable[[ShardKit], object]]:
        def to_another(kit: ShardKit) -> None:
            self.change(kit, {"data": "moved", "moved": "data"}[self.host])

        return [to_another]

    def allows(self, error: Exception) -> bool:
        return False  # a change is no failure of anybody's call

    def check_age(self, component: Any, started: float, most: float) -> None:
        """What a call returned that began then must not be older than so many seconds."""
        due = max(n for n, at in enumerate(self.pushed) if at <= started - most)
        found = version_of(component)
        assert found >= due, f"version {found} although {due} was pushed {most} s before"


class Retiring(Roles, Changing):
    """Entries change under structures, multiplexed calls, pipelines and held clients of both faces.

    No call fails and no write is lost or doubled. When a second or two have passed, though nobody
    calls, no connection leads to an address that no entry names, and no retired client is kept.
    """

    def setup(self, kit: ShardKit) -> None:
        super().setup(kit)
        self.sent: Counter[str] = Counter()

    def blocking(self, client: Client) -> None:
        kit, held = client.kit, client.kit.client("data", 0)

        def use() -> None:
            for n in range(client.choose((1, 2))):
                kit.hash("h", component="data", parts=4).hset("f", n)
                self.sent["n"] += 2
                held.incr("n")
                kit.key_sharded("data").pipeline().incr("n").get("m").execute()
                time.sleep(client.choose((0.0, 0.7)))

        def look() -> None:  # whether entries have changed, in the middle of others' calls
            for _ in range(2):
                kit.topology.expire()
                kit.component("data")
                time.sleep(client.choose((0.0003, 0.001, 0.7)))

        threads = [threading.Thread(target=target) for target in (use, use, look)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while (left := self.pushed[-1] + 4 - client.time) > 0:
            time.sleep(left)
        self.check_connections(client)

    async def awaiting(self, client: Client) -> None:
        kit = client.kit
        held = await client.kit.client("data", 0)

        async def use() -> None:
            for n in range(client.choose((1, 2))):
                await kit.hash("h", component="data", parts=4).hset("f", n)
                self.sent["n"] += 2
                await held.incr("n")
                await kit.key_sharded("data").pipeline().incr("n").get("m").execute()
                await asyncio.sleep(client.choose((0.0, 0.7)))

        async def look() -> None:
            for _ in range(2):
                kit.topology.expire()
                await kit.component("data")
                await asyncio.sleep(client.choose((0.0003, 0.001, 0.7)))

        await asyncio.gather(use(), use(), look())
        while (left := self.pushed[-1] + 4 - client.time) > 0:  # noqa: ASYNC110 - no event
            await asyncio.sleep(left)
        self.check_connections(client)
        held = None
        gc.collect()
        of_loop = kept_with(asyncio.get_running_loop(), kit.clients)["clients"]
        assert not [pool for pool in of_loop.built if pool.draining], "retired clients are kept"

    def check_connections(self, client: Client) -> None:
        there = {f"{self.host}:6379", f"{self.host}:1", f"{self.host}:2", CONFIG}
        left = set(client.connections) - there
        assert not left, f"connections to {left} although entries say {self.host}"

    def at_end(self, kit: ShardKit) -> None:
        counted = 0
        for host in ("data", "moved"):
            self.change(kit, host)
            kit.topology.expire()
            conns: list[Any] = [kit.client("data", n) for n in (0, 1)]
            counted += sum(int(conn.get("n") or 0) for conn in conns)
        assert counted == self.sent["n"]


class StalledReaders(Changing):
    """The event loop in which a task reads an entry stops, or is blocked; threads go on.

    They get the component within the time that a reader is waited for, and an entry that is no
    older than that; what the task has read, when its loop goes on, takes nobody back.
    """

    clients = 1
    faults = ("stall", "stall", "entry")
    most_faults = 4
    patience = 10.0  # for another reader
    slack = 2.5  # an entry's time to live, and a second to read it

    async def client(self, client: Client) -> None:
        topology = client.kit.topology
        names = ("late", "data")

        def read() -> None:
            newest = Counter[str]()
            for n in range(12):
                name = names[n % 2]
                started = client.time
                found = topology.component(name)
                assert client.time - started < self.patience + 1, "a reader is waited for for ever"
                assert version_of(found) >= newest[name], "the entry went back"
                newest[name] = version_of(found)
                self.check_age(found, started, self.patience + self.slack)
                time.sleep(client.choose((0.7, 0.1, 5.0)))

        threads = asyncio.get_running_loop().run_in_executor(None, read)
        for n in range(8):
            topology.expire()
            await topology.acomponent(names[n % 2])
            await asyncio.sleep(client.choose((0.3, 0.0, 2.0)))
        await threads


class _File:
    """A file in memory whose reading and writing takes time; its clock has ticks."""

    tick = 0.01

    def __init__(self, data: bytes, choose: Callable[[Sequence[float]], float]) -> None:
        self.choose = choose
        self.inode = 0
        self.put(data)

    def put(self, data: bytes | None, *, replaced: bool = False) -> None:
        self.data = data
        self.inode += replaced
        self.modified = int(time.time() / self.tick) * self.tick

    def take_time(self) -> None:
        time.sleep(self.choose((0.0002, 0.02, 0.2)))


class _MapPath(type(Path())):  # type: ignore[misc]
    """The path of such a file."""

    file: _File

    def stat(self, **_: Any) -> Any:
        self.file.take_time()
        found = self.file
        if found.data is None:
            raise FileNotFoundError(2, "No such file or directory")
        return SimpleNamespace(
            st_mtime_ns=int(found.modified * 1e9), st_size=len(found.data), st_ino=found.inode
        )

    def read_bytes(self) -> bytes:
        self.file.take_time()
        if self.file.data is None:
            raise FileNotFoundError(2, "No such file or directory")
        return self.file.data

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode()


def _read(path: Any) -> bytes:
    return path.read_bytes() if isinstance(path, _MapPath) else read_regular(path)


sources.read_regular = _read  # such a file has no descriptor


class MapFiles(Roles):
    """Threads read a map's file while it is rewritten: at once, in halves, gone for a moment.

    A component that the last good map has is always there, also one that was never read; no reader
    goes back; after the last change, each sees it within three seconds.
    """

    roles = ("reader", "reader", "writer")
    faults = ()
    names = tuple(f"c{n}" for n in range(8))

    def text(self, version: int) -> bytes:
        entry = f"{{entry: {{port: {1000 + version}}}}}"
        return f"components: {{{', '.join(f'{name}: {entry}' for name in self.names)}}}".encode()

    def setup(self, kit: ShardKit) -> None:
        self.file = _File(self.text(0), min)
        path = _MapPath("map.yaml")
        path.file = self.file
        self.topology = Topology(MapFile(path), clock=time.monotonic)
        self.version, self.ended = 0, float("inf")

    def writer(self, client: Client) -> None:
        file = self.file
        for _ in range(4):
            time.sleep(client.choose((0.9, 0.0, 0.1, 3.0)) + client.choose((0.0, 0.01, 0.03)))
            how = client.choose(("at once", "in halves", "gone", "the same in halves"))
            if how != "the same in halves":
                self.version += 1
            text = self.text(self.version)
            if "halves" in how:
                file.put(text[: len(text) // 2])
                time.sleep(client.choose((0.02, 0.2, 1.5)))
            elif how == "gone":
                file.put(None)
                time.sleep(client.choose((0.02, 0.2, 1.5)))
            file.put(text, replaced=how == "gone")
            client.log(f"version {self.version} is written {how}")
        self.ended = client.time

    def reader(self, client: Client) -> None:
        self.file.choose = client.choose
        self.topology.watch()  # as the kit's clients have it do
        newest, n, last = 0, client.number * 3, False
        while not last:
            last = client.time > self.ended + 3
            other = n % 3 == 0 and not last
            name = self.names[n % len(self.names)] if other else self.names[0]
            n += 1
            entry = self.topology.component(name).entry
            assert entry is not None
            version = entry.fields["port"] - 1000
            if name == self.names[0]:
                assert version >= newest, f"version {version} after {newest}"
                newest = version
            time.sleep(client.choose((0.35, 0.0005, 1.1)))
        assert newest == self.version, f"{newest} is read, {self.version} was written last"


class Forks(Protocol):
    """A process forks while its threads are at anything, and goes on as the child.

    Whatever locks they held are free there, whatever they were reading is read, and no connection
    of the parent's is used.
    """

    clients = 1
    config_server = True
    shard_map = versioned_map("data", 0)
    faults = ("late",)

    def client(self, client: Client) -> None:
        kit, held = client.kit, client.kit.client("data", 0)
        hashed = kit.hash("h", component="data", parts=4)

        def use() -> None:
            held.incr("n")
            hashed.hset(mapping={"a": 1, "b": 2, "c": 3})
            kit.directory.set("flags", "checkout", {"n": 1})
            assert kit.directory.get("flags", "checkout", max_age=0) == {"n": 1}

        source: Any = kit.topology.source

        def change() -> None:  # whoever watches entries reads them, and whoever asks for them
            push(source.client(), versioned_map("data", 0), force=True)
            kit.topology.expire()
            kit.component("data")

        def go_on(call: Callable[[], object]) -> None:
            for _ in range(4):
                try:
                    call()
                except Exception as error:
                    if not self.allows(error):
                        raise
                time.sleep(client.choose((0.0003, 0.3)))

        calls = (use, use, change)
        threads = [threading.Thread(target=go_on, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(client.choose((0.0, 0.3)) + 0.0004 * client.choose(range(12)))
        client.fork()
        for attempt in range(6):
            try:
                push(source.client(), versioned_map("data", 1), force=True)
                kit.topology.expire()
                use()
                if (found := version_of(kit.component("data"))) == 1:
                    break
                time.sleep(1)  # somebody else of the child's was reading
            except Exception as error:
                if not self.allows(error) or attempt == 5:
                    raise
        assert found == 1, "the child does not see what was pushed"


class Loops(Changing):
    """An event loop for each request; some are closed without shutting their generators down.

    Each request sees what the entries said a moment before; and what a loop leaves is closed when
    the next one comes.
    """

    clients = 1

    def client(self, client: Client) -> None:
        kit = client.awaiting_kit()

        async def request() -> None:
            started = client.time
            component = await kit.component("data")
            self.check_age(component, started, 2.5)
            await kit.hash("h", component="data", parts=4).hset("f", 1)
            await (await kit.client("data", 1)).incr("n")

        for _ in range(3):
            shut_down = client.choose((True, False))
            client.run_loop(request(), shut_down=shut_down)
            there = [each for each in client.connections if each != CONFIG]
            assert len(there) <= (0 if shut_down else 3), f"left open: {there}"
            time.sleep(client.choose((0.2, 0.6)))
        client.run_loop(kit.aclose())
        assert client.connections == [], client.connections


class MovingQueues(Roles, Changing):
    """A queue moves to another server and back while workers of both faces do its tasks.

    Nobody is told that a task outlived its lease, which none of them does; each task is done, or is
    still there.
    """

    ids = ("a", "b")

    def setup(self, kit: ShardKit) -> None:
        super().setup(kit)
        self.executed: set[str] = set()
        queues = self.queues(kit)
        for id_ in self.ids:
            queues.enqueue("q", "work", [id_], id=id_)

    def queues(self, kit: Any) -> Any:
        return kit.queues(component="data")

    def check(self, summary: WorkerSummary) -> None:
        assert not summary.overtaken, "a lease is said to have ended"

    def blocking(self, client: Client) -> None:
        def work(id_: str) -> None:
            time.sleep(client.choose((0.0, 1.5)))
            self.executed.add(id_)

        worker = Worker(self.queues(client.kit), "q", {"work": work}, concurrency=2, lease=600)
        self.check(worker.run(burst=True, signals=False))

    async def awaiting(self, client: Client) -> None:
        async def work(id_: str) -> None:
            await asyncio.sleep(client.choose((0.0, 1.5)))
            self.executed.add(id_)

        worker = AsyncWorker(self.queues(client.kit), "q", {"work": work}, lease=600)
        self.check(await worker.run(burst=True, signals=False))

    def at_end(self, kit: ShardKit) -> None:
        left = set()
        for host in ("data", "moved"):
            self.change(kit, host)
            kit.topology.expire()
            for n in (0, 1):
                conn: Any = kit.client("data", n)
                left |= {str(each) for each in conn.hkeys("queues:{q}:tasks")}
        assert set(self.ids) <= self.executed | left, "a task is lost"


CHANGES: dict[str, type[Protocol]] = {
    "retired clients": Retiring,
    "stalled readers": StalledReaders,
    "map files": MapFiles,
    "forks": Forks,
    "event loops": Loops,
    "moving queues": MovingQueues,
}
