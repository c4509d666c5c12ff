"""Exporting documents in the bulk format of OpenSearch and Elasticsearch.

Send it with ``curl -H 'Content-Type: application/x-ndjson' --data-binary @- URL/_bulk``, in pieces
of some megabytes, split after an even number of lines.
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from typing import Any

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.search.model.documents import Document
from shardkit.search.model.schema import Schema

_TYPES = {"number": "double", "date": "date", "text": "keyword"}


def bulk_lines(document: Document, index: str) -> str:
    """Return a document as two lines of JSON: the action, and the document.

    Infinite numbers, which JSON lacks and those engines reject, become null. If a field and an
    attribute have the same name, the field's text is exported.
    """
    if document.text is None:
        raise InvalidArgumentError(
            f"document {shown(document.id)} cannot be exported: the index keeps no text",
            "index with keep_text=True, or export the documents' source",
        )
    action = {"index": {"_index": index, "_id": document.id}}
    source = {n: _json_value(v) for n, v in document.attributes.items()} | document.text
    return f"{_dumped(action)}\n{_dumped(source)}\n"


def mappings(schema: Schema) -> dict[str, Any]:
    """Return the mappings to create the target index with: fields as text, attributes by kind.

    There, weights of fields go into queries: ``{"multi_match": {"fields": ["title^3", "text"]}}``.
    """
    properties: dict[str, Any] = {n: {"type": _TYPES[k]} for n, k in schema.attributes.items()}
    for name in schema.fields:
        both = {"fields": {"keyword": {"type": "keyword"}}} if name in properties else {}
        properties[name] = {"type": "text", **both}
    return {"mappings": {"properties": properties}}


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, tuple):
        return list(value)
    return None if value in (math.inf, -math.inf) else value
