"""Opens an index by its stored parameters, for all commands of ``shardkit search``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shardkit.cli.options import structure_options
from shardkit.cli.text import printable
from shardkit.errors import InvalidArgumentError, QuerySyntaxError
from shardkit.kit.kit import ShardKit
from shardkit.operations.operation import Blocking
from shardkit.search.index import SearchIndex
from shardkit.search.stored_schema import parameters_of, stored_parameters
from shardkit.search.text.analyzer import Analyzer
from shardkit.search.text.stop_words import ENGLISH

FIELDS = {"title": 3.0, "text": 1.0}
ATTRIBUTES = {"kind": "text", "updated": "date", "size": "number"}
_SHARDS = 4  # for a component that is not sharded

index_options = structure_options("search", "search")


def existing(kit: ShardKit, name: str, component: str) -> SearchIndex[Blocking]:
    """Open an index.

    Raises:
        InvalidArgumentError: there is none.
        ParameterMismatchError: it cannot be opened without the code that created it.
    """
    _, stored = _stored(kit, name, component)
    if stored is None:
        raise InvalidArgumentError(
            f"component {component!r} has no index {name!r}",
            "index something first: shardkit search index",
        )
    shards, parameters = parameters_of(name, stored)
    return kit.search(name, component=component, shards=shards, **parameters)


def created(
    kit: ShardKit,
    name: str,
    component: str,
    *,
    shards: int | None,
    attributes: Mapping[str, str],
    stemming: str | None,
    stop_words: str | None,
    no_text: bool,
    no_phrases: bool,
) -> SearchIndex[Blocking]:
    """Open an index with its stored parameters, or as a new one.

    Options given here override stored ones, so that contradicting ones are refused at the first
    write.
    """
    there, stored = _stored(kit, name, component)
    given: dict[str, Any]
    if stored is None:
        given = {"fields": FIELDS, "attributes": ATTRIBUTES}
        chosen = Analyzer()
    else:
        there, found = parameters_of(name, stored)
        given = {**found}
        chosen = found["analyzer"]
    words = {None: chosen.stop_words, "english": ENGLISH, "none": frozenset[str]()}[stop_words]
    given["analyzer"] = Analyzer(chosen.tokenizer, words, stemming or chosen.stemmer)
    given["attributes"] = {**given["attributes"], **attributes}
    if no_phrases:
        given["phrases"] = False
    return kit.search(
        name, component=component, shards=shards or there, keep_text=not no_text, **given
    )


def _stored(kit: ShardKit, name: str, component: str) -> tuple[int, dict[str, str] | None]:
    """Return the number of parts for a new index, and the stored parameters of an existing one."""
    shards = len(kit.component(component).shards) or _SHARDS
    [stored] = kit.together(stored_parameters(component, name, shards))
    return shards, stored


@contextmanager
def query_errors() -> Iterator[None]:
    """Show the position of an error in a query, above the error message."""
    try:
        yield
    except QuerySyntaxError as error:
        for line in str(error).splitlines()[-2:]:
            sys.stderr.write(f"{printable(line)}\n")
        raise
