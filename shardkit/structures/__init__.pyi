from shardkit.structures.base.check import Damage as Damage
from shardkit.structures.codecs.compression import (
    Compressed as Compressed,
    Tokens as Tokens,
    Zstd as Zstd,
)
from shardkit.structures.codecs.named import (
    CodecResult as CodecResult,
    WholeValue as WholeValue,
    codec as codec,
    compare_codecs as compare_codecs,
)
from shardkit.structures.codecs.plain import Codec as Codec
from shardkit.structures.hash.sharded_hash import ShardedHash as ShardedHash
from shardkit.structures.hash.strings import ShardedStrings as ShardedStrings
from shardkit.structures.list.sharded_list import ShardedList as ShardedList
from shardkit.structures.packed.aggregates import (
    FieldTotals as FieldTotals,
    RecordGroup as RecordGroup,
)
from shardkit.structures.packed.locations import (
    Location as Location,
    LocationCounts as LocationCounts,
    Locations as Locations,
)
from shardkit.structures.packed.record_format import (
    Choice as Choice,
    Degrees as Degrees,
    Fields as Fields,
    FieldType as FieldType,
    FixedBytes as FixedBytes,
    Float as Float,
    Signed as Signed,
    Unsigned as Unsigned,
)
from shardkit.structures.packed.records import PackedRecords as PackedRecords
from shardkit.structures.set.sharded_set import ShardedSet as ShardedSet
from shardkit.structures.sorted_set.merged_ranges import (
    ScoreRanges as ScoreRanges,
    part_key as part_key,
    range_over as range_over,
)
from shardkit.structures.sorted_set.sharded_sorted_set import (
    ShardedSortedSet as ShardedSortedSet,
)
from shardkit.structures.unique.days import VisitorPlace as VisitorPlace
from shardkit.structures.unique.precision import Odds as Odds
from shardkit.structures.unique.visitors import UniqueVisitors as UniqueVisitors
