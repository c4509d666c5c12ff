"""``shardkit doctor``, ``upgrade``, ``replan``: whether data is compact, whole, in new form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click

from shardkit.admin.changes import working_on
from shardkit.admin.check import CheckedStructure, check_all
from shardkit.admin.doctor import diagnosis
from shardkit.admin.doctor.scan import SAMPLE, ScanResult, StoredStructure, scan
from shardkit.admin.planned import PlannedStructure, planned_structures, replan
from shardkit.cli import options as given
from shardkit.cli.options import OpenTopology, ShardOptions, command, opened
from shardkit.cli.output import BAD, DIM, GOOD, WARN, Cell, Column, Output, Styled, number, wordy
from shardkit.cli.progress import progress
from shardkit.cli.rows import Field, column_only, json_rows, table_of, write_rows
from shardkit.cli.text import reason, size
from shardkit.config.component import Component
from shardkit.errors import ConfigError, ShardKitError, counted, few
from shardkit.structures import Damage
from shardkit.structures.upgrade import Upgrade


@command(
    "shardkit doctor -c configs/local.yaml",
    "shardkit doctor geo --all",
    "shardkit doctor geo --fix --rewrite",
    "shardkit doctor --json | jq '.findings[] | .remedy'",
    "shardkit doctor --check",
    "shardkit doctor geo --check --repair",
)
def doctor(
    output: Output,
    names: Sequence[str] = given.components,
    where: str | None = given.config,
    sharding: ShardOptions = given.sharding,
    sample: int = given.number(SAMPLE, "How many keys of each database to inspect.", unit="KEYS"),
    everything: bool = given.flag("Inspect every key.", name="--all"),
    fix: bool = given.flag("Raise the limits of the servers (CONFIG SET)."),
    rewrite: bool = given.flag("With --fix: save them in their files too (CONFIG REWRITE)."),
    repack: bool = given.flag(
        "Rewrite the parts of structures that become compact by it; inspects every key."
    ),
    checks: bool = given.flag(
        "Read all structures, and show what is damaged; changes nothing.", name="--check"
    ),
    structures: Sequence[str] = given.repeated(
        "NAME",
        "With --check: only the structure of this name; may be given several times.",
        name="--structure",
    ),
    repair: bool = given.flag("With --check: rebuild what can be, after asking for it."),
    yes: bool = given.flag("With --repair: do not ask."),
) -> int:
    """Check that data is stored compactly, and show which limits prevent it.

    Finds every structure of the components, and inspects a sample of their keys. Figures that are
    estimated from the sample are marked with ~. Exits with 1 if anything is not compact, or
    will not be when it reaches its planned size.

    With --check, all structures are read and what is damaged is shown: the key, what was found and
    what was expected, what a repair does and what it loses. Exits with 1 if anything is damaged,
    and was not repaired.
    """
    # A command that rewrites data must not guess how keys find their shard.
    accepted = None if (repack or repair) and sharding.shards is None else sharding
    if checks:
        if fix or rewrite or repack or everything:
            raise click.UsageError("--check goes with --structure, --repair and --yes only")
        if repair and output.as_json and not yes:
            raise click.UsageError("--repair asks before it repairs; with --json give --yes too")
        return _check(names, where, accepted, structures, repair, yes, output)
    if structures or repair or yes:
        raise click.UsageError("--structure, --repair and --yes go with --check")
    if rewrite and not fix:
        raise click.UsageError("--rewrite saves what --fix sets: use them together")
    with opened(where) as topology:
        chosen, broken = topology.components(names, accepted)
        limit = None if everything or repack else sample

        def examine(*, repack: bool = False) -> diagnosis.Diagnosis:
            with progress("databases") as report_progress:
                return diagnosis.diagnose(
                    scan(topology.kit, chosen, limit, repack=repack, progress=report_progress)
                )

        applied: list[diagnosis.LimitChange] = []
        rewritten: dict[str, Exception | None] = {}
        with _changing(topology, chosen, whole=fix) if fix or repack else nullcontext():
            before = after = examine(repack=repack and not fix)
            if fix:
                applied = diagnosis.apply_changes(diagnosis.limit_changes(before))
                rewritten = (
                    diagnosis.rewrite_configs(before.scan.servers.values()) if rewrite else {}
                )
                if applied or repack:
                    after = examine(repack=repack)
    if not output.wrote_json(_document(after, broken, applied, rewritten)):
        _show(output, after, before, broken, applied, rewritten, fix=fix)
    failed = any(change.error for change in applied) or any(rewritten.values())
    return int(failed or bool(broken) or not after.healthy)


def _changing(
    topology: OpenTopology, chosen: Mapping[str, Component], *, whole: bool = False
) -> AbstractContextManager[object]:
    components = ", ".join(chosen), chosen.values()
    return working_on(topology.config_server, "doctor", *components, whole=whole)


def _check(
    names: Sequence[str],
    where: str | None,
    accepted: ShardOptions | None,
    structures: Sequence[str],
    repair: bool,
    yes: bool,
    output: Output,
) -> int:
    """Check structures; with ``repair`` rebuild them, and check them again."""
    with opened(where) as topology:
        chosen, broken = topology.components(names, accepted)

        def examine(only: Sequence[str]) -> tuple[list[CheckedStructure], ScanResult]:
            with progress("structures") as report_progress:
                seen = scan(topology.kit, chosen, 1, progress=report_progress)
                return check_all(topology.kit, chosen, seen, only, report_progress), seen

        checked, seen = examine(structures)
        if not output.as_json:
            _show_damage(output, checked)
        repaired: dict[str, str] = {}
        mending = [structure for structure in checked if structure.repairable] if repair else []
        if mending:
            what = counted(len(mending), "structure")
            if yes or click.confirm(f"Rebuild {what}? The table shows what that loses."):
                with _changing(topology, chosen):
                    for structure in mending:
                        repaired[f"{structure.component}/{structure.name}"] = _rebuilt(structure)
                checked, seen = examine(structures)
    damages = _damages(checked)
    ok = not (damages or broken or seen.failures or seen.broken)
    ok = ok and not any(structure.unchecked and structures for structure in checked)
    if output.wrote_json(
        ok=ok,
        structures=[
            {
                "component": structure.component,
                "structure": structure.name,
                "kind": structure.kind,
                "damages": len(structure.damages),
                "unchecked": structure.unchecked or None,
            }
            for structure in checked
        ],
        damages=json_rows(_DAMAGE_FIELDS, damages),
        repaired=repaired,
        parameters=_broken_parameters(seen),
        **_unusable(seen, broken),
    ):
        return int(not ok)
    for name, outcome in repaired.items():
        output.line(f"{name}: {outcome}", GOOD if outcome == "rebuilt" else BAD)
    if repaired:
        _show_damage(output, checked)
    for parameters, why in _broken_parameters(seen).items():
        output.bad(f"{parameters} {why}")
    _show_unusable(output, seen, broken)
    return int(not ok)


def _rebuilt(structure: CheckedStructure) -> str:
    assert structure.rebuild is not None
    try:
        structure.rebuild()
    except ShardKitError as error:
        return f"not rebuilt: {error}"
    return "rebuilt"


def _damages(checked: Sequence[CheckedStructure]) -> list[tuple[CheckedStructure, Damage]]:
    return [(structure, damage) for structure in checked for damage in structure.damages]


def _show_damage(output: Output, checked: Sequence[CheckedStructure]) -> None:
    damages = _damages(checked)
    table = table_of(_DAMAGE_FIELDS, damages)
    if table.rows:
        output.table(table)
        output.line()
    for structure in checked:
        if structure.unchecked:
            name = f"{structure.component}/{structure.name}"
            output.warn(f"{name} was not checked: {structure.unchecked}")
    done = counted(sum(not structure.unchecked for structure in checked), "structure")
    if damages:
        output.bad(f"checked {done}: {counted(len(damages), 'damage')}")
    else:
        output.good(f"checked {done}: no damage")


_DAMAGE_FIELDS: tuple[Field[tuple[CheckedStructure, Damage]], ...] = (
    column_only(wordy("where"), lambda row: f"{row[0].component}/{row[0].name}"),
    Field("component", lambda row: row[0].component),
    Field("structure", lambda row: row[0].name),
    Field("shard", lambda row: row[1].shard or None, wordy("shard")),
    Field("key", lambda row: row[1].key, wordy("key")),
    Field("found", lambda row: row[1].found, wordy("found")),
    Field("expected", lambda row: row[1].expected, wordy("expected")),
    Field("repair", lambda row: row[1].repair or None, wordy("repair")),
    Field("loses", lambda row: row[1].loses or None, wordy("loses")),
)


def _show(
    output: Output,
    now: diagnosis.Diagnosis,
    before: diagnosis.Diagnosis,
    broken: dict[str, ConfigError],
    applied: Sequence[diagnosis.LimitChange],
    rewritten: dict[str, Exception | None],
    *,
    fix: bool,
) -> None:
    seen = now.scan
    for table in (
        table_of(_structure_fields(now), now.structures),
        table_of(_other_fields(now), now.others),
        table_of(_CHANGE_FIELDS, applied),
        table_of(_finding_fields(now), now.findings),
    ):
        if table.rows:
            output.table(table)
            output.line()
    for line in _remarks(now, before, applied, rewritten, fix=fix):
        output.line(*line)
    _show_unusable(output, seen, broken)
    output.line(*_summary(now))


def _structure_fields(now: diagnosis.Diagnosis) -> tuple[Field[diagnosis.GroupReport], ...]:
    def structure(report: diagnosis.GroupReport) -> StoredStructure:
        assert report.structure is not None
        return report.structure

    def name(report: diagnosis.GroupReport) -> str:
        return f"{report.group.component}/{report.group.structure}"

    def bytes_each(report: diagnosis.GroupReport) -> Cell:
        keys = report.statistics
        return f"{keys.bytes / keys.entries:.1f}" if keys.entries else None

    return (
        Field("component", lambda report: report.group.component),
        Field("structure", lambda report: report.group.structure, wordy("structure"), name),
        Field("kind", lambda report: structure(report).kind, Column("kind")),
        Field("parameters", lambda report: dict(structure(report).parameters)),
        _total(now, "parts", lambda report: report.statistics.keys),
        *_figures(now, column_only(number("bytes each"), bytes_each)),
    )


def _other_fields(now: diagnosis.Diagnosis) -> tuple[Field[diagnosis.GroupReport], ...]:
    return (
        Field("component", lambda report: report.group.component, wordy("other keys")),
        Field("type", lambda report: report.group.type, Column("type")),
        Field("encoding", lambda report: report.group.encoding, Column("encoding")),
        _total(now, "keys", lambda report: report.statistics.keys),
        *_figures(now),
    )


def _figures(
    now: diagnosis.Diagnosis, *more: Field[diagnosis.GroupReport]
) -> tuple[Field[diagnosis.GroupReport], ...]:
    about = _about(now)

    def entries(report: diagnosis.GroupReport) -> Cell:
        return None if report.group.type == "string" else about(report.statistics.entries)

    def compact(report: diagnosis.GroupReport) -> float | None:
        return None if report.compact is None else round(report.compact, 4)

    return (
        Field("seen", lambda report: report.statistics.seen),
        Field(
            "entries", lambda report: round(report.statistics.entries), number("entries"), entries
        ),
        _total(now, "bytes", lambda report: report.statistics.bytes, size),
        *more,
        Field("largest", lambda report: report.statistics.largest),
        Field("compact", compact, number("compact"), _share),
    )


def _total(
    now: diagnosis.Diagnosis,
    name: str,
    total: Callable[[diagnosis.GroupReport], float],
    written: Callable[[int], str] = "{:,}".format,
) -> Field[diagnosis.GroupReport]:
    about = _about(now)
    return Field(
        name,
        lambda report: round(total(report)),
        number(name),
        lambda report: about(total(report), written),
    )


def _about(now: diagnosis.Diagnosis) -> Any:
    """Return a function that formats a number, with ~ if it is an estimate."""
    mark = "~" if now.scan.estimated else ""
    return lambda value, written=lambda n: f"{n:,}": f"{mark}{written(round(value))}"


def _share(report: diagnosis.GroupReport) -> Cell:
    share = report.compact
    if share is None:
        return None
    text = f"{int(100 * share)}%" if share >= 0.01 or not share else "<1%"  # never rounded up
    return Styled(text, GOOD if share == 1 else BAD if share == 0 else WARN)


def _finding_fields(now: diagnosis.Diagnosis) -> tuple[Field[diagnosis.Finding], ...]:
    about = _about(now)

    def where(finding: diagnosis.Finding) -> str:
        if finding.structure:
            return f"{finding.component}/{finding.structure}"
        return f"{finding.component} {finding.type}"

    return (
        column_only(wordy("where"), where),
        Field("component", lambda finding: finding.component),
        Field("structure", lambda finding: finding.structure),
        Field("type", lambda finding: finding.type or None),
        Field("problem", lambda finding: finding.problem),
        Field(
            "keys",
            lambda finding: finding.keys,
            number("keys"),
            lambda finding: about(finding.keys) if finding.keys else None,
        ),
        Field("setting", lambda finding: finding.setting),
        Field("limit", lambda finding: finding.limit),
        Field("found", lambda finding: finding.found),
        Field("needed", lambda finding: finding.needed),
        Field(
            "text",
            lambda finding: finding.text,
            wordy("not compact because"),
            lambda finding: Styled(finding.text, WARN),
        ),
        Field("remedy", lambda finding: finding.remedy, wordy("remedy")),
    )


_CHANGE_FIELDS: tuple[Field[diagnosis.LimitChange], ...] = (
    Field("server", lambda applied: applied.server.address, Column("server")),
    Field("setting", lambda applied: applied.setting, Column("setting")),
    Field("before", lambda applied: applied.before, number("before")),
    Field("after", lambda applied: applied.after, number("after")),
    Field(
        "error",
        lambda applied: None if applied.error is None else reason(applied.error),
        wordy("done"),
        lambda applied: (
            Styled(f"no: {reason(applied.error)}", BAD)
            if applied.error is not None
            else Styled("yes", GOOD)
        ),
    ),
)


def _remarks(
    now: diagnosis.Diagnosis,
    before: diagnosis.Diagnosis,
    applied: Sequence[diagnosis.LimitChange],
    rewritten: dict[str, Exception | None],
    *,
    fix: bool,
) -> Iterator[Styled]:
    seen = now.scan
    if seen.repacked:
        yield Styled(f"{counted(seen.repacked, 'part')} rewritten", GOOD)
    if any(change.error is None for change in applied):
        if not rewritten:
            yield Styled("The limits hold until a server restarts: --rewrite saves them.", DIM)
        if any(change.server.replicas for change in applied):
            yield Styled("Replicas have limits of their own: set them there too.", WARN)
    for address, error in rewritten.items():
        if error is None:
            yield Styled(f"{address} has saved its settings in its file", GOOD)
        else:
            yield Styled(f"{address} could not write its file: {reason(error)}", BAD)
    stale = sum(report.statistics.stale for report in now.structures)
    if fix and stale:
        yield Styled("Parts that are already tables stay so until --repack rewrites them.", DIM)
    if not fix and diagnosis.limit_changes(before):
        yield Styled("--fix raises these limits.", DIM)


def _summary(now: diagnosis.Diagnosis) -> Styled:
    seen = now.scan
    what = (f"{seen.seen:,} of " if seen.estimated else "") + counted(seen.keys, "key")
    servers = counted(len(seen.servers), "server")
    if now.healthy:
        return Styled(f"inspected {what} on {servers}: all that can be compact is", DIM)
    marked = "; figures with ~ are estimated from them" if seen.estimated else ""
    return Styled(f"inspected {what} on {servers}{marked}", DIM)


def _document(
    now: diagnosis.Diagnosis,
    broken: dict[str, ConfigError],
    applied: Sequence[diagnosis.LimitChange],
    rewritten: dict[str, Exception | None],
) -> dict[str, Any]:
    seen = now.scan
    return {
        "ok": now.healthy and not broken,
        "keys": seen.keys,
        "seen": seen.seen,
        "estimated": seen.estimated,
        "servers": [
            {
                "server": server.address,
                "software": server.software,
                "limits": None if server.limits is None else server.limits.settings,
            }
            for server in seen.servers.values()
        ],
        "structures": json_rows(_structure_fields(now), now.structures),
        "others": json_rows(_other_fields(now), now.others),
        "findings": json_rows(_finding_fields(now), now.findings),
        "changes": json_rows(_CHANGE_FIELDS, applied),
        "rewritten": {
            address: None if error is None else reason(error)
            for address, error in rewritten.items()
        },
        "repacked": seen.repacked,
        **_unusable(seen, broken),
    }


def _broken_parameters(seen: ScanResult) -> dict[str, str]:
    return {
        f"{owner}/{key.decode(errors='backslashreplace')}": why
        for (owner, key), why in seen.broken.items()
    }


def _unusable(seen: ScanResult, broken: dict[str, ConfigError]) -> dict[str, dict[str, str]]:
    return {
        "failures": {shard: reason(error) for shard, error in seen.failures.items()},
        "broken": {name: str(error) for name, error in broken.items()},
    }


def _show_unusable(output: Output, seen: ScanResult, broken: dict[str, ConfigError]) -> None:
    unusable = _unusable(seen, broken)
    failed: dict[str, list[str]] = {}
    for shard, why in unusable["failures"].items():
        failed.setdefault(why, []).append(shard)
    for why, shards in failed.items():
        output.bad(f"{few(shards, ', ')} cannot be scanned: {why}")
    for name, why in unusable["broken"].items():
        output.bad(f"{name} cannot be used: {why}")


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
            by_component = (kit.upgrade(name, structures, dry_run=dry_run) for name in chosen)
            return [row for of_component in by_component for row in of_component]

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
        planned = planned_structures(kit, component, names)
        chosen = planned if names else [row for row in planned if row.has_outgrown]
        many = counted(len(chosen), "structure")
        if chosen and not dry_run:
            if not yes and not click.confirm(f"replan {many} of {component}?", err=True):
                return 1
            concerned = [kit.component(component)]
            with (
                working_on(topology.config_server, "replan", component, concerned),
                output.busy("replanning") as tell,
            ):
                for row in chosen:
                    wanted = total or 2 * max(row.members, row.total)

                    def progress(step: str, name: str = row.structure) -> None:
                        tell(f"{name}: {step}")

                    replan(kit, component, row.structure, wanted, progress)
            chosen = planned_structures(kit, component, [row.structure for row in chosen])
    fine = f"{counted(len(planned), 'planned structure')}: none has outgrown its plan"
    write_rows(output, _PLAN_FIELDS, chosen, fine, GOOD)
    return int(dry_run and bool(chosen))
