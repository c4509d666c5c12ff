"""Moves of shards (databases) to another server key by key, while they are in use.

::

    begun    every key is copied, and keys that change are copied again; both sides are compared
    (hold)   entries say so, and clients use separate connections for reads; the source is closed to
             other connections for the time of the hold; those leave, and the rest is copied
    fenced   the source is closed for good, which decides the move; entries name the target, which
             may be read; when no client reads the source any more, the target takes writes
    pushed   waiting clients have continued at the target
    done     the source is emptied, except for keys that were written there since; they are reported

Until it is fenced, a move can be aborted; afterwards it can be reversed. If the mover dies in the
hold, the source opens by itself. No client can write at the source unnoticed: new connections ask
for the fence, and the mover sees older ones leave (see `gate.py`). Readers never wait, as the data
is the same on both sides while writers do. Subscriptions do not move.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from redis.exceptions import RedisError

from shardkit.admin.changes import Change, taking_part
from shardkit.admin.growth import exchange, gate, journal, relocation
from shardkit.admin.growth.certificate import ServerComparison, differing, unequal
from shardkit.admin.growth.exchange import MOST_NAMED, Clients
from shardkit.admin.growth.gate import ClusterGate, CopyGate
from shardkit.admin.growth.journal import (
    LEAVE,
    Fence,
    Move,
    push_changed,
    servers_in,
    wait_until_read,
)
from shardkit.admin.growth.mover import COPIED, Mover
from shardkit.admin.growth.relocation import Place, ServerAddress, Stored, place_in
from shardkit.admin.growth.rule import CopyRule, rule_of, shard_names
from shardkit.admin.growth.servers import role_of
from shardkit.admin.growth.shard_copy import (
    DatabaseCopy,
    KeyCapture,
    copy_libraries,
    following,
    turn_on_notifications,
)
from shardkit.admin.pushes import attest
from shardkit.config.component import Component, entry_key
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import GrowthError, MissedChangesError, counted
from shardkit.network.links.resp import Arguments
from shardkit.operations.operation import pages

_ATTEMPTS = 5
_AT_ONCE = 4  # servers that are copied: more threads would wait for each other
_COPIES = 3  # because changes may have been missed
# Parts of the hold by which the move is decided, and readers have left.
_DECIDED, _READ = 0.7, 0.9
_FENCES = 200  # of guards that are written at a time, in less than a millisecond
_KEEP = 0.5  # seconds between two checks whether to keep the sources up to date
_CLOCK = 2  # seconds by which idle times are wrong at most


Captures: TypeAlias = Mapping[ServerAddress, KeyCapture]
"""What changes on servers; empty while no client can write."""


class ShardMover(Mover):
    """One attempt at the move of some shards."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._old: Clients = {}
        self._new: Clients = {}
        self._copies: list[DatabaseCopy] = []
        self._before: list[tuple[bytes, ...]] = []  # of the targets, before the copy
        self._kept: Captures | None = None  # of all changes at the targets since the cutover
        self._held_until = 0.0  # when the sources open by themselves
        self._watching: dict[ServerAddress, KeyCapture] = {}  # all captures
        shared = self._move, self._lease, self._login, self._watching
        self._old_gate, self._new_gate = (
            ClusterGate(*shared) if cluster else CopyGate(*shared)
            for cluster in self._move.clusters or ("", "")
        )
        self._concerned = {
            name
            for name, component in self._components.items()
            if any(str(shard) in self._move.shards for shard, _ in component.entries())
            or name == self._move.name
        }
        self._failed_over = self._follow_failovers()
        if any(self._move.clusters) and not self._move.is_over:
            gate.update_nodes(self._move, self._login)
        self._rule = rule_of(self._move)
        if self._move.keep and self._old_gate.is_cluster:
            raise GrowthError(
                f"{self._move.name}: a cluster that is left refuses writes, so it cannot be kept "
                "up to date",
                "leave --keep out: reverse copies everything back",
            )
        # The fence at the targets that allows this attempt to write.
        self._attempt = gate.fence_value(self._move.id, secrets.token_hex(8), self._move.target)

    def _login(self, server: ServerAddress) -> Stored:
        concerned = [self._components[name] for name in sorted(self._concerned)]
        for shard, entry in relocation.entries_on(concerned, server, self._same):
            return Stored(entry, entry_key(*shard))
        for component in concerned:
            for shard, entry in component.entries():
                if str(shard) in self._move.shards or component.name == self._move.name:
                    return Stored(entry, entry_key(*shard))
        raise GrowthError(f"{self._move.name} is no longer a shard", "push its entry again")

    def _expected(self) -> Iterable[tuple[str, ServerAddress, int | None]]:
        move = self._move
        places, names = move.sources, move.shards
        if move.phase in ("pushed", "kept"):
            places = move.targets
            if move.placements:
                names = shard_names(move.name, len(places) if move.placements[1] else 0)
        return [(name, *Place.parse(at)) for at, name in zip(places, names, strict=False)]

    def _touched(self) -> Mapping[ServerAddress, Iterable[int]]:
        return exchange.by_server(dict.fromkeys((*self._rule.sources, *self._rule.targets)))

    @contextmanager
    def _clients(self, places: Sequence[Place]) -> Iterator[Clients]:
        """Yield clients of databases, or of masters of a cluster, which have slots."""
        with ExitStack() as stack:
            clients: dict[Place, Any] = {}
            for at in places:
                login = self._login(at.server)
                opened = exchange.database_client(at.server, login, at.database)
                client = clients[at] = stack.enter_context(opened)
                if ranges := self._move.slots.get(str(at)):
                    client.mark = exchange.mark_of(ranges)
            yield clients

    def begin(self) -> None:
        """See `Mover.begin`; what another move has closed is its own, even without its record."""
        with self._clients([] if self._old_gate.is_cluster else self._rule.sources) as old:
            for place, client in old.items():
                if client.pttl(gate.fence_key(client)) == -1:
                    raise GrowthError(
                        f"{place} is closed by another move: nothing has changed",
                        "see what becomes of that: shardkit changes repair --dry-run",
                    )
        super().begin()

    def run(self) -> None:
        """Copy, decide, push the entries, and empty the sources."""
        move = self._move
        if move.phase == "done":
            return
        with ExitStack() as self._stack:
            self._old = self._stack.enter_context(self._clients(self._rule.sources))
            self._new = self._stack.enter_context(self._clients(self._rule.targets))
            if move.phase in ("fenced", "pushed") and not self._old_gate.is_cluster:
                self._old = _answering(self._old)  # the others are not needed any more
            if move.phase != "kept":
                self._follow_databases()
            if move.phase == "done":
                return
            # A mover may have decided, and was killed before it could note that.
            if move.phase == "begun" and not self._old_gate.is_cluster and self._is_decided():
                self._reached("fenced")
            if move.phase == "fenced" and self._is_open_elsewhere():
                self._go_home("begun")
            # If the sources lost their data, the targets are still closed.
            closed = self._is_decided() or self._has_fence(self._new)
            if move.phase == "fenced" and not closed:
                raise GrowthError(
                    f"{move.name} ({move.source}) is not closed by this move, although its record "
                    "says so: the record is out of date",
                    f"find out which server has the keys, then: shardkit changes end {move.name}",
                )
            captures = None  # of all changes since it was decided
            if move.phase == "fenced" and (lost := self._lost()):
                move.emptied = self._has_emptied()
                if move.emptied or not self._is_decided():
                    raise self._refused(lost)
                self._progress(f"copying again: {lost}")
                self._go_home("begun")
            if move.phase in ("pushed", "kept"):
                self._require_takeover()
                self._admit_writers()
            written: set[tuple[Place, bytes]] = set()
            if move.phase == "begun":
                captures = self._decide()
            if move.phase == "fenced":
                captures, written = self._written_until_now()
                self._push()
            if move.keep or move.phase == "kept":
                self._keep_or_clear(self._kept)
            else:
                self._clear(captures, written)

    def _decide(self) -> Captures | None:
        """Copy until no change was missed, and decide; return the captures, None if others did."""
        move = self._move
        for _ in range(_COPIES):
            self._begin()
            if move.phase != "begun":
                return None
            with ExitStack() as attempt:
                try:
                    captures = {} if self._offline else self._captures(self._old, attempt)
                    self._before = self._run_of(self._new)
                    sides = self._old, self._new
                    own = self._rule, self._attempt
                    self._copies = self._copies_of(captures, *sides, *own)
                    compared = None if self._offline else self._copied()
                    self._copy_libraries()
                    self._hold_and_decide(compared)
                except MissedChangesError as error:
                    missed = error.message
                    self._progress(f"copying again: {missed}")
                else:
                    self._stack.push(attempt.pop_all())
                    return captures
        raise GrowthError(
            f"{move.name} ({move.source}): each of {_COPIES} copies may have missed changes "
            f"({missed}): nothing has changed for clients",
            f"correct that, and resume: {self._command('resume')}",
        )

    def _copy_libraries(self) -> None:
        """Load the libraries of functions that servers of the targets lack."""
        for source in exchange.one_of_each(self._old).values():
            copy_libraries(source, exchange.one_of_each(self._new).values())

    def _kept_move(self) -> Move | None:
        """Return the move that this one undoes, if its old databases are kept up to date."""
        every = journal.read_all(self._config, [])
        return next((m for m in every if m.id == self._move.undoes and m.phase == "kept"), None)

    def _captures(self, clients: Clients, stack: ExitStack) -> Captures:
        """Capture what changes from now on, on each server."""
        captures: dict[ServerAddress, KeyCapture] = {}
        for server, own in exchange.by_server(clients).items():
            first = next(iter(own.values()))
            turn_on_notifications(first)  # a restart resets the setting
            capture = captures[server] = KeyCapture(first, list(own))
            stack.callback(capture.close)
        self._watching |= captures
        return captures

    def _command(self, verb: str) -> str:
        return f"shardkit move {verb} {self._move.name}"

    def _has_fence(self, clients: Clients) -> bool:
        """Whether some databases have a fence of this move."""
        return self._move.id in map(gate.move_of, gate.fences_of(clients).values())

    def _is_decided(self) -> bool:
        return bool(self._old) and self._old_gate.is_closed(self._old)

    def look(self) -> tuple[str, str]:
        """Return the phase by what the databases tell, and why; empty if they do not tell it.

        The record may be lost, or older than they are.
        """
        with self._clients(self._rule.sources) as old, self._clients(self._rule.targets) as new:
            return self._seen(_answering(old), new)

    def _seen(self, old: Clients, new: Clients) -> tuple[str, str]:
        target, move = self._move.target, self._move.id
        try:
            fences = [client.get(gate.fence_key(client)) for client in new.values()]
            closed = [
                gate.move_of(fence) == move or (hasattr(client, "mark") and gate.is_closed(client))
                for fence, client in zip(fences, new.values(), strict=True)
            ]
            proofs = [
                client.get(gate.proof_key(client)) == move.encode() for client in new.values()
            ]
            filled = _have_keys(new)
            masters = all(role_of(client).is_master for client in new.values())
        except (RedisError, OSError) as error:
            return "", f"{target} cannot be asked: {error}"
        if all(proofs):
            # If some are open, clients may have written there.
            phase = "fenced" if all(closed) else "pushed"
            return phase, f"{target} has everything: it is {phase}"
        if any(closed):
            return "", f"{target} has lost what was copied: shardkit changes end --lost"
        if masters and (self._old_gate.is_cluster or not _have_keys(old)):  # a cluster keeps all
            if filled:
                return "done", f"it was left, and {target} has the keys"
            if all(map(gate.record_in, fences)):
                return "done", f"it was left, and the keys have left {target} since"
        return "", f"{target} lacks the keys: shardkit changes end --lost"

    def _follow_databases(self) -> None:
        """Have the record and entries follow what the databases tell, if they are older."""
        move = self._move
        if not (self._has_fence(self._old) and self._is_decided()):
            return
        phase, why = self._seen(self._old, self._new)
        if phase in ("pushed", "done") and (phase != move.phase or move.emptied):
            move.phase = phase  # so entries may lead to the targets
            self._require_planned(read_components(self._config))
            self._switch(self._rule, f": {why}", witnessed=True)
            self._admit_writers()
            self._reached(phase)

    def _is_open_elsewhere(self) -> bool:
        """Whether a source was promoted before it had the fence, so that clients wrote there."""
        return self._failed_over and not all(
            gate.is_permanent(client, self._move.id)
            for place, client in self._old.items()
            if relocation.held(self._components, [place], self._move.id, self._same)
        )

    # ---- what the sources are emptied and clients are sent away for

    def _prove(self) -> None:
        """Have the targets prove that they have everything: what they save later has it, too."""
        keys = {at: gate.proof_key(client) for at, client in self._new.items()}
        proofs = {at: [("SET", key, self._move.id)] for at, key in keys.items()}
        gate.write_under(self._new, self._attempt, proofs)

    def _carry_fences(self) -> None:
        """Give every target the largest token of each guard's fence that was seen at a source."""
        for keys in pages(sorted(self._rule.fences), _FENCES):
            asked: list[Arguments] = [("MGET", *keys), *(("PTTL", key) for key in keys)]
            fences: dict[bytes, tuple[int, float]] = {}  # the token, and the milliseconds left
            of_all = exchange.ask_all([(client, [asked]) for client in self._old.values()])
            for place, (tokens, *ends) in zip(self._old, of_all, strict=True):
                for key, token, left in zip(keys, tokens, ends, strict=True):
                    if left == -2:  # it is not there, or has just expired
                        continue
                    if not (token and token.isdigit() and len(token) <= 16):
                        named = key.decode(errors="backslashreplace")
                        raise GrowthError(f"{place}: {named} is no guard's fence", "rename the key")
                    end = left if left >= 0 else math.inf
                    fences[key] = max(fences.get(key, (0, 0)), (int(token), end))
            commands = [
                ("SET", key, token, *(("PX", left + 1) if left < math.inf else ()))
                for key, (token, left) in fences.items()
            ]
            if not self._new_gate.is_cluster:
                gate.write_under(self._new, self._attempt, dict.fromkeys(self._new, commands))
        self._rule.fences.clear()

    def _lost(self, sampled: bool = True) -> str:
        """Return why the targets cannot take over; empty text if they have everything.

        Until they take writes, samples of the sources are there, too, apart from what another
        program wrote at the sources.
        """
        place = next(iter(self._new))
        try:
            for place, client in self._new.items():
                key = gate.proof_key(client)
                if self._new_gate.is_cluster:  # it refuses writes, and its slots may have moved
                    has_all = bool(client.dbsize())
                else:  # whatever refuses this write would refuse those of clients
                    has_all = client.set(key, self._move.id, xx=True)
                if not has_all:
                    return f"{place.server} has lost what was copied to database {place.database}"
            sampled = sampled and self._move.phase == "fenced"
            for source, client in self._old.items() if sampled else ():
                for page in islice(exchange.pages(client), 1):
                    written = self._maybe_written(source, page)
                    for place, own in self._rule.there(source, page).items():
                        if wrong := set(unequal(client, self._new[place], own)).difference(written):
                            return f"{place.server} has lost {counted(len(wrong), 'key')}"
        except (RedisError, OSError) as error:
            return f"{place.server} cannot take over: {error}"
        return ""

    def _has_emptied(self) -> bool:
        """Whether the emptying of the sources has begun; the record may be older than fences."""
        fences, move = gate.fences_of(self._old).values(), self._move
        own = [gate.record_in(fence) for fence in fences if gate.move_of(fence) == move.id]
        return move.emptied or any(record.get("emptied") for record in own)

    def _go_home(self, phase: str) -> None:
        """Have clients use the sources again, before they wrote anything at the targets."""
        move, attempt = self._move, secrets.token_hex(8)
        self._old_gate.admit_readers(self._old, attempt)
        epoch = self._switch(rule_of(reversed_move(move)), f" back to {move.source}")
        with suppress(RedisError, OSError):  # if a target is away, nobody reads there
            self._new_gate.turn_away(self._new, attempt)
            self._new_gate.wait_for_readers(self._new, _READ * self._hold, epoch)
        self._reached(phase)
        self._old_gate.open(self._old)
        self._held(None)

    def _switch(self, rule: CopyRule, how: str, *, witnessed: bool = False) -> int:
        """Push the entries of a side; return the epoch."""
        text = f"{self._move.verb} of {self._move.name}{how}"
        changed = partial(rule.changed, same=self._same)
        return push_changed(self._lease, changed, text, witnessed=witnessed)

    def _require_planned(self, components: Mapping[str, Component]) -> Mapping[str, Component]:
        """Check that nobody has pushed entries that lead to other places, and return them."""
        move = self._move
        entries = relocation.entries_in(components)
        known = *self._rule.sources, *self._rule.targets
        for name in dict.fromkeys((*move.shards, *self._rule.names.values())):
            entry = entries.get(name)
            if entry and not entry.is_cluster and not place_in(entry, known, self._same):
                raise GrowthError(
                    f"{name}: somebody has pushed an entry that leads to {entry.address}, which is "
                    f"neither {move.source} nor {move.target}: no key was deleted",
                    "push the one from before (with --force where it is refused), and then "
                    f"{self._command('resume')}",
                )
        for name, entry in entries.items() if move.phase == "begun" else ():
            # The keys of a split's source are those of one component.
            others = move.placements and name.partition(":")[0] != move.name
            taken = [*self._rule.targets, *(self._rule.sources if others else ())]
            if at := place_in(entry, taken, self._same):
                raise self._in_the_way(name, at)
        return components

    def _admit_writers(self) -> None:
        """Have the targets take writes, which nobody has sent them yet, or some have."""
        self._new_gate.open(self._new)
        self._move.epoch = self._held(None, self._rule.targets)

    # ---- before it is decided

    def _begin(self) -> None:
        """Undo what earlier attempts did, unless one of them decides the move now."""
        move = self._move
        move.certificate = None
        self._lease.write(move)
        was_kept = self._kept_move() is not None
        for server, client in exchange.one_of_each(self._new).items():
            if not role_of(client).is_master:
                raise GrowthError(f"{server} is a replica", "name its master: nothing has changed")
        for server, client in exchange.one_of_each(self._old).items():
            problems = [] if self._old_gate.is_cluster else gate.losing_fence(server, client.info())
            if problems:
                raise GrowthError(
                    problems[0], f"correct that, and resume it: {self._command('resume')}"
                )
        self._require_planned(read_components(self._config))
        for place, client in self._new.items():
            fence = client.get(gate.fence_key(client))
            if gate.move_of(fence) != move.id:
                was_left = self._new_gate.is_cluster and gate.is_closed(client)  # by a split
                was_left |= was_kept and gate.move_of(fence) == move.undoes
                if not was_left and exchange.strays(client, 1):
                    raise GrowthError(
                        f"{place.server} has keys in database {place.database} that this move has "
                        "not copied",
                        "abort it, or delete them if nothing needs them",
                    )
                if fence is not None:
                    move.fences[str(place)] = fence.decode(errors="replace")
        if not (move.notifications or self._offline):
            move.notifications = {
                str(server): turn_on_notifications(client)
                for server, client in exchange.one_of_each(self._old).items()
            }
        self._lease.write(move)
        if lost := self._lost_source():
            raise self._without_keys(lost)
        if self._take_over():
            empty(self._new, self._attempt)
        else:
            self._reached("fenced")

    def _lost_source(self) -> str:
        """Return a source that was restarted without its keys, of which the targets have copies."""
        known = {database.rpartition("/")[0] for database in self._move.databases}
        for server, own in exchange.by_server(self._old).items():
            labels = [self._rule.label(Place(server, number)) for number in own]
            if any(self._move.keys.get(label) for label in labels) and not _have_keys(own):
                run_id = next(iter(own.values())).info("server").get("run_id")
                if run_id and run_id not in known and _have_keys(self._new):
                    return str(server)
        return ""

    def _take_over(self) -> bool:
        """Keep other attempts from writing and deciding; return False if one has decided."""
        if self._new:
            self._new_gate.enter(self._new, self._attempt)
        if self._old and not self._old_gate.take_back(self._old):
            return False
        self._held(None)
        return True

    def _let_go(self, value: bytes) -> None:
        """Open the sources to clients again."""
        self._old_gate.let_go(self._old, value)
        self._held(None)

    def _held(self, by: str | None, places: Sequence[Place] = ()) -> int:
        """Push which move holds shards, at the sources by default; return the epoch."""
        side = self._new_gate if places else self._old_gate
        cluster = self._move.name if side.is_cluster else ""
        return push_changed(
            self._lease,
            lambda components: relocation.held(
                self._require_planned(components) if by else components,
                places or self._rule.sources,
                by,
                self._same,
                cluster,
            ),
            f"{self._move.verb} of {self._move.name}",
            witnessed=False,
        )

    def _copies_of(
        self, captures: Captures, old: Clients, new: Clients, rule: CopyRule, value: bytes
    ) -> list[DatabaseCopy]:
        return [
            DatabaseCopy(server, own, new, rule, value, captures.get(server), self._share)
            for server, own in exchange.by_server(old).items()
        ]

    def _copied(self) -> ServerComparison:
        """Copy every key, and what changes, until both sides are the same."""
        move = self._move
        began = time.monotonic()

        def tell() -> None:
            if time.monotonic() > began + self._copy_timeout:
                raise GrowthError(
                    f"the copy was not complete within {self._copy_timeout:g} s: nothing has "
                    "changed for clients",
                    "resume it with more time: --copy-timeout",
                )
            keys, size = (
                sum(getattr(copy, name) for copy in self._copies) for name in ("keys", "bytes")
            )
            self._pace.note(COPIED, keys, move.total, "keys", size)

        def copy_some(own: Sequence[DatabaseCopy]) -> None:
            for copy in own:
                copy.copy_all(tell)

        exchange.at_once(copy_some, [self._copies[n::_AT_ONCE] for n in range(_AT_ONCE)])
        move.copied = sum(copy.bytes for copy in self._copies)
        move.seconds = round(time.monotonic() - began, 3)
        return self._caught_up()

    def _caught_up(self) -> ServerComparison:
        """Copy what changes while both sides are compared."""
        rule = self._rule
        captures = {copy.server: copy.capture for copy in self._copies if copy.capture}

        def untold(at: Place, keys: list[bytes]) -> None:
            if at.server in captures:
                captures[at.server].note(at.database, keys)

        with following(self._copies):
            compared = self._compare(
                self._old.__getitem__,
                self._new.__getitem__,
                rule.sources,
                others=rule.targets,
                there=rule.there,
                back=rule.back,
                label=rule.label,
                untold=untold,
            )
        for capture in captures.values():  # before what differs is anybody's fault
            capture.require_complete()
        self._carry_fences()  # the rest later, while no client writes
        if not compared.same:
            raise GrowthError(
                f"both servers differ in {counted(compared.differing, 'key')}, such as "
                f"{compared.different[0]}: nothing has changed for clients",
                "resume, which copies again, or abort",
            )
        return compared

    @staticmethod
    def _run_of(clients: Clients) -> list[tuple[bytes, ...]]:
        """Return each server's run, and how many keys it has evicted."""
        sections = [("INFO", "server"), ("INFO", "stats")]
        asked = [(client, [sections]) for client in exchange.one_of_each(clients).values()]
        texts = [b"\n".join(lines) for lines in exchange.ask_all(asked)]
        return [
            tuple(re.findall(rb"^(?:run_id|evicted_keys):(\w+)", text, re.MULTILINE))
            for text in texts
        ]

    def _hold_and_decide(self, compared: ServerComparison | None) -> None:
        move = self._move
        limit = self._copy_timeout + self._hold if self._offline else _DECIDED * self._hold
        problem: GrowthError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(self._hold)  # writers that waited go first
            self._progress("holding writers")
            # All know of it before writers are held: then it takes less than a second to read.
            wait_until_read(self._config, self._held(f"{move.name} soon"))
            if not self._offline:
                exchange.at_once(lambda copy: copy.follow(lambda: True), self._copies)
            began = time.monotonic()
            self._held_until = began + limit
            token, record = secrets.token_hex(8), journal.essence(move)
            value = gate.fence_value(move.id, token, move.target, readers=True, record=record)
            decided = deciding = False
            try:
                self._old_gate.close(self._old, value, limit, self._offline)
                self._held(move.name)
                self._old_gate.wait_for_writers(self._old, began, self._hold, self._kill)
                move.decided = {
                    str(server): int(client.time()[0])
                    for server, client in exchange.one_of_each(self._old).items()
                }
                if compared is None:
                    compared = self._copied()
                self._finish(compared)
                self._new_gate.require_slots(self._new)
                deciding = not self._old_gate.is_cluster
                if deciding:
                    self._prove()

                def rest() -> None:
                    self._require_same(proven=True)
                    self._prove()

                decided = self._old_gate.decide(self._old, value, rest)
                deciding = False
            except GrowthError as error:
                problem = error
                if isinstance(error, MissedChangesError) or self._is_other_run():
                    raise
            finally:
                if not decided and not deciding:  # if in doubt, `resume` finds out
                    self._let_go(value)
            if decided:
                self._reached("fenced")
                self._push(began)
                return
        raise problem or GrowthError(
            f"the rest could not be copied within {self._hold:g} s, {_ATTEMPTS} times: the shards "
            "are where they were",
            "try again when there are fewer writes, or allow more time: --hold",
        )

    def _is_other_run(self) -> bool:
        try:
            return self._run_of(self._new) != self._before
        except (RedisError, OSError):
            return True

    def _finish(self, compared: ServerComparison) -> None:
        """Copy the rest, and certify that both sides are the same, while no client writes.

        They were the same when they were compared, and no change was missed since then. Libraries
        of functions send no notification.
        """
        self._copy_libraries()
        self._require_same()
        self._carry_fences()
        if self._run_of(self._new) != self._before:
            raise GrowthError(
                f"{self._move.target} was restarted or has evicted keys (maxmemory) during the "
                "move: the shards are where they were",
                "give it enough memory, and resume, which copies again, or abort",
            )
        move = self._move
        move.certificate = {
            **asdict(compared),
            "keys_before": move.total,
            "same": True,
            "stale": [],
        }
        self._lease.write(move)
        # Another attempt may have emptied the targets.
        if set(gate.fences_of(self._new).values()) != {self._attempt}:
            raise gate.taken_over()

    def _require_same(self, *, proven: bool = False) -> None:
        """Copy the rest, and check that these keys are the same on both sides."""
        finish = partial(self._finished, proven)
        wrong = [line for lines in exchange.at_once(finish, self._copies) for line in lines]
        if wrong:
            raise GrowthError(
                f"both servers differ in {counted(len(wrong), 'key')}, such as {wrong[0]}",
                "resume, or abort",
            )

    def _finished(self, proven: bool, copy: DatabaseCopy) -> list[str]:
        """Copy the rest from one server; return which of these keys differ."""
        last: dict[Place, list[bytes]] = {at: [] for at in self._old if at.server == copy.server}
        for number, key in copy.finish(proven=proven):
            last[Place(copy.server, number)].append(key)
        return [
            line
            for place, keys in last.items()
            for target, own in self._rule.there(place, keys).items()
            for line in differing(
                self._old[place], self._new[target], own, math.inf if proven else self._held_until
            )
        ]

    # ---- after it is decided

    def _written_until_now(self) -> tuple[Captures | None, set[tuple[Place, bytes]]]:
        """Capture changes at the sources after a kill; return also what was written since.

        While the targets are closed they have what was decided. Return no captures if one is open.
        """
        with suppress(GrowthError):
            captures = {} if self._offline else self._captures(self._old, self._stack)
            written = {
                (place, key)
                for place, client in self._old.items()
                for page in exchange.pages(client)
                for key in self._maybe_written(place, page)
            }
            if {*map(gate.move_of, gate.fences_of(self._new).values())} == {self._move.id}:
                return captures, written
        return None, set()

    def _push(self, began: float | None = None) -> None:
        """Send readers to the targets, and writers once no reader is left at the sources."""
        move = self._move
        self._progress("pushing the entries")
        self._require_targets()
        if (undone := self._kept_move()) is not None:
            self._lease.write(replace(undone, phase="done"))
        attempt = secrets.token_hex(8)
        self._new_gate.admit_readers(self._new, attempt)
        self._require_planned(read_components(self._config))
        epoch = self._switch(self._rule, f" to {move.target}")
        self._old_gate.turn_away(self._old, attempt)
        waited = time.monotonic() - began if began and not self._offline else 0.0
        patience = _READ * self._hold - waited
        self._old_gate.wait_for_readers(self._old, patience, epoch)
        if move.keep:  # before anything changes there
            for server, client in exchange.one_of_each(self._new).items():
                setting = turn_on_notifications(client)
                move.notifications.setdefault(str(server), setting)
            self._kept = self._captures(self._new, self._stack)
        self._require_targets()
        self._reached("pushed")  # from now on, there may be writes that the sources lack
        self._admit_writers()
        if began is not None:
            move.held = time.monotonic() - began
        self._lease.write(move)

    def _clear(
        self,
        captures: Captures | None,
        written: Collection[tuple[Place, bytes]] = (),
        *,
        kept: bool = False,
    ) -> None:
        """Empty the sources, except for keys that were written there in the meantime.

        What the move itself has ``kept`` there has not been written by others.
        """
        move = self._move
        components = read_components(self._config)
        attest(
            [component for component in components.values() if component.name in self._concerned],
            read_epoch(self._config),
        )
        self._require_takeover()
        self._progress(f"emptying {move.source}")
        for source, own in exchange.by_server(dict.fromkeys(self._rule.sources)).items():
            for server in self._servers.replicas_of(source):
                with (
                    suppress(RedisError, OSError),
                    exchange.database_client(server, self._login(source), 0) as client,
                ):
                    again = gate.wait_for_readers(client, own, LEAVE, all_read=True)
                    if again:
                        self._progress(f"{again} will find no keys at {server}")
        stale: set[tuple[Place, bytes]] | None = set() if kept else None
        if captures is not None and not self._offline:
            with suppress(MissedChangesError):
                left = set(written)
                for server, capture in captures.items():
                    capture.wait_until_told()
                    changed = capture.take()
                    capture.require_complete()
                    left |= {
                        (Place(server, n), key) for (n, key), is_told in changed.items() if is_told
                    }
                stale = left

        place_of = {client: place for place, client in self._old.items()}

        def clear(client: Any) -> None:
            place, value = place_of[client], client.get(gate.fence_key(client))
            if gate.move_of(value) != move.id:
                return  # reversed in the meantime: it is in use
            for page in exchange.pages(client):
                if stale is None:
                    kept = set(self._maybe_written(place, page))
                    keys = [key for key in page if key not in kept]
                else:
                    keys = [key for key in page if (place, key) not in stale]
                if keys:
                    gate.write_under({place: client}, value, {place: [("UNLINK", *keys)]})

        if not self._old_gate.is_cluster:
            self._require_takeover()
            move.emptied = True
            self._lease.write(move)
            self._old_gate.turn_away(self._old, secrets.token_hex(8))
            gate.each_of(clear, self._old)
        self._restore_notifications({**self._old, **self._new})
        certificate = move.certificate or {}
        certificate["keys_now"] = sum(client.dbsize() - 1 for client in self._new.values())
        certificate |= {"held": move.held, "epoch": move.epoch, "unsure": stale is None}
        move.certificate = certificate
        self.verify()
        self._reached("done")

        def forget(client: Any) -> None:
            if client.get(gate.proof_key(client)) == move.id.encode():  # else it is a later move's
                client.delete(gate.proof_key(client))

        with suppress(RedisError, OSError):  # the slot of one has moved, or it has just died
            gate.each_of(forget, self._new)

    def _require_takeover(self) -> None:
        """Check that the targets have everything, and no entry names a source, before emptying."""
        lost = self._lost()
        components = self._require_planned(read_components(self._config))
        named = relocation.held(components, self._rule.sources, self._move.id, self._same)
        self._lease.check()
        if lost:
            raise self._refused(lost)
        if named:
            again = f"entries name {self._move.source} again"
            raise self._refused(again, "push entries that name the new place, and resume")

    def _require_targets(self) -> None:
        """Check that the targets have everything, before clients are sent there."""
        if lost := self._lost(False):
            self._lease.check()
            raise self._refused(lost)

    def _refused(self, lost: str, remedy: str = "start it with its data, and resume") -> Exception:
        move = self._move
        has = "is being emptied" if move.emptied else "still has what there was at the cutover"
        return GrowthError(
            f"{move.name}: {lost}. {move.source} {has}", f"{remedy}: {self._command('resume')}"
        )

    # ---- while the sources are kept up to date

    def _keep_or_clear(self, captures: Captures | None) -> None:
        """Keep the sources up to date until the move is completed or reversed.

        That needs no lease: this process alone knows the value of the sources' fences.
        """
        move, config = self._move, self._config
        token, record = secrets.token_hex(8), journal.essence(move)
        record["emptied"] = self._has_emptied()
        value = gate.fence_value(move.id, token, move.target, record=record)
        gate.change(self._old, move.id, value)
        if not move.keep:
            self._clear(None, kept=True)
            return
        wanted, move.wanted = move.wanted, ""
        self._reached("kept")
        if wanted == "kept":
            return
        back = reversed_move(move)

        def mark(emptied: bool, *commands: Arguments) -> None:
            """Have the fences tell whether the sources lack keys."""
            nonlocal value
            record["emptied"], before = emptied, value
            value = gate.fence_value(move.id, token, move.target, record=record)
            keys = {at: gate.fence_key(client) for at, client in self._old.items()}
            writes = {at: [*commands, ("SET", key, value)] for at, key in keys.items()}
            gate.write_under(self._old, before, writes)

        with taking_part(config, Change(kind="keep", name=move.name, within=move.id)):
            self._lease.release()
            self._progress(f"keeping {move.source} up to date")
            while True:
                with ExitStack() as attempt:
                    refill = captures is None
                    if captures is None:
                        if lost := self._lost():
                            raise self._refused(lost)
                        mark(True, ("FLUSHDB", "ASYNC"))
                        captures = self._captures(self._new, attempt)
                    copies = self._copies_of(captures, self._new, self._old, rule_of(back), value)
                    try:
                        exchange.at_once(
                            DatabaseCopy.copy_all if refill else DatabaseCopy.find_untold, copies
                        )
                        mark(False)
                        for copy in copies:
                            copy.value = value
                        if self._follow(copies, captures) == "reverse":
                            self._go_back(back, copies, captures)
                        return
                    except MissedChangesError as error:
                        self._progress(f"copying again: {error.message}")
                captures = None

    def _follow(self, copies: Sequence[DatabaseCopy], captures: Captures) -> str:
        """Copy what changes until another process wants something; return what that is."""
        config, move = self._config, self._move
        record = move
        try:
            with following(copies) as is_working:
                while is_working():
                    for capture in captures.values():
                        capture.require_complete()
                    record = journal.read(config, move.name)
                    if record.id != move.id or record.phase != "kept" or record.wanted:
                        break
                    time.sleep(_KEEP)
        except GrowthError:
            if record.phase == "kept":
                raise
        if record.id == move.id:
            self._move = record
        return record.wanted

    def _go_back(self, back: Move, copies: list[DatabaseCopy], captures: Captures) -> None:
        """Reverse the move, whose sources have everything."""
        back.notifications = dict(self._move.notifications)
        back.keys = dict(self._move.keys)
        back.fences = {
            str(at): client.get(gate.fence_key(client)).decode() for at, client in self._old.items()
        }
        with journal.lease(self._config) as lease:
            mover = ShardMover(lease, read_components(self._config), back, **self._back)
            mover._watching |= captures
            mover.begin()
            mover._old, mover._new, mover._stack = self._new, self._old, self._stack
            if mover._take_over():
                mover._copies, mover._before = copies, mover._run_of(self._old)
                mover._rule = copies[0].rule
                for copy in copies:
                    copy.value = mover._attempt
                with suppress(MissedChangesError):
                    compared = mover._caught_up()
                    mover._hold_and_decide(compared)
            if back.phase == "pushed":
                mover._clear(captures)
            mover.run()
        self._move = back

    def _restore_notifications(self, clients: Clients) -> None:
        for server, client in exchange.one_of_each(clients).items():
            with suppress(RedisError, KeyError):
                client.config_set("notify-keyspace-events", self._move.notifications[str(server)])

    def _maybe_written(self, place: Place, keys: Sequence[bytes]) -> list[bytes]:
        """Return keys of a source that may have been written since the move was decided.

        The mover has not seen all changes. So these are the keys that were used since then and
        differ from the target; if the server has no idle times (LFU), all that differ.
        """
        old = self._old[place]
        with old.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.object("idletime", key)
            idle = pipe.execute(raise_on_error=False)
        since = int(old.time()[0]) - self._move.decided.get(str(place.server), 0) + _CLOCK
        touched = [
            key
            for key, seconds in zip(keys, idle, strict=True)
            if not isinstance(seconds, int) or seconds <= since
        ]
        there = self._rule.there(place, touched) if touched else {}
        return [key for at, own in there.items() for key in unequal(old, self._new[at], own)]

    def abort(self) -> None:
        """Open the sources, and empty the targets."""
        move, rule = self._move, self._rule
        with self._clients(rule.sources) as old, self._clients(rule.targets) as new:
            self._old, self._new = old, new
            if move.phase == "fenced" and self._lost() and not self._has_emptied():
                self._go_home("begun")
            # `shardkit changes repair` sees to the others when they are back. Without a source, or
            # its keys, the targets keep what may be the only copy.
            self._old, self._new = _answering(old), _answering(new)
            if len(self._old) < len(old) or self._lost_source():
                self._new = {}
            answering, fences = self._new, gate.fences_of(self._new)
            own = [at for at, fence in fences.items() if gate.move_of(fence) == move.id]
            # Others may use databases that the move has not taken; nobody uses half a cluster.
            if not (own and self._new_gate.is_cluster):
                self._new = {at: self._new[at] for at in own}
            if move.phase != "begun" or not self._take_over():
                raise GrowthError(
                    f"{move.target} has taken over",
                    f"resume it, and then: {self._command('reverse')}",
                )
            empty(self._new, self._attempt)
            ours = dict.fromkeys(self._new, self._attempt)  # another attempt has other fences
            former = {at: gate.as_emptied(fence) for at, fence in move.fences.items()}
            gate.lift(self._new, move.id, ours, former)
            if answering and former and self._new_gate.is_cluster:  # a split had left it closed
                self._new_gate.decide(answering, next(iter(former.values())).encode(), lambda: None)
            if self._old_gate.is_cluster:
                gate.lift(self._old, move.id)  # the marks of attempts
            self._restore_notifications(self._old)
        self._reached("aborted")

    def give_up(self, lost: bool) -> str:
        """End the move, with ``lost`` without what lost servers have; none must be replaced."""
        move, rule = self._move, self._rule
        if move.phase == "begun":
            self.abort()
            return ""
        with self._clients(rule.sources) as old, self._clients(rule.targets) as new:
            self._old, self._new = old, new
            here, there = _answering(old), _answering(new)
            closing = self._has_fence(here) or self._has_fence(there)
            if lost and len(here) == len(old) and self._lost():
                if self._has_emptied():
                    self._reached("done")
                    raise GrowthError(
                        f"{move.name}: {move.source} has been emptied, perhaps in part, so entries "
                        f"still name {move.target}: the move is done",
                        "start that with its data, or restore a backup: shardkit restore",
                    )
                home = servers_in(move.source)[0]
                for place, client in new.items():  # clients may have old entries
                    try:
                        gate.give_up(place, client, move.id, move.source, self._lease.check)
                    except (RedisError, OSError):  # it is closed once it is back
                        self._lease.note_fence(Fence(place, home, move=move.id))
                self._new = {}  # all are closed
                self._go_home("aborted")
            elif closing:
                raise self._can_continue()
        self._reached("aborted")
        return ""

    def verify(self) -> None:
        """Note which keys are at the sources although their shards have moved."""
        move = self._move
        stale: list[str] = []
        # The nodes of a cluster keep what they had, and refuse writes.
        with self._clients([] if self._old_gate.is_cluster else self._rule.sources) as old:
            for place, client in old.items():
                if gate.move_of(client.get(gate.fence_key(client))) == move.id:
                    stale += [f"{self._rule.label(place)} {key}" for key in exchange.strays(client)]
        move.certificate = {
            **(move.certificate or {}),
            "stale": stale[:MOST_NAMED],
            "at": time.time(),
        }


def _answering(clients: Clients) -> Clients:
    answering: dict[Place, Any] = {}
    for server, own in exchange.by_server(clients).items():
        with suppress(RedisError, OSError):
            next(iter(own.values())).ping()
            answering |= {Place(server, number): client for number, client in own.items()}
    return answering


def _have_keys(clients: Mapping[Any, Any]) -> bool:
    return any(exchange.strays(client, 1) for client in clients.values())


def reversed_move(move: Move) -> Move:
    """Return the move of shards, or the split, that undoes another one."""
    shards = move.shards
    if move.placements:
        shards = shard_names(move.name, len(move.targets) if move.placements[1] else 0)
    return Move(
        *(move.name, move.copying, move.target, move.source, shards, move.targets, move.sources),
        placements=move.placements[::-1],
        routes=move.routes,
        clusters=move.clusters[::-1],
        undoes=move.id,
        slots=dict(move.slots),
        minimums=dict(move.minimums),
    )


def empty(clients: Clients, value: bytes) -> None:
    """Empty targets except for their fences, if these are those of this attempt."""
    flush = ("FLUSHDB", "ASYNC")
    keys = {place: gate.fence_key(client) for place, client in clients.items()}
    gate.write_under(clients, value, {at: [flush, ("SET", key, value)] for at, key in keys.items()})
