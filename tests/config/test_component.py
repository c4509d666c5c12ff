"""Components: keys, names, counts, and where a key of theirs lives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from shardkit.config.component import (
    MAX_SHARDS,
    check_name,
    check_shards,
)
from shardkit.errors import InvalidEntryError


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
