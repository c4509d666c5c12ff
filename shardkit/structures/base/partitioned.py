"""The base of structures in parts: a name, parameters stored beside the data, and parts.

A part is an ordinary key, whose name decides its shard. So a structure over sixteen servers has the
same parts as over one, and a member's part and its server are not correlated. It is deleted, and
expires, as Redis does one key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar

from shardkit.errors import DamagedDataError, ParameterMismatchError, StructureError
from shardkit.operations.commands import Argument, Command, Reply
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.structures.base.arguments import (
    LONGEST_EXPIRY,
    check_name,
    duration,
    expiry_condition,
    timestamp,
)
from shardkit.structures.base.check import REBUILD, Report, Suspicions, confirmed, suspected
from shardkit.structures.base.damage import stored_integer
from shardkit.structures.base.parameters import (
    ANY_GENERATION,
    DUE,
    LAST_WRITES,
    ChangeScope,
    Metadata,
    of_this_format,
    open_all,
)

# How many parts one exchange of a bulk operation visits.
PARTS_AT_ONCE = 1000


class ExpirableStructure(Structure[Face]):
    """A structure in parts, whose keys are deleted, and expire, together.

    The parameters' key comes first: it decides whether a condition holds and stores the new expiry,
    which keys created later get too. It gets that expiry itself when all other keys have it (see
    `shardkit.structures.base.parameters`).

    Attributes:
        meta: its parameters as stored.
    """

    kind: ClassVar[str]

    def __init__(
        self, driver: Driver, component: str, name: str, parameters: Mapping[str, object]
    ) -> None:
        check_name(name)
        super().__init__(driver, component, name)
        self.meta = Metadata(component, name, {"kind": self.kind, **parameters})
        self.meta.complete_deletion = self._complete_deletion
        self.meta.complete_expiry = self._complete_expiry

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters that decide where the structure's data lives, as text."""
        return self.meta.parameters

    @property
    def meta_key(self) -> str:
        """The key of the parameters."""
        return self.meta.key

    def part_key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self.name}:{part}"

    @operation
    def open(self, *, create: bool = False) -> Operation[None]:
        """Check the parameters against those stored. Other methods do so at their first call.

        With ``create``, store them if there are none. Cost: one exchange; none once they have been
        checked.
        """
        yield from self._open(create=create)

    def _open(self, *, create: bool = False) -> Operation[None]:
        if not self.meta.is_checked(create=create):
            yield from open_all([self.meta], create=create)

    @abstractmethod
    def _send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        """Send UNLINK, PERSIST or PEXPIREAT to all but the parameters; return the replies' sum."""

    @abstractmethod
    def _reset(self) -> None:
        """Drop cached state after the structure is deleted."""

    @operation
    def delete(self, *, force: bool = False) -> Operation[bool]:
        """Remove the structure with its parameters, even a damaged one; return whether it existed.

        It can then be created with other parameters. A write at the same time counts as before or
        after the deletion; a write after it creates the structure again. If shards fail, delete it
        again; the next write does so too.

        Args:
            force: delete it even if other parameters are stored, for example damaged ones, and
                groups of parts whatever their number. Parts of a planned set or hash that these
                parameters do not name stay.

        Cost: one command per part, an exchange for every 1,000 parts, and two more.
        """
        lost = yield from open_to_delete(self.meta, force)
        others = (yield from self._remove_others()) if force else 0
        try:
            return (yield from self._remove_all(lost)) + others > 0
        except DamagedDataError:
            yield from self._restore_index()
            return (yield from self._remove_all(lost)) + others > 0

    def _remove_others(self) -> Operation[int]:
        """Remove keys that only other parameters name; return how many."""
        yield from ()
        return 0

    @abstractmethod
    def _restore_index(self) -> Operation[None]:
        """Write the index of existing keys again, from the keys that exist."""

    def _remove_all(self, lost: bool = False) -> Operation[int]:
        """Remove all keys, the parameters last, and (lost) those without any; return how many."""
        while True:
            self._refuse_while_planned()
            generation = self.meta.generation
            [[marked, *due]] = yield [self.meta.beginning()]
            if marked >= 0:
                break
            self.meta.checked = False  # another client re-created it
            yield from self._open()
        if not marked and not lost:
            return 0
        # Without parameters the generation is unknown.
        scope = ChangeScope(generation, (-1, *due)) if marked else ChangeScope(ANY_GENERATION)
        return (yield from self._remove_marked(scope))

    def _refuse_while_planned(self, *, sure: bool = False) -> None:
        if sure or self.meta.planning:
            raise StructureError(
                f"{self.name} is being replanned, so it can be neither deleted nor expire",
                "try again afterwards, or call replan() again if that was interrupted",
            )

    def _complete_deletion(self) -> Operation[None]:
        """Complete a deletion that another client began, unless a third one has."""
        generation = self.meta.generation
        [[marked, *due]] = yield [self.meta.beginning()]
        if marked > 0:
            yield from self._remove_marked(ChangeScope(generation, (-1, *due)))

    def _remove_marked(self, generation: ChangeScope) -> Operation[int]:
        """Remove all keys of a structure marked as being deleted; return how many there were."""
        removed = yield from self._send_to_all(generation, "UNLINK")
        removed += sum((yield [self.meta.removal("end", generation.number)]))
        self._reset()
        return removed

    @operation
    def expire(
        self,
        time: int | timedelta,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Operation[bool]:
        """Set a time to live; return whether it was set. If shards fail, set it again.

        Args:
            time: seconds. With 0 or less the structure is deleted.
            nx: only if no time to live is set.
            xx: only if one is set; also together with gt or lt.
            gt: only if the new one is longer.
            lt: only if the new one is shorter.

        Cost: one command per part, an exchange for every 1,000 parts, and two or three more.
        """
        return (yield from self._expire("EXPIRE", self._time(time), nx, xx, gt, lt))

    @operation
    def pexpire(
        self,
        time: int | timedelta,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Operation[bool]:
        """Set a time to live in milliseconds; see `expire`."""
        after = self._time(time, milliseconds=True)
        return (yield from self._expire("PEXPIRE", after, nx, xx, gt, lt))

    @operation
    def expireat(
        self,
        when: int | datetime,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Operation[bool]:
        """Expire at a time: seconds since 1970, or a datetime with a timezone; see `expire`."""
        return (yield from self._expire("EXPIREAT", timestamp(self.name, when), nx, xx, gt, lt))

    @operation
    def pexpireat(
        self,
        when: int | datetime,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Operation[bool]:
        """Expire at a time in milliseconds since 1970; see `expireat`."""
        at = timestamp(self.name, when, milliseconds=True)
        return (yield from self._expire("PEXPIREAT", at, nx, xx, gt, lt))

    @operation
    def persist(self) -> Operation[bool]:
        """Remove the time to live; return whether there was one. Cost: as `expire`."""
        yield from self._open()
        return (yield from self._set_due("PERSIST"))

    @operation
    def ttl(self) -> Operation[int]:
        """Return the seconds to live: -1 if it does not expire, -2 if it does not exist.

        While `expire` is in progress, or after its client died, the new ones; -2 when they have
        passed.

        Cost: one exchange; one more while `expire` is in progress.
        """
        return (yield from self._time_to_live("TTL"))

    @operation
    def pttl(self) -> Operation[int]:
        """Return the milliseconds to live; see `ttl`."""
        return (yield from self._time_to_live("PTTL"))

    def _time(self, time: int | timedelta, *, milliseconds: bool = False) -> int:
        return duration(self.name, time, milliseconds=milliseconds, least=-LONGEST_EXPIRY)

    def _expire(
        self, command: str, time: int, nx: bool, xx: bool, gt: bool, lt: bool
    ) -> Operation[bool]:
        exists = ("XX",) if xx and (gt or lt) else ()  # of a key; a field takes one condition only
        condition = expiry_condition(self.name, nx=nx, xx=xx and not exists, gt=gt, lt=lt)
        yield from self._open()
        return (yield from self._set_due(command, time, *exists, *condition))

    def _set_due(self, command: str, *args: Argument) -> Operation[bool]:
        """Change when all other keys expire, then the parameters; return whether it changed."""
        key = self.meta_key
        [reply] = yield [
            lua_call(self.component, "structures/base/begin_expiry", [key], [command, *args])
        ]
        if reply is None:
            return False
        due, left, number, before = reply
        if due == -3:
            self._refuse_while_planned(sure=True)
        generation = ChangeScope(number, (-1, before))
        if due == -2:  # a time in the past
            yield from self._remove_marked(generation)
            return True
        yield from self._let_all_expire(generation, due, left)
        return True

    def _complete_expiry(self) -> Operation[None]:
        """Complete a change that another client began: see ``lua/begin_expiry.lua``."""
        meta = self.meta
        yield from self._let_all_expire(meta.present_generation, meta.due or -1, LAST_WRITES)

    def _let_all_expire(self, generation: ChangeScope, due: int, left: int) -> Operation[None]:
        key, ending = self.meta_key, "structures/base/end_expiry"
        while True:
            self.meta.due, self.meta.generation = max(0, due), generation.number
            expiry = self.meta.expiry_of(max(0, due), generation.number)
            yield from self._send_to_all(generation, *expiry)
            if due > 0 and (expecting := self.meta.expecting_end(left, generation.number)):
                yield expecting
            arguments = (due, generation.number)
            end = lua_call(self.component, ending, [key], arguments, idempotent=True)
            [now] = yield [end]  # others may have changed it: the last one holds
            if now in (due, -2):
                return
            generation, due = generation._replace(ends=(*generation.ends, due)), now

    def _time_to_live(self, command: str) -> Operation[int]:
        read = self._at(self.meta_key, command, self.meta_key)
        reads = (read, self._started_expiry(), read)
        left, changing, after = yield from of_this_format(self.component, self.meta_key, *reads)
        if left != -1:  # no client was changing it
            return int(left)
        due = self._due_of(changing)
        if due is None:
            return int(after)
        if due <= 0:
            return -1
        [[seconds, microseconds]] = yield [Command(self.component, self.meta_key, ("TIME",))]
        left = due - (int(seconds) * 1000 + int(microseconds) // 1000)
        if left <= 0:
            return -2
        return (left + 500) // 1000 if command == "TTL" else left

    def _started_expiry(self) -> Command:
        return self._at(self.meta_key, "HGET", self.meta_key, DUE)

    def _due_of(self, reply: Reply) -> int | None:
        """Return that expiry from the reply; 0 or less for never; None if none is being set."""
        if reply is None:
            return None
        return stored_integer(self.component, self.meta_key, DUE, reply, -1)


def check_parameters(meta: Metadata) -> Report:
    """Yield, and return, the damage to parameters; none if they are right, or there is no data."""
    meta.checked = False

    def suspect() -> Operation[Suspicions]:
        stores = f"{REBUILD} stores those that it is opened with"
        damaged = yield from suspected(open_all([meta]), stores)
        if not damaged or damaged[0].error.found == "nothing":
            return damaged
        return [suspicion._replace(loses="what the key holds") for suspicion in damaged]

    return (yield from confirmed(suspect))


def restore_parameters(meta: Metadata) -> Operation[None]:
    """Store a structure's parameters if there are none that can be read; refuses others."""
    meta.checked = meta.data_ruled_out = False
    if (yield from _removed_if_damaged(meta)):
        meta.data_ruled_out = True
        yield from open_all([meta], create=True)
    elif meta.checked:
        # Only the script that creates a structure returns its expiry.
        [reply] = yield [meta.opening(create=True)]
        meta.compare(reply, create=True)


def open_to_delete(meta: Metadata, force: bool = False) -> Operation[bool]:
    """Compare parameters before a deletion; return whether there are none.

    Damaged ones are removed; with ``force`` also different ones, which are refused else.
    """
    meta.checked = meta.data_ruled_out = False
    try:
        absent = yield from _removed_if_damaged(meta)
    except ParameterMismatchError:
        if not force:
            raise
        yield [meta.command(meta.key, "UNLINK")]
        absent = True
    meta.data_ruled_out = meta.data_ruled_out or absent
    return absent


def _removed_if_damaged(meta: Metadata) -> Operation[bool]:
    """Open a structure; remove unreadable parameters. Return whether there are none."""
    damaged = yield from suspected(open_all([meta]))
    if damaged and damaged[0].error.found != "nothing":
        yield [meta.command(meta.key, "UNLINK")]
    return bool(damaged)
