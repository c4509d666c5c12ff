"""Unique visitors per day: how many different sessions came, counted as they come.

::

    unique:2015-05-17             STRING  the count                       ┐ on the component's
    unique:2015-05-17:expected    STRING  how many were expected          ┘ unsharded entry
    unique:2015-05-17:meta        HASH    the set's parameters            ┐
    unique:2015-05-17:0           SET     ids, an intset of at most 512   │ on its shards, each
      ⋮                                                                   │ key where it falls
    unique:2015-05-17:8191                                                ┘

    id of a session = its first 15 hexadecimal digits as an integer (60 bits)
    "550e8400-e29b-41d4-a716-446655440000"  ──►  0x550e8400e29b41d  =  383061330139657245

A day's set is planned for half as many visitors again as came the day before, rounded up to a power
of two (for the very first day: 1.5 times 1,000,000, so 2,097,152 in 8,192 parts), and every process
agrees on it because the first to ask stores it. One million visitors take 9.5 MB in parts, 72.6 MB
as one SET (Redis 7.0).

On one server an id is added and counted in one step. With the count on another server than the set
it is raised after the id was certainly added as new, so a crash between the two leaves it behind,
never ahead, and `recount` mends it from the sets.

The odds. Two sessions with the same id are counted as one. With n sessions and d random bits about
n² / 2^(d+1) are missed. 15 digits are 60 bits; of a version 4 UUID 56 of them are random, since its
13th digit is always 4:

=========== ======================= ==============================================
sessions    60 random bits          a version 4 UUID (56 random bits)
=========== ======================= ==============================================
1 million   4.3e-7 a day            6.9e-6 a day: one miss in 395 years
25 million  2.7e-4: one in 10 years 4.3e-3: one in 231 days
250 million 2.7% of days have one   35% of days have one
=========== ======================= ==============================================
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from datetime import date, timedelta
from typing import NamedTuple
from uuid import UUID

from shardkit.commands import Command, Home, Locate, Partial, Shard, script_call
from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.links.parcels import raise_failures
from shardkit.operation import Deferred, Driver, Face, Operation, Structure, operation, pages
from shardkit.scripts import script
from shardkit.structures.clock import ServerClock
from shardkit.structures.set import DEFAULT_SHARD_SIZE, MEMBERS_AT_ONCE, ShardedSet

FIRST_DAY = 1_000_000
MOST_DIGITS = 15
DAYS_REMEMBERED = 64
IDS_A_SCRIPT = 1000  # Lua's unpack takes some 8,000

_NOT_HEX = re.compile(r"[^0-9a-f]")


class VisitorPlace(NamedTuple):
    """Where a visitor's id lives."""

    id: int
    part: int
    key: str
    shard: Shard


class UniqueVisitors(Structure[Face]):
    """Counts different sessions a day, over one server or many. Made by ``kit.unique_visitors``.

    Args:
        driver: what runs its operations.
        component: its shards hold the ids; its unsharded entry, if it has one, the counts.
        name: the prefix of its keys.
        shard_size: how many ids a part may have: the servers' ``set-max-intset-entries``.
        digits: how many hexadecimal digits of a session make its id, 1 to 15. Fewer digits are
            fewer bits, and more sessions that are taken for one another.
        first_day: how many visitors to assume before the first day.
        rule: the partition's name; ``redis-in-action`` for data placed by that book's rule.
        clock: tells what day it is.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "unique",
        shard_size: int = DEFAULT_SHARD_SIZE,
        digits: int = MOST_DIGITS,
        first_day: int = FIRST_DAY,
        rule: str = "crc32",
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, name)
        if not isinstance(digits, int) or not 1 <= digits <= MOST_DIGITS:
            raise InvalidArgumentError(f"{name}: digits={digits!r}", "give 1 to 15")
        if not isinstance(first_day, int) or first_day < 0:
            raise InvalidArgumentError(f"{name}: first_day={first_day!r}", "give 0 or more")
        self.shard_size = shard_size
        self.digits = digits
        self.first_day = first_day
        self.rule = rule
        self._clock = clock or ServerClock()
        self._home = Home(component)
        self._days: OrderedDict[date, ShardedSet[Deferred, int]] = OrderedDict()
        ShardedSet(driver, component, name, 1, shard_size, int, rule)  # refuses what it refuses

    @property
    def deferred(self) -> UniqueVisitors[Deferred]:
        """This counter with the face whose calls return steps."""
        return self._deferred()  # type: ignore[return-value]

    def visitor_id(self, session: str | bytes | UUID) -> int:
        """Return the id that a session is counted by. No exchange.

        Args:
            session: a UUID, or hexadecimal digits in any case, with or without hyphens.

        Raises:
            InvalidArgumentError: it has another character, or fewer digits than an id.
        """
        if isinstance(session, UUID):
            return int(session.hex[: self.digits], 16)
        text = session.decode("latin-1") if isinstance(session, bytes) else session
        if isinstance(text, str):
            spelled = text.replace("-", "").lower()
            if len(spelled) >= self.digits and not _NOT_HEX.search(spelled):
                return int(spelled[: self.digits], 16)
        raise InvalidArgumentError(
            f"{self.name}: session {session!r} has not {self.digits} hexadecimal digits",
            "give a UUID, or the hexadecimal digest of what identifies the visitor",
        )

    def count_key(self, day: date) -> str:
        """Return the key of a day's count."""
        return f"{self.name}:{day.isoformat()}"

    @operation
    def visit(self, session: str | bytes | UUID, day: date | None = None) -> Operation[bool]:
        """Count a session on a day; return whether it is the first time.

        Args:
            session: see `visitor_id`.
            day: by default today, UTC, by the server's clock.

        Raises:
            InvalidArgumentError: the session is no id.
            ShardErrors: a shard failed. When it was the count's, the id is in the set already:
                `recount` mends the count.

        Cost: one exchange for a session that came before and on one server, two for a new one.
        """
        visitor = self.visitor_id(session)
        ids = yield from self._ids(day)
        return (yield from self._add(ids, [visitor])) > 0

    @operation
    def visit_many(
        self, sessions: Iterable[str | bytes | UUID], day: date | None = None
    ) -> Operation[int]:
        """Count sessions on a day, 10,000 an exchange; return how many came for the first time.

        Raises:
            InvalidArgumentError: a session is no id; earlier pages were counted by then.
            ShardErrors: shards failed; the sessions of the others were added and counted.

        Cost: two exchanges for 10,000 sessions (one on one server), one command a part.
        """
        visitors = map(self.visitor_id, sessions)
        ids = None
        added = 0
        for page in pages(visitors, MEMBERS_AT_ONCE):
            ids = ids or (yield from self._ids(day))
            added += yield from self._add(ids, page)
        return added

    @operation
    def count(self, day: date | None = None) -> Operation[int]:
        """Return how many different sessions came on a day. Cost: one exchange."""
        day = day or (yield from self._today())
        [count] = yield [self._read(self.count_key(day))]
        return int(count or 0)

    @operation
    def counts(self, days: Iterable[date]) -> Operation[dict[date, int]]:
        """Return the counts of many days. Cost: one exchange."""
        wanted = list(days)
        replies = yield [self._read(self.count_key(day)) for day in wanted]
        return {day: int(count or 0) for day, count in zip(wanted, replies, strict=True)}

    @operation
    def recount(self, day: date | None = None) -> Operation[int]:
        """Set a day's count to what its set holds, and return it.

        Visits that are under way meanwhile may still be missing; another recount finds them.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        ids = yield from self._ids(day)
        key = ids.name
        held = yield from ids.scard()
        [count] = yield [self._read(key)]
        if held != int(count or 0):
            # By a difference, so that visits counted meanwhile are kept.
            yield [Command(self._home, key, ("INCRBY", key, held - int(count or 0)))]
        return held

    @operation
    def expected(self, day: date | None = None) -> Operation[int]:
        """Return how many visitors a day's set is planned for; decides it, if nobody has.

        Cost: none when this process knows it, else one to three exchanges.
        """
        return int((yield from self._ids(day)).parameters["total"])

    @operation
    def locate(
        self, session: str | bytes | UUID, day: date | None = None
    ) -> Operation[VisitorPlace]:
        """Return where a session's id lives, whether or not it came. Cost: as `expected`."""
        visitor = self.visitor_id(session)
        ids = yield from self._ids(day)
        key = ids.key_of(visitor)
        [(shard, _)] = yield Locate([(self.component, key)])
        return VisitorPlace(visitor, ids.part_of(visitor), key, shard)

    @operation
    def visitors(self, day: date | None = None) -> Operation[ShardedSet[Face, int]]:
        """Return a day's ids as a set, to look into or to combine with other days'.

        Days can be combined when they expected the same number of visitors.
        """
        total = yield from self.deferred.expected(day)
        day = day or (yield from self._today())
        return ShardedSet(
            self._driver,
            self.component,
            self.count_key(day),
            total,
            self.shard_size,
            int,
            self.rule,
        )

    @operation
    def expire(self, day: date, seconds: int) -> Operation[bool]:
        """Have a past day's ids, count and plan expire; return whether there was anything.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        ids = yield from self._ids(day)
        some = yield from ids.expire(seconds)
        keys = (ids.name, _plan_key(ids.name))
        replies = yield [Command(self._home, key, ("EXPIRE", key, seconds)) for key in keys]
        return some or any(replies)

    @operation
    def delete(self, day: date) -> Operation[bool]:
        """Remove a day's ids, count and plan; return whether there was anything."""
        ids = yield from self._ids(day)
        some = yield from ids.delete()
        keys = (ids.name, _plan_key(ids.name))
        replies = yield [Command(self._home, key, ("UNLINK", key)) for key in keys]
        self._days.pop(day, None)
        return some or any(replies)

    def _add(self, ids: ShardedSet[Deferred, int], visitors: list[int]) -> Operation[int]:
        """Add ids and raise the count by those that were new."""
        yield from ids._open(write=True)
        groups = ids._by_part(visitors)
        count_key = ids.name
        keys = {part: ids.part_key(part) for part in groups}
        count_at, *places = yield Locate(
            [(self._home, count_key), *((self.component, key) for key in keys.values())]
        )
        if all(place == count_at for place in places):
            counted = script("add_and_count")
            replies = yield [
                script_call(self.component, counted, [keys[part], count_key], page)
                for part, sent in groups.items()
                for page in pages(sent, IDS_A_SCRIPT)
            ]
            return int(sum(replies))
        replies = yield Partial(ids._command("SADD", part, sent) for part, sent in groups.items())
        added = sum(reply for reply in replies if not isinstance(reply, ShardFailure))
        if added:
            yield [Command(self._home, count_key, ("INCRBY", count_key, added))]
        raise_failures(replies)  # only now that what succeeded is counted
        return added

    def _ids(self, day: date | None) -> Operation[ShardedSet[Deferred, int]]:
        """Return a day's set; its total is the stored plan, made now if there is none."""
        day = day or (yield from self._today())
        known = self._days.get(day)
        if known is not None:
            return known
        name = self.count_key(day)
        key = _plan_key(name)
        [plan, before] = yield [
            self._read(key),
            self._read(self.count_key(day - timedelta(days=1))),
        ]
        if plan is None:
            mine = planned(self.first_day if before is None else int(before))
            [_, plan] = yield [
                Command(self._home, key, ("SET", key, mine, "NX"), idempotent=True),
                self._read(key),  # another process may have been first
            ]
        ids = self._set(day, int(plan)).deferred
        self._days[day] = ids
        if len(self._days) > DAYS_REMEMBERED:
            self._days.popitem(last=False)
        return ids

    def _set(self, day: date, total: int) -> ShardedSet[Face, int]:
        name = self.count_key(day)
        return ShardedSet(
            self._driver, self.component, name, total, self.shard_size, int, self.rule
        )

    def _today(self) -> Operation[date]:
        return self._clock.today(self._home, self.name)

    def _read(self, key: str) -> Command:
        return Command(self._home, key, ("GET", key), idempotent=True)


def planned(before: int) -> int:
    """Return how many visitors to plan for after a day with so many: half as many again.

    Rounded up to a power of two, so that days of about the same size can be combined.
    """
    return 1 << max(0, (before * 3 + 1) // 2 - 1).bit_length()


def _plan_key(name: str) -> str:
    return f"{name}:expected"
