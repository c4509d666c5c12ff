from shardkit.geo.block_store import LocalCities as LocalCities
from shardkit.geo.city_totals import CityTotals as CityTotals, LogTally as LogTally
from shardkit.geo.ip_to_city import Imported as Imported, IpToCity as IpToCity
from shardkit.geo.readers import (
    City as City,
    IpRange as IpRange,
    SkippedLine as SkippedLine,
    csv_cities as csv_cities,
    csv_ranges as csv_ranges,
    geolite2 as geolite2,
    geolite_legacy as geolite_legacy,
    jsonl as jsonl,
    mmdb as mmdb,
)
