"""Events of shardkit: calls, commands, connections, circuit breakers, entries, scripts.

::

    stop = shardkit.events.subscribe(print)      # any function of one argument
    kit.hash("users", component="unique").hget(7)
        CallStarted(name='ShardedHash.hget', …)
        CommandsSent(shard='unique:3', address='a.internal:6379/1', count=1, …)
        CommandsFinished(shard='unique:3', …, seconds=0.0002, refused=False)
        CallFinished(name='ShardedHash.hget', seconds=0.0003, error=None)
    stop()

A handler runs in the thread or task of its event, which waits for it, so it must be quick. Its
exceptions are logged and have no other effect. Without handlers the cost of events is not
measurable. No event shows a value or a key, unless a handler asks `CommandsSent` for them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit import log_records
from shardkit.callbacks import check_runs
from shardkit.errors import InvalidArgumentError
from shardkit.recent import Recent

logger = logging.getLogger("shardkit")


class Event:
    """An event; its kinds are the classes below."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class CallStarted(Event):
    """A call of an operation, a pipeline or a router starts; its commands follow.

    Attributes:
        name: ``ShardedHash.hget``, ``pipeline``, ``each``.
        started_at: the start, by `time.perf_counter`.
        error: set when the call has failed.
        note: for handlers' own use, such as the span that ends with the call.
        structure: the component and the name of the structure, ``unique users``; else empty.
    """

    name: str
    started_at: float = field(default_factory=time.perf_counter, repr=False)
    error: BaseException | None = field(default=None, repr=False)
    note: Any = field(default=None, repr=False)
    structure: str = field(default="", repr=False)


@dataclass(slots=True, eq=False)
class FunctionCalled(Event):
    """A decorated function is called; ``name`` is ``shop.views.cart``."""

    name: str


@dataclass(slots=True, eq=False)
class CallFinished(Event):
    """A call has ended; ``started`` is the event of its start."""

    started: CallStarted = field(repr=False)
    name: str
    seconds: float
    error: BaseException | None


@dataclass(slots=True, eq=False)
class CommandsSent(Event):
    """Commands are about to be sent to one server.

    Attributes:
        shard: ``unique:7``.
        address: the server, ``a.internal:6379/1``.
        names_of: returns their names; see ``name``.
        commands_of: returns the commands, each a name and its arguments.
        started_at: the time, by `time.perf_counter`.
        group: the events of all shards that share one exchange with the server, in the order in
            which they end; empty for a single one.
        error: set when they have failed.
    """

    shard: str
    address: str
    count: int
    names_of: Callable[[], Iterable[str]] = field(repr=False)
    commands_of: Callable[[], Iterable[Sequence[Any]]] = field(default=tuple, repr=False)
    started_at: float = field(default_factory=time.perf_counter, repr=False)
    group: Sequence[CommandsSent] = field(default=(), repr=False)
    error: BaseException | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The commands' name, ``HGET``; empty if they have several. A script's is its own."""
        names = {name.upper() if "/" not in name else name for name in self.names_of()}
        return names.pop() if len(names) == 1 else ""


@dataclass(slots=True, eq=False)
class CommandsFinished(Event):
    """The replies to commands have arrived.

    Attributes:
        seconds: the time since then.
        refused: whether an error may be among the replies.
        error: the first error among the replies, unless shardkit sends its command again.
        waited: for how many of the seconds the commands waited behind others of their event loop;
            None if they did not share a connection.
    """

    sent: CommandsSent
    seconds: float
    refused: bool
    waited: float | None = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class CommandsFailed(Event):
    """Commands have failed: there are no replies.

    Attributes:
        seconds: the time since then.
        maybe_executed: whether the server may have executed them.
    """

    sent: CommandsSent
    seconds: float
    error: BaseException
    maybe_executed: bool


@dataclass(slots=True, eq=False)
class CommandsRetried(Event):
    """Commands are sent again: ``count`` of them, for the ``attempt``-th time."""

    count: int
    attempt: int


@dataclass(slots=True, eq=False)
class ConnectionOpened(Event):
    """A connection to a server was made in ``seconds`` seconds."""

    shard: str
    address: str
    seconds: float


@dataclass(slots=True, eq=False)
class ConnectionClosed(Event):
    """A connection to a server was closed, or lost."""

    shard: str
    address: str


@dataclass(slots=True, eq=False)
class BreakerOpened(Event):
    """A server's circuit breaker has opened; ``reason`` is the last failure."""

    address: str
    reason: str


@dataclass(slots=True, eq=False)
class BreakerClosed(Event):
    """A server's circuit breaker has closed after ``seconds`` seconds."""

    address: str
    seconds: float


@dataclass(slots=True, eq=False)
class EntryChanged(Event):
    """A component has new entries."""

    component: str
    epoch: int


@dataclass(slots=True, eq=False)
class ScriptLoaded(Event):
    """A script was loaded into a server."""

    shard: str
    address: str
    script: str


Handler: TypeAlias = Callable[[Event], object]

handlers: list[Handler] = []
"""The subscribed handlers. Checking an empty list takes a hundredth of a microsecond."""


def subscribe(handler: Handler) -> Callable[[], None]:
    """Call a function with every event of this process from now on; return a function to stop.

    Raises:
        InvalidArgumentError: it is an ``async def`` function or a generator.
    """
    check_runs("events", "handler", handler)
    handlers.append(handler)

    def stop() -> None:
        if handler in handlers:
            handlers.remove(handler)

    return stop


def emit(event: Event) -> None:
    """Send an event to the handlers."""
    for handler in tuple(handlers):
        try:
            handler(event)
        except Exception:  # must not fail the caller
            about = log_records.fields("event-handler-failed", handler=repr(handler))
            logger.exception("the event handler %r failed", handler, extra=about)


def log(level: int = logging.DEBUG) -> Callable[[], None]:
    """Log every event by ``shardkit``, failures as warnings; return a function to stop."""
    if not isinstance(level, int) or not 0 <= level < 2**31:
        raise InvalidArgumentError("log: level is no level", "give one of `logging`")

    def write(event: Event) -> None:
        failed = isinstance(event, CommandsFailed) or (
            isinstance(event, CallFinished) and event.error is not None
        )
        about = log_records.fields("telemetry", **_fields_of(event))
        logger.log(logging.WARNING if failed else level, "%s", event, extra=about)

    return subscribe(write)


def _fields_of(event: Event) -> dict[str, Any]:
    """Return the fields of a log record about an event."""
    fields: dict[str, Any] = {"kind": type(event).__name__}
    for part in (getattr(event, "sent", None), event):
        for attribute, name in _LOGGED.items():
            value = getattr(part, attribute, None)
            if value is not None:
                fields[name] = _SENT.sub("", str(value)) if attribute == "error" else value
    return fields


_LOGGED = {"address": "server", "error": "cause"} | {
    name: name for name in ("shard", "name", "count", "seconds", "component", "epoch", "script")
}
_SENT = re.compile(  # what redis-py and servers put into an error's text
    r"(?s)\ACommand # \d+ \(.*\) of pipeline caused error: |, with args beginning with: .*"
)
_texts: Recent[object, str] = Recent(65_536)  # of shards: making one costs as much as an event


class observed:  # noqa: N801 - a context manager
    """Send the events of a call that is made inside, if there are handlers."""

    __slots__ = ("_name", "_started")

    def __init__(self, name: str) -> None:
        self._name = name
        self._started: CallStarted | None = None

    def __enter__(self) -> None:
        if handlers:
            self._started = started(self._name)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._started is not None:  # a loop over steps ends with StopIteration
            finished(self._started, None if isinstance(error, StopIteration) else error)


def started(name: str, structure: str = "") -> CallStarted:
    """Send the event of a call's start."""
    call = CallStarted(name, structure=structure)
    emit(call)
    return call


def finished(call: CallStarted, error: BaseException | None) -> None:
    """Send the event of a call's end."""
    call.error = error
    emit(CallFinished(call, call.name, time.perf_counter() - call.started_at, error))


def sent(
    shard: object,
    address: str,
    count: int,
    names_of: Callable[[], Iterable[str]],
    commands_of: Callable[[], Iterable[Sequence[Any]]],
) -> CommandsSent:
    """Send the event of sending commands to a server."""
    text = _texts.get(shard)
    if text is None:
        text = _texts[shard] = str(shard or "")
    event = CommandsSent(text, address, count, names_of, commands_of, time.perf_counter())
    emit(event)
    return event


class watched:  # noqa: N801 - a context manager
    """Send the events of commands that redis-py's own code sends inside, if there are handlers."""

    __slots__ = ("_commands", "_event", "_hidden", "_policy")

    def __init__(self, policy: Any, commands: Sequence[Sequence[Any]]) -> None:
        self._policy = policy
        self._commands = commands
        self._event: CommandsSent | None = None

    def __enter__(self) -> None:
        if handlers:
            commands, policy = self._commands, self._policy
            names = [str(args[0]) for args in commands]
            self._event = sent(
                policy.shard, policy.address, len(names), lambda: names, lambda: commands
            )
            self._hidden = hidden.make()
            self._hidden.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._event is not None:
            self._hidden.__exit__(None, None, None)
            refusal = error if isinstance(error, ResponseError) else None
            lost = isinstance(error, ConnectionError | TimeoutError)
            failure = None if refusal else error
            settled(self._event, failure, refusal=refusal, maybe_executed=lost)
        if isinstance(error, RedisError):
            named = self._policy.named(error)
            if named is not error:
                raise named from error


class _Hidden:
    """Hides redis-py's calls from other instrumentation, which would report them a second time.

    `shardkit.integrations.otel` sets ``make``, which returns the context.
    """

    make: Callable[[], AbstractContextManager[Any]] = staticmethod(nullcontext)


hidden = _Hidden()


def settled(
    event: CommandsSent,
    error: BaseException | None,
    *,
    maybe_executed: bool = False,
    refused: bool = False,
    refusal: Exception | None = None,
    ended: float = 0.0,
    written: float = 0.0,
) -> None:
    """Send the event of the commands' replies, or of their failure for ``error``.

    ``refused`` is whether an error may be among the replies, ``refusal`` the first one. ``ended``
    is the end, by `time.perf_counter`, or 0 for now; ``written`` the time of writing to a
    connection that tasks share, or 0.
    """
    seconds = (ended or time.perf_counter()) - event.started_at
    event.error = error or refusal
    if error is None:
        waited = max(0.0, written - event.started_at) if written else None
        emit(CommandsFinished(event, seconds, refused or refusal is not None, waited, refusal))
    else:
        emit(CommandsFailed(event, seconds, error, maybe_executed))


if not TYPE_CHECKING:
    __all__ = sorted({*(k.__name__ for k in Event.__subclasses__()), "Event", "log", "subscribe"})
