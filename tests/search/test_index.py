"""An index of documents over shards."""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from faces import Face, holder, keys_of

from shardkit import ShardKit
from shardkit.errors import (
    CommandRefused,
    InvalidArgumentError,
    QuerySyntaxError,
    ShardErrors,
)
from shardkit.search import PartInfo, Range, Word

ATTRIBUTES = {"votes": "number", "day": "date", "lang": "text"}


def opened(face: Face, name: str = "s", **options: Any) -> Any:
    options = {"component": "few", "attributes": ATTRIBUTES, **options}
    return face.kit.search(name, **options)


def ids(results: Any) -> list[str]:
    return [hit.id for hit in results]


def test_documents_are_found_with_their_attributes_and_snippets(face: Face) -> None:
    index = opened(face)
    noon = datetime(2020, 5, 17, 12, tzinfo=timezone(timedelta(hours=2)))
    assert face.run(index.index("a", "The quick brown fox", {"votes": 2, "day": noon})) == 3
    assert face.run(index.index("b", "Quick! A fox, a quick fox", {"lang": ["en", "de"]})) == 2
    assert face.run(index.index("c", "")) == 0
    found = face.run(
        index.search("quick fox", attributes=True, snippets=True, facets=["lang", "votes"])
    )
    assert ids(found) == ["b", "a"]
    assert found.total == len(found) == 2
    assert [hit.attributes for hit in found] == [
        {"lang": ("en", "de")},
        {"votes": 2, "day": noon.astimezone(UTC)},
    ]
    assert found.hits[0].snippet == "**Quick**! A **fox**, a **quick** **fox**"
    assert found.facets == {"lang": [("de", 1), ("en", 1)], "votes": [(2.0, 1)]}
    assert not found.partial
    some = face.run(index.search("quick fox", attributes=["votes"], snippets={"mark": ("<", ">")}))
    assert [hit.attributes for hit in some] == [{}, {"votes": 2}]
    assert some.hits[1].snippet == "The <quick> brown <fox>"
    assert ids(face.run(index.search('"brown fox" -cat'))) == ["a"]
    assert ids(face.run(index.search("*", sort="lang"))) == ["a", "c", "b"]
    document = face.run(index.get("a"))
    assert (document.id, document.text) == ("a", {"text": "The quick brown fox"})
    assert face.run(index.get("nobody")) is None


def test_info_reports_the_content_of_each_part(face: Face) -> None:
    index = opened(face, component="one", parts=1)
    face.run(index.index_many([("a", "one two three"), ("b", "two")]))
    assert face.run(index.info()) == [PartInfo(2, 3, 2, 1)]
    face.run(index.remove("a"))
    assert face.run(index.info()) == [PartInfo(1, 3, 2, 2)]


def test_a_word_of_many_documents_is_removed_inserted_and_replaced_anywhere(
    face: Face, kit: ShardKit
) -> None:
    index = opened(face, component="one", parts=1)
    common = {f"{n:03}" for n in range(300)}
    face.run(index.index_many((doc_id, "common") for doc_id in sorted(common)))
    face.run(index.index("rest", "other"))

    def found() -> list[str]:
        return ids(face.run(index.search("common", limit=400, sort="votes")))

    face.run(index.remove("005"))
    face.run(index.index("100", "other"))
    assert found() == sorted(common - {"005", "100"})
    face.run(index.index("100", "common"))
    assert found() == sorted(common - {"005"})
    face.run(index.index("101", "common common"))
    assert ids(face.run(index.search("common", limit=1))) == ["101"]
    face.run(index.index_many([("102", "other"), ("103", "common"), ("104", "common common")]))
    assert found() == sorted(common - {"005", "102"})
    assert ids(face.run(index.search("common", limit=2))) == ["104", "101"]
    assert face.run(index.remove_many(sorted(common))) == 299
    assert found() == []
    assert face.list(index.check()) == []
    assert not [key for key in keys_of(kit, "one") if key.startswith("{s:0}:w:")]


def test_without_the_order_of_words_a_phrase_is_all_of_its_words(face: Face) -> None:
    index = opened(face, phrases=False, keep_text=False)
    face.run(index.index_many([("a", "one two"), ("b", "two one"), ("c", "one")]))
    found = face.run(index.search('"one two"', snippets=True))
    assert sorted(ids(found)) == ["a", "b"]
    assert found.hits[0].snippet is None
    assert face.run(index.get("a")).text is None


def test_a_cached_result_does_not_change_with_the_documents(face: Face) -> None:
    index = opened(face)
    face.run(index.index_many([(str(n), "x", {"votes": n, "lang": "a"}) for n in range(9)]))
    for sort in ("votes", "-lang", "relevance"):
        first = face.run(index.search("x", sort=sort, limit=3, cache=30))
        assert first.result
        wanted = ids(face.run(index.search("x", sort=sort)))
        face.run(index.index("new", "x", {"votes": -1, "lang": "z"}))
        face.run(index.remove(wanted[4]))
        second = face.run(
            index.search(
                "x", sort=sort, offset=3, limit=3, result=first.result, attributes=["votes"]
            )
        )
        assert (second.total, ids(second)) == (9, [wanted[3], wanted[5]])
        assert second.hits[0].attributes == {"votes": int(wanted[3])}
        assert second.result == first.result
        face.run(index.remove("new"))
        face.run(index.index(wanted[4], "x", {"votes": int(wanted[4]), "lang": "a"}))


def test_an_index_has_by_default_as_many_parts_as_its_component_has_shards(face: Face) -> None:
    for component, parts in (("many", 16), ("few", 4), ("one", 4)):
        index = face.kit.search("d", component=component)
        face.run(index.index("a", "x"))
        assert len(face.run(index.info())) == parts
    for component, parts in (("many", 16), ("few", 4), ("one", 1)):
        jobs = face.kit.job_search(component=component)
        face.run(jobs.index("a", []))
        again = face.kit.job_search(component=component, parts=parts)
        assert face.run(again.count()) == 1
        ads = face.kit.ads(component=component)
        assert face.run(ads.index("a", ["Berlin"], "", "cpm", 1)) is True
        assert face.run(face.kit.ads(component=component, parts=parts).count()) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fields": {}}, "fields="),
        ({"fields": dict.fromkeys("abcdefghi", 1.0)}, "of 1 to 8"),
        ({"fields": {"text": 0}}, "field text: weight=0"),
        ({"attributes": {"x y": "text"}}, "the name 'x y'"),
        ({"attributes": {"x": "tag"}}, "attribute x: kind='tag'"),
        ({"attributes": {"relevance": "number"}}, "relevance"),
        ({"parts": 0}, "parts=0"),
        ({"chunk": 100}, "power of two"),
        ({"average_length": math.inf}, "average_length"),
        ({"analyzer": "english"}, "analyzer"),
        ({"read_from": "few"}, "give one of master"),
        ({"name": "a{b}"}, "braces"),
        ({"statistics_ttl": -1}, "statistics_ttl=-1"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused(
    kit: ShardKit, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kit.search(**{"name": "s", "component": "one", **wrong})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (("", "x"), "document id ''"),
        ((7, "x"), "document id 7"),
        (("a" * 1025, "x"), "document id"),
        (("\ud800", "x"), "document id"),
        (("a", None), "text=None"),
        (("a", {"body": "x"}), "text field 'body' is unknown"),
        (("a", "\ud800"), "UTF-8"),
        (("a", "x", {"color": 1}), "attribute 'color' is unknown"),
        (("a", "x", {"votes": "many"}), "attribute votes='many'"),
        (("a", "x", {"votes": True}), "attribute votes=True"),
        (("a", "x", {"votes": 10**400}), "attribute votes"),
        (("a", "x", {"day": "2020-01-01"}), "attribute day"),
        (("a", "x", {"day": datetime(2020, 1, 1)}), "tzinfo"),
        (("a", "x", {"lang": ["en", 7]}), "attribute lang"),
        (("a", "x", {"lang": "\ud800"}), "attribute lang"),
        (("a", "x", 7), "attributes=7"),
        ("ab", "give tuples \\(id, text\\)"),
        (("a",), "give tuples \\(id, text\\)"),
    ],
)
def test_a_document_that_cannot_be_indexed_is_refused_before_anything_is_written(
    kit: ShardKit, document: Any, message: str
) -> None:
    index = kit.search("s", component="few", attributes=ATTRIBUTES)
    with pytest.raises(InvalidArgumentError, match=message):
        index.index_many([("fine", "x"), document])
    assert keys_of(kit, "few") == set()


def test_requests_that_cannot_be_used_are_refused(kit: ShardKit) -> None:
    index = kit.search("s", component="few", attributes=ATTRIBUTES)
    index.index_many(
        [(str(n), f"x y{n}", {"lang": str(n), "day": date(2020, 1, 1)}) for n in range(9)]
    )
    cursor = index.search("x", limit=2).cursor
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"query": "body:x"}, "body"),
        ({"query": Word("x", "body")}, "text field 'body' is unknown"),
        ({"query": Range("lang", 1)}, "attribute 'lang' of kind number or date is unknown"),
        ({"query": 7}, "query=7; give "),
        ({"sort": "color"}, "sort='color'"),
        ({"sort": {"lang": 1}}, "'lang' is not a number"),
        ({"sort": {"votes": math.nan}}, "finite"),
        ({"sort": {}}, "weight by name"),
        ({"sort": 7}, "sort=7; give an attribute's name, or weights by name"),
        ({"sort": {"votes": 1}, "combine": "both"}, "combine='both'"),
        ({"sort": "votes", "ascending": True}, "ascending"),
        ({"limit": -1}, "limit=-1"),
        ({"offset": -1}, "offset=-1"),
        ({"attributes": ["color"]}, "attribute 'color' is unknown"),
        ({"attributes": "votes"}, "give a list"),
        ({"facets": "votes"}, "facets='votes'; give a list of names"),
        ({"facets": ["color"]}, "attribute 'color' is unknown"),
        ({"cursor": "nonsense"}, "cursor='nonsense'"),
        ({"result": cursor}, "result="),
        ({"cursor": cursor, "offset": 3}, "give the cursor alone"),
        ({"cursor": cursor, "sort": "votes"}, "another query or order"),
        ({"query": "y1", "cursor": cursor}, "another query or order"),
        ({"query": "\ud800"}, r"query='\\ud800', position 0: not a character"),
        ({"query": "\ud800", "plain": True}, "position 0: not a character"),
    ]
    for options, message in wrong:
        options = {"query": "x", **options}
        with pytest.raises(InvalidArgumentError, match=message):
            index.search(**options)
    with pytest.raises(QuerySyntaxError, match="position 2"):
        index.search('x "y')
    with pytest.raises(InvalidArgumentError, match="page=0"):
        index.page("x", 0)
    for beginning in ("", "\1", "a b"):
        with pytest.raises(InvalidArgumentError, match="words"):
            index.words(beginning)
    assert index.words("Ý", 2) == [("y0", 1), ("y1", 1)]


FORGED = [
    True,
    10**400,
    math.inf,
    "\ud800",
    [],
    {"x": 1},
    "ab",
    [1],
    [1, {"x": "x"}],
    [1, {"x": -5}],
    [math.inf, {"x": 1}],
    [0, {"x": math.nan}],
    [10**400, {"x": 1}],
]


@pytest.mark.parametrize("what", ["cursor", "result"])
def test_forged_cursors_are_refused_or_read(face: Face, what: str) -> None:
    index = face.kit.search("s", component="few")
    face.run(index.index_many([(str(n), "x") for n in range(9)]))
    token = getattr(face.run(index.search("x", limit=2, cache=9)), what)
    fields = json.loads(zlib.decompress(urlsafe_b64decode(token + "==")))
    forged = [
        [*fields[:n], value, *fields[n + 1 :]] for n in range(len(fields)) for value in FORGED
    ]

    def total(text: str) -> int | None:
        token = urlsafe_b64encode(zlib.compress(text.encode())).decode()
        with contextlib.suppress(InvalidArgumentError):
            return face.run(index.search("x", **{what: token})).total
        return None

    assert total(json.dumps(fields)) == 9
    texts = ["7", "[" * 100_000, "9" * 9999, *map(json.dumps, forged)]
    assert {total(text) for text in texts} == {9, None}


def test_expansions_of_prefixes_and_facets_are_bounded(kit: ShardKit, lower: Any) -> None:
    index = kit.search("s", component="few", attributes=ATTRIBUTES)
    index.index_many([(str(n), f"x y{n:02}", {"lang": str(n)}) for n in range(30)])
    lower(search_expansions=12, search_facet_values=5)
    assert index.count("y0*") == 10
    with pytest.raises(InvalidArgumentError, match="more than 12 words begin with y"):
        index.search("y*")
    with pytest.raises(InvalidArgumentError, match="lang has more than 5 different values"):
        index.search("x", facets=["lang"])
    assert index.search("y0*", facets=["lang"], facet_limit=2).facets["lang"] == [
        ("0", 1),
        ("1", 1),
    ]


def test_a_part_that_is_full_refuses_new_words(kit: ShardKit) -> None:
    index = kit.search("s", component="one", parts=1)
    index.index("a", "old words")
    client: Any = kit.client("one")
    client.hset("{s:0}:state", "words", 2**24 - 1)
    before = client.hgetall("{s:0}:state")
    with pytest.raises(ShardErrors) as caught:
        index.index("b", "two new")
    [failure] = caught.value.exceptions
    assert isinstance(failure, CommandRefused)
    assert "16,777,215" in str(failure)
    assert client.hgetall("{s:0}:state") == before
    assert index.index("b", "new old words") == 3
    assert index.count("old") == 2


def stored(kit: ShardKit, key: str, field: str, number: int) -> None:
    holder(kit, "one", key).hset(key, field, number)


def test_a_rebuild_leaves_ids_after_an_impossible_one(face: Face, kit: ShardKit) -> None:
    ads = face.kit.ads(component="one")
    face.run(ads.index("1", ["USA"], "words of one", "cpc", 0.5))
    [key] = [key.decode() for key in holder(kit, "one", "x").scan_iter("*:l:wor")]
    stored(kit, key, "words", 2**31)
    face.run(ads.rebuild(lossy=True))
    face.run(ads.index("2", ["USA"], "others for two", "cpc", 0.7))
    assert face.run(ads.target(["USA"], "others")).ad == "2"
    assert face.list(ads.check()) == []


def test_a_part_with_the_most_words_is_checked_in_short_calls(face: Face, kit: ShardKit) -> None:
    """A server answers nobody else while a script runs."""
    index = face.kit.search("most", component="one", parts=1)
    face.run(index.index("d1", "red fox"))
    stored(kit, "{most:0}:state", "words", 2**24 - 2)
    client = holder(kit, "one", "x")
    client.config_resetstat()
    assert [found.key for found in face.list(index.check())] == ["{most:0}:starts"]
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] > 100
