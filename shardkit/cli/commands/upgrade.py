"""``shardkit upgrade``: brings what is stored into the newest form of this release."""

from __future__ import annotations

from collections.abc import Sequence

import click

from shardkit.cli.options import command, components, config_option, opened
from shardkit.cli.output import GOOD, Output, wordy
from shardkit.cli.rows import Field, write_rows
from shardkit.errors import counted
from shardkit.structures.upgrade import Upgrade

_FIELDS: tuple[Field[Upgrade], ...] = (
    Field("component", lambda row: row.component, wordy("component")),
    Field("structure", lambda row: row.structure, wordy("structure")),
    Field("kind", lambda row: row.kind, wordy("kind")),
    Field(
        "changes",
        lambda row: list(row.changes),
        wordy("changes"),
        lambda row: "; ".join(row.changes),
    ),
)


@command(
    "shardkit upgrade --dry-run",
    "shardkit upgrade geo --yes",
    "shardkit upgrade geo --structure ids --yes --json",
    name="upgrade",
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@config_option
@click.option(
    "--structure",
    "structures",
    multiple=True,
    metavar="NAME",
    help="Only this one; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing: only show what would be changed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def upgrade_(
    names: Sequence[str],
    where: str | None,
    structures: Sequence[str],
    dry_run: bool,
    yes: bool,
    output: Output,
) -> int:
    """Bring structures into the newest form of this release, once no earlier one runs.

    Processes of earlier releases refuse what was upgraded. Without components, of all. Exits with
    1 if a dry run found something, or the answer is no.
    """
    with opened(where) as topology:
        chosen, broken = components(topology, names)
        for error in broken.values():
            raise error

        def upgrade(dry_run: bool) -> list[Upgrade]:
            kit = topology.kit
            found = (kit.upgrade(name, structures, dry_run=dry_run) for name in chosen)
            return [each for of_component in found for each in of_component]

        upgrades = upgrade(True)
        if upgrades and not dry_run:
            many = counted(len(upgrades), "structure")
            question = f"earlier releases will refuse {many}: continue?"
            if not yes and not click.confirm(question, err=True):
                return 1
            upgrades = upgrade(False)
    write_rows(output, _FIELDS, upgrades, "everything is in the newest form", GOOD)
    return int(dry_run and bool(upgrades))
