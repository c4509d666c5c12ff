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
from shardkit.cli import options as given
from shardkit.cli.options import command, config_server
from shardkit.cli.output import Cell, Output, Table, number, wordy
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
    sample=given.number(SAMPLE, "Keys to examine in each database at most; 0 for all.", 0),
    seconds=given.seconds(1.0, "How long to count commands.", 0.1, most=60),
    watch=given.flag("See for which shards, tags and keys they are (MONITOR)."),
    share=given.number(
        SHARE,
        "Share of the time to examine keys; pauses for the rest.",
        least=0.01,
        most=1,
        unit="PART",
    ),
)
def balance(
    output: Output,
    names: Sequence[str] = given.components,
    to: Sequence[str] = given.repeated("SERVER", "A new server. May be repeated."),
    by: By = given.choice(["bytes", "keys", "operations"], "What to balance.", default="bytes"),
    tolerance: float = given.number(
        TOLERANCE,
        "How far a server may be from the mean: 0.1 for a tenth.",
        least=0.0,
        most=0.99,
        unit="PART",
    ),
    heat: bool = given.flag("Take operations from what clients report (heat=)."),
    top: int = given.number(5, "How many keys and tags to show.", 0),
    moving: bool = given.flag("Carry out the plan.", name="--move"),
    hold: float = given.seconds(HOLD, "How long writers may wait at a time.", 0.01),
    where: str | None = given.config,
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
    if output.wrote_json(
        **_named(report), plan=asdict(plan), moved=[asdict(each) for each in done]
    ):
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
        output.warn(f"not measured, as they cannot move: {', '.join(report.skipped)}")


def _load(used: float, keys: int, operations: float | None) -> tuple[Cell, Cell, Cell]:
    return size(int(used)), keys, _rate(operations)


def _show_plan(output: Output, plan: BalancePlan, moved: bool) -> None:
    output.line()
    for line in plan.uneven:
        output.warn(line)
    if plan.fits and not plan.moves:
        output.good(f"all servers are within {plan.tolerance:.0%} of the mean {plan.by}")
        return
    for each in plan.moves:
        words = f"shardkit move shards {' '.join(each.shards)} --to {each.target}"
        output.line(f"{words}   # {size(int(each.bytes))}, about {each.seconds:.0f} s")
    for problem in plan.problems:
        output.bad(f"cannot be done: {problem}")
    table = Table.of("server", number("times the mean"), number("afterwards"))
    for server, times in plan.before.items():
        table.row(server, f"{times:.2f}", f"{plan.after[server]:.2f}")
    output.table(table)
    if not plan.fits:
        output.bad(
            f"no moves bring all servers within {plan.tolerance:.0%}: split large shards, add "
            "servers, or allow more: --tolerance"
        )
    elif moved:
        output.good(f"{counted(len(plan.moves), 'move')} done")
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
    new=given.repeated("HOST:PORT", "A server to add later; repeatable."),
    growth=given.option(
        "FACTOR", "Growth factor per period.", type=click.FloatRange(min=1), required=True
    ),
    periods=given.option("N", "Number of periods.", type=click.IntRange(0, 100), required=True),
    data=given.number(0, "Bytes of data now.", 0.0, unit="BYTES"),
    commands=given.number(0, "Write commands per second now.", 0.0),
    size=given.number(0, "Bytes of each write.", 0.0, name="--bytes"),
    processes=given.number(1, "Number of processes that use it.", 0),
    connections=given.number(
        1, "Connections of each process to a server: its threads, or event loops.", 0
    ),
    separate=given.flag("Each shard is a server of its own."),
)
def plan(
    output: Output,
    component: str = given.argument(),
    servers: tuple[str, ...] = given.repeated(
        "HOST:PORT",
        "A server, or machine, to start on; repeat for more.",
        required=True,
        name="--server",
    ),
    out: Path | None = given.option(
        "MAP", "Write the shard map to this file, which must not exist.", type=given.FILE
    ),
    **options: Any,
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
    steps = [{**asdict(step), "commands": growth.commands(step)} for step in growth.steps]
    if output.wrote_json({**asdict(growth), "steps": steps}):
        return 0
    output.line(f"{growth.component}: {growth.count:,} shards; `databases {growth.databases}`")
    for warning in growth.warnings:
        output.warn(warning)
    output.table(table_of(_FIELDS, growth.steps))
    for step in growth.steps:
        for line in growth.commands(step):
            output.line(f"{step.period}. {line}")
    if out is not None:
        output.good(f"written to {out}: shardkit config push {out}")
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
