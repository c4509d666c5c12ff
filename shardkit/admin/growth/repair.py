"""Repairs: closed databases without a record, and records whose databases are not closed.

::

    closed, entries name it, an open record      the move is resumed
    closed, entries name it, no open record      the record is written again, from the fence:
        the targets are closed, or have proofs   and the move is resumed
        the targets are open, the source empty   entries follow: they name the targets
    closed, no entry names it                    a move or split has left it: `open_database`
    not closed, a move that is done has left it  it is closed again: its fence was evicted or lost
    a replica that entries name as a master      an open record is resumed; otherwise entries follow
                                                 its master, which has the same history

The databases of all servers that entries name are searched, and the nodes of clusters. Nothing is
opened, followed or closed before the other side was asked what it has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import redis
from redis.exceptions import RedisError

from shardkit.admin.growth import gate, journal, relocation
from shardkit.admin.growth.exchange import database_client, mark_of, strays
from shardkit.admin.growth.failover import fail_over
from shardkit.admin.growth.journal import KEYS, REPLICATION, Lease, Move
from shardkit.admin.growth.move import mover_of, resume_move
from shardkit.admin.growth.relocation import Place, Same, ServerAddress, Stored
from shardkit.admin.growth.servers import KnownServers, ServerRole, connected_to, role_at, role_of
from shardkit.admin.growth.shard_move import ShardMover
from shardkit.config.component import Component, entry_key
from shardkit.config.store import read_components
from shardkit.errors import ConfigError, GrowthError, ShardKitError
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.operations.arguments import parse_json

Components = Mapping[str, Component]
_RESUMED = "resume", "follow"


@dataclass(frozen=True)
class Repair:
    """A closed database, or one that should be, and what is done about it.

    Attributes:
        database: ``host:port/number``, or ``host:port/*`` for a server.
        change: the move or split that closed it, by its id; empty if it is not known.
        name: what that moved.
        action: ``resume``, ``follow``, ``close``; ``left`` for a database that no entry names;
            ``kept`` if a move keeps it up to date; or ``unknown``, if the fence does not tell.
        reason: what was found.
    """

    database: str
    change: str
    name: str
    action: str
    reason: str


def repair_changes(config: redis.Redis, *, dry_run: bool = False) -> list[Repair]:
    """Continue, follow or close what records and fences do not agree on.

    Args:
        config: a client of the config server.
        dry_run: only return what would be done.

    Raises:
        GrowthError: a move cannot be continued.
        ConfigError: the entries or a record cannot be read.
    """
    repairs: list[Repair] = []
    while True:
        with journal.lease(config) as lease:
            search = _ClosedDatabases(lease, read_components(config))
            new = search.repairs()
            if repairs:
                new = [
                    repair for repair in new if repair.action != "left" and repair not in repairs
                ]
            if not dry_run:
                search.carry_out()
        repairs += new
        resumed = [repair for repair in new if repair.change and repair.action in _RESUMED]
        moves = {repair.name: repair.action for repair in resumed}
        failed: list[ShardKitError] = []
        for name in moves if not dry_run else ():
            try:
                resume_move(config, name)
            except ShardKitError as error:  # the others can go on
                failed.append(error)
        if failed:
            raise failed[0]
        if dry_run or "follow" not in moves.values():
            return repairs
        # Entries name databases now that a later move may have left.


def open_database(config: redis.Redis, place: str) -> Repair:
    """Open an empty database that a move or split has left, so that it can be used again.

    Args:
        config: a client of the config server.
        place: the database, ``host:port/number``.

    Raises:
        GrowthError: it is not closed, is needed by a move, or has keys.
    """
    at = Place.parse(place)
    with journal.lease(config) as lease:
        search = _ClosedDatabases(lease, read_components(config))
        repair = next((r for r in search.repairs() if search.is_in(at, [r.database])), None)
        if repair is None or repair.action == "close":
            raise GrowthError(f"{at} is not closed", "see: shardkit changes repair --dry-run")
        if repair.action not in ("left", "unknown"):
            raise GrowthError(
                f"{at} is closed by the move of {repair.name}: {repair.reason}",
                "continue it: shardkit changes repair",
            )
        with search.client(at) as client:
            if keys := strays(client, 1):
                raise GrowthError(
                    f"{at} has keys, such as {keys[0]}", "delete them if nothing needs them"
                )
            gate.lift({at: client}, repair.change)
        if move := search.moves.get(repair.change):
            move.opened.append(str(at))
            lease.write(move)
    return replace(repair, action="open")


class _ClosedDatabases:
    def __init__(self, lease: Lease, components: Components) -> None:
        self._lease, self._components = lease, components
        self._rebuilt: dict[str, Move] = {}  # what is written again
        self._unfenced: list[tuple[Place, Move]] = []
        self._replaced: dict[ServerAddress, ServerAddress] = {}  # replicas, and their masters
        self.moves = {move.id: move for move in journal.read_all(lease.config)}
        self._logins: dict[ServerAddress, Stored] = {}
        for server, login in relocation.masters_in(components.values()):
            self._logins.setdefault(server, login)
        self._nodes: dict[Place, tuple[str, str]] = {}  # of clusters: their marks and components
        for component in components.values():
            for shard, entry in component.entries():
                if not entry.is_cluster or (node := relocation.address_of(entry)) is None:
                    continue
                login = Stored(entry, entry_key(*shard))
                with suppress(RedisError, OSError, GrowthError):
                    slots, _ = gate.masters_of(node, login)
                    for place, ranges in slots.items():
                        self._nodes[Place.parse(place)] = mark_of(ranges), component.name
                        self._logins.setdefault(Place.parse(place).server, login)
        if not self._logins:
            raise ConfigError(
                "the config server has no entries that name servers",
                "push the shard map, with --force where it is refused",
            )
        known = {Place.parse(at).server for move in self.moves.values() for at in move.sources}
        self._same: Same = KnownServers(components.values(), *self._logins, *known).same

    def _login(self, server: ServerAddress) -> Stored:
        return self._logins.get(server) or next(iter(self._logins.values()))

    @contextmanager
    def client(self, place: Place) -> Iterator[Any]:
        with database_client(place.server, self._login(place.server), place.database) as client:
            if place in self._nodes:
                client.mark, _ = self._nodes[place]
            yield client

    def is_in(self, place: Place, databases: Iterable[str]) -> bool:
        """Whether a database is among others, by any name of its server."""
        parts = (text.rpartition("/") for text in databases)
        return any(
            number == str(place.database) and self._same(ServerAddress.parse(server), place.server)
            for server, _, number in parts
        )

    def repairs(self) -> list[Repair]:
        repairs = []
        for server in self._logins:
            with suppress(RedisError, OSError), connected_to(server, self._login(server)) as asked:
                role = role_of(asked)
                if role.master is not None:
                    repairs.append(self._of_replica(server, role, role.master))
                    continue
                info = asked.info("keyspace")
                numbers = {int(name[2:]) for name in info if name[2:].isdigit()}
                for place in (Place(server, number) for number in sorted(numbers)):
                    with self.client(place) as client:
                        fence = client.get(gate.fence_key(client))
                        if place in self._nodes:
                            closes = gate.is_closed(client)
                        else:
                            closes = fence is not None and client.pttl(FENCE_KEY) == -1
                        if closes:
                            repairs.append(self._repair(place, client, fence or b"{}"))
        return [*repairs, *self._decided({one.change for one in repairs}), *self._without_fences()]

    def _of_replica(self, server: ServerAddress, role: ServerRole, master: ServerAddress) -> Repair:
        """Find out why entries name a replica as a master: it was moved or failed over."""
        for move in self.moves.values():
            known = move.copying == REPLICATION and not move.is_over
            if known and self._same(ServerAddress.parse(move.source), server):
                why = f"it is {move.phase}"
                return Repair(f"{server}/*", move.id, move.name, "resume", why)
        try:
            role_now = role_at(master, self._login(server))
            if role_now.is_master and role_now.history == role.history:
                self._replaced[server] = master
                why = f"it is a replica of {master}, which has its data"
                return Repair(f"{server}/*", "", str(server), "follow", why)
            why = f"it is a replica of {master}, which is no master with its data"
        except (RedisError, OSError) as error:
            why = f"it is a replica of {master}, which cannot be asked: {error}"
        return Repair(f"{server}/*", "", str(server), "unknown", why)

    def carry_out(self) -> None:
        """Write records again, have entries follow promoted replicas, and set fences."""
        for move in self._rebuilt.values():
            self._lease.write(move)
        for server, master in self._replaced.items():
            message = f"{master} has replaced {server}"
            journal.push_relocation(
                self._lease, server, master, self._same, keep_source=True, message=message
            )
        for place, move in self._unfenced:
            value = gate.fence_value(move.id, "", move.target, record=journal.essence(move))
            with self.client(place) as client:  # unless another process has moved keys there
                gate.take({place: client}, value, self._lease.check)

    def _named(self, place: Place) -> str:
        """Return the shard whose entry names a place; empty for none."""
        if place in self._nodes:
            return self._nodes[place][1]
        entries = relocation.entries_in(self._components)
        names = (n for n, own in entries.items() if relocation.place_in(own, [place], self._same))
        return next(names, "")

    def _repair(self, place: Place, client: Any, fence: bytes) -> Repair:
        change = gate.move_of(fence) or ""
        move = self.moves.get(change)
        name = move.name if move else self._named(place)
        if move is None:  # somebody has overwritten it
            open_moves = [m for m in self.moves.values() if not (change or m.is_over)]
            move = next((m for m in open_moves if self.is_in(place, m.sources + m.targets)), None)
        if move is not None and not move.is_over:
            if move.phase == "kept":
                why = f"shardkit move resume, complete or reverse {move.name}"
                return Repair(str(place), move.id, move.name, "kept", why)
            if move.keep:  # by another process, as this one would never end
                self._rebuilt[move.id] = replace(move, wanted="kept")
            return Repair(str(place), move.id, move.name, "resume", f"it is {move.phase}")
        if not self._named(place):
            went = f"its keys went to {parse_json(fence).get('to')}" if change else "unreadable"
            return Repair(str(place), change, name, "left", went)
        if move is None:
            with suppress(ConfigError):
                stored = json.dumps({"kind": "", "format": 1, **gate.record_in(fence)})
                move = journal.move_of_record(f"{place} {FENCE_KEY}", stored)
        if move is None or move.copying != KEYS:
            why = "its fence does not tell how to continue"
            return Repair(str(place), change, name, "unknown", why)
        move = replace(move, phase="fenced", ended=0.0)
        does, why = self._look(move)
        if does != "unknown":
            self._rebuilt[change] = move
        return Repair(str(place), change, move.name, does, why)

    def _decided(self, known: Collection[str]) -> Iterator[Repair]:
        """Find open moves that have taken over, and whose databases no entry names."""
        for move in journal.current(self.moves.values()):
            if move.id in known or move.phase not in ("promoted", "fenced", "pushed"):
                continue
            does, why = "resume", f"it is {move.phase}"
            if move.copying == KEYS:
                does, why = self._look(move)
            where = next(iter(move.sources), f"{move.source}/*")
            yield Repair(where, move.id, move.name, does, why)

    def _look(self, move: Move) -> tuple[str, str]:
        """Return what is done about a move of shards, and why, by what its databases tell."""
        try:
            phase, why = ShardMover(self._lease, self._components, move).look()
        except ShardKitError as error:
            phase, why = "", str(error)
        return "follow" if phase == "done" else "resume" if phase else "unknown", why

    def _without_fences(self) -> Iterator[Repair]:
        """Find empty databases that a move has left, and that nothing closes."""
        for move in journal.current(self.moves.values()):
            if move.phase != "done" or move.copying != KEYS or any(move.clusters):
                continue
            for place in dict.fromkeys(map(Place.parse, move.sources)):
                with suppress(RedisError, OSError), self.client(place) as client:
                    if self._named(place) or client.exists(FENCE_KEY) or strays(client, 1):
                        continue
                    if self.is_in(place, move.opened):
                        continue
                    if not role_of(client).is_master:  # it refuses writes in any case
                        continue
                    self._unfenced.append((place, move))
                    why = "it has lost its fence"
                    yield Repair(str(place), move.id, move.name, "close", why)


def end_change(config: redis.Redis, name: str, *, lost: bool = False) -> Move:
    """End a move without continuing it; nothing stays closed.

    Args:
        config: a client of the config server.
        name: the server that is left, one of the shards, or the component that was split.
        lost: give up what lost servers have: if the new servers have lost what was copied, or do
            not answer, clients use the old ones again, as they were at the cutover.

    Raises:
        GrowthError: it can be resumed or aborted, or the old databases may lack keys.
    """
    while True:
        with journal.lease(config) as lease:
            move = journal.read(config, name)
            replaced = "" if move.is_over else mover_of(lease, move).give_up(lost)
        if not replaced:
            return move
        fail_over(config, replaced, move.source, force=True)
