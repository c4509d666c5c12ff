"""Logs on the servers: the last messages of each severity, and counts of messages by hour.

::

    logs:{shop}:recent:error    LIST   "1732280461.250000 refused", newest first, 100 of them
    logs:{shop}:common:error    ZSET   message → count, of the current hour
    logs:{shop}:last:error      ZSET   the same for the previous hour with messages
    logs:{shop}:state           HASH   the hours, and the total numbers of messages

A log is on the shard of its name, and each request is one script: it adds the messages, rotates the
hours by the server's clock, and trims. A late message counts in its own hour,
if that is still kept. The counts of an hour are removed two days after the last message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from shardkit import log_records
from shardkit.callbacks import run
from shardkit.errors import InvalidArgumentError
from shardkit.metrics.outbox import Background, Recorder, RecordingStructure
from shardkit.metrics.statistics import check_period
from shardkit.operations.arguments import checked, checked_function, shown
from shardkit.operations.commands import Argument, Command, Pause, Transaction
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_prefix, check_tag
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.damage import stored_integer
from shardkit.structures.base.parameters import of_this_format
from shardkit.structures.base.server_clock import ServerClock

SEVERITIES = ("debug", "info", "warning", "error", "critical")
LIMIT = 100
MOST_LIMIT = 10_000
# Different messages of an hour with their own counts; the others are counted together.
MOST_MESSAGES = 10_000
OTHERS = "(others)"
LONGEST_MESSAGE = 8192
# A script of 500 messages takes a server about 5 milliseconds.
AT_ONCE = 500
POLL = 0.5

_NUMBERS = {logging.getLevelName(name.upper()): name for name in SEVERITIES}
_ALIASES = {"warn": "warning", "fatal": "critical"}


class LogEntry(NamedTuple):
    """A recent message.

    Attributes:
        time: when it was logged, by the server's clock; None if the stored text has none.
        severity: debug, info, warning, error or critical.
    """

    time: datetime | None
    severity: str
    message: str


class CommonMessages(NamedTuple):
    """The counts of messages in an hour.

    Attributes:
        hour: the start of the hour, in UTC; long ago if little is logged.
        counts: messages and their counts, the most frequent first. "(others)" are those beyond the
            first 10,000 different ones.
    """

    hour: datetime
    counts: list[tuple[str, int]]


def severity_name(severity: str | int) -> str:
    """Return the name of a severity: a name in any case, or a level of `logging`.

    A level between two of the five counts as the lower one, one below DEBUG as debug.
    """
    if isinstance(severity, int) and not isinstance(severity, bool):
        return next((name for n, name in sorted(_NUMBERS.items())[::-1] if n <= severity), "debug")
    name = str(severity).lower() if isinstance(severity, str) else ""
    name = _ALIASES.get(name, name)
    if name not in SEVERITIES:
        raise InvalidArgumentError(
            f"severity={shown(severity)}", f"give {', '.join(SEVERITIES)}, or a level of logging"
        )
    return name


class _Messages(Recorder["Logs[Any]"]):
    at_once = AT_ONCE
    most = 100_000

    def discard(self) -> None:
        super().discard()
        self.messages: list[tuple[str, int, float, str, str]] = []

    def add(self, name: str, severity: int, message: str, common: str) -> None:
        when = self._owner._clock.local_seconds()
        with self.lock:
            if len(self.messages) < self.most:
                self.messages.append((name, severity, when, message, common))
            else:
                self.dropped += 1

    def collect(self) -> Mapping[Any, Sequence[Any]]:
        with self.lock:
            messages, self.messages = self.messages, []
        by_log: dict[str, list[Any]] = {}
        for name, *message in messages:
            by_log.setdefault(name, []).append(message)
        return by_log

    def request(self, place: str, writer: str, number: str, records: Sequence[Any]) -> Command:
        now = self._owner._clock.local_seconds()
        rows = [(level, max(0.0, now - when), text, same) for level, when, text, same in records]
        return self._owner._write(place, rows, writer, number)


class Logs(RecordingStructure[Face]):
    """Logs by name, each on the shard of its name. Made by ``kit.logs``.

    Args:
        limit: the number of recent messages kept of each severity.
    """

    deferred: DeferredFace[Logs[Deferred]]

    def __init__(
        self,
        driver: Driver,
        background: Background,
        component: str,
        name: str = "logs",
        limit: int = LIMIT,
        clock: ServerClock | None = None,
    ) -> None:
        check_integer(check_prefix(name), "limit", limit, 1, MOST_LIMIT)
        self.limit = limit
        super().__init__(driver, background, component, name, clock, _Messages, limit)

    # ---- logging

    def record(
        self, name: str, message: object, severity: str | int = "info", *, common: object = None
    ) -> None:
        """Log in the background: the kit sends once a second. Never blocks, awaits, or fails.

        Only the arguments are checked. Messages that cannot be sent are kept, up to 100,000;
        ``dropped`` counts the others. A killed process loses its messages since the last sending.

        Args:
            message: the text, or what ``str`` makes of it, cut after 8,192 characters.
            severity: a name, or a level of `logging`; see `severity_name`.
            common: the text to count among the common messages; by default the message. Leave out
                numbers and names, so that the same event is the same message.

        Cost: some microseconds, and no exchange.
        """
        row = self._row(message, severity, common)
        check_tag(self.name, "log", name)
        self._recorder.add(name, row[0], row[2], row[3])
        self._background.start()

    @operation
    def log(
        self, name: str, message: object, severity: str | int = "info", *, common: object = None
    ) -> Operation[None]:
        """Log at once; see `record`.

        Raises:
            ShardErrors: the server failed; ``maybe_executed`` says whether it may have logged.

        Cost: one exchange, O(log n) in the hour's different messages.
        """
        check_tag(self.name, "log", name)
        yield [self._write(name, [self._row(message, severity, common)], "at-once", "")]

    # ---- reading

    @operation
    def recent(
        self, name: str, severity: str | int = "info", limit: int = LIMIT
    ) -> Operation[list[LogEntry]]:
        """Return the last messages of a severity, newest first. Cost: one exchange, O(limit)."""
        key = self._key(name, "recent", severity)
        check_integer(self.name, "limit", limit, 1, MOST_LIMIT)
        [messages] = yield from self._read(name, self._at(key, "LRANGE", key, 0, limit - 1))
        return [_entry(severity_name(severity), stored) for stored in messages]

    @operation
    def common(
        self, name: str, severity: str | int = "info", period: str = "current", limit: int = LIMIT
    ) -> Operation[CommonMessages | None]:
        """Return the most frequent messages of an hour; None if there are none.

        Args:
            period: "current" for the latest hour with messages, "last" for the one before it.

        Raises:
            DamagedDataError: the hour or a count is damaged.

        Cost: one exchange, O(log n + limit).
        """
        check_period(self.name, period)
        kind, field = ("common", "hour") if period == "current" else ("last", "last")
        level = SEVERITIES.index(severity_name(severity))
        check_integer(self.name, "limit", limit, 1, MOST_MESSAGES + 1)
        key, state = self._key(name, kind, severity), self._key(name, "state")
        args = (f"{level}:{field}", limit)
        [reply] = yield [lua_call(self.component, "metrics/common", [state, key], args)]
        if not reply:
            return None
        hour, rows = reply
        counts = [
            (message.decode(errors="replace"), int(float(count)))
            for message, count in zip(rows[::2], rows[1::2], strict=True)
        ]
        return CommonMessages(datetime.fromtimestamp(hour, UTC), counts)

    @stream
    def follow(
        self,
        name: str,
        severity: str | int = "debug",
        *,
        limit: int = 10,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Stream[LogEntry]:
        """Iterate over messages as they are logged, for ever.

        It reads every half second. Messages are missed if a severity gets more than ``limit`` of
        the logs between two readings.

        Args:
            severity: the least severity.
            limit: the number of last messages to start with, of each severity.
            stopped: returns whether to end; called at each reading.

        Cost: one exchange in half a second.
        """
        check_integer(self.name, "limit", limit, 0, MOST_LIMIT)
        first = SEVERITIES.index(severity_name(severity))
        levels = range(first, len(SEVERITIES))
        state = self._key(name, "state")
        seen: dict[int, int] = {}
        while True:
            fields = [f"{level}:added" for level in levels]
            read = self._at(state, "HMGET", state, *fields)
            [[totals]] = yield from self._read(name, Transaction(self.component, state, (read,)))
            added = {
                level: stored_integer(self.component, state, field, n) if n is not None else 0
                for level, field, n in zip(levels, fields, totals, strict=True)
            }
            wanted = {}
            for level, count in added.items():
                new = count - seen.get(level, max(0, count - limit))
                if new < 0:  # the log was removed since
                    new = count
                if new:
                    wanted[level] = new
            entries = Page[LogEntry]()
            if wanted:
                batch = []
                for level in wanted:
                    key = self._key(name, "recent", SEVERITIES[level])
                    # Messages added since the count was read come with the next reading.
                    both = (
                        self._at(state, "HGET", state, f"{level}:added"),
                        self._at(key, "LRANGE", key, 0, MOST_LIMIT),
                    )
                    batch.append(Transaction(self.component, key, both))
                for (level, new), (now, rows) in zip(wanted.items(), (yield batch), strict=True):
                    count = stored_integer(self.component, state, f"{level}:added", now, missing=0)
                    later = max(0, count - added[level])
                    for stored in rows[later : later + new]:
                        entries.append(_entry(SEVERITIES[level], stored))
                entries.sort(key=lambda entry: entry.time or datetime.min.replace(tzinfo=UTC))
            seen = added
            yield entries
            if run(stopped):
                return
            yield Pause(POLL)

    @stream
    def check(self, name: str) -> Stream[Damage]:
        """Return what calls would refuse of a log; change nothing. Cost: eleven exchanges."""

        def look() -> Operation[None]:
            rows = [(level, 0.0, "", "") for level in range(len(SEVERITIES))]
            yield [self._write(name, rows, "at-once", "look")]

        common = (
            partial(Logs.common.steps, self, name, severity, period, MOST_MESSAGES + 1)
            for severity in SEVERITIES
            for period in ("current", "last")
        )
        yield from check_reads(look, *common)

    @operation
    def remove(self, name: str) -> Operation[bool]:
        """Remove a log; return whether there was one. Cost: two exchanges."""
        keys = self._keys(name)
        yield from self._read(name)
        [count] = yield [self._at(keys[0], "UNLINK", *keys)]
        return bool(count)

    def _row(
        self, message: object, severity: str | int, common: object
    ) -> tuple[int, float, str, str]:
        level = SEVERITIES.index(severity_name(severity))
        text = _text(message)
        return level, 0.0, text, text if common is None else _text(common)

    def _write(
        self, name: str, rows: Sequence[tuple[int, float, str, str]], writer: str, number: str
    ) -> Command:
        args: list[Argument] = [self._clock.script_seconds(), number, self.limit, MOST_MESSAGES]
        for level, age, text, same in rows:
            args += [level, f"{age:.6f}", text, same]
        keys = [f"{self.name}:{{{name}}}:sent:{writer}", *self._keys(name)]
        return lua_call(self.component, "metrics/log", keys, args, idempotent=bool(number))

    def _read(self, name: str, *reads: Command | Transaction) -> Operation[list[Any]]:
        return of_this_format(self.component, self._key(name, "state"), *reads)

    def _keys(self, name: str) -> list[str]:
        kinds = ("recent", "common", "last")
        keys = [self._key(name, kind, severity) for severity in SEVERITIES for kind in kinds]
        return [self._key(name, "state"), *keys]

    def _key(self, name: str, kind: str, severity: str | int | None = None) -> str:
        check_tag(self.name, "log", name)
        tail = "" if severity is None else f":{severity_name(severity)}"
        return f"{self.name}:{{{name}}}:{kind}{tail}"


def _text(message: object) -> str:
    try:
        text = message if isinstance(message, str) else str(message)
    except Exception:  # such as of an integer of thousands of digits
        text = shown(message)
    return text[:LONGEST_MESSAGE].encode(errors="backslashreplace").decode()


def _entry(severity: str, stored: bytes) -> LogEntry:
    when, _, message = stored.decode(errors="replace").partition(" ")
    try:
        return LogEntry(datetime.fromtimestamp(float(when), UTC), severity, message)
    except (ValueError, OverflowError, OSError):
        return LogEntry(None, severity, stored.decode(errors="replace"))


# Sending may log; a handler of the root logger must not feed itself.
_OWN = ("shardkit.", "redis.")


class LogsHandler(logging.Handler):
    """A `logging.Handler` that writes to logs of a kit, in the background.

    The common messages are the records' texts before their arguments are filled in, so that
    ``log.info("user %s came", name)`` counts as one message. It never raises into the logging code,
    and never waits for a server. It ignores messages of shardkit and redis-py.

    Args:
        logs: of a blocking or an async kit.
        name: the log; by default each logger's own name.
    """

    @checked
    def __init__(
        self, logs: Logs[Any], name: str | None = None, level: int | str = logging.NOTSET
    ) -> None:
        try:
            super().__init__(level)
        except ValueError:
            raise InvalidArgumentError(
                f"level={shown(level)}", "give a level of logging, such as INFO or 20"
            ) from None
        self._logs = logs
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record."""
        if f"{record.name}.".startswith(_OWN):
            return
        try:
            name = self._name or record.name.replace("{", "(").replace("}", ")")
            common = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
            self._logs.record(name, self.format(record), record.levelno, common=common)
        except Exception:  # as logging's own handlers do
            self.handleError(record)


@checked_function
def structlog_processor(
    logs: Logs[Any], name: str
) -> Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]:
    """Return a processor for structlog that also writes each event to a log, in the background.

    The event is the common message, followed by its values. Put the processor before the renderer:
    it does not change events.

    Args:
        logs: of a blocking or an async kit.
    """

    def processor(
        logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        try:
            text = str(event.get("event", ""))
            leave = ("event", "level", "timestamp")
            values = [f"{key}={value!r}" for key, value in event.items() if key not in leave]
            severity = "error" if method == "exception" else method
            logs.record(name, " ".join([text, *values]), severity, common=text)
        except Exception:
            logging.getLogger("shardkit.metrics").debug(
                "cannot log an event", exc_info=True, extra=log_records.fields("metrics-not-logged")
            )
        return event

    return processor
