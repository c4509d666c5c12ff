"""Country and region of users, in two bytes each; or the country alone, in one.

docs/packed.md says what the bytes are; positions count from 1. There are regions for the USA (62)
and for Canada (13). Positions never change: ``tables/locations.json`` lists versions, each what was
appended to the one before. Codes of a newer version than this program's come back as unknown.

The layout is from Redis in Action (9.3), with smaller parts unless ``part_size=2**20`` is given,
and without its ZSET of the highest id. This is a preset of `shardkit.structures.PackedRecords`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Structure,
    operation,
    pages,
)
from shardkit.structures.packed.part_store import IDS_AT_ONCE
from shardkit.structures.packed.records import WRITES_AT_ONCE, PackedRecords

CountryAndRegion: TypeAlias = tuple[str | None, str | None]

_COUNTRY = re.compile("[A-Z]{3}")
_REGION = re.compile("[A-Z0-9]{1,3}")


class Location(NamedTuple):
    """A user's country and region; None if unknown."""

    country: str | None = None
    region: str | None = None


class LocationCounts(NamedTuple):
    """The number of users in each country, and in each known region."""

    countries: dict[str, int]
    regions: dict[str, dict[str, int]]


class LocationCodes(NamedTuple):
    """The codes, in order."""

    version: int
    countries: tuple[str, ...]
    regions: dict[str, tuple[str, ...]]


@cache
def location_codes() -> LocationCodes:
    """Return the codes of all versions."""
    path = files("shardkit.structures") / "tables" / "locations.json"
    countries: list[str] = []
    regions: dict[str, list[str]] = defaultdict(list)
    versions = json.loads(path.read_text(encoding="utf-8"))
    for version in versions:
        countries += " ".join(version["countries"]).split()
        for country, codes in version["regions"].items():
            regions[country] += " ".join(codes).split()
    by_country = {country: tuple(codes) for country, codes in regions.items()}
    return LocationCodes(len(versions), tuple(countries), by_country)


@lru_cache(maxsize=4096)
def encode(country: str | None, region: str | None = None) -> bytes:
    """Return a location as two bytes; refuses malformed codes, and a region without a country."""
    if country is None and region is None:
        return bytes(2)
    if not isinstance(country, str) or not _COUNTRY.fullmatch(country):
        raise InvalidArgumentError(
            f"country={shown(country)}", "give a code of ISO 3166-1 alpha-3, such as 'USA'"
        )
    if region is not None and not (isinstance(region, str) and _REGION.fullmatch(region)):
        raise InvalidArgumentError(
            f"region={shown(region)}", "give a code without its country, such as 'CA'"
        )
    _, countries, regions = location_codes()
    codes = regions.get(country, ())
    return bytes(
        (
            countries.index(country) + 1 if country in countries else 0,
            codes.index(region) + 1 if region in codes else 0,
        )
    )


def decode(code: bytes) -> Location:
    """Return the location in two bytes; positions beyond the tables are unknown."""
    if not isinstance(code, bytes) or len(code) != 2:
        raise InvalidArgumentError(f"location {shown(code)}", "give two bytes")
    first, second = code
    _, countries, regions = location_codes()
    if not 0 < first <= len(countries):
        return Location()
    country = countries[first - 1]
    codes = regions.get(country, ())
    return Location(country, codes[second - 1] if 0 < second <= len(codes) else None)


class Locations(Structure[Face]):
    """Country and region by user id, over one server or many. Made by ``kit.locations``.

    Args:
        driver, component, name: see `shardkit.operations.Structure`.
        part_size: how many users a part has: 16,376 by default, of one byte each twice as many; the
            book's is 2**20.
        regions: whether regions are stored. Without them a user takes one byte.

    Attributes:
        records: the packed records, with fields ``country`` and ``region``.

    Ids, costs and errors: see `shardkit.structures.PackedRecords`.
    """

    deferred: DeferredFace[Locations[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "location",
        part_size: int | None = None,
        regions: bool = True,
    ) -> None:
        super().__init__(driver, component, name)
        self.regions = regions
        self._fields = ("country", "region") if regions else ("country",)
        fields = dict.fromkeys(self._fields, "u8")
        self.records: PackedRecords[Face] = PackedRecords(
            driver, component, name, fields, part_size
        )

    @operation
    def set(self, user_id: int, country: str | None, region: str | None = None) -> Operation[None]:
        """Write where a user is; see `encode`. Cost: one exchange; O(1)."""
        code = self._code(self.records.store.check_id(user_id), (country, region))
        yield from self._write({user_id: code})

    @operation
    def set_many(
        self, locations: Mapping[int, CountryAndRegion] | Iterable[tuple[int, CountryAndRegion]]
    ) -> Operation[None]:
        """Write where users are, 10,000 an exchange.

        ``locations`` has country and region by id, or is any iterable of pairs of an id and both.
        """
        known: dict[Any, int] = {}
        for page in pages(self.records.store.pairs(locations), WRITES_AT_ONCE):
            codes = {}
            for user_id, location in page:
                try:
                    codes[user_id] = known[location]
                except (KeyError, TypeError):  # new, or a list
                    codes[user_id] = code = self._code(user_id, location)
                    known[tuple(location)] = code
            yield from self._write(codes)

    def _write(self, codes: Mapping[int, int]) -> Operation[None]:
        yield from self.records.store.write(self.records.store.layout.write_commands(codes, {}))

    @operation
    def get(self, user_id: int) -> Operation[Location]:
        """Return where a user is. Cost: one exchange."""
        return self._decode((yield from self.records.store.read_one(user_id)))

    @operation
    def get_many(self, ids: Iterable[int]) -> Operation[dict[int, Location]]:
        """Return where users are, by id. Cost: one exchange for 1,000."""
        locations: dict[int, Location] = {}
        for page in pages(ids, IDS_AT_ONCE):
            codes = yield from self.records.store.read(page)
            locations |= {user_id: self._decode(codes[user_id]) for user_id in page}
        return locations

    @operation
    def remove(self, *ids: int) -> Operation[int]:
        """Make locations unknown; return how many were known. Cost: one exchange for 10,000."""
        return (yield from self.records.deferred.remove(*ids))

    @operation
    def aggregate(self, ids: Iterable[int] | None = None) -> Operation[LocationCounts]:
        """Count the users with a known country, by country and region.

        ``ids`` are the only users to count, any iterable; a repeated id counts again. Cost: as
        `PackedRecords.aggregate`.
        """
        groups = yield from self.records.deferred.group_by(*self._fields, ids=ids)
        countries: dict[str, int] = defaultdict(int)
        regions: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for codes, group in groups.items():
            country, region = decode(bytes(codes if self.regions else (codes, 0)))
            if country is not None:
                countries[country] += group.count
                if region is not None:
                    regions[country][region] += group.count
        return LocationCounts(
            dict(countries), {country: dict(counts) for country, counts in regions.items()}
        )

    @operation
    def highest(self) -> Operation[int | None]:
        """Return the highest id whose location is known, None if there is none."""
        return (yield from self.records.deferred.highest())

    @operation
    def delete(self, *, force: bool = False) -> Operation[bool]:
        """Remove all locations; see `shardkit.structures.PackedRecords.delete`."""
        return (yield from self.records.deferred.delete(force=force))

    def _decode(self, code: int) -> Location:
        return decode(code.to_bytes(2) if self.regions else bytes((code, 0)))

    def _code(self, user_id: int, location: CountryAndRegion) -> int:
        try:
            country, region = location
            code = encode(country, region)
            if self.regions:
                return int.from_bytes(code)
            if region is not None:
                raise InvalidArgumentError(
                    f"region={shown(region)}", "make the locations with regions=True to store it"
                )
            return code[0]
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{self.name}: user {user_id}: {error.message}", error.remedy
            ) from None
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{self.name}: user {user_id}: location {shown(location)}", "give (country, region)"
            ) from None
