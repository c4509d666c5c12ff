"""``shardkit search``: indexes files and installed packages, and shows an index.

``query``, ``export`` and what concerns damage are in `shardkit.cli.commands.search_query`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from shardkit.cli.commands.search_query import (
    created,
    drop,
    existing,
    export,
    index_options,
    query,
    query_errors,
    rebuild,
    verify,
)
from shardkit.cli.options import StructureOptions, command, group, number_option
from shardkit.cli.output import Output, identifier, number
from shardkit.cli.progress import ProgressCallback, progress
from shardkit.cli.rows import Field, column_only, json_rows, table_of
from shardkit.errors import InvalidArgumentError, counted
from shardkit.search.files import (
    KINDS,
    AdaptedDocument,
    FileDocument,
    SkippedFile,
    adapt,
    documents_of,
    files_below,
    installed_documents,
    installed_packages,
)
from shardkit.search.index import PartInfo
from shardkit.search.schema import Schema

_SKIPPED_SHOWN = 10


@group()
def search() -> None:
    """Index documents over shards, and find them."""


for each in (query, export, verify, rebuild, drop):
    search.add_command(each)


# ---- index


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
)
@click.argument("files", metavar="[FILES]...", nargs=-1, type=click.Path(path_type=Path))
@index_options
@click.option("--installed", is_flag=True, help="Index the texts of this Python's packages.")
@click.option(
    "--attribute",
    "attributes",
    metavar="NAME:KIND",
    multiple=True,
    callback=_attributes,
    help="A field of JSON lines to sort and filter by: number, date or text.",
)
@number_option(
    "--shards",
    None,
    "How many parts a new index has. By default as many as the component has shards, or 4.",
    most=16_384,
)
@click.option("--stemming", metavar="LANGUAGE", help="Index stems: english, german, …")
@click.option(
    "--stop-words",
    type=click.Choice(["english", "none"]),
    help="The words that a new index ignores.  [default: english]",
)
@click.option("--no-text", is_flag=True, help="Do not keep the text: no titles, no snippets.")
@click.option("--no-phrases", is_flag=True, help="Do not keep the order of words.")
def index(
    files: Sequence[Path],
    at: StructureOptions,
    installed: bool,
    output: Output,
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
    with at.opened(partial(created, **options)) as found, progress("") as report_progress:
        reading = _DocumentReader(found.schema, report_progress)
        try:
            found.index_many(reading.documents(files, installed))
        except KeyboardInterrupt:
            output.note("the documents so far are indexed; index again to continue")
            raise
    if output.as_json:
        output.document(
            {
                "indexed": reading.indexed,
                "without_text": reading.empty,
                "skipped": reading.skipped,
                "first_skipped": [asdict(skipped) for skipped in reading.first_skipped],
            }
        )
        return int(reading.failed)
    output.line(f"{counted(reading.indexed, 'document')} indexed in {at.name!r}")
    if reading.empty:
        output.note(f"{counted(reading.empty, 'file')} without text")
    if reading.skipped:
        first = "; the first:" if reading.skipped > _SKIPPED_SHOWN else ":"
        output.note(f"{reading.skipped:,} skipped{first}")
        for skipped in reading.first_skipped:
            output.note(f"  {skipped.path}: {skipped.why}")
    return int(reading.failed)


@dataclass
class _DocumentReader:
    """Reads documents, counts them, and reports the progress."""

    schema: Schema
    report_progress: ProgressCallback
    indexed: int = 0
    empty: int = 0
    skipped: int = 0
    failed: bool = False  # whether a path that was named is among them
    first_skipped: list[SkippedFile] = field(default_factory=list)

    def documents(self, paths: Sequence[Path], installed: bool) -> Iterator[AdaptedDocument]:
        """Yield the documents of the files and of installed packages."""
        files = list(self._files(paths))
        named = set(paths)
        for number_, file in enumerate(files):
            self.report_progress(f"{file.name}", number_, len(files))
            nothing, skipped, indexed = True, self.skipped, self.indexed
            for document in documents_of(file):
                nothing = False
                yield from self._fitted(document)
            self.empty += nothing
            if file in named and self.skipped > skipped and self.indexed == indexed:
                self.failed = True
        packages = installed_packages() if installed else []
        for number_, package in enumerate(packages):
            self.report_progress(f"{package.name}", number_, len(packages))
            for document in installed_documents([package]):
                yield from self._fitted(document)

    def _files(self, paths: Sequence[Path]) -> Iterator[Path]:
        there = [path for path in paths if path.exists()]
        for path in paths:
            if path not in there:
                self.failed = True
                self._skip(SkippedFile(str(path), "does not exist"))
            elif not path.is_dir() and path.suffix.lower() not in KINDS:
                kinds = " ".join(KINDS)
                self.failed = True
                self._skip(SkippedFile(str(path), f"is of a kind that is not read: {kinds} are"))
        for found in files_below(there):
            if isinstance(found, Path):
                yield found
            else:
                self._skip(found)

    def _fitted(self, document: FileDocument | SkippedFile) -> Iterator[AdaptedDocument]:
        """Yield a document if it can be indexed; otherwise count it."""
        if isinstance(document, SkippedFile):
            self._skip(document)
            return
        kind = {} if "kind" in document.attributes else {"kind": "jsonl"}
        document.attributes.update(kind)
        try:
            made = adapt(self.schema, document)
        except InvalidArgumentError as error:
            self._skip(SkippedFile(document.id, error.message))
            return
        self.indexed += 1
        yield made

    def _skip(self, skipped: SkippedFile) -> None:
        self.skipped += 1
        if len(self.first_skipped) < _SKIPPED_SHOWN:
            self.first_skipped.append(skipped)


# ---- remove and info


@command(
    "shardkit search remove docs/old.md docs/older.md",
    "shardkit search remove --matching 'kind:=python updated:<2020-01-01'",
    "shardkit search remove --all",
    short_help="Remove documents, or the whole index.",
    group=search,
)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@index_options
@click.option("--matching", metavar="QUERY", help="Remove the documents that a query finds.")
@click.option("--all", "everything", is_flag=True, help="Remove the whole index.")
def remove(
    ids: Sequence[str],
    at: StructureOptions,
    matching: str | None,
    everything: bool,
    output: Output,
) -> None:
    """Remove documents; with - their ids are read from stdin, one per line."""
    if (bool(ids), matching is not None, everything).count(True) != 1:
        raise click.UsageError("name ids, or a query with --matching, or use --all")
    if tuple(ids) == ("-",):
        ids = [line for line in sys.stdin.read().splitlines() if line]
    with at.opened(existing) as found:
        if everything:
            removed = found.delete()
        elif matching is None:
            removed = found.remove_many(ids)
        else:
            with query_errors():
                removed = found.remove_many([hit.id for hit in found.all(matching)])
    output.answer({"removed": removed}, f"{counted(removed, 'document')} removed")


@command(
    "shardkit search info",
    "shardkit search info --json | jq .documents",
    short_help="Show the contents of an index.",
    group=search,
)
@index_options
def info(at: StructureOptions, output: Output) -> None:
    """Show the contents of an index, and the options that it was created with."""
    with at.opened(existing) as found:
        parts = found.info()
    schema = found.schema
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
