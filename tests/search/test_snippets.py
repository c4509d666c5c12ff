"""Snippets show the part of a text where most of a query was found."""

from __future__ import annotations

import html

import pytest
from hypothesis import given, strategies as st

from shardkit.errors import InvalidArgumentError
from shardkit.search import Analyzer, Node, Unicode, analyze, parse, snippet

ANALYZER = Analyzer()
FILLER = "nothing to see here, move along please; " * 10
BEST = "A sharded   Redis\ncluster keeps serving the state of the art. "
TEXT = f"One redis here. {FILLER}{BEST}{FILLER}"


def query(text: str, analyzer: Analyzer = ANALYZER) -> Node:
    return analyze(parse(text, {"title", "body"}), analyzer)


def test_the_window_shows_most_different_words() -> None:
    assert snippet(TEXT, query("redis cluster shard*"), ANALYZER, length=60) == (
        "…along please; A **sharded** **Redis** **cluster** keeps serving the…"
    )


def test_a_phrase_is_marked_as_a_whole_and_its_words_alone_are_not() -> None:
    text = "State of the art: the art, the state."
    assert (
        snippet(text, query('"state art"'), ANALYZER) == "**State of the art**: the art, the state."
    )


def test_a_phrase_is_found_wherever_it_stands_in_a_long_text() -> None:
    for filler in range(380, 420):
        text = "x" * filler + " red green " + "naïve y " * 200
        found = snippet(text, query('"red green naive"'), ANALYZER, length=40)
        assert "**red green naïve**" in found


def test_stems_are_found_in_all_forms() -> None:
    analyzer = Analyzer(stemmer="english")
    assert snippet("He searches. Searched!", query("searching", analyzer), analyzer) == (
        "He **searches**. **Searched**!"
    )


def test_snippets_keep_the_original_spelling() -> None:
    assert snippet("Ein naïver ﬁne Weg", query("naiver fine"), ANALYZER) == (
        "Ein **naïver** **ﬁne** Weg"
    )


def test_pairs_of_characters_are_marked_together() -> None:
    assert snippet("私は東京都に住む", query("東京都"), ANALYZER) == "私は**東京都**に住む"
    text = "あ" * 300 + "東京都" + "い" * 300
    found = snippet(text, query("東京都"), ANALYZER, length=20)
    assert found == f"…{'あ' * 8}**東京都**{'い' * 9}…"


def test_overlapping_matches_are_marked_together() -> None:
    assert snippet("私は東京都に住む", query("東京 京都"), ANALYZER) == "私は**東京都**に住む"
    text = "red green blue red"
    asked = query('"red green" "green blue" red')
    assert snippet(text, asked, ANALYZER) == "**red green blue** **red**"


def test_nothing_found_shows_the_beginning() -> None:
    assert snippet(TEXT, query("absent"), ANALYZER, length=30) == "One redis here. nothing to see…"
    assert snippet("short", query("absent"), ANALYZER) == "short"
    assert snippet("", query("absent"), ANALYZER) == ""


def test_unwanted_words_and_those_of_other_fields_are_not_marked() -> None:
    text = "red green blue"
    assert snippet(text, query("red -green"), ANALYZER) == "**red** green blue"
    asked = query("title:red body:green blue")
    assert snippet(text, asked, ANALYZER, field="body") == "red **green** **blue**"


def test_a_page_gets_escaped_text_and_its_own_marks() -> None:
    found = snippet(
        "if a<b & redis>c", query("redis"), ANALYZER, mark=("<em>", "</em>"), escape=html.escape
    )
    assert found == "if a&lt;b &amp; <em>redis</em>&gt;c"
    assert snippet("a redis", query("redis"), ANALYZER, mark=str.upper) == "a REDIS"


def test_a_phrase_longer_than_the_snippet_is_cut() -> None:
    words = "alpha bravo charlie delta echo foxtrot"
    found = snippet(words, query(f'"{words}"'), ANALYZER, length=20)
    assert found == "**alpha bravo charlie**…"


@pytest.mark.parametrize("length", [19, 10_001, 30.0])
def test_a_length_out_of_range_is_refused(length: int) -> None:
    assert snippet("a b", query("a"), ANALYZER, length=10_000)
    with pytest.raises(InvalidArgumentError, match="length"):
        snippet(TEXT, query("a"), ANALYZER, length=length)


WORDS = st.lists(st.sampled_from(["red", "green", "blue", "the", "x-ray", "東京都", "é,", "\n"]))


@given(
    WORDS, st.integers(20, 60), st.sampled_from(["red", '"red blue"', "gr* 東京", "x-ray é red"])
)
def test_a_snippet_is_a_part_of_the_text_with_marks(
    words: list[str], length: int, asked: str
) -> None:
    text = " ".join(words)
    found = snippet(text, query(asked), ANALYZER, length=length, mark=("[", "]"))
    inner = found.strip("…").replace("[", "").replace("]", "")
    assert len(inner) <= length
    assert " ".join(inner.split()) in " ".join(text.split())
    assert found.count("[") == found.count("]")
    marked = {
        word for piece in found.split("[")[1:] for word in Unicode().words(piece.split("]")[0])
    }
    assert marked <= {"red", "blue", "green", "the", "x", "ray", "e", "東京", "京都"}
    if asked == "red" and "red" in words:
        assert "[red]" in found
