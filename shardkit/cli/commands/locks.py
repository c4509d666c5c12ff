"""``shardkit locks``: shows who holds locks, and who waits for them, and ends holds."""

from __future__ import annotations

from collections.abc import Sequence

import click

from shardkit.admin.locate import KINDS, LockState, lock_states
from shardkit.cli.options import command, config_option, group, number_option, opened
from shardkit.cli.output import Output, identifier, number, wordy
from shardkit.cli.rows import Field, rounded, write_rows
from shardkit.cli.text import reason
from shardkit.errors import counted
from shardkit.network.server_queries import ServerErrors

_FIELDS: tuple[Field[LockState], ...] = (
    Field("component", lambda row: row.component, wordy("component")),
    Field("kind", lambda row: row.kind, wordy("kind")),
    Field("name", lambda row: row.name, wordy("name")),
    Field("state", lambda row: row.state, wordy("state")),
    Field("mode", lambda row: row.holder.mode),
    Field("who", lambda row: row.holder.label, wordy("who")),
    rounded("held", lambda row: row.holder.held, number("held s"), 3, ".1f"),
    rounded("ends", lambda row: row.holder.ends, number("ends in s"), 3, ".1f"),
    Field("times", lambda row: row.holder.times),
    Field(
        "token",
        lambda row: row.holder.token,
        identifier("token"),
        lambda row: row.holder.token or None,
    ),
)


@group()
def locks() -> None:
    """Show who holds locks, semaphores and elections, and end holds."""


@command(
    "shardkit locks show",
    "shardkit locks show orders --json",
    short_help="Show who holds what since when, and who waits.",
    group=locks,
)
@click.argument("names", metavar="[COMPONENT]...", nargs=-1)
@config_option
def show(names: Sequence[str], where: str | None, output: Output) -> int:
    """Show who holds locks, semaphores and elections of components, and who waits.

    Without components, of all. Goes over all keys of the servers with SCAN. Exits with 1 if one
    could not be asked.
    """
    failed = False
    rows: list[LockState] = []
    with opened(where) as topology:
        chosen, broken = topology.components(names)
        for component in chosen.values():
            try:
                rows += lock_states(topology.kit, component)
            except ServerErrors as error:
                output.warning(f"{component.name}: {reason(error)}")
                failed = True
        for name, problem in broken.items():
            output.warning(f"{name}: {problem}")
            failed = True
    write_rows(output, _FIELDS, rows)
    return int(failed)


@command(
    "shardkit locks break orders stock --reason 'its host is gone'",
    name="break",
    group=locks,
)
@click.argument("component")
@click.argument("name")
@click.option("--reason", "why", required=True, help="The reason that its holder gets.")
@click.option("--kind", type=click.Choice(KINDS), default="lock", show_default=True)
@number_option("--token", None, "Only the hold with this token.")
@config_option
def break_(
    component: str,
    name: str,
    why: str,
    kind: str,
    token: int | None,
    where: str | None,
    output: Output,
) -> int:
    """End the holds of a lock, and give it to the first who waits.

    Its holder is told the reason when it renews the hold, at the latest after a third of its time;
    until then it continues. What it writes is refused only where it is guarded. Exits with 1 if
    nobody held it.
    """
    with opened(where) as topology:
        ended = topology.kit.lock(name, component=component, kind=kind).break_holds(why, token)
    output.answer(
        {"component": component, "name": name, "kind": kind, "ended": ended},
        f"{counted(ended, 'hold')} of {kind} {name!r} ended",
    )
    return int(not ended)
