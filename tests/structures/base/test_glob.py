"""Patterns match what the server's SCAN matches."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardkit import ShardKit
from shardkit.errors import InvalidKeyError
from shardkit.structures.base.glob import glob_filter

LETTERS = st.text("ab-]^[\\*?\n", max_size=8)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(pattern=b"[\\", member=b"\\")
@example(pattern=b"[?-]?", member=b"?")
@example(pattern=b"**", member=b"")
@given(pattern=LETTERS.map(str.encode), member=LETTERS.map(str.encode))
def test_patterns_match_like_the_server(kit: ShardKit, pattern: bytes, member: bytes) -> None:
    client = kit.client("one")
    client.delete("members")
    client.sadd("members", member)
    _, found = client.sscan("members", match=pattern, count=10)
    assert glob_filter(pattern)(member) is bool(found), (pattern, member)


def test_a_pattern_may_be_text_or_none() -> None:
    assert glob_filter("Kö*n")("Köln".encode())
    assert glob_filter(None)(b"anything")
    with pytest.raises(InvalidKeyError, match="5 is a float; give a str, bytes or an int"):
        glob_filter(1.5)  # type: ignore[arg-type]
