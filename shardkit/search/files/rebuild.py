"""Rebuilding an index from the documents that it holds: for what `SearchIndex.check` finds.

::

    save       documents, with text ──► one line of JSON each, in a file
    load       the index is deleted, and indexes them anew

    {"id": "guide.md", "text": {"title": "…", "text": "…"}, "attributes": {"size": 120.0}}

The file outlives whatever interrupts the rebuilding: `load` it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

from shardkit.errors import ConfigError, InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.operation import Blocking, pages
from shardkit.search.index import SearchIndex
from shardkit.search.model.documents import Document

_AT_ONCE = 500


def save(
    index: SearchIndex[Blocking],
    path: Path,
    progress: Callable[[int], object] = lambda documents: None,
) -> int:
    """Write all documents of an index to a file; return how many.

    Args:
        index: the index, with its texts.
        path: the file; it is complete if it is there.
        progress: is told how many documents were written.

    Raises:
        InvalidArgumentError: the index keeps no text.
        ShardErrors: a shard failed.
        OSError: the file cannot be written.
    """
    saved = 0
    half = path.with_name(f"{path.name}.part")
    with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        for page in pages((hit.id for hit in index.all("*", page_size=10_000)), _AT_ONCE):
            for document in index.get_many(page).values():
                out.write(json.dumps(_plain(document)) + "\n")
                saved += 1
            progress(saved)
    half.replace(path)
    return saved


def load(
    index: SearchIndex[Blocking],
    path: Path,
    progress: Callable[[int], object] = lambda documents: None,
) -> int:
    """Delete an index, and index the documents of a file; return how many.

    Meanwhile searches find what is indexed so far, and nobody else may write to the index.

    Raises:
        ConfigError: the file is not one that `save` wrote; nothing was deleted.
        ShardErrors: a shard failed; do it again.
    """
    for _ in _documents(index, path):
        pass
    index.delete()
    done = 0

    def counted() -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
        nonlocal done
        for document in _documents(index, path):
            yield document
            done += 1
            if done % _AT_ONCE == 0:
                progress(done)

    index.index_many(counted())
    progress(done)
    return done


def _plain(document: Document) -> dict[str, Any]:
    if document.text is None:
        raise InvalidArgumentError(
            f"document {shown(document.id)} has no text: the index keeps none",
            "delete the index, and index the documents' source again",
        )
    attributes = {
        name: value.isoformat() if isinstance(value, date) else value
        for name, value in document.attributes.items()
    }
    return {"id": document.id, "text": document.text, "attributes": attributes}


def _documents(
    index: SearchIndex[Blocking], path: Path
) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
                attributes = {
                    name: _value(index.schema.attributes[name], value)
                    for name, value in found["attributes"].items()
                }
                yield found["id"], found["text"], attributes
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ConfigError(
                    f"{path}, line {number}: is no document of this index",
                    "name a file that `shardkit search rebuild` wrote",
                ) from None


def _value(kind: str, value: Any) -> Any:
    if kind != "date":
        return value
    return (datetime if "T" in value else date).fromisoformat(value)
