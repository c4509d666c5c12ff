"""``shardkit config``, and its ``validate``, ``show``, ``pull`` and ``history``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from shardkit.admin.pushes import FileProblem, examine, problems_of_servers, users_of
from shardkit.cli.commands.config_push import diff_command, push, rollback
from shardkit.cli.options import (
    ShardOptions,
    command,
    config_option,
    config_server,
    file_option,
    group,
    note_by_hand,
    number_option,
    opened,
    shards_options,
)
from shardkit.cli.output import (
    BAD,
    DIM,
    GOOD,
    WARN,
    Cell,
    Column,
    Output,
    Styled,
    identifier,
    number,
    wordy,
    write_private,
)
from shardkit.cli.rows import Field, column_only, json_row, json_rows, table_of
from shardkit.cli.text import server_list
from shardkit.config import store
from shardkit.config.component import Component
from shardkit.config.entry import LOCATION, Entry, mask
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import PushRecord
from shardkit.errors import ConfigError, counted, few
from shardkit.kit.config_client import config_client
from shardkit.operations.commands import Shard


@command(
    "shardkit config show -c configs/local.yaml",
    "shardkit config show -c redis://config.internal unique",
    "shardkit config show --json | jq .components.unique.shards",
    "shardkit config show --at 16 unique",
    name="show",
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@config_option
@shards_options
@number_option("--at", None, "As they were after a push.", least=0, unit="EPOCH")
def show_command(
    names: Sequence[str], where: str | None, sharding: ShardOptions, at: int | None, output: Output
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
        chosen = {name: then[name] for name in names or sorted(then)}
    if output.as_json:
        output.document(
            {
                "source": source,
                "components": {
                    name: json_row(_COMPONENT_FIELDS, each) for name, each in chosen.items()
                },
                "broken": {name: str(error) for name, error in broken.items()},
            }
        )
        return int(bool(broken))
    if names:
        entries = [pair for component in chosen.values() for pair in component.entries()]
        output.table(table_of(_ENTRY_FIELDS, entries).without_empty())
    else:
        output.table(table_of(_COMPONENT_FIELDS, chosen.values()).without_empty())
    for name, error in broken.items():
        output.line(f"{name} cannot be used: {error}", BAD)
    return int(bool(broken))


_COMPONENT_FIELDS: tuple[Field[Component], ...] = (
    column_only("component", lambda component: component.name),
    Field(
        "shards",
        lambda component: [entry.masked() for entry in component.shards],
        number("shards"),
        lambda component: len(component.shards) or None,
    ),
    Field(
        "placement",
        lambda component: component.placement if component.shards else None,
        Column("placement"),
    ),
    Field("epoch", lambda component: component.epoch or None, identifier("epoch")),
    Field(
        "entry",
        lambda component: None if component.entry is None else component.entry.masked(),
        wordy("entry"),
        lambda component: None if component.entry is None else component.entry.address,
    ),
    column_only(
        wordy("shards on"),
        lambda component: server_list(entry.address for entry in component.shards),
    ),
)


_ENTRY_FIELDS: tuple[Field[tuple[Shard, Entry]], ...] = (
    column_only("entry", lambda each: str(each[0])),
    column_only("server", lambda each: each[1].address),
    column_only(wordy("settings"), lambda each: _settings(each[1])),
)


def _settings(entry: Entry) -> str:
    """Return the settings of an entry apart from its location, secrets masked."""
    said = {n: v for n, v in entry.masked().items() if n not in LOCATION - {"sentinel"} | {"db"}}
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in said.items()
    )


# ---- pull


@command(
    "shardkit config pull -c redis://config.internal",
    "shardkit config pull -o backup.yaml --show-secrets",
)
@config_option
@file_option
@click.option("--show-secrets", is_flag=True, help="Passwords in the clear.")
def pull(where: str | None, written: Path | None, show_secrets: bool, output: Output) -> None:
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
        write_private(str(written), chosen.to_yaml())
    if output.as_json:
        output.document(
            {
                "config_server": server.address,
                "written": None if written is None else str(written),
                "masked": secrets and not show_secrets,
                "components": {
                    name: json_row(_COMPONENT_FIELDS, component)
                    for name, component in chosen.components.items()
                },
            }
        )
    elif written is not None:
        output.line(f"wrote {written}: {contents_of(pulled)}", GOOD)
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


# ---- history and rollback


@command(
    "shardkit config history -c redis://config.internal",
    "shardkit config history --json | jq '.pushes[0]'",
    short_help="Show the last pushes.",
)
@config_option
def history(where: str | None, output: Output) -> None:
    """Show the last 100 pushes: when, who, from which map, what changed and why."""
    server = config_server(where)
    with config_client(server) as client:
        records = store.read_history(client)
    if output.as_json:
        output.document(
            {"config_server": server.address, "pushes": json_rows(_PUSH_FIELDS, records)}
        )
    elif records:
        output.table(table_of(_PUSH_FIELDS, records).without_empty())
    else:
        output.line("there is no history: nothing was pushed yet", DIM)


def _when(record: PushRecord) -> str:
    return datetime.fromtimestamp(record.at, UTC).isoformat(timespec="seconds")


_PUSH_FIELDS: tuple[Field[PushRecord], ...] = (
    Field("epoch", lambda record: record.epoch, identifier("epoch")),
    Field("at", _when, Column("at"), lambda record: _when(record)[:19].replace("T", " ")),
    Field("author", lambda record: record.author, wordy("author")),
    Field("source", lambda record: record.source, wordy("map")),
    Field(
        "components",
        lambda record: sorted(record.before),
        wordy("components"),
        lambda record: ", ".join(sorted(record.before)),
    ),
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
@click.argument("maps", metavar="MAP...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option("--connect", is_flag=True, help="Also connect to the servers, as a push does.")
def validate(maps: Sequence[Path], strict: bool, connect: bool, output: Output) -> int:
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
        for path, shard_map, found in examined:
            found += [] if shard_map is None else problems_of_servers(path, shard_map)
    findings = [finding for _, _, found in examined for finding in found]
    failed = any(strict or not finding.warning for finding in findings)
    if output.as_json:
        output.document(
            {
                "valid": all(shard_map is not None for _, shard_map, _ in examined),
                "maps": [
                    {"file": str(path), "valid": shard_map is not None, "problems": found}
                    for path, shard_map, found in examined
                ],
            }
        )
        return int(failed)
    if findings:
        output.table(table_of(_problem_fields(output), findings))
        output.line()
    for path, shard_map, found in examined:
        if shard_map is None:
            output.line(f"{path} cannot be used: {counted(len(found), 'problem')}", BAD)
        else:
            warned = f", {counted(len(found), 'warning')}" if found else ""
            colour = WARN if found else GOOD
            output.line(f"{path} can be used: {contents_of(shard_map)}{warned}", colour)
            if not connect and (users := users_of(shard_map)):
                output.line(
                    f"its servers have users of their own ({few(users, ', ')}): whether a restart "
                    "would lose writes is seen with --connect",
                    DIM,
                )
    return int(failed)


def _problem_fields(output: Output) -> tuple[Field[FileProblem], ...]:
    if output.interactive and output.width < _WIDE:
        return (
            column_only(wordy("place"), lambda finding: finding.place),
            column_only(wordy("field and value"), _field_and_value),
            column_only(
                wordy("problem and remedy"), lambda f: f"{_shown_problem(f)}\n→ {f.remedy}"
            ),
        )

    def problem(finding: FileProblem) -> Cell:
        return Styled(_shown_problem(finding), WARN if finding.warning else BAD)

    return (
        column_only("place", lambda finding: finding.place),
        column_only(wordy("field"), lambda finding: finding.field),
        column_only(wordy("value"), lambda finding: finding.value),
        column_only(wordy("problem"), problem),
        column_only(wordy("remedy"), lambda finding: finding.remedy),
    )


def _field_and_value(finding: FileProblem) -> str:
    return "\n".join(filter(None, [finding.field.removeprefix("components."), finding.value]))


def _shown_problem(finding: FileProblem) -> str:
    return f"warning: {finding.problem}" if finding.warning else finding.problem


def contents_of(shard_map: ShardMap) -> str:
    """Return what a map describes: ``3 components, 24 shards``."""
    shards = sum(len(component.shards) for component in shard_map.components.values())
    named = counted(len(shard_map.components), "component")
    return f"{named}, {counted(shards, 'shard')}"


for each in (validate, diff_command, push, pull, show_command, history, rollback):
    config.add_command(each)
