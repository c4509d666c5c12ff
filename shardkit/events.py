"""What shardkit does, told as it happens: commands, connections, breakers, entries, scripts.

::

    stop = shardkit.events.subscribe(print)      # any function of one argument
    kit.hash("users", component="unique").hget(7)
        CallStarted(name='ShardedHash.hget', …)
        CommandsSent(shard='unique:3', address='a.internal:6379/1', count=1, …)
        CommandsFinished(shard='unique:3', …, seconds=0.0002, refused=False)
        CallFinished(name='ShardedHash.hget', seconds=0.0003, error=None)
    stop()

A handler is called in the thread or task where it happens, before that goes on, so it must be
quick; what it raises is logged and has no other effect. Without handlers events cost nothing that
could be measured. No event shows a value, nor a key, unless a handler asks `CommandsSent` for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

__all__ = [
    "BreakerClosed",
    "BreakerOpened",
    "CallFinished",
    "CallStarted",
    "CommandsFailed",
    "CommandsFinished",
    "CommandsRetried",
    "CommandsSent",
    "ConnectionClosed",
    "ConnectionOpened",
    "EntryChanged",
    "Event",
    "ScriptLoaded",
    "log",
    "subscribe",
]

logger = logging.getLogger("shardkit")


@dataclass(slots=True, eq=False)
class CallStarted:
    """A call of an operation, a pipeline or a router has begun; its commands follow.

    Attributes:
        name: ``ShardedHash.hget``, ``pipeline``, ``each``.
        begun: when, as `time.perf_counter` tells it.
        error: why it failed, once it has.
        note: for handlers' own use, such as the span that ends with the call.
    """

    name: str
    begun: float = field(default_factory=time.perf_counter, repr=False)
    error: BaseException | None = field(default=None, repr=False)
    note: Any = field(default=None, repr=False)


@dataclass(slots=True, eq=False)
class CallFinished:
    """A call has ended; ``started`` is the same object as its beginning's."""

    started: CallStarted = field(repr=False)
    name: str
    seconds: float
    error: BaseException | None


@dataclass(slots=True, eq=False)
class CommandsSent:
    """Commands are about to be sent to one server.

    Attributes:
        shard: ``unique:7``.
        address: the server, ``a.internal:6379/1``.
        count: how many commands.
        names_of: returns their names, of each once; see ``name``.
        commands_of: returns them, each a name and its arguments.
        begun: when, as `time.perf_counter` tells it.
    """

    shard: str
    address: str
    count: int
    names_of: Callable[[], Iterable[str]] = field(repr=False)
    commands_of: Callable[[], Iterable[Sequence[Any]]] = field(default=tuple, repr=False)
    begun: float = field(default_factory=time.perf_counter, repr=False)

    @property
    def name(self) -> str:
        """The commands' name, ``HGET``; empty if they have several. A script's is its own."""
        names = {name.upper() if "/" not in name else name for name in self.names_of()}
        return names.pop() if len(names) == 1 else ""


@dataclass(slots=True, eq=False)
class CommandsFinished:
    """Their replies have come.

    Attributes:
        sent: what was told when they were sent.
        seconds: how long that took.
        refused: whether an error may be among the replies.
        waited: for how many of the seconds they waited to be written, behind others of their event
            loop; None if they did not share a connection.
    """

    sent: CommandsSent
    seconds: float
    refused: bool
    waited: float | None = None


@dataclass(slots=True, eq=False)
class CommandsFailed:
    """Their replies have not come.

    Attributes:
        sent: what was told when they were to be sent.
        seconds: how long that took.
        error: why.
        maybe_executed: whether they may have been executed.
    """

    sent: CommandsSent
    seconds: float
    error: BaseException
    maybe_executed: bool


@dataclass(slots=True, eq=False)
class CommandsRetried:
    """Commands are sent again: ``count`` of them, for the ``attempt``-th time."""

    count: int
    attempt: int


@dataclass(slots=True, eq=False)
class ConnectionOpened:
    """A connection to a server was made, in so many ``seconds``."""

    shard: str
    address: str
    seconds: float


@dataclass(slots=True, eq=False)
class ConnectionClosed:
    """A connection to a server was closed, or lost."""

    shard: str
    address: str


@dataclass(slots=True, eq=False)
class BreakerOpened:
    """A server is not asked any more; ``reason`` is the last failure."""

    address: str
    reason: str


@dataclass(slots=True, eq=False)
class BreakerClosed:
    """A server is asked again, after so many ``seconds``."""

    address: str
    seconds: float


@dataclass(slots=True, eq=False)
class EntryChanged:
    """A component has new entries."""

    component: str
    epoch: int


@dataclass(slots=True, eq=False)
class ScriptLoaded:
    """A server was given a script's text."""

    shard: str
    address: str
    script: str


Event: TypeAlias = (
    CallStarted
    | CallFinished
    | CommandsSent
    | CommandsFinished
    | CommandsFailed
    | CommandsRetried
    | ConnectionOpened
    | ConnectionClosed
    | BreakerOpened
    | BreakerClosed
    | EntryChanged
    | ScriptLoaded
)
Handler: TypeAlias = Callable[[Event], object]

handlers: list[Handler] = []
"""Those who are told. An empty list costs who looks at it a hundredth of a microsecond."""


def subscribe(handler: Handler) -> Callable[[], None]:
    """Have a function told of every event of this process from now on.

    Args:
        handler: called with each event.

    Returns:
        What ends it.
    """
    handlers.append(handler)

    def stop() -> None:
        if handler in handlers:
            handlers.remove(handler)

    return stop


def emit(event: Event) -> None:
    """Tell the handlers of an event."""
    for handler in tuple(handlers):
        try:
            handler(event)
        except Exception:  # a handler's mistake is not the caller's
            logger.exception("the event handler %r failed", handler)


def log(level: int = logging.DEBUG) -> Callable[[], None]:
    """Have every event logged by the logger ``shardkit``: failures as warnings.

    Args:
        level: of everything else.

    Returns:
        What ends it.
    """

    def write(event: Event) -> None:
        failed = isinstance(event, CommandsFailed) or (
            isinstance(event, CallFinished) and event.error is not None
        )
        logger.log(logging.WARNING if failed else level, "%s", event)

    return subscribe(write)


_texts: dict[object, str] = {}  # of shards, as making one costs as much as telling of a batch


class observed:  # noqa: N801 - a context manager
    """Tell of a call that is made inside; nothing if nobody listens."""

    __slots__ = ("_name", "_started")

    def __init__(self, name: str) -> None:
        self._name = name
        self._started: CallStarted | None = None

    def __enter__(self) -> None:
        if handlers:
            self._started = started(self._name)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._started is not None:
            finished(self._started, error)


def started(name: str) -> CallStarted:
    """Tell that a call has begun."""
    call = CallStarted(name)
    emit(call)
    return call


def finished(call: CallStarted, error: BaseException | None) -> None:
    """Tell that a call has ended."""
    call.error = error
    emit(CallFinished(call, call.name, time.perf_counter() - call.begun, error))


def sent(
    shard: object,
    address: str,
    count: int,
    names_of: Callable[[], Iterable[str]],
    commands_of: Callable[[], Iterable[Sequence[Any]]],
) -> CommandsSent:
    """Tell that commands are sent to a server."""
    text = _texts.get(shard)
    if text is None:
        text = _texts[shard] = str(shard or "")
    event = CommandsSent(text, address, count, names_of, commands_of, time.perf_counter())
    emit(event)
    return event


class watched:  # noqa: N801 - a context manager
    """Tell of what redis-py's own code sends inside; nothing if nobody listens.

    Args:
        policy: that of the server.
        commands: the commands.
    """

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
            refused = isinstance(error, ResponseError)
            lost = isinstance(error, ConnectionError | TimeoutError)
            settled(self._event, None if refused else error, refused=refused, maybe_executed=lost)


class _Hidden:
    """Hides what redis-py does from other instrumentation, which would tell of it as well.

    Attributes:
        make: returns the context; `shardkit.integrations.otel` sets it.
    """

    make: Callable[[], AbstractContextManager[Any]] = staticmethod(nullcontext)


hidden = _Hidden()


def settled(
    event: CommandsSent,
    error: BaseException | None,
    *,
    maybe_executed: bool = False,
    refused: bool = False,
    ended: float = 0.0,
    written: float = 0.0,
) -> None:
    """Tell what became of commands.

    Args:
        event: what was told when they were sent.
        error: why they failed, if they did.
        maybe_executed: whether they may have been executed then.
        refused: whether an error may be among their replies.
        ended: when, as `time.perf_counter` tells it; 0 for now.
        written: when they were written to a connection that tasks share; 0 if they were not.
    """
    seconds = (ended or time.perf_counter()) - event.begun
    if error is None:
        waited = max(0.0, written - event.begun) if written else None
        emit(CommandsFinished(event, seconds, refused, waited))
    else:
        emit(CommandsFailed(event, seconds, error, maybe_executed))
