"""One post to 100,000 followers: ours, and as Redis in Action does it, over four servers and one.

The book's way, written by hand with redis-py, in passes of 1,000 followers too: read the next ones
of each shard, shard by shard; merge them; then for each server a pipeline with ZADD and
ZREMRANGEBYRANK for each timeline, one pipeline after another. Both write to the same timelines,
which have 50 entries each. Over four servers both also with passes of 5,000. Rounds alternate; a
time is the median of its rounds.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

import redis
from report import conditions, show
from rich.progress import track

from shardkit.operations.commands import Command
from shardkit.operations.operation import Operation, pages
from shardkit.social.keys import USER
from social.networks import Site, options_of, site

FOLLOWERS = 100_000
ENTRIES = 50
PASSES = (1000, 5000)
LIMIT = 1000
ROUNDS = 3


class Book:
    """The book's way over the same keys."""

    def __init__(self, at: Site, size: int) -> None:
        self._size = size
        self._layout = at.network.layout
        self._author = at.uids[0]
        kit, self._next = at.kit, size * 10**9  # ids that no other way gives out
        data, followers = kit.component("data"), kit.component("followers")
        self._router = kit.key_sharded("data") if data.shards else None
        self._timelines = [_plain(data.entry_of(shard).resolved("")) for shard in data.all_shards()]
        self._relations = [
            _plain(followers.entry_of(shard).resolved("")) for shard in followers.all_shards()
        ]

    def post(self) -> None:
        """Bring a new status to all followers."""
        self._next += 1
        now, start = int(time.time() * 1e6), 0.0
        while rows := self._followers(start):
            self._write(str(self._next), now, [int(member) for member, _ in rows])
            if len(rows) < self._size:
                return
            start = rows[-1][1]  # which comes again, as scores may be equal

    def _followers(self, start: float) -> list[tuple[bytes, float]]:
        parts = []
        for part, client in enumerate(self._relations):
            key = self._layout.relation(USER.incoming, part, self._author)
            parts.append(client.zrangebyscore(key, start, "inf", 0, self._size, withscores=True))
        merged = heapq.merge(*parts, key=lambda row: row[1])
        return [row for row, _ in zip(merged, range(self._size), strict=False)]

    def _write(self, status: str, now: int, followers: list[int]) -> None:
        groups: dict[int, list[str]] = defaultdict(list)
        for uid in followers:
            key = self._layout.timeline(USER, uid)
            groups[self._router.shard_of(key) if self._router else 0].append(key)
        for shard, keys in groups.items():
            pipe = self._timelines[shard].pipeline(transaction=False)
            for key in keys:
                pipe.zadd(key, {status: now})
                pipe.zremrangebyrank(key, 0, -LIMIT - 1)
            pipe.execute()


def _plain(entry: dict[str, Any]) -> redis.Redis:
    return redis.Redis(host=entry["host"], port=entry["port"], db=entry.get("db", 0))


def _fill(at: Site) -> Operation[None]:
    layout = at.network.layout
    entries = [part for n in range(ENTRIES) for part in (10**15 + n, 10**8 + n)]
    for page in pages(at.uids, 500):
        keys = [layout.timeline(USER, uid) for uid in page]
        yield [Command(layout.timelines, key, ("ZADD", key, *entries), None, True) for key in keys]


def _timed(at: Site, work: Callable[[], Any]) -> tuple[float, float, float]:
    """Return seconds, and the caller's and the servers' seconds of a processor."""
    servers, own, began = at.spent(), time.process_time(), time.perf_counter()
    work()
    ended, used = time.perf_counter(), time.process_time()
    return ended - began, used - own, at.spent() - servers


def _check(at: Site, entries: int) -> None:
    """See that every follower has got every post."""
    layout = at.network.layout

    def count() -> Operation[set[int]]:
        found = set()
        for page in pages(at.uids[1:], 1000):
            keys = [layout.timeline(USER, uid) for uid in page]
            found |= set((yield [layout.at_timeline(key, "ZCARD", key) for key in keys]))
        return found

    assert at.kit.driver.run(count()) == {entries}


def measure() -> dict[str, Any]:
    """Return the figures of both ways over four servers and one."""
    with ExitStack() as stack:
        works: dict[str, tuple[Site, Callable[[], Any]]] = {}
        sites = [stack.enter_context(site(name)) for name in ("4 servers", "1 server")]
        for at in track(sites, "building"):
            at.build(FOLLOWERS + 1, [[], *[[0]] * FOLLOWERS])
            at.kit.driver.run(_fill(at))
            for size in PASSES if at is sites[0] else PASSES[:1]:
                passes = f", passes of {size:,}" if size != PASSES[0] else ""
                works[f"ours, {at.name}{passes}"] = at, _poster(at, size)
                works[f"the book's, {at.name}{passes}"] = at, Book(at, size).post
        taken: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        for at in sites:
            at.network.post(at.uids[1], "connections and scripts are there")
        for _ in track(range(ROUNDS), "posting"):
            for name, (at, work) in works.items():
                taken[name].append(_timed(at, work))
        for at in sites:
            posts = sum(each is at for each, _ in works.values()) * ROUNDS
            _check(at, ENTRIES + posts)
    return {name: dict(_figures(rounds)) for name, rounds in taken.items()}


def _poster(at: Site, size: int) -> Callable[[], Any]:
    network = at.kit.social(**options_of(at.name), pass_size=size)
    return lambda: network.post(at.uids[0], "to all of you")


def _figures(rounds: list[tuple[float, float, float]]) -> Iterator[tuple[str, float]]:
    seconds, own, servers = (median(column) for column in zip(*rounds, strict=True))
    yield "timelines a second", round(FOLLOWERS / seconds)
    yield "seconds", round(seconds, 3)
    yield "caller, us a timeline", round(own / FOLLOWERS * 1e6, 2)
    yield "servers, us a timeline", round(servers / FOLLOWERS * 1e6, 2)


def run() -> dict[str, Any]:
    """Measure and show."""
    found = measure()
    rate = {name: figures["timelines a second"] for name, figures in found.items()}
    best = ", passes of 5,000"
    ratios = {
        "ours, 4 servers to 1": rate["ours, 4 servers"] / rate["ours, 1 server"],
        "the book's, 4 servers to 1": rate["the book's, 4 servers"] / rate["the book's, 1 server"],
        "ours to the book's, 4 servers": rate["ours, 4 servers"] / rate["the book's, 4 servers"],
        f"ours, 4 servers{best} to 1": rate[f"ours, 4 servers{best}"] / rate["ours, 1 server"],
        "ours to the book's, 1 server": rate["ours, 1 server"] / rate["the book's, 1 server"],
    }
    columns = list(next(iter(found.values())))
    show(
        f"One post to {FOLLOWERS:,} followers",
        ["", *columns],
        [[name, *figures.values()] for name, figures in found.items()],
    )
    show("Ratios", ["", "times"], [[name, ratio] for name, ratio in ratios.items()])
    return {
        "conditions": conditions(),
        "followers": FOLLOWERS,
        "entries": ENTRIES,
        "rounds": ROUNDS,
        "figures": found,
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
    }
