"""``shardkit config``: show and change the configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import click
import redis

from shardkit.admin.push import newest_witness
from shardkit.admin.push import push as push_witnessed
from shardkit.cli.commands.config_diff import between, compare, document, holds_data, show
from shardkit.cli.commands.config_findings import FileProblem, examine
from shardkit.cli.commands.config_preflight import PreflightFinding, preflight
from shardkit.cli.options import (
    common_options,
    components,
    config_option,
    config_server,
    connected,
    examples,
    file_option,
    opened,
    target_option,
)
from shardkit.cli.output import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    Cell,
    Column,
    Output,
    Styled,
    number,
    wordy,
    write_private,
)
from shardkit.cli.rows import Field, column_only, json_row, json_rows, table_of
from shardkit.cli.text import counted, server_list
from shardkit.config import store
from shardkit.config.component import Component
from shardkit.config.diff import SAMPLE_SIZE, ComponentChange
from shardkit.config.entry import LOCATION, Entry
from shardkit.config.history import PushRecord
from shardkit.config.shard_map import ShardMap
from shardkit.errors import ConfigError, PushRefusedError
from shardkit.operations.commands import Shard

DIFFERS = 3  # what `diff --exit-code` exits with
_WIDE = 140
_MOST_FINDINGS = 5  # that an error lists

_MAP = click.Path(path_type=Path)
_sample_option = click.option(
    "--sample",
    "size",
    type=click.IntRange(min=1),
    default=SAMPLE_SIZE,
    show_default=True,
    metavar="N",
    help="How many keys of a component to sample.",
)


_message_option = click.option(
    "-m", "--message", default="", metavar="TEXT", help="Why, for `shardkit config history`."
)


@click.group(
    epilog=examples(
        "shardkit config validate configs/*.yaml",
        "shardkit config diff configs/production.yaml",
        "shardkit config push configs/production.yaml",
        "shardkit config show unique",
    )
)
def config() -> None:
    """Show and change the configuration."""


# ---- validate


@config.command(
    short_help="Show what is wrong with shard maps.",
    epilog=examples(
        "shardkit config validate configs/*.yaml",
        "shardkit config validate --strict --json configs/production.yaml",
    ),
)
@click.argument("maps", metavar="MAP...", nargs=-1, required=True, type=_MAP)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@common_options
def validate(maps: Sequence[Path], strict: bool, as_json: bool) -> int:
    """Show everything that is wrong with shard maps.

    Connects to nothing. Exits with 1 if a map cannot be used.
    """
    output = Output(as_json)
    examined = [(path, *examine(path)) for path in maps]
    findings = [finding for _, _, found in examined for finding in found]
    failed = any(strict or not finding.warning for finding in findings)
    if as_json:
        output.document(
            {
                "valid": all(shard_map is not None for _, shard_map, _ in examined),
                "maps": [
                    {
                        "file": str(path),
                        "valid": shard_map is not None,
                        "problems": [asdict(finding) for finding in found],
                    }
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
            colour = DOUBTFUL if found else GOOD
            output.line(f"{path} can be used: {_contents(shard_map)}{warned}", colour)
    return int(failed)


def _problem_fields(output: Output) -> tuple[Field[FileProblem], ...]:
    if output.interactive and output.width < _WIDE:
        return (
            column_only(wordy("place"), lambda finding: finding.place),
            column_only(wordy("field and value"), _field_and_value),
            column_only(wordy("problem and remedy"), lambda f: f"{_problem(f)}\n→ {f.remedy}"),
        )

    def problem(finding: FileProblem) -> Cell:
        return Styled(_problem(finding), DOUBTFUL if finding.warning else BAD)

    return (
        column_only("place", lambda finding: finding.place),
        column_only(wordy("field"), lambda finding: finding.field),
        column_only(wordy("value"), lambda finding: finding.value),
        column_only(wordy("problem"), problem),
        column_only(wordy("remedy"), lambda finding: finding.remedy),
    )


def _field_and_value(finding: FileProblem) -> str:
    return "\n".join(filter(None, [finding.field.removeprefix("components."), finding.value]))


def _problem(finding: FileProblem) -> str:
    return f"warning: {finding.problem}" if finding.warning else finding.problem


def _contents(shard_map: ShardMap) -> str:
    shards = sum(len(component.shards) for component in shard_map.components.values())
    named = counted(len(shard_map.components), "component")
    return f"{named}, {counted(shards, 'shard')}"


# ---- diff and push


@config.command(
    short_help="Show what a push would change.",
    epilog=examples(
        "shardkit config diff configs/production.yaml",
        "shardkit config diff -c redis://staging configs/production.yaml --exit-code",
        "shardkit config diff 16 17",
    ),
)
@click.argument("shard_map", metavar="MAP|EPOCH", type=_MAP)
@click.argument("until", metavar="[EPOCH]", required=False, type=click.IntRange(min=0))
@target_option
@_sample_option
@click.option("--prune", is_flag=True, help="Like `push --prune`.")
@click.option("--exit-code", is_flag=True, help=f"Exit with {DIFFERS} if there is a difference.")
@common_options
def diff(
    shard_map: Path,
    until: int | None,
    where: str | None,
    size: int,
    prune: bool,
    exit_code: bool,
    as_json: bool,
) -> int:
    """Show what a push of MAP would change, and how many keys would move.

    With two epochs in place of MAP, show what changed between them.

    If a component's shard count or placement changes, a sample of its keys is placed by the old and
    the new rule. If its servers are empty or cannot be reached, the sample is synthetic.
    """
    output = Output(as_json)
    if until is None:
        wanted = ShardMap.load(shard_map)
        server = config_server(where, wanted)
        with connected(server) as client:
            difference = compare(client, wanted, prune, size)
    else:
        since = str(shard_map)
        if not since.isdecimal():
            raise click.UsageError(f"{since} {until}: give two epochs, or a map alone")
        server = config_server(where)
        with connected(server) as client:
            difference = between(client, int(since), until, size)
    if as_json:
        output.document(document(server.address, difference, difference.changes))
    else:
        show(output, server.address, difference)
        if difference.is_empty:
            output.line()
            what = "a push would change" if until is None else "those pushes changed"
            output.line(f"{what} nothing", FAINT)
    return DIFFERS if exit_code and not difference.is_empty else 0


@config.command(
    short_help="Write a map to its config server.",
    epilog=examples(
        "shardkit config push configs/production.yaml --dry-run",
        "shardkit config push configs/production.yaml -m 'shard 3 moves to b'",
        "shardkit config push -c redis://staging configs/production.yaml",
        "shardkit config push configs/production.yaml --restored",
    ),
)
@click.argument("shard_map", metavar="MAP", type=_MAP)
@target_option
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option(
    "--force",
    "forced",
    multiple=True,
    metavar="COMPONENT",
    help="Push this component in spite of what speaks against it. May be repeated.",
)
@click.option("--no-check", is_flag=True, help="Do not connect to the servers of changed entries.")
@click.option("--prune", is_flag=True, help="Remove components that MAP does not describe.")
@click.option(
    "--above",
    type=click.IntRange(min=0),
    metavar="EPOCH",
    help="After the config server was restored from an old snapshot: give every component of MAP a "
    "higher epoch than this, which clients have seen and say in their log.",
)
@click.option(
    "--restored",
    is_flag=True,
    help="The same, above the highest epoch that the servers of the components have witnessed.",
)
@_message_option
@_sample_option
@common_options
def push(
    shard_map: Path,
    where: str | None,
    dry_run: bool,
    forced: Sequence[str],
    no_check: bool,
    prune: bool,
    above: int | None,
    restored: bool,
    message: str,
    size: int,
    as_json: bool,
) -> None:
    """Write MAP to its config server, atomically.

    Refused if keys would then be looked up on other shards than those that hold them: if a
    component's shard count or placement changes, or it is removed, while its servers hold keys or
    cannot be reached. Every changed entry is connected to before: refused if it names a replica, a
    database that does not exist or does not hold the data of the present one, or a user who lacks
    rights.
    """
    output = Output(as_json)
    wanted = ShardMap.load(shard_map)
    for problem in wanted.warnings:
        output.warning(str(problem))
    server = config_server(where, wanted)
    with connected(server) as client:
        _push(
            _PushOptions(dry_run, forced, no_check, prune, above, restored, size, message),
            output,
            client,
            server.address,
            wanted,
        )
        epoch = store.read_epoch(client)
    if wanted.epoch not in (None, epoch) and not as_json and not dry_run:
        output.line(f"write epoch: {epoch} into {shard_map} now", DOUBTFUL)


@dataclass(frozen=True)
class _PushOptions:
    """The options of a push; see the command's help."""

    dry_run: bool
    forced: Sequence[str]
    no_check: bool
    prune: bool
    above: int | None
    restored: bool
    size: int
    message: str


def _push(
    options: _PushOptions, output: Output, client: redis.Redis, server: str, wanted: ShardMap
) -> None:
    """Show what a push changes, look at what it points clients at, carry it out, and say so."""
    above, dry_run = options.above, options.dry_run
    difference = compare(client, wanted, options.prune, options.size)
    changes = difference.changes
    if not output.as_json:
        show(output, server, difference)
        output.line()
    for name in options.forced:
        if name not in {change.component for change in changes}:
            raise ConfigError(
                f"--force {name}: the push does not touch a component of this name",
                "name one that the table shows",
            )
    known = [*difference.current.values(), *wanted.components.values()]
    looks = options.restored or not options.no_check
    witnessed, witness = newest_witness(known) if looks else (0, "")
    if options.restored:
        above = _above(witnessed, above)
    elif witnessed > difference.epoch and above is None and not dry_run:
        raise PushRefusedError(
            f"nothing was pushed: {server} is at epoch {difference.epoch}, and "
            f"{witness} has witnessed epoch {witnessed}: the config server was restored from "
            "an old snapshot, or lost its data",
            "push the newest shard map: shardkit config push MAP --restored",
        )
    findings = [] if options.no_check else preflight(difference.current, wanted.components)
    _heed(output, findings, options.forced, dry_run)
    if not dry_run:
        changes = push_witnessed(
            client,
            wanted,
            force=options.forced,
            prune=options.prune,
            has_data=holds_data(wanted),
            sample=difference.sample,
            epoch=difference.epoch if wanted.epoch is None else wanted.epoch,
            above=above,
            message=options.message,
        )
    if output.as_json:
        output.document(
            {
                "pushed": not dry_run,
                **document(server, difference, changes),
                "findings": [asdict(finding) for finding in findings],
            }
        )
    elif dry_run:
        output.line("nothing was pushed: this is a dry run", FAINT)
    elif difference.is_empty and above is None:
        output.line("there was nothing to push", FAINT)
    else:
        output.line(f"pushed: {_summary(changes)}", GOOD)


def _above(witnessed: int, above: int | None) -> int:
    if not witnessed and above is None:
        raise ConfigError(
            "no server of the map's components has witnessed an epoch",
            "say --above EPOCH: clients have the number in their log",
        )
    return max(witnessed, above or 0)


def _heed(
    output: Output, findings: Sequence[PreflightFinding], forced: Sequence[str], dry_run: bool
) -> None:
    """Show findings, and refuse the push for those of components that are not forced."""
    serious = [f for f in findings if not f.warning and f.component not in forced and not dry_run]
    for finding in findings:
        if finding not in serious:
            output.warning(f"{finding}; {finding.remedy}")
    if serious:
        names = dict.fromkeys(finding.component for finding in serious)
        shown = [str(finding) for finding in serious[:_MOST_FINDINGS]]
        if len(serious) > _MOST_FINDINGS:
            shown.append(f"and {len(serious) - _MOST_FINDINGS} more")
        raise PushRefusedError(
            f"nothing was pushed: {'; '.join(shown)}",
            f"{serious[0].remedy}, or push with {store.force_options(names)}",
        )


def _summary(changes: Sequence[ComponentChange]) -> str:
    kinds = Counter[str](change.kind for change in changes if change.kind != "unchanged")
    return ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))


# ---- pull


@config.command(
    short_help="Show the config server as a map.",
    epilog=examples(
        "shardkit config pull -c redis://config.internal",
        "shardkit config pull -o backup.yaml --show-secrets",
    ),
)
@config_option
@file_option
@click.option("--show-secrets", is_flag=True, help="Passwords in the clear.")
@common_options
def pull(where: str | None, written: Path | None, show_secrets: bool, as_json: bool) -> None:
    """Show the contents of the config server as a shard map.

    Passwords are masked, and ${NAME} references stay as they are. A file is meant to be pushed
    again, so it is not written with masked passwords: use --show-secrets.
    """
    output = Output(as_json)
    server = config_server(where)
    with connected(server) as client:
        found = store.pull(client, server)
    masked = _masked(found)
    secrets = masked.to_yaml() != found.to_yaml()
    if written is not None and secrets and not show_secrets:
        raise ConfigError(
            f"{written} was not written: there are passwords in the entries, and masked ones would "
            "be pushed as passwords",
            "say --show-secrets, or keep passwords as ${NAME} in the map and push it",
        )
    chosen = found if show_secrets else masked
    if written is not None:
        write_private(str(written), chosen.to_yaml())
    if as_json:
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
        output.line(f"wrote {written}: {_contents(found)}", GOOD)
    else:
        output.text(chosen.to_yaml())
        if secrets and not show_secrets:
            output.warning("passwords are masked: do not push this map")


def _masked(shard_map: ShardMap) -> ShardMap:
    """Return a map in which every secret is ``***``."""

    def masked(entry: Entry) -> Entry:
        return Entry(entry.masked())

    described = {
        name: Component(
            name,
            None if component.entry is None else masked(component.entry),
            tuple(map(masked, component.shards)),
            component.placement,
            component.epoch,
        )
        for name, component in shard_map.components.items()
    }
    server = shard_map.config_server
    return replace(
        shard_map, components=described, config_server=None if server is None else masked(server)
    )


# ---- show


@config.command(
    "show",
    short_help="Show components, or their entries.",
    epilog=examples(
        "shardkit config show -c configs/local.yaml",
        "shardkit config show -c redis://config.internal unique",
        "shardkit config show --json | jq .components.unique.shards",
        "shardkit config show --at 16 unique",
    ),
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@config_option
@click.option(
    "--at", type=click.IntRange(min=0), metavar="EPOCH", help="As they were after a push."
)
@common_options
def show_command(names: Sequence[str], where: str | None, at: int | None, as_json: bool) -> int:
    """Show all components, or every entry of the named ones.

    Connects only to the config server. Exits with 1 if a component cannot be used.
    """
    output = Output(as_json)
    if at is None:
        with opened(where) as topology:
            found, broken = components(topology, names)
            source = topology.name
    else:
        server = config_server(where)
        source, broken = f"config server {server.address}, epoch {at}", {}
        with connected(server) as client:
            then = store.components_at(client, at)
        for name in set(names) - then.keys():
            raise ConfigError(f"component {name!r} was not there at epoch {at}", "name another")
        found = {name: then[name] for name in names or sorted(then)}
    if as_json:
        output.document(
            {
                "source": source,
                "components": {
                    name: json_row(_COMPONENT_FIELDS, each) for name, each in found.items()
                },
                "broken": {name: str(error) for name, error in broken.items()},
            }
        )
        return int(bool(broken))
    if names:
        entries = [pair for component in found.values() for pair in component.entries()]
        output.table(table_of(_ENTRY_FIELDS, entries).without_empty())
    else:
        output.table(table_of(_COMPONENT_FIELDS, found.values()).without_empty())
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
    Field("epoch", lambda component: component.epoch or None, number("epoch")),
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
    column_only(wordy("server"), lambda each: each[1].address),
    column_only(wordy("settings"), lambda each: _settings(each[1])),
)


def _settings(entry: Entry) -> str:
    """Return the settings of an entry apart from its location, secrets masked."""
    said = {n: v for n, v in entry.masked().items() if n not in LOCATION - {"sentinel"} | {"db"}}
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in said.items()
    )


# ---- history and rollback


@config.command(
    short_help="Show the last pushes.",
    epilog=examples(
        "shardkit config history -c redis://config.internal",
        "shardkit config history --json | jq '.pushes[0]'",
    ),
)
@config_option
@common_options
def history(where: str | None, as_json: bool) -> None:
    """Show the last 100 pushes: when, who, from which map, what changed and why."""
    output = Output(as_json)
    server = config_server(where)
    with connected(server) as client:
        found = store.read_history(client)
    if as_json:
        output.document({"config_server": server.address, "pushes": json_rows(_PUSH_FIELDS, found)})
    elif found:
        output.table(table_of(_PUSH_FIELDS, found).without_empty())
    else:
        output.line("there is no history: nothing was pushed yet", FAINT)


def _when(record: PushRecord) -> str:
    return datetime.fromtimestamp(record.at, UTC).isoformat(timespec="seconds")


_PUSH_FIELDS: tuple[Field[PushRecord], ...] = (
    Field("epoch", lambda record: record.epoch, number("epoch")),
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


@config.command(
    short_help="Push what an earlier push left.",
    epilog=examples(
        "shardkit config rollback 16 --dry-run",
        "shardkit config rollback 16 -m 'the new server is slow'",
    ),
)
@click.argument("epoch", type=click.IntRange(min=0))
@config_option
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option(
    "--force",
    "forced",
    multiple=True,
    metavar="COMPONENT",
    help="Push this component in spite of what speaks against it. May be repeated.",
)
@click.option("--no-check", is_flag=True, help="Do not connect to the servers of changed entries.")
@_message_option
@_sample_option
@common_options
def rollback(
    epoch: int,
    where: str | None,
    dry_run: bool,
    forced: Sequence[str],
    no_check: bool,
    message: str,
    size: int,
    as_json: bool,
) -> None:
    """Push the components as they were after the push of EPOCH.

    This is a push of its own, with the next epoch, and is checked like any other: components that
    came later are removed, and nothing is pushed that would strand data.
    """
    server = config_server(where)
    options = _PushOptions(
        dry_run, forced, no_check, True, None, False, size, message or f"back to epoch {epoch}"
    )
    with connected(server) as client:
        then = store.components_at(client, epoch)
        if not then:
            raise ConfigError(f"there was no component at epoch {epoch}", "name a later epoch")
        wanted = ShardMap(then, source=f"epoch {epoch}")
        _push(options, Output(as_json), client, server.address, wanted)
