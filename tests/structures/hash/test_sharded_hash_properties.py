"""Random operations on a hash in parts and on one plain HASH give the same."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardkit
from shardkit import ShardMap
from shardkit.errors import ShardErrors

FIELDS = st.one_of(
    st.integers(0, 40),
    st.integers(0, 40).map(str),
    st.sampled_from(["007", "a", "b", "c", "é", "", "12345678901234567890", "x" * 70]),
    st.integers(0, 400).map("f{}".format),
)
VALUES = st.one_of(st.integers(-1000, 1000), st.text(max_size=5), st.just("v" * 80))
STEPS = st.one_of(
    st.tuples(st.just("hset"), st.dictionaries(FIELDS, VALUES, min_size=1, max_size=40)),
    st.tuples(st.just("hsetnx"), FIELDS, VALUES),
    st.tuples(st.just("hdel"), st.lists(FIELDS, min_size=1, max_size=20)),
    st.tuples(st.just("hincrby"), FIELDS, st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("hmget"), st.lists(FIELDS, min_size=1, max_size=20)),
    st.tuples(st.just("hexists"), FIELDS),
    st.tuples(st.just("hlen")),
    st.tuples(st.just("hgetall")),
)
ARGUMENTS: list[dict[str, Any]] = [
    {"part_size": 4, "groups": 2},
    {"part_size": 4, "total": 20},
    {"part_size": 4, "groups": 2, "partition": "crc32"},
]


def given_as_one(step: tuple[Any, ...]) -> tuple[Any, ...]:
    """A field given as a number and as text is one field: the last value counts."""
    if step[0] == "hset":
        return ("hset", {str(field): value for field, value in step[1].items()})
    return step


def outcome(call: Any) -> Any:
    try:
        return call()
    except (redis.ResponseError, ShardErrors) as error:
        return "overflow" if "overflow" in str(error) else "refused"


def plainly(client: redis.Redis, step: tuple[Any, ...]) -> Any:
    name, *args = step
    if name == "hset":
        return client.hset("plain", mapping=args[0])
    if name in ("hdel", "hmget"):
        return getattr(client, name)("plain", *([args[0]] if name == "hmget" else args[0]))
    reply = getattr(client, name)("plain", *args)
    if name == "hgetall":
        return {field.decode(): value for field, value in reply.items()}
    return reply


def in_parts(fields: Any, step: tuple[Any, ...]) -> Any:
    name, *args = step
    if name == "hset":
        return fields.hset(mapping=args[0])
    if name in ("hdel", "hmget"):
        return getattr(fields, name)(*args[0])
    if name == "hgetall":
        return fields.hgetall()
    return getattr(fields, name)(*args)


@pytest.mark.parametrize("arguments", ARGUMENTS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=30))
def test_a_hash_in_parts_does_what_one_hash_does(
    shard_map: ShardMap, arguments: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    with shardkit.connect(shard_map) as kit:
        fields = kit.hash("parts", component="few", **arguments)
        client = kit.client("one")
        assert isinstance(client, redis.Redis)
        client.delete("plain")
        fields.delete()
        for step in map(given_as_one, steps):
            expected = outcome(lambda step=step: plainly(client, step))
            assert outcome(lambda step=step: in_parts(fields, step)) == expected, step
        assert fields.hgetall() == plainly(client, ("hgetall",))
        assert fields.hlen() == client.hlen("plain")
