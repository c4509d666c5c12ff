"""Adapting documents from files to an index: to its fields, and its attributes by their kinds."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.search.files.readers import FileDocument, encodable
from shardkit.search.model.documents import check_id
from shardkit.search.model.schema import Schema

AdaptedDocument: TypeAlias = tuple[str, dict[str, str], dict[str, Any]]


def adapt(schema: Schema, document: FileDocument) -> AdaptedDocument:
    """Return the id, texts and attributes that an index with this schema takes.

    Title and text go into the fields with these names; without such a field the title is dropped,
    and the text goes into the first field. Attributes that the index does not have are dropped; of
    the others

    * a number may be written as text,
    * a date may be text in ISO 8601 (without a zone it is UTC), or a number of seconds since 1970,
    * text may be a number, true or false, or a list of those.

    Raises:
        InvalidArgumentError: an attribute cannot be converted to its kind, or the id cannot be
            used.
    """
    check_id(schema, document.id)
    body = "text" if "text" in schema.fields else next(iter(schema.fields))
    texts = {body: document.text}
    if "title" in schema.fields and body != "title":
        texts["title"] = document.title
    attributes = {}
    for name, kind in schema.attributes.items():
        value = document.attributes.get(name)
        if value is None:
            continue
        try:
            attributes[name] = _CONVERTERS[kind](value)
        except (ValueError, TypeError, OverflowError, OSError):
            raise InvalidArgumentError(
                f"{name}={shown(value)} is not of kind {kind}", "correct it, or leave it out"
            ) from None
    return document.id, texts, attributes


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    if isinstance(value, int):
        float(value)  # raises OverflowError if it is too large for a double
        return value
    return float(value)


def _date(value: Any) -> date:
    if isinstance(value, date):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    text = str(value).strip()
    if len(text) == 10:
        return date.fromisoformat(text)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def _text(value: Any) -> str | list[str]:
    return [_one_text(item) for item in value] if isinstance(value, list) else _one_text(value)


def _one_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return encodable(str(value))
    raise TypeError


_CONVERTERS = {"number": _number, "date": _date, "text": _text}
