"""Components: keys, names, counts, and where a key of theirs lives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from shardkit import Entry
from shardkit.config.component import (
    MAX_SHARDS,
    Component,
    check_name,
    check_shards,
)
from shardkit.errors import InvalidEntryError, MissingEntryError, ShardCountError
from shardkit.operations import Shard

ENTRY = Entry({"host": "a"})
SHARDS = tuple(Entry({"host": "a", "db": n}) for n in range(1, 5))

UNSHARDED = Component("hits", ENTRY)
SHARDED = Component("unique", None, SHARDS)


@pytest.mark.parametrize("name", ["unique", "a", "A.b-c_d", "7", "a:b", "a:1b", "1:a", "a:b:c"])
def test_names_that_can_be_used(name: str) -> None:
    assert list(check_name(name, "map")) == []


@pytest.mark.parametrize(
    ("said", "name"),
    [
        *(
            ("is not a component's name", name)
            for name in ("", ":", "a:", ":a", "a::b", "a b", "a\n", "é", "a{b}", "a*", "\ud800")
        ),
        *(("is not a component's name", name) for name in (b"a", 7, None, True, ())),
        *(("is the name of a shard", name) for name in ("unique:0", "unique:16", "a:b:007")),
    ],
)
def test_names_that_cannot_be_used_are_shown_as_they_are(said: str, name: object) -> None:
    [problem] = check_name(name, "map")
    assert said in str(problem)
    assert problem.remedy
    str(problem).encode()


@given(st.one_of(st.text(), st.integers(), st.binary()))
def test_any_name_can_be_used_or_is_refused_in_words_that_can_be_printed(name: object) -> None:
    assert all(str(problem).encode() for problem in check_name(name, "map"))


@pytest.mark.parametrize(
    ("component", "number", "key"),
    [
        (SHARDED, None, "config:redis:unique"),
        (SHARDED, 4, "config:redis:unique:4"),
        (SHARDED, -1, "config:redis:unique:-1"),
        (UNSHARDED, 0, "config:redis:hits:0"),
        (Component("none"), None, "config:redis:none"),
    ],
)
def test_a_missing_entry_is_an_error_that_names_its_key(
    component: Component, number: int | None, key: str
) -> None:
    with pytest.raises(MissingEntryError, match=f"^{key} is missing") as caught:
        component.entry_of(Shard(component.name, number))
    assert caught.value.remedy


def test_another_count_of_shards_is_refused() -> None:
    SHARDED.require_shards(4)
    SHARDED.require_shards(None)
    for wrong in (3, 5, 0, -4):
        with pytest.raises(ShardCountError, match=f"has 4 shards, but this call says {wrong}"):
            SHARDED.require_shards(wrong)
    UNSHARDED.require_shards(None)
    with pytest.raises(ShardCountError, match=r"has no shards .*hits:0 is missing"):
        UNSHARDED.require_shards(4)


def test_a_cluster_shards_itself_and_serves_callers_of_any_count() -> None:
    cluster = Component("archive", Entry({"cluster": True}))
    assert [cluster.require_shards(count) for count in (None, 1, 4, 256)] == [None] * 4


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"shards": 16, "placement": "crc32", "epoch": 3}, (16, "crc32", 3)),
        ({"shards": MAX_SHARDS, "placement": "slot", "epoch": 0}, (16384, "slot", 0)),
        ({"shards": 4}, (4, "crc32", 0)),  # as other programs may write it
        ({"shards": 4.0, "placement": "slot"}, (4, "slot", 0)),
        ({"shards": 4, "epoch": 2.0}, (4, "crc32", 2)),
    ],
)
def test_counts_are_read(value: dict[str, Any], read: tuple[int, str, int]) -> None:
    assert check_shards(value, "k") == read


COUNTS = {"shards": 16, "placement": "crc32", "epoch": 1}
HIDDEN: dict[str, Any] = {"password": "hunter2"}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        *(("is not an object", each) for each in (None, [], 16, "16", "redis://:hunter2@h")),
        *(("lacks the field shards", each) for each in ({}, {"placement": "crc32", "epoch": 1})),
        *(("has the unknown field", COUNTS | each) for each in ({"more": 1}, {1: 1}, HIDDEN)),
        *(
            ("says .* shards", COUNTS | {"shards": n})
            for n in (0, -1, True, 16.5, "16", MAX_SHARDS + 1, 10**30, "redis://:hunter2@h", HIDDEN)
        ),
        *(
            ("placement", COUNTS | {"placement": p})
            for p in ("md5", "crc:md5", None, ["crc32"], HIDDEN)
        ),
        *(("says epoch", COUNTS | {"epoch": epoch}) for epoch in (-1, True, 1.5, None)),
    ],
    ids=str,
)
def test_counts_that_cannot_be_used_are_refused_with_their_key(said: str, value: Any) -> None:
    with pytest.raises(InvalidEntryError, match=rf"^config:shards:a .*({said})") as caught:
        check_shards(value, "config:shards:a")
    assert caught.value.remedy
    assert "hunter2" not in str(caught.value)
