"""Deleting and expiring a structure in parts as Redis does one key."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime, timedelta

from shardkit.operations.commands import Argument
from shardkit.operations.operation import Face, Operation, operation
from shardkit.structures.base.arguments import duration, expiry_condition, timestamp
from shardkit.structures.base.partitioned import PartitionedStructure


class ExpirableStructure(PartitionedStructure[Face]):
    """A structure whose keys are deleted, and expire, together.

    A time to live is set on every key that exists. Keys made later do not expire, unless parts
    split as they fill: it is meant for structures that are complete.
    """

    @abstractmethod
    def _send_to_all(self, name: str, *args: Argument) -> Operation[int]:
        """Send a command, ``name key args…``, for every key; return the sum of the replies.

        The key of the parameters comes last, so that what a failure leaves can still be opened.
        """

    @abstractmethod
    def _reset(self) -> None:
        """Drop cached state after the structure is deleted."""

    @operation
    def delete(self) -> Operation[bool]:
        """Remove the structure with its parameters; return whether it existed.

        Afterwards it can be created with other parameters. No other process may be writing to it:
        one that has checked the parameters does not check them again.

        Raises:
            ParameterMismatchError: the structure exists with other parameters.
            ShardErrors: shards failed; keys of the others are gone. Delete it again.

        Cost: one command per part, an exchange for every 1,000 parts.
        """
        yield from self._open()
        removed = yield from self._send_to_all("UNLINK")
        self._reset()
        return removed > 0

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
            time: seconds, at least one.
            nx: only where no time to live is set.
            xx: only where one is set.
            gt: only where the new one is longer.
            lt: only where the new one is shorter.

        Raises:
            InvalidArgumentError: the time is out of range, or two conditions were given.
            ShardErrors: shards failed; keys on the others expire.

        Cost: one command per part, an exchange for every 1,000 parts.
        """
        return (yield from self._expire("EXPIRE", duration(self.name, time), nx, xx, gt, lt))

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
        after = duration(self.name, time, milliseconds=True)
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
        return (yield from self._send_to_all("PERSIST")) > 0

    @operation
    def ttl(self) -> Operation[int]:
        """Return the seconds to live: -1 if it does not expire, -2 if it does not exist.

        Cost: one exchange.
        """
        return (yield from self._time_to_live("TTL"))

    @operation
    def pttl(self) -> Operation[int]:
        """Return the milliseconds to live; see `ttl`."""
        return (yield from self._time_to_live("PTTL"))

    def _expire(
        self, command: str, time: int, nx: bool, xx: bool, gt: bool, lt: bool
    ) -> Operation[bool]:
        condition = expiry_condition(self.name, nx=nx, xx=xx, gt=gt, lt=lt)
        yield from self._open()
        return (yield from self._send_to_all(command, time, *condition)) > 0

    def _time_to_live(self, command: str) -> Operation[int]:
        [left] = yield [self._at(self.meta_key, command, self.meta_key, idempotent=True)]
        return int(left)
