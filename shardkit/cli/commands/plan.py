"""``shardkit plan``: how many shards a component needs to grow, and what each step moves."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from shardkit.admin.growth.plan import GrowthPlan, plan_growth
from shardkit.cli.options import common_options, examples
from shardkit.cli.output import DOUBTFUL, GOOD, Output, Table, number


@click.command(
    short_help="Plan how a component grows.",
    epilog=examples(
        "shardkit plan users --server a.internal:6379 --growth 4 --periods 4",
        "shardkit plan users --server a.internal:6379 --growth 2 --periods 3 --data 8e9 \\\n"
        "    --commands 20000 --bytes 300 --processes 40 --out users.yaml",
    ),
)
@click.argument("component")
@click.option(
    "--server",
    "servers",
    multiple=True,
    required=True,
    metavar="HOST:PORT",
    help="A server, or machine, that it begins on; again for others.",
)
@click.option("--new", multiple=True, metavar="HOST:PORT", help="A server to come; in order.")
@click.option(
    "--growth",
    type=click.FloatRange(min=1),
    required=True,
    metavar="FACTOR",
    help="By what the load is multiplied in a period.",
)
@click.option(
    "--periods", type=click.IntRange(0, 100), required=True, metavar="N", help="How many periods."
)
@click.option(
    "--data",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="BYTES",
    help="How large the data is now.",
)
@click.option(
    "--commands",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="N",
    help="Write commands a second now,",
)
@click.option(
    "--bytes",
    "size",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="N",
    help="of so many bytes each.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="How many processes use it,",
)
@click.option(
    "--connections",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="with so many connections to a shard.",
)
@click.option("--separate", is_flag=True, help="Each shard is a server of its own.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="MAP",
    help="Write the shard map to this file, which must not exist.",
)
@common_options
def plan(
    component: str,
    servers: tuple[str, ...],
    new: tuple[str, ...],
    growth: float,
    periods: int,
    data: float,
    commands: float,
    size: float,
    processes: int,
    connections: int,
    separate: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Plan the shards of COMPONENT for a load that grows by a factor in each period.

    Asks no server. Says for each period how many servers there are, what each needs, which shards
    move, and how long that takes.
    """
    output = Output(as_json)
    found = plan_growth(
        component,
        servers,
        growth=growth,
        periods=periods,
        new=new,
        data=data,
        commands=commands,
        size=size,
        processes=processes,
        connections=connections,
        separate=separate,
    )
    if out is not None:
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(found.to_yaml())
        except OSError as error:
            raise click.UsageError(f"{out} cannot be written: {error.strerror}") from None
    if as_json:
        output.document(
            {
                **asdict(found),
                "steps": [
                    {**asdict(step), "commands": found.commands(step)} for step in found.steps
                ],
            }
        )
        return 0
    _show(output, found)
    if out is not None:
        output.line(f"written to {out}: shardkit config push {out}", GOOD)
    return 0


def _show(output: Output, found: GrowthPlan) -> None:
    output.line(f"{found.component}: {found.count:,} shards; `databases {found.databases}`")
    for warning in found.warnings:
        output.line(warning, DOUBTFUL)
    table = Table.of(
        "period",
        number("servers"),
        number("shards"),
        number("data GB"),
        number("memory GB"),
        number("connections"),
        number("AOF MB/s"),
        number("shards moved"),
        number("GB moved"),
        number("minutes"),
    )
    for step in found.steps:
        table.row(
            "now" if step.period == 0 else str(step.period),
            step.servers,
            step.shards,
            f"{step.data / 1e9:,.2f}",
            f"{step.memory / 1e9:,.2f}",
            step.connections,
            f"{step.append / 1e6:,.2f}",
            sum(len(shards) for _, _, shards in step.moves),
            f"{step.moved / 1e9:,.2f}",
            f"{step.seconds / 60:,.0f}",
        )
    output.table(table)
    for step in found.steps:
        for command in found.commands(step):
            output.line(f"{step.period}. {command}")
