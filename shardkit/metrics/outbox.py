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
from copy import copy
from typing import Any, Generic, TypeVar

from shardkit import log_records
from shardkit.errors import ShardFailure, ShardKitError
from shardkit.operations.commands import (
    Call,
    Command,
    Key,
    Partial,
    To,
    Transaction,
    refused_data,
)
from shardkit.operations.deadlines import DeadlineBlock, earliest
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import start_thread
from shardkit.operations.lanes import Job, Lanes
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.structures.base.server_clock import ServerClock

Owner = TypeVar("Owner")

logger = logging.getLogger("shardkit.metrics")

INTERVAL = 1.0
LAST_SECONDS = 2.0  # for sending when a kit is closed or the program ends
# Records that wait in one outbox while servers are away.
MOST_WAITING = 100_000
# Seconds for which a request is repeated; servers keep its number for an hour.
LONGEST_RETRY = 3000.0
# Rounds of one call of send(), enough for a full backlog.
_MOST_ROUNDS = 1000


class Recorder(Generic[Owner]):
    """Fills an outbox with what a structure records, and builds its requests. Thread-safe."""

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

    __slots__ = ("number", "request", "sending", "since", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.request: list[Any] = []
        self.number = 0
        self.since = 0.0
        self.sending: tuple[To, Key] | None = None  # where a job is sending it


class Outbox:
    """The records of a recorder that must be sent, or were dropped. Thread-safe."""

    def __init__(self, recorder: Recorder[Any], monotonic: Callable[[], float]) -> None:
        self._recorder = recorder
        self._monotonic = monotonic
        self._warned = -1e9
        self.reset()

    def reset(self) -> None:
        """Drop everything in a forked child: its parent sends it."""
        self._lock = threading.Lock()
        self._backlogs: dict[Hashable, _Backlog] = {}
        self._answered: list[tuple[Any, Sequence[Any], Any]] = []
        self._sender, self._number = secrets.token_hex(8), 0
        self.waiting = self.dropped = 0
        self._recorder.discard()

    def jobs(self) -> list[Job]:
        """Return what sends all records, place by place; where one is being sent, what follows it.

        A job usually takes one exchange.
        """
        with self._lock:
            for place, records in self._recorder.collect().items():
                room = max(0, MOST_WAITING - self.waiting)
                self.dropped += max(0, len(records) - room)
                if records := records[:room]:
                    self._backlogs.setdefault(place, _Backlog()).waiting.extend(records)
                    self.waiting += len(records)
            jobs = []
            for place, backlog in list(self._backlogs.items()):
                if backlog.sending is not None:
                    jobs.append(Job(*backlog.sending, _nothing()))
                elif (command := self._next(place, backlog)) is not None:
                    steps = self._send(place, backlog, command)
                    jobs.append(Job(command.to, command.key, steps))
                else:
                    del self._backlogs[place]
            return jobs

    def further(self) -> list[Job]:
        """Return what writes what followed from the replies."""
        with self._lock:
            answered, self._answered = self._answered, []
            further = self._recorder.sent(answered)
        return [Job(call.to, call.key, self._write(call)) for call in further]

    def _next(self, place: Hashable, backlog: _Backlog) -> Command | None:
        """Return the next request of a place; None if nothing waits there."""
        now, command = self._monotonic(), None
        if backlog.request and now - backlog.since > LONGEST_RETRY:
            self._drop(backlog)
        if not backlog.request and backlog.waiting:
            count = min(self._recorder.at_once, len(backlog.waiting))
            backlog.request = [backlog.waiting.popleft() for _ in range(count)]
            backlog.number = self._number = self._number + 1
            backlog.since = now
        if backlog.request:
            number, records = str(backlog.number), backlog.request
            command = self._recorder.request(place, self._sender, number, records)
        backlog.sending = None if command is None else (command.to, command.key)
        return command

    def _send(self, place: Hashable, backlog: _Backlog, command: Command) -> Operation[None]:
        try:
            for _ in range(_MOST_ROUNDS):
                [reply] = yield Partial([command])
                with self._lock:
                    if isinstance(reply, ShardFailure):
                        self._warn(reply)
                        if refused_data(reply):  # retries would fail, too
                            self._drop(backlog)
                        break
                    self._answered.append((place, backlog.request, reply))
                    self.waiting -= len(backlog.request)
                    backlog.request = []
                    following = self._next(place, backlog)
                if following is None:
                    return
                command = following
        except ShardKitError as error:  # an unknown component, a closed kit: everything waits
            self._warn(error)
        except Exception:  # a bug must not stop the sending
            _log_bug()
        backlog.sending = None

    def _write(self, transaction: Transaction) -> Operation[None]:
        [reply] = yield Partial([transaction])
        if isinstance(reply, ShardFailure):  # the next request writes it again
            self._warn(reply)

    def _drop(self, backlog: _Backlog) -> None:
        self.dropped += len(backlog.request)
        self.waiting -= len(backlog.request)
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


_MANY = 100  # outboxes of a kit


def _nothing() -> Operation[None]:
    return None
    yield


def _log_bug() -> None:
    logger.exception("cannot send metrics", extra=log_records.fields("metrics-failed"))


class Background:
    """The outboxes of a kit, which it empties every ``interval`` seconds, for each server alone."""

    def __init__(self, driver: Driver, interval: float = INTERVAL) -> None:
        self.lanes = Lanes(driver, "shardkit-metrics")
        self.interval = interval
        # With what the structures that record there share; None once these are gone.
        self._outboxes: dict[Hashable, tuple[Outbox, Any, Callable[[], _Use | None]]] = {}
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
        for outbox, *_ in self._outboxes.values():
            outbox.reset()

    @property
    def used(self) -> bool:
        """Whether records may be waiting."""
        return bool(self._outboxes) and not self._closed

    def recorder(
        self, key: Hashable, make: Callable[[], Any], monotonic: Callable[[], float]
    ) -> tuple[Outbox, Any, _Use]:
        """Return the outbox and the recorder of a key, and what keeps them for later records."""
        if len(self._outboxes) > _MANY:
            self.start()  # whose thread drops the unused ones
        with self._lock:
            known = self._outboxes.get(key)
            recorder = known[1] if known else make()
            outbox = known[0] if known else Outbox(recorder, monotonic)
            use = (known and known[2]()) or _Use()
            self._outboxes[key] = outbox, recorder, weakref.ref(use)
            return outbox, recorder, use

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
                    self._thread = threading.Thread(
                        target=_run, args=(weakref.ref(self), self._stop, self.interval),
                        name="shardkit-metrics", daemon=True,
                    )  # fmt: skip
                    start_thread(self._thread)

    def send(self, *outboxes: Outbox, wait: bool = True) -> bool:
        """Empty outboxes, by default all; return whether they are. Raises no errors of servers.

        With ``wait``, wait for the servers, but not beyond the caller's deadline.
        """
        unused: list[tuple[Hashable, Outbox, object]] = []
        if not outboxes:
            rows = list(self._outboxes.items())
            # Before sending: nothing is recorded there any more.
            unused = [(key, outbox, use) for key, (outbox, _, use) in rows if use() is None]
            outboxes = tuple(outbox for _, (outbox, *_) in rows)
            self._has_records = False  # before they are collected: later ones are noted again
            _with_records.discard(self)
        for jobs_of in (Outbox.jobs, Outbox.further) if wait else (Outbox.further, Outbox.jobs):
            jobs: list[Job] = []
            for outbox in outboxes:
                try:
                    jobs += jobs_of(outbox)
                except Exception:
                    _log_bug()
            for thread in self.lanes.start(jobs):
                if wait:
                    deadline = earliest(None)
                    thread.join(None if deadline is None else max(0.0, deadline.left()))
        with self._lock:
            for key, outbox, use in unused:
                if not outbox.waiting and self._outboxes.get(key, (None,))[-1] is use:
                    del self._outboxes[key]
        empty = not any(outbox.waiting for outbox in outboxes)
        if not empty and not self._closed:
            self._has_records = True
            _with_records.add(self)
        return empty

    def close(self) -> None:
        """Make one attempt to send what is left, for LAST_SECONDS, and stop the thread."""
        if not self._closed:
            self._closed = True
            self._stop.set()
            if self._outboxes:
                with DeadlineBlock(LAST_SECONDS):
                    self.send()


_with_records: set[Background] = set()  # those whose records must still be sent


@atexit.register
def _send_last() -> None:
    """Make one attempt to send what is left when the program ends."""
    for background in list(_with_records):
        background.close()


def _run(background: weakref.ref[Background], stop: threading.Event, interval: float) -> None:
    while not stop.wait(interval):
        sender = background()
        if sender is None:
            return
        sender.send(wait=False)
        del sender


class _Use:
    """Held by the structures that record in an outbox."""


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
        # The recorder has a copy: it must not hold what tells that it is used.
        self._outbox, self._recorder, self._use = background.recorder(
            key, lambda: make_recorder(copy(self)), self._clock.monotonic
        )

    @operation
    def flush(self) -> Operation[bool]:
        """Send what this process has recorded; return whether nothing is left.

        Raises no errors of servers: records that cannot be sent are kept, within bounds.
        """
        return bool((yield Call(self._background.send, (self._outbox,))))

    @property
    def dropped(self) -> int:
        """The number of records that this process lost because servers were away or refused them.

        A record is a message, the hits of one counter in one interval, or the sum of one context's
        values in one interval. Of contexts beyond 10,000 in an interval each value counts.
        """
        lost: int = self._outbox.dropped + self._recorder.dropped
        return lost
