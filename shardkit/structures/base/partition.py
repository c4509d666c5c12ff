"""The partition of members over a planned number of parts, with its arguments checked."""

from __future__ import annotations

from shardkit.errors import InvalidArgumentError
from shardkit.routing.partition import Partition, part_count, partition
from shardkit.structures.base.arguments import check_integer, check_name

MOST_MEMBERS = 2**63 - 1
MOST_PARTS = 2**32  # as many as CRC-32 has values


def hashed_partition(name: str, rule: str, total: int, part_size: int) -> Partition:
    """Return the function from a member to its part, for about ``total`` members."""
    check_name(name)
    check_integer(name, "total", total, 1, MOST_MEMBERS)
    check_integer(name, "part_size", part_size, 1, MOST_MEMBERS)
    if rule == "digits":
        raise InvalidArgumentError(
            f"{name}: partition='digits' would give sparse integers a part each",
            "use crc32 or redis-in-action",
        )
    if part_count(total, part_size) > MOST_PARTS:
        raise InvalidArgumentError(
            f"{name}: total={total} with part_size={part_size} needs more than 2**32 parts",
            "set total to about the number of members",
        )
    try:
        return partition(rule, total, part_size)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error.message}", error.remedy) from None
