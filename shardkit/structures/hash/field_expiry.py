"""Fields of a sharded hash that expire one by one: the HEXPIRE family.

Servers support it from Redis 7.4 and Valkey 9.0 on. On Redis a part with such fields stays compact;
Valkey turns it into a hash table.

Where parts split as they fill, a field keeps its time to live in the new part. Expired fields are
not subtracted from their group's count, which is only an upper bound from then on: it is recounted
before the group would split.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardkit.errors import ShardErrors, ShardFailure, StructureError
from shardkit.operations.commands import Argument
from shardkit.operations.operation import Operation
from shardkit.structures.layouts.base import Layout

_UNKNOWN_COMMAND = re.compile(r"unknown (redis )?command", re.IGNORECASE)
_MISSING = -2


class FieldExpiry:
    """Sends the commands of the HEXPIRE family for one hash."""

    def __init__(self, name: str, layout: Layout) -> None:
        self._name = name
        self._layout = layout

    def set(self, field: bytes, value: Argument, *options: Argument) -> Operation[bool]:
        """Set a field with options of HSETEX; return whether it was set. Cost: as `send`."""
        try:
            [(_, done)] = yield from self._layout.write(
                [(field, value)],
                lambda some, values: ("HSETEX", *options, "FIELDS", 1, some[0], values[0]),
            )
        except ShardErrors as errors:
            self._raise_unsupported(errors, "HSETEX", "8.0")
            raise
        return bool(done)

    def send(
        self, command: str, fields: Sequence[bytes], *args: Argument, writes: bool = True
    ) -> Operation[list[int]]:
        """Read or change when fields expire; return the reply for each, -2 for a missing one.

        Cost: one exchange, one command per part.
        """
        codes_by_field = [_MISSING] * len(fields)
        numbered = [(field, n) for n, field in enumerate(fields)]

        def build(some: list[bytes], _: list[int]) -> tuple[Argument, ...]:
            return (command, *args, "FIELDS", len(some), *some)

        try:
            if writes:
                replies = yield from self._layout.write(numbered, build, adds=False)
            else:
                replies = yield from self._layout.read(numbered, build)
        except ShardErrors as errors:
            self._raise_unsupported(errors, command, "7.4")
            raise
        for positions, codes in replies:
            for n, code in zip(positions, codes or (), strict=False):  # no such part: no codes
                codes_by_field[n] = code
        return codes_by_field

    def _raise_unsupported(self, errors: ShardErrors, command: str, redis: str) -> None:
        if any(
            isinstance(failure, ShardFailure) and _UNKNOWN_COMMAND.search(str(failure.error))
            for failure in errors.exceptions
        ):
            raise StructureError(
                f"{self._name}: the servers have no {command}",
                f"use Redis {redis} or later, or Valkey 9.0 or later",
            ) from errors
