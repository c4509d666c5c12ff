"""IP to city: which city an address is in.

::

    ip2city:generations             HASH    which generation readers use      on the entry
    ip2city:3512345:4:c0a8          STRING  the ranges of 192.168.0.0/16      ┐
    ip2city:3512345:6:20010db8      STRING  those of 2001:db8::/32            │ on the shards, each
    ip2city:3512345:cities:7        HASH    cities 896 to 1,023               │ key where it falls
    ip2city:3512345:keys:0          STRING  which blocks there are            ┘

    192.168.1.7 ─► generation 3512345 ─► ip2city:3512345:4:c0a8 ─► 41 ─► ["Bonn", …]
                   known, and asked for         one GET             kept by this process,
                   again once a second                              or one HGET

Ranges are kept in blocks (`shardkit.geo.blocks`), so that an address costs one GET and not a search
among all ranges. Ranges have ends: of an address in a gap nothing is known. An import writes a new
generation and then switches to it (`shardkit.geo.generations`): a reader sees all of the old data,
or all of the new.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shardkit.errors import ShardKitError, StructureError
from shardkit.geo.addresses import IPV4, Address, point
from shardkit.geo.block_store import BLOCKS_AT_ONCE, BlockStore, Progress
from shardkit.geo.blocks import (
    NO_CITY,
    WHOLE,
    Level,
    search,
)
from shardkit.geo.generations import Generation, Generations
from shardkit.geo.import_ranges import ImportInput
from shardkit.geo.local_copy import LocalCities
from shardkit.geo.models import City, Item, SkippedLine
from shardkit.geo.view_cache import GenerationView, ViewCache
from shardkit.operations.commands import Columns
from shardkit.operations.operation import (
    Deferred,
    Driver,
    Face,
    Operation,
    Structure,
    operation,
    pages,
)
from shardkit.structures.base.arguments import LONGEST_EXPIRY, check_integer, check_name
from shardkit.structures.base.server_clock import ServerClock

logger = logging.getLogger("shardkit")

ADDRESSES_AT_ONCE = 10_000
FRESH = 1.0  # seconds
GRACE, LEAST_GRACE = 60, 10  # seconds
_TRIES = 5


class Imported(NamedTuple):
    """What an import did.

    Attributes:
        generation: the number of the new generation.
        ranges: how many ranges were read.
        cities: how many cities.
        blocks: how many blocks were written.
        skipped: how many lines could not be used.
        first_skipped: the first of them.
    """

    generation: int
    ranges: int
    cities: int
    blocks: int
    skipped: int
    first_skipped: tuple[SkippedLine, ...]


class IpToCity(Structure[Face]):
    """Finds the cities of addresses, over one server or many. Made by ``kit.ip_to_city``.

    Args:
        driver: what runs its operations.
        component: its shards hold blocks and cities; its unsharded entry, if it has one, which
            generation is used.
        name: the prefix of its keys.
        clock: tells when to ask again which generation is used.

    The first operation of a process costs up to three more exchanges, and so does the first after
    an import.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "ip2city",
        clock: ServerClock | None = None,
    ) -> None:
        check_name(name)
        super().__init__(driver, component, name)
        self._generations = Generations(component, name)
        self._store = BlockStore(self._deferred()._driver, component, name, self._generations)
        self._clock = clock or ServerClock()
        self._known = ViewCache()

    @property
    def deferred(self) -> IpToCity[Deferred]:
        """This with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def find(self, address: Address) -> Operation[City | None]:
        """Return the city of an address; None if it is in no range.

        Args:
            address: text, also as bytes, or an address of Python's ``ipaddress``.

        Raises:
            InvalidArgumentError: it is no address.
            StructureError: nothing was imported yet.
            ShardErrors: a shard failed.

        Cost: one exchange, one GET (of IPv6 up to three); one more if this process has not met the
        city lately, or if its /16 has more than 4,096 ranges.
        """
        [city] = yield from self._find([point(address)])
        return city

    @operation
    def find_many(self, addresses: Iterable[Address]) -> Operation[list[City | None]]:
        """Return the cities of addresses, in their order; None for each that is in no range.

        Args:
            addresses: any iterable of them.

        Raises:
            InvalidArgumentError: one is no address; nothing was asked then.
            StructureError: nothing was imported yet.
            ShardErrors: a shard failed.

        Cost: for every 10,000 addresses an exchange for each 1,000 blocks that they are in, and
        one for the cities that this process has not met lately.
        """
        points = [point(address) for address in addresses]
        found: list[City | None] = []
        for page in pages(points, ADDRESSES_AT_ONCE):
            found += yield from self._find(page)
        return found

    @operation
    def info(self) -> Operation[Generation | None]:
        """Return the generation that is used; None if nothing was imported. Cost: one exchange."""
        [written] = yield [self._generations.reading()]
        return None if written is None else Generation.from_json(written)

    @operation
    def import_from(
        self,
        items: Iterable[Item],
        *,
        grace: int = GRACE,
        progress: Progress | None = None,
    ) -> Operation[Imported]:
        """Replace all data: by what a reader of `shardkit.geo.readers` gives.

        Nothing changes for those who look up until everything is written; then all of it does. If
        anything fails before, the data is as it was, and it can be done again.

        Where ranges overlap, the narrowest holds, and of equal ones the last. Lines that cannot be
        read are skipped and counted.

        Args:
            items: cities, ranges, and lines that were skipped: a reader, or an iterable of your
                own. It is read as needed; reading blocks the event loop of an async kit.
            grace: for how many seconds the old data is kept for those who are reading it, at least
                10. Keep it longer than anybody takes to load a local copy.
            progress: called with "cities" or "blocks" and how many are written.

        Raises:
            InvalidArgumentError: an item is none, or the grace out of range.
            StructureError: no range could be read; or another import has begun meanwhile.
            ShardErrors: a shard failed.

        Cost: one exchange for 10,000 cities, two for 1,000 blocks, and as many for the old data.
        Memory: 200,000 ranges, and the ids of all cities.
        """
        check_integer(self.name, "grace", grace, LEAST_GRACE, LONGEST_EXPIRY)
        number, unused, told_off = yield from self._generations.begin()
        intake = ImportInput(items)
        try:
            for generation in unused:
                yield from self._store.remove(generation)
                yield from self._generations.forget(generation)
            for generation in told_off:
                yield from self._store.remove(generation)
            now = yield from self._now()
            new = yield from self._store.write(number, intake, progress or _no_progress, now)
            old = yield from self._generations.switch(new, grace)
        except Exception:
            yield from self._abandon(number)
            raise
        finally:
            intake.close()
        self._known.asked = float("-inf")
        if old:
            yield from self._retire(old, grace)
        skipped = tuple(intake.first_skipped)
        return Imported(number, new.ranges, new.cities, new.blocks, intake.skipped, skipped)

    @operation
    def local(self, known: LocalCities | None = None) -> Operation[LocalCities]:
        """Load everything into this process, for millions of look-ups.

        Args:
            known: a copy that was loaded before: it is returned if it is still that of the
                generation that is used.

        Raises:
            StructureError: nothing was imported yet.
            ShardErrors: a shard failed.

        Cost: two exchanges for 1,000 blocks, and one for 10,000 cities.
        """
        tried: Generation | None = None
        while True:
            yield from self._ask()
            generation = (yield from self._view()).generation
            if known is not None and known.generation == generation:
                return known
            if tried == generation:
                raise StructureError(
                    f"{self.name}: blocks or cities of generation {generation.number} are missing",
                    "a server has lost data: import again",
                )
            loaded = yield from self._store.load(generation)
            if loaded is not None:
                return loaded
            tried = generation  # it expired meanwhile

    @operation
    def delete(self) -> Operation[bool]:
        """Remove everything; return whether there was anything. Nobody may be importing.

        Cost: two exchanges for 1,000 blocks.
        """
        generations = yield from self._generations.all()
        for generation in generations:
            yield from self._store.remove(generation)
        yield from self._generations.delete()
        self._known.view = self._known.written = None
        self._known.asked = float("-inf")
        return bool(generations)

    # ---- looking up

    def _find(self, points: Sequence[int]) -> Operation[list[City | None]]:
        """Return the cities at places on the line."""
        found: list[City | None] | None = None
        for _ in range(_TRIES):
            view, asked = (yield from self._view()), self._known.asked
            numbers = yield from self._numbers(view, points)
            if numbers is None:
                continue  # another generation is used by now
            cities = yield from self._cities(view, {n for n in numbers if n != NO_CITY})
            found = [cities.get(number) for number in numbers]
            # What is missing has expired, if this process stood still since it last asked.
            sure = None not in found or self._known.asked != asked
            if sure or not (yield from self._stale()):
                break
        if found is None:
            raise StructureError(
                f"{self.name}: new data was imported {_TRIES} times while addresses were looked up",
                "import less often",
            )
        return found

    def _numbers(self, view: GenerationView, points: Sequence[int]) -> Operation[list[int] | None]:
        """Return the numbers of the cities at places; None if another generation is used by now."""
        numbers = [NO_CITY] * len(points)
        number = view.generation.number
        wanted: dict[tuple[Level, int, int], list[tuple[int, int]]] = {}
        for n, at in enumerate(points):
            for level in view.levels[4 if at < IPV4 else 6]:
                bucket, offset = level.place(at)
                wanted.setdefault((level, bucket, WHOLE), []).append((n, offset))
        if not wanted and (yield from self._stale()):  # nothing of this kind; is there by now?
            yield from self._get(view, [])
            if self._known.view is not view:
                return None
        while wanted:
            paged: dict[tuple[Level, int, int], list[tuple[int, int]]] = {}
            for some in pages(wanted, BLOCKS_AT_ONCE):
                keys = [
                    self._store.block_key(number, place[0].number, *place[1:]) for place in some
                ]
                contents = yield from self._get(view, keys)
                if contents is None:
                    return None
                for (level, bucket, page), content in zip(some, contents, strict=True):
                    if content is None:
                        continue
                    for n, offset in wanted[level, bucket, page]:
                        found, city = search(level, content, offset)
                        if found is not None:
                            paged.setdefault((level, bucket, found), []).append((n, offset))
                        elif city != NO_CITY:
                            numbers[n] = city
            wanted = paged
        return numbers

    def _get(
        self, view: GenerationView, keys: Sequence[str]
    ) -> Operation[list[bytes | None] | None]:
        """Return blocks, and see in the same exchange whether their generation is still used.

        Returns:
            None if it is not.
        """
        gets = Columns(self.component, "GET", keys, idempotent=True, coalesced=True)
        if not (yield from self._stale()):
            found: list[bytes | None] = yield gets
            return found
        now = yield from self._now()
        written, *contents = yield [self._generations.reading(), *gets]
        self._take(written, now)
        return contents if self._known.view is view else None

    def _cities(self, view: GenerationView, numbers: set[int]) -> Operation[dict[int, City]]:
        """Return cities by their numbers, without those that are not there."""
        kept = view.cities
        found = {number: kept[number] for number in numbers if number in kept}
        if len(found) < len(numbers):
            missing = sorted(numbers - found.keys())
            read = yield from view.table.read(missing)
            new = {n: city for n, city in zip(missing, read, strict=True) if city is not None}
            found |= new
            view.keep(new)
        return found

    # ---- which generation

    def _view(self) -> Operation[GenerationView]:
        """Return the generation as it is known; asks for it only if none is."""
        if self._known.view is None:
            yield from self._ask()
        view = self._known.view
        if view is None:
            raise StructureError(
                f"{self.name}: no ranges were imported yet", "import some: shardkit geo import"
            )
        return view

    def _ask(self) -> Operation[None]:
        now = yield from self._now()
        [written] = yield [self._generations.reading()]
        self._take(written, now)

    def _take(self, written: bytes | None, now: float) -> None:
        """Take in what the server says that is used."""
        known = self._known
        if written != known.written:
            known.view = None if written is None else self._viewed(Generation.from_json(written))
            known.written = written
        known.asked = now

    def _viewed(self, generation: Generation) -> GenerationView:
        return GenerationView(generation, self._store.table(generation.number))

    def _now(self) -> Operation[float]:
        return self._clock.seconds(self._generations.home, self._generations.key)

    def _stale(self) -> Operation[bool]:
        """Return whether it is a second since it was asked which generation is used."""
        return not 0 <= (yield from self._now()) - self._known.asked < FRESH

    # ---- importing

    def _abandon(self, number: int) -> Operation[None]:
        """Remove what a failed import wrote; leave it to the next import if that fails too."""
        try:
            if (yield from self._generations.abandon(number)):
                yield from self._store.remove(number)
                yield from self._generations.forget(number)
        except ShardKitError as error:
            logger.warning(
                "%s: what a failed import wrote remains until the next one: %s", self.name, error
            )

    def _retire(self, old: int, grace: int) -> Operation[None]:
        """Have what readers used until now expire; leave it to the next import if that fails."""
        try:
            yield from self._store.expire(old, grace)
        except ShardKitError as error:
            logger.warning("%s: old data remains until the next import: %s", self.name, error)


def _no_progress(what: str, count: int) -> None:
    pass
