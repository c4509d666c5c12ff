"""Reads data in the layout of "Redis in Action" from its server, for an import.

::

    ip2cityid:      ZSET    <city id>_<running number>: first address of a range, as an integer
    cityid2city:    HASH    <city id>: ["Bonn", "07", "DE"]

That layout does not store where ranges end: each range reaches to the next one, and the last one to
255.255.255.255. If the original data had gaps, import the original data.

Java programs computed scores in signed 32-bit integers, so theirs are negative from 128.0.0.0 on.
Such a score stands for the address 2^32 + score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from shardkit.geo.readers import IPV4, City, IpRange, Item, SkippedLine, source_id
from shardkit.operations.arguments import checked_function, parse_json

__all__ = ["redis_in_action"]

_AT_ONCE = 1000


@checked_function
def redis_in_action(
    client: redis.Redis, ranges: str = "ip2cityid:", cities: Sequence[str] = ("cityid2city:",)
) -> Iterator[Item]:
    """Read the ranges and cities of that layout, which must not change during the call.

    Args:
        client: a client of the server, with any ``decode_responses``.
        ranges: the key of the ZSET.
        cities: the key of the HASH, or the keys of all its parts, ``cityid2city::0`` and so on.

    Raises:
        redis.RedisError: the server failed.
    """
    for key in cities:
        for field, value in client.hscan_iter(key, count=_AT_ONCE):
            try:
                names = parse_json(value)
                city, region, country = ("" if name is None else str(name) for name in names[:3])
            except (ValueError, TypeError):
                reason = f"the city {_text(field)} is not a JSON list of three names"
                yield SkippedLine(0, reason, key)
            else:
                yield City(city, region, country, source_id(_text(field)))
    last_range: tuple[int, int | str, int] | None = None
    for rank, member, score in _by_address(client, ranges):
        if not -(IPV4 // 2) <= score < IPV4 or score != int(score):
            yield SkippedLine(rank + 1, f"the score {score} is not an IPv4 address", ranges)
            continue
        first = int(score) % IPV4
        if last_range is not None and first > last_range[0]:
            yield IpRange(last_range[0], first - 1, *last_range[1:], ranges)
        last_range = first, source_id(_text(member).rpartition("_")[0] or _text(member)), rank + 1
    if last_range is not None:
        yield IpRange(last_range[0], IPV4 - 1, *last_range[1:], ranges)


def _by_address(client: redis.Redis, key: str) -> Iterator[tuple[int, Any, float]]:
    """Iterate over rank, member and score; negative scores stand for the highest addresses."""
    negative: Any = client.zcount(key, "-inf", "(0")
    count: Any = client.zcard(key)
    for start, end in ((negative, count), (0, negative)):
        for at in range(start, end, _AT_ONCE):
            page: Any = client.zrange(key, at, min(at + _AT_ONCE, end) - 1, withscores=True)
            for rank, (member, score) in enumerate(page, at):
                yield rank, member, score


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
