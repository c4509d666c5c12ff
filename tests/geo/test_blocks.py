"""Ranges in blocks, found again: pure, without a server."""

from __future__ import annotations

from ipaddress import ip_address
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from geo_helpers import city, expected, some_ranges, telling_points
from hypothesis import given, settings, strategies as st

from shardkit.errors import DamagedDataError, InvalidArgumentError, StructureError
from shardkit.geo import City, IpRange, LocalCities, SkippedLine
from shardkit.geo.block_store import Generation, Generations, RangeTables
from shardkit.geo.blocks import (
    IPV4_LEVELS,
    IPV6_LEVELS,
    LEVELS,
    NO_CITY,
    WHOLE,
    blocks,
    search,
)
from shardkit.geo.readers import IPV4, IPV6, SKIPPED_SHOWN, ImportInput

Stored = dict[tuple[int, int, int], bytes]


def stored(ranges: list[tuple[int, int, int]]) -> Stored:
    made = list(blocks(ranges))
    found = {(block.level, block.bucket, block.page): block.content for block in made}
    assert len(found) == len(made)
    return found


def find(store: Stored, at: int) -> int | None:
    """Look into all blocks that an address may be in; it is in one at most."""
    hits = []
    for level in IPV4_LEVELS if at < IPV4 else IPV6_LEVELS:
        bucket, offset = level.place(at)
        content = store.get((level.number, bucket, WHOLE))
        if content is not None:
            page, number = search(level, content, offset)
            if page is not None:
                page, number = search(level, store[level.number, bucket, page], offset)
                assert page is None
            if number != NO_CITY:
                hits.append(number)
    assert len(hits) <= 1
    return hits[0] if hits else None


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([1, 4, 40]), st.sampled_from([3, 10**6]))
def test_every_address_is_in_the_narrowest_of_its_ranges(
    seed: int, count: int, in_memory: int
) -> None:
    random = Random(seed)
    items = some_ranges(random, count)
    intake = ImportInput(items, in_memory)
    numbers: list[City] = [place for _, place in intake.cities()]
    ranges = list(intake.ranges())
    intake.close()
    assert intake.read == count
    assert all(a[1] < b[0] for a, b in pairwise(ranges))
    store = stored(ranges)
    tables = RangeTables(len(numbers))
    for (level, bucket, _), content in store.items():
        tables.add(level, bucket, content)
    local = LocalCities(Generation(1, 0, len(numbers), 0, (), 0), tables, numbers)
    for at in telling_points(items, random):
        number = find(store, at)
        wanted = expected(items, at)
        assert (None if number is None else numbers[number]) == wanted
        address = at.to_bytes(4, "big") if at < IPV4 else (at - IPV6).to_bytes(16, "big")
        assert local.find(ip_address(address)) == wanted


@pytest.mark.parametrize("content", [b"", b"\2", b"\0\0", b"\0" * 9, b"garbage"])
def test_bytes_that_are_no_block_are_an_error(content: bytes) -> None:
    with pytest.raises(StructureError, match="cannot be read"):
        search(LEVELS[0], content, 0)


@pytest.mark.parametrize("stored", [b"", b"[]", b"{}", b'{"number": 1}', b'{"levels": 5}'])
def test_what_is_no_generation_is_an_error(stored: bytes) -> None:
    with pytest.raises(DamagedDataError, match="where a generation was expected"):
        Generations("geo", "ip2city").parse(stored)


def test_cities_are_numbered_once_up_to_the_most_and_skipped_lines_are_shown_up_to_some(
    lower: Any,
) -> None:
    bonn, other = city(7), city(8)
    intake = ImportInput([IpRange.of("1.0.0.0/24", city=bonn), bonn, bonn, other])
    assert list(intake.cities()) == [(0, bonn), (0, bonn), (1, other)]  # again with its id
    assert intake.numbered == 2
    skipped = [SkippedLine(n, "x") for n in range(SKIPPED_SHOWN + 2)]
    intake = ImportInput(skipped)
    assert list(intake.cities()) == list(intake.ranges()) == []
    assert (intake.skipped, intake.first_skipped) == (len(skipped), skipped[:SKIPPED_SHOWN])
    lower(most_cities=2)
    with pytest.raises(InvalidArgumentError, match="more than 2 cities; leave some out"):
        list(ImportInput(map(city, range(3))).cities())
