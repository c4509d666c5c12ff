"""Queries are parsed, unparsed, and refused with the position of the mistake."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from faces import Face
from hypothesis import example, given, strategies as st
from search_model import all_of, any_of, trees

from shardkit.errors import InvalidArgumentError, QuerySyntaxError
from shardkit.search import (
    AllOf,
    Analyzer,
    Equal,
    Everything,
    Node,
    Not,
    Nothing,
    Phrase,
    Prefix,
    Range,
    Word,
    analyze,
    parse,
    quote,
    unparse,
)

FIELDS = {"title", "body"}
ATTRIBUTES = {
    "year": "number",
    "created": "date",
    "lang": "text",
    "title": "text",
    "body": "number",
}
NOON = datetime(2020, 1, 31, 12, tzinfo=UTC)


def read(text: str) -> Node:
    return parse(text, FIELDS, ATTRIBUTES)


A, B, C = Word("a"), Word("b"), Word("c")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", A),
        ("  a\n b ", all_of(A, B)),
        ("a +b +c", any_of(A, B, C)),
        ("a +b c", all_of(any_of(A, B), C)),
        ("a -b", all_of(A, Not(B))),
        ("-a", Not(A)),
        (
            '-"a b" -title:c -a*',
            all_of(Not(Phrase(("a", "b"))), Not(Word("c", "title")), Not(Prefix("a"))),
        ),
        ('"a  b"', Phrase(("a", "b"))),
        ('"a"', A),
        ("title:a", Word("a", "title")),
        ('title:"a b"', Phrase(("a", "b"), "title")),
        ("title:a*", Prefix("a", "title")),
        ("a*", Prefix("a")),
        ('"a b"*', Prefix("a b")),
        ("(a b) +c", any_of(all_of(A, B), C)),
        ("a +(b c)", any_of(A, all_of(B, C))),
        ("-(a +b)", Not(any_of(A, B))),
        ("((a))", A),
        ("*", Everything()),
        ("* -a", all_of(Everything(), Not(A))),
        ("", Nothing()),
        (" \t", Nothing()),
        ("a ()", all_of(A, Nothing())),
        (
            "foo-bar c++ a+b don't 12:30 :x",
            AllOf(tuple(map(Word, ["foo-bar", "c++", "a+b", "don't", "12:30", ":x"]))),
        ),
        ('"-a"', Word("-a")),
        ('"http://a"', Word("http://a")),
        (r'"say \"a\" \\"', Phrase(("say", '"a"', "\\"))),
        ("naïve 東京都 -ё", all_of(Word("naïve"), Word("東京都"), Not(Word("ё")))),
    ],
)
def test_words_phrases_and_signs_are_read(text: str, tree: Node) -> None:
    assert read(text) == tree


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("year:1990..2000", Range("year", 1990, 2000)),
        ("year:..10", Range("year", high=10)),
        ("year:10..", Range("year", low=10)),
        ("year:..", Range("year")),
        ("year:>=5", Range("year", low=5)),
        ("year:>5", Range("year", low=5, open_low=True)),
        ("year:<=5", Range("year", high=5)),
        ("year:<5", Range("year", high=5, open_high=True)),
        ("year:>1..<2", Range("year", 1, 2, open_low=True, open_high=True)),
        ("year:>=1..<=2", Range("year", 1, 2)),
        ("year:7", Range("year", 7, 7)),
        ("year:=-2.5e3", Range("year", -2500, -2500)),
        ("year:-inf..+inf", Range("year", float("-inf"), float("inf"))),
        ("created:2020-01-31", Range("created", date(2020, 1, 31), date(2020, 1, 31))),
        ("created:2020-01-01..2020-12-31", Range("created", date(2020, 1, 1), date(2020, 12, 31))),
        ("created:>=2020-01-31T12:00", Range("created", low=NOON)),
        ("created:<2020-01-31T14:00+02:00", Range("created", high=NOON, open_high=True)),
        ("created:2020-01-31T12:00Z..", Range("created", low=NOON)),
        ("lang:=en", Equal("lang", "en")),
        ("lang:en", Equal("lang", "en")),
        ('lang:="en gb"', Equal("lang", "en gb")),
        ('lang:=""', Equal("lang", "")),
        ('lang:"<b>"', Equal("lang", "<b>")),
        ("title:=a", Equal("title", "a")),  # an attribute beside the field of the same name
        ("body:1", Word("1", "body")),
        ("body:1..2", Range("body", 1, 2)),
        ('body:"1..2"', Word("1..2", "body")),
        ("a -year:7 +b"[:9], all_of(A, Not(Range("year", 7, 7)))),
    ],
)
def test_attributes_are_compared(text: str, tree: Node) -> None:
    assert read(text) == tree
    assert read(unparse(tree)) == tree


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ('a "b', 2, "the quote is never closed"),
        ('"a\\"', 0, "the quote is never closed"),
        ('a ""', 2, "nothing in quotes"),
        ("a - b", 2, '"-" without a word'),
        ("a -", 2, '"-" without a word'),
        ("a --b", 2, '"-" without a word'),
        ("a + b", 2, '"+" without a word'),
        ("a +-b", 2, '"+" without a word'),
        ("+a", 0, '"+" follows nothing'),
        ("(+a)", 1, '"+" follows nothing'),
        ("-a +b", 3, '"+" follows an unwanted word'),
        ("a*b", 2, "b right after the end"),
        ('"a"b', 3, "b right after the end"),
        ('a"b"', 1, '" right after the end'),
        ("(a", 0, '"(" is never closed'),
        ("a) b", 1, '")" closes nothing'),
        ("(" * 30, 20, "more than 20 parentheses are open"),
        (
            "autor:a",
            0,
            "there is no field or attribute 'autor'; the names are: body, created, lang",
        ),
        ("a http://b", 2, "there is no field or attribute 'http'"),
        ("title:", 6, "nothing after title:"),
        ("title: a", 6, "nothing after title:"),
        ("title:*", 6, "nothing before *"),
        ("title:(a b)", 6, "( right after"),
        ("year:abc", 5, "'abc' is not a number, and year is an attribute of kind number"),
        ("year:1..x", 8, "'x' is not a number"),
        ("year:nan", 5, "'nan' is not a number"),
        ("year:>", 6, "'' is not a number"),
        ("year:>..2", 5, "a bound is missing"),
        ("year:2..1", 5, "the range ends before it begins"),
        ("year:19*", 7, "* right after"),
        ("created:2020", 8, "'2020' is not a date"),
        ("created:2020-13-01", 8, "'2020-13-01' is not a date"),
        ("created:0001-01-01T00:00+23:00", 8, "'0001-01-01T00:00+23:00' is not a date"),
        ("created:2020-02-01..2020-01-31T12:00", 8, "the range ends before it begins"),
        ("lang:=", 6, "no value for lang"),
        ("lang:en*", 5, "lang is compared as a whole"),
        ("lang:>en", 5, "lang is compared as a whole"),
    ],
)
def test_mistakes_are_refused_with_their_position(text: str, position: int, says: str) -> None:
    with pytest.raises(QuerySyntaxError) as raised:
        read(text)
    error = raised.value
    assert (error.position, error.query) == (position, text)
    assert error.message.startswith(f"query, position {position}: ")
    assert says in str(error)
    assert error.remedy


def test_a_text_field_without_an_attribute_has_nothing_to_compare() -> None:
    with pytest.raises(QuerySyntaxError, match="title is a text field, which has no values"):
        parse("title:>=a", {"title"})
    with pytest.raises(QuerySyntaxError, match="the names are: none"):
        parse("title:a")


def test_the_message_points_at_the_place() -> None:
    with pytest.raises(QuerySyntaxError) as raised:
        read("東京\nfoo:bar")
    assert str(raised.value).splitlines()[1:] == ["  東京 foo:bar", "       ^"]
    with pytest.raises(QuerySyntaxError) as raised:
        read("a " * 500 + '"' + " b" * 500)
    _, shown, mark = str(raised.value).splitlines()
    assert shown[mark.index("^")] == '"'
    assert len(shown) < 90


@pytest.mark.parametrize("text", [None, b"a", 1])
def test_a_query_is_text(text: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="give text"):
        parse(text)


@example("Re: your mail")
@example("http://example.org")
@example("pizza (large")
@example('the 3.5" disk')
@given(st.text(st.characters(codec="utf-8")))
def test_what_people_type_is_no_mistake(text: str) -> None:
    words = text.split()
    found = parse(text, FIELDS, ATTRIBUTES, plain=True)
    plain = tuple(map(Word, words))
    assert found == (AllOf(plain) if len(words) > 1 else plain[0] if words else Nothing())
    analyze(found, Analyzer())
    assert read(f"* lang:={quote(text)}") == all_of(Everything(), Equal("lang", text))
    if len(words) > 1:
        assert read(f"title:{quote(text)}") == Phrase(tuple(words), "title")


def test_only_text_is_quoted() -> None:
    with pytest.raises(InvalidArgumentError, match=r"quote\(7\); give text"):
        quote(7)  # type: ignore[arg-type]


def test_an_attribute_has_a_known_kind() -> None:
    with pytest.raises(InvalidArgumentError, match="attribute a: kind='int'; give one of number"):
        parse("a", attributes={"a": "int"})


# Unparsing


@given(st.text('ab*+-"(): .<>=\\é東1', max_size=25) | st.text(max_size=25))
@example("title:a year:1..2 lang:=b created:2020-01-01")
def test_every_text_is_read_or_refused_and_what_was_read_is_read_again(text: str) -> None:
    position, tree = 0, None
    try:
        tree = read(text)
    except QuerySyntaxError as error:
        position = error.position
    assert 0 <= position <= len(text)
    assert tree is None or read(unparse(tree)) == tree


WORDS = st.text('ab*+-"():.<>=\\é東1', min_size=1, max_size=5) | st.sampled_from(["year:1", "x y"])
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)
DATES = st.dates() | st.datetimes(timezones=st.just(UTC))
NAMES = st.sampled_from([None, "title", "body"])
LEAVES: st.SearchStrategy[Node] = (
    st.builds(Word, WORDS, NAMES)
    | st.builds(Prefix, WORDS, NAMES)
    | st.builds(Phrase, st.lists(WORDS, min_size=2, max_size=3).map(tuple), NAMES)
    | st.builds(Equal, st.sampled_from(["lang", "title"]), st.text(max_size=5))
    | st.builds(lambda a, b: Range("year", min(a, b), max(a, b)), NUMBERS, NUMBERS)
    | st.builds(lambda low, open_: Range("body", low, open_low=open_), NUMBERS, st.booleans())
    | st.builds(
        lambda high, open_: Range("created", None, high, False, open_), DATES, st.booleans()
    )
    | st.just(Everything())
    | st.just(Nothing())
)
TREES = trees(LEAVES)


@given(TREES)
def test_a_tree_built_in_python_is_written_so_that_the_same_is_read(tree: Node) -> None:
    again = read(unparse(tree))
    assert read(unparse(again)) == again
    assert analyze(again, Analyzer()) == analyze(tree, Analyzer())


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (all_of(any_of(A, B), Not(C), Phrase(("x", "y"), "title")), 'a +b -c title:"x y"'),
        (Not(any_of(A, B)), "-(a +b)"),
        (any_of(all_of(A, B), Not(C)), "(a b) +(-c)"),
        (all_of(any_of(all_of(A, B)), C), "(a b) +() c"),  # not as "(a b) c", which is read as one
        (Not(any_of(Not(C))), "-((-c) +())"),
        (all_of(Everything(), Range("year", 1990, 2000.5)), "* year:1990..2000.5"),
        (Range("year", 1, 2, True, True), "year:>1..<2"),
        (Range("year", 1e22), "year:>=1e+22"),
        (Range("created", NOON), "created:>=2020-01-31T12:00:00+00:00"),
        (Range("year"), "year:.."),
        (Equal("lang", 'say "a"'), r'lang:="say \"a\""'),
        (Word("-a"), '"-a"'),
        (Word("x:y"), '"x:y"'),
        (Prefix("inter", "title"), "title:inter*"),
        (Nothing(), ""),
    ],
)
def test_a_tree_is_written_as_one_would_write_it(tree: Node, text: str) -> None:
    assert unparse(tree) == text


# Trees


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (all_of(A, Word("b", "autor")), "text field 'autor' is unknown; use one of body, title"),
        (Prefix("b", "lang"), "text field 'lang' is unknown"),
        (
            Not(Range("lang", 1)),
            "attribute 'lang' of kind number or date is unknown; use one of body, created, year",
        ),
        (
            any_of(A, Equal("year", "1")),
            "attribute 'year' of kind text is unknown; use one of lang, title",
        ),
    ],
)
def test_names_in_a_tree_built_in_python_are_checked(face: Face, tree: Node, says: str) -> None:
    fields = dict.fromkeys(FIELDS, 1)
    index = face.kit.search("s", component="one", fields=fields, attributes=ATTRIBUTES)
    with pytest.raises(InvalidArgumentError, match=says):
        face.run(index.search(tree))
