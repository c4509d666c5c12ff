"""Memory-dense structures over shards: kept in small parts that stay compact.

A kit makes them: ``kit.set(…)``, ``kit.hash(…)``, and so on.
"""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.structures.base.check import Damage
    from shardkit.structures.codecs.compression import Compressed, Tokens, Zstd
    from shardkit.structures.codecs.named import codec
    from shardkit.structures.codecs.plain import Codec
    from shardkit.structures.codecs.whole_value import CodecResult, WholeValue, compare_codecs
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
    from shardkit.structures.packed.record_format import Fields
    from shardkit.structures.packed.records import PackedRecords
    from shardkit.structures.set.sharded_set import ShardedSet
    from shardkit.structures.sorted_set.merged_ranges import ScoreRanges, part_key, range_over
    from shardkit.structures.sorted_set.sharded_sorted_set import ShardedSortedSet
    from shardkit.structures.unique.days import VisitorPlace
    from shardkit.structures.unique.precision import Odds
    from shardkit.structures.unique.visitors import UniqueVisitors
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.structures.base.check": "Damage",
            "shardkit.structures.codecs.compression": "Compressed Tokens Zstd",
            "shardkit.structures.codecs.named": "codec",
            "shardkit.structures.codecs.plain": "Codec",
            "shardkit.structures.codecs.whole_value": "CodecResult WholeValue compare_codecs",
            "shardkit.structures.hash.sharded_hash": "ShardedHash",
            "shardkit.structures.hash.strings": "ShardedStrings",
            "shardkit.structures.list.sharded_list": "ShardedList",
            "shardkit.structures.packed.aggregates": "FieldTotals RecordGroup",
            "shardkit.structures.packed.field_types": (
                "Choice Degrees FieldType FixedBytes Float Signed Unsigned"
            ),
            "shardkit.structures.packed.locations": "Location LocationCounts Locations",
            "shardkit.structures.packed.record_format": "Fields",
            "shardkit.structures.packed.records": "PackedRecords",
            "shardkit.structures.set.sharded_set": "ShardedSet",
            "shardkit.structures.sorted_set.merged_ranges": "ScoreRanges part_key range_over",
            "shardkit.structures.sorted_set.sharded_sorted_set": "ShardedSortedSet",
            "shardkit.structures.unique.days": "VisitorPlace",
            "shardkit.structures.unique.precision": "Odds",
            "shardkit.structures.unique.visitors": "UniqueVisitors",
        },
    )

__all__ = [
    "Choice",
    "Codec",
    "CodecResult",
    "Compressed",
    "Damage",
    "Degrees",
    "FieldTotals",
    "FieldType",
    "Fields",
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
