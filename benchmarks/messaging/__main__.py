"""Messaging against what one would write with redis-py: chats, files, totals; ratios within a run.

    python benchmarks/messaging

Chats are driven one call at a time over the sharded component; Redis Streams with a consumer group
for each reader likewise, by redis-py, over the same servers. A file is read by threads of this
process: from the channel with all that a lease needs, from one STRING by GETRANGE in pieces of the
same size, and from the disk. Lines are counted by a tally and by a loop over one dict with the same
key function, in one process and in several: what each counts in a second of its processor tells
whether they hinder each other, also on a machine that is busy. Medians of rounds count; other load
changes times, and ratios less.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from memory_set import version
from report import conditions, save, show

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.local import LocalServers, find_server
from shardkit.messaging import RecordTally, Total

ROUNDS = 3
MESSAGES = 2048
FILE = 32 * 2**20
MAP = """
components:
  data: {shards: {count: 8, over: [{port: 7001}, {port: 7002}, {port: 7003}, {port: 7004}]}}
  one: {entry: {port: 7001, db: 15}}
"""


def seconds(work: Callable[[], object]) -> float:
    """The median time of a piece of work."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found)


def chats(kit: ShardKit, count: int) -> tuple[float, float]:
    """Messages a second, sent, fetched and acknowledged: by chats, and by streams."""
    found = kit.chats(component="data")
    component: Any = kit.component("data")
    clients = [kit.client("data", component.shard_of(f"s:{n}").number) for n in range(count)]
    for n in range(count):
        found.create("anna", ["ben"], chat=f"{count}-{n}")
        client: Any = clients[n]
        client.xgroup_create(f"s:{n}", f"ben{count}", id="$", mkstream=True)
        client.xgroup_create(f"s:{n}", f"anna{count}", id="$")

    def by_chats() -> None:
        for at in range(0, MESSAGES, 16):
            chat = f"{count}-{at // 16 % count}"
            for n in range(16):
                found.send(chat, "anna", {"n": n})
            for user in ("anna", "ben"):
                messages = found.fetch_from(chat, user)
                assert messages
                assert len(messages) == 16
                found.acknowledge(chat, user, messages[-1])

    def by_streams() -> None:
        for at in range(0, MESSAGES, 16):
            number = at // 16 % count
            client: Any = clients[number]
            for n in range(16):
                client.xadd(f"s:{number}", {"sender": "anna", "n": n}, maxlen=1000)
            for group in (f"anna{count}", f"ben{count}"):
                [(_, entries)] = client.xreadgroup(group, "c", {f"s:{number}": ">"}, count=100)
                assert len(entries) == 16
                client.xack(f"s:{number}", group, *(id_ for id_, _ in entries))

    return MESSAGES / seconds(by_chats), MESSAGES / seconds(by_streams)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Do something in so many threads."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def files(kit: ShardKit, path: Path, readers: int) -> list[float]:
    """Megabytes a second to all readers: of the channel, of GETRANGE, of the disk; bytes held.

    And how the channel compares with GETRANGE: in time, and in the processor's seconds of this
    process and the servers together, which other load hardly changes.
    """
    channel = kit.files(component="data")
    plain: Any = kit.client("one")
    size = path.stat().st_size
    plain.set("file", path.read_bytes())

    def getrange(_: int) -> None:
        at = 0
        while piece := plain.getrange("file", at, at + 2**18 - 1):
            at += len(piece)
        assert at == size

    def disk(_: int) -> None:
        with path.open("rb") as file:
            while file.read(2**18):
                pass

    overhead = 0.0
    taken: dict[str, list[tuple[float, float]]] = {"channel": [], "GETRANGE": [], "disk": []}
    for n in range(3 * ROUNDS):  # each way in each round, as other load comes and goes
        name = f"{readers}-{n}"
        channel.create(name, [str(m) for m in range(readers)])
        before = used(kit)
        channel.publish(name, path)
        overhead = (used(kit) - before) / size

        def read(m: int, name: str = name) -> None:
            file = channel.take(name, str(m))
            assert file is not None
            assert sum(map(len, channel.read(file))) == size
            channel.done(file)

        for way, work in (("channel", read), ("GETRANGE", getrange), ("disk", disk)):
            busy, began = processor(kit), time.perf_counter()
            in_threads(readers, work)
            wall = time.perf_counter() - began
            taken[way].append((wall, processor(kit) - busy))
        channel.delete(name)
    walls = {way: median(wall for wall, _ in found) for way, found in taken.items()}
    busy = {way: median(seconds for _, seconds in found) for way, found in taken.items()}
    megabytes = readers * size / 2**20
    return [
        *(megabytes / wall for wall in walls.values()),
        overhead,
        walls["GETRANGE"] / walls["channel"],
        busy["GETRANGE"] / busy["channel"],
    ]


def servers_of(kit: ShardKit) -> list[dict[str, Any]]:
    """What INFO says of each server of the component."""
    found: dict[int, Any] = {}
    for n in range(len(kit.component("data").shards)):
        client: Any = kit.client("data", n)
        port = client.connection_pool.connection_kwargs["port"]
        found[port] = {**client.info("memory"), **client.info("cpu")}
    return list(found.values())


def used(kit: ShardKit) -> int:
    """The bytes that all servers of the component use."""
    return sum(server["used_memory"] for server in servers_of(kit))


def processor(kit: ShardKit) -> float:
    """The processor's seconds that this process and all servers have used."""
    servers = servers_of(kit)
    return time.process_time() + sum(
        server["used_cpu_sys"] + server["used_cpu_user"] for server in servers
    )


def key_of(line: bytes) -> tuple[bytes, bytes]:
    """A day and an address."""
    words = line.split(None, 2)
    return words[1], words[0]


LINES = [b"192.0.%d.%d 2015-05-%02d x" % (n % 4, n % 250, n % 28 + 1) for n in range(200_000)]


def tally(_: int = 0) -> float:
    """Count lines as an aggregator does; return the processor's seconds."""
    began = time.process_time()
    RecordTally(key_of, lambda key: [Total("d", "k", str(key))]).add(LINES)
    return time.process_time() - began


def loop(_: int = 0) -> float:
    """Count lines in a dict; return the processor's seconds."""
    began = time.process_time()
    counts: dict[tuple[bytes, bytes], int] = {}
    for line in LINES:
        key = key_of(line)
        counts[key] = counts.get(key, 0) + 1
    return time.process_time() - began


def lines(name: str, work: Callable[[int], float], processes: int) -> list[Any]:
    """Lines a second of all processes, and of each for a second of its processor."""
    walls, processor = [], []
    with get_context("fork").Pool(processes) as pool:
        for _ in range(3 * ROUNDS):
            began = time.perf_counter()
            processor += pool.map(work, range(processes), chunksize=1)
            walls.append(time.perf_counter() - began)
    return [name, processes * len(LINES) / median(walls), len(LINES) / median(processor)]


def main() -> None:
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        shardkit.connect(servers.shard_map) as kit,
        tempfile.TemporaryDirectory() as folder,
    ):
        chat_rows = [[n, *chats(kit, n)] for n in (1, 16, 256)]
        path = Path(folder) / "file"
        path.write_bytes(os.urandom(FILE))
        file_rows = [[n, *files(kit, path, n)] for n in (1, 4, 8)]
    line_rows = [lines("dict", loop, 1)]
    line_rows += [lines(f"{n} process{'es'[: 2 * (n > 1)]}", tally, n) for n in (1, 2, 4)]
    for row in chat_rows:
        row.append(row[1] / row[2])
    for row in line_rows:
        row.append(row[2] / line_rows[0][2])
    columns = [
        ["chats", "messages/s", "streams", "ratio"],
        [
            "readers",
            "MB/s",
            "GETRANGE",
            "disk",
            "held per byte",
            "ratio to GETRANGE",
            "of processor",
        ],
        ["counted by", "lines/s", "lines/s of processor each", "ratio to dict"],
    ]
    titles = ("Messages sent, and fetched by two members", "A file of 32 MiB", "Lines counted")
    for title, names, rows in zip(titles, columns, (chat_rows, file_rows, line_rows), strict=True):
        show(title, names, rows)
    result = {
        "conditions": conditions(version(find_server())),
        "rounds": ROUNDS,
        "chats": [dict(zip(columns[0], row, strict=True)) for row in chat_rows],
        "files": [dict(zip(columns[1], row, strict=True)) for row in file_rows],
        "lines": [dict(zip(columns[2], row, strict=True)) for row in line_rows],
    }
    save("messaging", result)


if __name__ == "__main__":
    main()
