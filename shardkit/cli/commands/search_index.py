"""Opening an index by what is stored of it, as all commands of ``shardkit search`` do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from shardkit.cli.options import OpenTopology
from shardkit.cli.text import printable
from shardkit.errors import InvalidArgumentError, QuerySyntaxError
from shardkit.operations.operation import Blocking
from shardkit.search.index import SearchIndex
from shardkit.search.stored_schema import parameters_of, stored_parameters
from shardkit.search.text.analyzer import Analyzer
from shardkit.search.text.stop_words import ENGLISH

FIELDS = {"title": 3.0, "text": 1.0}
ATTRIBUTES = {"kind": "text", "updated": "date", "size": "number"}
_SHARDS = 4  # of a component that is not sharded

component_option = click.option(
    "--component", default="search", show_default=True, help="Where the data lives."
)
name_option = click.option(
    "--name", default="search", show_default=True, help="The prefix of its keys."
)


def existing(topology: OpenTopology, component: str, name: str) -> SearchIndex[Blocking]:
    """Open an index.

    Raises:
        InvalidArgumentError: there is none.
        ParameterMismatchError: it cannot be opened without the code that created it.
    """
    _, stored = _stored(topology, component, name)
    if stored is None:
        raise InvalidArgumentError(
            f"there is no index {name!r} in component {component!r}",
            "index something first: shardkit search index",
        )
    shards, parameters = parameters_of(name, stored)
    return topology.kit.search(name, component=component, shards=shards, **parameters)


def created(
    topology: OpenTopology,
    component: str,
    name: str,
    *,
    shards: int | None,
    attributes: Mapping[str, str],
    stemming: str | None,
    stop_words: str | None,
    keep_text: bool,
    phrases: bool | None,
) -> SearchIndex[Blocking]:
    """Open an index with what is stored of it, or as one that is new.

    What is given here comes before what is stored: so options that contradict it are refused when
    the index is written to.
    """
    there, stored = _stored(topology, component, name)
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
    if phrases is not None:
        given["phrases"] = phrases
    return topology.kit.search(
        name, component=component, shards=shards or there, keep_text=keep_text, **given
    )


def _stored(topology: OpenTopology, component: str, name: str) -> tuple[int, dict[str, str] | None]:
    """Return in how many parts an index would be, and what is stored of one that there is."""
    shards = len(topology.kit.component(component).shards) or _SHARDS
    [stored] = topology.kit.together(stored_parameters(component, name, shards))
    return shards, stored


@contextmanager
def query_errors() -> Iterator[None]:
    """Show where in a query an error is, above the line that says what it is."""
    try:
        yield
    except QuerySyntaxError as error:
        for line in str(error).splitlines()[-2:]:
            sys.stderr.write(f"{printable(line)}\n")
        raise
