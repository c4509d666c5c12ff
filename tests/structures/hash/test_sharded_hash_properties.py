"""Random operations on a hash in parts and on one plain HASH give the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import redis
from faces import Face
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ShardKit
from shardkit.errors import ShardErrors

FIELDS = st.one_of(
    st.integers(0, 40),
    st.integers(0, 40).map(str),
    st.sampled_from(["007", "a", "b", "c", "é", "", "12345678901234567890", "x" * 70]),
    st.integers(0, 400).map("f{}".format),
)
VALUES = st.one_of(st.integers(-1000, 1000), st.text(max_size=5), st.just("v" * 80))
SOME = st.lists(FIELDS, min_size=1, max_size=20)
# A field given as a number and as text is one field: the last value counts.
MAPPINGS = st.dictionaries(FIELDS, VALUES, min_size=1, max_size=40).map(
    lambda mapping: {str(field): value for field, value in mapping.items()}
)
# A method of redis-py and its arguments.
STEPS: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("hset"), st.tuples(st.none(), st.none(), MAPPINGS)),
    st.tuples(st.just("hsetnx"), st.tuples(FIELDS, VALUES)),
    st.tuples(st.just("hdel"), SOME),
    st.tuples(st.just("hincrby"), st.tuples(FIELDS, st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just("hincrbyfloat"), st.tuples(FIELDS, st.sampled_from([0.5, -1e300]))),
    st.tuples(st.just("hmget"), st.tuples(SOME)),
    st.tuples(st.sampled_from(["hget", "hexists", "hstrlen"]), st.tuples(FIELDS)),
    st.tuples(st.sampled_from(["hlen", "hgetall", "hkeys", "hvals"]), st.just(())),
    st.tuples(
        st.just("hscan_iter"),
        st.tuples(st.sampled_from([None, "*", "f1?", "[13]*"]), st.sampled_from([None, 1, 100])),
    ),
)
ARGUMENTS: list[dict[str, Any]] = [
    {"part_size": 4, "parts": 2},
    {"part_size": 4, "total": 20},
    {"part_size": 4, "parts": 2, "partition": "crc32"},
    {"part_size": 4, "total": 20, "partition": "crc32"},
]


def outcome(collect: Callable[[Any], Any], owner: Any, name: str, *args: Any) -> Any:
    """What a call returns, with fields as text and in one order."""
    try:
        reply = collect(getattr(owner, name)(*args))
    except (redis.ResponseError, ShardErrors) as error:
        return "overflow" if "overflow" in str(error) else "refused"
    if name in ("hgetall", "hscan_iter"):
        pairs = dict(reply)
        assert len(pairs) == len(reply)
        return {text(field): value for field, value in pairs.items()}
    return sorted(map(text, reply)) if name in ("hkeys", "hvals") else reply


def whole(client: Any) -> Iterator[tuple[str, Any]]:
    """Steps that read everything, and some fields, as they are by then."""
    yield from ((name, ()) for name in ("hgetall", "hkeys", "hvals", "hscan_iter"))
    for field in client.hkeys("plain")[:5]:
        yield from ((name, (field,)) for name in ("hget", "hexists", "hstrlen"))


def text(field: str | bytes) -> str:
    return field if isinstance(field, str) else field.decode()


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=30))
def test_a_hash_in_parts_does_what_one_hash_does(
    face: Face, kit: ShardKit, arguments: dict[str, Any], steps: list[tuple[str, Any]]
) -> None:
    client: Any = kit.client("one")
    fields = face.kit.hash("parts", component="few", **arguments)
    client.delete("plain")
    face.run(fields.delete())
    for name, args in chain(steps, whole(client)):
        streams = name == "hscan_iter"
        expected = outcome(list if streams else lambda reply: reply, client, name, "plain", *args)
        found = outcome(face.list if streams else face.run, fields, name, *args)
        assert found == expected, (name, args)
    assert face.run(fields.hlen()) == client.hlen("plain")
