"""What a new connection says and asks before anything else, in one exchange.

::

    CLIENT SETNAME shardkit:unique:7@web1/4711     component, shard, host and process
    ZSCORE config:witness unique                   once per client, see shardkit.topology.witness

Whatever the server refuses of it, for want of rights say, is left out: connections work without.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def _host() -> str:
    return re.sub(r"[^!-~]|[@/]", "-", platform.node()) or "localhost"


def connection_name(what: str) -> str:
    """Return the name of a connection of this process: ``shardkit:unique:7@web1/4711``."""
    return f"shardkit:{what}@{_host()}/{os.getpid()}"


class Greeting:
    """What connections of one client say and ask first.

    Args:
        name: returns the connections' name.
        witness: what to ask; see `shardkit.topology.witness.EpochWitness`.
    """

    def __init__(self, name: Callable[[], str], witness: Any = None) -> None:
        self._name = name
        self._witness = witness

    def commands(self, client_name: str | None) -> list[tuple[str, ...]]:
        """Return what a connection sends; one that was given a name keeps that."""
        found: list[tuple[str, ...]] = []
        if not client_name:
            found.append(("CLIENT", "SETNAME", self._name()))
        if self._witness is not None and not self._witness.settled:
            found.append(self._witness.command)
        return found

    def heard(self, commands: list[tuple[str, ...]], replies: list[Any]) -> int:
        """Take the replies; return the epoch that has to be confirmed, 0 if there is none."""
        witness = self._witness
        if witness is None or commands[-1] is not witness.command:
            return 0
        doubted: int = witness.doubts(replies[-1])
        return doubted

    def confirm(self, witnessed: int) -> None:
        """See `shardkit.topology.witness.EpochWitness.confirm`."""
        self._witness.confirm(witnessed)

    async def aconfirm(self, witnessed: int) -> None:
        """The same, awaiting."""
        await self._witness.aconfirm(witnessed)
