"""What is no number that can be used is refused before anything is sent, wherever one is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from faces import Face

import shardkit
from shardkit.dashboard import FleetWatch
from shardkit.errors import ConfigError, InvalidArgumentError
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.network.health import wsgi
from shardkit.network.replicas import ReadFrom
from shardkit.structures import Degrees, FixedBytes, Float, Signed, Tokens, Unsigned, Zstd

NUMBERS: list[Any] = [10**5000, -(10**5000), 10**400, math.nan, -math.inf]
OTHERS: list[Any] = [Decimal(1), Decimal("nan"), Fraction(1, 2), "5", 1j, [5]]
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "deadline": lambda kit, bad: kit.deadline(bad),
    "durable": lambda kit, bad: kit.durable(timeout=bad),
    "replicas": lambda kit, bad: kit.durable(replicas=bad),
    "health": lambda kit, bad: kit.health(bad),
    "shard": lambda kit, bad: kit.client("many", bad),
    "shards": lambda kit, bad: kit.key_sharded("many", bad),
    "max_age": lambda kit, bad: kit.redis_connection("one", max_age=bad),
    "ttl": lambda kit, bad: kit.cached("one", ttl=bad, key="k")(int)(1),
    "averages_ttl": lambda kit, bad: kit.ads(component="one", averages_ttl=bad),
    "weight": lambda kit, bad: kit.search(component="one", fields={"text": bad}),
    "sort": lambda kit, bad: kit.search(component="one").search("x", sort={"relevance": bad}),
    "wait": lambda kit, bad: kit.rate_limit("r", component="one", limit=1).wait("k", timeout=bad),
    "amount": lambda kit, bad: kit.hash("h", component="one").hincrbyfloat("k", bad),
    "value": lambda kit, bad: kit.statistics(component="one").record("a", "b", bad),
    "older_than": lambda kit, bad: kit.social(component="one", parts=1).repair(older_than=bad),
    "max_lag": lambda kit, bad: ReadFrom("replica", max_lag=bad),
    "threshold": lambda kit, bad: wsgi(kit, threshold=bad),
    "interval": lambda kit, bad: FleetWatch(kit, interval=bad),
    "masters": lambda kit, bad: LocalCluster(bad),
    "down_after": lambda kit, bad: LocalSentinel(down_after=bad),
    "databases": lambda kit, bad: LocalServer(databases=bad),
    **{
        made.__name__: lambda kit, bad, made=made: made(bad)
        for made in (Unsigned, Signed, Float, FixedBytes, Tokens, Zstd)
    },
    "Degrees": lambda kit, bad: Degrees("lat", bad),
    "size": lambda kit, bad: Zstd(size=bad),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_number_is_refused(face: Face, name: str) -> None:
    for bad in NUMBERS + OTHERS:
        with pytest.raises(InvalidArgumentError, match=r"give|use"):
            face.run(CALLS[name](face.kit, bad))


@pytest.mark.parametrize("option", ["deadline", "heat"])
def test_options_of_a_kit_that_are_no_numbers_are_refused(
    shard_map: shardkit.ShardMap, option: Any
) -> None:
    for bad in (*NUMBERS, "x"):
        with pytest.raises((InvalidArgumentError, ConfigError), match=r"give|use"):
            shardkit.connect(shard_map, **{option: bad})
