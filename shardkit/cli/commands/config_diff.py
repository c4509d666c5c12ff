"""``shardkit config diff``, and how a push shows what it would change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from shardkit.admin.difference import Difference, between, compare
from shardkit.cli.options import command, config_server, sample_option, target_option
from shardkit.cli.output import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    Cell,
    Column,
    Output,
    Styled,
    Table,
    wordy,
)
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import percent, shard_list
from shardkit.config.component import entry_key
from shardkit.config.diff import ComponentChange, FieldChange
from shardkit.config.shard_map import ShardMap
from shardkit.kit.config_client import config_client
from shardkit.network.survey import server_of
from shardkit.operations.commands import Shard

DIFFERS = 3  # what `diff --exit-code` exits with

_COLOURS = {"added": GOOD, "changed": DOUBTFUL, "removed": BAD}


# ---- for people


def show(output: Output, server: str, difference: Difference) -> None:
    """Show what a push to a config server would change."""
    at = f", epoch {difference.epoch}" if difference.epoch else ""
    output.line(f"config server {server}{at}")
    output.line()
    table = table_of(_change_fields(difference), difference.changes)
    for name in difference.left:
        table.row(name, Styled("not in the map: stays", FAINT), None, None, None)
    output.table(table.without_empty())
    entries = Table.of(wordy("entry"), "what", wordy("now"), wordy("then"))
    for change in difference.changes:
        for row in _entry_rows(change.fields):
            entries.row(*row)
    if entries.rows:
        output.line()
        output.table(entries.without_empty())


def _change_fields(difference: Difference) -> tuple[Field[ComponentChange], ...]:
    def kind(change: ComponentChange) -> Cell:
        text = "same" if change.kind == "unchanged" else change.kind
        return Styled(text, _COLOURS.get(change.kind, FAINT))

    def shards(change: ComponentChange) -> str:
        return _change(change, _count(change.shards_before), _count(change.shards_after))

    def placement(change: ComponentChange) -> str:
        return _change(change, change.placement_before, change.placement_after)

    def sample(change: ComponentChange) -> dict[str, Any] | None:
        if change.component not in difference.sample:
            return None
        real = change.component in difference.real
        return {"keys": change.sampled, "moved": change.moved, "real": real}

    return (
        Field("component", lambda change: change.component, Column("component")),
        Field("change", lambda change: change.kind, Column("change"), kind),
        Field(
            "shards",
            lambda change: {"before": change.shards_before, "after": change.shards_after},
            Column("shards"),
            shards,
        ),
        Field(
            "placement",
            lambda change: {
                "before": change.placement_before or None,
                "after": change.placement_after or None,
            },
            Column("placement"),
            placement,
        ),
        Field(
            "sample",
            sample,
            wordy("keys that move"),
            lambda change: _moves(difference, change),
        ),
        Field("epoch", lambda change: change.epoch or None),
        Field("fields", lambda change: json_rows(_VALUE_FIELDS, change.fields)),
    )


def _count(number: int) -> str:
    return {-1: "unreadable", 0: ""}.get(number, f"{number:,}")


def _change(change: ComponentChange, before: str, after: str) -> str:
    if change.kind in ("added", "removed") or before == after:
        return before or after
    return f"{before or 'none'} → {after or 'none'}"


def _moves(difference: Difference, change: ComponentChange) -> Cell:
    if change.component not in difference.sample:
        return None
    kind = "" if change.component in difference.real else "synthetic "
    share = percent(change.moved, change.sampled)
    return f"{share}: {change.moved:,} of {change.sampled:,} {kind}keys"


def _entry_rows(fields: Sequence[FieldChange]) -> Iterator[list[Cell]]:
    """Yield rows that group equal changes of many entries, and whole entries by server."""
    groups: dict[tuple[str, str | None, str | None], list[Shard]] = {}
    for change in fields:
        before, after = change.before, change.after
        if not change.field:
            before, after = (a and server_of(a) for a in (before, after))
        groups.setdefault((change.field, before, after), []).append(_shard(change.key))
    for (field, before, after), shards in groups.items():
        name = shard_list(shards)
        if field:
            yield [name, field, before, after]
        elif before is None:
            yield [name, Styled("added", GOOD), None, after]
        else:
            yield [name, Styled("removed", BAD), before, None]


def _shard(key: str) -> Shard:
    name = key.removeprefix(entry_key(""))
    match = re.fullmatch(r"(.+):(\d+)", name)
    return Shard(match[1], int(match[2])) if match else Shard(name)


# ---- for programs


def document(
    server: str, difference: Difference, changes: Sequence[ComponentChange]
) -> dict[str, Any]:
    """Return the changes of a push for JSON."""
    return {
        "config_server": server,
        "epoch": difference.epoch,
        "changes": json_rows(_change_fields(difference), changes),
        "not_in_map": list(difference.left),
    }


def _value(change: FieldChange, text: str | None) -> Any:
    return json.loads(text) if change.field and text is not None else text


_VALUE_FIELDS: tuple[Field[FieldChange], ...] = (
    Field("key", lambda change: change.key),
    Field("field", lambda change: change.field or None),
    Field("before", lambda change: _value(change, change.before)),
    Field("after", lambda change: _value(change, change.after)),
)


# ---- the command


@command(
    "shardkit config diff configs/production.yaml",
    "shardkit config diff -c redis://staging configs/production.yaml --exit-code",
    "shardkit config diff 16 17",
    name="diff",
    short_help="Show what a push would change.",
)
@click.argument("shard_map", metavar="MAP|EPOCH", type=click.Path(path_type=Path))
@click.argument("until", metavar="[EPOCH]", required=False, type=click.IntRange(min=0))
@target_option
@sample_option
@click.option("--prune", is_flag=True, help="Like `push --prune`.")
@click.option("--exit-code", is_flag=True, help=f"Exit with {DIFFERS} if there is a difference.")
def diff_command(
    shard_map: Path,
    until: int | None,
    where: str | None,
    size: int,
    prune: bool,
    exit_code: bool,
    output: Output,
) -> int:
    """Show what a push of MAP would change, and how many keys would move.

    With two epochs in place of MAP, show what changed between them.

    If a component's shard count or placement changes, a sample of its keys is placed by the old and
    the new rule. If its servers are empty or cannot be reached, the sample is synthetic.
    """
    if until is None:
        wanted = ShardMap.load(shard_map)
        server = config_server(where, wanted)
        with config_client(server) as client:
            difference = compare(client, wanted, prune, size)
    else:
        since = str(shard_map)
        if not since.isdecimal():
            raise click.UsageError(f"{since} {until}: give two epochs, or a map alone")
        server = config_server(where)
        with config_client(server) as client:
            difference = between(client, int(since), until, size)
    if output.as_json:
        output.document(document(server.address, difference, difference.changes))
    else:
        show(output, server.address, difference)
        if difference.is_empty:
            output.line()
            what = "a push would change" if until is None else "those pushes changed"
            output.line(f"{what} nothing", FAINT)
    return DIFFERS if exit_code and not difference.is_empty else 0
