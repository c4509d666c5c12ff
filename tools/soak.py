"""Soak test: everything is used while entries change and kits close; nothing may be left over.

    python tools/soak.py [SECONDS]          or: python tools/soak.py --changes 10000

Threads, tasks, an event loop for each request, pub/sub, queue workers, private clients and forked
children use kits of both faces, over plain servers, TLS, a Unix socket, a cluster and a Sentinel,
all on 127.0.0.1. Meanwhile a YAML map is rewritten some twenty times a second: address, database,
protocol, decoding, clusters' and Sentinels' entries, broken, gone and right again; a config server
gets pushes, is killed and comes back; and kits are opened and closed in the middle of their calls.
TLS is left out where no server on PATH speaks it.

A first round warms up. After the second, descriptors, threads, connections by port, what the
garbage collector finds of our classes, Python's allocated blocks and memory must be what they were;
no task of a queue may be lost or done twice; no task of a loop may be left; and neither Python nor
asyncio may have warned of anything.

Memory is what is resident after the C library has returned what is free: of ten threads each keeps
an arena of its own, and in these lie 40 to 100 MB that nobody uses, which is no leak.

With ``--changes`` one thread and one event loop use their kits after each of so many changes, which
is many times as fast, and the first tenth warms up.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import linecache
import logging
import os
import random
import socket
import stat
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.exceptions import ConnectionError as ConnectionLost
from secure_server import SecureServer, secure_server

import shardkit
from shardkit import AsyncShardKit, ClosedError, ShardKit, ShardMap
from shardkit.config import store
from shardkit.local import LocalServer, LocalServers
from shardkit.queues import AsyncWorker, Worker

MAP = """
components:
  here: {shards: [{port: 7001}, {port: 7001, db: 1}]}
  there: {shards: [{port: 7002}, {port: 7002, db: 1}]}
  cluster: {entry: {cluster: true, port: 7301}}
  watched: {entry: {sentinel: {service: main, sentinels: [[s1, 26379]]}}}
  work: {shards: [{port: 7002, db: 2}, {port: 7001, db: 2}]}
"""
MEMORY = 16 * 1024**2  # what may come on top, in bytes: allocators keep some
OBJECTS = 100  # connections, pools, kits, tasks that may come on top
BLOCKS = 10_000  # of Python's allocator that may come on top: caches of 256 entries and the like
WARM_UP = 20.0  # seconds

problems: Counter[str] = Counter()
done: Counter[str] = Counter()


def note(what: str, error: BaseException) -> None:
    """Remember an error that should not have been."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    where = " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    problems[f"{what}: {type(error).__name__}: {str(error)[:300]} {where}"] += 1


class Entries:
    """The map's file, which changes."""

    def __init__(self, servers: LocalServers, secure: SecureServer | None, path: Path) -> None:
        self.path = path
        self._plan = {
            name: [entry.fields for _, entry in component.entries()]
            for name, component in servers.shard_map.components.items()
        }
        if secure is not None:
            for name, fields in (("tls", secure.tls), ("unix", secure.unix)):
                self._plan[name] = [fields, fields | {"db": 1}]
        self._places = sorted(self._plan.keys() - {"cluster", "watched", "work"})

    def change(self) -> None:
        """Write another map, or something broken, or right again."""
        kind = random.random()
        if kind < 0.04:
            self.path.write_text("components: {moving: {sha")
            return
        if kind < 0.08:
            self.path.unlink(missing_ok=True)
            return
        self.write()

    def write(self, *, tls: bool = True) -> None:
        """Write another map that is right, without TLS if need be."""
        other = self.path.with_suffix(".new")
        other.write_text(json.dumps({"components": self.components(tls=tls)}))
        other.replace(self.path)

    def components(self, *, tls: bool = True) -> dict[str, Any]:
        """Return components of some kind."""
        text: dict[str, Any] = random.choice([{}, {"protocol": 3}, {"decode_responses": True}])
        patience = {"socket_timeout": 30, "socket_connect_timeout": 30}
        text |= patience  # a busy machine is no failure
        place = random.choice([each for each in self._places if tls or each != "tls"])
        done[f"at {place}"] += 1
        name = patience | {"client_name": f"n{random.randrange(3)}"}
        return {
            "moving": {"shards": [fields | text for fields in self._plan[place]]},
            "cluster": {"entry": self._plan["cluster"][0] | name},
            "watched": {"entry": self._plan["watched"][0] | name},
            "work": {"shards": [fields | name for fields in self._plan["work"]]},
        }


class ConfigServer:
    """A config server that gets pushes, and dies now and then."""

    def __init__(self, entries: Entries, data: Path) -> None:
        self.entries = entries
        self.server = LocalServer(data_dir=data, config={"appendonly": True}).start()
        self.url = f"redis://{self.server.address}"
        self.push()

    def push(self) -> None:
        """Push other entries."""
        pushed = ShardMap.parse(json.dumps({"components": self.entries.components()}))
        with self.server.client() as client:
            store.push(client, pushed, force=True)
        done["pushes"] += 1

    def change(self) -> None:
        """Push, or go away and come back."""
        if random.random() < 0.1:
            self.server.kill()
            time.sleep(random.random() / 2)
            self.server.restart()
            done["config server killed"] += 1
        else:
            self.push()


def use(kit: ShardKit) -> None:
    """Some of everything, once."""
    n = random.randrange(1000)
    kit.hash("h", component="moving").hset(n, "v")
    kit.set("s", component="moving", total=10_000, members=int).sadd_many(range(n, n + 20))
    kit.client("moving", n % 2).incr("n")
    kit.key_sharded("moving").mget([f"k{i}" for i in range(8)])
    for component in ("cluster", "watched"):
        kit.client(component).set(f"k{n}", n)
        kit.hash("h", component=component).hset(n, "v")
    with kit.client("moving", 0).pubsub() as listener:
        listener.subscribe("news")
        listener.get_message(timeout=0.01)
    client = kit.client("moving", n % 2, private=True)
    client.set(f"p{n}", n)
    client.close()
    done["threads"] += 1


async def ause(kit: AsyncShardKit) -> None:
    """The same, awaited."""
    n = random.randrange(1000)
    await kit.hash("h", component="moving").hset(n, "v")
    await kit.set("s", component="moving", total=10_000, members=int).sadd_many(range(n, n + 20))
    await (await kit.client("moving", n % 2)).incr("n")
    for component in ("cluster", "watched"):
        await (await kit.client(component)).set(f"k{n}", n)
        await kit.hash("h", component=component).hset(n, "v")
    async with (await kit.client("moving", n % 2)).pubsub() as listener:
        await listener.subscribe("news")
        await listener.get_message(timeout=0.01)
    client = await kit.client("moving", n % 2, private=True)
    await client.set(f"p{n}", n)
    await client.aclose()
    done["tasks"] += 1


def opened(entries: Entries) -> ShardKit:
    """Open a kit; the map may be broken just now."""
    while True:
        with suppress(shardkit.ConfigError):
            return shardkit.connect(entries.path)
        time.sleep(0.01)


async def aopened(entries: Entries) -> AsyncShardKit:
    """Open a kit, awaited."""
    while True:
        with suppress(shardkit.ConfigError):
            return await shardkit.aconnect(entries.path)
        await asyncio.sleep(0.01)


def go_on(what: str, work: Callable[[], object], until: float) -> None:
    """Do something again and again."""
    while time.monotonic() < until:
        try:
            work()
        except Exception as error:
            note(what, error)


def close_in_the_middle(entries: Entries) -> None:
    """Open a kit, and close it while three threads use it."""
    kit = opened(entries)

    def until_closed() -> None:
        try:
            while True:
                use(kit)
        except ClosedError:
            done["closed"] += 1
        except Exception as error:
            note("closing", error)

    threads = [threading.Thread(target=until_closed) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(random.random() / 5)
    kit.close()
    for thread in threads:
        thread.join()


async def aclose_in_the_middle(entries: Entries) -> None:
    """Open a kit, and close it while tasks use it."""
    kit = await aopened(entries)

    async def until_closed() -> None:
        try:
            while True:
                await ause(kit)
        except ClosedError:
            done["closed tasks"] += 1
        except Exception as error:
            note("closing tasks", error)

    tasks = [asyncio.create_task(until_closed()) for _ in range(5)]
    await asyncio.sleep(random.random() / 5)
    await kit.aclose()
    await asyncio.gather(*tasks)


async def tasks_of_a_loop(entries: Entries, until: float) -> None:
    """One long loop with many tasks, and kits that close."""
    kit = await aopened(entries)

    async def one() -> None:
        while time.monotonic() < until:
            try:
                await ause(kit)
            except Exception as error:
                note("tasks", error)

    async def work() -> None:
        while time.monotonic() < until:
            try:
                await ado_tasks(kit)
            except Exception as error:
                note("awaited queues", error)

    async def listen() -> None:
        client = await kit.client("moving", 0, private=True)
        async with client.pubsub() as listener:
            await listener.subscribe("news")
            while time.monotonic() < until:
                try:
                    if await listener.get_message(timeout=0.2) is not None:
                        done["awaited messages"] += 1
                except (shardkit.ConfigError, ConnectionLost):
                    done["awaiting subscriber moved"] += 1
                except Exception as error:
                    note("awaiting subscriber", error)
        await client.aclose()

    running = [asyncio.create_task(one()) for _ in range(10)]
    running += [asyncio.create_task(work()), asyncio.create_task(listen())]
    while time.monotonic() < until:
        await aclose_in_the_middle(entries)
    await asyncio.gather(*running)
    await kit.aclose()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        problems[f"tasks left: {others}"] += 1


def keep_listening(kit: ShardKit, until: float) -> None:
    """A subscriber that listens for as long as the round takes, wherever its entry points."""
    with kit.client("moving", 0, private=True).pubsub() as listener:
        listener.subscribe("news")
        while time.monotonic() < until:
            try:
                if listener.get_message(timeout=0.2) is not None:
                    done["messages"] += 1
            except (shardkit.ConfigError, ConnectionLost):
                done["subscriber moved"] += 1
            except Exception as error:
                note("subscriber", error)


def publish(kit: ShardKit) -> None:
    """Tell the subscribers something."""
    kit.client("moving", 0).publish("news", "text")
    time.sleep(0.05)


def do_tasks(kit: ShardKit) -> None:
    """Enqueue tasks, and have a worker of short life do them; each is done once."""
    tasks = kit.queues("q", component="work")
    found: Counter[int] = Counter()
    worker = Worker(tasks, ["a", "b"], concurrency=3)

    @worker.task()
    def count(n: int) -> None:
        found[n] += 1

    for n in range(20):
        tasks.enqueue("ab"[n % 2], "count", [n])
    worker.run(burst=True, signals=False)
    if found != Counter(range(20)):
        problems[f"tasks done: {dict(found)}"] += 1
    done["tasks of queues"] += 20


async def ado_tasks(kit: AsyncShardKit) -> None:
    """The same, awaited; in other queues."""
    tasks = kit.queues("aq", component="work")
    found: Counter[int] = Counter()
    worker = AsyncWorker(tasks, ["a", "b"], concurrency=3)

    @worker.task()
    async def count(n: int) -> None:
        found[n] += 1

    for n in range(20):
        await tasks.enqueue("ab"[n % 2], "count", [n])
    await worker.run(burst=True, signals=False)
    if found != Counter(range(20)):
        problems[f"tasks done, awaiting: {dict(found)}"] += 1
    done["awaited tasks of queues"] += 20


def fork(kit: ShardKit, entries: Entries) -> None:
    """Use a kit in a forked child, without TLS.

    OpenSSL 3 has locks of its own, which another thread may hold while this one forks; the child
    then waits for ever as soon as it makes a TLS context.
    """
    entries.write(tls=False)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kit.topology.expire()
            use(kit)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        problems["a forked child failed"] += 1
    done["forks"] += 1


def one_round(entries: Entries, config: ConfigServer, seconds: float) -> None:
    """Use everything for so many seconds, and close it."""
    entries.write()
    until = time.monotonic() + seconds
    kit = opened(entries)
    per_request = asyncio.run(aopened(entries))
    configured = shardkit.connect(config.url)
    use(configured)

    def request() -> None:
        if random.random() < 0.2:  # as some frameworks do: no generators are shut down
            loop = asyncio.new_event_loop()
            loop.run_until_complete(ause(per_request))
            loop.close()
        else:
            asyncio.run(ause(per_request))
        done["loops"] += 1

    works: list[Callable[[], object]] = [
        lambda: go_on("threads", lambda: use(kit), until),
        lambda: go_on("threads", lambda: use(kit), until),
        lambda: go_on("loops", request, until),
        lambda: go_on("closing", lambda: close_in_the_middle(entries), until),
        lambda: asyncio.run(tasks_of_a_loop(entries, until)),
        lambda: go_on("configured", lambda: use(configured), until),
        lambda: go_on("config server", lambda: (config.change(), time.sleep(0.3)), until),
        lambda: go_on("queues", lambda: do_tasks(kit), until),
        lambda: go_on("publishing", lambda: publish(kit), until),
        lambda: keep_listening(kit, until),
    ]
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    last = time.monotonic()
    while time.monotonic() < until:
        time.sleep(0.03)
        entries.change()
        done["changes"] += 1
        if time.monotonic() > last + 2:
            last = time.monotonic()
            fork(kit, entries)
    for thread in threads:
        thread.join()
    kit.close()
    configured.close()
    asyncio.run(per_request.aclose())


def many_changes(entries: Entries, count: int) -> None:
    """Change the entries so often, and use each by both faces."""
    entries.write()
    kit = opened(entries)
    with asyncio.Runner() as runner:
        akit = runner.run(aopened(entries))

        async def some() -> None:
            await akit.hash("h", component="moving").hset(1, "v")
            await (await akit.client("moving", 0)).incr("n")

        for n in range(count):
            entries.write()
            kit.topology.expire()
            akit.topology.expire()
            try:
                kit.hash("h", component="moving").hset(1, "v")
                kit.client("moving", 0).incr("n")
                runner.run(some())
                if n % 20 == 0:  # clusters and Sentinels too
                    use(kit)
                    runner.run(ause(akit))
            except Exception as error:
                note("changes", error)
            done["changes"] += 1
        runner.run(akit.aclose())
    kit.close()


class Warned(logging.Handler):
    """Counts what asyncio logs: tasks that were destroyed, callbacks that failed."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record."""
        problems[f"asyncio: {record.getMessage()[:300]}"] += 1


def measured() -> dict[str, Any]:
    """What must not grow."""
    deadline = time.monotonic() + 3
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.05)  # the topology's threads end by themselves
    linecache.clearcache()  # of the errors that were noted
    for _ in range(3):
        gc.collect()
    ports: Counter[str] = Counter()
    names = os.listdir("/proc/self/fd")
    for name in names:
        with suppress(OSError):
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    ports[str(sock.getpeername())] += 1
    ours = sum(
        str(type(each).__module__).startswith(
            ("shardkit.network.connections", "shardkit.kit.kit", "asyncio.")
        )
        for each in gc.get_objects()
    )
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "descriptors": len(names),
        "threads": threading.active_count(),
        "connections": dict(ports),
        "objects": ours,
        "blocks": sys.getallocatedblocks(),
        "memory": resident,
    }


def main() -> int:
    """Run the soak, and say what it found."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("seconds", nargs="?", type=float, default=600.0)
    parser.add_argument("--changes", type=int, help="only change entries, so often")
    asked = parser.parse_args()
    warnings.simplefilter("always", ResourceWarning)
    warnings.simplefilter("always", RuntimeWarning)

    def warned(message: Warning | str, *_: object, **__: object) -> None:
        problems[f"warned: {str(message)[:200]}"] += 1

    warnings.showwarning = warned
    logging.getLogger("asyncio").addHandler(Warned(logging.WARNING))
    sys.unraisablehook = lambda found: note(
        f"unraisable, {found.object!r}", found.exc_value or Exception()
    )
    threading.excepthook = lambda found: note("a thread", found.exc_value or Exception())
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
    ):
        secure = secure_server(Path(directory))
        if secure is None:
            print("no server on PATH speaks TLS: without it")
        entries = Entries(servers, secure, Path(directory) / "map.yaml")
        config = ConfigServer(entries, Path(directory) / "config")
        began = time.monotonic()
        if asked.changes:
            many_changes(entries, asked.changes // 10)
            before = measured()
            many_changes(entries, asked.changes)
        else:
            one_round(entries, config, WARM_UP)
            before = measured()
            one_round(entries, config, asked.seconds)
        after = measured()
        seconds = time.monotonic() - began
        config.server.stop()
        if secure is not None:
            secure.stop()
    for name in ("descriptors", "threads", "connections"):
        if after[name] != before[name]:
            problems[f"{name}: {before[name]} before, {after[name]} after"] += 1
    for name, more in (("objects", OBJECTS), ("blocks", BLOCKS), ("memory", MEMORY)):
        if after[name] > before[name] + more:
            problems[f"{name}: {before[name]:,} before, {after[name]:,} after"] += 1
    print(f"{seconds:.0f} s: {dict(done)}")
    print(f"before {before}\nafter  {after}")
    for problem, count in problems.most_common(40):
        print(f"{count:6} {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
