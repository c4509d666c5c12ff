"""``shardkit search``: indexes files and installed packages, finds documents, mends an index."""

from __future__ import annotations

import codecs
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias, cast

import click

from shardkit.cli import options as given
from shardkit.cli.options import StructureOptions, command, group
from shardkit.cli.output import GOOD, Cell, Output, identifier, number, wordy
from shardkit.cli.progress import ProgressCallback, progress
from shardkit.cli.rows import Field, column_only, json_rows, table_of
from shardkit.cli.text import printable
from shardkit.config.entry import replacing
from shardkit.errors import InvalidArgumentError, QuerySyntaxError, counted, naming
from shardkit.kit.kit import ShardKit
from shardkit.operations.operation import Blocking, pages
from shardkit.search import files as readers
from shardkit.search.documents import Document, Hit, Results
from shardkit.search.files import bulk_lines, mappings
from shardkit.search.index import PartInfo, SearchIndex
from shardkit.search.query import Node
from shardkit.search.schema import Schema, parameters_of, stored_parameters
from shardkit.search.searcher import query_tree, snippet
from shardkit.search.text import ENGLISH, Analyzer
from shardkit.structures.base.check import Damage

FIELDS = {"title": 3.0, "text": 1.0}
ATTRIBUTES = {"kind": "text", "updated": "date", "size": "number"}
_SHARDS = 4  # for a component that is not sharded

index_options = given.structure("search", "search")


def existing(kit: ShardKit, name: str, component: str) -> SearchIndex[Blocking]:
    """Open an index."""
    _, stored = _stored(kit, name, component)
    if stored is None:
        raise InvalidArgumentError(
            f"component {component!r} has no index {name!r}",
            "index something first: shardkit search index",
        )
    parts, parameters = parameters_of(name, stored)
    return kit.search(name, component=component, parts=parts, **parameters)


def created(
    kit: ShardKit,
    name: str,
    component: str,
    *,
    parts: int | None,
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
    part_count, stored = _stored(kit, name, component)
    given: dict[str, Any]
    if stored is None:
        given = {"fields": FIELDS, "attributes": ATTRIBUTES}
        chosen = Analyzer()
    else:
        part_count, parameters = parameters_of(name, stored)
        given = {**parameters}
        chosen = parameters["analyzer"]
    words = {None: chosen.stop_words, "english": ENGLISH, "none": frozenset[str]()}[stop_words]
    given["analyzer"] = Analyzer(chosen.tokenizer, words, stemming or chosen.stemmer)
    given["attributes"] = {**given["attributes"], **attributes}
    if no_phrases:
        given["phrases"] = False
    return kit.search(
        name, component=component, parts=parts or part_count, keep_text=not no_text, **given
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
    Field("shard", lambda damage: damage.shard, wordy("shard")),
    Field("key", lambda damage: damage.key, wordy("key")),
    Field("found", lambda damage: damage.found, wordy("found")),
    Field("expected", lambda damage: damage.expected, wordy("expected")),
)


@command(
    "shardkit search verify",
    "shardkit search verify --name docs --json",
    short_help="Read a whole index, and show what is damaged.",
)
def verify(output: Output, at: StructureOptions = index_options) -> int:
    """Read everything in an index, and show what is damaged: postings, words, documents, counts.

    Changes nothing; scripts take some milliseconds each. Exits with 1 if anything is damaged.
    """
    with at.opened(existing) as index, output.busy("reading the index"):
        damaged = list(index.check())
        documents = index.count()
    if output.as_json:
        output.document(documents=documents, damaged=json_rows(_DAMAGE_FIELDS, damaged))
    elif damaged:
        output.table(table_of(_DAMAGE_FIELDS, damaged))
        output.line()
        output.bad(f"{counted(len(damaged), 'key')} damaged: shardkit search rebuild")
    else:
        output.good(f"{counted(documents, 'document')}, all of it as it was written")
    return int(bool(damaged))


@command(
    "shardkit search rebuild",
    "shardkit search rebuild --name docs --lossy",
    short_help="Index all documents of an index again.",
)
def rebuild(
    output: Output,
    at: StructureOptions = index_options,
    lossy: bool = given.flag("Delete documents that cannot be read."),
) -> int:
    """Rebuild words, postings, columns and counts from the stored documents.

    Meanwhile searches find only what is indexed so far, and nobody else can write to the index. If
    this is interrupted, run it again. Refused, with nothing changed, if documents are lost or
    cannot be read, unless --lossy. Exits with 1 if anything is damaged afterwards.
    """
    with at.opened(existing) as index, progress("documents") as report_progress:
        done = index.rebuild(lossy=lossy, progress=partial(report_progress, "indexing"))
        left = len(list(index.check()))
    text = f"{counted(done, 'document')} indexed again in {at.name!r}"
    output.answer({"documents": done, "damaged": left}, text, GOOD)
    return int(bool(left))


@command(
    "shardkit search drop --name old", "shardkit search drop --yes", short_help="Delete an index."
)
def drop(output: Output, at: StructureOptions = index_options, yes: bool = given.yes) -> None:
    """Delete an index with all its documents and parameters, in slices, for good."""
    with at.opened(existing) as index:
        documents = index.count()
        if not yes:
            question = f"Delete index {at.name!r} with {counted(documents, 'document')} for good?"
            click.confirm(question, abort=True, err=True)
        removed = index.delete()
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
    limit=given.number(10, "How many to show.", 0, short="-n", most=10_000),
    facets=given.repeated("NAME", "Count an attribute's values.", name="--facet"),
    partial=given.flag("Accept results of only some shards."),
)
def query(
    output: Output,
    words: str = given.argument("QUERY"),
    at: StructureOptions = index_options,
    sort: str | dict[str, float] = given.option(
        "ORDER",
        "relevance; an attribute, -ATTRIBUTE for descending; or weights, NAME=WEIGHT,…",
        default="relevance",
        callback=_sort,
    ),
    offset: int = given.number(0, "How many to skip.", 0),
    cursor: str | None = given.option(
        None, "The page that follows the one that showed this cursor."
    ),
    plain: bool = given.flag("Take QUERY as words, without a syntax."),
    **options: Any,
) -> None:
    """Find documents.

    A document must contain all words of QUERY. +word after a word is its synonym, -word excludes
    documents, "words in quotes" must be adjacent, word* is a prefix. title:word searches only the
    title; size:>1000, updated:2024-01-01..2024-06-30 and kind:=markdown compare attributes. *
    alone matches everything.
    """
    with query_errors(), at.opened(existing) as index:
        began = time.perf_counter()
        arguments = {"sort": sort, "offset": offset, "cursor": cursor, "plain": plain, **options}
        results = index.search(words, attributes=True, **arguments)
        seconds = time.perf_counter() - began
        previews = _previews(index, query_tree(index.schema, words, plain=plain), results)
    fields = _hit_fields(index, results, previews, sort, offset if cursor is None else None)
    if output.wrote_json(_document(results, fields, seconds)):
        return
    if len(results):
        output.table(table_of(fields, results).without_empty())
        output.line()
    for facet, values in results.facets.items():
        output.table(table_of(_facet_fields(facet), values))
        output.line()
    output.line(f"{_counts(results, offset, cursor)}, in {seconds * 1000:.0f} ms")
    if results.cursor:
        output.dim(f"the next page: --cursor {results.cursor}")
    if results.partial:
        output.warning(f"{counted(len(results.missing), 'part')} did not answer")


def _previews(index: SearchIndex[Blocking], tree: Node, results: Results) -> dict[str, _Preview]:
    """Return titles, and snippets of the other fields, of hits whose text is kept."""
    analyzer = index.schema.analyzer
    shown: dict[str, _Preview] = {}
    for key, document in index.get_many(hit.id for hit in results).items():
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
    index: SearchIndex[Blocking],
    results: Results,
    previews: dict[str, _Preview],
    sort: str | dict[str, float],
    offset: int | None,
) -> tuple[Field[Hit], ...]:
    by = sort.removeprefix("-") if isinstance(sort, str) else "score"
    kind = index.schema.attributes.get(by)
    heading = "score" if by == "relevance" else by
    ranks = {} if offset is None else {hit.id: n for n, hit in enumerate(results, 1 + offset)}
    return (
        column_only(number("#"), lambda hit: ranks.get(hit.id)),
        Field(
            "value",
            lambda hit: _plain(hit.value),
            wordy(heading) if kind in ("text", "date") else number(heading),
            lambda hit: _value(hit, by, kind),
        ),
        Field("title", lambda hit: previews.get(hit.id, (None, None))[0], wordy("title")),
        Field("id", lambda hit: hit.id, wordy("id")),
        Field("snippet", lambda hit: previews.get(hit.id, (None, None))[1], wordy("text")),
        Field("attributes", lambda hit: {k: _plain(v) for k, v in hit.attributes.items()}),
    )


def _facet_fields(name: str) -> tuple[Field[tuple[Any, int]], ...]:
    return (
        Field(
            "value",
            lambda row: _plain(row[0]),
            wordy(name),
            lambda row: _number_text(row[0]) if isinstance(row[0], float) else row[0],
        ),
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


@command(
    "shardkit search export --mappings",
    "shardkit search export --output docs.ndjson",
    "shardkit search export 'kind:=markdown *' --index docs | split -l 2000 - docs.",
    short_help="Write documents for a dedicated engine.",
)
def export(
    output: Output,
    words: str = given.argument("[QUERY]", default="*"),
    at: StructureOptions = index_options,
    file: Path | None = given.option(
        None, "Write to a file.", type=given.PATH, short="-o", name="--output"
    ),
    target: str | None = given.option(
        None, "The name of the index there.  [default: --name]", name="--index"
    ),
    only_mappings: bool = given.flag("Write only the index's mappings.", name="--mappings"),
) -> None:
    """Write all documents, or those that QUERY finds, in the bulk format of OpenSearch.

    This is two lines of JSON per document, which Elasticsearch accepts too. A file is replaced when
    it is complete.
    """
    with query_errors(), at.opened(existing) as index:
        if only_mappings:
            with _target(file) as out:
                out.write(json.dumps(mappings(index.schema), indent=2) + "\n")
            return
        written = 0
        with _target(file) as out, progress("documents") as report_progress:
            total = index.search(words, limit=0).total
            for document in _documents(index, words):
                out.write(bulk_lines(document, target or at.name))
                written += 1
                if written % _AT_ONCE == 0:
                    report_progress("writing", written, max(total, written))
    if file is not None and output.as_json:
        output.document(written=written, file=str(file))
    elif file is not None:
        output.note(f"{counted(written, 'document')} written to {file}")


def _documents(index: SearchIndex[Blocking], words: str) -> Iterator[Document]:
    """Yield the documents that a query finds, with text, except those removed in the meantime."""
    for page in pages((hit.id for hit in index.all(words, page_size=10_000)), _AT_ONCE):
        documents = index.get_many(page)
        yield from (documents[key] for key in page if key in documents)


@contextmanager
def _target(file: Path | None) -> Iterator[TextIO]:
    """Give stdout, or a temporary file that replaces the target at the end."""
    if file is None:
        yield sys.stdout
        return
    with naming(file), replacing(file, keeps=True) as raw:
        yield cast("TextIO", codecs.getwriter("utf-8")(raw))


_SKIPPED_SHOWN = 10


@group()
def search() -> None:
    """Index documents over shards, and find them."""


for subcommand in (query, export, verify, rebuild, drop):
    search.add_command(subcommand)


def _attributes(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    kinds = {}
    for value in values:
        name, colon, kind = value.rpartition(":")
        if not colon or kind not in ("number", "date", "text"):
            raise click.BadParameter(f"{value!r} is not NAME:number, NAME:date or NAME:text")
        kinds[name] = kind
    return kinds


@command(
    "shardkit search index docs notes.txt",
    "shardkit search index --installed --stemming english",
    "shardkit search index posts.jsonl --attribute votes:number --attribute tags:text",
    group=search,
    attributes=given.repeated(
        "NAME:KIND",
        "A field of JSON lines to sort and filter by: number, date or text.",
        callback=_attributes,
        name="--attribute",
    ),
    parts=given.number(
        None,
        "How many parts a new index has. By default as many as the component has shards, or 4.",
        most=16_384,
    ),
    stemming=given.option("LANGUAGE", "Index stems: english, german, …"),
    stop_words=given.choice(
        ["english", "none"], "The words that a new index ignores.  [default: english]"
    ),
    no_text=given.flag("Do not keep the text: no titles, no snippets."),
    no_phrases=given.flag("Do not keep the order of words."),
)
def index(
    output: Output,
    files: Sequence[Path] = given.argument("[FILES]...", nargs=-1, type=given.PATH),
    at: StructureOptions = index_options,
    installed: bool = given.flag("Index the texts of this Python's packages."),
    **options: Any,
) -> int:
    """Index files, and the files of folders.

    Each file of plain text, Markdown, HTML or Python (its docstrings) is a document. JSON lines
    (.jsonl) have a document per line: its id, title, and text (or body, or content), and the
    fields that --attribute names.

    A document's id is its path as given here; it replaces the document with the same id. All
    documents have a title and a text, and the attributes kind, updated and size. An index keeps the
    options that it was created with. Exits with 1 if a file or folder named here cannot be indexed.
    """
    if not files and not installed:
        raise click.UsageError("nothing to index: name files or folders, or use --installed")
    with at.opened(partial(created, **options)) as opened, progress("") as report_progress:
        reading = _DocumentReader(opened.schema, report_progress)
        try:
            opened.index_many(reading.documents(files, installed))
        except KeyboardInterrupt:
            output.note("the documents so far are indexed; index again to continue")
            raise
    if output.wrote_json(
        indexed=reading.indexed,
        without_text=reading.empty,
        skipped=reading.skipped,
        first_skipped=reading.first_skipped,
    ):
        return int(reading.failed)
    output.line(f"{counted(reading.indexed, 'document')} indexed in {at.name!r}")
    if reading.empty:
        output.note(f"{counted(reading.empty, 'file')} without text")
    if reading.skipped:
        first = "; the first:" if reading.skipped > _SKIPPED_SHOWN else ":"
        output.note(f"{reading.skipped:,} skipped{first}")
        for skipped in reading.first_skipped:
            output.note(f"  {skipped.path}: {skipped.reason}")
    return int(reading.failed)


@dataclass
class _DocumentReader:
    schema: Schema
    report_progress: ProgressCallback
    indexed: int = 0
    empty: int = 0
    skipped: int = 0
    failed: bool = False  # whether a path that was named is among them
    first_skipped: list[readers.SkippedFile] = field(default_factory=list)

    def documents(
        self, paths: Sequence[Path], installed: bool
    ) -> Iterator[readers.AdaptedDocument]:
        files = list(self._files(paths))
        named = set(paths)
        for number_, file in enumerate(files):
            self.report_progress(f"{file.name}", number_, len(files))
            nothing, skipped, indexed = True, self.skipped, self.indexed
            for document in readers.documents_of(file):
                nothing = False
                yield from self._fitted(document)
            self.empty += nothing
            if file in named and self.skipped > skipped and self.indexed == indexed:
                self.failed = True
        packages = readers.installed_packages() if installed else []
        for number_, package in enumerate(packages):
            self.report_progress(f"{package.name}", number_, len(packages))
            for document in readers.installed_documents([package]):
                yield from self._fitted(document)

    def _files(self, paths: Sequence[Path]) -> Iterator[Path]:
        existing = [path for path in paths if path.exists()]
        for path in paths:
            if path not in existing:
                self.failed = True
                self._skip(readers.SkippedFile(str(path), "does not exist"))
            elif not path.is_dir() and path.suffix.lower() not in readers.KINDS:
                kinds = " ".join(readers.KINDS)
                self.failed = True
                self._skip(
                    readers.SkippedFile(str(path), f"is of a kind that is not read: {kinds} are")
                )
        for readable in readers.files_below(existing):
            if isinstance(readable, Path):
                yield readable
            else:
                self._skip(readable)

    def _fitted(
        self, document: readers.FileDocument | readers.SkippedFile
    ) -> Iterator[readers.AdaptedDocument]:
        """Yield a document if it can be indexed; otherwise count it."""
        if isinstance(document, readers.SkippedFile):
            self._skip(document)
            return
        kind = {} if "kind" in document.attributes else {"kind": "jsonl"}
        document.attributes.update(kind)
        try:
            adapted = readers.adapt(self.schema, document)
        except InvalidArgumentError as error:
            self._skip(readers.SkippedFile(document.id, error.message))
            return
        self.indexed += 1
        yield adapted

    def _skip(self, skipped: readers.SkippedFile) -> None:
        self.skipped += 1
        if len(self.first_skipped) < _SKIPPED_SHOWN:
            self.first_skipped.append(skipped)


@command(
    "shardkit search remove docs/old.md docs/older.md",
    "shardkit search remove --matching 'kind:=python updated:<2020-01-01'",
    "shardkit search remove --all",
    short_help="Remove documents, or the whole index.",
    group=search,
)
def remove(
    output: Output,
    ids: Sequence[str] = given.argument("[ID]...", nargs=-1),
    at: StructureOptions = index_options,
    matching: str | None = given.option("QUERY", "Remove the documents that a query finds."),
    everything: bool = given.flag("Remove the whole index.", name="--all"),
) -> None:
    """Remove documents; with - their ids are read from stdin, one per line."""
    if (bool(ids), matching is not None, everything).count(True) != 1:
        raise click.UsageError("name ids, or a query with --matching, or use --all")
    if tuple(ids) == ("-",):
        ids = [line for line in sys.stdin.read().splitlines() if line]
    with at.opened(existing) as index:
        if everything:
            removed = index.delete()
        elif matching is None:
            removed = index.remove_many(ids)
        else:
            with query_errors():
                removed = index.remove_many([hit.id for hit in index.all(matching)])
    output.answer({"removed": removed}, f"{counted(removed, 'document')} removed")


@command(
    "shardkit search info",
    "shardkit search info --json | jq .documents",
    short_help="Show the contents of an index.",
    group=search,
)
def info(output: Output, at: StructureOptions = index_options) -> None:
    """Show the contents of an index, and the options that it was created with."""
    with at.opened(existing) as index:
        parts = index.info()
    schema = index.schema
    documents = sum(part.documents for part in parts)
    if output.as_json:
        about: dict[str, Any] = {
            "documents": documents,
            "fields": dict(schema.fields),
            "attributes": dict(schema.attributes),
            "stemming": schema.analyzer.stemmer,
            "stop_words": len(schema.analyzer.stop_words),
            "phrases": schema.phrases,
            "parts": json_rows(_PART_FIELDS, enumerate(parts)),
        }
        output.document(about)
        return
    stems = f"{schema.analyzer.stemmer} stems" if schema.analyzer.stemmer else "words as they are"
    stop_words = counted(len(schema.analyzer.stop_words), "stop word")
    fields = ", ".join(f"{key} (weight {weight:g})" for key, weight in schema.fields.items())
    phrases = "" if schema.phrases else ", no phrases"
    output.line(f"{counted(documents, 'document')} in {counted(len(parts), 'part')}")
    output.line(f"fields: {fields}; {stems}, {stop_words}{phrases}")
    output.line("attributes: " + ", ".join(f"{k} ({v})" for k, v in schema.attributes.items()))
    output.table(table_of(_PART_FIELDS, enumerate(parts)))


_PART_FIELDS: tuple[Field[tuple[int, PartInfo]], ...] = (
    column_only(identifier("part"), lambda part: part[0]),
    Field("documents", lambda part: part[1].documents, number("documents")),
    Field("words", lambda part: part[1].words, number("words")),
    Field("numbers", lambda part: part[1].numbers),
    Field("version", lambda part: part[1].version, number("writes")),
)
