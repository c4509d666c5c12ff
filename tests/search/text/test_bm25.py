"""Scores are BM25's, and the same however they are summed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_model import ModelIndex, after, page

from shardkit.search.text.bm25 import idf, impact_byte


@given(st.integers(1, 10**7), st.data())
def test_rarer_words_weigh_more(documents: int, data: st.DataObject) -> None:
    df = data.draw(st.integers(1, documents))
    weight = idf(documents, df)
    assert weight == pytest.approx(math.log(1 + (documents - df + 0.5) / (df + 0.5)), abs=1 / 1024)
    assert 0 < idf(documents, df + 1) <= weight
    assert (weight * 1024).is_integer()


def test_more_words_than_documents_count_as_all() -> None:
    assert idf(10, 11) == idf(10, 10)
    assert idf(0, 0) > 0


@given(st.floats(0, 1000), st.integers(0, 10**6))
def test_an_impact_is_a_byte_that_grows_with_the_word_and_falls_with_the_length(
    times: float, length: int
) -> None:
    byte = impact_byte(times, length)
    assert 1 <= byte <= 255
    assert impact_byte(times + 1, length) >= byte >= impact_byte(times, length + 10)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 255)), max_size=30), st.randoms())
def test_scores_do_not_depend_on_the_order_of_summing(
    words: list[tuple[int, int]], random: object
) -> None:
    parts = [idf(10**6, df) * byte for df, byte in words]
    assert sum(parts) == sum(reversed(parts)) == sum(sorted(parts)) == math.fsum(parts)


def test_the_model_finds_sorts_and_counts() -> None:
    index = ModelIndex(
        {"title": 3, "body": 1}, {"year": "number", "lang": "text", "votes": "number"}
    )
    assert index.index("a", {"title": "Redis", "body": "A fast store"}, {"year": 1990}) == 3
    index.index("b", {"body": "redis redis and fast shards"}, {"year": "x", "lang": ["en", "de"]})
    index.index("c", {"body": "A store of stores"}, {"year": 2000, "lang": "en", "votes": 5})
    assert set(index.found("redis")) == {"a", "b"}
    assert set(index.found('"fast shards" +title:redis')) == {"a", "b"}
    assert set(index.found("stor* -redis")) == {"c"}
    assert set(index.found("year:..1995")) == {"a"}  # what is no number is in no range
    assert set(index.found("* -lang:=de")) == {"a", "c"}
    assert index.found("-redis") == index.found("the") == {}
    [(high, first), (low, second)] = index.sorted("redis")
    assert (first, second) == ("a", "b")
    assert high > low > 0
    rows = index.sorted("*", "year")
    assert rows == [(2000.0, "c"), (1990.0, "a"), (0.0, "b")]
    assert index.sorted("*", "year", descending=False) == rows[::-1]
    assert index.sorted("*", "lang") == [("en", "c"), ("en", "b"), ("", "a")]
    assert page(rows, 1, 1) == after(rows, rows[0], 1) == [(1990.0, "a")]
    assert index.weighted("*", {"votes": 2, "year": 1}) == [(2010.0, "c")]
    assert index.weighted("*", {"votes": 2}, "union", 1) == [(10.0, "c"), (2.0, "b"), (2.0, "a")]
    assert index.facets("*", "lang") == {"en": 2, "de": 1}
    assert index.remove("c")
    assert not index.remove("c")
    assert set(index.found("stor*")) == {"a"}
