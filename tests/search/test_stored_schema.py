"""Opening an index by its stored parameters."""

from __future__ import annotations

from typing import Any

import pytest

from shardkit import ShardKit
from shardkit.errors import ParameterMismatchError
from shardkit.search import Analyzer, English
from shardkit.search.documents import join_values, value_term
from shardkit.search.schema import parameters_of, stored_parameters


def read(kit: ShardKit, component: str, shards: int) -> dict[str, str] | None:
    [found] = kit.together(stored_parameters(component, "docs", shards))
    return found


def test_values_have_the_words_that_earlier_releases_gave_them() -> None:
    assert value_term(1, b"en") == b"\x011J/hz7y9iAal0UHge"
    assert value_term(2, join_values([b"en", b"de"])) == b"\x0127WcFHSr5Conm3KlQ"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"fields": {"title": 3.5, "text": 1.0}, "attributes": {"a": "number", "b": "date"}},
        {"analyzer": Analyzer(English(), frozenset(), "german"), "phrases": False},
        {"average_length": 12.5, "chunk": 1024},
    ],
)
@pytest.mark.parametrize(("component", "shards"), [("few", 4), ("one", 3)])
def test_an_index_is_opened_by_its_stored_parameters(
    kit: ShardKit, component: str, shards: int, parameters: dict[str, Any]
) -> None:
    assert read(kit, component, shards) is None
    created = kit.search("docs", component=component, parts=shards, **parameters)
    created.index("d", "some words")
    stored = read(kit, component, shards)
    assert stored is not None
    count, found = parameters_of("docs", stored)
    opened = kit.search("docs", component=component, parts=count, **found)
    assert opened.schema == created.schema
    assert opened.search("words").total == 1


def test_parameters_of_no_index_or_of_another_analyzer_are_refused() -> None:
    schema = Analyzer().fingerprint
    good = {
        "kind": "search",
        "shards": "1",
        "fields": "text=1.0",
        "attributes": "",
        "analyzer": schema,
        "phrases": "1",
        "average_length": "100.0",
        "chunk": "65536",
    }
    assert parameters_of("docs", good)[0] == 1
    with pytest.raises(ParameterMismatchError, match="is of kind 'set'"):
        parameters_of("docs", good | {"kind": "set"})
    with pytest.raises(ParameterMismatchError, match="has an analyzer of its own"):
        parameters_of("docs", good | {"analyzer": "9 mine - -"})
    with pytest.raises(ParameterMismatchError, match="cannot be read: 'chunk'"):
        parameters_of("docs", {name: text for name, text in good.items() if name != "chunk"})
