"""Background sending of what a process records: batched, and each request executed once.

::

    hit() ──► buffer ─── once an interval ──► backlog of each place ──► request 7 ──► server
    (no I/O)             (one thread)         (bounded)                 until it answers

A place is what one script can write: a log, or a group of counters. It has at most one request in
flight. A request has the writer's random name and a sequence number; the script stores the number
next to the data and ignores a request that it has executed. So a request whose reply was lost is
sent again, and nothing is counted twice.

A killed process loses what it recorded since the last interval. While a server is away, records
beyond `MOST_WAITING`, and those that could not be sent for `LONGEST_RETRY` seconds, are lost and
counted in ``dropped``. Recording raises no errors of servers.
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from shardkit import log_records
from shardkit.errors import ShardFailure
from shardkit.operations.commands import Call, Command, Partial, Replies, Transaction, damage_in
from shardkit.operations.deadlines import DeadlineBlock
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import BackgroundThread
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.structures.base.server_clock import ServerClock

Owner = TypeVar("Owner")

logger = logging.getLogger("shardkit.metrics")

INTERVAL = 1.0
LAST_SECONDS = 2.0  # for sending when the program ends
# Records that wait in one outbox while servers are away.
MOST_WAITING = 100_000
# Seconds for which a request is repeated; servers keep its number for an hour.
LONGEST_RETRY = 3000.0
# Rounds of one call of send(), enough for a full backlog.
_MOST_ROUNDS = 1000


class Recorder(Generic[Owner]):
    """Fills an outbox with what a structure records, and builds its requests. Thread-safe.

    Attributes:
        at_once: the most records of a request.
        dropped: the records that it lost.
    """

    at_once: int

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.discard()

    def discard(self) -> None:
        """Drop all records: a forked child has those of its parent."""
        self.lock = threading.Lock()
        self.dropped = 0

    def collect(self) -> Mapping[Any, Sequence[Any]]:
        """Return the records since the last call, by place."""
        raise NotImplementedError

    def request(self, place: Any, writer: str, number: str, records: Sequence[Any]) -> Command:
        """Return the request that writes records; its writer and number make it idempotent."""
        raise NotImplementedError

    def sent(self, replies: Sequence[tuple[Any, Sequence[Any], Any]]) -> list[Transaction]:
        """Process replies (place, records, reply); return what to write after them."""
        return []


class _Backlog:
    """The records of one place, and its request in flight."""

    __slots__ = ("number", "request", "since", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.request: list[Any] = []
        self.number = 0
        self.since = 0.0


class Outbox:
    """Sends the records of a recorder with a blocking driver. Thread-safe.

    Attributes:
        dropped: the number of records lost because servers were away or refused them.
    """

    def __init__(
        self, driver: Driver, recorder: Recorder[Any], monotonic: Callable[[], float]
    ) -> None:
        self._driver = driver
        self._recorder = recorder
        self._monotonic = monotonic
        self._warned = -1e9
        self.reset()

    def reset(self) -> None:
        """Drop everything in a forked child: its parent sends it."""
        self._lock = threading.Lock()
        self._backlogs: dict[Hashable, _Backlog] = {}
        self._waiting = 0
        self._sender = secrets.token_hex(8)
        self.dropped = 0
        self._recorder.discard()

    def send(self) -> bool:
        """Send all records without raising; return whether none are left. Usually one exchange."""
        try:
            return bool(self._driver.run(self.steps()))
        except Exception as error:  # an unknown component, a closed kit: everything waits
            self._warn(error)
            return False

    def steps(self) -> Operation[bool]:
        """The steps of `send`."""
        # Held between exchanges, so that requests keep their order; deadlines bound the time.
        with self._lock:
            for place, records in self._recorder.collect().items():
                room = max(0, MOST_WAITING - self._waiting)
                self.dropped += max(0, len(records) - room)
                if records := records[:room]:
                    self._backlogs.setdefault(place, _Backlog()).waiting.extend(records)
                    self._waiting += len(records)
            for _ in range(_MOST_ROUNDS):
                if not (yield from self._round()):
                    break
            return self._waiting == 0

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
                if damage_in(reply) is not None:  # retries would fail, too
                    self._drop(backlog)
        further = self._recorder.sent(answered)
        if further:
            for reply in (yield Partial(further)):
                if isinstance(reply, ShardFailure):  # the next request writes it again
                    self._warn(reply)
        return not replies.failed and any(each.waiting for each in self._backlogs.values())

    def _drop(self, backlog: _Backlog) -> None:
        self.dropped += len(backlog.request)
        self._waiting -= len(backlog.request)
        backlog.request = []

    def _warn(self, error: BaseException) -> None:
        """Log a failure, at most once a minute, since this log may itself be sent here."""
        now = self._monotonic()
        if now - self._warned >= 60:
            self._warned = now
            logger.warning(
                "metrics wait for a server; %d dropped so far: %s",
                self.dropped,
                error,
                extra=log_records.fields("metrics-wait", dropped=self.dropped, cause=str(error)),
            )


class Background:
    """The outboxes of a kit, and the thread that empties them every ``interval`` seconds."""

    def __init__(self, driver: Driver, interval: float = INTERVAL) -> None:
        self.driver = driver
        self.interval = interval
        self._outboxes: dict[Hashable, tuple[Outbox, Any]] = {}
        self._closed = False
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Start over in a forked child, without a thread or records."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_records = False  # perhaps, since the last sending
        _with_records.discard(self)
        for outbox, _ in self._outboxes.values():
            outbox.reset()

    @property
    def used(self) -> bool:
        """Whether records may be waiting."""
        return bool(self._outboxes) and not self._closed

    def recorder(
        self, key: Hashable, make: Callable[[], Any], monotonic: Callable[[], float]
    ) -> tuple[Outbox, Any]:
        """Return the outbox and the recorder of a key; the first call makes them."""
        with self._lock:
            if key not in self._outboxes:
                recorder = make()
                self._outboxes[key] = Outbox(self.driver, recorder, monotonic), recorder
            return self._outboxes[key]

    def start(self) -> None:
        """Note a record, and start the thread if it is not running, in 50 nanoseconds if it is.

        From now on it is sent, even if the kit is dropped unclosed or the program ends.
        """
        if not self._has_records and not self._closed:
            self._has_records = True
            _with_records.add(self)
        if self._thread is None and not self._closed:
            with self._lock:
                if self._thread is None:
                    self._thread = BackgroundThread(
                        target=_run, args=(weakref.ref(self), self._stop, self.interval),
                        name="shardkit-metrics", daemon=True,
                    )  # fmt: skip
                    self._thread.start()

    def send(self) -> None:
        """Empty all outboxes now, where their servers answer."""
        self._has_records = False  # before the records are collected: later ones are noted again
        _with_records.discard(self)
        for outbox, _ in list(self._outboxes.values()):
            try:
                if not outbox.send() and not self._closed:
                    self._has_records = True
                    _with_records.add(self)
            except Exception:  # a bug must not end the thread
                logger.exception("cannot send metrics", extra=log_records.fields("metrics-failed"))

    def close(self) -> None:
        """Make one attempt to send what is left, and stop the thread."""
        if not self._closed:
            self._closed = True
            self._stop.set()
            if self._outboxes:
                self.send()


_with_records: set[Background] = set()  # those whose records must still be sent


@atexit.register
def _send_last() -> None:
    """Make one attempt to send what is left when the program ends."""
    for background in list(_with_records):
        with DeadlineBlock(LAST_SECONDS):
            background.close()


def _run(background: weakref.ref[Background], stop: threading.Event, interval: float) -> None:
    while not stop.wait(interval):
        sender = background()
        if sender is None:
            return
        sender.send()
        del sender


class RecordingStructure(Structure[Face]):
    """A structure that also records in the process, for the kit to send in the background."""

    def __init__(
        self,
        driver: Driver,
        background: Background,
        component: str,
        name: str,
        clock: ServerClock | None,
        make_recorder: Callable[[Any], Recorder[Any]],
        *parameters: Hashable,
    ) -> None:
        super().__init__(driver, component, name)
        self._clock = clock or ServerClock()
        self._background = background
        key = (make_recorder, component, name, *parameters, self._clock)
        self._outbox, self._recorder = background.recorder(
            key, lambda: make_recorder(self), self._clock.monotonic
        )

    @operation
    def flush(self) -> Operation[bool]:
        """Send what this process has recorded; return whether nothing is left.

        Raises no errors of servers: records that cannot be sent are kept, within bounds.
        """
        return bool((yield Call(self._outbox.send)))

    @property
    def dropped(self) -> int:
        """The number of records that this process lost because servers were away or refused them.

        A record is a message, the hits of one counter in one interval, or the sum of one context's
        values in one interval. Of contexts beyond 10,000 in an interval each value counts.
        """
        lost: int = self._outbox.dropped + self._recorder.dropped
        return lost
