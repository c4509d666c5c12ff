"""Adapting documents from files to an index."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import pytest

from shardkit.errors import InvalidArgumentError
from shardkit.search import FileDocument, Schema, adapt
from shardkit.search.documents import prepare

SCHEMA = Schema(
    "docs",
    parts=1,
    fields={"title": 3.0, "text": 1.0},
    attributes={"votes": "number", "born": "date", "tags": "text"},
)


def attributes(**given: Any) -> dict[str, Any]:
    document = adapt(SCHEMA, FileDocument("d", "", "", given))
    prepare(SCHEMA, *document)  # an index takes it
    return document[2]


def test_title_and_text_go_into_the_fields_of_these_names() -> None:
    document = FileDocument("d", "A title", "Some text", {})
    assert adapt(SCHEMA, document) == ("d", {"title": "A title", "text": "Some text"}, {})
    other = Schema("docs", parts=1, fields={"body": 1.0})
    assert adapt(other, document) == ("d", {"body": "Some text"}, {})


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("votes", 3, 3),
        ("votes", " 2.5", 2.5),
        ("votes", "inf", math.inf),
        ("born", 86400, datetime(1970, 1, 2, tzinfo=UTC)),
        ("born", "2024-02-29", date(2024, 2, 29)),
        ("born", "2024-02-29T12:00:00+02:00", datetime(2024, 2, 29, 10, tzinfo=UTC)),
        ("born", "2024-02-29 12:00:00", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        ("born", date(2024, 2, 29), date(2024, 2, 29)),  # as Python reads it from YAML
        ("tags", "a", "a"),
        ("tags", ["a", 7, True], ["a", "7", "true"]),
        ("tags", "half \ud800", "half ?"),
    ],
)
def test_attributes_are_read_by_their_kinds(name: str, given: Any, found: Any) -> None:
    assert attributes(**{name: given}) == {name: found}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("votes", "many"),
        ("votes", True),
        ("votes", [1]),
        ("votes", 10**400),
        ("born", "yesterday"),
        ("born", "2024-02-30"),
        ("born", 1e300),
        ("born", math.nan),
        ("born", True),
        ("tags", {"a": 1}),
        ("tags", [["a"]]),
    ],
)
def test_a_value_of_another_kind_is_refused_with_the_attributes_name(name: str, given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name}=.* is not of kind "):
        attributes(**{name: given})


def test_an_id_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="document id"):
        adapt(SCHEMA, FileDocument("", "", "", {}))
