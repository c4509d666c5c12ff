"""Partition: parts of a structure, in range and the same for every spelling of a member."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given, strategies as st

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.routing.placement import PARTITIONS, part_count, partition

sizes = st.integers(1, 2**40)


@given(st.sampled_from(PARTITIONS), sizes, sizes, st.integers())
def test_an_integer_its_digits_and_their_bytes_have_one_part(
    name: str, total: int, part_size: int, member: int
) -> None:
    part = partition(name, total, part_size)
    assert part(member) == part(str(member)) == part(str(member).encode())


@pytest.mark.parametrize("member", [-5, "-5", "²", "\u0661", "1 ", "", "1.0", "4a", b"\xff"])
def test_what_is_not_ascii_digits_alone_is_hashed(member: str | bytes | int) -> None:
    data = member if isinstance(member, bytes) else str(member).encode()
    assert partition("digits", 2000, 50)(member) == crc32(data) % 80


def test_leading_zeros_do_not_change_a_part() -> None:
    part = partition("digits", 2000, 5)
    assert part("010") == part("10") == part(10) == 2


@pytest.mark.parametrize("value", [0, -1, True, None, 1.5, "12"])
def test_totals_and_sizes_that_are_no_positive_integers_are_refused(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="total="):
        part_count(value, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="part_size="):
        partition("crc32", 1, value)  # type: ignore[arg-type]


def test_an_unknown_partition_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match=r"md5.*digits"):
        partition("md5", 1, 1)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("member", [True, None, 1.5, "\ud800"])
def test_what_is_no_key_is_no_member(name: str, member: object) -> None:
    with pytest.raises(
        InvalidKeyError, match=r"give a str, bytes or an int|cannot be encoded as UTF-8"
    ):
        partition(name, 2000, 50)(member)  # type: ignore[arg-type]
