"""Reads data in the layout of "Redis in Action" from its server, for an import.

::

    ip2cityid:      ZSET    <city id>_<running number>: first address of a range, as an integer
    cityid2city:    HASH    <city id>: ["Bonn", "07", "DE"]

That layout does not store where ranges end: each range reaches to the next one, and the last one to
255.255.255.255. If the original data had gaps, import the original data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from shardkit.geo.addresses import IPV4
from shardkit.geo.models import City, IpRange, Item, SkippedLine
from shardkit.geo.readers import source_id

_AT_ONCE = 1000


def redis_in_action(
    client: redis.Redis, ranges: str = "ip2cityid:", cities: Sequence[str] = ("cityid2city:",)
) -> Iterator[Item]:
    """Read the ranges and cities of that layout, which must not change meanwhile.

    Args:
        client: a client of their server, with any ``decode_responses``.
        ranges: the key of the ZSET.
        cities: the key of the HASH, or the keys of all its parts, ``cityid2city::0`` and so on.

    Raises:
        redis.RedisError: the server failed.
    """
    for key in cities:
        for field, value in client.hscan_iter(key, count=_AT_ONCE):
            yield _city(key, _text(field), value)
    held: tuple[int, int | str] | None = None
    start = 0
    # Ranks follow the scores, which are the first addresses.
    while page := _page(client, ranges, start):
        for turn, (member, score) in enumerate(page, start + 1):
            if not 0 <= score < IPV4 or score != int(score):
                yield SkippedLine(turn, f"the score {score} is not an IPv4 address", ranges)
                continue
            first = int(score)
            if held is not None and first > held[0]:
                yield IpRange(held[0], first - 1, held[1], turn - 1, ranges)
            held = first, source_id(_text(member).rpartition("_")[0] or _text(member))
        start += _AT_ONCE
    if held is not None:
        yield IpRange(held[0], IPV4 - 1, held[1], start, ranges)


def _page(client: redis.Redis, key: str, start: int) -> list[tuple[Any, float]]:
    page: Any = client.zrange(key, start, start + _AT_ONCE - 1, withscores=True)
    return list(page)


def _city(key: str, field: str, value: Any) -> Item:
    try:
        names = json.loads(value)
        city, region, country = ("" if name is None else str(name) for name in names[:3])
    except (ValueError, TypeError):
        return SkippedLine(0, f"the city {field} is not a JSON list of three names", key)
    return City(city, region, country, source_id(field))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
