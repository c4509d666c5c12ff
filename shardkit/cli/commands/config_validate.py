"""``shardkit config validate``: shows the problems of shard maps, with their lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from shardkit.admin.map_file import FileProblem, examine, problems_of_servers, users_of
from shardkit.cli.options import command
from shardkit.cli.output import BAD, DOUBTFUL, FAINT, GOOD, Cell, Output, Styled, wordy
from shardkit.cli.rows import Field, column_only, table_of
from shardkit.config.entry import mask
from shardkit.config.shard_map import ShardMap
from shardkit.errors import counted, few

_WIDE = 140  # columns; in a narrower terminal the table has three


@command(
    "shardkit config validate configs/*.yaml",
    "shardkit config validate --strict --json configs/production.yaml",
    short_help="Show what is wrong with shard maps.",
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
            colour = DOUBTFUL if found else GOOD
            output.line(f"{path} can be used: {contents_of(shard_map)}{warned}", colour)
            if not connect and (users := users_of(shard_map)):
                output.line(
                    f"its servers have users of their own ({few(users, ', ')}): whether a restart "
                    "would lose writes is seen with --connect",
                    FAINT,
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
        return Styled(_shown_problem(finding), DOUBTFUL if finding.warning else BAD)

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
