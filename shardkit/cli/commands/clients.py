"""``shardkit clients`` and ``keys``: what is connected to servers, and their biggest keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import click

from shardkit.admin.client_list import ClientProcess, connected_clients
from shardkit.admin.keys import BigKey, biggest_keys
from shardkit.cli.options import ShardOptions, command, config_option, number_option, opened
from shardkit.cli.output import DIM, WARN, Column, Output, identifier, number, wordy
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import printable, reason, size
from shardkit.errors import counted


@command(
    "shardkit clients -c redis://config.internal",
    "shardkit clients --using unique",
    "shardkit clients --older-than 17 --json | jq '.clients[].host'",
)
@config_option
@click.option("--using", metavar="COMPONENT", help="Only those that use this component.")
@number_option(
    "--older-than",
    None,
    "Only those that use entries of an earlier push, or whose epoch is unknown.",
    unit="EPOCH",
)
def clients(where: str | None, using: str | None, older_than: int | None, output: Output) -> int:
    """Show the processes that are connected to the servers: their user, components and age.

    By the names of connections, which shardkit gives them; other programs are shown by address.
    Exits with 1 if a server cannot be asked.
    """
    with opened(where) as topology:
        chosen, _ = topology.components([using] if using else [], ShardOptions())
    processes, failed = connected_clients(chosen.values(), topology.config_server)
    shown = [
        process
        for process in processes
        if (using is None or using in process.components)
        and (older_than is None or (process.epoch or 0) < older_than)
    ]
    if output.as_json:
        output.document(
            {
                "clients": json_rows(_FIELDS, shown),
                "failed": {server: reason(error) for server, error in failed.items()},
            }
        )
        return int(bool(failed))
    if shown:
        output.table(table_of(_FIELDS, shown).without_empty())
    output.line()
    connections = sum(process.connections for process in shown)
    output.line(f"{counted(len(shown), 'client')}, {counted(connections, 'connection')}", DIM)
    for server, error in failed.items():
        output.line(f"{server} was not asked: {reason(error)}", WARN)
    return int(bool(failed))


_FIELDS: tuple[Field[ClientProcess], ...] = (
    Field("host", lambda each: each.host, Column("host")),
    Field("pid", lambda each: each.pid or None, identifier("pid")),
    Field("library", lambda each: each.library or None, wordy("library")),
    Field(
        "users",
        lambda each: sorted(each.users),
        wordy("user"),
        lambda e: ", ".join(sorted(e.users)),
    ),
    Field(
        "components",
        lambda each: sorted(each.components),
        wordy("components"),
        lambda each: ", ".join(sorted(each.components)),
    ),
    Field("epoch", lambda each: each.epoch, identifier("epoch")),
    Field("entries", lambda each: each.entries),
    Field("connections", lambda each: each.connections, number("conns")),
    Field("idle_seconds", lambda each: each.idle, number("idle s")),
    Field("age_seconds", lambda each: each.age, number("age s")),
)


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
        chosen, _ = topology.components(names, ShardOptions())
    seen = 0
    with output.busy("inspecting keys") as tell:

        def progress(inspected: int) -> None:
            nonlocal seen
            seen = inspected
            tell(f"inspecting keys: {inspected:,}")

        biggest = biggest_keys(list(chosen.values()), count, by=by, match=match, progress=progress)
    if output.as_json:
        output.document({"keys": json_rows(_KEY_FIELDS, biggest), "inspected": seen})
        return
    output.table(table_of(_KEY_FIELDS, biggest))
    output.line()
    output.line(f"{counted(seen, 'key')} inspected", DIM)


def _key(each: BigKey) -> str:
    return each.key.decode(errors="backslashreplace")


_KEY_FIELDS: tuple[Field[BigKey], ...] = (
    Field("key", _key, wordy("key"), lambda each: printable(_key(each))),
    Field("shard", lambda each: each.shard, wordy("shard")),
    Field("type", lambda each: each.kind, Column("type")),
    Field("memory", lambda each: each.memory, number("memory"), lambda each: size(each.memory)),
    Field("elements", lambda each: each.elements, number("elements")),
)
