"""Exporting documents for another engine."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest

from shardkit.errors import InvalidArgumentError
from shardkit.search import Document, Schema
from shardkit.search.files import bulk_lines, mappings


def test_a_document_is_an_action_and_a_source() -> None:
    document = Document(
        "gu\u00efde\n1",
        {
            "votes": 3.0,
            "updated": datetime(2026, 11, 21, 10, tzinfo=UTC),
            "tags": ("a", "b"),
            "best": math.inf,
        },
        {"title": "Gu\u00efde", "text": 'line\n"two"'},
    )
    lines = bulk_lines(document, "docs")
    assert lines.endswith("\n")
    action, source = lines.splitlines()
    assert json.loads(action) == {"index": {"_index": "docs", "_id": "gu\u00efde\n1"}}
    assert json.loads(source) == {
        "votes": 3.0,
        "updated": "2026-11-21T10:00:00+00:00",
        "tags": ["a", "b"],
        "best": None,
        "title": "Gu\u00efde",
        "text": 'line\n"two"',
    }


def test_a_document_without_text_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'7' cannot be exported"):
        bulk_lines(Document("7", {}, None), "docs")


def test_the_mappings_say_what_fields_and_attributes_are() -> None:
    schema = Schema(
        "docs",
        parts=1,
        fields={"title": 3.0, "text": 1.0},
        attributes={"title": "text", "lang": "text", "votes": "number", "updated": "date"},
    )
    assert mappings(schema)["mappings"]["properties"] == {
        "title": {"type": "text", "fields": {"keyword": {"type": "keyword"}}},
        "text": {"type": "text"},
        "lang": {"type": "keyword"},
        "votes": {"type": "double"},
        "updated": {"type": "date"},
    }
