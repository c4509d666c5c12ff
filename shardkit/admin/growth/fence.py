"""Fences: keys that close a database to clients whose entries are out of date.

::

    source  SET config:fence {"move": …, "readers": true} NX PX 350    no writes for this time
            …                                                writers leave; the rest is copied
            PERSIST config:fence                             closed for good: this decides the move
            SET config:fence {"move": …}                     closed to readers too: entries changed
    target  SET config:fence {"move": …}                     only this attempt copies to it
            SET config:fence {"move": …, "readers": true}    decided: it may be read
            DEL config:fence                                 no reader is left at the source

Each new connection asks for the fence before it sends anything (see
`network/connections/databases.py`). From the first to the last of these steps nothing changes on
either side, so both may be read. A fence that expires by itself opens the database again if the
mover dies. A mover that was only stopped finds its fence gone: `make_permanent` alone decides a
move. Each of the mover's writes also depends on the fence of its attempt.

A mover that resumes marks the target first, and then opens the source; a mover that decides closes
the source first, and then checks the target. So of two movers at least one finds the other's mark.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import WatchError

from shardkit.config.stored import WITNESS_KEY
from shardkit.errors import GrowthError
from shardkit.network.connections.databases import FENCE_KEY

FORMAT = 1
OWN_KEYS = frozenset({FENCE_KEY.encode(), WITNESS_KEY.encode()})
"""Keys of a database that are shardkit's, and do not move."""


def fence_value(move: str, attempt: str, target: str, *, readers: bool = False) -> bytes:
    """Return a fence: its move, the attempt, the target, and whether readers may pass."""
    said = {"format": FORMAT, "move": move, "attempt": attempt, "to": target}
    return json.dumps({**said, "readers": True} if readers else said, sort_keys=True).encode()


def move_of(value: bytes | None) -> str | None:
    """Return the move that set a fence; None if there is none, or it cannot be read."""
    try:
        return None if value is None else str(json.loads(value)["move"])
    except (ValueError, TypeError, KeyError):
        return None


def close_for(client: Any, value: bytes, seconds: float) -> None:
    """Close a database for some seconds.

    Raises:
        GrowthError: it is already closed.
    """
    if not client.set(FENCE_KEY, value, nx=True, px=max(1, round(1000 * seconds))):
        raise GrowthError(
            f"the database is already closed: {FENCE_KEY} is set", "wait until it expires"
        )


def make_permanent(client: Any, value: bytes) -> bool:
    """Close a database for good, if it is still closed by this attempt."""
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(FENCE_KEY)
        if pipe.get(FENCE_KEY) != value:
            return False
        pipe.multi()
        pipe.persist(FENCE_KEY)
        pipe.get(FENCE_KEY)
        try:
            _, now = pipe.execute()
        except WatchError:
            return False
        return bool(now == value)


def change(client: Any, move: str, value: bytes) -> None:
    """Replace the fence of a move; a database without it stays open."""
    while True:
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(FENCE_KEY)
            if move_of(pipe.get(FENCE_KEY)) != move:
                return
            pipe.multi()
            pipe.set(FENCE_KEY, value)
            with suppress(WatchError):
                pipe.execute()
                return


def is_permanent(client: Any, move: str) -> bool:
    """Whether a database was closed for good by a move."""
    return move_of(client.get(FENCE_KEY)) == move and client.pttl(FENCE_KEY) == -1


def lift(client: Any, move: str, value: bytes | None = None) -> None:
    """Open a database that a move has closed; with ``value`` only if this attempt closed it."""
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(FENCE_KEY)
        there = pipe.get(FENCE_KEY)
        if there == value if value is not None else move_of(there) == move:
            pipe.multi()
            pipe.delete(FENCE_KEY)
            with suppress(WatchError):  # it has just expired, or is another attempt's
                pipe.execute()


def lift_unless_permanent(client: Any, move: str) -> bool:
    """Open a database that a move has closed for a time; return False if it is closed for good."""
    while True:
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(FENCE_KEY)
            if move_of(pipe.get(FENCE_KEY)) != move:
                return True
            if pipe.pttl(FENCE_KEY) == -1:
                return False
            pipe.multi()
            pipe.delete(FENCE_KEY)
            with suppress(WatchError):  # it is being made permanent, or has expired
                pipe.execute()
                return True


def write_under(client: Any, value: bytes, write: Callable[[Any], object]) -> list[Any]:
    """Write to a database in one transaction, if it has the fence of this attempt.

    Raises:
        GrowthError: it has not; another process has taken over.
    """
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(FENCE_KEY)
        there = pipe.get(FENCE_KEY) == value
        if there:
            pipe.multi()
            write(pipe)
            try:
                answers: list[Any] = pipe.execute()
            except WatchError:
                there = False
            else:
                return answers
    raise GrowthError("another process has taken over this move", "see: shardkit move status")
