from __future__ import annotations

import pytest
import redis
from hypothesis import given, strategies as st

from shardkit.cli.text import (
    masked,
    one_line,
    percent,
    printable,
    reason,
    server_list,
    shard_list,
    size,
    spans,
)
from shardkit.errors import counted
from shardkit.operations import Shard


@pytest.mark.parametrize(
    ("numbers", "written"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0,1"),
        ([0, 1, 2], "0-2"),
        ([3, 1, 2, 9], "1-3,9"),
        ([0, 4, 8, 12], "0,4,8,12"),
        (range(0, 256, 4), "0,4,…,252"),
        ([0, 1, 2, 3, 10, 20, 30, 40, 50], "0-3,10,20,…,50"),
    ],
)
def test_numbers_are_shortened(numbers: list[int], written: str) -> None:
    assert spans(numbers) == written


@given(st.sets(st.integers(0, 60)))
def test_shortened_numbers_can_be_read_back(numbers: set[int]) -> None:
    found: set[int] = set()
    for part in filter(None, spans(numbers).replace(",…,", "…").split(",")):
        if "…" in part:  # the second number stands before the dots, the first one came before it
            second, last = map(int, part.split("…"))
            first = max(n for n in found if n < second)
            found |= set(range(first, last + 1, second - first))
        elif "-" in part:
            first, last = map(int, part.split("-"))
            found |= set(range(first, last + 1))
        else:
            found.add(int(part))
    assert found == numbers


def test_shards_are_listed_by_component() -> None:
    shards = [
        Shard("unique"),
        *(Shard("unique", n) for n in range(4)),
        Shard("hits"),
        Shard("a", 1),
    ]
    assert shard_list(shards) == "unique unique:0-3 hits a:1"


def test_servers_are_listed_by_host() -> None:
    addresses = ["a:1/0", "a:2/0", "a:3/7", "a:1/3", "b:9/0", "[::1]:5/0", "unix:/run/x.sock/0"]
    assert server_list(addresses) == "a:1-3 b:9 [::1]:5 unix:/run/x.sock"


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "0B"),
        (999, "999B"),
        (1024, "1.0K"),
        (1_234_567, "1.2M"),
        (150 << 20, "150M"),
        (5 << 60, "5120P"),
    ],
)
def test_sizes_are_short(number: int, written: str) -> None:
    assert size(number) == written


def test_counts_and_shares() -> None:
    assert [counted(1, "shard"), counted(1234, "shard")] == ["1 shard", "1,234 shards"]
    assert [percent(1, 2), percent(1, 1000), percent(0, 9), percent(0, 0)] == [
        "50%",
        "<1%",
        "0%",
        "-",
    ]


@given(st.text())
def test_nothing_unprintable_reaches_the_terminal(text: str) -> None:
    assert printable(text).isprintable()
    assert one_line(text).isprintable()


def test_of_a_long_message_the_first_and_the_last_line_are_told() -> None:
    text = "it ended; its log:\none\ntwo\n  no memory \n\n"
    assert one_line(text) == "it ended; its log: … no memory"


def test_no_url_in_a_message_shows_its_password() -> None:
    said = masked("config:redis:redis://:s3cret@a:1/0 and valkeys://u:s3cret@b are missing")
    assert "s3cret" not in said
    assert "a:1/0" in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ConnectionError: Error 111 connecting to a:1. Connection refused.", "connection refused"),
        ("ConnectionError: Error -2 connecting to a:1. No such host.", "no such host"),
        ("TimeoutError: Timeout reading from socket", "no answer in time"),
        ("AuthenticationError: invalid username-password pair", "the user or password is refused"),
        ("NoPermissionError: this user has no permissions", "the user may not use this key"),
        ("ResponseError: ERR what\nis this", "ERR what is this"),
        ("RedisError: ", "RedisError"),
    ],
)
def test_reasons_are_a_few_words(error: str, said: str) -> None:
    kind, _, message = error.partition(": ")
    assert reason(getattr(redis.exceptions, kind)(message)) == said
