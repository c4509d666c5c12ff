"""``shardkit doctor``: what is not as compact as it could be, and what to set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from shardkit.cli.options import common_options, components, config_option, examples, opened
from shardkit.cli.output import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    Cell,
    Output,
    Styled,
    Table,
    number,
    wordy,
)
from shardkit.cli.progress import progress
from shardkit.cli.server_queries import ServerErrors
from shardkit.cli.text import counted, reason, size
from shardkit.doctor.diagnosis import Diagnosis, Finding, GroupReport, diagnose, prescribe
from shardkit.doctor.fixes import AppliedChange, keep, mend
from shardkit.doctor.scan import SAMPLE, examine
from shardkit.errors import ConfigError, ShardKitError


@click.command(
    short_help="Check that data is stored compactly.",
    epilog=examples(
        "shardkit doctor -c configs/local.yaml",
        "shardkit doctor geo --all",
        "shardkit doctor geo --fix --rewrite",
        "shardkit doctor --json | jq '.findings[] | .remedy'",
    ),
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@config_option
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=SAMPLE,
    show_default=True,
    metavar="KEYS",
    help="How many keys of each database are looked at.",
)
@click.option("--all", "everything", is_flag=True, help="Look at every key.")
@click.option("--fix", is_flag=True, help="Raise the limits of the servers (CONFIG SET).")
@click.option(
    "--rewrite", is_flag=True, help="With --fix: in their files as well (CONFIG REWRITE)."
)
@click.option(
    "--repack",
    is_flag=True,
    help="Write those parts of structures anew that would be compact then; looks at every key.",
)
@common_options
def doctor(
    names: Sequence[str],
    where: str | None,
    sample: int,
    everything: bool,
    fix: bool,
    rewrite: bool,
    repack: bool,
    as_json: bool,
) -> int:
    """Check that data is stored compactly, and say which limit keeps it from that.

    Finds every structure of the components, and looks at a sample of their keys. Figures that are
    estimated from it are marked with ~. Exits with 1 if anything is not compact, or will not be
    once it is as large as planned.
    """
    if rewrite and not fix:
        raise click.UsageError("--rewrite is about what --fix sets")
    output = Output(as_json)
    with opened(where) as topology:
        found, broken = components(topology, names)
        limit = None if everything or repack else sample

        def look(*, anew: bool = False) -> Diagnosis:
            with progress("databases") as tell:
                return diagnose(examine(topology.kit, found, limit, repack=anew, progress=tell))

        before = after = look(anew=repack and not fix)
        made: list[AppliedChange] = []
        kept: dict[str, Exception | None] = {}
        if fix:
            made = mend(prescribe(before))
            kept = keep(before.examination.servers.values()) if rewrite else {}
            if made or repack:
                after = look(anew=repack)
    if as_json:
        output.document(_document(after, broken, made, kept))
    else:
        _show(output, after, before, broken, made, kept, fix=fix)
    failed = any(each.error for each in made) or any(kept.values())
    return int(failed or bool(broken) or not after.healthy)


# ---- for people


def _show(
    output: Output,
    now: Diagnosis,
    before: Diagnosis,
    broken: dict[str, ConfigError],
    made: Sequence[AppliedChange],
    kept: dict[str, Exception | None],
    *,
    fix: bool,
) -> None:
    seen = now.examination
    if now.structures:
        output.table(_structures(now))
        output.line()
    if now.others:
        output.table(_others(now))
        output.line()
    if made:
        output.table(_changes(made))
        output.line()
    if now.findings:
        output.table(_findings(now))
        output.line()
    for line in _remarks(now, before, made, kept, fix=fix):
        output.line(*line)
    for shard, error in seen.failures.items():
        output.line(f"{shard} cannot be examined: {_reason(error)}", BAD)
    for name, problem in broken.items():
        output.line(f"{name} cannot be used: {problem}", BAD)
    output.line(*_summary(now))


def _structures(now: Diagnosis) -> Table:
    grid = Table.of(
        "structure",
        "kind",
        number("parts"),
        number("entries"),
        number("bytes"),
        number("an entry"),
        number("compact"),
    )
    about = _about(now)
    for report in now.structures:
        assert report.structure is not None
        tally, structure = report.tally, report.structure
        grid.row(
            f"{structure.component}/{structure.name}",
            structure.kind,
            about(tally.keys),
            about(tally.entries),
            about(tally.bytes, size),
            f"{tally.bytes / tally.entries:.1f}" if tally.entries else None,
            _share(report),
        )
    return grid


def _others(now: Diagnosis) -> Table:
    grid = Table.of(
        "other keys",
        "type",
        "encoding",
        number("keys"),
        number("entries"),
        number("bytes"),
        number("compact"),
    )
    about = _about(now)
    for report in now.others:
        group, tally = report.group, report.tally
        entries = None if group.type == "string" else about(tally.entries)
        cells = about(tally.keys), entries, about(tally.bytes, size), _share(report)
        grid.row(group.component, group.type, group.encoding, *cells)
    return grid


def _about(now: Diagnosis) -> Any:
    """Return what writes a number, with ~ if it is an estimate."""
    mark = "~" if now.examination.estimated else ""
    return lambda value, written=lambda n: f"{n:,}": f"{mark}{written(round(value))}"


def _share(report: GroupReport) -> Cell:
    share = report.compact
    if share is None:
        return None
    text = f"{int(100 * share)}%" if share >= 0.01 or not share else "<1%"  # never rounded up
    return Styled(text, GOOD if share == 1 else BAD if share == 0 else DOUBTFUL)


def _findings(now: Diagnosis) -> Table:
    grid = Table.of("where", number("keys"), wordy("not compact because"), wordy("remedy"))
    about = _about(now)
    for finding in now.findings:
        grid.row(
            _where(finding),
            about(finding.keys) if finding.keys else None,
            Styled(finding.text, DOUBTFUL),
            finding.remedy,
        )
    return grid


def _where(finding: Finding) -> str:
    return (
        f"{finding.component}/{finding.structure}"
        if finding.structure
        else (f"{finding.component} {finding.type}")
    )


def _changes(made: Sequence[AppliedChange]) -> Table:
    grid = Table.of("server", "setting", number("before"), number("after"), wordy("done"))
    for each in made:
        done: Cell = Styled("yes", GOOD)
        if each.error is not None:
            done = Styled(f"no: {_reason(each.error)}", BAD)
        change = each.change
        grid.row(change.server.address, change.setting, change.before, change.after, done)
    return grid


def _remarks(
    now: Diagnosis,
    before: Diagnosis,
    made: Sequence[AppliedChange],
    kept: dict[str, Exception | None],
    *,
    fix: bool,
) -> Iterator[Styled]:
    seen = now.examination
    if seen.repacked:
        yield Styled(f"{counted(seen.repacked, 'part')} written anew", GOOD)
    if any(each.error is None for each in made):
        if not kept:
            yield Styled("The limits hold until a server restarts: --rewrite keeps them.", FAINT)
        if any(each.change.server.replicas for each in made):
            yield Styled("Replicas have limits of their own: set them there as well.", DOUBTFUL)
    for address, error in kept.items():
        if error is None:
            yield Styled(f"{address} has written its settings into its file", GOOD)
        else:
            yield Styled(f"{address} could not write its file: {_reason(error)}", BAD)
    stale = sum(report.tally.stale for report in now.structures)
    if fix and stale:
        yield Styled(
            "Parts that are tables already stay so until --repack writes them anew.", FAINT
        )
    if not fix and prescribe(before):
        yield Styled("--fix sets these limits.", FAINT)


def _summary(now: Diagnosis) -> Styled:
    seen = now.examination
    what = (
        f"{seen.seen:,} of {counted(seen.keys, 'key')}"
        if seen.estimated
        else (counted(seen.keys, "key"))
    )
    servers = counted(len(seen.servers), "server")
    if now.healthy:
        return Styled(f"looked at {what} on {servers}: all that can be compact is", FAINT)
    marked = "; figures with ~ are estimated from them" if seen.estimated else ""
    return Styled(f"looked at {what} on {servers}{marked}", FAINT)


def _reason(error: Exception) -> str:
    if isinstance(error, ShardKitError):
        return str(error)
    return reason(error) if isinstance(error, ServerErrors) else str(error)


# ---- for programs


def _document(
    now: Diagnosis,
    broken: dict[str, ConfigError],
    made: Sequence[AppliedChange],
    kept: dict[str, Exception | None],
) -> dict[str, Any]:
    seen = now.examination
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
        "structures": [
            {
                "component": report.group.component,
                "structure": report.group.structure,
                "kind": report.structure.kind if report.structure else None,
                "parameters": dict(report.structure.parameters) if report.structure else {},
                "parts": round(report.tally.keys),
                **_figures(report),
            }
            for report in now.structures
        ],
        "others": [
            {
                "component": report.group.component,
                "type": report.group.type,
                "encoding": report.group.encoding,
                "keys": round(report.tally.keys),
                **_figures(report),
            }
            for report in now.others
        ],
        "findings": [_finding(finding) for finding in now.findings],
        "changes": [
            {
                "server": each.change.server.address,
                "setting": each.change.setting,
                "before": each.change.before,
                "after": each.change.after,
                "error": None if each.error is None else _reason(each.error),
            }
            for each in made
        ],
        "rewritten": {
            address: None if error is None else _reason(error) for address, error in kept.items()
        },
        "repacked": seen.repacked,
        "failures": {shard: _reason(error) for shard, error in seen.failures.items()},
        "broken": {name: str(error) for name, error in broken.items()},
    }


def _figures(report: GroupReport) -> dict[str, Any]:
    tally = report.tally
    return {
        "seen": tally.seen,
        "entries": round(tally.entries),
        "bytes": round(tally.bytes),
        "largest": tally.largest,
        "compact": None if report.compact is None else round(report.compact, 4),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "component": finding.component,
        "structure": finding.structure,
        "type": finding.type or None,
        "problem": finding.problem,
        "keys": finding.keys,
        "setting": finding.setting,
        "limit": finding.limit,
        "found": finding.found,
        "needed": finding.needed,
        "text": finding.text,
        "remedy": finding.remedy,
    }
