"""What a new connection sends before anything else, in one exchange.

::

    CLIENT SETNAME shardkit:unique:7/17@web1/4711  component, shard, the epoch of its entries, host
                                                   and process
    ZSCORE config:witness unique                   once per client, see topology/witness.py
    EXISTS config:fence                            whether the database is closed: its shards move

Commands that the server refuses, for example for want of rights, are ignored.

A *fence* closes a database to new connections while its shards move to another server, and for
good once they have moved (see `shardkit.admin.growth.shard_move`). A connection that finds a fence
shows that in its name (``shardkit:waiting/unique:7/17@web1/4711``) and waits until the fence is
removed or the entries point elsewhere. It has sent nothing by then.

While a move holds a shard, reads use connections of their own, named
``shardkit:reading/unique:7/17@web1/4711``. A fence with ``"readers": true`` lets them pass: they
read the fence (``GET config:fence``) instead of asking whether it exists.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable, Generator
from functools import cache
from typing import Any

from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's own

from shardkit.operations.commands import Pause

FENCE_KEY = "config:fence"
FENCE_WAIT = 10.0  # seconds that a connection waits for a fence to be removed
# Name prefixes of connections that wait at a fence, and of those that only read during a move.
WAITING, READING = "shardkit:waiting/", "shardkit:reading/"
_FENCE_STEP = 0.02


class DatabaseMovedError(ConnectionError):
    """A database is closed because its shards move or have moved; nothing was executed."""

    elsewhere = False  # whether the entries point elsewhere by now


@cache
def _host() -> str:
    return re.sub(r"[^!-~]|[@/]", "-", platform.node()) or "localhost"


def lets_readers_pass(fence: bytes) -> bool:
    """Whether a fence keeps out only connections that may write."""
    try:
        return json.loads(fence)["readers"] is True
    except (ValueError, TypeError, KeyError):
        return False


def connection_name(what: str) -> str:
    """Return the name of a connection of this process: ``shardkit:unique:7/17@web1/4711``."""
    return f"shardkit:{what}@{_host()}/{os.getpid()}"


class Greeting:
    """What connections of one client send first.

    ``has_moved`` returns whether the entries point elsewhere by now; without it, fences are not
    looked for. With ``reads``, nothing is written over the connections.
    """

    def __init__(
        self,
        name: Callable[[], str],
        witness: Any = None,
        has_moved: Callable[[], bool] | None = None,
        reads: bool = False,
    ) -> None:
        self.witness = witness
        self._name = name
        self._has_moved = has_moved
        self._reads = reads
        self._ask = ("GET" if reads else "EXISTS", FENCE_KEY)

    def steps(
        self, client_name: str | None
    ) -> Generator[list[tuple[str, ...]] | Pause | int, Any, None]:
        """Yield commands, which need their replies; a `Pause`; or an epoch to confirm.

        Connections with a ``client_name`` from the entry keep that.

        Raises:
            DatabaseMovedError: the entries point elsewhere; or the fence has stayed too long.
        """
        commands: list[tuple[str, ...]] = []
        if self._reads or not client_name:
            commands.append(self._renaming(None))
        witness = self.witness
        asks = witness is not None and not witness.settled
        if asks:
            commands.append(witness.command)
        if self._has_moved is not None:
            commands.append(self._ask)
        if not commands:
            return
        replies = dict(zip(commands, (yield commands), strict=True))
        if asks and (doubted := witness.doubts(replies[witness.command])):
            yield doubted
        if self._has_moved is None or not self._is_fenced(replies[self._ask]):
            return
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
                    "the database is closed because its shards move or have moved to another "
                    "server, and the entries still name this one. See `shardkit move status`; if "
                    f"the move was interrupted: `shardkit move resume {shard}`"
                )
            yield Pause(_FENCE_STEP)
            _, fence = yield [("CLIENT", "SETNAME", WAITING + name), self._ask]
            if not self._is_fenced(fence):
                break
        yield [self._renaming(client_name)]

    def _is_fenced(self, reply: Any) -> bool:
        if self._reads:
            return isinstance(reply, bytes) and not lets_readers_pass(reply)
        return bool(reply == 1)

    def _renaming(self, client_name: str | None) -> tuple[str, ...]:
        name = client_name or self._name()
        if self._reads:
            name = READING + self._name().removeprefix("shardkit:")
        return "CLIENT", "SETNAME", name
