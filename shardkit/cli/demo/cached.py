"""``shardkit demo cached``: cached functions under load, while half of their shards move.

Eight threads ask for prices, one changes and invalidates them. Each call checks that it got a price
that was true when the latest invalidation before it ended.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

import shardkit
from shardkit.admin.growth import start_move
from shardkit.local import LocalServers

ITEMS, THREADS = 500, 8
SLICE = 0.5  # seconds of a bar of the plot
COMPUTING = 0.002  # seconds
CACHE_MAP = """
config_server: {port: 7100}
defaults: {host: 127.0.0.1}
components:
  cache: {shards: {count: 4, over: [{port: 7101, db: 1}]}}
  other: {entry: {port: 7102}}
"""


@dataclass
class CacheRun:
    """What was seen of calls; times are in seconds."""

    calls: int = 0
    computed: int = 0
    changed: int = 0  # how many prices changed
    old: int = 0  # how many calls got a price from before an invalidation that had ended
    errors: dict[str, int] = field(default_factory=dict)  # how many failed, by their texts
    slices: list[tuple[int, float]] = field(default_factory=list)  # calls, and the longest one
    moved: tuple[float, float] = (0.0, 0.0)  # from when to when shards moved


class _Load:
    def __init__(self, kit: shardkit.ShardKit, run: CacheRun) -> None:
        self.run = run
        self.began = time.monotonic()
        self.ends = threading.Event()
        self.lock = threading.Lock()
        self.prices = [0] * ITEMS
        self.valid = [0] * ITEMS  # the least price that a call may return

        @kit.cached("cache", ttl=60, stale=10, key="price:{item}")
        def price(item: int) -> int:
            run.computed += 1
            current = self.prices[item]
            time.sleep(COMPUTING)
            return current

        self.price = price

    def call(self, seed: int) -> None:
        choose = random.Random(seed)
        while not self.ends.is_set():
            item = int(ITEMS * choose.random() ** 3)
            valid, began = self.valid[item], time.monotonic()
            old = False
            try:
                old = self.price(item) < valid
            except Exception as failure:  # each is shown
                with self.lock:
                    text = f"{type(failure).__name__}: {failure}"
                    self.run.errors[text] = self.run.errors.get(text, 0) + 1
            took = time.monotonic() - began
            with self.lock:
                self.run.calls += 1
                self.run.old += old
                at = int((began - self.began) / SLICE)
                self.run.slices += [(0, 0.0)] * (at + 1 - len(self.run.slices))
                count, longest = self.run.slices[at]
                self.run.slices[at] = count + 1, max(longest, took)

    def change(self) -> None:
        choose = random.Random(0)
        while not self.ends.wait(0.005):
            item = choose.randrange(ITEMS)
            self.prices[item] += 1
            self.price.invalidate(item)
            self.valid[item] = self.prices[item]
            self.run.changed += 1


def run_cached(url: str, servers: LocalServers, seconds: float) -> CacheRun:
    """Put load on a cached function, move half of its shards, and return what was seen.

    There is load for ``seconds`` seconds before and after the move, together.
    """
    run = CacheRun()
    assert servers.config_server is not None
    with shardkit.connect(url) as kit, servers.config_server.client() as config:
        load = _Load(kit, run)
        work = [threading.Thread(target=load.call, args=(n,)) for n in range(THREADS)]
        work.append(threading.Thread(target=load.change))
        for thread in work:
            thread.start()
        try:
            time.sleep(seconds / 2)
            began = time.monotonic() - load.began
            start_move(config, ["cache:2", "cache:3"], servers.servers[-1].address)
            run.moved = began, time.monotonic() - load.began
            time.sleep(seconds / 2)
        finally:
            load.ends.set()
            for thread in work:
                thread.join()
    return run
