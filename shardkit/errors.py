"""Every error that shardkit raises, in one tree.

::

    ShardKitError
    ├── ConfigError                what the entries or the shard map say
    │   ├── InvalidEntryError      an entry that cannot be used (also a shard map's)
    │   ├── MissingEntryError      a missing entry
    │   │   └── RetiredError       a push removed the component
    │   ├── ShardCountError        a caller's shard count is not the map's
    │   ├── ConfigServerError      the config server is down and nothing is cached
    │   └── PushRefusedError       a push that would strand data
    ├── RoutingError               where a command should go
    │   ├── InvalidKeyError        not a key (also a TypeError)
    │   └── CrossShardError        one command, keys on several shards
    ├── StructureError             what a structure is asked to hold
    │   ├── InvalidArgumentError   a member, field, id or size out of range (also a ValueError)
    │   │   └── QuerySyntaxError   a search query that cannot be read, with the position
    │   ├── ParameterMismatchError opened with other parameters than it was created with
    │   ├── NewerFormatError       written by a later release, in a form that this one cannot read
    │   └── DamagedDataError       what is stored is not what was written
    ├── CoordinationError          what locks and their kin refuse
    │   ├── LockTimeoutError       a lock was not free in time (also a TimeoutError)
    │   ├── LockLostError          a lock ended before its holder released it
    │   │   └── StaleTokenError    a guarded write whose holder was replaced since
    │   ├── NotHolderError         who does not hold a lock releases or extends it
    │   └── NotDurableError        too few replicas acknowledged an acquisition
    ├── MessagingError             what files for many readers refuse
    │   ├── ChannelError           a channel of files is missing, closed, or has no such reader
    │   ├── FileLeaseLostError     a file is read whose lease has ended and was given to others
    │   ├── FileStalledError       a file whose publisher is gone, or nobody makes room for
    │   └── UnreadableFileError    a published file is truncated, or not what it should be
    ├── ShardFailure               one command on one shard; a reply slot may hold it as a value
    │   ├── ShardUnavailable       never reached, or lost before the answer came
    │   └── CommandRefused         the server answered with an error
    ├── ShardErrors                several ShardFailures (also an ExceptionGroup)
    ├── ClosedError                a kit that was closed is used
    └── LocalServerError           an embedded server did not start or stop

Each error says what is wrong and what to do about it, as ``message`` and ``remedy``. Every error
pickles. No error holds a password: secrets are masked before a message is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unicodedata import combining, east_asian_width

__all__ = [
    "ChannelError",
    "ClosedError",
    "CommandRefused",
    "ConfigError",
    "ConfigServerError",
    "CoordinationError",
    "CrossShardError",
    "DamagedDataError",
    "FileLeaseLostError",
    "FileStalledError",
    "InvalidArgumentError",
    "InvalidEntryError",
    "InvalidKeyError",
    "LocalServerError",
    "LockLostError",
    "LockTimeoutError",
    "MessagingError",
    "MissingEntryError",
    "NewerFormatError",
    "NotDurableError",
    "NotHolderError",
    "ParameterMismatchError",
    "PushRefusedError",
    "QuerySyntaxError",
    "RetiredError",
    "RoutingError",
    "ShardCountError",
    "ShardErrors",
    "ShardFailure",
    "ShardKitError",
    "ShardUnavailable",
    "StaleTokenError",
    "StructureError",
    "UnreadableFileError",
]

FEW = 5  # of what concerns many shards a message names these, and counts the others


class ShardKitError(Exception):
    """The root of the tree: ``message`` says what is wrong, ``remedy`` what to do.

    Attributes:
        ids: what a call that failed has stored, or may have stored, in the order of its arguments;
            empty if it stores nothing with an id.
    """

    ids: tuple[Any, ...] = ()

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class ConfigError(ShardKitError):
    """The configuration cannot be used as it stands."""


class InvalidEntryError(ConfigError):
    """An entry or a shard map has a field that cannot be used.

    Attributes:
        problems: everything that was found, one Problem each (empty where there is just one).
    """

    problems: tuple[Any, ...] = ()


class MissingEntryError(ConfigError):
    """An entry that is needed is not in the configuration."""


class RetiredError(MissingEntryError):
    """A push removed the component on purpose, and the message says why.

    Unlike one whose entries are merely missing, it is no longer used, also by running clients.
    """


class ShardCountError(ConfigError):
    """A decorator or router names another shard count than the configuration."""


class ConfigServerError(ConfigError):
    """The config server could not be read, and no good entries are cached."""


class PushRefusedError(ConfigError):
    """A push would change where existing data is looked for."""


class RoutingError(ShardKitError):
    """A command cannot be routed."""


class InvalidKeyError(RoutingError, TypeError):
    """The value given as a key is not text, bytes or an integer."""


class CrossShardError(RoutingError):
    """The keys of one command live on different shards."""


class StructureError(ShardKitError):
    """A structure cannot do what it is asked."""


class InvalidArgumentError(StructureError, ValueError):
    """An argument has the wrong type or is out of range."""


class QuerySyntaxError(InvalidArgumentError):
    """A search query cannot be read.

    As text it shows the place in the query below the message.

    Attributes:
        query: the query.
        position: where in it the problem begins, in characters from 0.
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
    """What is stored was written by a later release, in a form that this one cannot read.

    A worker puts a task back whose callback raises this, without counting an attempt: a worker of
    the later release does it.
    """


class DamagedDataError(StructureError):
    """What is stored under a key is not what was written there.

    A part was lost or cut, a byte changed, or somebody else writes to the key. Nothing was written
    by the call to the key in question.

    Args:
        key: the key.
        found: what is there.
        expected: what should be.
        remedy: what to do; by default to check, repair or restore it.
        component: whose key it is.
        shard: where it is, as text; filled in by whoever runs the operation.
        place: where the key is sent to, if that is not its component.

    Attributes:
        key, found, expected, component, shard, place: as given.
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
    ) -> None:
        self.place = place or component
        self.key = key.decode(errors="backslashreplace") if isinstance(key, bytes) else key
        self.found = found
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
    """A lock, or what is built like one, refuses what it is asked."""


class LockTimeoutError(CoordinationError, TimeoutError):
    """A lock, a share of a semaphore or an event was not to be had in time."""


class LockLostError(CoordinationError):
    """A lock ended before its holder released it: it expired, or somebody broke it.

    Others may hold it now. What the holder wrote meanwhile is safe only if it was guarded.
    """


class NotHolderError(CoordinationError):
    """A lock is released, extended or checked by a thread or task that does not hold it."""


class StaleTokenError(LockLostError):
    """A guarded write was refused: a later holder of the lock has written there since."""


class NotDurableError(CoordinationError):
    """Too few replicas acknowledged it in time, or it is not on disk; an acquisition was undone."""


class MessagingError(ShardKitError):
    """A channel of files refuses what it is asked."""


class ChannelError(MessagingError):
    """A channel of files is missing or closed, or has no such reader."""


class FileLeaseLostError(MessagingError):
    """A file is read or published by somebody whose lease of it has ended: others have it now."""


class FileStalledError(MessagingError, TimeoutError):
    """A file cannot be read or published to its end: nobody publishes it, or nobody makes room."""


class UnreadableFileError(MessagingError):
    """The content of a published file cannot be read: it is truncated or damaged."""


class ShardFailure(ShardKitError):
    """What happened to one command on one shard; stands in the command's reply slot.

    Attributes:
        shard: the shard as text, ``unique:7``.
        command: the command's name, ``SADD``; never its arguments.
        error: redis-py's error.
        key: the key that the command was sent for.
        maybe_executed: whether the server may have executed the command, or a part of it if it is a
            script. If not, it can be sent again without harm.
    """

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        shard: str = "",
        command: str = "",
        error: Exception | None = None,
        key: str | bytes = "",
        maybe_executed: bool = False,
    ) -> None:
        super().__init__(message, remedy)
        self.maybe_executed = maybe_executed
        self.shard = shard
        self.command = command
        self.error = error
        self.key = key
        self.__cause__ = error


class ShardUnavailable(ShardFailure):
    """The shard could not be reached, or the connection broke before its answer came.

    In the second case the command may have been executed: ``maybe_executed`` says so.
    """


class CommandRefused(ShardFailure):
    """The server answered the command with an error."""


def few(texts: Sequence[str], separator: str) -> str:
    """Join texts for a message; of many the first ones, and how many more there are."""
    if len(texts) <= FEW + 1:
        return separator.join(texts)
    return f"{separator.join(texts[:FEW])}{separator}and {len(texts) - FEW:,} more"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 shard`` or ``1,234 shards``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


class ShardErrors(ShardKitError, ExceptionGroup[ShardFailure]):
    """Failures of one exchange, at most one for each shard and kind of error.

    Attributes:
        maybe_executed: whether any of the commands that failed may have been executed.
    """

    def __new__(cls, message: str, failures: Sequence[ShardFailure]) -> ShardErrors:
        """Group the failures under a message that names their shards."""
        return ExceptionGroup.__new__(cls, message, failures)

    def __init__(self, message: str, failures: Sequence[ShardFailure]) -> None:
        Exception.__init__(self, message, failures)
        self.remedy = ""

    @property
    def maybe_executed(self) -> bool:
        """Whether any of the commands that failed may have been executed."""
        return any(getattr(failure, "maybe_executed", False) for failure in self.exceptions)

    def __str__(self) -> str:
        text = f"{self.message}: {few(list(map(str, self.exceptions)), '; ')}"
        return f"{text}; {self.remedy}" if self.remedy else text

    def derive(self, excs: Sequence[Any]) -> Any:
        """Keep the type when ``except*`` splits the group."""
        derived = ShardErrors(self.message, excs)
        derived.ids, derived.remedy = self.ids, self.remedy
        return derived


class ClosedError(ShardKitError):
    """The kit was closed."""


class LocalServerError(ShardKitError):
    """An embedded server could not be started or stopped."""
