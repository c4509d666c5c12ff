"""Deleting and expiring a structure in parts as Redis does one key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime, timedelta

from shardkit.errors import DamagedDataError
from shardkit.operations.commands import Argument, Command, Reply, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Driver, Face, Operation, operation
from shardkit.structures.base.arguments import LONGEST_EXPIRY, duration, expiry_condition, timestamp
from shardkit.structures.base.damage import stored_integer
from shardkit.structures.base.parameters import ANY_LIFE, DUE, LAST_WRITES, Life
from shardkit.structures.base.partitioned import PartitionedStructure, open_to_delete


class ExpirableStructure(PartitionedStructure[Face]):
    """A structure whose keys are deleted, and expire, together.

    The key of the parameters comes first: it decides whether a condition holds and says when all
    keys expire, and keys made later do so too. It gets that time itself when all others have it
    (see `shardkit.structures.base.parameters`).
    """

    def __init__(
        self, driver: Driver, component: str, name: str, parameters: Mapping[str, object]
    ) -> None:
        super().__init__(driver, component, name, parameters)
        self.meta.complete_deletion = self._complete_deletion
        self.meta.complete_expiry = self._complete_expiry

    @abstractmethod
    def _send_to_all(self, life: Life, name: str, *args: Argument) -> Operation[int]:
        """Send a command, ``name key args…``, for every key but that of the parameters.

        Args:
            life: the life that the keys are of: those of others are left alone.
            name: UNLINK, PERSIST or PEXPIREAT.
            args: its arguments.

        Returns:
            The sum of the replies.
        """

    @abstractmethod
    def _reset(self) -> None:
        """Drop cached state after the structure is deleted."""

    @operation
    def delete(self, *, force: bool = False) -> Operation[bool]:
        """Remove the structure with its parameters; return whether it existed.

        Afterwards it can be created with other parameters. A write at the same time is done
        before it or after it: one that comes after creates the structure anew.

        Args:
            force: delete it also if other parameters are stored, as when they were damaged. Groups
                of parts are looked for by whatever number of groups. Left is what may be another's:
                parts of a planned set or hash beyond those that these parameters name.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.
            ShardErrors: shards failed; keys of the others are gone. Delete it again; the next write
                does so too.

        A damaged structure is deleted too: its keys are looked for.

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
        """Write anew what says which keys there are, from those that exist."""

    def _remove_all(self, lost: bool = False) -> Operation[int]:
        """Remove all keys, the parameters last; return how many there were.

        Args:
            lost: whether there may be other keys although there are no parameters.
        """
        while True:
            life = self.meta.life
            [[marked, *due]] = yield [self.meta.beginning()]
            if marked >= 0:
                break
            self.meta.checked = False  # others created it meanwhile
            yield from self._open()
        if not marked and not lost:
            return 0
        # Without parameters nothing says which life it had.
        of = Life(life, (-1, *due)) if marked else Life(ANY_LIFE)
        return (yield from self._remove_marked(of))

    def _complete_deletion(self) -> Operation[None]:
        """End a deletion that somebody began, unless others have ended it."""
        life = self.meta.life
        [[marked, *due]] = yield [self.meta.beginning()]
        if marked > 0:
            yield from self._remove_marked(Life(life, (-1, *due)))

    def _remove_marked(self, life: Life) -> Operation[int]:
        """Remove all keys of what is marked as being deleted; return how many there were."""
        removed = yield from self._send_to_all(life, "UNLINK")
        removed += sum((yield [self.meta.removal("end", life.number)]))
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
        """Set a time to live; return whether it was set.

        Args:
            time: seconds. With 0 or less the structure is deleted.
            nx: only where no time to live is set.
            xx: only where one is set.
            gt: only where the new one is longer.
            lt: only where the new one is shorter.

        Raises:
            InvalidArgumentError: the time is out of range, or two conditions were given.
            ShardErrors: shards failed; keys on the others expire. Set it again.

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

        While `expire` is on its way, or if its client died, that is the time that was begun to be
        set: -2 when it has passed.

        Cost: one exchange; one more while `expire` is on its way.
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
        condition = expiry_condition(self.name, nx=nx, xx=xx, gt=gt, lt=lt)
        yield from self._open()
        return (yield from self._set_due(command, time, *condition))

    def _set_due(self, command: str, *args: Argument) -> Operation[bool]:
        """Change when all other keys expire, then the parameters likewise; return whether."""
        key = self.meta_key
        beginning = script("structures/base/begin_expiry")
        [begun] = yield [script_call(self.component, beginning, [key], [command, *args])]
        if begun is None:
            return False
        due, left, number, before = begun
        life = Life(number, (-1, before))
        if due == -2:  # a time in the past
            yield from self._remove_marked(life)
            return True
        yield from self._let_all_expire(life, due, left)
        return True

    def _complete_expiry(self) -> Operation[None]:
        """End a change that somebody began: see ``lua/begin_expiry.lua``."""
        meta = self.meta
        yield from self._let_all_expire(meta.present_life, meta.due or -1, LAST_WRITES)

    def _let_all_expire(self, life: Life, due: int, left: int) -> Operation[None]:
        key, ending = self.meta_key, script("structures/base/end_expiry")
        while True:
            self.meta.due, self.meta.life = max(0, due), life.number
            yield from self._send_to_all(life, *self.meta.expiry_of(max(0, due), life.number))
            if due > 0 and (expecting := self.meta.expecting_end(left, life.number)):
                yield expecting
            told = (due, life.number)
            end = script_call(self.component, ending, [key], told, idempotent=True)
            [now] = yield [end]  # others may have changed it: the last one holds
            if now in (due, -2):
                return
            life, due = life._replace(ends=(*life.ends, due)), now

    def _time_to_live(self, command: str) -> Operation[int]:
        left, begun, after = yield [
            self._at(self.meta_key, command, self.meta_key),
            self._begun_expiry(),
            self._at(self.meta_key, command, self.meta_key),
        ]
        if left != -1:  # then nobody was changing it
            return int(left)
        due = self._due_of(begun)
        if due is None:
            return int(after)
        if due <= 0:
            return -1
        [[seconds, microseconds]] = yield [Command(self.component, self.meta_key, ("TIME",))]
        left = due - (int(seconds) * 1000 + int(microseconds) // 1000)
        if left <= 0:
            return -2
        return (left + 500) // 1000 if command == "TTL" else left

    def _begun_expiry(self) -> Command:
        """Return the command that reads whether somebody has begun to change the expiry."""
        return self._at(self.meta_key, "HGET", self.meta_key, DUE)

    def _due_of(self, reply: Reply) -> int | None:
        """Return from the reply when it is to expire; 0 or less for never; None if nobody has."""
        if reply is None:
            return None
        return stored_integer(self.component, self.meta_key, DUE, reply, -1)
