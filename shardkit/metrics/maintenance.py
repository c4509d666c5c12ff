"""The maintenance flag: switches parts of an application to a page that says to come back later.

::

    is-under-maintenance             STRING   yes           all of it
    is-under-maintenance:shop        STRING   yes           one part
    {is-under-maintenance:shop}:why  HASH     format 1 · reason "a new till"

It is on exactly if the STRING is ``yes``. With an end, the servers remove it by their own clock. A
process reads it once a second at most, also while the server is away: then it keeps what it knew.

After Redis in Action, section 5.4.1.
"""

from __future__ import annotations

from typing import NamedTuple

from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Transaction
from shardkit.operations.operation import Deferred, Driver, Face, Operation, Structure, operation
from shardkit.queues.keys import check_prefix
from shardkit.structures.base.arguments import check_name
from shardkit.structures.base.server_clock import ServerClock

YES = b"yes"
FRESH = 1.0
LONGEST = 366 * 86400.0


class MaintenanceState(NamedTuple):
    """Why something is under maintenance.

    Attributes:
        reason: as given; may be empty.
        remaining: the seconds until it ends, as of the reading; None if that is not known.
    """

    reason: str
    remaining: float | None


class Maintenance(Structure[Face]):
    """The maintenance flag of an application and of its parts. Made by ``kit.maintenance``.

    Args:
        driver: runs its operations.
        component: where it lives.
        name: its key, and the prefix of those of the parts.
        clock: tells the time.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "is-under-maintenance",
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, check_prefix(name))
        self._clock = clock or ServerClock()
        self._known: dict[str, tuple[float, MaintenanceState | None]] = {}

    @property
    def deferred(self) -> Maintenance[Deferred]:
        """The face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def turn_on(
        self, part: str = "", *, reason: str = "", seconds: float | None = None
    ) -> Operation[None]:
        """Turn maintenance on.

        Args:
            part: which part of the application; by default all of it.
            reason: why, for users.
            seconds: after how long it ends, 0.001 seconds to a year; None for when it is turned
                off.

        Raises:
            InvalidArgumentError: an argument is not valid.

        Cost: one exchange.
        """
        flag, why = self._keys(part)
        if seconds is not None and not 0.001 <= seconds <= LONGEST:
            raise InvalidArgumentError(
                f"{self.name}: seconds={shown(seconds)}", f"give 0.001 to {LONGEST:g}"
            )
        commands = [
            self._at(flag, "SET", flag, YES),
            self._at(flag, "DEL", why),
            self._at(flag, "HSET", why, "format", 1, "reason", reason),
        ]
        if seconds is not None:
            left = int(seconds * 1000)
            commands += [self._at(flag, "PEXPIRE", key, left) for key in (flag, why)]
        yield [Transaction(self.component, flag, tuple(commands))]
        self._known.clear()

    @operation
    def turn_off(self, part: str = "") -> Operation[bool]:
        """Turn maintenance off; return whether it was on. Cost: one exchange."""
        flag, why = self._keys(part)
        commands = (self._at(flag, "GET", flag), self._at(flag, "DEL", flag, why))
        [[found, _]] = yield [Transaction(self.component, flag, commands)]
        self._known.clear()
        return bool(found == YES)

    @operation
    def check(self, part: str = "") -> Operation[bool]:
        """Return whether all, or this part of it, is under maintenance.

        Cost: one exchange a second at most; while the server is away it is what was known.
        """
        return (yield from self._state(part)) is not None

    @operation
    def state(self, part: str = "") -> Operation[MaintenanceState | None]:
        """Return why all, or this part of it, is under maintenance; None if it is not.

        Cost: as `check`.
        """
        return (yield from self._state(part))

    def _state(self, part: str) -> Operation[MaintenanceState | None]:
        now = self._clock.monotonic()
        read, known = self._known.get(part, (now - FRESH, None))
        if now - read < FRESH:
            return known
        if len(self._known) >= 1000:
            self._known.clear()
        # Noted before reading: what fails is not tried again at once.
        self._known[part] = (now, known)
        places = [self._keys("")] + ([self._keys(part)] if part else [])
        batch = []
        for flag, why in places:
            reads = (
                self._at(flag, "GET", flag),
                self._at(flag, "PTTL", flag),
                self._at(flag, "HGET", why, "reason"),
            )
            batch.append(Transaction(self.component, flag, reads))
        try:
            replies = yield batch
        except ShardErrors:
            return known
        found = None
        for value, left, reason in replies:
            if value == YES and found is None:
                text = (reason or b"").decode(errors="replace")
                found = MaintenanceState(text, left / 1000 if left >= 0 else None)
        self._known[part] = (now, found)
        return found

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
