"""Texts become index terms, and queries the normal form that an index executes."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from search_model import all_of, any_of, trees

from shardkit.errors import InvalidArgumentError
from shardkit.search import (
    AllOf,
    Analyzer,
    AnyOf,
    English,
    Equal,
    Everything,
    Node,
    Not,
    Nothing,
    Phrase,
    Prefix,
    Range,
    Tokenizer,
    Unicode,
    Word,
    analyze,
    parse,
    snippet,
)

PLAIN = Analyzer()
TEXTS = st.text(max_size=40) | st.text("aé'\u2019Eo ́ß日本カｶﾞ한ไทย½ﬁİ-_3²", max_size=30)


# Words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't re-read snake_case 1990s", ["don't", "re", "read", "snake", "case", "1990s"]),
        ("rock 'n' roll \u2019tis", ["rock", "n", "roll", "tis"]),
        (
            "Don\u2019t naïve Ærøskøbing Łódź ÉCOLE",
            ["don't", "naive", "aeroskobing", "lodz", "ecole"],
        ),
        (
            "STRASSE Straße İstanbul ﬁne x² \uff21\uff22\uff23",
            ["strasse"] * 2 + ["istanbul", "fine", "x2", "abc"],
        ),
        ("co\u00adoperate nai\u0308ve", ["cooperate", "naive"]),
        ("\u3280\u3281 x\u3280 \u3192", ["一二", "x", "一", "一"]),  # circled characters, a mark
        ("Αθήνα Ёлка", ["αθηνα", "елка"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("東京都 は 日本。第3章", ["東京", "京都", "は", "日本", "第", "3", "章"]),
        ("ｶﾞｷﾞ がぎ 한국어", ["ガギ", "がぎ", "한국", "국어"]),
        ("ไทย Python入門", ["ไท", "ทย", "python", "入門"]),
        ("½ cup", ["1", "2", "cup"]),
        ("", []),
        ("-- !? 🙂", []),
    ],
)
def test_words_of_any_script_are_found(text: str, words: list[str]) -> None:
    assert Unicode().words(text) == words
    assert [token.term for token in Unicode().spans(text)] == words


def test_accents_can_make_a_difference() -> None:
    assert Unicode(fold_accents=False).words("Naïve NAÏVE naive") == ["naïve", "naïve", "naive"]
    assert Unicode(fold_accents=False).words("nai\u0308ve") == ["naïve"]


def test_english_words_are_runs_of_letters_and_apostrophes() -> None:
    text = "Don't 'quote' a naïve I/O x 1990s Ünï"
    assert English().words(text) == ["don't", "quote", "na", "ve"]
    assert [text[t.start : t.end] for t in English().spans(text)] == ["Don't", "quote", "na", "ve"]
    assert [token.term for token in English().beginnings("a")] == ["a"]


@pytest.mark.parametrize("tokenizer", [Unicode(), Unicode(fold_accents=False), English()])
@given(text=TEXTS)
@example("ŉ")
@example("ﷺ")
def test_places_are_in_order_and_terms_are_their_own_words(tokenizer: Tokenizer, text: str) -> None:
    tokens = list(tokenizer.spans(text))
    assert [token.term for token in tokens] == tokenizer.words(text)
    assert all(0 <= token.start < token.end <= len(text) for token in tokens)
    assert all(a.start <= b.start and a.end <= b.end for a, b in pairwise(tokens))
    for token in tokens:
        assert tokenizer.words(token.term) == [token.term]
        # What stands there is that word, alone or with others of the same place.
        assert token.term in tokenizer.words(text[token.start : token.end])


# Terms


def test_stop_words_are_left_out_and_leave_no_gap() -> None:
    assert PLAIN.terms("The state of the art") == ["state", "art"]
    assert [token.term for token in PLAIN.spans("The state of the art")] == ["state", "art"]


@pytest.mark.parametrize("stop_words", ["english", {"two words"}])
def test_stop_words_that_are_no_words_are_refused(stop_words: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="stop"):
        Analyzer(stop_words=stop_words)


def test_stems_stand_for_words_in_their_forms() -> None:
    analyzer = Analyzer(stemmer="english")
    assert analyzer.terms("Searching searched searches") == ["search"] * 3
    text = "He searches"
    assert [(t.term, text[t.start : t.end]) for t in analyzer.spans(text)] == [
        ("search", "searches")
    ]
    assert Analyzer(stemmer="german").terms("Häuser Hauses") == ["haus", "haus"]


def test_an_unknown_stemmer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match=r"stemmer='klingon'; give one of .*english"):
        Analyzer(stemmer="klingon")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    with pytest.raises(InvalidArgumentError, match=r"shardkit\[search\]"):
        Analyzer(stemmer="swedish")  # which no other test has loaded


def test_long_terms_are_cut() -> None:
    assert PLAIN.terms("x" * 1000) == ["x" * 64]
    assert analyze(Prefix("x" * 1000), PLAIN) == Prefix("x" * 64)


# Queries


A, B, C, THE = Word("aa"), Word("bb"), Word("cc"), Word("the")
YEAR, LANG, ALL = Range("year", 1990.0, 2000.0), Equal("lang", "en"), Everything()


@pytest.mark.parametrize(
    ("query", "result"),
    [
        (Word("Naïve", "title"), Word("naive", "title")),
        (Word("re-read"), Phrase(("re", "read"))),
        (Word("東京都"), Phrase(("東京", "京都"))),
        (Phrase(("State", "of", "the", "Art")), Phrase(("state", "art"))),
        (Phrase(("the", "art")), Word("art")),
        (Prefix("Inter", "title"), Prefix("inter", "title")),
        (Prefix("the"), Prefix("the")),
        (Prefix("foo-bar"), all_of(Word("foo"), Prefix("bar"))),
        (Prefix("the-bar"), Prefix("bar")),
        (Prefix("東"), Prefix("東")),
        (Prefix("東京都"), Phrase(("東京", "京都"))),
        (THE, Nothing()),
        (Word("!?"), Nothing()),
        (Prefix("!?"), Nothing()),
        (all_of(), Nothing()),
        (any_of(), Nothing()),
        (all_of(THE, A), A),
        (all_of(THE, YEAR), all_of(ALL, YEAR)),
        (any_of(THE, A), A),
        (all_of(A, any_of(THE, Word("of"))), A),
        (all_of(A, Not(THE)), A),
        (Not(A), Nothing()),
        (all_of(Not(A), Not(B)), Nothing()),
        (all_of(THE, Not(A)), Nothing()),
        (all_of(A, all_of(Not(B), Not(C))), all_of(A, Not(B), Not(C))),
        (all_of(A, Not(all_of(Not(B), Not(C)))), A),
        (all_of(A, Not(ALL)), Nothing()),
        (all_of(A, Nothing()), Nothing()),
        (all_of(A, all_of()), Nothing()),
        (all_of(ALL, Not(A)), all_of(ALL, Not(A))),
        (all_of(A, ALL), A),
        (ALL, ALL),
        (YEAR, all_of(ALL, YEAR)),
        (all_of(YEAR, LANG), all_of(ALL, YEAR, LANG)),
        (all_of(YEAR, Not(LANG)), all_of(ALL, YEAR, Not(LANG))),
        (all_of(A, all_of(YEAR)), all_of(A, YEAR)),
        (any_of(A, YEAR), any_of(A, all_of(ALL, YEAR))),
        (any_of(A, Not(B)), A),
        (any_of(Not(B)), Nothing()),
        (all_of(A, Not(any_of(LANG))), all_of(A, Not(LANG))),
        (all_of(C, A, B, A), all_of(A, B, C)),
        (any_of(B, any_of(A, B)), any_of(A, B)),
        (all_of(Not(C), LANG, YEAR, any_of(B, A), A), all_of(A, any_of(A, B), YEAR, LANG, Not(C))),
    ],
)
def test_a_query_has_one_normal_form(query: Node, result: Node) -> None:
    assert analyze(query, PLAIN) == result


DAY = 86_400.0
JAN_1 = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given_", "low", "high"),
    [
        (Range("d", date(2020, 1, 1), date(2020, 1, 1)), (0, False), (DAY, True)),
        (Range("d", date(2020, 1, 1), None, open_low=True), (DAY, False), (None, False)),
        (Range("d", None, date(2020, 1, 1), open_high=True), (None, False), (0, True)),
        (Range("d", JAN_1, JAN_1, open_low=True), (0, True), (0, False)),
    ],
)
def test_dates_become_seconds_and_last_until_their_end(
    given_: Range, low: tuple[float | None, bool], high: tuple[float | None, bool]
) -> None:
    found = analyze(given_, PLAIN)
    assert isinstance(found, AllOf)
    year = found.parts[1]
    assert isinstance(year, Range)
    base = JAN_1.timestamp()
    bounds = [None if bound is None else bound + base for bound in (low[0], high[0])]
    assert [year.low, year.high] == bounds
    assert (year.open_low, year.open_high) == (low[1], high[1])


@pytest.mark.parametrize("bound", ["1990", float("nan"), True, datetime(2020, 1, 1)])
def test_bounds_that_are_no_numbers_or_dates_are_refused(bound: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"(low=.*; give a number|year: bound.*; give a datetime)"
    ):
        analyze(Range("year", bound), PLAIN)


TREES = trees(
    st.sampled_from([A, B, C, THE, YEAR, LANG, ALL, Nothing(), Prefix("b"), Word("re-read")])
)


def in_form(node: Node) -> bool:
    """Whether a part of a tree is as `analyze` promises."""
    match node:
        case AllOf(parts):
            based = any(not isinstance(part, Range | Equal | Not | AllOf) for part in parts)
            return len(set(parts)) == len(parts) > 1 and based and all(map(in_form_within, parts))
        case AnyOf(parts):
            return len(set(parts)) == len(parts) > 1 and all(
                in_form(part) and not isinstance(part, AnyOf) for part in parts
            )
        case _:
            return not isinstance(node, Range | Equal | Not | Nothing)


def in_form_within(node: Node) -> bool:
    inner = node.part if isinstance(node, Not) else node
    return isinstance(inner, Range | Equal) or (
        in_form(inner) and (inner is not node or not isinstance(inner, AllOf))
    )


@given(TREES)
def test_analyzing_a_query_again_does_not_change_it(tree: Node) -> None:
    found = analyze(tree, PLAIN)
    assert found == Nothing() or in_form(found)
    assert analyze(found, PLAIN) == found


@given(
    TREES.filter(lambda tree: THE not in leaves(tree)),
    st.sets(st.sampled_from(["aa", "bb", "cc", "re read", "year", "lang"])),
)
@example(all_of(A, Not(all_of(Not(B), Not(C)))), {"aa"})
@example(all_of(Not(Nothing())), set())
def test_the_form_matches_what_the_query_says(tree: Node, document: set[str]) -> None:
    assert matches(analyze(tree, PLAIN), document) is says(tree, document)


def says(node: Node, document: set[str]) -> bool:
    """Whether a document matches a query as it was given, by the definitions."""
    match node:
        case AllOf(parts):
            each = list(flattened(parts))
            return any(not isinstance(part, Not) for part in each) and all(
                says(part.part, document) is False
                if isinstance(part, Not)
                else says(part, document)
                for part in each
            )
        case AnyOf(parts):
            return any(says(part, document) for part in parts)
        case Not():
            return False
        case Word("re-read"):
            return "re read" in document
        case _:
            return matches(node, document)


def flattened(parts: tuple[Node, ...]) -> Iterator[Node]:
    for part in parts:
        if isinstance(part, AllOf) and part.parts:
            yield from flattened(part.parts)
        else:
            yield part


def leaves(node: Node) -> Iterator[Node]:
    match node:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from leaves(part)
        case Not(part):
            yield from leaves(part)
        case _:
            yield node


def matches(node: Node, document: set[str]) -> bool:
    match node:
        case Word(text):
            return text in document
        case Phrase(words):
            return " ".join(words) in document
        case Prefix(text):
            return any(word.startswith(text) for word in document - {"year", "lang"})
        case Range(name) | Equal(name):
            return name in document
        case AllOf(parts):
            return all(
                not matches(part.part, document)
                if isinstance(part, Not)
                else matches(part, document)
                for part in parts
            )
        case AnyOf(parts):
            return any(matches(part, document) for part in parts)
        case _:
            return node == ALL


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
