"""Counts, sums, minima and maxima of packed records, all together or by some of their fields.

With numpy (``pip install shardkit[arrays]``) records are aggregated as arrays, without it by
`packed.plain_aggregates`, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardkit.errors import InvalidArgumentError
from shardkit.structures.packed.addressing import RecordLayout
from shardkit.structures.packed.plain_aggregates import Aggregator
from shardkit.structures.packed.record_format import RecordFormat

MAX_KEY_BITS = 64


def aggregator(
    owner: str,
    record_format: RecordFormat,
    layout: RecordLayout,
    by: Sequence[str],
    summed: Sequence[str],
) -> Aggregator:
    """Return an empty aggregator, on arrays if numpy is installed.

    Args:
        owner: the structure's name, for messages.
        record_format: the records' format.
        layout: where records are in a block.
        by: names of the fields whose values make a group.
        summed: names of the fields that are added up.

    Raises:
        InvalidArgumentError: there is no such field, or it cannot be grouped by or added up.
    """
    if len(set(by)) < len(by) or len(set(summed)) < len(summed):
        raise InvalidArgumentError(f"{owner}: by={by!r}, totals={summed!r}", "name each field once")
    keys = [record_format.field(name) for name in by]
    for field in keys:
        if not field.type.groupable:
            raise InvalidArgumentError(
                f"{owner}: records cannot be grouped by {field.name}, which is {field.type.spec}",
                "group by integers, bytes, cells or choices",
            )
    bits = sum(field.type.bits for field in keys)
    if bits > MAX_KEY_BITS:
        raise InvalidArgumentError(
            f"{owner}: {', '.join(by)} have {bits} bits together",
            f"group by fields of at most {MAX_KEY_BITS}",
        )
    values = [record_format.field(name) for name in summed]
    for field in values:
        if not field.type.summable:
            raise InvalidArgumentError(
                f"{owner}: {field.name} is {field.type.spec} and cannot be added up",
                "sums are of integers and floats",
            )
    try:
        from shardkit.structures.packed.numpy_aggregates import ArrayAggregator
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return Aggregator(record_format, layout, keys, values)
    return ArrayAggregator(record_format, layout, keys, values)
