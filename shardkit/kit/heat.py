"""Counts what a process uses most: keys, hash tags, shards, components, structures, functions.

::

    commands ──► event, while listening ──► a sketch of each kind ── every 30 s ──► config server
                 (10 ms at a time)          (fixed memory)           config:heat:minute:28333:key
                                                                     config:heat:hour:472:key

Off unless a kit is opened with ``heat=``. It listens to events in short windows at random times, so
the rest of the time costs nothing; what it counts is scaled up. The config server adds up the
heaviest names of all processes; each key there is bounded, and expires.
"""

from __future__ import annotations

import heapq
import logging
import random
import threading
import time
import weakref
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from redis.exceptions import RedisError

from shardkit import log_records
from shardkit.errors import InvalidKeyError, RoutingError, ShardKitError
from shardkit.events import CallStarted, CommandsSent, Event, FunctionCalled, handlers
from shardkit.metrics.outbox import LAST_SECONDS
from shardkit.network.topology import ConfigServer
from shardkit.operations.deadlines import DeadlineBlock
from shardkit.operations.forks import ForkSafeLock, renewed_in_children
from shardkit.operations.interruptions import start_thread
from shardkit.routing.command_keys import key_positions
from shardkit.routing.keys import hash_tag, key_bytes

logger = logging.getLogger("shardkit")

KINDS: Final = ("key", "tag", "shard", "component", "structure", "function")
SLOTS: Final = {"minute": (60, 360), "hour": (3600, 90_000)}
"""The seconds of a slot, and those after which it expires."""
COVERED: Final = "covered"
"""In place of a kind: the hash with the times ``from`` and ``until`` which a slot has reports."""
INTERVAL = 30.0  # seconds between two reports of a process
_WINDOW = 0.01  # seconds for which it listens
_COUNTERS = 512  # of a sketch
_SENT = 100  # names of each kind in a report
_STORED = 500  # names of each kind in a slot
_SHARDS = 2000  # instead, of shards: moves are planned by all
_LONGEST = 120  # bytes of a name
_LOOKED_AT = 8  # commands of one batch
_OWN = "config-server"

T = TypeVar("T")


class Sketch(Generic[T]):
    """The heaviest items of a stream, in the memory of twice ``size`` counters.

    Misra and Gries' algorithm ("Finding repeated elements", 1982) with weights, which takes the
    median away from all counters at once when they are full, so that an item costs a look-up
    (Anderson et al., "A high-performance algorithm for identifying frequent items in data streams",
    2017). Sums of sketches are sketches (Agarwal et al., "Mergeable summaries", 2012). A count is
    at most the true one, and less by at most ``error``, which is below 1/size of all weights.
    """

    def __init__(self, size: int = _COUNTERS) -> None:
        self._size = size
        self.counts: dict[T, float] = {}
        self.error = 0.0

    def add(self, item: T, weight: float = 1.0) -> None:
        """Count an item."""
        counts = self.counts
        counts[item] = counts.get(item, 0.0) + weight
        if len(counts) > 2 * self._size:
            least = sorted(counts.values())[self._size]
            self.error += least
            self.counts = {item: count - least for item, count in counts.items() if count > least}

    def heaviest(self, most: int) -> list[tuple[T, float]]:
        """Return the heaviest items with their counts."""
        return heapq.nlargest(most, self.counts.items(), key=lambda pair: pair[1])


class HeatCounter:
    """Counts what this process uses, and reports it to a config server.

    All kits of a process over one config server share a counter, as events are the process's.

    Args:
        share: the share of the time in which to listen, up to 1.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.closed = False
        self._sources: list[weakref.ref[ConfigServer]] = []  # a kit that is dropped is not kept
        self._failed = False
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Start counting, in a forked child too."""
        if self._count in handlers:  # the parent's thread was listening
            handlers.remove(self._count)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._since: float | None = None  # it has been listening
        self._listened = 0.0
        self._reset()
        if not self.closed:
            start_thread(threading.Thread(target=self._run, name="shardkit-heat", daemon=True))

    def join(self, source: ConfigServer, share: float) -> None:
        """Report by the connections of one more kit."""
        self.share = max(self.share, share)
        self._sources.append(weakref.ref(source))

    def leave(self, source: ConfigServer) -> None:
        """Report, and use a kit's connections no more; the last one's end ends the counting."""
        with DeadlineBlock(LAST_SECONDS):
            self.send()
        self._sources = [ref for ref in self._sources if ref() not in (None, source)]
        if not self._sources:
            self.closed = True
            self._stop.set()

    def send(self) -> None:
        """Report what was counted since the last report. Cost: two exchanges."""
        with self._lock:
            self._note_listened()
            sketches, listened, seconds = self._sketches, self._listened, self._seconds()
            self._reset()
        source = next((alive for ref in self._sources if (alive := ref())), None)
        if source is None or not listened or not sketches["component"].counts:
            return
        try:
            self._write(source.client(), sketches, seconds, max(1.0, seconds / listened))
            self._failed = False
        except (RedisError, ShardKitError, OSError) as error:  # this report is lost
            if not self._failed:
                self._failed = True
                where = str(source)
                about = log_records.fields("heat-not-reported", source=where, cause=str(error))
                logger.warning("heat is not reported to %s: %s", where, error, extra=about)

    def _write(
        self, client: Any, sketches: Mapping[str, Sketch[bytes]], seconds: float, factor: float
    ) -> None:
        at, micros = client.time()
        now = at + micros / 1e6
        with client.pipeline(transaction=False) as pipe:
            for unit, (size, expires) in SLOTS.items():
                key = slot_key(unit, int(now // size), COVERED)
                pipe.hsetnx(key, "from", now - seconds)
                pipe.hset(key, "until", now)
                pipe.expire(key, expires)
            for kind, sketch in sketches.items():
                sent, stored = (_SHARDS, _SHARDS) if kind == "shard" else (_SENT, _STORED)
                heaviest = sketch.heaviest(sent)
                for unit, (size, expires) in SLOTS.items() if heaviest else ():
                    key = slot_key(unit, int(now // size), kind)
                    for name, count in heaviest:
                        pipe.zincrby(key, round(count * factor, 1), name)
                    pipe.zremrangebyrank(key, 0, -stored - 1)
                    pipe.expire(key, expires)
            pipe.execute()

    def _reset(self) -> None:
        self._sketches: dict[str, Sketch[bytes]] = {
            kind: Sketch(_SHARDS if kind == "shard" else _COUNTERS) for kind in KINDS
        }
        self._began = time.monotonic()
        self._listened = 0.0

    def _note_listened(self) -> None:
        if self._since is not None:
            now = time.monotonic()
            self._listened += now - self._since
            self._since = now

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _run(self) -> None:
        self._began = time.monotonic()  # a busy machine starts threads late
        while not self._stop.is_set():
            if not any(ref() for ref in self._sources) and self._seconds() > INTERVAL:
                return
            window = _WINDOW if self.share < 1 else 1.0
            pause = window / self.share - window
            # At random, because what applications do at fixed times must not escape or be caught.
            if pause and self._stop.wait(random.uniform(0.5, 1.5) * pause):
                return
            self._since = time.monotonic()
            handlers.append(self._count)
            try:
                self._stop.wait(window)
            finally:
                handlers.remove(self._count)
                with self._lock:
                    self._note_listened()
                    self._since = None
            if self._seconds() >= INTERVAL:
                self.send()

    def _count(self, event: Event) -> None:
        if not self._lock.acquire(blocking=False):  # another thread, or this one below a signal
            return
        try:
            sketches = self._sketches
            if type(event) is CommandsSent:
                component = event.shard.partition(":")[0]
                if component != _OWN:
                    self._count_commands(event, sketches)
            elif type(event) is CallStarted:
                if event.structure:
                    sketches["structure"].add(event.structure.encode()[:_LONGEST])
            elif type(event) is FunctionCalled:
                sketches["function"].add(event.name.encode()[:_LONGEST])
        finally:
            self._lock.release()

    def _count_commands(self, event: CommandsSent, sketches: Mapping[str, Sketch[bytes]]) -> None:
        shard = event.shard.encode()
        head, _, last = shard.rpartition(b":")
        component = head if head and last.isdigit() else shard
        sketches["shard"].add(shard, event.count)
        sketches["component"].add(component, event.count)
        step = -(-event.count // _LOOKED_AT)  # of many commands every n-th, from a random one
        first = random.randrange(step) if step > 1 else 0
        for args in islice(event.commands_of(), first, None, step):
            try:
                for position in key_positions(args):
                    key = key_bytes(args[position])
                    sketches["key"].add(_named(component, key), step)
                    tag = hash_tag(key)
                    if tag != key:
                        sketches["tag"].add(_named(component, tag), step)
            except (RoutingError, InvalidKeyError):  # a command of a module
                continue


def _named(component: bytes, key: bytes) -> bytes:
    return b"%s %s" % (component, key[:_LONGEST])


def slot_key(unit: str, slot: int, kind: str) -> str:
    """Return the key of what was hot in a minute or an hour."""
    return f"config:heat:{unit}:{slot}:{kind}"


_open: dict[str, HeatCounter] = {}  # by config server
_opening = ForkSafeLock()


def counter_of(source: ConfigServer, share: float) -> HeatCounter:
    """Return this process's counter for a config server, and have it use ``source``, too."""
    with _opening:
        counter = _open.get(str(source))
        if counter is None or counter.closed:
            counter = _open[str(source)] = HeatCounter(share)
        counter.join(source, share)
        return counter
