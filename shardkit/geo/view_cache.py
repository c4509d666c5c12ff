"""The per-process cache of the current generation."""

from __future__ import annotations

from shardkit.geo.blocks import IPV4_LEVELS, IPV6_LEVELS
from shardkit.geo.city_table import CityTable
from shardkit.geo.generations import Generation
from shardkit.geo.models import City

CACHED_CITIES = 10_000


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
