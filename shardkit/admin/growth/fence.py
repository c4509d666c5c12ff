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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import Any, TypeAlias

from redis.exceptions import ResponseError, WatchError

from shardkit.admin.growth.exchange import (
    Clients,
    Commands,
    Line,
    accepted,
    ask_each,
    by_server,
    one_connection,
)
from shardkit.admin.growth.relocation import Place
from shardkit.config.component import WITNESS_KEY
from shardkit.errors import GrowthError
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.links.resp import Arguments

Fences: TypeAlias = Mapping[Place, bytes | None]
Writes: TypeAlias = Mapping[Place, Sequence[Commands]]
"""Batches of commands."""

FORMAT = 1
OWN_KEYS = frozenset({FENCE_KEY.encode(), WITNESS_KEY.encode(), b"config:growth:token"})
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


class WriteRefusedError(ResponseError):
    """A server refuses a command of a transaction, for a ``key`` at a ``place``."""

    def __init__(self, text: str, place: Place, key: Any) -> None:
        super().__init__(text)
        self.place, self.key = place, key


def is_own(key: bytes) -> bool:
    """Whether a key is shardkit's own, and does not move."""
    return key in OWN_KEYS or key.startswith(_MARK)


def fence_key(client: Any) -> str:
    """Return the key of a database's fence; of a master of a cluster, the mark of an attempt."""
    return str(getattr(client, "mark", FENCE_KEY))


def proof_key(client: Any) -> str:
    """Return the key of a target that has everything: its value is the move."""
    return f"{getattr(client, 'mark', f'{FENCE_KEY}{{}}')}:copied"


def fence_value(
    move: str,
    attempt: str,
    target: str,
    *,
    readers: bool = False,
    record: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Return a fence: its move, the attempt, the target, and whether readers may pass.

    A source's fence has the ``record`` of the move, from which that can be written again.
    """
    said = {"format": FORMAT, "move": move, "attempt": attempt, "to": target}
    said |= {"record": record} if record else {}
    return json.dumps({**said, "readers": True} if readers else said, sort_keys=True).encode()


def move_of(value: bytes | None) -> str | None:
    """Return the move that set a fence; None if there is none, or it cannot be read."""
    try:
        return None if value is None else str(json.loads(value)["move"])
    except (ValueError, TypeError, KeyError):
        return None


def record_in(value: bytes | None) -> dict[str, Any]:
    """Return the record of a move that a source's fence has; empty if it has none."""
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(value or b"{}")["record"]
        return found if isinstance(found, dict) else {}
    return {}


def take(clients: Clients, value: bytes, require_lease: Callable[[], object]) -> None:
    """Set the fence of this attempt at targets.

    A command that arrives late does nothing: another mover may have finished by then, so that a
    fence would close a database in use.
    """

    def mark(fences: Fences) -> Writes:
        require_lease()
        return {place: [[("SET", fence_key(clients[place]), value)]] for place in fences}

    _insist(clients, mark)


def close_for(clients: Clients, value: bytes, seconds: float) -> None:
    """Close databases for some seconds."""
    until = ("NX", "PX", max(1, round(1000 * seconds)))
    if None in ask_each(clients, lambda client: ("SET", fence_key(client), value, *until)):
        raise GrowthError(
            f"the database is already closed: {FENCE_KEY} is set", "wait until it expires"
        )


def fences_of(clients: Clients) -> list[bytes | None]:
    """Return the fences of databases, by server."""
    return ask_each(clients, lambda client: ("GET", fence_key(client)))


def make_permanent(clients: Clients, value: bytes) -> bool:
    """Close databases for good, if all are still closed by this attempt."""

    def persist(fences: Fences) -> Writes:
        if any(fence != value for fence in fences.values()):
            return {}
        keys = {place: fence_key(client) for place, client in clients.items()}
        return {place: [[("PERSIST", key), ("GET", key)]] for place, key in keys.items()}

    answers = _transact(clients, persist) or ()
    return bool(answers) and all(fence == value for fence in answers[1::2])


def change(clients: Clients, move: str, value: bytes) -> None:
    """Replace the fences of a move; databases without one stay open."""

    def replace(fences: Fences) -> Writes:
        own = (place for place, fence in fences.items() if move_of(fence) == move)
        return {place: [[("SET", fence_key(clients[place]), value)]] for place in own}

    _insist(clients, replace)


def is_permanent(client: Any, move: str) -> bool:
    """Whether a database was closed for good by a move."""
    return move_of(client.get(fence_key(client))) == move and client.pttl(fence_key(client)) == -1


def lift(
    clients: Clients,
    move: str,
    value: bytes | None = None,
    former: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Open databases that a move has closed; with ``value`` those that this attempt closed.

    Those that an earlier move had closed get the ``former`` fence again.
    """
    first: dict[Place, bytes | None] = {}

    def delete(fences: Fences) -> Writes:
        found = first or fences
        own = [
            place
            for place, fence in fences.items()
            if fence == found[place]  # else it is another attempt's now
            and (fence == value if value is not None else move_of(fence) == move)
        ]
        first.update(found)
        keys = {place: fence_key(clients[place]) for place in own}
        return {
            at: [[("SET", key, former[str(at)]) if str(at) in former else ("DEL", key)]]
            for at, key in keys.items()
        }

    _insist(clients, delete)


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


def write_under(clients: Clients, value: bytes, writes: Writes) -> None:
    """Write to databases, in one transaction for each server, if all have this attempt's fence.

    Raises:
        GrowthError: one has not; another process has taken over.
        WriteRefusedError: a server refuses one of the commands.
    """
    masters = {place for place, client in clients.items() if hasattr(client, "mark")}
    for place in masters:
        commands = [each for batch in writes[place] for each in batch]
        if not commands:
            continue
        client = clients[place]
        sent = [part for args in commands for part in (len(args), *args)]
        failed, text = client.eval(_UNDER, 1, client.mark, value, *sent)
        if failed > 0:
            raise WriteRefusedError(text.decode(errors="replace"), place, commands[failed - 1][1])
        if failed == 0:
            raise taken_over()
    if masters:
        return

    def require(fences: Fences) -> Writes:
        if any(fence != value for fence in fences.values()):
            raise taken_over()
        return writes

    if _transact(clients, require) is None:
        raise taken_over()


def _insist(clients: Clients, decide: Callable[[Fences], Writes]) -> None:
    """Repeat `_transact` until no fence has changed in between."""
    while _transact(clients, decide) is None:
        pass


def _transact(clients: Clients, decide: Callable[[Fences], Writes]) -> list[Any] | None:
    """Execute what a function makes of the fences of databases, in a transaction for each server.

    Return the replies; or None if a fence has changed in between, and nothing was executed on that
    server. Cost: two exchanges with each server, with all of them at once.
    """
    with ExitStack() as stack:
        lines: list[tuple[Line, list[Place]]] = []
        for server, own in by_server(clients).items():
            line = stack.enter_context(one_connection(next(iter(own.values()))))
            lines.append((line, [Place(server, number) for number in own]))
            commands: list[Arguments] = []
            for number, client in own.items():
                key = fence_key(client)
                commands += [("SELECT", number), ("WATCH", key), ("GET", key)]
            line.post(commands)
        fences: dict[Place, bytes | None] = {}
        for line, places in lines:
            fences |= zip(places, accepted(line.replies())[2::3], strict=True)
        writes = decide(fences)
        sent: list[list[tuple[Place, Commands]]] = []
        for line, places in lines:
            batches = [
                (place, batch)
                for place in places
                if place in writes
                for batch in ([("SELECT", place.database)], *writes[place])
            ]
            sent.append(batches)
            home = [("SELECT", places[0].database)]
            if batches:
                line.post([("MULTI",)], *(batch for _, batch in batches), [("EXEC",)], home)
            else:
                line.post([("UNWATCH",)], home)
        done = [
            _executed(batches, line.replies()[:-1]) if batches else []
            for batches, (line, _) in zip(sent, lines, strict=True)
        ]
    return None if None in done else [answer for own in done for answer in own or ()]


def _executed(sent: Sequence[tuple[Place, Commands]], replies: Sequence[Any]) -> list[Any] | None:
    """Return the answers to a transaction, but for SELECT; None if it was aborted."""
    *queued, done = replies
    if done is None:
        return None
    answers = []
    results = iter(done if isinstance(done, list) else queued[1:])
    for place, batch in sent:
        for args, answer in zip(batch, results, strict=False):
            if isinstance(answer, Exception):
                raise WriteRefusedError(str(answer), place, args[1])
            if args[0] != "SELECT":
                answers.append(answer)
    if isinstance(done, Exception):
        raise done
    return answers


class GuardedWrites:
    """Writes to a database, each a transaction under the fence of this attempt.

    The reply to one is read when the next one is due, or at the end: as `write_under` then.
    """

    def __init__(self, place: Place, client: Any, value: bytes) -> None:
        self._place, self._value = place, value
        self._line = Line(client)
        self._watch: Commands = [("WATCH", fence_key(client)), ("GET", fence_key(client))]
        self._sent: list[tuple[Place, Commands]] = []
        self._ended = False
        self._line.post(self._watch)

    def write(self, batches: Sequence[Commands]) -> None:
        """Send commands."""
        self.settle()
        self._sent = [(self._place, batch) for batch in batches]
        self._line.post([("MULTI",)], *batches, [("EXEC",)], self._watch)

    def settle(self) -> None:
        """Read the reply to the last write, if that has not been done."""
        if not self._line.is_due:
            return
        *replies, _, fence = self._line.replies()
        if replies and _executed(self._sent, replies) is None:
            raise taken_over()
        if isinstance(fence, Exception):
            raise fence
        if fence != self._value:
            raise taken_over()

    def end(self) -> None:
        """Read the last reply."""
        self.settle()
        self._line.ask([("UNWATCH",)])
        self._ended = True

    def close(self) -> None:
        """Give the connection back, or close it if the writes have not ended."""
        self._line.close(self._ended)


def taken_over() -> GrowthError:
    """Return the error for an attempt whose fence is gone."""
    return GrowthError("another process has taken over this move", "see: shardkit move status")
