"""The cities of one generation: a sharded HASH from their numbers to their records.

::

    ip2city:3512345:cities:7    HASH   {0: ["Bonn","North Rhine-Westphalia","Germany",2946447], …}

The import numbers cities in the order of reading, so the parts are full for any ids of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from shardkit.geo.models import City
from shardkit.operations.operation import Driver, Operation
from shardkit.structures.hash.sharded_hash import ShardedHash

CITIES_A_PART: Final = 128


class CityTable:
    """The cities of one generation, by the deferred face's driver."""

    def __init__(self, driver: Driver, component: str, name: str) -> None:
        # All fields are numbers: the one part for other fields stays empty.
        self._hash: Any = ShardedHash(
            driver, component, name, 1, CITIES_A_PART, codec="json", fields=int
        )

    def key(self, number: int) -> str:
        """Return the key of the part that has a city."""
        return f"{self._hash.name}:{number // CITIES_A_PART}"

    def write(self, cities: Iterable[tuple[int, City]]) -> Operation[None]:
        """Write cities by their numbers, 10,000 per exchange."""
        yield from self._hash.hset_many(
            (number, list(city if city.id is not None else city[:3])) for number, city in cities
        )

    def read(self, numbers: Sequence[int]) -> Operation[list[City | None]]:
        """Return cities by their numbers, 10,000 per exchange; None for missing ones."""
        records = yield from self._hash.hmget(numbers)
        return [None if record is None else City(*record) for record in records]

    def expire(self, seconds: int) -> Operation[None]:
        """Make all cities expire."""
        yield from self._hash.expire(seconds)

    def delete(self) -> Operation[None]:
        """Remove all cities."""
        yield from self._hash.delete()
