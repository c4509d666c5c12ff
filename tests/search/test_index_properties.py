"""An index over one part and over many against a model that looks at every document."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, date, datetime
from typing import Any

import pytest
from faces import Face, drawn
from hypothesis import HealthCheck, given, settings, strategies as st
from search_model import RELEVANCE, ModelIndex

from shardkit import ShardKit
from shardkit.search import (
    AllOf,
    AnyOf,
    Equal,
    Everything,
    Node,
    Not,
    Phrase,
    Prefix,
    Range,
    Word,
)

BUDGET = settings(
    max_examples=drawn(4, 15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
FRESH = itertools.count()
FIELDS = {"title": 2.5, "text": 1.0}
ATTRIBUTES = {"votes": "number", "day": "date", "lang": "text", "tags": "text"}
WORDS = ["redis", "red", "reds", "shard", "the", "naïve", "東京都", "x1", "re-read", "a"]
# How an index is laid out: its component, and in how many parts. Chunks are small, so that a few
# documents have many.
LAYOUTS = [("one", 1), ("few", 4), ("one", 3)]

texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
fields = st.fixed_dictionaries({}, optional={"title": texts, "text": texts})
numbers = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([0.5, -0.0, math.inf, -math.inf, math.nan, 1e300, 2**53]),
)
days = st.one_of(
    st.none(),
    st.dates(date(2019, 12, 30), date(2020, 1, 3)),
    st.just(datetime(2020, 1, 1, 12, tzinfo=UTC)),
)
values = st.sampled_from(["", "en", "de", "日本", "en-GB", "z" * 70])
attributes = st.fixed_dictionaries(
    {},
    optional={
        "votes": numbers,
        "day": days,
        "lang": st.one_of(st.none(), values),
        "tags": st.lists(values, max_size=3, unique=True),
    },
)
ids = st.sampled_from(["a", "b", "ab", "ä", "{x}", "日", *map(str, range(14))])
documents = st.tuples(ids, fields, attributes)
changes = st.lists(st.one_of(documents, documents, documents, ids), min_size=5, max_size=40)

somewhere = st.sampled_from([None, None, "title", "text"])
bounds = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([0.5, math.inf, -math.inf]))
leaves = st.one_of(
    st.builds(Word, st.sampled_from(WORDS), somewhere),
    st.builds(Word, st.sampled_from(WORDS), somewhere),
    st.builds(Prefix, st.sampled_from(["r", "re", "red", "東", "x", "q"]), somewhere),
    st.builds(
        Phrase, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple), somewhere
    ),
    st.builds(Range, st.just("votes"), bounds, bounds, st.booleans(), st.booleans()),
    st.builds(
        Range,
        st.just("day"),
        st.one_of(st.none(), st.dates(date(2019, 12, 30), date(2020, 1, 3))),
        st.one_of(st.none(), st.dates(date(2019, 12, 30), date(2020, 1, 3))),
    ),
    st.builds(Equal, st.sampled_from(["lang", "tags"]), values),
    st.just(Everything()),
)
trees: st.SearchStrategy[Node] = st.recursive(
    leaves,
    lambda nodes: st.one_of(
        st.builds(AllOf, st.lists(nodes, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(nodes, max_size=3).map(tuple)),
        st.builds(Not, nodes),
    ),
    max_leaves=6,
)
weights = st.dictionaries(
    st.sampled_from([RELEVANCE, "votes", "day"]), st.sampled_from([1, 0.5, -2, 0]), min_size=1
)


@pytest.fixture(params=["one_call", "slices"], autouse=True)
def work(request: pytest.FixtureRequest, lower: Any) -> None:
    """How much a script does in a call: everything, or as little as it can."""
    if request.param == "slices":
        lower(search_work=1, search_hits=1, search_words=1)


def filled(run: Any, kit: ShardKit, model: ModelIndex, steps: list[Any]) -> list[Any]:
    """Indexes of every layout, in which what the model holds was indexed, partly in bulk."""
    indexes = [
        kit.search(
            f"s{next(FRESH)}",
            component=component,
            parts=shards,
            fields=FIELDS,
            attributes=ATTRIBUTES,
            average_length=4,
            chunk=8,
            statistics_ttl=0,
        )
        for component, shards in LAYOUTS
    ]
    bulk: list[Any] = []
    for step in steps:
        if isinstance(step, str):
            for index in indexes:
                run(index.index_many(bulk))
                assert run(index.remove(step)) == (step in model.documents)
            model.remove(step)
            bulk = []
        else:
            bulk.append(step)
            model.index(*step)
    for index in indexes:
        run(index.index_many(bulk))
        assert run(index.count()) == len(model.documents)
    return indexes


def rows(results: Any) -> list[tuple[Any, str]]:
    return [(hit.value, hit.id) for hit in results.hits]


@pytest.mark.long(2)
@BUDGET
@given(steps=changes, queries=st.lists(trees, min_size=1, max_size=4), data=st.data())
def test_one_part_and_many_give_what_the_model_gives(
    face: Face, steps: list[Any], queries: list[Node], data: st.DataObject
) -> None:
    model = ModelIndex(FIELDS, ATTRIBUTES, average_length=4)
    indexes = filled(face.run, face.kit, model, steps)
    for query in queries:
        by = data.draw(st.sampled_from([RELEVANCE, "votes", "-votes", "-day", "lang", "-tags"]))
        descending = by == RELEVANCE or by.startswith("-")
        wanted = model.sorted(query, by.removeprefix("-"), descending)
        size = data.draw(st.integers(1, 5))
        start = data.draw(st.integers(0, 6))
        for index in indexes:
            whole = face.run(index.search(query, sort=by, limit=100, facets=["lang", "tags"]))
            assert rows(whole) == wanted
            assert whole.total == len(wanted)
            assert whole.cursor is None
            for name in ("lang", "tags"):
                assert dict(whole.facets[name]) == model.facets(query, name)
            page = face.run(index.search(query, sort=by, offset=start, limit=size))
            assert (page.total, rows(page)) == (len(wanted), wanted[start : start + size])
            assert (page.cursor is not None) == (0 < start + size < len(wanted))
            walked = face.list(index.all(query, sort=by, page_size=size))
            assert [(hit.value, hit.id) for hit in walked] == wanted
            kept = face.run(index.search(query, sort=by, limit=size, cache=60))
            if kept.result is not None:
                again = face.run(
                    index.search(query, sort=by, offset=start, limit=size, result=kept.result)
                )
                assert (again.total, rows(again)) == (page.total, rows(page))


@pytest.mark.long(2)
@BUDGET
@given(
    steps=changes,
    query=trees,
    by=weights,
    combine=st.sampled_from(["intersection", "union"]),
    default=st.sampled_from([0, 1.5]),
    ascending=st.booleans(),
)
def test_weighted_sums_are_the_models(
    face: Face,
    steps: list[Any],
    query: Node,
    by: dict[str, float],
    combine: str,
    default: float,
    ascending: bool,
) -> None:
    finite = [
        step
        if isinstance(step, str) or not math.isinf(step[2].get("votes") or 0)
        else (step[0], step[1], {**step[2], "votes": 7})
        for step in steps
    ]
    model = ModelIndex(FIELDS, ATTRIBUTES, average_length=4)
    indexes = filled(face.run, face.kit, model, finite)
    wanted = model.weighted(query, by, combine, default, not ascending)
    assert indexes
    for index in indexes:
        found = face.run(
            index.search(
                query, sort=by, combine=combine, default=default, ascending=ascending, limit=100
            )
        )
        assert rows(found) == wanted
        walked = face.list(
            index.all(
                query, sort=by, combine=combine, default=default, ascending=ascending, page_size=3
            )
        )
        assert [(hit.value, hit.id) for hit in walked] == wanted


@BUDGET
@given(steps=changes)
def test_documents_are_returned_as_they_were_indexed(kit: ShardKit, steps: list[Any]) -> None:
    model = ModelIndex(FIELDS, ATTRIBUTES)
    given: dict[str, Any] = {}
    for step in steps:
        if isinstance(step, str):
            given.pop(step, None)
        else:
            given[step[0]] = step
    indexes = filled(lambda value: value, kit, model, steps)
    assert indexes
    for index in indexes:
        found = index.get_many([*given, "nobody"])
        assert found.keys() == given.keys() == model.documents.keys()
        for doc_id, text, attrs in given.values():
            assert found[doc_id].text == text
            kept = {
                name: tuple(value) if isinstance(value, list) and len(value) != 1 else value
                for name, value in attrs.items()
                if value is not None and value != [] and value == value
            }
            assert {
                name: list(value) if isinstance(value, tuple) and len(value) == 1 else value
                for name, value in found[doc_id].attributes.items()
            } == kept
