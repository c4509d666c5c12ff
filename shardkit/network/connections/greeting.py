"""What a new connection says and asks before anything else, in one exchange.

::

    CLIENT SETNAME shardkit:unique:7/17@web1/4711  component, shard, the epoch of its entries, host
                                                   and process
    ZSCORE config:witness unique                   once per client, see topology/witness.py
    EXISTS config:fence                            whether the database is closed: its shards move

Whatever the server refuses of it, for want of rights say, is left out: connections work without.

A *fence* closes a database to new connections while its shards move to another server, and for good
once they have moved (see `shardkit.admin.growth.shard_move`). Whoever meets one says so in its name
(``shardkit:waiting/unique:7/17@web1/4711``) and waits until it is lifted, or the entries name
another place. Nothing was sent by then, so it can be sent there.

While a move holds a shard, what only reads is sent over connections of its own, which say that in
their names (``shardkit:reading/unique:7/17@web1/4711``). A fence that says ``"readers": true`` lets
them pass: they read the fence (``GET config:fence``) where others ask whether it is there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's own

FENCE_KEY = "config:fence"
FENCE_WAIT = 10.0  # seconds that a connection waits for a fence to be lifted
WAITING = "shardkit:waiting/"  # before the names of connections that wait at a fence
READING = "shardkit:reading/"  # of those over which nothing is written while a move holds the shard
_FENCE_STEP = 0.02
_ASK_FENCE = ("EXISTS", FENCE_KEY)
_READ_FENCE = ("GET", FENCE_KEY)


class DatabaseMovedError(ConnectionError):
    """A database is closed, because its shards move or have moved; nothing was executed.

    Attributes:
        elsewhere: whether the entries name another place by now.
    """

    elsewhere = False


@cache
def _host() -> str:
    return re.sub(r"[^!-~]|[@/]", "-", platform.node()) or "localhost"


def lets_readers_pass(fence: bytes) -> bool:
    """Whether a fence keeps out only those who may write."""
    try:
        return json.loads(fence)["readers"] is True
    except (ValueError, TypeError, KeyError):
        return False


def connection_name(what: str) -> str:
    """Return the name of a connection of this process: ``shardkit:unique:7/17@web1/4711``."""
    return f"shardkit:{what}@{_host()}/{os.getpid()}"


class Greeting:
    """What connections of one client say and ask first.

    Args:
        name: returns the connections' name.
        witness: what to ask; see `shardkit.network.topology.witness.EpochWitness`.
        has_moved: returns whether the entries name another place by now, read a moment ago; without
            it, fences are not asked for.
        reads: whether nothing is written over the connections.
    """

    def __init__(
        self,
        name: Callable[[], str],
        witness: Any = None,
        has_moved: Callable[[], bool] | None = None,
        reads: bool = False,
    ) -> None:
        self._name = name
        self._witness = witness
        self._has_moved = has_moved
        self._reads = reads
        self._ask = _READ_FENCE if reads else _ASK_FENCE

    def commands(self, client_name: str | None) -> list[tuple[str, ...]]:
        """Return what a connection sends; one that was given a name keeps that."""
        found: list[tuple[str, ...]] = []
        if self._reads or not client_name:
            found += self.renamed(None)
        if self._witness is not None and not self._witness.settled:
            found.append(self._witness.command)
        if self._has_moved is not None:
            found.append(self._ask)
        return found

    def heard(self, commands: list[tuple[str, ...]], replies: list[Any]) -> int:
        """Take the replies; return the epoch that has to be confirmed, 0 if there is none."""
        witness = self._witness
        if witness is None:
            return 0
        for command, reply in zip(commands, replies, strict=True):
            if command is witness.command:
                doubted: int = witness.doubts(reply)
                return doubted
        return 0

    def fenced(self, commands: list[tuple[str, ...]], replies: list[Any]) -> bool:
        """Whether the server has answered that the database is closed."""
        if commands[-1] is _READ_FENCE:
            return isinstance(replies[-1], bytes) and not lets_readers_pass(replies[-1])
        return commands[-1] is _ASK_FENCE and replies[-1] == 1

    def pauses(self) -> Iterator[tuple[float, list[tuple[str, ...]]]]:
        """Yield how long to wait, and what to ask then, for as long as the database is closed.

        Raises:
            DatabaseMovedError: the entries name another place; or it has taken too long.
        """
        assert self._has_moved is not None
        end = time.monotonic() + FENCE_WAIT
        while True:
            if self._has_moved():
                error = DatabaseMovedError("the shard has moved to another server")
                error.elsewhere = True
                raise error
            name = self._name().removeprefix("shardkit:")
            if time.monotonic() > end:
                shard = re.split("[/@]", name)[0]
                raise DatabaseMovedError(
                    "the database is closed: its shards move to another server, or have moved, and "
                    "the entries still name this one; see: shardkit move status; if that was "
                    f"interrupted: shardkit move resume {shard}"
                )
            yield _FENCE_STEP, [("CLIENT", "SETNAME", WAITING + name), self._ask]

    def renamed(self, client_name: str | None) -> list[tuple[str, ...]]:
        """Return what a connection says that has waited, and need not any more."""
        name = self._name()
        if self._reads:
            return [("CLIENT", "SETNAME", READING + name.removeprefix("shardkit:"))]
        return [("CLIENT", "SETNAME", client_name or name)]

    def confirm(self, witnessed: int) -> None:
        """See `shardkit.network.topology.witness.EpochWitness.confirm`."""
        self._witness.confirm(witnessed)

    async def aconfirm(self, witnessed: int) -> None:
        """The same, awaiting."""
        await self._witness.aconfirm(witnessed)
