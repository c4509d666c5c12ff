"""``shardkit failover``: a replica replaces its master, planned or after a crash."""

from __future__ import annotations

from dataclasses import asdict

import click

from shardkit.admin.growth import apply_fences, fail_over, pending_fences
from shardkit.cli.commands.move import hold
from shardkit.cli.options import command, config_option, config_server, number_option
from shardkit.cli.output import DOUBTFUL, GOOD, Output
from shardkit.kit.config_client import config_client


@command(
    "shardkit failover timelines:3",
    "shardkit failover a.internal:6379 --to b.internal:6379",
    "shardkit failover a.internal:6379 --guard 3600   # until the old master is back",
    "shardkit failover --guard 0                      # fence what is back",
)
@click.argument("name", metavar="[SHARD|SERVER]", required=False)
@click.option(
    "--to",
    metavar="REPLICA",
    help="The replica, HOST:PORT; by default the latest.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Even if the master may be alive, or the replica lost its link: writes are lost.",
)
@hold
@number_option(
    "--guard",
    None,
    "How long to wait for old masters to come back; they are fenced.",
    least=0.0,
    unit="SECONDS",
)
@config_option
def failover(
    name: str | None,
    to: str | None,
    force: bool,
    hold: float,
    guard: float | None,
    where: str | None,
    output: Output,
) -> None:
    """Replace a master by its replica, for all shards of the server of SHARD.

    If the master answers, it hands over: no write is lost. If it has crashed, the replica with the
    most writes is promoted, and the old master is fenced when it comes back: it becomes a replica,
    and its unreplicated writes are dropped. Sentinels and clusters do this themselves.

    A crash is a refused connection, or silence if all replicas have lost their links. A master
    that does not answer INFO for another reason is replaced only with --force.
    """
    if name is None and guard is None:
        raise click.UsageError("specify a shard or a server, or --guard")
    done, fences = None, []
    with config_client(config_server(where)) as config:
        if name is not None:
            with output.busy("failing over"):
                done = fail_over(config, name, to, force=force, hold=hold)
        fences = pending_fences(config)
        if guard is not None:
            with output.busy("waiting for old masters"):
                fences = apply_fences(config, guard)
    if output.as_json:
        output.document(
            {
                "takeover": done
                and {**asdict(done), "source": str(done.source), "target": str(done.target)},
                "fences": [
                    {
                        "source": str(fence.source),
                        "target": str(fence.target),
                        "applied": fence.applied,
                    }
                    for fence in fences
                ],
            }
        )
        return
    if done is not None:
        how = "as planned: no write was lost"
        if not done.planned:
            how = "it was not handed over: what only the old master had is lost"
        if done.held is not None:
            how += f", writers waited at most {1000 * done.held:.0f} ms"
        output.line(f"{done.target} is the master in place of {done.source} ({how})", GOOD)
        output.line(f"shards: {', '.join(done.shards) or 'none'}; epoch {done.epoch}")
        if done.followers:
            output.line(f"follow it: {', '.join(done.followers)}")
        for server, why in done.failed.items():
            output.line(f"{server} could not be told to follow it: {why}", DOUBTFUL)
        if done.behind:
            output.line(f"{done.behind:,} bytes of writes are on other replicas only", DOUBTFUL)
    for fence in fences:
        if fence.applied:
            output.line(f"{fence.source} is back, and a replica of {fence.target}", GOOD)
        else:
            output.line(
                f"{fence.source} will be fenced when it is back: shardkit failover --guard SECONDS",
                DOUBTFUL,
            )
