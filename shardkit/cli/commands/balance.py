"""``shardkit plan`` and ``balance``: servers for growth, and moves of shards that even them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shardkit.admin import read_heat
from shardkit.admin.growth import (
    BalancePlan,
    LoadReport,
    PartLoad,
    apply_balance,
    measure_balance,
    plan_balance,
    with_operations,
)
from shardkit.admin.growth.balance import SAMPLE, SHARE, TOLERANCE, By
from shardkit.admin.growth.failover import HOLD
from shardkit.admin.growth.plan import GrowthStep, plan_growth
from shardkit.cli.options import command, config_option, config_server, number_option
from shardkit.cli.output import BAD, GOOD, WARN, Cell, Output, Table, number, wordy
from shardkit.cli.rows import Field, column_only, table_of
from shardkit.cli.text import printable, size
from shardkit.errors import counted
from shardkit.kit.config_client import config_client


@command(
    "shardkit balance",
    "shardkit balance timelines --to new.internal:6379 --tolerance 0.2",
    "shardkit balance --by operations --watch --seconds 5",
    "shardkit balance --by operations --heat",
    "shardkit balance timelines --to new.internal:6379 --move",
)
@click.argument("names", nargs=-1, metavar="[COMPONENT]...")
@click.option("--to", multiple=True, metavar="SERVER", help="A new server. May be repeated.")
@click.option(
    "--by",
    type=click.Choice(["bytes", "keys", "operations"]),
    default="bytes",
    show_default=True,
    help="What to balance.",
)
@number_option(
    "--tolerance",
    TOLERANCE,
    "How far a server may be from the mean: 0.1 for a tenth.",
    least=0.0,
    most=0.99,
    unit="PART",
)
@number_option("--sample", SAMPLE, "Keys to examine in each database at most; 0 for all.", least=0)
@number_option("--seconds", 1.0, "How long to count commands.", least=0.1, most=60, unit="SECONDS")
@click.option(
    "--watch", is_flag=True, help="See for which shards, tags and keys they are (MONITOR)."
)
@click.option("--heat", is_flag=True, help="Take operations from what clients report (heat=).")
@number_option(
    "--share",
    SHARE,
    "Share of the time to examine keys; pauses for the rest.",
    least=0.01,
    most=1,
    unit="PART",
)
@number_option("--top", 5, "How many keys and tags to show.", least=0)
@click.option("--move", "moving", is_flag=True, help="Carry out the plan.")
@number_option("--hold", HOLD, "How long writers may wait at a time.", least=0.01, unit="SECONDS")
@config_option
def balance(
    names: Sequence[str],
    to: Sequence[str],
    by: By,
    tolerance: float,
    top: int,
    heat: bool,
    moving: bool,
    hold: float,
    where: str | None,
    output: Output,
    **options: Any,
) -> int:
    """Show bytes, keys and operations by server, shard, tag and key, and a plan of moves.

    The plan moves the fewest bytes after which each server is near the mean. It only reads, unless
    --move is given: then `shardkit move shards` does each move, while clients read and write. The
    exit code is 1 if servers are out of balance at the end.
    """
    with config_client(config_server(where)) as config, output.busy("measuring") as tell:
        report = measure_balance(config, names, to=to, progress=tell, **options)
        if heat:
            hot = read_heat(config, _SHARDS).kinds
            rates = {each.name: each.now for each in hot["shard"]}
            report = with_operations(report, rates, hot)
        plan = plan_balance(config, report, by=by, tolerance=tolerance)
        done = apply_balance(config, plan, hold=hold, progress=tell) if moving else []
    left = 0 if plan.fits and (moving or not plan.moves) else 1
    if output.as_json:
        output.document(
            {
                **_named(report),
                "plan": asdict(plan),
                "moved": [asdict(each) for each in done],
            }
        )
        return left
    _show(output, report, top)
    _show_plan(output, plan, bool(done))
    return left


def _named(report: LoadReport) -> dict[str, Any]:
    parts = [{**asdict(each), "name": _name(each)} for each in report.parts]
    return {**asdict(report), "parts": parts}


def _name(part: PartLoad) -> str:
    name = part.name.decode(errors="backslashreplace")
    return f"{{{name}}}" if part.kind == "tag" else name


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _show(output: Output, report: LoadReport, top: int) -> None:
    table = Table.of("server", number("data"), number("keys"), *map(number, _REST))
    for server in report.servers:
        limit = size(server.limit) if server.limit else None
        rest = _rate(server.operations), size(server.memory), limit
        table.row(server.server, size(int(server.bytes)), server.keys, *rest)
    output.table(table)
    headings = number("data"), number("keys"), number("ops/s")
    shown = sorted(report.databases, key=lambda each: -each.bytes)[:top]
    if shown:
        output.line()
        table = Table.of(wordy("biggest shards"), "server", *headings)
        for each in shown:
            at = f"{each.server}/{each.database}"
            table.row(" ".join(each.shards), at, *_load(each.bytes, each.keys, each.operations))
        output.table(table)
    for kind in ("tag", "key"):
        parts = [part for part in report.parts if part.kind == kind and part.bytes][:top]
        busy = sorted(report.parts, key=lambda part: -(part.operations or 0))
        parts += [
            part for part in busy if part.kind == kind and part.operations and part not in parts
        ][:top]
        if parts:
            output.line()
            table = Table.of(wordy(f"biggest {kind}s"), wordy("shard"), *headings)
            for part in parts:
                load = _load(part.bytes, round(part.keys), part.operations)
                table.row(printable(_name(part)), " ".join(part.shards), *load)
            output.table(table)
    if report.skipped:
        output.line()
        output.line(f"not measured, as they cannot move: {', '.join(report.skipped)}", WARN)


def _load(used: float, keys: int, operations: float | None) -> tuple[Cell, Cell, Cell]:
    return size(int(used)), keys, _rate(operations)


def _show_plan(output: Output, plan: BalancePlan, moved: bool) -> None:
    output.line()
    for line in plan.uneven:
        output.line(line, WARN)
    if plan.fits and not plan.moves:
        output.line(f"all servers are within {plan.tolerance:.0%} of the mean {plan.by}", GOOD)
        return
    for each in plan.moves:
        words = f"shardkit move shards {' '.join(each.shards)} --to {each.target}"
        output.line(f"{words}   # {size(int(each.bytes))}, about {each.seconds:.0f} s")
    for problem in plan.problems:
        output.line(f"cannot be done: {problem}", BAD)
    table = Table.of("server", number("times the mean"), number("afterwards"))
    for server, times in plan.before.items():
        table.row(server, f"{times:.2f}", f"{plan.after[server]:.2f}")
    output.table(table)
    if not plan.fits:
        output.line(
            f"no moves bring all servers within {plan.tolerance:.0%}: split large shards, add "
            "servers, or allow more: --tolerance",
            BAD,
        )
    elif moved:
        output.line(f"{counted(len(plan.moves), 'move')} done", GOOD)
    else:
        total = size(int(sum(each.bytes for each in plan.moves)))
        fewest = "no plan moves less" if plan.fewest else "the best of the plans that were tried"
        output.line(f"{counted(len(plan.moves), 'move')} of {total} ({fewest}); do it: --move")


_SHARDS = 10_000  # that heat is read of
_REST = ("ops/s", "memory", "limit")


@command(
    "shardkit plan users --server a.internal:6379 --growth 4 --periods 4",
    "shardkit plan users --server a.internal:6379 --growth 2 --periods 3 --data 8e9 \\\n"
    "    --commands 20000 --bytes 300 --processes 40 --out users.yaml",
)
@click.argument("component")
@click.option(
    "--server",
    "servers",
    multiple=True,
    required=True,
    metavar="HOST:PORT",
    help="A server, or machine, to start on; repeat for more.",
)
@click.option(
    "--new", multiple=True, metavar="HOST:PORT", help="A server to add later; repeatable."
)
@click.option(
    "--growth",
    type=click.FloatRange(min=1),
    required=True,
    metavar="FACTOR",
    help="Growth factor per period.",
)
@click.option(
    "--periods", type=click.IntRange(0, 100), required=True, metavar="N", help="Number of periods."
)
@number_option("--data", 0, "Bytes of data now.", least=0.0, unit="BYTES")
@number_option("--commands", 0, "Write commands per second now.", least=0.0)
@number_option("--bytes", 0, "Bytes of each write.", parameter="size", least=0.0)
@number_option("--processes", 1, "Number of processes that use it.", least=0)
@number_option(
    "--connections",
    1,
    "Connections of each process to a server: its threads, or event loops.",
    least=0,
)
@click.option("--separate", is_flag=True, help="Each shard is a server of its own.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="MAP",
    help="Write the shard map to this file, which must not exist.",
)
def plan(
    component: str, servers: tuple[str, ...], out: Path | None, output: Output, **options: Any
) -> int:
    """Plan the shards of COMPONENT for a load that grows by a factor in each period.

    Connects to no server. Shows for each period the number of servers, what each needs, which
    shards move, and how long that takes.
    """
    growth = plan_growth(component, servers, **options)
    if out is not None:
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(growth.to_yaml())
        except OSError as error:
            raise click.UsageError(f"{out} cannot be written: {error.strerror}") from None
    if output.as_json:
        output.document(
            {
                **asdict(growth),
                "steps": [
                    {**asdict(step), "commands": growth.commands(step)} for step in growth.steps
                ],
            }
        )
        return 0
    output.line(f"{growth.component}: {growth.count:,} shards; `databases {growth.databases}`")
    for warning in growth.warnings:
        output.line(warning, WARN)
    output.table(table_of(_FIELDS, growth.steps))
    for step in growth.steps:
        for line in growth.commands(step):
            output.line(f"{step.period}. {line}")
    if out is not None:
        output.line(f"written to {out}: shardkit config push {out}", GOOD)
    return 0


def _rounded(title: str, value: Callable[[GrowthStep], float], form: str) -> Field[GrowthStep]:
    return column_only(number(title), lambda step: format(value(step), form))


_FIELDS: tuple[Field[GrowthStep], ...] = (
    column_only("period", lambda step: str(step.period or "now")),
    column_only(number("servers"), lambda step: step.servers),
    column_only(number("shards"), lambda step: step.shards),
    _rounded("data GB", lambda step: step.data / 1e9, ",.2f"),
    _rounded("RAM GB", lambda step: step.memory / 1e9, ",.2f"),
    column_only(number("conns"), lambda step: step.connections),
    _rounded("AOF MB/s", lambda step: step.append / 1e6, ",.2f"),
    column_only(number("moved"), lambda step: sum(len(shards) for _, _, shards in step.moves)),
    _rounded("GB moved", lambda step: step.moved / 1e9, ",.2f"),
    _rounded("minutes", lambda step: step.seconds / 60, ",.0f"),
)
