"""Moves of shards (databases) to another server key by key, while they are in use.

::

    begun    every key is copied, and keys that change are copied again; both sides are compared
    (hold)   entries say so, and clients use separate connections for reads; the source is closed to
             other connections for the time of the hold; those leave, and the rest is copied
    fenced   the source is closed for good, which decides the move; entries name the target, which
             may be read; when no client reads the source any more, the target takes writes
    pushed   waiting clients have continued at the target
    done     the source is emptied, except for keys that were written there since; they are reported

Until it is fenced, a move can be aborted, and nothing has changed for any client. If the mover dies
within the hold, the source opens by itself. Afterwards the move can be reversed.
No client can write at the source unnoticed: new connections ask for the fence, and older ones are
in CLIENT LIST, where the mover sees them leave (see `fence.py`). Readers never wait: while writers
do, the data does not change and is the same on both sides. Both servers may have other databases in
use. Subscriptions do not move.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict
from functools import cached_property
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.growth.capture import KeyCapture, turn_on_notifications
from shardkit.admin.growth.certificate import ServerComparison, differing, unequal
from shardkit.admin.growth.databases import (
    MOST_NAMED,
    clients_of,
    connections_to,
    database_client,
    only_reads,
    pages,
    strays,
)
from shardkit.admin.growth.entries import LEAVE, push_changed, wait_until_read
from shardkit.admin.growth.failover import replicas_of
from shardkit.admin.growth.fence import (
    OWN_KEYS,
    change,
    close_for,
    fence_value,
    is_permanent,
    lift,
    lift_unless_permanent,
    make_permanent,
    move_of,
    write_under,
)
from shardkit.admin.growth.mover import Mover
from shardkit.admin.growth.relocation import ServerAddress, entries_on, held, moved
from shardkit.admin.growth.servers import role_of
from shardkit.admin.growth.shard_copy import DatabaseCopy, Follower, copy_libraries
from shardkit.admin.push import attest
from shardkit.config.component import entry_key
from shardkit.config.entry import Entry
from shardkit.config.fields import database_of
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import GrowthError, MissedChangesError
from shardkit.network.connections.databases import FENCE_KEY

_ATTEMPTS = 5
_COPIES = 3  # because changes may have been missed
# Parts of the hold by which writers have left, the move is decided, and readers have left.
_LEFT, _DECIDED, _READ = 0.5, 0.7, 0.9
_LOOK = 0.01  # seconds between two checks of CLIENT LIST
_UNBLOCK = 0.1  # seconds after which blocking commands are ended
_CLOCK = 2  # seconds by which idle times are wrong at most


class ShardMover(Mover):
    """One attempt at the move of some shards."""

    def _login(self) -> tuple[Entry, str]:
        for component in self._components.values():
            for shard, entry in component.entries():
                if str(shard) in self._move.shards:
                    return entry, entry_key(*shard)
        raise GrowthError(f"{self._move.name} is no longer a shard", "push its entry again")

    @cached_property
    def _attempt(self) -> bytes:
        """The fence at the target that allows this attempt to write."""
        return fence_value(self._move.id, secrets.token_hex(8), self._move.target)

    def _clients(self, server: ServerAddress) -> AbstractContextManager[dict[int, Any]]:
        return clients_of(server, self._move.databases, self._like, self._where)

    def run(self) -> None:
        """Copy, decide, push the entries, and empty the source."""
        move = self._move
        if move.phase == "done":
            return
        with ExitStack() as stack:
            old = stack.enter_context(self._clients(self._source))
            new = stack.enter_context(self._clients(self._target))
            if move.phase == "begun" and self._is_decided(old):
                self._reached("fenced")
            if move.phase == "fenced" and not self._is_closed(old, new):
                raise GrowthError(
                    f"{move.name} ({move.source}) is not closed by this move, although its record "
                    "says so: the record is out of date",
                    f"find out which server has the keys; then DEL config:growth:move:{move.name}",
                )
            capture = None  # of all changes since it was decided
            written: set[tuple[int, bytes]] = set()
            if move.phase == "begun":
                capture = self._decide(old, new, stack)
            if move.phase == "fenced":
                capture, written = self._written_until_now(old, new, stack)
                self._push(old, new)
            self._clear(old, new, capture, written)

    def _decide(
        self, old: Mapping[int, Any], new: Mapping[int, Any], stack: ExitStack
    ) -> KeyCapture | None:
        """Copy until no change was missed, and decide; return the capture.

        Return None if another mover has decided.
        """
        move = self._move
        for _ in range(_COPIES):
            self._begin(old, new)
            if move.phase != "begun":
                return None
            first = next(iter(old.values()))
            turn_on_notifications(first)  # a restart resets the setting
            with ExitStack() as attempt:
                try:
                    capture = KeyCapture(first, move.databases)
                    attempt.callback(capture.close)
                    self._transfer(old, new, capture)
                except MissedChangesError as error:
                    missed = error.message
                    self._progress(f"copying again: {missed}")
                else:
                    stack.push(attempt.pop_all())
                    return capture
        raise GrowthError(
            f"{move.name} ({move.source}): each of {_COPIES} copies may have missed changes "
            f"({missed}); nothing has changed for clients",
            f"prevent that, then: shardkit move resume {move.name}",
        )

    def _is_decided(self, old: Mapping[int, Any]) -> bool:
        """Whether the first of the databases, which is closed last, is closed for good."""
        return is_permanent(old[self._move.databases[0]], self._move.id)

    def _is_closed(self, old: Mapping[int, Any], new: Mapping[int, Any]) -> bool:
        """Whether this move closes the source, or its target if the source has lost its data."""
        targets = (move_of(client.get(FENCE_KEY)) for client in new.values())
        return self._is_decided(old) or self._move.id in targets

    # ---- before it is decided

    def _begin(self, old: Mapping[int, Any], new: Mapping[int, Any]) -> None:
        """Undo what earlier attempts did, unless one of them decides the move now."""
        move = self._move
        move.certificate = None
        self._lease.write(move)
        if not role_of(next(iter(new.values()))).is_master:
            raise GrowthError(f"{move.target} is a replica", "nothing has changed for clients")
        for number, client in new.items():
            fence = client.get(FENCE_KEY)
            if move_of(fence) != move.id:
                if strays(client, 1):
                    raise GrowthError(
                        f"{move.target} has keys in database {number}",
                        "empty it, or abort the move",
                    )
                if fence is not None:
                    move.fences[str(number)] = fence.decode(errors="replace")
        if move.notifications is None:
            move.notifications = turn_on_notifications(next(iter(old.values())))
        self._lease.write(move)
        if self._take_over(old, new):
            for client in new.values():
                write_under(client, self._attempt, self._emptying)
        else:
            self._reached("fenced")

    def _take_over(self, old: Mapping[int, Any], new: Mapping[int, Any]) -> bool:
        """Keep other attempts from writing and deciding; return False if one has decided."""
        for client in new.values():
            client.set(FENCE_KEY, self._attempt)
        for number in self._move.databases:
            if number != self._move.databases[0]:
                lift(old[number], self._move.id)
            elif not lift_unless_permanent(old[number], self._move.id):
                return False
        self._held(None)
        return True

    def _emptying(self, pipe: Any) -> None:
        pipe.flushdb(asynchronous=True)
        pipe.set(FENCE_KEY, self._attempt)

    def _let_go(self, old: Mapping[int, Any], value: bytes) -> None:
        """Open the source to clients again."""
        for client in old.values():
            lift(client, self._move.id, value)
        self._held(None)

    def _held(self, by: str | None, server: ServerAddress | None = None) -> int:
        """Push which move holds the shards, on the source by default; return the epoch."""
        return push_changed(
            self._lease,
            lambda components: held(
                components, server or self._source, self._move.databases, by, self._same
            ),
            f"move of {self._move.name}",
            witnessed=False,
        )

    def _transfer(
        self, old: Mapping[int, Any], new: Mapping[int, Any], capture: KeyCapture
    ) -> None:
        """Copy, follow, compare, hold and decide."""
        move = self._move
        before = self._run_of(new)
        began = time.monotonic()
        names = {
            database_of(entry.fields): str(shard)
            for shard, entry in entries_on(self._components.values(), self._source, self._same)
        }
        copy = DatabaseCopy(old, new, self._attempt, capture, names, self._share)

        def tell(keys: int, size: int) -> None:
            if time.monotonic() > began + self._copy:
                raise GrowthError(
                    f"the copy was not complete within {self._copy:g} s; nothing has changed for "
                    "clients",
                    "resume it with more time: --copy",
                )
            self._progress(f"copied {keys:,} of {move.total:,} keys, {size / 1e6:,.0f} MB")

        copy.copy_all(tell)
        move.copied, move.seconds = copy.bytes, round(time.monotonic() - began, 3)
        follower = Follower(copy)
        try:
            compared = self._compare(old.__getitem__, new.__getitem__, move.databases, OWN_KEYS)
        finally:
            follower.stop()
        capture.require_complete()  # before writers are held
        if not compared.same:
            raise GrowthError(
                f"{compared.differing:,} keys differ on both servers, such as "
                f"{compared.different[0]}; nothing has changed for clients",
                "resume, which copies again, or abort",
            )
        first = move.databases[0]
        copy_libraries(old[first], new[first])
        self._hold_and_decide(old, new, copy, compared, before)

    @staticmethod
    def _run_of(clients: Mapping[int, Any]) -> tuple[str, int]:
        """Return a server's run, and how many keys it has evicted."""
        client = next(iter(clients.values()))
        return str(client.info("server")["run_id"]), int(client.info("stats")["evicted_keys"])

    def _hold_and_decide(
        self,
        old: Mapping[int, Any],
        new: Mapping[int, Any],
        copy: DatabaseCopy,
        compared: ServerComparison,
        before: tuple[str, int],
    ) -> None:
        move = self._move
        problem: GrowthError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(self._hold)  # writers that waited go first
                copy.follow(lambda: True)
            self._progress("holding writers")
            # All know of it before writers are held: then it takes less than a second to read.
            wait_until_read(self._config, self._held(f"{move.name} soon"))
            began = time.monotonic()
            value = fence_value(move.id, secrets.token_hex(8), move.target, readers=True)
            decided = deciding = False
            try:
                for client in old.values():
                    close_for(client, value, _DECIDED * self._hold)
                self._held(move.name)
                self._wait_until_left(old, began)
                move.decided = int(next(iter(old.values())).time()[0])
                self._finish(old, new, copy, compared, before)
                self._require_target(new)
                deciding = True
                last = reversed(move.databases)  # the first of them decides
                decided = all(make_permanent(old[number], value) for number in last)
                deciding = False
            except GrowthError as error:
                problem = error
                if isinstance(error, MissedChangesError) or self._is_other_run(new, before):
                    raise
            finally:
                if not decided and not deciding:  # if in doubt, `resume` finds out
                    self._let_go(old, value)
            if decided:
                self._reached("fenced")
                self._push(old, new, began)
                return
        raise problem or GrowthError(
            f"the rest could not be copied within {self._hold:g} s, {_ATTEMPTS} times: the shards "
            "are where they were",
            "try again when there are fewer writes, or allow more time: --hold",
        )

    def _is_other_run(self, new: Mapping[int, Any], before: tuple[str, int]) -> bool:
        try:
            return self._run_of(new) != before
        except (RedisError, OSError):
            return True

    def _require_target(self, new: Mapping[int, Any]) -> None:
        """Check that no other attempt writes to the target, which may be empty then."""
        if any(client.get(FENCE_KEY) != self._attempt for client in new.values()):
            raise GrowthError(
                "another process has taken over this move", "see: shardkit move status"
            )

    def _wait_until_left(self, old: Mapping[int, Any], began: float) -> None:
        """Wait until the writers that were connected before the hold have left."""
        client = next(iter(old.values()))
        end = began + _LEFT * self._hold
        while True:
            here = [
                each
                for each in connections_to(client, self._move.databases)
                if not only_reads(each)
            ]
            if not here:
                return
            now = time.monotonic()
            for each in here:
                if self._kill and now > began + 0.4 * self._hold:
                    client.client_kill_filter(_id=each["id"])
                elif "b" in each["flags"] and now > began + _UNBLOCK:
                    client.client_unblock(int(each["id"]))  # as if it had timed out
            if now > end:
                names = sorted({each["name"] or f"a client at {each['addr']}" for each in here})
                raise GrowthError(
                    f"{len(here)} connections did not leave within {_LEFT * self._hold:g} s: "
                    f"{', '.join(names[:5])}; the shards are where they were",
                    "check them; --kill closes them, --hold allows more time",
                )
            time.sleep(_LOOK)

    def _finish(
        self,
        old: Mapping[int, Any],
        new: Mapping[int, Any],
        copy: DatabaseCopy,
        compared: ServerComparison,
        before: tuple[str, int],
    ) -> None:
        """Copy the rest, and certify that both sides are the same, while no client writes.

        They were the same when they were compared, and no change was missed since then.
        """
        last = copy.finish()
        wrong = [
            line
            for number in old
            for line in differing(
                old[number], new[number], [key for at, key in last if at == number]
            )
        ]
        if wrong:
            raise GrowthError(
                f"{len(wrong)} keys differ on both servers, such as {wrong[0]}", "resume, or abort"
            )
        if self._is_other_run(new, before):
            raise GrowthError(
                f"{self._move.target} was restarted or has evicted keys (maxmemory) during the "
                "move; the shards are where they were",
                "give it enough memory, and resume, which copies again; or abort",
            )
        move = self._move
        move.certificate = {
            **asdict(compared),
            "keys_before": move.total,
            "same": True,
            "stale": [],
        }
        self._lease.write(move)

    # ---- after it is decided

    def _written_until_now(
        self, old: Mapping[int, Any], new: Mapping[int, Any], stack: ExitStack
    ) -> tuple[KeyCapture | None, set[tuple[int, bytes]]]:
        """Capture changes at the source after a kill; return also the keys that were written since.

        While the target is closed it has what was decided. Return no capture if it is open.
        """
        first = next(iter(old.values()))
        turn_on_notifications(first)
        with suppress(GrowthError):
            capture = KeyCapture(first, self._move.databases)
            stack.callback(capture.close)
            written = {
                (number, key)
                for number, client in old.items()
                for page in pages(client)
                for key in self._maybe_written(client, new[number], page)
            }
            if all(move_of(client.get(FENCE_KEY)) == self._move.id for client in new.values()):
                return capture, written
        return None, set()

    def _push(
        self, old: Mapping[int, Any], new: Mapping[int, Any], began: float | None = None
    ) -> None:
        """Send readers to the target, and writers once no reader is left at the source."""
        move = self._move
        self._progress("pushing the entries")
        attempt = secrets.token_hex(8)
        for client in new.values():
            change(client, move.id, fence_value(move.id, attempt, move.target, readers=True))
        push_changed(
            self._lease,
            lambda components: moved(
                components, self._source, move.databases, self._target, self._same
            ),
            f"move of {move.name} to {move.target}",
            witnessed=False,
        )
        for client in old.values():
            change(client, move.id, fence_value(move.id, attempt, move.target))
        patience = _READ * self._hold - (time.monotonic() - began if began else 0.0)
        self._wait_for_readers(next(iter(old.values())), max(_LOOK, patience))
        for client in new.values():
            lift(client, move.id)
        if began is not None:
            move.held = time.monotonic() - began
        move.epoch = self._held(None, self._target)
        self._reached("pushed")

    def _wait_for_readers(self, client: Any, patience: float, *, all_read: bool = False) -> None:
        """Wait until readers have left; close those still connected after `patience` seconds.

        With ``all_read`` every connection counts as a reader.
        """
        end = time.monotonic() + patience
        while here := [
            each
            for each in connections_to(client, self._move.databases)
            if all_read or only_reads(each)
        ]:
            if time.monotonic() > end:
                for each in here:
                    client.client_kill_filter(_id=each["id"])
            time.sleep(_LOOK)

    def _clear(
        self,
        old: Mapping[int, Any],
        new: Mapping[int, Any],
        capture: KeyCapture | None,
        written: Set[tuple[int, bytes]],
    ) -> None:
        """Empty the source, except for keys that were written there in the meantime."""
        move = self._move
        components = read_components(self._config)
        names = {shard.rpartition(":")[0] or shard for shard in move.shards} | set(move.shards)
        attest(
            [each for each in components.values() if each.name in names],
            read_epoch(self._config),
        )
        self._progress(f"emptying {move.source}")
        self._leave_replicas()
        stale: set[tuple[int, bytes]] | None = None
        if capture is not None:
            with suppress(MissedChangesError):
                capture.wait_until_told()
                changed = capture.take()
                capture.require_complete()
                stale = {*written, *(each for each, by_client in changed.items() if by_client)}
        for number, client in old.items():
            value = client.get(FENCE_KEY)
            if move_of(value) != move.id:
                continue  # reversed in the meantime: it is in use
            for page in pages(client):
                if stale is None:
                    kept = set(self._maybe_written(client, new[number], page))
                    keys = [key for key in page if key not in kept]
                else:
                    keys = [key for key in page if (number, key) not in stale]
                if keys:
                    write_under(client, value, _unlinking(keys))
        with suppress(RedisError):
            next(iter(old.values())).config_set("notify-keyspace-events", move.notifications)
        certificate = move.certificate or {}
        certificate["keys_now"] = sum(client.dbsize() for client in new.values())
        certificate |= {"held": move.held, "epoch": move.epoch, "unsure": stale is None}
        move.certificate = certificate
        self._note_strays()
        self._reached("done")

    def _maybe_written(self, old: Any, new: Any, keys: Sequence[bytes]) -> list[bytes]:
        """Return keys of the source that may have been written since the move was decided.

        The mover has not seen all changes. So these are the keys that were used since then and
        differ from the target; if the server has no idle times (LFU), all that differ.
        """
        with old.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.object("idletime", key)
            idle = pipe.execute(raise_on_error=False)
        since = int(old.time()[0]) - self._move.decided + _CLOCK
        touched = [
            key
            for key, seconds in zip(keys, idle, strict=True)
            if not isinstance(seconds, int) or seconds <= since
        ]
        return unequal(old, new, touched) if touched else []

    def _leave_replicas(self) -> None:
        """Wait until clients have left the source's replicas; close those that stay."""
        for server in replicas_of(self._components.values(), self._source, self._same):
            with (
                suppress(RedisError, OSError),
                database_client(server, self._like, self._where, 0) as client,
            ):
                self._wait_for_readers(client, LEAVE, all_read=True)

    def abort(self) -> None:
        """Open the source, and empty the target."""
        move = self._move
        with self._clients(self._source) as old, self._clients(self._target) as new:
            taken = any(move_of(client.get(FENCE_KEY)) == move.id for client in new.values())
            if (
                move.phase != "begun"
                or self._is_decided(old)
                or (taken and not self._take_over(old, new))
            ):
                raise GrowthError(
                    f"{move.target} has taken over",
                    f"resume it, and then: shardkit move reverse {move.name}",
                )
            for number, client in new.items():
                if taken:
                    write_under(client, self._attempt, self._emptying)
                    lift(client, move.id)
                    fence = move.fences.get(str(number))
                    if fence is not None:
                        client.set(FENCE_KEY, fence)
            if move.notifications is not None:
                with suppress(RedisError):
                    first = next(iter(old.values()))
                    first.config_set("notify-keyspace-events", move.notifications)
        self._reached("aborted")

    def verify(self) -> None:
        """Search the source for keys that were written since."""
        self._note_strays()

    def _note_strays(self) -> None:
        """Note which keys are at the source although its shards have moved."""
        move = self._move
        stale = []
        with self._clients(self._source) as old:
            for number, client in old.items():
                if move_of(client.get(FENCE_KEY)) == move.id:
                    stale += [f"{number} {key}" for key in strays(client)]
        move.certificate = {
            **(move.certificate or {}),
            "stale": stale[:MOST_NAMED],
            "at": time.time(),
        }


def _unlinking(keys: Sequence[bytes]) -> Callable[[Any], object]:
    return lambda pipe: pipe.unlink(*keys)
