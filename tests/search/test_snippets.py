"""Snippets show the part of a text where most of a query was found."""

from __future__ import annotations

import html
from typing import Any

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


LONG = "あ" * 300 + "東京都" + "い" * 300
THREE = "red green blue"
PAGE: dict[str, Any] = {"mark": ("<em>", "</em>"), "escape": html.escape}


@pytest.mark.parametrize(
    ("text", "asked", "options", "shown"),
    [
        (
            TEXT,
            "redis cluster shard*",
            {"length": 60},
            "…along please; A **sharded** **Redis** **cluster** keeps serving the…",
        ),
        (
            "State of the art: the art, the state.",
            '"state art"',
            {},
            "**State of the art**: the art, the state.",
        ),
        ("私は東京都に住む", "東京都", {}, "私は**東京都**に住む"),
        (LONG, "東京都", {"length": 20}, f"…{'あ' * 8}**東京都**{'い' * 9}…"),
        ("私は東京都に住む", "東京 京都", {}, "私は**東京都**に住む"),
        (
            "red green blue red",
            '"red green" "green blue" red',
            {},
            "**red green blue** **red**",
        ),
        (TEXT, "absent", {"length": 30}, "One redis here. nothing to see…"),
        ("short", "absent", {}, "short"),
        ("", "absent", {}, ""),
        (THREE, "red -green", {}, "**red** green blue"),
        (THREE, "title:red body:green blue", {"field": "body"}, "red **green** **blue**"),
        ("if a<b & redis>c", "redis", PAGE, "if a&lt;b &amp; <em>redis</em>&gt;c"),
        ("a redis", "redis", {"mark": str.upper}, "a REDIS"),
    ],
)
def test_what_was_asked_for_is_marked_in_the_best_window(
    text: str, asked: str, options: dict[str, Any], shown: str
) -> None:
    assert snippet(text, query(asked), ANALYZER, **options) == shown


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
