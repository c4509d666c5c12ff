"""Sending in the background what a process records: batched, and each request executed once.

::

    hit() ──► buffer ─── once an interval ──► backlog of each place ──► request 7 ──► server
    (no I/O)             (one thread)         (bounded)                 until it answers

A place is what one script can write: a log, or a group of counters. Each place has at most one
request on its way. A request has the writer's random name and a number, which counts up; the script
stores the number next to the data and ignores a request that it has executed. So a request whose
reply was lost is sent again, and nothing is counted twice.

What is lost: with the process, what it recorded since the last interval. While a server is away,
what exceeds `MOST_WAITING`, and what could not be sent for `LONGEST_RETRY` seconds; both are in
``dropped``. Nothing is raised into the code that records.
"""

from __future__ import annotations

import logging
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from shardkit.errors import ShardFailure
from shardkit.operations.commands import Command, Partial, Replies, Transaction, damage_in
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.operation import Driver, Operation

logger = logging.getLogger("shardkit.metrics")

INTERVAL = 1.0
# Records that wait while servers are away, of one outbox.
MOST_WAITING = 100_000
# Servers remember requests for an hour; a reply that was lost before that is not asked for again.
LONGEST_RETRY = 3000.0
# Rounds of one call of send(): more than the fullest backlog takes.
_MOST_ROUNDS = 1000


class Recorder(Protocol):
    """What fills an outbox, and builds its requests."""

    at_once: int  # the most records of a request

    def collect(self) -> Mapping[Hashable, Sequence[Any]]:
        """Take what was recorded since the last call: records by place."""

    def discard(self) -> None:
        """Forget what was recorded: a forked child has its parent's."""

    def request(self, place: Any, writer: str, number: str, records: Sequence[Any]) -> Command:
        """Build the request that writes records: idempotent, by its writer and number."""

    def sent(self, replies: Sequence[tuple[Any, Sequence[Any], Any]]) -> list[Transaction]:
        """Take note of replies (place, records, reply); return what is to be written after them."""


class _Backlog:
    """The records of one place, and its request that is on its way."""

    __slots__ = ("number", "request", "since", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.request: list[Any] = []
        self.number = 0
        self.since = 0.0


class Outbox:
    """Sends what a recorder has recorded. Thread-safe.

    Args:
        driver: a blocking driver.
        recorder: what was recorded, and how it is written.
        monotonic: local seconds that never go back.

    Attributes:
        dropped: how many records were lost, because servers were away or refused them.
    """

    def __init__(self, driver: Driver, recorder: Recorder, monotonic: Callable[[], float]) -> None:
        self._driver = driver
        self._recorder = recorder
        self._monotonic = monotonic
        self._warned = -1e9
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a forked child has to: its parent sends it."""
        self._lock = threading.Lock()
        self._backlogs: dict[Hashable, _Backlog] = {}
        self._waiting = 0
        self._sender = secrets.token_hex(8)
        self.dropped = 0
        self._recorder.discard()

    def send(self) -> bool:
        """Send all that was recorded; return whether nothing waits any more.

        Raises nothing but what ends the process. Cost: usually one exchange.
        """
        try:
            return bool(self._driver.run(self.steps()))
        except Exception as error:  # no such component, a closed kit: everything waits
            self._warn(error)
            return False

    def steps(self) -> Operation[bool]:
        """The steps of `send`."""
        # Held between exchanges: the requests of a place keep their order. Deadlines bound them.
        with self._lock:
            self._collect()
            for _ in range(_MOST_ROUNDS):
                if not (yield from self._round()):
                    break
            return self._waiting == 0

    def _collect(self) -> None:
        for place, records in self._recorder.collect().items():
            room = MOST_WAITING - self._waiting
            if room < len(records):
                self.dropped += len(records) - max(0, room)
                records = records[: max(0, room)]
                if not records:
                    continue
            self._backlogs.setdefault(place, _Backlog()).waiting.extend(records)
            self._waiting += len(records)

    def _round(self) -> Operation[bool]:
        """Send one request to each place; return whether all were answered and some wait."""
        now = self._monotonic()
        places = []
        for place, backlog in self._backlogs.items():
            if backlog.request and now - backlog.since > LONGEST_RETRY:
                self._drop(backlog)
            if not backlog.request and backlog.waiting:
                count = min(self._recorder.at_once, len(backlog.waiting))
                backlog.request = [backlog.waiting.popleft() for _ in range(count)]
                backlog.number += 1
                backlog.since = now
            if backlog.request:
                places.append(place)
        if not places:
            return False
        commands = []
        for place in places:
            backlog = self._backlogs[place]
            number = str(backlog.number)
            commands.append(self._recorder.request(place, self._sender, number, backlog.request))
        replies: Replies = yield Partial(commands)
        answered = []
        for place, reply in zip(places, replies, strict=True):
            backlog = self._backlogs[place]
            if not isinstance(reply, ShardFailure):
                answered.append((place, backlog.request, reply))
                self._waiting -= len(backlog.request)
                backlog.request = []
            else:
                self._warn(reply)
                if damage_in(reply) is not None:  # no later attempt would succeed
                    self._drop(backlog)
        yield from self._after(answered)
        return not replies.failed and any(each.waiting for each in self._backlogs.values())

    def _after(self, answered: Sequence[tuple[Any, Sequence[Any], Any]]) -> Operation[None]:
        further = self._recorder.sent(answered)
        if further:
            replies: Replies = yield Partial(further)
            for reply in replies:
                if isinstance(reply, ShardFailure):  # the next request writes it again
                    self._warn(reply)

    def _drop(self, backlog: _Backlog) -> None:
        self.dropped += len(backlog.request)
        self._waiting -= len(backlog.request)
        backlog.request = []

    def _warn(self, error: BaseException) -> None:
        """Log a failure, at most once a minute: the handler of this very log may be the sender."""
        now = self._monotonic()
        if now - self._warned >= 60:
            self._warned = now
            logger.warning("metrics wait for a server; %d dropped so far: %s", self.dropped, error)


class Background:
    """The outboxes of a kit, and the thread that empties them once an interval.

    Args:
        driver: a blocking driver.
        interval: seconds.
    """

    def __init__(self, driver: Driver, interval: float = INTERVAL) -> None:
        self.driver = driver
        self.interval = interval
        self._outboxes: dict[Hashable, tuple[Outbox, Any]] = {}
        self._closed = False
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Begin anew in a forked child: no thread, and nothing recorded."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        for outbox, _ in self._outboxes.values():
            outbox.reset()

    @property
    def used(self) -> bool:
        """Whether anything can be waiting."""
        return bool(self._outboxes) and not self._closed

    def recorder(
        self, key: Hashable, make: Callable[[], Any], monotonic: Callable[[], float]
    ) -> tuple[Outbox, Any]:
        """Return the outbox and the recorder of a key; made with ``make`` the first time."""
        with self._lock:
            if key not in self._outboxes:
                made = make()
                self._outboxes[key] = Outbox(self.driver, made, monotonic), made
            return self._outboxes[key]

    def start(self) -> None:
        """Start the thread, if it does not run. Cost when it does: 40 nanoseconds."""
        if self._thread is None and not self._closed:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=_run, args=(weakref.ref(self), self._stop, self.interval),
                        name="shardkit-metrics", daemon=True,
                    )  # fmt: skip
                    self._thread.start()

    def send(self) -> None:
        """Empty all outboxes now, as far as their servers answer."""
        for outbox, _ in list(self._outboxes.values()):
            try:
                outbox.send()
            except Exception:  # a mistake of ours must not end the thread
                logger.exception("metrics could not be sent")

    def close(self) -> None:
        """Send what is left, once, and stop the thread."""
        if not self._closed:
            self._closed = True
            self._stop.set()
            if self._outboxes:
                self.send()


def _run(background: weakref.ref[Background], stop: threading.Event, interval: float) -> None:
    while not stop.wait(interval):
        found = background()
        if found is None:
            return
        found.send()
        del found
