"""Memory-dense structures over shards: kept in small parts that stay compact.

A kit makes them: ``kit.set(…)``, ``kit.hash(…)``, and so on.
"""

from shardkit.structures.base.check import Damage
from shardkit.structures.codecs import (
    Codec,
    CodecResult,
    Compressed,
    Tokens,
    WholeValue,
    Zstd,
    codec,
    compare_codecs,
)
from shardkit.structures.hash.sharded_hash import ShardedHash
from shardkit.structures.hash.strings import ShardedStrings
from shardkit.structures.list.sharded_list import ShardedList
from shardkit.structures.packed.aggregates import FieldTotals, RecordGroup
from shardkit.structures.packed.field_types import (
    Choice,
    Degrees,
    FieldType,
    FixedBytes,
    Float,
    Signed,
    Unsigned,
)
from shardkit.structures.packed.locations import Location, LocationCounts, Locations
from shardkit.structures.packed.records import PackedRecords
from shardkit.structures.set.sharded_set import ShardedSet
from shardkit.structures.sorted_set.merged_ranges import ScoreRanges, part_key, range_over
from shardkit.structures.sorted_set.sharded_sorted_set import ShardedSortedSet
from shardkit.structures.unique.days import VisitorPlace
from shardkit.structures.unique.precision import Odds
from shardkit.structures.unique.visitors import UniqueVisitors

__all__ = [
    "Choice",
    "Codec",
    "CodecResult",
    "Compressed",
    "Damage",
    "Degrees",
    "FieldTotals",
    "FieldType",
    "FixedBytes",
    "Float",
    "Location",
    "LocationCounts",
    "Locations",
    "Odds",
    "PackedRecords",
    "RecordGroup",
    "ScoreRanges",
    "ShardedHash",
    "ShardedList",
    "ShardedSet",
    "ShardedSortedSet",
    "ShardedStrings",
    "Signed",
    "Tokens",
    "UniqueVisitors",
    "Unsigned",
    "VisitorPlace",
    "WholeValue",
    "Zstd",
    "codec",
    "compare_codecs",
    "part_key",
    "range_over",
]
