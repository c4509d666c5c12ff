"""Opens an index by its stored parameters; ``shardkit search verify``, ``rebuild``, ``drop``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from shardkit.cli.options import StructureOptions, command, structure_options
from shardkit.cli.output import BAD, GOOD, Output, wordy
from shardkit.cli.progress import progress
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import printable
from shardkit.errors import InvalidArgumentError, QuerySyntaxError, counted
from shardkit.kit.kit import ShardKit
from shardkit.operations.operation import Blocking
from shardkit.search.index import SearchIndex
from shardkit.search.model.schema import parameters_of, stored_parameters
from shardkit.search.text.analyzer import ENGLISH, Analyzer
from shardkit.structures.base.check import Damage

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


_DAMAGE_FIELDS: tuple[Field[Damage], ...] = (
    Field("shard", lambda each: each.shard, wordy("shard")),
    Field("key", lambda each: each.key, wordy("key")),
    Field("found", lambda each: each.found, wordy("found")),
    Field("expected", lambda each: each.expected, wordy("expected")),
)


@command(
    "shardkit search verify",
    "shardkit search verify --name docs --json",
    short_help="Read a whole index, and show what is damaged.",
)
@index_options
def verify(at: StructureOptions, output: Output) -> int:
    """Read everything in an index, and show what is damaged: postings, words, documents, counts.

    Changes nothing; scripts take some milliseconds each. Exits with 1 if anything is damaged.
    """
    with at.opened(existing) as found, output.busy("reading the index"):
        damaged = list(found.check())
        documents = found.count()
    if output.as_json:
        output.document({"documents": documents, "damaged": json_rows(_DAMAGE_FIELDS, damaged)})
    elif damaged:
        output.table(table_of(_DAMAGE_FIELDS, damaged))
        output.line()
        output.line(f"{counted(len(damaged), 'key')} damaged: shardkit search rebuild", BAD)
    else:
        output.line(f"{counted(documents, 'document')}, all of it as it was written", GOOD)
    return int(bool(damaged))


@command(
    "shardkit search rebuild",
    "shardkit search rebuild --name docs --lossy",
    short_help="Index all documents of an index again.",
)
@index_options
@click.option("--lossy", is_flag=True, help="Delete documents that cannot be read.")
def rebuild(at: StructureOptions, lossy: bool, output: Output) -> int:
    """Rebuild words, postings, columns and counts from the stored documents.

    Meanwhile searches find only what is indexed so far, and nobody else can write to the index. If
    this is interrupted, run it again. Refused, with nothing changed, if documents are lost or
    cannot be read, unless --lossy. Exits with 1 if anything is damaged afterwards.
    """
    with at.opened(existing) as found, progress("documents") as report_progress:
        done = found.rebuild(lossy=lossy, progress=partial(report_progress, "indexing"))
        left = len(list(found.check()))
    text = f"{counted(done, 'document')} indexed again in {at.name!r}"
    output.answer({"documents": done, "damaged": left}, text, GOOD)
    return int(bool(left))


@command(
    "shardkit search drop --name old", "shardkit search drop --yes", short_help="Delete an index."
)
@index_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(at: StructureOptions, yes: bool, output: Output) -> None:
    """Delete an index with all its documents and parameters, in slices, for good."""
    with at.opened(existing) as found:
        documents = found.count()
        if not yes:
            asked = f"Delete index {at.name!r} with {counted(documents, 'document')} for good?"
            click.confirm(asked, abort=True, err=True)
        removed = found.delete()
    text = f"index {at.name!r} deleted: {counted(removed, 'document')}"
    output.answer({"removed": removed}, text, GOOD)
