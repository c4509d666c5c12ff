"""A day's visitors as each precision stores them. Only steps; `UniqueVisitors` decides which day.

Where a part and the count live on one server, a script adds ids and counts the new ones in one
step. Elsewhere the count is raised once the ids are confirmed to be new.

User n of a bitmap has bit ``n % part_size`` of part ``n // part_size``; its parts are registered. A
part gets its full length with its first user, by setting its last bit to 0 first: a string that
grows bit by bit is given up to twice the bytes that it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from itertools import count
from secrets import token_hex
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from shardkit.errors import DamagedDataError, ShardFailure
from shardkit.operations.arguments import shown
from shardkit.operations.commands import (
    Argument,
    Command,
    Home,
    Locate,
    Partial,
    Pause,
    Replies,
    Shard,
    ShardOf,
    To,
    Transaction,
    is_separated,
    raise_failures,
)
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, Page, Stream, pages
from shardkit.recent import Recent
from shardkit.routing.placement import Partition, part_count
from shardkit.structures.base.arguments import (
    MOST_PARTS,
    check_integer,
    check_name,
    hashed_partition,
)
from shardkit.structures.base.check import (
    KEYS_CHECKED,
    Damage,
    Suspicion,
    Suspicions,
    check_registered,
    confirmed,
    contents,
    wrong_lengths,
)
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.parameters import ChangeScope, Metadata, meta_key, open_all
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import (
    ATTEMPTS,
    PartRegistry,
    open_again,
    send_to_parts,
    settle,
    unstable,
)
from shardkit.structures.encodings.limits import warn_if_not_compact
from shardkit.structures.unique.precision import (
    MAX_VISITORS,
    MEMBER_BITS,
    REGISTERS,
    CounterSettings,
    Visitor,
    VisitorId,
    expected_after,
    expected_for,
    parts_for,
    registers,
    visitor_id,
)

_MARK_TTL: Final = 600_000  # milliseconds
MOST_UNLISTED: Final = 100_000  # parts that a plan may have beyond those that its day has
_UNTIL_REMOVED: Final = 0.05  # seconds between reads of a day that may be being removed

# Members to send, by the key of their part.
Members: TypeAlias = Mapping[str, Sequence[Argument]]

MEMBERS_PER_SCRIPT: Final = 1000  # Lua's unpack takes some 8,000
FIRST_PARTS: Final = range(64)  # of a bitmap: searched even if they are not registered
PARTS_LISTED: Final = 256  # parts whose ids are in memory at the same time

_LOWEST_MEMBER = -(2 ** (MEMBER_BITS - 1))
_MEMBER_MASK = 2**MEMBER_BITS - 1
_BITS_OF = [[bit for bit in range(8) if byte >> (7 - bit) & 1] for byte in range(256)]


class VisitorPlace(NamedTuple):
    """The place of a visitor's id.

    Attributes:
        id: the stored form of the visitor: a number, or with ``exact`` and ``hyperloglog`` the
            session.
        part: the number of the part; 0 where a day has only one key.
        key: the part's key.
        shard: the shard of the key.
    """

    id: VisitorId
    part: int
    key: str
    shard: Shard


def plan_key(key: str) -> str:
    """Return the key of a day's plan."""
    return f"{key}:expected"


class DayInParts(ABC):
    """Ids in parts, ``unique:2015-05-17:<part>``, and a count beside them."""

    size_command: ClassVar[str]
    read_command: ClassVar[str]
    planned_parts = 0  # how many follow from the stored plan, even if the day has others

    def __init__(self, component: str, key: str, index_key: str) -> None:
        self.component = component
        self.key = key
        self.home = Home(component)
        self.index_key = index_key

    @abstractmethod
    def part_and_member(self, visitor: Visitor) -> tuple[int, Argument]:
        """Return a visitor's part, and the member to send to it."""

    def id_of(self, visitor: Visitor) -> VisitorId:
        """Return the stored form of a visitor."""
        return visitor_id(visitor)

    @abstractmethod
    def ids_in(self, part: int, reply: Any) -> Iterable[VisitorId]:
        """Return the ids of a part from what `read_command` replied."""

    @abstractmethod
    def prepare(self, parts: Iterable[int]) -> Operation[None]:
        """Register parts before they are written."""

    @abstractmethod
    def existing_parts(self) -> Operation[tuple[Sequence[int], bool]]:
        """Return the parts that may exist, and whether the day is known to have had visitors."""

    @abstractmethod
    def unlisted_parts(self) -> Operation[Iterable[int]]:
        """Return parts beside `existing_parts` that exist if the plan or register is damaged."""

    @abstractmethod
    def add_commands(self, members: Members, counter: str | None) -> Iterable[Command]:
        """Return scripts that add members and reply how many were new; also to the counter.

        The rest of the reply has the numbers, among the script's keys, of created parts.
        """

    def part_key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self.key}:{part}"

    def read(self, name: str, part: int) -> Command:
        """Return a reading command for a part."""
        key = self.part_key(part)
        return Command(self.component, key, (name, key))

    def add(self, visitors: Sequence[Visitor]) -> Operation[int]:
        """Add some thousand visitors, and raise the count by those that are new; return how many.

        Cost: one exchange; two for new ones when the count lives on another server.
        """
        parts: dict[int, list[Argument]] = {}
        for visitor in visitors:
            part, member = self.part_and_member(visitor)
            parts.setdefault(part, []).append(member)
        yield from self.prepare(parts)
        waiting: Members = {self.part_key(part): sent for part, sent in parts.items()}
        added = 0
        for _ in range(ATTEMPTS):
            home, *places = yield Locate(
                [(self.home, self.key), *((self.component, key) for key in waiting)]
            )
            counter = self.key if all(place == home for place in places) else None
            batch = list(self.add_commands(waiting, counter))
            replies = yield Partial(batch)
            created: list[str] = []
            refused: list[str] = []
            separated: set[str] = set()  # by a split
            new = 0
            for command, reply in zip(batch, replies, strict=True):
                if not isinstance(reply, ShardFailure):
                    new += reply[0]
                    for n in reply[1:]:
                        (created if n > 0 else refused).append(command.args[2 + abs(n)])
                elif is_separated(reply):
                    separated |= waiting.keys() & {*command.args}
            added += new
            replies = Replies(reply for reply in replies if not is_separated(reply))
            if new and counter is None:
                replies += yield Partial([Command(self.home, self.key, ("INCRBY", self.key, new))])
                if isinstance(replies[-1], ShardFailure) and "integer" in str(replies[-1].error):
                    raise damage(self.home, self.key, "no number", "a count")
            if created or refused:
                yield from self.settle({key: waiting[key] for key in created}, refused, replies)
            raise_failures(replies)  # after the successful ones are counted
            waiting = {key: waiting[key] for key in (*refused, *separated)}
            if not waiting:
                return added
        raise unstable(self.key)

    @abstractmethod
    def settle(self, created: Members, refused: Sequence[str], written: Replies) -> Operation[None]:
        """See that parts live as long as the day does."""

    def size(self) -> Operation[int | None]:
        """Count the ids of all parts; None if the day has no data but its count.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        parts, known = yield from self.existing_parts()
        size = 0
        for page in pages(parts, PARTS_AT_ONCE):
            size += sum((yield [self.read(self.size_command, part) for part in page]))
        return size if size or known else None

    def locate(self, visitor: Visitor) -> Operation[VisitorPlace]:
        """Return where a visitor's id lives."""
        part, _ = self.part_and_member(visitor)
        key = self.part_key(part)
        [(shard, _)] = yield Locate([(self.component, key)])
        return VisitorPlace(self.id_of(visitor), part, key, shard)

    def ids(self) -> Stream[VisitorId]:
        """Iterate over the ids, part by part. Cost: an exchange for 256 parts."""
        parts, known = yield from self.existing_parts()
        count = 0
        for page in pages(parts, PARTS_LISTED):
            replies = yield [self.read(self.read_command, part) for part in page]
            for part, reply in zip(page, replies, strict=True):
                ids = Page(self.ids_in(part, reply))
                count += len(ids)
                yield ids
        if known:
            yield from self._verify(parts, count)

    def _verify(self, parts: Sequence[int], total: int) -> Operation[None]:
        """Check that a day has the ids that were counted, or more: unless it is being removed."""
        index = self.index_key
        for _ in range(ATTEMPTS):
            [text, exists] = yield [
                Command(self.home, self.key, ("GET", self.key)),
                Command(self.component, index, ("EXISTS", index)),
            ]
            counted = stored_integer(self.home, self.key, "count", text, missing=0)
            if counted <= total or not exists:
                return
            yield Pause(_UNTIL_REMOVED)
            total = 0
            for page in pages(parts, PARTS_AT_ONCE):
                total += sum((yield [self.read(self.size_command, part) for part in page]))
        raise damage(
            self.home,
            self.key,
            f"a count of {counted:,}",
            f"that of the {total:,} visitors in {self.key}:…",
            "recount(day): the others are lost",
        )

    def send_to_all(self, name: str, *args: Argument) -> Operation[int]:
        """Send UNLINK or EXPIRE to everything but the count; return how many keys it affected."""
        parts, _ = yield from self.existing_parts()
        unlisted = yield from self.unlisted_parts()
        keys = map(self.part_key, parts)
        affected, index = 0, self.index_key
        if name == "EXPIRE":  # parts made from now on expire when it does
            [affected, due] = yield [
                Command(self.component, index, (name, index, *args)),
                Command(self.component, index, ("PEXPIRETIME", index)),
            ]
            if due > 0:
                name, args = "PEXPIREAT", (due,)
        for page in pages(keys, PARTS_AT_ONCE):
            affected += sum((yield [Command(self.component, k, (name, k, *args)) for k in page]))
        for parts in pages(unlisted, PARTS_AT_ONCE):
            keys = map(self.part_key, parts)
            more = sum((yield [Command(self.component, k, (name, k, *args)) for k in keys]))
            affected += more
            if not more and parts[-1] >= self.planned_parts:
                break
        if name == "UNLINK":
            affected += sum((yield [self._removal()]))
        return affected

    def check(self) -> Stream[Damage]:
        """Check all parts; see `shardkit.structures.base.check`."""
        yield from confirmed(self.check_index)
        parts, _ = yield from self.existing_parts()
        for page in pages(parts, KEYS_CHECKED):
            yield from confirmed(self.check_parts, page)

    @abstractmethod
    def check_index(self) -> Operation[Suspicions]:
        """Check what tells which parts there are."""

    @abstractmethod
    def check_parts(self, parts: Sequence[int]) -> Operation[Suspicions]:
        """Check some parts."""

    def _removal(self) -> Command:
        return Command(self.component, self.index_key, ("UNLINK", self.index_key))


class SetDay(DayInParts):
    """Ids in SETs, as many as were planned: ``exact``, ``60-bit`` and ``compact``."""

    size_command = "SCARD"
    read_command = "SMEMBERS"

    def __init__(
        self,
        component: str,
        key: str,
        expected: int,
        parts: int,
        meta: Metadata,
        partition: Partition | None,
    ) -> None:
        super().__init__(component, key, meta.key)
        self.expected = expected
        self.parts = parts
        self.meta = meta
        meta.leased = True
        meta.complete_deletion = self._complete_deletion
        self._partition = partition

    def _complete_deletion(self) -> Operation[None]:
        """End a deletion of the day as a sharded set, unless others have ended it."""
        generation = self.meta.generation
        [[marked, *due]] = yield [self.meta.beginning()]
        if marked > 0:
            for page in pages(map(self.part_key, range(self.parts)), PARTS_AT_ONCE):
                yield from send_to_parts(
                    self.meta, ChangeScope(generation, (-1, *due)), "UNLINK", page
                )
            yield [self.meta.removal("end", generation)]

    def part_and_member(self, visitor: Visitor) -> tuple[int, Argument]:
        """Return a visitor's part and member."""
        if self._partition is None:
            number = int(visitor)
            member = (number & _MEMBER_MASK) + _LOWEST_MEMBER
            return (number >> MEMBER_BITS) % self.parts, b"%d" % member
        sent = b"%d" % visitor if isinstance(visitor, int) else visitor
        return self._partition(sent), sent

    def id_of(self, visitor: Visitor) -> VisitorId:
        """Return the stored form of a visitor: for ``compact`` as many bits as the day stores."""
        if self._partition is None:
            return int(visitor) % (self.parts << MEMBER_BITS)
        return super().id_of(visitor)

    def ids_in(self, part: int, reply: Any) -> Iterable[VisitorId]:
        """Return the ids of a part from its members."""
        if self._partition is None:
            first = (part << MEMBER_BITS) - _LOWEST_MEMBER
            return (first + self._integer(part, member) for member in reply)
        if self.meta.parameters["members"] == "int":
            return (self._integer(part, member) for member in reply)
        try:
            return list(map(visitor_id, reply))
        except ValueError as error:
            raise damage(self.component, self.part_key(part), str(error), "sessions") from None

    def check_index(self) -> Operation[Suspicions]:
        """See `DayInParts.check_index`: the day's parameters."""
        _, stored = yield from self.existing_parts()
        try:
            if stored or not (yield from self.size()):
                return []
        except DamagedDataError:  # of a part, which is named with the others
            return []
        error = damage(self.component, self.index_key, "nothing", "the day's parameters")
        return [Suspicion(error, "rebuild() stores them")]

    def check_parts(self, parts: Sequence[int]) -> Operation[Suspicions]:
        """See `DayInParts.check_parts`: their types and ids."""
        notes: Suspicions = []
        keys = list(map(self.part_key, parts))
        all_entries = yield from contents(self.component, "SET", keys, notes)
        for part, key, entries in zip(parts, keys, all_entries, strict=True):
            wrong = [member for member, _ in entries if not self._is_of(part, member)]
            if wrong:
                actual = f"{shown(wrong[0])}, one of {len(wrong)} that are not its own"
                error = damage(self.component, key, actual, "only ids of this part")
                notes.append(Suspicion(error))
        return notes

    def _is_of(self, part: int, member: bytes) -> bool:
        """Return whether a stored member is an id, and belongs to a part."""
        if self._partition is not None and self.meta.parameters["members"] != "int":
            return self._partition(member) == part
        digits = member.removeprefix(b"-")
        if not digits.isdigit() or len(digits) > 19 or not -(2**63) <= int(member) < 2**63:
            return False
        return self._partition is None or self._partition(member) == part

    def _integer(self, part: int, member: bytes) -> int:
        key, most = self.part_key(part), 2**63
        return stored_integer(self.component, key, "a member", member, -most, most)

    def prepare(self, parts: Iterable[int]) -> Operation[None]:
        """Store the parameters, or compare them."""
        yield from open_all([self.meta], create=True)

    def gather(self, shards: int) -> Operation[None]:
        """Move ids to the shards on which their parts live; see `UniqueVisitors.gather`."""
        yield from self.prepare(())
        databases = yield from self._databases(shards)
        for page in pages(range(self.parts), max(1, PARTS_LISTED // shards)):
            keys = [self.part_key(part) for part in page]
            homes = yield Locate([(self.component, key) for key in keys])
            others = [
                (ShardOf(self.component, number, shards), key)
                for (home, _), key in zip(homes, keys, strict=True)
                for number in {*databases} - {databases[home.number or 0]}
            ]
            replies = yield [Command(to, k, ("SMEMBERS", k)) for to, k in others]
            stray = [
                (to, key, page)
                for (to, key), members in zip(others, replies, strict=True)
                for page in pages(members, MEMBERS_PER_SCRIPT)
            ]
            # An interruption leaves ids in both places: gather again.
            yield [
                self.meta.command(key, *written)
                for _, key, page in stray
                for written in (("SADD", *page), self.meta.expiry)
            ]
            yield [
                Command(to, key, ("SREM", key, *page), idempotent=True) for to, key, page in stray
            ]

    def _databases(self, shards: int) -> Operation[list[int]]:
        """Return for each shard the last one that has the same database: several may share one."""
        mark = f"{self.key}:gather:{token_hex(8)}"
        to = [ShardOf(self.component, number, shards) for number in range(shards)]
        for number, shard in enumerate(to):  # one after another, so that the last one counts
            yield [Command(shard, mark, ("SET", mark, number, "PX", _MARK_TTL), idempotent=True)]
        replies = yield [Command(shard, mark, ("GET", mark)) for shard in to]
        yield [Command(shard, mark, ("UNLINK", mark), idempotent=True) for shard in to]
        if None in replies:
            raise damage(to[replies.index(None)], mark, "nothing", "a mark just made")
        return list(map(int, replies))

    def existing_parts(self) -> Operation[tuple[Sequence[int], bool]]:
        """Return all parts that were planned, and whether the parameters are stored."""
        yield from open_all([self.meta])
        return range(self.parts), self.meta.checked

    def unlisted_parts(self) -> Operation[Iterable[int]]:
        """Return the numbers that follow, of no far larger plan."""
        yield from ()
        if self.planned_parts > self.parts + MOST_UNLISTED:
            actual = f"a plan of {self.planned_parts} parts"
            wanted = f"the {self.parts} parts of {self.meta.key}"
            raise damage(self.home, plan_key(self.key), actual, wanted)
        return count(self.parts)

    def add_commands(self, members: Members, counter: str | None) -> Iterable[Command]:
        """Return scripts for many parts each; for one part each where the count lives elsewhere."""
        add = "structures/unique/add_and_count"
        to = self.home if counter else self.component
        counters = [] if counter is None else [counter]
        start: list[Argument] = [len(counters), self.meta.end]
        keys, args = counters[:], start[:]
        for key, sent in members.items():
            fits = len(sent) <= MEMBERS_PER_SCRIPT  # as in nearly every part
            for page in [sent] if fits else pages(sent, MEMBERS_PER_SCRIPT):
                full = not counters or len(args) + len(page) >= MEMBERS_PER_SCRIPT
                if full and len(keys) > len(counters):
                    yield lua_call(to, add, keys, args)
                    keys, args = counters[:], start[:]
                keys.append(key)
                args += (len(page), *page)
        yield lua_call(to, add, keys, args)

    def _removal(self) -> Command:
        return self.meta.removal("remove")

    def settle(self, created: Members, refused: Sequence[str], written: Replies) -> Operation[None]:
        """See `DayInParts.settle`."""
        undo = [Command(self.component, k, ("SREM", k, *sent)) for k, sent in created.items()]
        count = sum(len(set(sent)) for sent in created.values())
        undo.append(Command(self.home, self.key, ("DECRBY", self.key, count)))
        end = self.meta.end
        yield from open_again(self.meta, undo, written, known=not refused)
        if refused or self.meta.end != end:
            yield from settle(self.meta, dict.fromkeys([*created, *refused], ""))


class BitmapDay(DayInParts):
    """A bit for every user, in parts: two users never count as one."""

    size_command = "BITCOUNT"
    read_command = "GET"

    def __init__(self, component: str, key: str, part_size: int) -> None:
        self.part_size = part_size
        self.registry = PartRegistry(component, key)
        super().__init__(component, key, self.registry.key)

    def part_and_member(self, visitor: Visitor) -> tuple[int, Argument]:
        """Return a user's part, and the position of the bit in it."""
        return divmod(int(visitor), self.part_size)

    def ids_in(self, part: int, reply: Any) -> Iterable[VisitorId]:
        """Return the users whose bits are set."""
        first = part * self.part_size
        for at, byte in enumerate(self.checked(part, reply)):
            for bit in _BITS_OF[byte]:
                yield first + 8 * at + bit

    def checked(self, part: int, reply: bytes | None) -> bytes:
        """Return a part as read, checked: empty if it does not exist, or of its full length."""
        full = -(-self.part_size // 8)
        if reply is not None and len(reply) != full:
            raise damage(
                self.component, self.part_key(part), f"{len(reply)} bytes", f"{full} bytes"
            )
        return reply or b""

    def check_index(self) -> Operation[Suspicions]:
        """See `DayInParts.check_index`: the list of parts."""
        return check_registered(self.registry, FIRST_PARTS)

    def check_parts(self, parts: Sequence[int]) -> Operation[Suspicions]:
        """See `DayInParts.check_parts`: their lengths. Cost: one exchange."""
        keys = list(map(self.part_key, parts))
        return (yield from wrong_lengths(self.component, keys, -(-self.part_size // 8)))

    def size(self) -> Operation[int | None]:
        """See `DayInParts.size`; parts are of their full length. Cost: three commands a part."""
        parts, _ = yield from self.existing_parts()
        for page in pages(parts, PARTS_AT_ONCE):
            for note in (yield from self.check_parts(page)):
                raise note.error
        return (yield from super().size())

    def prepare(self, parts: Iterable[int]) -> Operation[None]:
        """Register the parts."""
        return self.registry.add(parts)

    def existing_parts(self) -> Operation[tuple[Sequence[int], bool]]:
        """Return the parts in which a bit was ever set."""
        parts = yield from self.registry.read()
        return parts, bool(parts)

    def unlisted_parts(self) -> Operation[Iterable[int]]:
        """Return the first ones that are not registered."""
        return (yield from self.registry.unregistered(FIRST_PARTS))

    def add_commands(self, members: Members, counter: str | None) -> Iterable[Command]:
        """Return calls of a script that sets bits of one part."""
        counters = () if counter is None else (counter,)
        for key, sent in members.items():
            for page in pages(sent, MEMBERS_PER_SCRIPT):
                yield lua_call(
                    self.component,
                    "structures/unique/set_and_count",
                    (key, *counters),
                    (self.part_size, *page),
                )

    def settle(self, created: Members, refused: Sequence[str], written: Replies) -> Operation[None]:
        """See `DayInParts.settle`: registers the parts again, and asks when the register ends."""
        ranges = [int(key.rpartition(":")[2]) for key in created]
        index = self.index_key
        reading = Command(self.component, index, ("PEXPIRETIME", index))
        *_, ends = yield [*self.registry.adding(ranges), reading]
        self.registry.note(ranges)
        if ends > 0:
            yield [Command(self.component, k, ("PEXPIREAT", k, ends), None, True) for k in created]

    def send_to_all(self, name: str, *args: Argument) -> Operation[int]:
        """See `DayInParts.send_to_all`."""
        affected = yield from super().send_to_all(name, *args)
        if name == "UNLINK":
            self.registry.reset()
        return affected


class HyperLogLogDay:
    """One key, which is also the count's: an estimate from registers of 12 KB at most."""

    def __init__(self, component: str, key: str) -> None:
        self.key = key
        self.home: To = Home(component)

    def add(self, visitors: Sequence[Visitor]) -> Operation[int]:
        """Add visitors; return by how many the estimate grew, of one visitor 0 or 1."""
        add = Command(self.home, self.key, ("PFADD", self.key, *visitors))
        if len(visitors) == 1:
            [changed] = yield [add]
            return int(changed)
        count = Command(self.home, self.key, ("PFCOUNT", self.key))
        [[before, _, after]] = yield [Transaction(self.home, self.key, (count, add, count))]
        return max(0, int(after) - int(before))

    def registers(self) -> Operation[bytes]:
        """Return the registers of the day; those of no visitor if nobody came."""
        [stored] = yield [Command(self.home, self.key, ("GET", self.key))]
        if stored is None:
            return bytes(REGISTERS)
        return registers(stored, self.home, self.key)

    def locate(self, visitor: Visitor) -> Operation[VisitorPlace]:
        """Return where a visitor is counted."""
        [(shard, _)] = yield Locate([(self.home, self.key)])
        return VisitorPlace(visitor_id(visitor), 0, self.key, shard)


Day: TypeAlias = SetDay | BitmapDay | HyperLogLogDay


DAYS_CACHED: Final = 64
_PARTS_LOOKED_AT: Final = 256
_MOST_LOOKED_AT: Final = 4096


class DayPlanner:
    """Finds and plans the days of one counter, shared by all its faces.

    A process that needs a plan stores one unless it exists, and reads it again, so all agree. The
    stored parameters of a day decide where its ids are, even if a plan differs.
    """

    def __init__(self, component: str, name: str, settings: CounterSettings) -> None:
        check_name(name)
        self.component = component
        self.name = name
        self.settings = settings
        self.home = Home(component)
        self.plans = settings.first_day is not None
        self._part_size = settings.part_size or 0
        self._compact = settings.precision == "compact"
        self._days: Recent[date, Day] = Recent(DAYS_CACHED)
        parameters = {
            "kind": "unique-visitors",
            "precision": settings.precision,
            "digits": settings.digits,
            "part_size": settings.part_size,
            "partition": settings.partition,
        }
        given = {field: value for field, value in parameters.items() if value is not None}
        self.meta = Metadata(self.home, name, given)
        self._sought: list[tuple[To, str]] = []
        self._is_book = settings.partition == "redis-in-action"  # which stores no parameters
        if not self._is_book:
            self.meta.data_keys = lambda: self._sought
        if settings.first_day is not None:  # refuse it now, not on the first visit
            self._set_day(name, expected_after(settings.first_day))

    def count_key(self, day: date) -> str:
        """Return the key of a day's count, which is the prefix of its other keys."""
        return f"{self.name}:{day.isoformat()}"

    def parts(self, expected: int) -> int:
        """Return how many parts a day with ``expected`` visitors has."""
        check_integer(self.name, "expected", expected, 1, 2 * MAX_VISITORS)
        self.check_plans()
        return self._set_day(self.name, expected).parts

    def check_plans(self) -> None:
        """Check that the precision plans its days."""
        if not self.plans:
            raise self.settings.refusal("plans nothing", "count(day) says how many came")

    def day(self, day: date, *, write: bool = False, verify: bool = True) -> Operation[Day]:
        """Return a day's data; unless told otherwise, its plan must agree with its ids.

        Cost: none when this process knows the day, else one exchange, or two to store a plan.
        """
        if not self.meta.checked:
            self.seek(day)
            yield from open_all([self.meta], create=write)
            # The server may have no compact form for parts larger than the default.
            if write and self.plans and self._part_size > self.settings.usual_size:
                form = "set" if self.settings.precision == "exact" else "intset"
                first, size = f"{self.count_key(day)}:0", self._part_size
                yield from warn_if_not_compact(self.component, first, form, size, self.name)
        if day in self._days:
            return self._days[day]
        key = self.count_key(day)
        data: Day
        if self.plans:
            before = self.count_key(date.fromordinal(max(day.toordinal() - 1, 1)))
            data, decided = yield from self._find(key, before, store=write, verify=verify)
            if not (decided and verify):  # another process may still plan it otherwise
                return data
        elif self.settings.precision == "bitmap":
            data = BitmapDay(self.component, key, self._part_size)
        else:
            data = HyperLogLogDay(self.component, key)
        self._days[day] = data
        return data

    def seek(self, day: date) -> None:
        """Check for the count of a day without parameters."""
        self._sought[:] = [(self.home, self.count_key(day))]

    def forget(self, day: date) -> None:
        """Drop the cached data of a removed day."""
        self._days.pop(day, None)

    def _find(
        self, key: str, before: str, *, store: bool, verify: bool
    ) -> Operation[tuple[SetDay, bool]]:
        """Return a planned day, and whether its plan is final."""
        plan, meta = plan_key(key), meta_key(key)
        field = "parts" if self._compact else "total"
        stored, size, arrived = yield [
            self._get(plan),
            Command(self.component, meta, ("HGET", meta, field)),
            self._get(before),
        ]
        if size is not None:
            size = stored_integer(self.component, meta, field, size, 1, 4 * MAX_VISITORS)
            if self._parts(size) > MOST_PARTS:
                raise damage(self.component, meta, f"{field}={size}", "2**32 parts at most")
        if stored is not None:
            expected = self._stored_plan(plan, stored)
        elif size is not None:
            # redis-in-action stores the number itself.
            expected = size if self._is_book else expected_for(self._parts(size), self._part_size)
        else:
            first = self.settings.first_day or 0
            # A damaged count of yesterday does not spoil today's plan.
            known = arrived is not None and arrived.isdigit() and len(arrived) < 16
            arrived = int(arrived) if known else first
            expected = expected_after(arrived if arrived <= MAX_VISITORS else first)
            if self._parts(self._size(expected)) > MOST_PARTS:
                expected = expected_after(first)
        if store and stored is None:
            if size is None and not self._is_book:
                yield from self._look_for_ids(key, expected)
            set_plan = ("SET", plan, expected, "NX")
            [_, stored] = yield [
                Command(self.home, plan, set_plan, idempotent=True),
                self._get(plan),  # another process may have been first
            ]
            expected = self._stored_plan(plan, stored)
        if None not in (size, stored) and size != self._size(expected):
            yield from self._check_size(key, size, expected, ids=verify)
        return self._set_day(key, expected, size), stored is not None or size is not None

    def _look_for_ids(self, key: str, expected: int) -> Operation[None]:
        """Check that a day has no ids, if neither its plan nor its parameters are stored."""
        plan, day = plan_key(key), self._set_day(key, expected)
        keys = [day.part_key(part) for part in range(min(day.parts, _PARTS_LOOKED_AT))]
        existing = yield [Command(self.component, part, ("EXISTS", part)) for part in keys]
        if not any(existing):
            return
        planned, size = yield [  # another process may have been first
            self._get(plan),
            Command(self.component, day.meta.key, ("EXISTS", day.meta.key)),
        ]
        if planned is None and not size:
            raise damage(
                self.component,
                day.meta.key,
                "nothing",
                f"the parameters of {keys[existing.index(1)]}",
                f"store how many visitors the day was planned for at {plan}, or remove(day)",
            )

    def _stored_plan(self, key: str, stored: bytes | None) -> int:
        expected = stored_integer(self.home, key, "expected", stored, 1, 2 * MAX_VISITORS)
        if self._parts(self._size(expected)) > MOST_PARTS:
            raise damage(self.home, key, f"expected={expected}", "2**32 parts at most")
        return expected

    def _check_size(self, key: str, size: int, expected: int, *, ids: bool) -> Operation[None]:
        """Check a day whose size does not follow from its plan: created by other rules, or damaged.

        It checks whether ids are in the parts where that size puts them, one of each part; without
        ``ids`` only whether all keys can be found.
        """
        day, partition = self._set_day(key, expected, size), self.settings.partition
        yield from day.unlisted_parts()
        field = "total" if partition else "parts"
        wanted = f"{field}={self._size(expected)}, as it was planned"
        wrong = damage(self.component, meta_key(key), f"{field}={size}", wanted)
        if not ids and day.parts < day.planned_parts + MOST_UNLISTED:
            return
        if partition is None or not ids:  # where an id of 32 bits belongs is not stored
            raise wrong
        place = hashed_partition(key, partition, size, self._part_size)
        most = min(max(day.parts, day.planned_parts), _MOST_LOOKED_AT)
        for parts in pages(range(most), PARTS_AT_ONCE):
            replies = yield [day.read("SRANDMEMBER", part) for part in parts]
            for part, member in zip(parts, replies, strict=True):
                if member is not None and place(member) != part:
                    raise wrong

    def _set_day(self, key: str, expected: int, size: int | None = None) -> SetDay:
        """Return a day; its size, as stored in its parameters, follows from what is expected."""
        settings, part_size = self.settings, self._part_size
        if size is None:
            size = self._size(expected)
        if settings.partition is None:  # compact
            partition, parts = None, size
        else:
            partition = hashed_partition(key, settings.partition, size, part_size)
            parts = part_count(size, part_size)
        parameters = {  # a day can be opened as a sharded set with these
            "kind": "set",
            "parts" if self._compact else "total": size,
            "part_size": part_size,
            "partition": settings.partition or settings.precision,
            "members": "bytes" if settings.precision == "exact" else "int",
        }
        meta = Metadata(self.component, key, parameters)
        day = SetDay(self.component, key, expected, parts, meta, partition)
        day.planned_parts = self._parts(self._size(expected))
        return day

    def _size(self, expected: int) -> int:
        """Return the size in a day's parameters: the parts, or a sharded set's total."""
        if self._is_book:
            return expected
        parts = parts_for(expected, self._part_size)
        # A sharded set has parts for twice its total.
        return parts if self._compact else (parts * self._part_size + 1) // 2

    def _parts(self, size: int) -> int:
        return size if self._compact else part_count(size, self._part_size)

    def _get(self, key: str) -> Command:
        return Command(self.home, key, ("GET", key))
