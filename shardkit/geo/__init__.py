"""IP to city over shards: ranges in blocks, atomic imports, and local copies."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.geo.city_totals import CityTotals as CityTotals
    from shardkit.geo.ip_to_city import Imported as Imported
    from shardkit.geo.ip_to_city import IpToCity as IpToCity
    from shardkit.geo.local_copy import LocalCities as LocalCities
    from shardkit.geo.log_tally import LogTally as LogTally
    from shardkit.geo.models import City as City
    from shardkit.geo.models import IpRange as IpRange
    from shardkit.geo.models import SkippedLine as SkippedLine
    from shardkit.geo.readers import (
        csv_cities as csv_cities,
    )
    from shardkit.geo.readers import (
        csv_ranges as csv_ranges,
    )
    from shardkit.geo.readers import (
        geolite2 as geolite2,
    )
    from shardkit.geo.readers import (
        geolite_legacy as geolite_legacy,
    )
    from shardkit.geo.readers import (
        jsonl as jsonl,
    )
    from shardkit.geo.readers import (
        mmdb as mmdb,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
