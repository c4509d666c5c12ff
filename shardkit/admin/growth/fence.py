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

from redis.exceptions import ResponseError, WatchError

from shardkit.config.stored import WITNESS_KEY
from shardkit.errors import GrowthError
from shardkit.network.connections.databases import FENCE_KEY

FORMAT = 1
OWN_KEYS = frozenset({FENCE_KEY.encode(), WITNESS_KEY.encode()})
"""Keys of a database that are shardkit's, and do not move."""
_MARK = f"{FENCE_KEY}{{".encode()
# Several keys of a master of a cluster are in no transaction. So a script checks and writes.
_UNDER = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {0, ''} end
local n, at = 0, 2
while at <= #ARGV do
    local last = at + tonumber(ARGV[at])
    local answer = redis.pcall(unpack(ARGV, at + 1, last))
    n = n + 1
    if type(answer) == 'table' and answer.err then return {n, answer.err} end
    at = last + 1
end
return {-1, ''}"""


def is_own(key: bytes) -> bool:
    """Whether a key is shardkit's own, and does not move."""
    return key in OWN_KEYS or key.startswith(_MARK)


def fence_key(client: Any) -> str:
    """Return the key of a database's fence; of a master of a cluster, the mark of an attempt."""
    return str(getattr(client, "mark", FENCE_KEY))


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


def take(client: Any, value: bytes, require_lease: Callable[[], object]) -> None:
    """Set the fence of this attempt at a target.

    A command that arrives late does nothing: another mover may have finished by then, so that a
    fence would close a database in use.

    Raises:
        GrowthError: the lease has ended.
    """
    key = fence_key(client)
    while True:
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(key)
            require_lease()
            pipe.multi()
            pipe.set(key, value)
            with suppress(WatchError):
                pipe.execute()
                return


def close_for(client: Any, value: bytes, seconds: float) -> None:
    """Close a database for some seconds.

    Raises:
        GrowthError: it is already closed.
    """
    if not client.set(fence_key(client), value, nx=True, px=max(1, round(1000 * seconds))):
        raise GrowthError(
            f"the database is already closed: {FENCE_KEY} is set", "wait until it expires"
        )


def make_permanent(client: Any, value: bytes) -> bool:
    """Close a database for good, if it is still closed by this attempt."""
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(fence_key(client))
        if pipe.get(fence_key(client)) != value:
            return False
        pipe.multi()
        pipe.persist(fence_key(client))
        pipe.get(fence_key(client))
        try:
            _, now = pipe.execute()
        except WatchError:
            return False
        return bool(now == value)


def change(client: Any, move: str, value: bytes) -> None:
    """Replace the fence of a move; a database without it stays open."""
    while True:
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(fence_key(client))
            if move_of(pipe.get(fence_key(client))) != move:
                return
            pipe.multi()
            pipe.set(fence_key(client), value)
            with suppress(WatchError):
                pipe.execute()
                return


def is_permanent(client: Any, move: str) -> bool:
    """Whether a database was closed for good by a move."""
    return move_of(client.get(fence_key(client))) == move and client.pttl(fence_key(client)) == -1


def lift(client: Any, move: str, value: bytes | None = None) -> None:
    """Open a database that a move has closed; with ``value`` only if this attempt closed it."""
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(fence_key(client))
        there = pipe.get(fence_key(client))
        if there == value if value is not None else move_of(there) == move:
            pipe.multi()
            pipe.delete(fence_key(client))
            with suppress(WatchError):  # it has just expired, or is another attempt's
                pipe.execute()


def lift_unless_permanent(client: Any, move: str) -> bool:
    """Open a database that a move has closed for a time; return False if it is closed for good."""
    while True:
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(fence_key(client))
            if move_of(pipe.get(fence_key(client))) != move:
                return True
            if pipe.pttl(fence_key(client)) == -1:
                return False
            pipe.multi()
            pipe.delete(fence_key(client))
            with suppress(WatchError):  # it is being made permanent, or has expired
                pipe.execute()
                return True


def write_under(client: Any, value: bytes, write: Callable[[Any], object]) -> list[Any]:
    """Write to a database in one transaction, if it has the fence of this attempt.

    Raises:
        GrowthError: it has not; another process has taken over.
    """
    if hasattr(client, "mark"):
        return _write_to_master(client, value, write)
    with client.pipeline(transaction=True) as pipe:
        pipe.watch(fence_key(client))
        there = pipe.get(fence_key(client)) == value
        if there:
            pipe.multi()
            write(pipe)
            try:
                answers: list[Any] = pipe.execute()
            except WatchError:
                there = False
            else:
                return answers
    raise _taken_over()


def _write_to_master(client: Any, value: bytes, write: Callable[[Any], object]) -> list[Any]:
    with client.pipeline(transaction=False) as pipe:
        write(pipe)
        commands = [args for args, _ in pipe.command_stack]
        pipe.reset()
    if not commands:
        return []
    sent = [part for args in commands for part in (len(args), *args)]
    failed, text = client.eval(_UNDER, 1, client.mark, value, *sent)
    if failed > 0:
        raise ResponseError(
            f"Command # {failed} ({commands[failed - 1][0]}) of pipeline caused error: "
            f"{text.decode(errors='replace')}"
        )
    if failed == 0:
        raise _taken_over()
    return []


def _taken_over() -> GrowthError:
    return GrowthError("another process has taken over this move", "see: shardkit move status")
