"""``shardkit logs``: shows the recent messages of a log, and follows it."""

from __future__ import annotations

import json

import click

from shardkit.cli import options as given
from shardkit.cli.options import StructureOptions, command
from shardkit.cli.output import Output
from shardkit.kit.kit import ShardKit
from shardkit.metrics.logs import LIMIT, MOST_LIMIT, SEVERITIES


@command(
    "shardkit logs shop --component metrics",
    "shardkit logs shop --component metrics --severity warning --follow",
    "shardkit logs shop --component metrics --limit 20 --json",
)
def logs(
    output: Output,
    log: str = given.argument("LOG"),
    at: StructureOptions = given.structure("metrics", "logs"),
    follow: bool = given.flag("Go on with what is logged, until Ctrl-C.", short="-f"),
    severity: str = given.choice(SEVERITIES, "The least severity.", default="debug", short="-s"),
    limit: int = given.number(
        LIMIT,
        "How many of the last messages of each severity.",
        short="-n",
        least=0,
        most=MOST_LIMIT,
    ),
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
