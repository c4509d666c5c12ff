"""``shardkit search`` on an index that is there: query, export, verify, rebuild and drop."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import click

from shardkit.cli.options import StructureOptions, command, number_option, structure_options
from shardkit.cli.output import BAD, DIM, GOOD, Cell, Output, number, wordy
from shardkit.cli.progress import progress
from shardkit.cli.rows import Field, column_only, json_rows, table_of
from shardkit.cli.text import printable
from shardkit.errors import InvalidArgumentError, QuerySyntaxError, counted, naming
from shardkit.kit.kit import ShardKit
from shardkit.operations.operation import Blocking, pages
from shardkit.search.documents import Document, Hit, Results
from shardkit.search.files import bulk_lines, mappings
from shardkit.search.index import SearchIndex
from shardkit.search.query import Node
from shardkit.search.schema import parameters_of, stored_parameters
from shardkit.search.searcher import query_tree, snippet
from shardkit.search.text import ENGLISH, Analyzer
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


_AT_ONCE = 1_000

_Preview: TypeAlias = tuple[str | None, str | None]  # a document's title and a snippet of it


def _sort(ctx: click.Context, param: click.Parameter, value: str) -> str | dict[str, float]:
    if "=" not in value:
        return value
    weights = {}
    for pair in value.split(","):
        name, _, weight = pair.partition("=")
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            raise click.BadParameter(f"{pair!r} is not NAME=WEIGHT") from None
    return weights


@command(
    "shardkit search query 'redis shard*'",
    "shardkit search query 'title:lock +mutex -\"dead lock\"' --limit 5",
    "shardkit search query '* kind:=markdown updated:2024-01-01..' --sort -updated",
    "shardkit search query --plain 'Re: pizza (large'",
    "shardkit search query cache --sort relevance=1,size=0.001 --facet kind",
    "shardkit search query cache --json | jq -r '.hits[].id'",
)
@click.argument("words", metavar="QUERY")
@index_options
@click.option(
    "--sort",
    metavar="ORDER",
    default="relevance",
    show_default=True,
    callback=_sort,
    help="relevance; an attribute, -ATTRIBUTE for descending; or weights, NAME=WEIGHT,…",
)
@number_option("--limit", 10, "How many to show.", short="-n", least=0, most=10_000)
@number_option("--offset", 0, "How many to skip.", least=0)
@click.option("--cursor", help="The page that follows the one that showed this cursor.")
@click.option(
    "--facet", "facets", metavar="NAME", multiple=True, help="Count an attribute's values."
)
@click.option("--plain", is_flag=True, help="Take QUERY as words, without a syntax.")
@click.option("--partial", is_flag=True, help="Accept results of only some shards.")
def query(
    words: str,
    at: StructureOptions,
    sort: str | dict[str, float],
    offset: int,
    cursor: str | None,
    plain: bool,
    output: Output,
    **options: Any,
) -> None:
    """Find documents.

    A document must contain all words of QUERY. +word after a word is its synonym, -word excludes
    documents, "words in quotes" must be adjacent, word* is a prefix. title:word searches only the
    title; size:>1000, updated:2024-01-01..2024-06-30 and kind:=markdown compare attributes. *
    alone matches everything.
    """
    with query_errors(), at.opened(existing) as found:
        began = time.perf_counter()
        asked = {"sort": sort, "offset": offset, "cursor": cursor, "plain": plain, **options}
        results = found.search(words, attributes=True, **asked)
        seconds = time.perf_counter() - began
        previews = _previews(found, query_tree(found.schema, words, plain=plain), results)
    fields = _hit_fields(found, results, previews, sort, offset if cursor is None else None)
    if output.as_json:
        output.document(_document(results, fields, seconds))
        return
    if len(results):
        output.table(table_of(fields, results).without_empty())
        output.line()
    for facet, values in results.facets.items():
        output.table(table_of(_facet_fields(facet), values))
        output.line()
    output.line(f"{_counts(results, offset, cursor)}, in {seconds * 1000:.0f} ms")
    if results.cursor:
        output.line(f"the next page: --cursor {results.cursor}", DIM)
    if results.partial:
        output.warning(f"{counted(len(results.missing), 'part')} did not answer")


def _previews(found: SearchIndex[Blocking], tree: Node, results: Results) -> dict[str, _Preview]:
    """Return titles and snippets of hits whose text is kept.

    The title is shown anyway, so snippets are of the other fields.
    """
    analyzer = found.schema.analyzer
    shown: dict[str, _Preview] = {}
    for key, document in found.get_many(hit.id for hit in results).items():
        if document.text:
            title = document.text.pop("title", None)
            name, text = next(iter(document.text.items()), ("title", title or ""))
            shown[key] = title, snippet(text, tree, analyzer, field=name)
    return shown


def _document(results: Results, fields: Sequence[Field[Hit]], seconds: float) -> dict[str, Any]:
    return {
        "total": results.total,
        "hits": json_rows(fields, results),
        "cursor": results.cursor,
        "facets": {
            name: json_rows(_facet_fields(name), values) for name, values in results.facets.items()
        },
        "missing": list(results.missing),
        "seconds": round(seconds, 6),
    }


def _plain(value: Any) -> Any:
    """Return a value for JSON: dates and infinite numbers become text."""
    if isinstance(value, date | datetime):
        return value.isoformat()
    return str(value) if value in (math.inf, -math.inf) else value


def _hit_fields(
    found: SearchIndex[Blocking],
    results: Results,
    previews: dict[str, _Preview],
    sort: str | dict[str, float],
    offset: int | None,
) -> tuple[Field[Hit], ...]:
    by = sort.removeprefix("-") if isinstance(sort, str) else "score"
    kind = found.schema.attributes.get(by)
    heading = "score" if by == "relevance" else by
    ranks = {} if offset is None else {hit.id: n for n, hit in enumerate(results, 1 + offset)}

    def preview(hit: Hit) -> _Preview:
        return previews.get(hit.id, (None, None))

    return (
        column_only(number("#"), lambda hit: ranks.get(hit.id)),
        Field(
            "value",
            lambda hit: _plain(hit.value),
            wordy(heading) if kind in ("text", "date") else number(heading),
            lambda hit: _value(hit, by, kind),
        ),
        Field("title", lambda hit: preview(hit)[0], wordy("title")),
        Field("id", lambda hit: hit.id, wordy("id")),
        Field("snippet", lambda hit: preview(hit)[1], wordy("text")),
        Field("attributes", lambda hit: {k: _plain(v) for k, v in hit.attributes.items()}),
    )


def _facet_fields(name: str) -> tuple[Field[tuple[Any, int]], ...]:
    def value(row: tuple[Any, int]) -> Cell:
        return _number_text(row[0]) if isinstance(row[0], float) else row[0]

    return (
        Field("value", lambda row: _plain(row[0]), wordy(name), value),
        Field("documents", lambda row: row[1], number("documents")),
    )


def _value(hit: Hit, by: str, kind: str | None) -> Cell:
    if kind and by not in hit.attributes:
        return None  # sorted as zero
    if kind == "date" and isinstance(hit.value, float):
        try:
            return datetime.fromtimestamp(hit.value, UTC).strftime("%Y-%m-%d %H:%M")
        except (ValueError, OverflowError, OSError):
            return _number_text(hit.value)
    if kind == "number" and isinstance(hit.value, float):
        return _number_text(hit.value)
    return hit.value


def _number_text(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:,g}"


def _counts(results: Results, offset: int, cursor: str | None) -> str:
    matches = "1 document matches" if results.total == 1 else f"{results.total:,} documents match"
    if not len(results):
        return matches
    if cursor is not None:
        return f"{matches}, {len(results):,} shown"
    return f"{matches}, {offset + 1:,} to {offset + len(results):,} shown"


# ---- export


@command(
    "shardkit search export --mappings",
    "shardkit search export --output docs.ndjson",
    "shardkit search export 'kind:=markdown *' --index docs | split -l 2000 - docs.",
    short_help="Write documents for a dedicated engine.",
)
@click.argument("words", metavar="[QUERY]", default="*")
@index_options
@click.option("-o", "--output", "file", type=click.Path(path_type=Path), help="Write to a file.")
@click.option("--index", "target", help="The name of the index there.  [default: --name]")
@click.option("--mappings", "only_mappings", is_flag=True, help="Write only the index's mappings.")
def export(
    words: str,
    at: StructureOptions,
    file: Path | None,
    target: str | None,
    only_mappings: bool,
    output: Output,
) -> None:
    """Write all documents, or those that QUERY finds, in the bulk format of OpenSearch.

    This is two lines of JSON per document, which Elasticsearch accepts too. A file is replaced when
    it is complete.
    """
    with query_errors(), at.opened(existing) as found:
        if only_mappings:
            with _target(file) as out:
                out.write(json.dumps(mappings(found.schema), indent=2) + "\n")
            return
        written = 0
        with _target(file) as out, progress("documents") as report_progress:
            total = found.search(words, limit=0).total
            for document in _documents(found, words):
                out.write(bulk_lines(document, target or at.name))
                written += 1
                if written % _AT_ONCE == 0:
                    report_progress("writing", written, max(total, written))
    if file is not None and output.as_json:
        output.document({"written": written, "file": str(file)})
    elif file is not None:
        output.note(f"{counted(written, 'document')} written to {file}")


def _documents(found: SearchIndex[Blocking], words: str) -> Iterator[Document]:
    """Yield the documents that a query finds, with text, except those removed in the meantime."""
    for page in pages((hit.id for hit in found.all(words, page_size=10_000)), _AT_ONCE):
        documents = found.get_many(page)
        yield from (documents[key] for key in page if key in documents)


@contextmanager
def _target(file: Path | None) -> Iterator[TextIO]:
    """Give stdout, or a temporary file that replaces the target at the end."""
    if file is None:
        yield sys.stdout
        return
    half = file.with_name(f"{file.name}.part")
    try:
        with naming(half), half.open("w", encoding="utf-8") as out:
            yield out
        os.replace(half, file)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
