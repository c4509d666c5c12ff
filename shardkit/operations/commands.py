"""Commands, batches and replies as plain data, without I/O.

An operation yields a batch, a list of commands and transactions for any shards, and gets the
replies in the same order. A command names its component and the key that decides the shard; the
link looks up the server. So an operation is pure, and one batch never mixes two versions of a shard
map.

A shard executes its commands in the order of the batch, except those that must be sent again after
NOSCRIPT or because a slot moved. If the order matters, use one transaction, one script, or several
batches.

::

    Command("unique", "unique:2015-05-17:80", ("SADD", "unique:2015-05-17:80", 42))
            ^ to       ^ key: decides the shard ^ args: what is sent
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, overload

from shardkit.errors import (
    CrossShardError,
    DamagedDataError,
    NewerFormatError,
    ShardErrors,
    ShardFailure,
    few,
)

Key: TypeAlias = str | bytes | int
Argument: TypeAlias = str | bytes | int | float
Reply: TypeAlias = Any

# The script that runs one command on a part of a structure.
WRITE_PART = "structures/base/write_part"


class Shard(NamedTuple):
    """One shard of a component, or (number None) its unsharded entry."""

    component: str
    number: int | None = None

    def __str__(self) -> str:
        return self.component if self.number is None else f"{self.component}:{self.number}"


class Home(NamedTuple):
    """A component's unsharded entry if it has one, otherwise the shard of the key.

    Data of a whole structure, such as a counter, lives there.
    """

    component: str


class ShardOf(NamedTuple):
    """The shard ``number`` of a component with ``shards`` shards; without shards, its entry.

    For data with part n on shard n. The keys of part n have the tag ``{name:n}``, so that they are
    together on a cluster too. `ShardCountError` if the component has another number of shards.
    """

    component: str
    number: int
    shards: int


To: TypeAlias = str | Shard | Home | ShardOf


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script. It is sent by its SHA-1; a server that lacks it gets the text once."""

    name: str
    text: str
    unplaced: int = 0  # how many of its last keys are used where the others live
    sha: str = field(init=False)
    reads: int = field(init=False)  # with how many arguments it changes nothing; -1 for none

    def __post_init__(self) -> None:
        _, mark, rest = self.text.partition("\n--@reads")
        number = rest.partition("\n")[0].strip() or 1_000_000
        object.__setattr__(self, "reads", int(number) if mark else -1)
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)

    def __repr__(self) -> str:
        return f"Script({self.name!r}, sha={self.sha[:8]})"


class Command(NamedTuple):
    """One command for one shard.

    Attributes:
        to: a component, whose shard the key decides (its entry, if it is unsharded), or a Shard,
            a Home or a ShardOf.
        key: the key that is placed, and by which a cluster routes.
        args: the command's name and arguments, as they are sent.
        script: the script that ``args`` runs by its SHA-1.
        idempotent: whether it may be sent again, once, after a lost connection. Reads always may.
        block: the seconds that the server may wait before it answers (0 for ever). Such a command
            uses a connection of its own.
    """

    to: To
    key: Key
    args: tuple[Argument, ...]
    script: Script | None = None
    idempotent: bool = False
    block: float | None = None

    @property
    def name(self) -> str:
        """The command's name, for messages."""
        if self.script is None:
            return str(self.args[0])
        # EVALSHA, the SHA-1, 1, the part, when it expires, and the command that the user called.
        return str(self.args[5]) if self.script.name == WRITE_PART else self.script.name


class Transaction(NamedTuple):
    """Commands for one shard between MULTI and EXEC; the reply is the list of their replies.

    ``to`` and ``key`` place the whole group; those of its commands are ignored.
    """

    to: To
    key: Key
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        """The name in messages."""
        return "MULTI"


class CommandList(list["Command | Transaction"]):
    """A list of commands that says more than a plain list.

    Args:
        commands: the commands.
        coalesced: whether they may be joined: GETs to MGET, SETs to MSET, HGETs to HMGET. So are
            DEL, EXISTS, TOUCH and UNLINK of one key each: the first reply is the count of all
            joined ones, the others are 0. A GET of a key of another type answers None instead of
            WRONGTYPE, so use this for keys of your own. See `shardkit.network.links.resp`. For
            uniform commands prefer `Columns`, which can be coalesced too.
        undo: the steps that undo it, given its replies, if its task is cancelled. It is completed
            first.
        timeout: of a `Partial`, the seconds after which a server has failed that has not answered;
            by default its entry says.
    """

    partial = False  # whether failures are values

    def __init__(
        self,
        commands: Iterable[Command | Transaction] = (),
        timeout: float | timedelta | None = None,
        *,
        coalesced: bool = False,
        undo: Callable[[Replies], Any] | None = None,
    ) -> None:
        super().__init__(commands)
        self.timeout, self.coalesced, self.undo = timeout, coalesced, undo


class Partial(CommandList):
    """The same, with failures as values, so that the operation can use the other replies."""

    partial = True


class Columns(Sequence["Command | Transaction"]):
    """A batch of uniform commands, given by column.

    Equivalent to a list of commands, in half of the time, because none is built unless accessed::

        Columns("users", "SET", ["user:1", "user:2"], [b"Ada", b"Bo"])
        [Command("users", "user:1", ("SET", "user:1", b"Ada")),
         Command("users", "user:2", ("SET", "user:2", b"Bo"))]

    Args:
        to: the target; see `Command`.
        name: the name of all commands.
        keys: the key of each, which places it and is its first argument.
        more: for each further argument, the values of all commands.
        idempotent: whether each may be sent again; see `Command`.
        coalesced: whether they may be joined; see `CommandList`.

    Raises:
        ValueError: the columns have different lengths.
    """

    __slots__ = ("_rows", "coalesced", "idempotent", "keys", "more", "name", "placed", "to")

    def __init__(
        self,
        to: To,
        name: str,
        keys: Sequence[Key],
        *more: Sequence[Argument],
        idempotent: bool = False,
        coalesced: bool = False,
    ) -> None:
        if any(len(column) != len(keys) for column in more):
            raise ValueError(f"{name}: {len(keys)} keys, and {[len(c) for c in more]} arguments")
        self.to = to
        self.name = name
        self.keys = keys
        self.more = more
        self.idempotent = idempotent
        self.coalesced = coalesced
        # The version of the component that placed the keys, and the numbers of their shards.
        self.placed: tuple[object, Sequence[int | None]] | None = None
        self._rows: Sequence[tuple[Argument, ...]] | None = None

    @classmethod
    def each(
        cls, to: To, name: str, keys: Sequence[Key], *args: Argument, idempotent: bool = False
    ) -> Columns:
        """Return the same command, with the same further arguments, for every key."""
        return cls(to, name, keys, *([arg] * len(keys) for arg in args), idempotent=idempotent)

    @classmethod
    def of_rows(
        cls,
        to: To,
        keys: Sequence[Key],
        rows: Sequence[tuple[Argument, ...]],
        placed: tuple[object, Sequence[int | None]] | None = None,
    ) -> Columns:
        """Return commands of several kinds, without scripts, whose ``name`` is empty.

        ``rows`` has the name and arguments of each; ``placed`` the version of a component and the
        number of each key's shard, if they are known.
        """
        batch = cls(to, "", keys)
        batch.placed, batch._rows = placed, rows
        return batch

    @property
    def rows(self) -> Sequence[tuple[Argument, ...]]:
        """The name and arguments of each."""
        if self._rows is None:
            return list(zip(repeat(self.name), self.keys, *self.more))
        return self._rows

    def kinds(self) -> set[tuple[Argument, int]]:
        """Return the names, with the numbers of arguments and the name."""
        if self._rows is None:
            return {(self.name, 2 + len(self.more))} if self.keys else set()
        return {(row[0], len(row)) for row in self._rows}

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> Command: ...
    @overload
    def __getitem__(self, at: slice) -> list[Command | Transaction]: ...
    def __getitem__(self, at: int | slice) -> Command | list[Command | Transaction]:
        if isinstance(at, slice):
            return [self[n] for n in range(len(self))[at]]
        key, rows = self.keys[at], self._rows
        args = (self.name, key, *(column[at] for column in self.more)) if rows is None else rows[at]
        return Command(self.to, key, args, None, self.idempotent)

    def __iter__(self) -> Iterator[Command]:
        for key, args in zip(self.keys, self.rows, strict=True):
            yield Command(self.to, key, args, None, self.idempotent)

    def __repr__(self) -> str:
        return f"Columns({self.to!r}, {len(self)} commands)"


class Pause(NamedTuple):
    """Yielded instead of a batch: wait ``seconds`` seconds."""

    seconds: float


class Locate(NamedTuple):
    """Yielded instead of a batch: ask where keys live, without an exchange.

    The answer has for each target its shard and, on a cluster, its slot (None elsewhere). Keys
    with equal answers can be used together in one script or command.

    Attributes:
        by_address: whether it has the shard's address in place of None.
    """

    targets: Sequence[tuple[To, Key]]
    by_address: bool = False


class Subscribe(NamedTuple):
    """Yielded instead of a batch: be woken by the server on which a key lives.

    The answer is the channel on which its scripts wake this process; empty if there is none. See
    `shardkit.network.links.wakeups`.

    Attributes:
        connect: whether to connect if there is no subscription yet.
    """

    to: To
    key: Key
    connect: bool = True


class AwaitWakeup(NamedTuple):
    """Yielded instead of a batch, after `Subscribe`: wait until a script wakes a waiter.

    The answer is the script's text; None if the wait timed out or the wake-up may be lost. Without
    a subscription, it comes after at most 0.1 seconds.

    Attributes:
        waiter: the waiter's name in the script.
        timeout: the longest wait.
    """

    to: To
    key: Key
    waiter: str
    timeout: float


class Abandon(NamedTuple):
    """Yielded instead of a batch: try to undo a wait, even after the deadline."""

    command: Command


class Call(NamedTuple):
    """Yielded instead of a batch: call a function that blocks, such as one that reads a disk.

    The answer is the function's value; its error is raised at the ``yield``. On the awaiting face
    it runs in a thread of the event loop's pool, so it must be thread-safe. It runs to its end even
    if the task is cancelled.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()


Batch: TypeAlias = Sequence[Command | Transaction]


def coalesced(batch: Batch) -> bool:
    """Whether the commands of a batch may be joined."""
    return getattr(batch, "coalesced", False)


class Replies(list[Reply]):
    """The replies to a batch, in its order."""

    failed = False  # whether one is a ShardFailure; of the class, which makes lists faster


def script_call(
    to: To,
    script: Script,
    keys: Sequence[Key],
    args: Iterable[Argument] = (),
    *,
    idempotent: bool = False,
) -> Command:
    """Return the command that runs a script on the server of its first key.

    All keys must live on one server (on a cluster: in one slot); ensure that with a hash tag or
    `Locate`.
    """
    sent = ("EVALSHA", script.sha, len(keys), *keys, *args)
    return Command(to, keys[0], sent, script, idempotent)


def raise_failures(replies: Replies, *, own: bool = True) -> None:
    """Raise one group with a failure for each shard and kind of error, if any request failed.

    With ``own``, the keys are the library's, so that a key of another type is damaged.

    Raises:
        DamagedDataError: a key has a value that shardkit has not written; the other failures are
            its cause.
        NewerFormatError: a later release has written it.
        ShardErrors: something failed.
    """
    failures: dict[tuple[object, ...], ShardFailure] = {}
    for reply in replies:
        for failure in reply if isinstance(reply, list) else (reply,):
            if isinstance(failure, ShardFailure):
                error = type(failure.error or failure)
                kind = (failure.shard, type(failure), error, failure.maybe_executed)
                failures.setdefault(kind, failure)
    if failures:
        shards = sorted({failure.shard for failure in failures.values()})
        errors = ShardErrors(
            f"{len(shards)} shard{'s' * (len(shards) > 1)} failed ({few(shards, ', ')})",
            list(failures.values()),
        )
        if own:
            for failure in failures.values():
                if (refusal := refused_data(failure)) is not None:
                    raise refusal from errors
        raise errors


def is_separated(reply: Reply) -> bool:
    """Whether a request was not sent because a split has separated its keys."""
    return isinstance(getattr(reply, "error", None), CrossShardError)


def damage_in(failure: ShardFailure) -> DamagedDataError | None:
    """Return the damage that a server's refusal reports, if it does.

    Scripts report the key, what they found and what they expected as JSON; see
    ``structures/base/lua/damage.lua``. Of WRONGTYPE the command's keys are known: one of them
    has the other type.
    """
    kind, _, rest = str(failure.error).partition(" ")
    component = failure.shard.partition(":")[0]
    if kind == "DAMAGED":
        (key, actual, expected), _ = json.JSONDecoder(strict=False).raw_decode(rest)
    elif kind in ("WRONGTYPE", "INVALIDOBJ"):
        key, actual = failure.key, "a value of another type"
        expected = "a value that is not corrupt" if kind == "INVALIDOBJ" else _type_of(failure)
    else:
        return None
    return DamagedDataError(key, actual, expected, component=component, shard=failure.shard)


def refused_data(failure: ShardFailure) -> DamagedDataError | NewerFormatError | None:
    """Return the damage, or the newer format, that a server's refusal reports, if it does."""
    kind, _, rest = str(failure.error).partition(" ")
    if kind != "NEWER":
        return damage_in(failure)
    (key, number, reads), _ = json.JSONDecoder(strict=False).raw_decode(rest)
    return NewerFormatError(
        f"{key} has format {number}, this release reads {reads}",
        "use the release that wrote it, or a later one",
    )


_OF_STRINGS = ("APPEND", "BIT", "DECR", "GET", "INCR", "MGET", "MSET", "PF", "SET", "STRLEN")
_TYPES = {  # of all other commands, by their first letter; G is GEOADD and its like
    "G": "a ZSET",
    "H": "a HASH",
    "L": "a LIST",
    "R": "a LIST",
    "S": "a SET",
    "X": "a STREAM",
    "Z": "a ZSET",
}


def _type_of(failure: ShardFailure) -> str:
    """Return the type of key that a command is for, for messages."""
    name = failure.command.upper()
    if "/" in name:  # a script
        return "another type"
    if name.startswith(_OF_STRINGS):
        return "a STRING"
    return _TYPES.get(name[:1], "another type") if name.isalnum() else "other types of keys"
