"""The maintenance flag, for an application or its parts.

::

    is-under-maintenance             STRING   yes           all of it
    is-under-maintenance:shop        STRING   yes           one part
    {is-under-maintenance:shop}:why  HASH     format 1 · reason "a new till"

It is on if the STRING is ``yes``. The server removes a flag with an end. A process reads the flag
at most once a second; while the server is away, the last value stays in use.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.operations.arguments import Seconds, shown
from shardkit.operations.commands import Partial, Transaction, raise_failures
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    stream,
)
from shardkit.recent import Recent
from shardkit.structures.base.arguments import check_name, check_prefix, check_seconds
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.parameters import format_of, of_this_format
from shardkit.structures.base.server_clock import ServerClock

YES = b"yes"
FRESH = 1.0
LONGEST = 366 * 86400.0


class MaintenanceState(NamedTuple):
    """The reason for maintenance, and its end.

    Attributes:
        reason: as given; may be empty.
        remaining: the seconds until it ends, as of the reading; None without an end.
    """

    reason: str
    remaining: float | None


class Maintenance(Structure[Face]):
    """The maintenance flag of an application and of its parts. Made by ``kit.maintenance``.

    Args:
        component: where it lives.
        name: its key, and the prefix of those of the parts.
    """

    deferred: DeferredFace[Maintenance[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "is-under-maintenance",
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, check_prefix(name))
        self._clock = clock or ServerClock()
        self._known: Recent[str, tuple[float, MaintenanceState | None]] = Recent()

    @operation
    def turn_on(
        self, part: str = "", *, reason: str = "", ttl: Seconds | None = None
    ) -> Operation[None]:
        """Turn maintenance on.

        Args:
            part: the part of the application; by default all of it.
            reason: for users.
            ttl: the seconds until it ends, 0.001 to a year; None until it is turned off.

        Cost: two exchanges.
        """
        flag, why = self._keys(part)
        commands = [
            self._at(flag, "SET", flag, YES),
            self._at(flag, "DEL", why),
            self._at(flag, "HSET", why, "format", 1, "reason", reason),
        ]
        if ttl is not None:
            left = int(1000 * check_seconds(self.name, "ttl", ttl, 0.001, LONGEST))
            commands += [self._at(flag, "PEXPIRE", key, left) for key in (flag, why)]
        yield from of_this_format(self.component, why)
        yield [Transaction(self.component, flag, tuple(commands))]
        self._known.clear()

    @operation
    def turn_off(self, part: str = "") -> Operation[bool]:
        """Turn maintenance off; return whether it was on. Cost: two exchanges."""
        flag, why = self._keys(part)
        commands = (self._at(flag, "GET", flag), self._at(flag, "DEL", flag, why))
        yield from of_this_format(self.component, why)
        [[value, _]] = yield [Transaction(self.component, flag, commands)]
        self._known.clear()
        return bool(value == YES)

    @operation
    def check(self, part: str = "") -> Operation[bool]:
        """Return whether the application, or this part, is under maintenance.

        Cost: at most one exchange a second. While the server is away, the last value counts.
        """
        return (yield from Maintenance.state.steps(self, part)) is not None

    @operation
    def state(self, part: str = "") -> Operation[MaintenanceState | None]:
        """Return the reason and the end of maintenance; None if it is off. Cost: as `check`."""
        now = self._clock.monotonic()
        read, known = self._known.get(part, (now - FRESH, None))
        if now - read < FRESH:
            return known
        # Before reading, so that a failure is not retried at once.
        self._known[part] = (now, known)
        keys = [self._keys("")] + ([self._keys(part)] if part else [])
        batch = []
        for flag, why in keys:
            reads = (
                self._at(flag, "GET", flag),
                self._at(flag, "PTTL", flag),
                self._at(flag, "HMGET", why, "format", "reason"),
            )
            batch.append(Transaction(self.component, flag, reads))
        replies = yield Partial(batch, FRESH)
        with suppress(ShardErrors):  # damaged data is an error
            raise_failures(replies)
        state, lost = None, len(batch)
        for (_, why), reply in zip(keys, replies, strict=True):
            if not isinstance(reply, list):
                continue
            lost -= 1
            value, left, (format_, reason) = reply
            format_of(self.component, why, format_)
            if value == YES and state is None:
                text = (reason or b"").decode(errors="replace")
                state = MaintenanceState(text, left / 1000 if left >= 0 else None)
        if state is None and lost:
            return known
        self._known[part] = (now, state)
        return state

    @stream
    def check_stored(self, part: str = "") -> Stream[Damage]:
        """Return what `check` would refuse as damaged; change nothing. Cost: one exchange."""

        def read() -> Operation[None]:
            self._known.clear()
            yield from Maintenance.state.steps(self, part)

        yield from check_reads(read)

    def _keys(self, part: str) -> tuple[str, str]:
        """Return the keys of a flag and of its reason, which live together."""
        if not part:
            return self.name, f"{{{self.name}}}:why"
        check_name(part)
        if any(sign in part for sign in "{}:"):
            raise InvalidArgumentError(
                f"{self.name}: part={shown(part)}", "leave out colons and braces"
            )
        flag = f"{self.name}:{part}"
        return flag, f"{{{flag}}}:why"
