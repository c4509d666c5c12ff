"""IP to city: the city of an address; docs/ip-to-city.md lists the keys.

Ranges are packed in blocks (`shardkit.geo.blocks`), so an address costs one GET instead of a search
among all ranges. Ranges have ends: an address in a gap has no city. An import writes a new
generation and then switches to it (`shardkit.geo.block_store`): readers see either all of the old
data or all of the new. Which one is current is cached, and checked once a second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import chain, islice
from typing import NamedTuple

from shardkit import log_records
from shardkit.errors import DamagedDataError, ShardKitError, StructureError
from shardkit.geo.block_store import (
    BLOCKS_AT_ONCE,
    IMPORT_AGAIN,
    BlockStore,
    CityTable,
    Generation,
    Generations,
    LocalCities,
    Progress,
)
from shardkit.geo.blocks import IPV4_LEVELS, IPV6_LEVELS, NO_CITY, WHOLE, Level, entries, search
from shardkit.geo.readers import IPV4, Address, City, ImportInput, Item, SkippedLine, address_number
from shardkit.operations.commands import Columns, Command
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import LONGEST_EXPIRY, check_integer, check_name
from shardkit.structures.base.check import Damage, raised_twice, suspected
from shardkit.structures.base.damage import damage
from shardkit.structures.base.server_clock import ServerClock

logger = logging.getLogger("shardkit")

ADDRESSES_AT_ONCE = 10_000
FRESH = 1.0  # seconds
GRACE, LEAST_GRACE = 60, 10  # seconds
_TRIES = 5
CACHED_CITIES = 10_000


class Imported(NamedTuple):
    """The result of an import: the new generation's number, and how many ranges were read."""

    generation: int
    ranges: int
    cities: int
    blocks: int
    skipped: int
    first_skipped: tuple[SkippedLine, ...]


class ViewCache:
    """The cached current generation; shared by all faces."""

    def __init__(self) -> None:
        self.stored: bytes | None = None  # the stored form of the generation
        self.checked = float("-inf")  # when the server was last asked for it
        self.view: GenerationView | None = None

    def expire(self) -> None:
        """Ask the server again at the next look-up."""
        self.checked = float("-inf")

    def clear(self) -> None:
        """Drop everything after the data is deleted."""
        self.view = self.stored = None
        self.expire()


class GenerationView:
    """A generation, and its cities that this process looked up."""

    def __init__(self, generation: Generation, table: CityTable) -> None:
        self.generation = generation
        self.table = table
        self.levels = {
            family: [level for level in levels if level.number in generation.levels]
            for family, levels in ((4, IPV4_LEVELS), (6, IPV6_LEVELS))
        }
        self.cities: dict[int, City] = {}

    def cache(self, cities: dict[int, City]) -> None:
        """Cache cities for the next look-ups, at most 10,000."""
        if len(self.cities) + len(cities) > CACHED_CITIES:
            self.cities = {}
        self.cities |= cities if len(cities) <= CACHED_CITIES else {}


class IpToCity(Structure[Face]):
    """Finds the cities of addresses, over one server or many. Made by ``kit.ip_to_city``.

    Args:
        component: its shards hold the blocks and cities. Its unsharded entry, if it has one, holds
            the number of the current generation.
        clock: tells when to check for a new generation.

    The first operation of a process, and the first after an import, costs up to three more
    exchanges. Calls raise ShardErrors if a shard failed.
    """

    deferred: DeferredFace[IpToCity[Deferred]]

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
        self._store = BlockStore(self.deferred._driver, component, name, self._generations)
        self._clock = clock or ServerClock()
        self._cache = ViewCache()

    @operation
    def find(self, address: Address) -> Operation[City | None]:
        """Return the city of an address; None if it is in no range.

        An address is text, bytes, or an address object of Python's ``ipaddress``.

        Raises:
            InvalidArgumentError: it is not an address.
            StructureError: nothing was imported yet.

        Cost: one exchange with one GET (for IPv6 up to three); one more if the city is not cached
        in this process, or if its /16 has more than 4,096 ranges.
        """
        [city] = yield from self._find([address_number(address)])
        return city

    @operation
    def find_many(self, addresses: Iterable[Address]) -> Operation[list[City | None]]:
        """Return the cities of addresses, in their order; see `find`.

        Cost: for every 10,000 addresses one exchange per 1,000 blocks that they are in, and one for
        the cities that are not cached in this process.
        """
        points = [address_number(address) for address in addresses]
        cities: list[City | None] = []
        for page in pages(points, ADDRESSES_AT_ONCE):
            cities += yield from self._find(page)
        return cities

    @operation
    def info(self) -> Operation[Generation | None]:
        """Return the current generation; None if nothing was imported. Cost: one exchange."""
        [stored] = yield [self._generations.read_current()]
        return None if stored is None else self._generations.parse(stored)

    @operation
    def import_from(
        self,
        items: Iterable[Item],
        *,
        grace: int | timedelta = GRACE,
        progress: Progress | None = None,
    ) -> Operation[Imported]:
        """Replace all data with the items of a reader (`shardkit.geo.readers`).

        Look-ups use the old data until everything is written, and then the new data. If the import
        fails before that, the old data stays, and the import can be repeated.

        Where ranges overlap, the narrowest wins, and of equally narrow ones the last. Invalid lines
        are skipped and counted.

        Args:
            items: cities, ranges and skipped lines: a reader, or any iterable of them. It is read
                lazily; reading blocks the event loop of an async kit.
            grace: the seconds for which the old data stays for look-ups in progress, at least 10.
                It must be longer than loading a local copy takes.
            progress: called with "cities" or "blocks" and the number written so far.

        Raises:
            InvalidArgumentError: an item is invalid, or the grace is out of range.
            StructureError: no range could be read, or another import has started.

        Cost: one exchange per 10,000 cities, two per 1,000 blocks, and the same for the old data.
        Memory: 200,000 ranges, and the ids of all cities.
        """
        if isinstance(grace, timedelta):
            grace = int(grace.total_seconds())
        check_integer(self.name, "grace", grace, LEAST_GRACE, LONGEST_EXPIRY)
        with closing(ImportInput(items)) as source:
            cities = source.pages(self.name)
            ahead = list(islice(cities, 2))  # wrong items are refused before anything is sent
            yield from suspected(self._refresh())  # refuses a later format; damage is replaced
            number, unused, interrupted = yield from self._generations.begin()
            try:
                for generation in unused:
                    yield from self._store.remove(generation)
                    yield from self._generations.forget(generation)
                for generation in interrupted:
                    yield from self._store.remove(generation, keep_lists=True)
                now = yield from self._now()
                progress = progress or (lambda *_: None)
                every = chain(ahead, cities)
                new = yield from self._store.write(number, source, every, progress, now)
                old = yield from self._generations.switch(new, grace)
            except Exception:
                with self._left_to_the_next("data of a failed import remains until the next one"):
                    if (yield from self._generations.abandon(number)):
                        yield from self._store.remove(number)
                        yield from self._generations.forget(number)
                raise
        self._cache.expire()
        if old:
            with self._left_to_the_next("old data remains until the next import"):
                yield from self._store.expire(old, grace)
        skipped = tuple(source.first_skipped)
        return Imported(number, new.ranges, new.cities, new.blocks, source.skipped, skipped)

    @operation
    def local(self, copy: LocalCities | None = None) -> Operation[LocalCities]:
        """Load everything into this process, for millions of look-ups.

        A previous ``copy`` is returned if it is still current.

        Raises:
            StructureError: nothing was imported yet.

        Cost: two exchanges per 1,000 blocks, and one per 10,000 cities.
        """
        tried: Generation | None = None
        while True:
            yield from self._refresh()
            generation = (yield from self._view()).generation
            if copy is not None and copy.generation == generation:
                return copy
            try:
                return (yield from self._store.load(generation))
            except DamagedDataError:
                if tried == generation:
                    raise
                tried = generation  # it may have expired during the load

    @stream
    def check(self) -> Stream[Damage]:
        """Read the current generation, and return its damage; changes nothing.

        Finds blocks and cities that are lost or cannot be read, and a damaged record of
        generations. A new import repairs all of it.

        Raises:
            NewerFormatError: a later release imported the data.

        Cost: as `local`, without its memory. If there is no record of generations, one exchange for
        each 2,000 keys of the servers.
        """
        repair = "import_from() replaces everything"
        if not (yield from raised_twice(self._generations.read, repair=repair)):
            generation, _ = yield from self._generations.read()
            if generation is not None:
                yield from self._store.check(generation, repair)
            else:
                yield from raised_twice(self._store.refuse_unlisted, repair=repair)

    @operation
    def delete(self) -> Operation[bool]:
        """Remove all data, even damaged data; return whether any existed.

        Do not call it during an import.

        Cost: two exchanges per 1,000 blocks. If the record of generations or of blocks is damaged
        or lost, or an import failed, also one per 2,000 keys of the servers.
        """
        current: Generation | None = None
        states: dict[int, str] = {}
        damaged = yield from suspected(self._generations.read())
        if not damaged:
            current, states = yield from self._generations.read()
        whole, removed = current is not None and not set(states.values()) - {"retired"}, 0
        for number in (*([current.number] if current else []), *states):
            blocks = yield from self._store.remove(number)
            whole = whole and (number in states or current is None or blocks == current.blocks)
        if not whole:
            removed = yield from self._store.of_unlisted("UNLINK")
        yield from self._generations.delete()
        self._cache.clear()
        return bool(damaged or current or states or removed)

    # ---- look-ups

    def _find(self, points: Sequence[int]) -> Operation[list[City | None]]:
        result: list[City | None] | None = None
        for _ in range(_TRIES):
            view, checked = (yield from self._view()), self._cache.checked
            numbers = yield from self._numbers(view, points)
            if numbers is None:
                continue  # the generation has changed
            cities = yield from self._cities(view, {n for n in numbers if n != NO_CITY})
            result = [cities.get(number) for number in numbers]
            # If this process was suspended since its last check, a missing city may have expired.
            certain = None not in result or self._cache.checked != checked
            if certain or not (yield from self._stale()):
                lost = {n for n in numbers if n != NO_CITY} - cities.keys()
                if lost:
                    key = view.table.key(min(lost))
                    city = f"city {min(lost)}, which a block refers to"
                    raise damage(self.component, key, "nothing", city, IMPORT_AGAIN)
                break
        if result is None:
            raise StructureError(
                f"{self.name}: new data was imported {_TRIES} times while addresses were looked up",
                "import less often",
            )
        return result

    def _numbers(self, view: GenerationView, points: Sequence[int]) -> Operation[list[int] | None]:
        """Return the city numbers of address numbers; None if the generation has changed."""
        numbers = [NO_CITY] * len(points)
        absent: dict[tuple[Level, int, int], list[tuple[int, int]]] = {}
        number = view.generation.number
        wanted: dict[tuple[Level, int, int], list[tuple[int, int]]] = {}
        for n, at in enumerate(points):
            for level in view.levels[4 if at < IPV4 else 6]:
                bucket, offset = level.place(at)
                wanted.setdefault((level, bucket, WHOLE), []).append((n, offset))
        if not wanted and (yield from self._stale()):  # no data of this family, unless it is new
            yield from self._get(view, [])
            if self._cache.view is not view:
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
                    if content is None and page == WHOLE:
                        absent[level, bucket, page] = wanted[level, bucket, page]
                        continue
                    for n, offset in wanted[level, bucket, page]:
                        try:
                            next_page, city = search(level, content or b"", offset)
                            if next_page is not None and page != WHOLE:
                                raise LookupError("a list of pages in a page")
                        except (StructureError, LookupError, ValueError) as error:
                            key, what = (
                                self._store.block_key(number, level.number, bucket, page),
                                str(error),
                            )
                            if content is None:  # or the list that names the page is damaged
                                of = self._store.block_key(number, level.number, bucket)
                                [listed] = yield [Command(self.component, of, ("GET", of))]
                                try:
                                    entries(level, listed or b"")
                                except StructureError as unreadable:
                                    key, what = of, str(unreadable)
                            raise damage(
                                self.component, key, what, "a block of ranges", IMPORT_AGAIN
                            ) from None
                        if next_page is not None:
                            paged.setdefault((level, bucket, next_page), []).append((n, offset))
                        elif city != NO_CITY:
                            numbers[n] = city
            wanted = paged
        # MGET takes a key of another type for an absent one: read those that matter by themselves.
        doubtful = [
            self._store.block_key(number, place[0].number, *place[1:])
            for place, at in absent.items()
            if any(numbers[n] == NO_CITY for n, _ in at)
        ]
        for keys in pages(doubtful, BLOCKS_AT_ONCE):
            yield [Command(self.component, key, ("GET", key)) for key in keys]
        return numbers

    def _get(
        self, view: GenerationView, keys: Sequence[str]
    ) -> Operation[list[bytes | None] | None]:
        """Return blocks; None if a check that was due shows that their generation is not current.

        The check shares the exchange.
        """
        reads = Columns(self.component, "GET", keys, coalesced=True)
        if not (yield from self._stale()):
            blocks: list[bytes | None] = yield reads
            return blocks
        now = yield from self._now()
        stored, *contents = yield [self._generations.read_current(), *reads]
        self._update_cache(stored, now)
        return contents if self._cache.view is view else None

    def _cities(self, view: GenerationView, numbers: set[int]) -> Operation[dict[int, City]]:
        cached = view.cities
        cities = {number: cached[number] for number in numbers if number in cached}
        if len(cities) < len(numbers):
            missing = sorted(numbers - cities.keys())
            read = yield from view.table.read(missing)
            new = {n: city for n, city in zip(missing, read, strict=True) if city is not None}
            cities |= new
            view.cache(new)
        return cities

    # ---- the current generation

    def _view(self) -> Operation[GenerationView]:
        """Return the cached generation; ask the server if none is cached."""
        if self._cache.view is None:
            yield from self._refresh()
        view = self._cache.view
        if view is None:
            raise StructureError(
                f"{self.name}: no ranges were imported yet", "import some: shardkit geo import"
            )
        return view

    def _refresh(self) -> Operation[None]:
        now = yield from self._now()
        [stored] = yield [self._generations.read_current()]
        self._update_cache(stored, now)

    def _update_cache(self, stored: bytes | None, now: float) -> None:
        cache = self._cache
        if stored != cache.stored:
            cache.view = None
            if stored is not None:
                generation = self._generations.parse(stored)
                cache.view = GenerationView(generation, self._store.table(generation.number))
            cache.stored = stored
        cache.checked = now

    def _now(self) -> Operation[float]:
        return self._clock.seconds(self._generations.home, self._generations.key)

    def _stale(self) -> Operation[bool]:
        """Return whether the current generation was last checked more than a second ago."""
        return not 0 <= (yield from self._now()) - self._cache.checked < FRESH

    # ---- importing

    @contextmanager
    def _left_to_the_next(self, what: str) -> Iterator[None]:
        try:
            yield
        except ShardKitError as error:
            about = log_records.fields("geo-data-remain", structure=self.name, cause=str(error))
            logger.warning("%s: %s: %s", self.name, what, error, extra=about)
