"""``shardkit keys``: the biggest keys over all shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from shardkit.admin.keys import BigKey, biggest_keys
from shardkit.cli.options import (
    ShardOptions,
    command,
    components,
    config_option,
    number_option,
    opened,
)
from shardkit.cli.output import FAINT, Column, Output, number, wordy
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import printable, size
from shardkit.errors import counted


@command(
    "shardkit keys --biggest 20",
    "shardkit keys --biggest 5 --by elements timelines",
    "shardkit keys --biggest 10 --match 'unique:2026-*' --json",
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@config_option
@number_option("--biggest", 20, "How many to show.", parameter="count")
@click.option(
    "--by",
    type=click.Choice(["memory", "elements"]),
    default="memory",
    show_default=True,
    help="The measure of a key's size.",
)
@click.option("--match", metavar="PATTERN", help="Only keys that match, as of SCAN.")
def keys(
    names: Sequence[str],
    where: str | None,
    count: int,
    by: Literal["memory", "elements"],
    match: str | None,
    output: Output,
) -> None:
    """Show the biggest keys of all components, or of the named ones, over all their shards.

    Every key is inspected, 500 in an exchange. Memory is the server's estimate, which samples some
    elements of each key.
    """
    with opened(where) as topology:
        chosen, _ = components(topology, names, ShardOptions())
    seen = 0
    with output.busy("inspecting keys") as tell:

        def progress(inspected: int) -> None:
            nonlocal seen
            seen = inspected
            tell(f"inspecting keys: {inspected:,}")

        biggest = biggest_keys(list(chosen.values()), count, by=by, match=match, progress=progress)
    if output.as_json:
        output.document({"keys": json_rows(_FIELDS, biggest), "inspected": seen})
        return
    output.table(table_of(_FIELDS, biggest))
    output.line()
    output.line(f"{counted(seen, 'key')} inspected", FAINT)


def _key(each: BigKey) -> str:
    return each.key.decode(errors="backslashreplace")


_FIELDS: tuple[Field[BigKey], ...] = (
    Field("key", _key, wordy("key"), lambda each: printable(_key(each))),
    Field("shard", lambda each: each.shard, wordy("shard")),
    Field("type", lambda each: each.kind, Column("type")),
    Field("memory", lambda each: each.memory, number("memory"), lambda each: size(each.memory)),
    Field("elements", lambda each: each.elements, number("elements")),
)
