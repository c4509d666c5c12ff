"""``shardkit plan``: how many shards a component needs to grow, and what each step moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shardkit.admin.growth.plan import GrowthStep, plan_growth
from shardkit.cli.options import command, number_option
from shardkit.cli.output import DOUBTFUL, GOOD, Output, number
from shardkit.cli.rows import Field, column_only, table_of


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
        output.line(warning, DOUBTFUL)
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
