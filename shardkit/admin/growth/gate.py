"""How one side of a copy is closed to clients: databases by fences, clusters by their nodes.

Fences are keys that close a database to clients whose entries are out of date::

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

Of a cluster, the masters are the places of a split::

    all nodes   CLUSTER SLOTS                        which master has which slots
    master      SET config:fence{tag} {"move": …}    the attempt that is at work
                CLIENT PAUSE 350 WRITE               writers wait, at most for this time
                …                                    the rest is copied
                CONFIG SET min-replicas-to-write N   writers are refused for good, also by replicas
                CLIENT UNPAUSE                       those that waited are refused, and go elsewhere

A cluster's clients ask for no fence. So the nodes refuse writes, by a number of replicas that no
master has; reads pass. The pause ends by itself if the mover dies; the setting is taken back by
`resume` or `abort`. Each change of it depends on the key of the attempt, so a mover that was
stopped, while another one has taken over, changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from redis.exceptions import RedisError, ResponseError, WatchError
from redis.utils import str_if_bytes

from shardkit.admin.growth.exchange import (
    Clients,
    Commands,
    Line,
    accepted,
    ask_each,
    at_once,
    by_server,
    connections_to,
    only_reads,
)
from shardkit.admin.growth.journal import LEAVE, Lease, Move, essence, wait_until_read
from shardkit.admin.growth.relocation import Place, ServerAddress, Stored
from shardkit.admin.growth.servers import LoginOf, connected_to, persist_roles
from shardkit.admin.servers import execute_unless_changed
from shardkit.errors import GrowthError, counted, few
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.connections.redis_private import parse_error
from shardkit.network.links.resp import Arguments
from shardkit.operations.arguments import parse_json
from shardkit.routing.placement import SLOTS

Writes: TypeAlias = Mapping[Place, Commands]

FORMAT = 1
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
    """A server refuses a command of a script, for a ``key`` at a ``place``."""

    def __init__(self, text: str, place: Place, command: Arguments) -> None:
        super().__init__(text)
        self.place = place
        self.key: Any = command[2 if command[0] == "XGROUP" else 1]


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
    fence = {"format": FORMAT, "move": move, "attempt": attempt, "to": target}
    fence |= {"record": record} if record else {}
    return json.dumps({**fence, "readers": True} if readers else fence, sort_keys=True).encode()


def move_of(value: bytes | None) -> str | None:
    """Return the move that set a fence; None if there is none, empty if it cannot be read."""
    try:
        return None if value is None else str(parse_json(value)["move"])
    except (ValueError, TypeError, KeyError):
        return ""


def record_in(value: bytes | None) -> dict[str, Any]:
    """Return the record of a move that a source's fence has; empty if it has none."""
    with suppress(ValueError, TypeError, KeyError):
        record = parse_json(value or b"{}")["record"]
        return record if isinstance(record, dict) else {}
    return {}


def as_emptied(fence: str) -> str:
    """Return a fence whose record says that the database was emptied."""
    if record := record_in(fence.encode()):
        record["emptied"] = True
        return json.dumps({**parse_json(fence), "record": record}, sort_keys=True)
    return fence


def take(clients: Clients, value: bytes, require_lease: Callable[[], object]) -> None:
    """Set the fence of this attempt at targets.

    A command that arrives late does nothing: another mover may have finished by then, so that a
    fence would close a database in use.
    """

    def mark(client: Any) -> None:
        key = fence_key(client)
        while not execute_unless_changed(
            client, key, lambda _: require_lease(), ("SET", key, value)
        ):
            pass

    each_of(mark, clients)


def close_for(clients: Clients, value: bytes, seconds: float) -> None:
    """Close databases for some seconds."""
    until = ("NX", "PX", max(1, round(1000 * seconds)))
    answers = ask_each(clients, lambda at: ("SET", fence_key(clients[at]), value, *until))
    if None in answers.values():
        raise GrowthError(
            f"the database is already closed: {FENCE_KEY} is set",
            "wait until it expires, or: shardkit changes repair",
        )


def fences_of(clients: Clients) -> dict[Place, bytes | None]:
    """Return the fences of databases."""
    return ask_each(clients, lambda at: ("GET", fence_key(clients[at])))


def make_permanent(clients: Clients, value: bytes) -> bool:
    """Close databases for good that are still closed by this attempt; return whether all are."""
    writes = {at: (value, [("PERSIST", fence_key(client))]) for at, client in clients.items()}
    return all(_under(clients, writes).values())


def change(clients: Clients, move: str, value: bytes) -> None:
    """Replace the fences of a move; databases without one stay open."""
    while own := {
        place: (fence, [("SET", fence_key(clients[place]), value)])
        for place, fence in fences_of(clients).items()
        if fence is not None and move_of(fence) == move
    }:
        if all(_under(clients, own).values()):
            return


def is_permanent(client: Any, move: str) -> bool:
    """Whether a database was closed for good by a move."""
    return move_of(client.get(fence_key(client))) == move and client.pttl(fence_key(client)) == -1


def lift(
    clients: Clients,
    move: str,
    fences: Mapping[Place, bytes | None] | None = None,
    former: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Open databases that a move has closed; with ``fences`` those that still have these.

    A fence that cannot be read has overwritten that of the move. Databases that an earlier move had
    closed get the ``former`` fence again.
    """
    own = {
        place: fence
        for place, fence in (fences_of(clients) if fences is None else fences).items()
        if fence is not None and move_of(fence) in (move, "")
    }

    def opens(at: Place) -> Arguments:
        key = fence_key(clients[at])
        return ("SET", key, former[str(at)]) if str(at) in former else ("DEL", key)

    # A fence that has changed since is another attempt's.
    _under(clients, {at: (fence, [opens(at)]) for at, fence in own.items()})


def lift_unless_permanent(client: Any, move: str) -> bool:
    """Open a database that a move has closed for a time; return False if it is closed for good."""
    while True:
        with client.pipeline(transaction=True) as pipe:
            pipe.watch(fence_key(client))
            holder = move_of(pipe.get(fence_key(client)))
            if holder not in (move, ""):
                return True
            if holder and pipe.pttl(fence_key(client)) == -1:
                return False
            pipe.multi()
            pipe.delete(fence_key(client))
            with suppress(WatchError):  # it is being made permanent, or has expired
                pipe.execute()
                return True


def write_under(clients: Clients, value: bytes, writes: Writes) -> None:
    """Write to databases, with one script each, if they have this attempt's fence.

    Raises:
        GrowthError: one has not; another process has taken over.
        WriteRefusedError: a server refuses one of the commands.
    """
    if not all(_under(clients, {at: (value, sent) for at, sent in writes.items()}).values()):
        raise taken_over()


def _under(clients: Clients, writes: Mapping[Place, tuple[bytes, Commands]]) -> dict[Place, bool]:
    """Execute commands in databases whose fences have some values; return where they had.

    Cost: an exchange with each server, with all of them at once.
    """
    replies = ask_each(
        {place: clients[place] for place in writes}, lambda at: _script(clients[at], *writes[at])
    )
    return {place: _done(place, writes[place][1], reply) for place, reply in replies.items()}


def _script(client: Any, value: bytes, commands: Commands) -> Arguments:
    sent = [part for args in commands for part in (len(args), *args)]
    return ("EVAL", _UNDER, 1, fence_key(client), value, *sent)


def _done(place: Place, commands: Commands, reply: Any) -> bool:
    failed, text = reply
    if failed > 0:
        refused = str(parse_error(text.decode(errors="replace")))
        raise WriteRefusedError(refused, place, commands[failed - 1])
    return bool(failed)


class GuardedWrites:
    """Writes to a database, each by a script under the fence of this attempt.

    The reply to one is read when the next one is due, or at the end: as `write_under` then.
    """

    def __init__(self, place: Place, client: Any, value: bytes) -> None:
        self._place, self._client, self._value = place, client, value
        self._line = Line(client)
        self._sent: Commands = ()

    def write(self, commands: Commands) -> None:
        """Send commands."""
        self.settle()
        self._sent = commands
        self._line.post([_script(self._client, self._value, commands)])

    def settle(self) -> None:
        """Read the reply to the last write, if that has not been done."""
        if self._line.is_due:
            [reply] = accepted(self._line.replies())
            if not _done(self._place, self._sent, reply):
                raise taken_over()

    def close(self) -> None:
        """Give the connection back, or close it if a reply is due."""
        self._line.close()


def taken_over() -> GrowthError:
    """Return the error for an attempt whose fence is gone."""
    return GrowthError("another process has taken over this move", "see: shardkit move status")


_SETTING = "min-replicas-to-write"
_CLOSED = "1000000007"
CLOSING = f"{_SETTING} {_CLOSED}"
Ranges = list[list[int]]
"""The first and the last of each of the ranges of slots of a master."""


def masters_of(
    server: ServerAddress, login: Stored
) -> tuple[dict[str, Ranges], list[ServerAddress]]:
    """Return the slots of each master, by its place, and the addresses of all replicas."""
    with connected_to(server, login) as client:
        try:
            listed: list[Any] = client.execute_command("CLUSTER SLOTS")
        except ResponseError as error:
            raise GrowthError(
                f"{server} is not a node of a cluster: {error}", "specify HOST:PORT of a node"
            ) from error
    slots: dict[str, Ranges] = {}
    replicas: dict[ServerAddress, None] = {}
    for first, last, *nodes in listed:
        master, *others = (
            ServerAddress(node[0].decode() if node[0] else server.host, int(node[1]))
            for node in nodes
        )
        slots.setdefault(str(Place(master, 0)), []).append([int(first), int(last)])
        replicas |= dict.fromkeys(others)
    served = sum(last - first + 1 for ranges in slots.values() for first, last in ranges)
    if served != SLOTS:
        raise GrowthError(
            f"the cluster of {server} serves {served:,} of {SLOTS:,} slots", "correct that first"
        )
    return {place: sorted(ranges) for place, ranges in sorted(slots.items())}, list(replicas)


def moving_slots(client: Any) -> bool:
    """Whether a master is giving or getting slots."""
    reply = client.execute_command("CLUSTER NODES")
    lines = reply.decode().splitlines() if isinstance(reply, bytes) else reply  # redis-py's, parsed
    if isinstance(lines, dict):
        return any(line["migrations"] for line in lines.values())
    return any("myself" in line and "[" in line for line in lines)


def owners(slots: Mapping[str, Ranges], places: Sequence[Place]) -> list[int]:
    """Return the number of the place of each slot."""
    numbers = [0] * SLOTS
    for n, place in enumerate(places):
        for first, last in slots[str(place)]:
            numbers[first : last + 1] = [n] * (last + 1 - first)
    return numbers


def losing_fence(server: ServerAddress, memory: Mapping[str, Any]) -> list[str]:
    """Return the problem of a server that could evict fences, by what INFO reports."""
    policy = evicting(memory)
    if not policy.startswith("allkeys"):
        return []
    return [
        f"{server} evicts keys ({policy}), so it could lose {FENCE_KEY}, which keeps clients with "
        "old entries from its databases: CONFIG SET maxmemory-policy noeviction or a volatile one, "
        "or move the whole server"
    ]


def evicting(memory: Mapping[str, Any]) -> str:
    """Return the policy by which a server removes keys when its memory is full; empty for none."""
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    return policy if int(memory.get("maxmemory", 0)) and policy != "noeviction" else ""


def is_closed(client: Any) -> bool:
    """Whether a node refuses writes since a move has left it."""
    return setting(client) == _CLOSED


def setting(client: Any) -> str:
    """Return the setting that closes a node."""
    return str(str_if_bytes(client.config_get(_SETTING)[_SETTING]))


def force_setting(client: Any, number: str) -> None:
    """Set what closes or opens a node, whoever has set it before: the caller has the lease."""
    client.config_set(_SETTING, number)
    persist_roles(client)


def set_if_marked(client: Any, value: bytes, number: str) -> bool:
    """Set what closes or opens a master, if it still has the mark of this attempt."""
    key = fence_key(client)
    setting = ("CONFIG SET", _SETTING, number)
    return bool(execute_unless_changed(client, key, lambda pipe: pipe.get(key) == value, setting))


_LEFT = 0.5  # the part of the hold by which writers have left
_LOOK = 0.01  # seconds between two checks of CLIENT LIST
_UNBLOCK = 0.1  # seconds after which blocking commands are ended

T = TypeVar("T")


def each_of(work: Callable[[Any], T], clients: Clients) -> list[T]:
    """Call a function with each client, on all servers at once."""
    servers = by_server(clients).values()
    return [
        answer
        for answers in at_once(lambda own: [work(client) for client in own.values()], servers)
        for answer in answers
    ]


def _wait_until_left(clients: Mapping[int, Any], began: float, hold: float, kill: bool) -> None:
    """Wait until the writers that were connected to a server before the hold have left."""
    client = next(iter(clients.values()))
    end = began + _LEFT * hold
    while True:
        here = [line for line in connections_to(client, clients) if not only_reads(line)]
        if not here:
            return
        now = time.monotonic()
        for line in here:
            if kill and now > began + 0.4 * hold:
                client.client_kill_filter(_id=line["id"])
            elif "b" in line["flags"] and now > began + _UNBLOCK:
                client.client_unblock(int(line["id"]))  # as if it had timed out
        if now > end:
            raise GrowthError(
                f"{counted(len(here), 'connection')} did not leave within "
                f"{_LEFT * hold:g} s: {named(here)}. The shards are where they were",
                "check them, close them with --kill, or allow more time with --hold",
            )
        time.sleep(_LOOK)


def wait_for_readers(
    client: Any, numbers: Collection[int], patience: float, *, all_read: bool = False
) -> str:
    """Wait until readers have left; close those still connected after `patience` seconds.

    With ``all_read`` every connection counts as a reader. Return which clients connect again and
    again; then this has closed their connections for another `LEAVE` seconds.
    """
    end = time.monotonic() + max(_LOOK, patience)
    while here := [
        line for line in connections_to(client, numbers) if all_read or only_reads(line)
    ]:
        if time.monotonic() > end:
            for line in here:
                client.client_kill_filter(_id=line["id"])
        if time.monotonic() > end + LEAVE:
            return named(here)
        time.sleep(_LOOK)
    return ""


def named(connections: Iterable[Mapping[str, str]]) -> str:
    """Return the names of clients, or their addresses without a port."""
    names = {
        line["name"] or f"a client at {line['addr'].rpartition(':')[0]}" for line in connections
    }
    return few(sorted(names), ", ")


def give_up(
    place: Place, client: Any, move: str, to: str, require_lease: Callable[[], object]
) -> None:
    """Close what clients with old entries may still use, a database or a node of a cluster."""
    if client.info("cluster").get("cluster_enabled"):
        require_lease()
        force_setting(client, _CLOSED)
    elif move_of(client.get(fence_key(client))) in (None, move):
        take({place: client}, fence_value(move, "", to), require_lease)
    wait_for_readers(client, [place.database], 0.0, all_read=True)


def update_nodes(move: Move, login_of: LoginOf) -> None:
    """Have a split into or out of a cluster name the masters that the cluster has now.

    One whose nodes are all away keeps those that it had.
    """
    slots: dict[str, Ranges] = {}
    sides = [move.sources, move.targets]
    for n, cluster in enumerate(move.clusters):
        if cluster:
            nodes = {place: move.slots.get(place, []) for place in sides[n]}
            for server in (ServerAddress.parse(cluster), *(Place.parse(at).server for at in nodes)):
                with suppress(RedisError, OSError):
                    nodes, _ = masters_of(server, login_of(server))
                    break
            slots |= nodes
            sides[n] = list(nodes)
    move.slots = slots
    move.sources, move.targets = sides
    move.source, move.target = (
        ", ".join(dict.fromkeys(str(Place.parse(at).server) for at in side)) for side in sides
    )


class CopyGate:
    """Closes databases to clients, by fences for which their connections ask."""

    is_cluster = False  # whether the nodes of a cluster are closed instead

    def __init__(
        self,
        move: Move,
        lease: Lease,
        login_of: LoginOf,
        captures: Mapping[ServerAddress, Any],
    ) -> None:
        self._move, self._lease = move, lease
        self._login, self._captures = login_of, captures

    def is_closed(self, clients: Clients) -> bool:
        """Whether the first of the databases, which is closed last, is closed for good."""
        return is_permanent(next(iter(clients.values())), self._move.id)

    def enter(self, clients: Clients, attempt: bytes) -> None:
        """Have only this attempt write to the targets."""
        take(clients, attempt, self._lease.check)

    def take_back(self, clients: Clients) -> bool:
        """Open what earlier attempts have closed; return False if one of them has decided."""
        first, *others = clients  # `decide` closes the first one last: if it is open, none has
        rest = {place: clients[place] for place in others}
        # Of before: another attempt that begins while this process is stopped has other fences.
        fences = fences_of(rest)
        if not lift_unless_permanent(clients[first], self._move.id):
            return False
        lift(rest, self._move.id, fences)
        return True

    def close(self, clients: Clients, value: bytes, seconds: float, offline: bool) -> None:
        """Close to writers, at most for some seconds."""
        close_for(clients, value, seconds)

    def wait_for_writers(self, clients: Clients, began: float, hold: float, kill: bool) -> None:
        """Wait until the writers that were connected before the hold have left."""
        at_once(lambda own: _wait_until_left(own, began, hold, kill), by_server(clients).values())

    def wait_for_readers(self, clients: Clients, patience: float, epoch: int) -> None:
        """Wait until no client reads at the sources: all have read the push of an epoch."""
        again = at_once(
            lambda own: wait_for_readers(next(iter(own.values())), own, patience),
            by_server(clients).values(),
        )
        if any(again):
            raise GrowthError(
                f"{' and '.join(filter(None, again))} read at the source again and again",
                "stop them, and resume the move",
            )

    def decide(self, clients: Clients, value: bytes, rest: Callable[[], None]) -> bool:
        """Close for good, if everything is still closed by this attempt.

        ``rest`` copies what was changed until then, where that is possible.
        """
        first, *others = clients
        closed = not others or make_permanent({place: clients[place] for place in others}, value)
        return closed and make_permanent({first: clients[first]}, value)

    def let_go(self, clients: Clients, value: bytes) -> None:
        """Open what this attempt has closed."""
        lift(clients, self._move.id, dict.fromkeys(clients, value))

    def admit_readers(self, clients: Clients, attempt: str) -> None:
        """Have the targets be read, and not yet written."""
        self._change(clients, attempt, readers=True)

    def turn_away(self, clients: Clients, attempt: str) -> None:
        """Send all clients away from the sources, readers too."""
        self._change(clients, attempt, readers=False)

    def _change(self, clients: Clients, attempt: str, *, readers: bool) -> None:
        move = self._move
        record = essence(move)
        value = fence_value(move.id, attempt, move.target, readers=readers, record=record)
        change(clients, move.id, value)

    def open(self, clients: Clients) -> None:
        """Have the targets be written, too."""
        lift(clients, self._move.id)

    def require_slots(self, clients: Clients) -> None:
        """Check that keys have the same places as at the start of the copy."""


class ClusterGate(CopyGate):
    """Closes a cluster: its nodes refuse writes.

    The journal decides, as only the process that has the lease writes it.
    """

    is_cluster = True

    def is_closed(self, clients: Clients) -> bool:
        """Whether all nodes refuse writes."""
        return all(map(is_closed, clients.values()))

    def enter(self, clients: Clients, attempt: bytes) -> None:
        """See `CopyGate.enter`; it is opened if an earlier split has left it."""
        self._open_nodes(clients)
        self._note_settings(clients)
        super().enter(clients, attempt)

    def take_back(self, clients: Clients) -> bool:
        """See `CopyGate.take_back`."""
        self._open_nodes(clients)
        self._note_settings(clients)
        each_of(lambda client: client.execute_command("CLIENT", "UNPAUSE"), clients)
        for place, client in clients.items():  # nothing that another attempt does counts now
            client.set(fence_key(client), fence_value(self._move.id, "", str(place)))
        return True

    def close(self, clients: Clients, value: bytes, seconds: float, offline: bool) -> None:
        """Have writers wait; if for long, refuse them."""
        each_of(lambda client: client.set(fence_key(client), value), clients)
        if offline:
            self._close_nodes(clients, value)
        else:
            for_ms = max(1, round(1000 * seconds))
            each_of(lambda node: node.execute_command("CLIENT", "PAUSE", for_ms, "WRITE"), clients)

    def wait_for_writers(self, clients: Clients, began: float, hold: float, kill: bool) -> None:
        """Do nothing: they wait."""

    def wait_for_readers(self, clients: Clients, patience: float, epoch: int) -> None:
        """See `CopyGate`; connections to nodes do not say whether they only read."""
        wait_until_read(self._lease.config, epoch)

    def decide(self, clients: Clients, value: bytes, rest: Callable[[], None]) -> bool:
        """See `CopyGate.decide`: the pause may have ended, so copy again once nobody can write."""
        self.require_slots(clients)
        closed = self._close_nodes(clients, value)
        if closed:
            rest()
        return closed

    def _close_nodes(self, clients: Clients, value: bytes) -> bool:
        with ExitStack() as stack:
            replicas = []
            for server in self._replicas(clients):
                replicas.append(stack.enter_context(connected_to(server, self._login(server))))
                try:
                    replicas[-1].ping()
                except (RedisError, OSError) as error:
                    raise GrowthError(
                        f"{server} does not answer: {error}",
                        "start it, or have the cluster forget it: a replica that comes back could "
                        "take over, and take writes",
                    ) from error
            for replica in replicas:  # one that takes over refuses writes, too
                replica.config_set(_SETTING, _CLOSED)
        for place in clients:
            self._expect_setting(place)
        return all(each_of(lambda client: set_if_marked(client, value, _CLOSED), clients))

    def _expect_setting(self, place: Place) -> None:
        if place.server in self._captures:
            self._captures[place.server].expect_setting()

    def let_go(self, clients: Clients, value: bytes) -> None:
        """See `CopyGate.let_go`."""
        for place, client in clients.items():
            if is_closed(client):
                self._expect_setting(place)
                before = self._move.minimums.get(str(place.server), "0")
                set_if_marked(client, value, before)
            client.execute_command("CLIENT", "UNPAUSE")
        self._open_replicas(clients)

    def admit_readers(self, clients: Clients, attempt: str) -> None:
        """See `CopyGate.admit_readers`."""
        self._note_settings(clients)
        each_of(lambda client: client.config_set(_SETTING, _CLOSED), clients)

    def _note_settings(self, clients: Clients) -> None:
        for place, client in clients.items():
            if not is_closed(client):
                self._move.minimums[str(place.server)] = setting(client)
        self._lease.write(self._move)

    def turn_away(self, clients: Clients, attempt: str) -> None:
        """Refuse writers that have waited; they go to the targets."""
        each_of(lambda client: client.execute_command("CLIENT", "UNPAUSE"), clients)
        for client in clients.values():
            persist_roles(client)
            for line in client.client_list():
                if "b" in line["flags"]:
                    client.client_unblock(int(line["id"]))  # as if it had timed out

    def open(self, clients: Clients) -> None:
        """See `CopyGate.open`."""
        self._open_nodes(clients)
        super().open(clients)

    def _open_nodes(self, clients: Clients) -> None:
        self._lease.check()
        for place, client in clients.items():
            if is_closed(client):
                self._expect_setting(place)
                before = self._move.minimums.get(str(place.server), "0")
                force_setting(client, before)
        self._open_replicas(clients)

    def _open_replicas(self, clients: Clients) -> None:
        before = next(iter(self._move.minimums.values()), "0")
        for server in self._replicas(clients):
            with suppress(RedisError, OSError), connected_to(server, self._login(server)) as node:
                if is_closed(node):
                    force_setting(node, before)

    def _replicas(self, clients: Clients) -> list[ServerAddress]:
        server = next(iter(clients)).server
        return masters_of(server, self._login(server))[1]

    def require_slots(self, clients: Clients) -> None:
        """See `CopyGate.require_slots`."""
        expected = {str(place): self._move.slots[str(place)] for place in clients}
        for place, client in clients.items():
            slots, _ = masters_of(place.server, self._login(place.server))
            if slots != expected or moving_slots(client):
                raise GrowthError(
                    f"slots of the cluster of {place.server} have moved, or a replica has taken "
                    "over: nothing has changed for clients",
                    "wait until that is done, and resume, which copies again",
                )
