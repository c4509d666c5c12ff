"""``shardkit changes``: what changes in the fleet, and the repair of what was left closed."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from shardkit.admin.changes import now_of, read_changes
from shardkit.admin.growth import end_change, open_database, repair_changes
from shardkit.cli.groups import CommandGroup
from shardkit.cli.options import command, config_option, config_server, examples
from shardkit.cli.output import GOOD, Output, Table
from shardkit.kit.config_client import config_client


class _ListByDefault(CommandGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not {*args} & {*self.commands, "--help", "-h"}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_ListByDefault,
    epilog=examples(
        "shardkit changes",
        "shardkit changes --json",
        "shardkit changes repair --dry-run",
        "shardkit changes open a.internal:6379/3",
        "shardkit changes end users --lost",
    ),
)
def changes() -> None:
    """Show what changes in the fleet, and repair what an interrupted change left."""


@command("shardkit changes list", "shardkit changes --json", name="list", group=changes)
@config_option
def list_(where: str | None, output: Output) -> None:
    """Show the changes of the fleet that are open, and those of the last 30 days."""
    with config_client(config_server(where)) as config:
        found, now = read_changes(config), now_of(config)
    if output.as_json:
        output.document([{**asdict(each), "is_open": each.is_open(now)} for each in found])
        return
    if not found:
        output.line("nothing has changed")
        return
    table = Table.of("change", "of", "phase", "started", "by", "id", "undoes")
    for each in sorted(found, key=lambda change: (not change.is_open(now), -change.started)):
        phase = each.phase or ("at work" if each.is_open(now) else "done")
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.started))
        table.row(each.kind, each.name, phase, began, each.owner, each.id, each.undoes)
    output.table(table)


@command("shardkit changes repair --dry-run", "shardkit changes repair --json", group=changes)
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@config_option
def repair(dry_run: bool, where: str | None, output: Output) -> int:
    """Continue, follow or close databases on whose state records and fences do not agree.

    Databases that a move or split has left are listed, too. The exit code is 1 if one is closed
    whose fence does not tell how to continue.
    """
    with config_client(config_server(where)) as config:
        repairs = repair_changes(config, dry_run=dry_run)
    code = 1 if any(each.does == "unknown" for each in repairs) else 0
    if output.as_json:
        output.document([asdict(each) for each in repairs])
        return code
    if not repairs:
        output.line("records and databases agree", GOOD)
        return code
    table = Table.of("database", "of", "does", "why", "change")
    for each in repairs:
        table.row(each.database, each.name, each.does, each.why, each.change)
    output.table(table)
    return code


@command("shardkit changes open a.internal:6379/3", name="open", group=changes)
@click.argument("place", metavar="SERVER/NUMBER")
@config_option
def open_(place: str, where: str | None, output: Output) -> None:
    """Open the empty database that a move or split has left, so that it can be used again."""
    with config_client(config_server(where)) as config:
        opened = open_database(config, place)
    output.answer(asdict(opened), f"{opened.database} is open", GOOD)


@command("shardkit changes end timelines:3", "shardkit changes end users --lost", group=changes)
@click.argument("name", metavar="SERVER|SHARD|COMPONENT")
@click.option(
    "--lost",
    is_flag=True,
    help="Give up what is only on lost servers; clients use the old ones as at the cutover.",
)
@config_option
def end(name: str, lost: bool, where: str | None, output: Output) -> None:
    """End a move or split that can be neither resumed nor aborted; nothing stays closed."""
    with config_client(config_server(where)) as config:
        move = end_change(config, name, lost=lost)
    output.answer(asdict(move), f"the {move.verb} of {move.name} is {move.phase}", GOOD)
