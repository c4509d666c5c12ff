"""``shardkit config diff``, ``push`` and ``rollback``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import redis

from shardkit.admin.pushes import (
    Difference,
    PreflightFinding,
    between,
    compare,
    holds_data,
    newest_witness,
    preflight,
    push as push_witnessed,
    refuse,
)
from shardkit.cli.options import (
    F,
    command,
    config_option,
    config_server,
    message_option,
    number_option,
    sample_option,
    target_option,
)
from shardkit.cli.output import BAD, DIM, GOOD, WARN, Cell, Column, Output, Styled, Table, wordy
from shardkit.cli.rows import Field, json_rows, table_of
from shardkit.cli.text import percent, shard_list
from shardkit.config import store
from shardkit.config.component import entry_key
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import ComponentChange, FieldChange
from shardkit.errors import ConfigError, PushRefusedError
from shardkit.kit.config_client import config_client
from shardkit.network.survey import server_of
from shardkit.operations.commands import Shard


def _push_options(function: F) -> F:
    """Give a command the options of every push."""
    for option in (
        sample_option,
        message_option,
        click.option(
            "--no-check",
            is_flag=True,
            help="Do not connect to the servers of changed entries.",
        ),
        click.option(
            "--force",
            "forced",
            multiple=True,
            metavar="COMPONENT",
            help="Push this component in spite of what speaks against it. May be repeated.",
        ),
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
    ):
        function = option(function)
    return function


@command(
    "shardkit config push configs/production.yaml --dry-run",
    "shardkit config push configs/production.yaml -m 'shard 3 moves to b'",
    "shardkit config push -c redis://staging configs/production.yaml",
    "shardkit config push configs/production.yaml --restored",
)
@click.argument("shard_map", metavar="MAP", type=click.Path(path_type=Path))
@target_option
@_push_options
@click.option("--prune", is_flag=True, help="Remove components that MAP does not describe.")
@number_option(
    "--above",
    None,
    "After the config server was restored from an old snapshot: give every component of MAP a "
    "higher epoch than this, which clients have seen and log.",
    least=0,
    unit="EPOCH",
)
@click.option(
    "--restored",
    is_flag=True,
    help="The same, above the highest epoch that the servers of the components have witnessed.",
)
def push(shard_map: Path, where: str | None, output: Output, **options: Any) -> None:
    """Write MAP to its config server, atomically.

    Refused if keys would then be looked up on other shards than those that hold them: if a
    component's shard count or placement changes, or it is removed, while its servers hold keys or
    cannot be reached. Every changed entry is connected to before: refused if it names a replica, a
    database that does not exist or does not hold the data of the present one, or a user who lacks
    rights.
    """
    wanted = ShardMap.load(shard_map)
    for problem in wanted.warnings:
        output.warning(str(problem))
    server = config_server(where, wanted)
    with config_client(server) as client:
        _push(output, client, server.address, wanted, **options)
        epoch = store.read_epoch(client)
    if wanted.epoch not in (None, epoch) and not output.as_json and not options["dry_run"]:
        output.line(f"write epoch: {epoch} into {shard_map} now", WARN)


def _push(
    output: Output,
    client: redis.Redis,
    server: str,
    wanted: ShardMap,
    *,
    dry_run: bool,
    forced: Sequence[str],
    no_check: bool,
    message: str,
    size: int,
    prune: bool = True,
    above: int | None = None,
    restored: bool = False,
) -> None:
    """Show what a push changes, check the servers of changed entries, and carry it out."""
    difference = compare(client, wanted, prune, size)
    changes = difference.changes
    if not output.as_json:
        show(output, server, difference)
        output.line()
    for name in forced:
        if name not in {change.component for change in changes}:
            raise ConfigError(
                f"--force {name}: the push does not touch a component of this name",
                "name one that the table shows",
            )
    known = [*difference.current.values(), *wanted.components.values()]
    witnessed, witness = newest_witness(known) if restored or not no_check else (0, "")
    if restored:
        if not witnessed and above is None:
            raise ConfigError(
                "the servers of the map's components have witnessed no epoch",
                "use --above EPOCH: clients log the number",
            )
        above = max(witnessed, above or 0)
    elif witnessed > difference.epoch and above is None and not dry_run:
        raise PushRefusedError(
            f"nothing was pushed: {server} is at epoch {difference.epoch}, and "
            f"{witness} has witnessed epoch {witnessed}: the config server was restored from "
            "an old snapshot, or lost its data",
            "push the newest shard map: shardkit config push MAP --restored",
        )
    findings = [] if no_check else preflight(difference.current, wanted.components)
    _heed(output, findings, forced, dry_run)
    if not dry_run:
        changes = push_witnessed(
            client,
            wanted,
            check=False,  # just done, if asked for
            force=forced,
            prune=prune,
            has_data=holds_data(wanted),
            sample=difference.sample,
            epoch=difference.epoch if wanted.epoch is None else wanted.epoch,
            above=above,
            message=message,
        )
    if output.as_json:
        output.document(
            {
                "pushed": not dry_run,
                **document(server, difference, changes),
                "findings": findings,
            }
        )
    elif dry_run:
        output.line("nothing was pushed: this is a dry run", DIM)
    elif difference.is_empty and above is None:
        output.line("there was nothing to push", DIM)
    else:
        kinds = Counter(change.kind for change in changes if change.kind != "unchanged")
        summary = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
        output.line(f"pushed: {summary}", GOOD)


def _heed(
    output: Output, findings: Sequence[PreflightFinding], forced: Sequence[str], dry_run: bool
) -> None:
    """Show findings, and refuse the push for those of components that are not forced."""
    serious = [f for f in findings if not f.warning and f.component not in forced and not dry_run]
    for finding in findings:
        if finding not in serious:
            output.warning(f"{finding}; {finding.remedy}")
    refuse(serious)


@command(
    "shardkit config rollback 16 --dry-run",
    "shardkit config rollback 16 -m 'the new server is slow'",
)
@click.argument("epoch", type=click.IntRange(min=0))
@config_option
@_push_options
def rollback(epoch: int, where: str | None, output: Output, message: str, **options: Any) -> None:
    """Push the components as they were after the push of EPOCH.

    This is a push of its own, with the next epoch, and is checked like any other: components that
    came later are removed, and nothing is pushed that would strand data.
    """
    server = config_server(where)
    with config_client(server) as client:
        then = store.components_at(client, epoch)
        if not then:
            raise ConfigError(f"epoch {epoch} had no component", "name a later epoch")
        wanted = ShardMap(then, source=f"epoch {epoch}")
        message = message or f"back to epoch {epoch}"
        _push(output, client, server.address, wanted, message=message, **options)


DIFFERS = 3  # what `diff --exit-code` exits with

_COLOURS = {"added": GOOD, "changed": WARN, "removed": BAD}


# ---- for people


def show(output: Output, server: str, difference: Difference) -> None:
    """Show what a push to a config server would change."""
    at = f", epoch {difference.epoch}" if difference.epoch else ""
    output.line(f"config server {server}{at}")
    output.line()
    table = table_of(_change_fields(difference), difference.changes)
    for name in difference.left:
        table.row(name, Styled("not in the map: stays", DIM), None, None, None)
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
        return Styled(text, _COLOURS.get(change.kind, DIM))

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
            output.line(f"{what} nothing", DIM)
    return DIFFERS if exit_code and not difference.is_empty else 0
