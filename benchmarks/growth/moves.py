"""Moves of a server and of a shard: gigabytes a minute, and what neighbours notice meanwhile.

Each round measures neighbours alone first, and then during a move. A move's phases are told apart:
copying, comparing, and the rest, in which clients are held.

The mover and the new server, which are elsewhere in earnest, run only when nobody else wants a
processor (`aside`; the new server until clients come to it), and so does what the old server forks,
for which a server has a core to spare. What neighbours notice is then what the old server does for
the move, and not who gets which core.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import redis
from report import conditions, show

from growth.neighbours import Neighbour, Span, neighbours
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import start_move
from shardkit.local import LocalServer

MEGABYTES = float(os.environ.get("MEGABYTES", "300"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
VALUE = 4000  # bytes
ALONE = 4.0  # seconds without a move, before it and after it
PACED = 500.0  # calls a second of each neighbour
SHARES = {1.0: 1.0, 0.2: 0.2}  # for how much of the time a mover works, and of the megabytes
MOVED, BESIDE, ELSEWHERE = "moved", "beside", "elsewhere"
NEIGHBOURS = {"server": (MOVED, ELSEWHERE), "shard": (MOVED, BESIDE, ELSEWHERE)}

Figures = dict[str, Any]


def fill(server: LocalServer, megabytes: float) -> None:
    """Write values that cannot be compressed to database 1."""
    pool = random.Random(1).randbytes(1 << 20)
    with server.client(db=1) as client:
        for start in range(0, round(1e6 * megabytes / VALUE), 500):
            pipe = client.pipeline(transaction=False)
            for n in range(start, start + 500):
                at = n % (len(pool) - VALUE)
                pipe.set(f"k{n}", pool[at : at + VALUE])
            pipe.execute()


def entries(source: LocalServer, target: LocalServer, third: LocalServer, kind: str) -> ShardMap:
    """Describe what is moved, what is beside it on the same servers, and what is elsewhere."""
    components = {MOVED: (source, 1), ELSEWHERE: (third, 1)}
    if kind == "shard":
        components |= {BESIDE: (source, 2), ELSEWHERE: (target, 3)}
    described = {
        name: {"shards": [{"host": "127.0.0.1", "port": server.port, "db": db}]}
        for name, (server, db) in components.items()
    }
    return ShardMap.parse(json.dumps({"components": described}))


class Phases:
    """When each phase of a move began and ended, and how long the source was at work in it."""

    def __init__(self, source: redis.Redis) -> None:
        self._source = source
        self._name = ""
        self._began = self._busy = 0.0
        self.spans: dict[str, list[Span]] = {}
        self.busy: dict[str, float] = {}

    def __call__(self, what: str) -> None:
        """Note what a move says that it does."""
        first = what.split()[0].rstrip(":")
        name = {"copying": "copy", "copied": "copy", "comparing": "compare"}.get(first, "switch")
        if name != self._name:
            self.end()
            self._name, self._began, self._busy = name, time.monotonic(), busy(self._source)

    def end(self) -> None:
        """Note that the move has ended."""
        if self._name:
            self.spans.setdefault(self._name, []).append((self._began, time.monotonic()))
            took = busy(self._source) - self._busy
            self.busy[self._name] = self.busy.get(self._name, 0.0) + took


@contextmanager
def awake() -> Iterator[None]:
    """Keep the processors from sleeping where we may: a virtual one can take 30 ms to wake."""
    with ExitStack() as stack:
        with suppress(OSError):
            latency = stack.enter_context(Path("/dev/cpu_dma_latency").open("wb", buffering=0))
            latency.write(bytes(4))  # microseconds that waking may take, while the file is open
        yield


def busy(client: redis.Redis) -> float:
    """The seconds that a server's main thread has been at work."""
    said = client.info("cpu")
    return sum(float(said[f"used_cpu_{kind}_main_thread"]) for kind in ("sys", "user"))


def aside(pid: int, policy: int = os.SCHED_IDLE) -> None:
    """Have a process run only when nobody else wants the processor, or otherwise."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(task.name), policy, os.sched_param(0))


def forks_aside(server: LocalServer, end: threading.Event) -> None:
    """The same with what a server forks, until the end."""
    while not end.wait(0.005):
        for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            with suppress(OSError):  # it has ended
                aside(int(pid))


def move_in_process(kind: str, servers: Sequence[LocalServer], share: float, sender: Any) -> None:
    """Move, as a process of its own, and send what came of it."""
    aside(os.getpid())
    config, source, target = (server.address for server in servers)
    told, watched = (redis.Redis.from_url(f"redis://{each}") for each in (config, source))
    phases, begin = Phases(watched), time.monotonic()
    phases("copying")

    def progress(what: str) -> None:
        phases(what)
        if what.startswith("pushing"):  # from now on the new server is the clients'
            aside(servers[2].pid, os.SCHED_OTHER)

    options: Any = {"share": share, "progress": progress}
    if kind == "shard":
        move: Any = start_move(told, [f"{MOVED}:0"], target, **options)
    else:
        move = start_move(told, source, target, **options)
    phases.end()
    assert move.certificate["same"], move.certificate
    sender.send((begin, time.monotonic(), phases.spans, phases.busy, move.held))


def measure(kind: str, share: float) -> Figures:
    """Move once."""
    megabytes = MEGABYTES * SHARES[share]
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with ExitStack() as stack:
        config, source, target, third = (
            stack.enter_context(LocalServer(name=name))
            for name in ("config", "source", "target", "third")
        )
        fill(source, megabytes)
        told = stack.enter_context(config.client())
        push(told, entries(source, target, third, kind))
        watched = stack.enter_context(source.client())
        names = NEIGHBOURS[kind]
        if kind == "server":
            aside(target.pid)
            for server in (source, target):  # as docs/growth.md recommends
                client = stack.enter_context(server.client())
                client.config_set("dual-channel-replication-enabled", "yes")
        ended = threading.Event()
        watch = threading.Thread(target=forks_aside, args=(source, ended))
        watch.start()
        stack.callback(watch.join)
        stack.callback(ended.set)
        with neighbours(f"redis://{config.address}", names, PACED) as clients:
            time.sleep(1)
            at_work, alone = busy(watched), time.monotonic()
            time.sleep(ALONE)
            usual = (busy(watched) - at_work) / ALONE
            servers = (config, source, target)
            mover = context.Process(target=move_in_process, args=(kind, servers, share, sender))
            mover.start()
            while not receiver.poll(1):
                assert mover.is_alive(), "the mover has failed"
            begin, end, spans, work, held = receiver.recv()
            mover.join()
            time.sleep(ALONE)
        seconds = {phase: sum(b - a for a, b in each) for phase, each in spans.items()}
        gigabytes = megabytes / 1000
        return {
            "gigabytes a minute, copied": 60 * gigabytes / seconds["copy"],
            "gigabytes a minute, in all": 60 * gigabytes / (end - begin),
            "seconds": seconds,
            "held, ms": 1000 * held,
            "the source's thread, seconds a gigabyte": {
                phase: (work[phase] - usual * seconds[phase]) / gigabytes
                for phase in ("copy", "compare")
            },
            "neighbours": {
                name: noticed(client, [(alone, begin), (end, end + ALONE)], spans)
                for name, client in zip(names, clients, strict=True)
            },
        }


def noticed(
    client: Neighbour,
    alone: list[Span],
    phases: Mapping[str, list[Span]],
) -> Figures:
    """Compare a neighbour's calls during a move to those before and after it."""
    quiet = client.window(alone)
    found: Figures = {
        "alone: calls a second": quiet.rate,
        "alone: p99, ms": quiet.p99,
        "alone: longest, ms": quiet.longest,
    }
    for phase in ("copy", "compare"):
        during = client.window(phases[phase])
        found |= {
            f"{phase}: throughput, ratio": during.rate / quiet.rate,
            f"{phase}: p99, ratio": during.p99 / quiet.p99,
            f"{phase}: p99, ms": during.p99,
        }
    return found | {
        "the whole move: longest, ms": client.window(
            [span for spans in phases.values() for span in spans]
        ).longest
    }


def medians(rounds: list[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    return {
        name: medians([each[name] for each in rounds])
        if isinstance(rounds[0][name], dict)
        else round(median(each[name] for each in rounds), 3)
        for name in rounds[0]
    }


def run() -> Figures:
    found: Figures = {"megabytes": MEGABYTES, "bytes of a value": VALUE, "rounds": ROUNDS}
    for kind in ("server", "shard"):
        for share in SHARES:
            with awake():
                row = medians([measure(kind, share) for _ in range(ROUNDS)])
            found[title(kind, share)] = row
            table(title(kind, share), row)
    return found | {"conditions": conditions() | {"load average": round(os.getloadavg()[1])}}


def title(kind: str, share: float) -> str:
    """What a case is called."""
    return f"a {kind}" if share == 1 else f"a {kind}, --share {share:g}"


def table(name: str, row: Figures) -> None:
    flat = [(what, value) for what, value in row.items() if not isinstance(value, dict)]
    for part in ("seconds", "the source's thread, seconds a gigabyte"):
        flat += [(f"{part}, {phase}", value) for phase, value in row[part].items()]
    for neighbour, noticed_ in row["neighbours"].items():
        flat += [(f"{neighbour}: {what}", value) for what, value in noticed_.items()]
    show(f"a move of {name}", ["", ""], flat)
