"""``shardkit config``: shows, checks and changes the configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import redis

from shardkit.admin.map_file import FileProblem, examine, problems_of_servers, users_of
from shardkit.admin.pushes import (
    Difference,
    between,
    compare,
    holds_data,
    newest_witness,
    preflight,
    push as push_witnessed,
    refuse,
)
from shardkit.cli import options as given
from shardkit.cli.options import ShardOptions, command, config_server, group, note_by_hand, opened
from shardkit.cli.output import (
    BAD,
    DIM,
    GOOD,
    WARN,
    Cell,
    Column,
    Output,
    Styled,
    Table,
    identifier,
    number,
    wordy,
)
from shardkit.cli.rows import Field, column_only, json_row, json_rows, table_of
from shardkit.cli.text import percent, server_list, shard_list
from shardkit.config import store
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import LOCATION, Entry, mask, write_private
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import ComponentChange, FieldChange, PushRecord
from shardkit.errors import ConfigError, PushRefusedError, counted, few, natural
from shardkit.kit.config_client import config_client
from shardkit.network.survey import server_of
from shardkit.operations.commands import Shard

# What every push takes.
_PUSHING = {
    "dry_run": given.flag("Only show what would change."),
    "forced": given.repeated(
        "COMPONENT",
        "Push this component in spite of what speaks against it. May be repeated.",
        name="--force",
    ),
    "no_check": given.flag("Do not connect to the servers of changed entries."),
    "message": given.message,
    "size": given.sample,
}


@command(
    "shardkit config push configs/production.yaml --dry-run",
    "shardkit config push configs/production.yaml -m 'shard 3 moves to b'",
    "shardkit config push -c redis://staging configs/production.yaml",
    "shardkit config push configs/production.yaml --restored",
    prune=given.flag("Remove components that MAP does not describe."),
    above=given.number(
        None,
        "After the config server was restored from an old snapshot: give every component of MAP a "
        "higher epoch than this, which clients have seen and log.",
        least=0,
        unit="EPOCH",
    ),
    restored=given.flag(
        "The same, above the highest epoch that the servers of the components have witnessed."
    ),
    **_PUSHING,
)
def push(
    output: Output,
    shard_map: Path = given.shard_map,
    where: str | None = given.target,
    **options: Any,
) -> None:
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
        output.warn(f"write epoch: {epoch} into {shard_map} now")


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
    serious = [f for f in findings if not f.warning and f.component not in forced and not dry_run]
    for finding in findings:
        if finding not in serious:
            output.warning(f"{finding}; {finding.remedy}")
    refuse(serious)
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
            pushed=not dry_run, **document(server, difference, changes), findings=findings
        )
    elif dry_run:
        output.dim("nothing was pushed: this is a dry run")
    elif difference.is_empty and above is None:
        output.dim("there was nothing to push")
    else:
        kinds = Counter(change.kind for change in changes if change.kind != "unchanged")
        summary = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
        output.good(f"pushed: {summary}")


@command(
    "shardkit config rollback 16 --dry-run",
    "shardkit config rollback 16 -m 'the new server is slow'",
    **_PUSHING,
)
def rollback(
    output: Output,
    epoch: int = given.argument(type=click.IntRange(min=0)),
    where: str | None = given.config,
    message: str = given.message,
    **options: Any,
) -> None:
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


def show(output: Output, server: str, difference: Difference) -> None:
    """Show what a push to a config server would change."""
    at = f", epoch {difference.epoch}" if difference.epoch else ""
    output.line(f"config server {server}{at}")
    output.line()
    table = table_of(_change_fields(difference), difference.changes)
    for name in difference.left:
        table.row(name, Styled("not in the map: stays", DIM), None, None, None)
    output.table(table.without_empty())
    entries = Table.of(*map(wordy, ("entry", "what", "now", "then")))
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
        Field("component", lambda change: change.component, wordy("component")),
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
            wordy("placement"),
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
        whole = change.key.removeprefix(entry_key(""))
        name, _, number = whole.rpartition(":")
        shard = Shard(name, int(number)) if name and number.isdecimal() else Shard(whole)
        groups.setdefault((change.field, before, after), []).append(shard)
    for (field, before, after), shards in groups.items():
        name = shard_list(shards)
        if field:
            yield [name, field, before, after]
        elif before is None:
            yield [name, Styled("added", GOOD), None, after]
        else:
            yield [name, Styled("removed", BAD), before, None]


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


@command(
    "shardkit config diff configs/production.yaml",
    "shardkit config diff -c redis://staging configs/production.yaml --exit-code",
    "shardkit config diff 16 17",
    name="diff",
    short_help="Show what a push would change.",
)
def diff_command(
    output: Output,
    shard_map: Path = given.argument("MAP|EPOCH", type=given.PATH),
    until: int | None = given.argument("[EPOCH]", required=False, type=click.IntRange(min=0)),
    where: str | None = given.target,
    size: int = given.sample,
    prune: bool = given.flag("Like `push --prune`."),
    exit_code: bool = given.flag(f"Exit with {DIFFERS} if there is a difference."),
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
    if not output.wrote_json(document(server.address, difference, difference.changes)):
        show(output, server.address, difference)
        if difference.is_empty:
            output.line()
            what = "a push would change" if until is None else "those pushes changed"
            output.dim(f"{what} nothing")
    return DIFFERS if exit_code and not difference.is_empty else 0


@command(
    "shardkit config show -c configs/local.yaml",
    "shardkit config show -c redis://config.internal unique",
    "shardkit config show --json | jq .components.unique.shards",
    "shardkit config show --at 16 unique",
    name="show",
)
def show_command(
    output: Output,
    names: Sequence[str] = given.components,
    where: str | None = given.config,
    sharding: ShardOptions = given.sharding,
    at: int | None = given.number(None, "As they were after a push.", 0, unit="EPOCH"),
) -> int:
    """Show all components, or every entry of the named ones.

    Connects only to the config server. Exits with 1 if a component cannot be used.
    """
    if at is not None and sharding.shards is not None:
        raise click.UsageError("--shards is for entries as they are now: leave --at out")
    if at is None:
        with opened(where) as topology:
            chosen, broken = topology.components(names, sharding)
            source = topology.name
    else:
        server = config_server(where)
        source, broken = f"config server {server.address}, epoch {at}", {}
        with config_client(server) as client:
            then = store.components_at(client, at)
        for name in set(names) - then.keys():
            raise ConfigError(f"component {name!r} was not there at epoch {at}", "name another")
        chosen = {name: then[name] for name in names or sorted(then, key=natural)}
    if output.wrote_json(
        source=source,
        components={name: json_row(_COMPONENT_FIELDS, row) for name, row in chosen.items()},
        broken={name: str(error) for name, error in broken.items()},
    ):
        return int(bool(broken))
    if names:
        entries = [pair for component in chosen.values() for pair in component.entries()]
        table = Table.of(wordy("entry"), "server", wordy("settings"))
        for shard, entry in entries:
            table.row(str(shard), entry.address, _settings(entry))
        output.table(table.without_empty())
    else:
        output.table(table_of(_COMPONENT_FIELDS, chosen.values()).without_empty())
    for name, error in broken.items():
        output.bad(f"{name} cannot be used: {error}")
    return int(bool(broken))


_COMPONENT_FIELDS: tuple[Field[Component], ...] = (
    column_only(wordy("component"), lambda component: component.name),
    Field(
        "shards",
        lambda component: [entry.masked() for entry in component.shards],
        number("shards"),
        lambda component: len(component.shards) or None,
    ),
    Field(
        "placement",
        lambda component: component.placement if component.shards else None,
        wordy("placement"),
    ),
    Field("epoch", lambda component: component.epoch or None, identifier("epoch")),
    Field(
        "entry",
        lambda component: None if component.entry is None else component.entry.masked(),
        Column("entry"),
        lambda component: None if component.entry is None else component.entry.address,
    ),
    column_only(
        wordy("shards on"),
        lambda component: server_list(entry.address for entry in component.shards),
    ),
)


def _settings(entry: Entry) -> str:
    """Return the settings of an entry apart from its location, secrets masked."""
    rest = {n: v for n, v in entry.masked().items() if n not in LOCATION - {"sentinel"} | {"db"}}
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in rest.items()
    )


@command(
    "shardkit config pull -c redis://config.internal",
    "shardkit config pull -o backup.yaml --show-secrets",
)
def pull(
    output: Output,
    where: str | None = given.config,
    written: Path | None = given.file,
    show_secrets: bool = given.flag("Passwords in the clear."),
) -> None:
    """Show the contents of the config server as a shard map.

    Passwords are masked, and ${NAME} references stay as they are. A file is meant to be pushed
    again, so it is not written with masked passwords: use --show-secrets.
    """
    server = config_server(where)
    with config_client(server) as client:
        pulled = store.pull(client, server)
    for name, component in pulled.components.items():
        if component.by_hand is not None:
            note_by_hand(name, len(component.shards), "; otherwise change `placement:` in the map")
    masked = masked_map(pulled)
    secrets = masked.to_yaml() != pulled.to_yaml()
    if written is not None and secrets and not show_secrets:
        raise ConfigError(
            f"{written} was not written: there are passwords in the entries, and masked ones would "
            "be pushed as passwords",
            "use --show-secrets, or keep passwords as ${NAME} in the map and push it",
        )
    chosen = pulled if show_secrets else masked
    if written is not None:
        write_private(written, chosen.to_yaml())
    if output.as_json:
        output.document(
            config_server=server.address,
            written=None if written is None else str(written),
            masked=secrets and not show_secrets,
            components={
                name: json_row(_COMPONENT_FIELDS, component)
                for name, component in chosen.components.items()
            },
        )
    elif written is not None:
        output.good(f"wrote {written}: {contents_of(pulled)}")
    else:
        output.text(chosen.to_yaml())
        if secrets and not show_secrets:
            output.warning("passwords are masked: do not push this map")


def masked_map(shard_map: ShardMap) -> ShardMap:
    """Return a map in which every secret is ``***``."""
    components = {
        name: component.with_entries(lambda _, entry: Entry(entry.masked()))
        for name, component in shard_map.components.items()
    }
    server = shard_map.config_server
    return replace(
        shard_map, components=components, config_server=server and Entry(server.masked())
    )


@command(
    "shardkit config history -c redis://config.internal",
    "shardkit config history --json | jq '.pushes[0]'",
    short_help="Show the last pushes.",
)
def history(output: Output, where: str | None = given.config) -> None:
    """Show the last 100 pushes: when, who, from which map, what changed and why."""
    server = config_server(where)
    with config_client(server) as client:
        records = store.read_history(client)
    if output.as_json:
        output.document(config_server=server.address, pushes=json_rows(_PUSH_FIELDS, records))
    elif records:
        output.table(table_of(_PUSH_FIELDS, records).without_empty())
    else:
        output.dim("there is no history: nothing was pushed yet")


def _when(record: PushRecord) -> str:
    return datetime.fromtimestamp(record.at, UTC).isoformat(timespec="seconds")


_PUSH_FIELDS: tuple[Field[PushRecord], ...] = (
    Field("epoch", lambda record: record.epoch, identifier("epoch")),
    Field("at", _when, Column("at (UTC)"), lambda record: _when(record)[:19].replace("T", " ")),
    Field("author", lambda record: record.author, wordy("author")),
    Field("source", lambda record: record.source, wordy("map")),
    Field("components", lambda record: sorted(record.before), wordy("components")),
    Field("message", lambda record: record.message, wordy("message")),
)


@group()
def config() -> None:
    """Show and change the configuration."""


_WIDE = 140  # columns; in a narrower terminal the table has three


@command(
    "shardkit config validate configs/*.yaml",
    "shardkit config validate --strict --json configs/production.yaml",
)
def validate(
    output: Output,
    maps: Sequence[Path] = given.argument("MAP...", nargs=-1, required=True, type=given.PATH),
    strict: bool = given.flag("Exit with 1 for warnings too."),
    connect: bool = given.flag("Also connect to the servers, as a push does."),
) -> int:
    """Show everything that is wrong with shard maps.

    Connects to nothing, unless --connect. So it does not see what only servers report: a
    wrong role or database, a file that two of them save to, or that a restart loses what scripts
    and MULTI wrote, as of a Redis 7.0 with an append-only file whose default user has no rights.
    Exits with 1 if a map cannot be used.
    """
    for path in maps:
        if mask("", str(path)) != str(path):
            ShardMap.load(path)  # of an address with a password, the error shows nothing
    examined = [(path, *examine(path)) for path in maps]
    if connect:
        for path, shard_map, problems in examined:
            problems += [] if shard_map is None else problems_of_servers(path, shard_map)
    findings = [finding for _, _, problems in examined for finding in problems]
    failed = any(strict or not finding.warning for finding in findings)
    if output.wrote_json(
        valid=all(shard_map is not None for _, shard_map, _ in examined),
        maps=[
            {"file": str(path), "valid": shard_map is not None, "problems": problems}
            for path, shard_map, problems in examined
        ],
    ):
        return int(failed)
    if findings:
        output.table(_problem_table(output, findings))
        output.line()
    for path, shard_map, problems in examined:
        if shard_map is None:
            output.bad(f"{path} cannot be used: {counted(len(problems), 'problem')}")
        else:
            warned = f", {counted(len(problems), 'warning')}" if problems else ""
            colour = WARN if problems else GOOD
            output.line(f"{path} can be used: {contents_of(shard_map)}{warned}", colour)
            if not connect and (users := users_of(shard_map)):
                output.dim(
                    f"its servers have users of their own ({few(users, ', ')}): whether a restart "
                    "would lose writes is seen with --connect"
                )
    return int(failed)


def _problem_table(output: Output, findings: Sequence[FileProblem]) -> Table:
    narrow = output.interactive and output.width < _WIDE
    table = Table.of("place", *map(wordy, ("field", "value", "problem", "remedy")))
    if narrow:
        table = Table.of(*map(wordy, ("place", "field and value", "problem and remedy")))
    for row in findings:
        problem = f"{'warning: ' * row.warning}{row.problem}"
        if narrow:
            what = "\n".join(filter(None, [row.field.removeprefix("components."), row.value]))
            table.row(row.place, what, f"{problem}\n→ {row.remedy}")
        else:
            colour = WARN if row.warning else BAD
            table.row(row.place, row.field, row.value, Styled(problem, colour), row.remedy)
    return table


def contents_of(shard_map: ShardMap) -> str:
    """Return what a map describes: ``3 components, 24 shards``."""
    shards = sum(len(component.shards) for component in shard_map.components.values())
    named = counted(len(shard_map.components), "component")
    return f"{named}, {counted(shards, 'shard')}"


for subcommand in (validate, diff_command, push, pull, show_command, history, rollback):
    config.add_command(subcommand)
