"""IP to city over shards: ranges in blocks, atomic imports, and local copies."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.geo.city_totals import CityTotals
    from shardkit.geo.ip_to_city import Imported, IpToCity
    from shardkit.geo.local_copy import LocalCities
    from shardkit.geo.log_tally import LogTally
    from shardkit.geo.models import City, IpRange, SkippedLine
    from shardkit.geo.readers import csv_cities, csv_ranges, geolite2, geolite_legacy, jsonl, mmdb
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.geo.city_totals": "CityTotals",
            "shardkit.geo.ip_to_city": "Imported IpToCity",
            "shardkit.geo.local_copy": "LocalCities",
            "shardkit.geo.log_tally": "LogTally",
            "shardkit.geo.models": "City IpRange SkippedLine",
            "shardkit.geo.readers": "csv_cities csv_ranges geolite2 geolite_legacy jsonl mmdb",
        },
    )

__all__ = [
    "City",
    "CityTotals",
    "Imported",
    "IpRange",
    "IpToCity",
    "LocalCities",
    "LogTally",
    "SkippedLine",
    "csv_cities",
    "csv_ranges",
    "geolite2",
    "geolite_legacy",
    "jsonl",
    "mmdb",
]
