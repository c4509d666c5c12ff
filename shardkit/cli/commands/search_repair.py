"""``shardkit search verify``, ``rebuild`` and ``drop``."""

from __future__ import annotations

from functools import partial

import click

from shardkit.cli.commands.search_index import existing, index_options
from shardkit.cli.options import StructureOptions, command
from shardkit.cli.output import BAD, GOOD, Output, wordy
from shardkit.cli.progress import progress
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.errors import counted
from shardkit.structures.base.check import Damage

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
