"""What is sent to which shard, and what came back: plain data, no I/O.

An operation yields a batch, a list of commands and transactions for any shards, and gets the
replies in the same order. A command names its component and the key that decides the shard; the
link looks up where that is now. So an operation is pure, and one batch never mixes two versions
of a shard map.

Commands of a batch for one shard are executed in the order of the batch, unless some have to be
sent again: because the server had forgotten their script, or a slot of a cluster was on the move.
What must keep an order goes into one transaction, one script, or into batches of its own.

::

    Command("unique", "unique:2015-05-17:80", ("SADD", "unique:2015-05-17:80", 42))
            ^ to       ^ key: decides the shard ^ args: what is sent
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Key: TypeAlias = str | bytes | int
Argument: TypeAlias = str | bytes | int | float
Reply: TypeAlias = Any


class Shard(NamedTuple):
    """One shard of a component, or (number None) its unsharded entry."""

    component: str
    number: int | None = None

    def __str__(self) -> str:
        return self.component if self.number is None else f"{self.component}:{self.number}"


class Home(NamedTuple):
    """A component's unsharded entry if it has one, otherwise the shard of the key.

    What belongs to a whole structure, such as a counter, lives there.
    """

    component: str


class ShardOf(NamedTuple):
    """The shard ``number`` of a component with so many ``shards``; without shards, its entry.

    For data in as many numbered parts as there are shards, part n on shard n. The keys of part n
    have the tag ``{name:n}``, so that they are together on a cluster too. Where the component has
    another number of shards, `ShardCountError`.
    """

    component: str
    number: int
    shards: int


To: TypeAlias = str | Shard | Home | ShardOf


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script. Sent by its SHA-1; a server that lacks it is given the text, once."""

    name: str
    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)

    def __repr__(self) -> str:
        return f"Script({self.name!r}, sha={self.sha[:8]})"


class Command(NamedTuple):
    """One command for one shard.

    Attributes:
        to: a component, whose shard the key decides (its entry, if it is unsharded), or a Shard,
            a Home or a ShardOf.
        key: the key that is placed; also what a cluster routes by.
        args: the command's name and arguments, as they are sent.
        script: the script that ``args`` runs by its SHA-1.
        idempotent: may be sent again, once, when the connection broke before the answer came.
        block: how long the server may wait before it answers, in seconds (0 for ever). Such a
            command has a connection of its own and is never fused with others.
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
        return self.script.name if self.script else str(self.args[0])


class Transaction(NamedTuple):
    """Commands for one shard between MULTI and EXEC; the reply is the list of their replies.

    ``to`` and ``key`` place the whole group; its commands' own are not looked at.
    """

    to: To
    key: Key
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return "MULTI"


class Partial(list["Command | Transaction"]):
    """A batch whose failures come back as values, so that the operation can use what succeeded."""


class Coalesced(list["Command | Transaction"]):
    """A batch in which neighbours may be joined: GETs to MGET, SETs to MSET, HGETs to HMGET.

    For keys that the caller owns: a GET of a key of another type answers None in place of
    WRONGTYPE. Everything else is as with a plain list; see `shardkit.links.coalescing`.
    """


class Pause(NamedTuple):
    """Yielded instead of a batch: wait so many seconds."""

    seconds: float


class Locate(NamedTuple):
    """Yielded instead of a batch: ask where keys live, without an exchange with their shards.

    The answer has for each target its shard and, on a cluster, its slot (None elsewhere). Keys
    with equal answers can be used together in one script or command.
    """

    targets: Sequence[tuple[To, Key]]


Batch: TypeAlias = Sequence[Command | Transaction]


class Replies(list[Reply]):
    """The replies to a batch, in its order.

    Attributes:
        failed: whether at least one is a ShardFailure.
    """

    failed = False  # of the class, so that a list of replies is made without a step of Python


def script_call(
    to: To,
    script: Script,
    keys: Sequence[Key],
    args: Iterable[Argument] = (),
    *,
    idempotent: bool = False,
) -> Command:
    """Return the command that runs a script on the server of its first key.

    All keys must live on one server (on a cluster: in one slot); the caller sees to that by a
    hash tag or by Locate.
    """
    sent = ("EVALSHA", script.sha, len(keys), *keys, *args)
    return Command(to, keys[0], sent, script, idempotent)
