"""Codecs that compress each value by itself."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.structures import WholeValue, codec, compare_codecs

TEXT = codec("text")
PAGE = "<li>an entry of a cached page</li>" * 300


@pytest.fixture(params=["gzip", "bz2", "lz4"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "lz4":
        pytest.importorskip("lz4.frame")
    return str(request.param)


@given(st.text(), st.sampled_from(["gzip", "bz2"]))
def test_what_was_encoded_comes_back(text: str, name: str) -> None:
    one = codec(f"{name}-text")
    assert one.decode(one.encode(text)) == text
    assert len(one.encode(text)) <= len(text.encode()) + 1


def test_large_values_become_a_tenth_and_small_ones_no_longer(name: str) -> None:
    one = codec(name)
    assert one.name == f"{name}-json"
    assert len(one.encode([PAGE])) < len(PAGE) / 10
    assert one.encode("ab") == b'\0"ab"'
    assert one.decode(one.encode([PAGE, 5])) == [PAGE, 5]


def test_stored_bytes_that_are_damaged_are_refused(name: str) -> None:
    one = codec(name)
    stored = one.encode(PAGE)
    for damaged in (b"", b"\2" + stored[1:], stored[:20], b"\1" + b"x" * 40, stored[:-3]):
        with pytest.raises(
            StructureError,
            match=f"cannot be read as {name}-json; write it again",
        ):
            one.decode(damaged)


def test_a_hash_holds_values_compressed_so(kit: ShardKit, name: str) -> None:
    pages = kit.hash("pages", component="one", codec=f"{name}-text")
    pages.hset("home", PAGE)
    again = kit.hash("pages", component="one", codec=f"{name}-text")
    assert again.hget("home") == PAGE
    [key] = list(kit.client("one").scan_iter("pages:*:0"))
    assert len(kit.client("one").hget(key, "home") or b"") < 1_000


def test_lz4_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(
        InvalidArgumentError,
        match=r"need lz4, which is not installed; pip install 'shardkit\[codecs\]'",
    ):
        codec("lz4")


def test_codecs_are_measured_on_the_callers_values() -> None:
    values: list[Any] = [PAGE[:n] for n in range(1_000, 1_100)]
    results = compare_codecs(values, [TEXT, WholeValue("gzip", TEXT), codec("bz2-text")])
    assert [result.name for result in results][-1] == "text"
    assert results[-1].size == sum(range(1_000, 1_100)) / 100
    assert all(result.encode > 0 and result.decode > 0 for result in results)
    with pytest.raises(InvalidArgumentError, match="no values"):
        compare_codecs([], [TEXT])
    with pytest.raises(InvalidArgumentError, match="compressor='rar'"):
        WholeValue("rar", TEXT)
