"""Scores are BM25's, and the same however they are summed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from shardkit.search.schema import idf, impact_byte


@given(st.integers(1, 10**7), st.data())
def test_rarer_words_weigh_more(documents: int, data: st.DataObject) -> None:
    df = data.draw(st.integers(1, documents))
    weight = idf(documents, df)
    assert weight == pytest.approx(math.log(1 + (documents - df + 0.5) / (df + 0.5)), abs=1 / 1024)
    assert 0 < idf(documents, df + 1) <= weight
    assert (weight * 1024).is_integer()


@given(st.floats(0, 1000), st.integers(0, 10**6))
def test_an_impact_is_a_byte_that_grows_with_the_word_and_falls_with_the_length(
    times: float, length: int
) -> None:
    byte = impact_byte(times, length)
    assert 1 <= byte <= 255
    assert impact_byte(times + 1, length) >= byte >= impact_byte(times, length + 10)
