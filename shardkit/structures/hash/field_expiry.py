"""Fields of a sharded hash that expire one by one: the HEXPIRE family.

Servers have it from Redis 7.4 and Valkey 9.0 on. On Redis a part with such fields is still compact;
Valkey makes a table of it.

Where parts split as they fill, a field takes its time along to the new part. Nobody tells the
group's count of members when a field goes, so that count is only an upper bound from then on: it is
taken anew whenever the group seems to have to grow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from shardkit.errors import InvalidArgumentError, ShardErrors, ShardFailure, StructureError
from shardkit.operations.commands import Argument, Key
from shardkit.operations.operation import Face, Operation, operation
from shardkit.structures.base.arguments import check_integer, expiry, shown
from shardkit.structures.base.members import Members
from shardkit.structures.layouts import FixedLayout, GrowingLayout, NumberedLayout
from shardkit.structures.layouts.structure import StructureWithLayout

LATEST = 2**48 - 1  # milliseconds; what servers can say of a field
_UNKNOWN_COMMAND = re.compile(r"unknown (redis )?command", re.IGNORECASE)


class FieldExpiry(StructureWithLayout[Face]):
    """A structure whose fields expire; the base of `shardkit.structures.ShardedHash`."""

    _fields: Members[Any]
    _hashed: FixedLayout | GrowingLayout

    @operation
    def hexpire(
        self, seconds: int | timedelta, *fields: Key, condition: str = ""
    ) -> Operation[list[int]]:
        """Have fields expire after some time.

        Args:
            seconds: after what time, at least one second.
            fields: which.
            condition: ``NX``, ``XX``, ``GT`` or ``LT``, as for HEXPIRE.

        Returns:
            For each field 1 when its time was set, 0 when the condition was not met, -2 when it is
            not there.

        Raises:
            InvalidArgumentError: the time or the condition is none.
            StructureError: the servers cannot: Redis can from 7.4 on, Valkey from 9.0 on.

        Cost: one exchange, one command a part.
        """
        after = expiry(self.name, seconds)
        return (yield from self._expire_fields("HEXPIRE", after, condition, fields))

    @operation
    def hpexpireat(
        self, when: int | datetime, *fields: Key, condition: str = ""
    ) -> Operation[list[int]]:
        """Have fields expire at some time; see `hexpire`.

        Args:
            when: milliseconds since 1970, UTC; or a datetime with a timezone.
            fields: which.
            condition: as for `hexpire`.

        Returns:
            As `hexpire`; 2 when the time is past, and the field was removed.
        """
        if isinstance(when, datetime):
            if when.utcoffset() is None:
                raise InvalidArgumentError(
                    f"{self.name}: when={shown(when)} has no timezone", "give a datetime with one"
                )
            when = int(when.timestamp() * 1000)
        check_integer(self.name, "when", when, 0, LATEST)
        return (yield from self._expire_fields("HPEXPIREAT", when, condition, fields))

    @operation
    def hpersist(self, *fields: Key) -> Operation[list[int]]:
        """Have fields expire no more.

        Returns:
            For each field 1 when it will not expire any more, -1 when it would not have anyway, -2
            when it is not there.

        Raises:
            StructureError: the servers cannot.

        Cost: one exchange, one command a part.
        """
        return (yield from self._of_fields("HPERSIST", (), fields, write=True))

    @operation
    def hpttl(self, *fields: Key) -> Operation[list[int]]:
        """Return in how many milliseconds fields expire: -1 never, -2 not there; see `hpersist`."""
        return (yield from self._of_fields("HPTTL", (), fields))

    @operation
    def hpexpiretime(self, *fields: Key) -> Operation[list[int]]:
        """Return when fields expire, in milliseconds since 1970, UTC; else as `hpttl`."""
        return (yield from self._of_fields("HPEXPIRETIME", (), fields))

    def _expire_fields(
        self, name: str, time: int, condition: str, fields: Sequence[Key]
    ) -> Operation[list[int]]:
        if condition not in ("", "NX", "XX", "GT", "LT"):
            raise InvalidArgumentError(
                f"{self.name}: condition={shown(condition)}", "give NX, XX, GT or LT"
            )
        if fields:
            yield from self._open()
            hashed = [field for field in map(self._fields.encode, fields) if self._is_hashed(field)]
            if isinstance(self._hashed, GrowingLayout) and hashed:
                yield from self._hashed.mark_expiring(hashed)
        args = (time, condition) if condition else (time,)
        return (yield from self._of_fields(name, args, fields, write=True))

    def _of_fields(
        self, name: str, args: tuple[Argument, ...], fields: Sequence[Key], *, write: bool = False
    ) -> Operation[list[int]]:
        """Send a command of the HEXPIRE family; return its reply for each field."""
        asked = [(self._fields.encode(field), n) for n, field in enumerate(fields)]
        found = [-2] * len(asked)
        if not asked:
            return found
        yield from self._open()

        def build(some: list[bytes], _: list[int]) -> tuple[Argument, ...]:
            return (name, *args, "FIELDS", len(some), *some)

        try:
            if write:
                replies = yield from self.layout.write(asked, build, adds=False)
            else:
                replies = yield from self.layout.read(asked, build)
        except ShardErrors as errors:
            if any(map(_unknown, errors.exceptions)):
                raise StructureError(
                    f"{self.name}: the servers have no {name}",
                    "Redis has it from 7.4 on, Valkey from 9.0 on",
                ) from errors
            raise
        for positions, codes in replies:
            for n, code in zip(positions, codes or (), strict=False):  # no such part: no codes
                found[n] = code
        return found

    def _is_hashed(self, field: bytes) -> bool:
        return not isinstance(self.layout, NumberedLayout) or self.layout.place(field) is None


def _unknown(failure: object) -> bool:
    return isinstance(failure, ShardFailure) and bool(_UNKNOWN_COMMAND.search(str(failure.error)))
