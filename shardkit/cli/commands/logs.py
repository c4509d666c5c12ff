"""``shardkit logs``: shows the recent messages of a log, and follows it."""

from __future__ import annotations

import json

import click

from shardkit.cli.options import StructureOptions, command, number_option, structure_options
from shardkit.cli.output import Output
from shardkit.kit.kit import ShardKit
from shardkit.metrics.logs import LIMIT, MOST_LIMIT, SEVERITIES


@command(
    "shardkit logs shop --component metrics",
    "shardkit logs shop --component metrics --severity warning --follow",
    "shardkit logs shop --component metrics --limit 20 --json",
)
@click.argument("log", metavar="LOG")
@structure_options("metrics", "logs")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is logged, until Ctrl-C.")
@click.option(
    "-s",
    "--severity",
    type=click.Choice(SEVERITIES),
    default="debug",
    show_default=True,
    help="The least severity.",
)
@number_option(
    "--limit",
    LIMIT,
    "How many of the last messages of each severity.",
    short="-n",
    least=0,
    most=MOST_LIMIT,
)
def logs(
    log: str,
    at: StructureOptions,
    follow: bool,
    severity: str,
    limit: int,
    output: Output,
) -> None:
    """Show the recent messages of LOG, oldest first.

    --json writes an object for each message, one in a line.
    """
    with at.opened(ShardKit.logs) as messages:
        for entry in messages.follow(log, severity, limit=limit, stopped=lambda: not follow):
            if output.as_json:
                when = entry.time.isoformat() if entry.time else None
                said = {"time": when, "severity": entry.severity, "message": entry.message}
                click.echo(json.dumps(said, ensure_ascii=False))
            else:
                when = entry.time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if entry.time else "-"
                output.line(f"{when} {entry.severity:<8} {entry.message}")
