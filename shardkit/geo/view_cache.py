"""What a process knows of the data that is in use."""

from __future__ import annotations

from shardkit.geo.blocks import IPV4_LEVELS, IPV6_LEVELS
from shardkit.geo.city_table import CityTable
from shardkit.geo.generations import Generation
from shardkit.geo.models import City

CITIES_KEPT = 10_000


class ViewCache:
    """What a process knows of the current generation; shared by all faces."""

    def __init__(self) -> None:
        self.written: bytes | None = None
        self.asked = float("-inf")
        self.view: GenerationView | None = None


class GenerationView:
    """One generation as a process sees it."""

    def __init__(self, generation: Generation, table: CityTable) -> None:
        self.generation = generation
        self.table = table
        self.levels = {
            family: [level for level in levels if level.number in generation.levels]
            for family, levels in ((4, IPV4_LEVELS), (6, IPV6_LEVELS))
        }
        self.cities: dict[int, City] = {}

    def keep(self, cities: dict[int, City]) -> None:
        """Keep cities for the next look-ups, 10,000 at most."""
        if len(self.cities) + len(cities) > CITIES_KEPT:
            self.cities = {}
        self.cities |= cities if len(cities) <= CITIES_KEPT else {}
