from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from shardkit import Entry
from shardkit.admin.locate import why
from shardkit.config.component import Component
from shardkit.routing.placement import slot_of

PLACEMENTS = ["crc32", "slot", "rendezvous", "redis-in-action", "crc:crc-64", "crc:xmodem"]


def component(placement: str, count: int) -> Component:
    shards = tuple(Entry({"host": "a", "db": n}) for n in range(count))
    return Component("unique", None, shards, placement)


@given(key=st.binary(), placement=st.sampled_from(PLACEMENTS), count=st.integers(1, 20))
def test_what_is_told_is_what_the_placement_does(key: bytes, placement: str, count: int) -> None:
    described = component(placement, count)
    told = why(described, key)
    assert told.number == described.place(key)
    assert told.hash is not None
    if placement.startswith(("crc", "redis")):
        assert told.hash % count == told.number
        assert told.text.endswith(f"= {told.hash}, mod {count} = {told.number}")
    if placement == "slot":
        assert told.hash == slot_of(key)


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        ("crc32", "tag user:7: crc32 = 2462476215, mod 16 = 7"),
        ("redis-in-action", "crc32 of x and the key = 3810047967, mod 16 = 15"),
    ],
)
def test_a_hash_tag_is_told(placement: str, text: str) -> None:
    told = why(component(placement, 16), "{user:7}:a")
    assert told.text == text
    assert told.is_tag == (placement == "crc32")


def test_a_component_that_is_not_sharded_has_nothing_to_explain() -> None:
    told = why(Component("hits", Entry({"host": "a"})), "key")
    assert (told.number, told.hash, told.text) == (None, None, "not sharded")
