"""Moves of a server and of a shard: gigabytes a minute, and what neighbours notice meanwhile.

Each round measures neighbours alone first, and then during a move. A move's phases are told apart:
copying, comparing, and the rest, in which clients are held.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

import redis
from report import RESULTS, conditions, show

from growth.neighbours import Neighbour, Span, neighbours
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.bench import plots
from shardkit.growth import start_move, start_shard_move
from shardkit.local import LocalServer

MEGABYTES = float(os.environ.get("MEGABYTES", "500"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
VALUE = 4000  # bytes
ALONE = 5.0  # seconds without a move, before it and after it
PACED = 500.0  # calls a second of each neighbour
PACED_NEIGHBOURS = f"neighbours at {PACED:g} calls a second each"
MOVED, BESIDE, ELSEWHERE = "moved", "beside", "elsewhere"
NEIGHBOURS = {"server": (MOVED, ELSEWHERE), "shard": (MOVED, BESIDE, ELSEWHERE)}

Figures = dict[str, Any]


def fill(server: LocalServer) -> None:
    """Write values that cannot be compressed to database 1."""
    pool = random.Random(1).randbytes(1 << 20)
    with server.client(db=1) as client:
        for start in range(0, round(1e6 * MEGABYTES / VALUE), 500):
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


def busy(client: redis.Redis) -> float:
    """The seconds that a server's main thread has been at work."""
    said = client.info("cpu")
    return sum(float(said[f"used_cpu_{kind}_main_thread"]) for kind in ("sys", "user"))


def measure(kind: str, rate: float) -> Figures:
    """Move once."""
    with ExitStack() as stack:
        config, source, target, third = (
            stack.enter_context(LocalServer(name=name))
            for name in ("config", "source", "target", "third")
        )
        fill(source)
        told = stack.enter_context(config.client())
        push(told, entries(source, target, third, kind))
        watched = stack.enter_context(source.client())
        names = NEIGHBOURS[kind]
        with neighbours(f"redis://{config.address}", names, rate) as clients:
            time.sleep(1)
            at_work, alone = busy(watched), time.monotonic()
            time.sleep(ALONE)
            share = (busy(watched) - at_work) / ALONE
            phases, begin = Phases(watched), time.monotonic()
            phases("copying")
            if kind == "shard":
                move: Any = start_shard_move(told, [f"{MOVED}:0"], target.address, progress=phases)
            else:
                move = start_move(told, source.address, target.address, progress=phases)
            phases.end()
            end = time.monotonic()
            time.sleep(ALONE)
        assert move.certificate["same"], move.certificate
        seconds = {phase: sum(b - a for a, b in spans) for phase, spans in phases.spans.items()}
        gigabytes = MEGABYTES / 1000
        return {
            "gigabytes a minute, copied": 60 * gigabytes / seconds["copy"],
            "gigabytes a minute, in all": 60 * gigabytes / (end - begin),
            "seconds": seconds,
            "held, ms": 1000 * move.held,
            "the source's thread, seconds a gigabyte": {
                phase: (phases.busy[phase] - share * seconds[phase]) / gigabytes
                for phase in ("copy", "compare")
            },
            "neighbours": {
                name: noticed(client, [(alone, begin), (end, end + ALONE)], phases.spans)
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
        for how, rate in ((PACED_NEIGHBOURS, PACED), ("neighbours as fast as they can", 0.0)):
            row = medians([measure(kind, rate) for _ in range(ROUNDS)])
            found[f"{kind}, {how}"] = row
            table(f"move of a {kind}, {how}", row)
    for what, limit in (("throughput", 0.9), ("p99", 1.5)):
        rows = {
            f"{kind}, {name}": {
                phase: found[f"{kind}, {PACED_NEIGHBOURS}"]["neighbours"][name][
                    f"{phase}: {what}, ratio"
                ]
                for phase in ("copy", "compare")
            }
            for kind, names in NEIGHBOURS.items()
            for name in names
        }
        plots.bars(
            RESULTS / f"growth_{what}.svg",
            f"Neighbours of a move: {what}, as a ratio to without it",
            rows,
            "ratio",
            dict.fromkeys(rows, limit),
        )
    return found | {"conditions": conditions() | {"load average": round(os.getloadavg()[1])}}


def table(title: str, row: Figures) -> None:
    flat = [(name, value) for name, value in row.items() if not isinstance(value, dict)]
    for part in ("seconds", "the source's thread, seconds a gigabyte"):
        flat += [(f"{part}, {phase}", value) for phase, value in row[part].items()]
    for name, noticed_ in row["neighbours"].items():
        flat += [(f"{name}: {what}", value) for what, value in noticed_.items()]
    show(title, ["", ""], flat)
