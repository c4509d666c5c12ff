"""``shardkit upgrade`` and ``replan``: the newest form, and a larger plan, of what is stored."""

from __future__ import annotations

from collections.abc import Sequence

import click

from shardkit.admin.changes import working_on
from shardkit.admin.planned import PlannedStructure, planned_structures, replan
from shardkit.cli import options as given
from shardkit.cli.options import command, opened
from shardkit.cli.output import GOOD, Output, number, wordy
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
def upgrade_(
    output: Output,
    names: Sequence[str] = given.components,
    where: str | None = given.config,
    structures: Sequence[str] = given.repeated(
        "NAME", "Only this one; may be repeated.", name="--structure"
    ),
    dry_run: bool = given.flag("Change nothing: only show what would be changed."),
    yes: bool = given.yes,
) -> int:
    """Bring structures into the newest form of this release, once no earlier one runs.

    Processes of earlier releases refuse what was upgraded. Without components, of all. Exits with
    1 if a dry run found something, or the answer is no.
    """
    with opened(where) as topology:
        chosen, broken = topology.components(names)
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
            with working_on(topology.config_server, "upgrade", ", ".join(chosen), chosen.values()):
                upgrades = upgrade(False)
    write_rows(output, _FIELDS, upgrades, "everything is in the newest form", GOOD)
    return int(dry_run and bool(upgrades))


_PLAN_FIELDS: tuple[Field[PlannedStructure], ...] = (
    Field("structure", lambda row: row.structure, wordy("structure")),
    Field("kind", lambda row: row.kind, wordy("kind")),
    Field("members", lambda row: row.members, number("members")),
    Field("total", lambda row: row.total, number("planned for")),
    Field("parts", lambda row: row.parts, number("parts")),
    Field(
        "interrupted",
        lambda row: row.interrupted,
        wordy(""),
        lambda row: "interrupted" if row.interrupted else None,
    ),
)


@command(
    "shardkit replan users --dry-run",
    "shardkit replan users ids --total 5000000",
    "shardkit replan users --yes --json",
    name="replan",
)
def replan_command(
    output: Output,
    component: str = given.argument(),
    names: Sequence[str] = given.argument("[STRUCTURE]...", nargs=-1),
    where: str | None = given.config,
    total: int | None = given.number(
        None, "For how many members.  [default: twice those that there are]", 1
    ),
    dry_run: bool = given.flag("Change nothing: only show what would be changed."),
    yes: bool = given.yes,
) -> int:
    """Give sets and hashes with a total more parts, while they are in use.

    Without names, all that have more members than they were planned for, or whose next plan was
    interrupted. Exits with 1 if a dry run found some, or the answer is no.
    """
    with opened(where) as topology:
        kit = topology.kit
        found = planned_structures(kit, component, names)
        chosen = found if names else [each for each in found if each.has_outgrown]
        many = counted(len(chosen), "structure")
        if chosen and not dry_run:
            if not yes and not click.confirm(f"replan {many} of {component}?", err=True):
                return 1
            concerned = [kit.component(component)]
            with (
                working_on(topology.config_server, "replan", component, concerned),
                output.busy("replanning") as tell,
            ):
                for each in chosen:
                    wanted = total or 2 * max(each.members, each.total)

                    def progress(step: str, name: str = each.structure) -> None:
                        tell(f"{name}: {step}")

                    replan(kit, component, each.structure, wanted, progress)
            chosen = planned_structures(kit, component, [each.structure for each in chosen])
    fine = f"{counted(len(found), 'planned structure')}: none has outgrown its plan"
    write_rows(output, _PLAN_FIELDS, chosen, fine, GOOD)
    return int(dry_run and bool(chosen))
