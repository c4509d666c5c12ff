"""Every error that shardkit raises, in one tree; docs/errors.md has the contract.

Each error has a ``message``, the thing concerned and why, and a ``remedy``. Every error pickles. No
error contains a password: secrets are masked before a message is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from unicodedata import combining, east_asian_width

from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    InvalidResponse,
    MaxConnectionsError,
    RedisError,
    ResponseError,
    TimeoutError as RedisTimeoutError,
)

MOST_LISTED = 5  # items that a message lists; it counts the others


class ShardKitError(Exception):
    """The root of the tree: ``message`` has the thing concerned and why, ``remedy`` what to do.

    Attributes:
        ids: the ids that the failed call has stored, or may have stored, in the order of its
            arguments; empty if it stores nothing with an id.
    """

    ids: tuple[Any, ...] = ()
    __repr__ = BaseException.__repr__  # not redis-py's, which hides the message

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message.rstrip(".")  # with which a server's or driver's text may end
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class ConfigError(ShardKitError):
    """The configuration cannot be used as it stands."""


class InvalidEntryError(ConfigError):
    """An entry or a shard map has a field that cannot be used.

    Attributes:
        problems: all problems, one Problem each (empty where there is just one).
    """

    problems: tuple[Any, ...] = ()


class MissingEntryError(ConfigError):
    """The configuration lacks a necessary entry."""


class RetiredError(MissingEntryError):
    """A push removed the component on purpose, and the message has the reason.

    Unlike a component whose entries are merely missing, running clients stop using it, too.
    """


class ShardCountError(ConfigError):
    """A decorator or router names another shard count than the configuration."""


class ConfigServerError(ConfigError):
    """The config server could not be read, and no good entries are cached."""


class PushRefusedError(ConfigError):
    """A push would make clients look for existing data on other shards."""


class RoutingError(ShardKitError):
    """A command cannot be routed."""


class InvalidKeyError(RoutingError, TypeError):
    """The value given as a key is not text, bytes or an integer."""


class CrossShardError(RoutingError):
    """The keys of one command live on different shards."""


class StructureError(ShardKitError):
    """A structure cannot execute a call."""


class InvalidArgumentError(StructureError, ValueError):
    """An argument has the wrong type or is out of range."""


class MissingExtraError(InvalidArgumentError, ImportError):
    """A package of an optional extra is not installed."""


class QuerySyntaxError(InvalidArgumentError):
    """A search query cannot be read. As text the error marks the position below the message.

    Attributes:
        position: the first wrong character, from 0.
    """

    def __init__(self, message: str, remedy: str = "", query: str = "", position: int = 0) -> None:
        super().__init__(message, remedy)
        self.query = query
        self.position = position

    def __str__(self) -> str:
        # At most 40 characters on either side; wide ones push the mark by two columns.
        first = max(0, self.position - 40)
        shown = "".join(" " if c.isspace() else c for c in self.query[first : self.position + 40])
        before = shown[: self.position - first]
        columns = sum(2 if east_asian_width(c) in "WF" else not combining(c) for c in before)
        return f"{super().__str__()}\n  {shown}\n  {' ' * columns}^"


class ParameterMismatchError(StructureError):
    """An existing structure is opened with other parameters than it was created with."""


class NewerFormatError(StructureError):
    """A later release wrote the data, in a form that this one cannot read.

    If a callback raises this, the worker requeues its task without counting an attempt, for a
    worker of the later release.
    """


class DamagedDataError(StructureError):
    """The data under a key differs from what was written there.

    A part was lost or cut, a byte changed, or another program writes to the key. The call has not
    written to this key.

    Args:
        key: the key.
        found: the content.
        expected: the expected content.
        remedy: what to do; by default to restore or delete the key.
        component: the key's component.
        shard: the key's shard, as text; filled in by the driver of the operation.
        place: where the key is sent to, if that is not its component.
        search: returns steps that find the key, of which ``key`` is only the structure's name; the
            driver of the operation runs them.
    """

    def __init__(
        self,
        key: str | bytes,
        found: str,
        expected: str,
        remedy: str = "",
        *,
        component: str = "",
        shard: str = "",
        place: Any = None,
        search: Any = None,
    ) -> None:
        self.place = place or component
        self.search = search
        self.key = key.decode(errors="backslashreplace") if isinstance(key, bytes) else key
        self.found = found = shortened(found)
        self.expected = expected
        self.component = component
        self.shard = shard
        super().__init__(
            f"{self.key} is damaged: {found}, where {expected} was expected",
            remedy or "restore it, or delete it",
        )
        self.args = (key, found, expected, remedy)

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.shard}: {text}" if self.shard else text


class CoordinationError(ShardKitError):
    """A lock, or a structure built like one, cannot execute a call."""


class LockTimeoutError(CoordinationError, TimeoutError):
    """Waiting for a lock, a share of a semaphore or an event timed out."""


class LockLostError(CoordinationError):
    """A lock ended before its holder released it: it expired, or another client broke it.

    Others may hold it now. Only guarded writes of the former holder are safe.
    """


class NotHolderError(CoordinationError):
    """A lock is released, extended or checked by a thread or task that does not hold it."""


class StaleTokenError(LockLostError):
    """A guarded write was refused: a later holder of the lock has already written there."""


class NotDurableError(CoordinationError):
    """Too few replicas acknowledged a write in time, or it is not on disk; no lock was acquired."""


class MessagingError(ShardKitError):
    """A channel of files cannot execute a call."""


class ChannelError(MessagingError):
    """A channel of files is missing or closed, or has no such reader."""


class FileLeaseLostError(MessagingError):
    """The caller's lease of a file has ended: another reader or publisher has it now."""


class FileStalledError(MessagingError, TimeoutError):
    """A file does not come to its end: its publisher has stopped, or no reader frees room."""


class UnreadableFileError(MessagingError):
    """The content of a published file cannot be read: it is truncated or damaged."""


class ShardFailure(ShardKitError, RedisError):
    """The failure of one command on one shard; takes the command's reply slot.

    Attributes:
        shard: the shard as text, ``unique:7``.
        address: the server, ``10.0.0.2:6379/0``.
        command: the command's name, ``SADD``; never its arguments.
        error: redis-py's error.
        key: the key that the command was sent for.
        maybe_executed: whether the server may have executed the command, or a part of a script. If
            not, sending it again is safe.
    """

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        shard: str = "",
        address: str = "",
        command: str = "",
        error: Exception | None = None,
        key: str | bytes = "",
        maybe_executed: bool = False,
    ) -> None:
        super().__init__(message, remedy)
        self.maybe_executed = maybe_executed
        self.shard = shard
        self.address = address
        self.command = command
        self.error = error
        self.key = key
        self.__cause__ = error


class ShardUnavailable(ShardFailure, ConnectionError):
    """The shard was not reached, or its connection broke: then ``maybe_executed`` is set."""


class BreakerOpenError(ShardUnavailable):
    """A server's circuit breaker is open: nothing was sent."""


class OverloadError(ShardUnavailable, MaxConnectionsError):
    """Too many commands are waiting for a server: nothing was sent."""


class ShardTimeout(ShardUnavailable, RedisTimeoutError):
    """The server did not answer in time."""


class DeadlineExceeded(ShardTimeout):
    """A deadline has passed, after ``waited`` seconds of waiting for the server."""

    waited = 0.0


class UnexpectedReply(ShardFailure, InvalidResponse):
    """The server answered with something else than the command promises: it is not Redis's reply.

    ``error`` is what reading the reply raised. The command may have been executed.
    """

    place: Any = None  # where the command was sent to, until `locate`

    def locate(self, shard: object, address: str) -> None:
        """Name the shard and the server."""
        self.shard, self.address = str(shard), address
        self.message = f"{shard} ({address}): {self.message}"
        self.args = (self.message, self.remedy)


class CommandRefused(ShardFailure, ResponseError):
    """The server answered the command with an error."""


def few(texts: Sequence[str], separator: str) -> str:
    """Join texts for a message: if there are many, the first ones and the number of the others."""
    if len(texts) <= MOST_LISTED + 1:
        return separator.join(texts)
    return f"{separator.join(texts[:MOST_LISTED])}{separator}and {len(texts) - MOST_LISTED:,} more"


def not_pickled(_: object) -> NoReturn:
    """Refuse to pickle or copy: the ``__reduce__`` of what holds connections."""
    raise ShardKitError(
        "a kit and what it returns cannot be pickled or copied: they hold connections",
        "pass the map's path or the config server's URL, and connect in the other process",
    )


@contextmanager
def naming(file: object) -> Iterator[None]:
    """Have the system's errors name a file; that of a full disk does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Have imports name the extra that installs a missing package.

    Args:
        name: the extra, as in ``pip install 'shardkit[name]'``.
        what: what needs the package, in the plural.

    Raises:
        MissingExtraError: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing == "shardkit":
            raise
        raise MissingExtraError(
            f"{what} need {missing}, which is not installed", f"pip install 'shardkit[{name}]'"
        ) from None


def natural(text: str) -> list[str | int]:
    """Return a key that sorts texts as people count: ``users:2`` before ``users:10``."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", text)]


def shortened(text: str, most: int = 300) -> str:
    """Return a text that may show stored data, without its end if it is long."""
    return text if len(text) <= most else f"{text[:most]}…"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 shard`` or ``1,234 shards``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


class ShardErrors(ShardKitError, RedisError, ExceptionGroup[Exception]):
    """Failures of one exchange, at most one for each shard and kind of error.

    If all are of one kind, the group is of that kind too: a `ShardsUnavailable` or a
    `CommandsRefused`, with the attributes of its first failure.

    Attributes:
        maybe_executed: whether any of the commands that failed may have been executed.
    """

    def __new__(cls, message: str, failures: Sequence[Exception]) -> ShardErrors:
        """Group the failures under a message that names their shards."""
        if cls is ShardErrors:
            for kind, group in (
                (ShardUnavailable, ShardsUnavailable),
                (CommandRefused, CommandsRefused),
            ):
                if all(isinstance(failure, kind) for failure in failures):
                    cls = group
        return ExceptionGroup.__new__(cls, message, failures)

    def __init__(self, message: str, failures: Sequence[Exception]) -> None:
        RedisError.__init__(self, message, failures)
        self.remedy = ""
        self.maybe_executed = any(getattr(failure, "maybe_executed", False) for failure in failures)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the first failure, if the group is of its kind."""
        if name in ("shard", "address", "command", "error", "key") and isinstance(
            self, ShardFailure
        ):
            return getattr(self.exceptions[0], name)
        raise AttributeError(name, name=name, obj=self)

    def __str__(self) -> str:
        text = f"{self.message}: {few(list(dict.fromkeys(map(str, self.exceptions))), '; ')}"
        return f"{text}; {self.remedy}" if self.remedy else text

    def derive(self, excs: Sequence[Any]) -> Any:
        """Keep the type when ``except*`` splits the group."""
        whole = OperationErrors if isinstance(self, OperationErrors) else ShardErrors
        derived = whole(self.message, excs)
        derived.ids, derived.remedy = self.ids, self.remedy
        return derived


class ShardsUnavailable(ShardErrors, ShardUnavailable):
    """All failures of an exchange are of shards that could not be reached, or were lost."""


class CommandsRefused(ShardErrors, CommandRefused):
    """All failures of an exchange are errors that servers answered with."""


class OperationErrors(ShardErrors):
    """Operations that ``together`` ran have failed, each with one of ``exceptions``.

    All others have completed.
    """


class ClosedError(ShardKitError):
    """The kit was closed."""


class LocalServerError(ShardKitError):
    """An embedded server could not be started or stopped."""


class GrowthError(ShardKitError):
    """A failover or a move cannot continue; the error says what state the servers are in."""


class MissedChangesError(GrowthError):
    """Keys may have changed without a notification, so a copy has to start again."""


class PersistenceError(ShardKitError):
    """A server could not save its data, or not in time."""


if not TYPE_CHECKING:
    __all__ = sorted(
        n
        for n, kind in globals().items()
        if getattr(kind, "__module__", "") == __name__ and isinstance(kind, type)
    )
