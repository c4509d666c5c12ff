"""``shardkit split``: gives a component another number of shards, while it is in use."""

from __future__ import annotations

from typing import Any

import click

from shardkit.admin.growth import plan_split, start_split
from shardkit.cli.commands.move import copying, dry_run, run, show_plan
from shardkit.cli.options import command, config_server
from shardkit.cli.output import Output
from shardkit.kit.config_client import config_client


@command(
    "shardkit split users --shards 64 --over a.internal --over b.internal --dry-run",
    "shardkit split users --shards 64 --over a.internal --over b.internal",
    "shardkit split users --placement rendezvous",
    "shardkit split users --to-cluster c.internal:6379",
    "shardkit move status",
    "shardkit move reverse users",
)
@click.argument("component")
@click.option(
    "--shards", type=int, metavar="N", help="The new number of shards; as now by default."
)
@click.option("--placement", metavar="NAME", help="How keys will find their shards.")
@click.option(
    "--over",
    multiple=True,
    metavar="SERVER",
    help="A server for the new shards, HOST:PORT; repeat it. By default the present ones.",
)
@click.option(
    "--route",
    "routes",
    multiple=True,
    metavar="RULE",
    help="A rule that finds the routing key in names of keys; by default those of the shard map.",
)
@click.option(
    "--to-cluster",
    metavar="SERVER",
    help="A node of an empty cluster, HOST:PORT, that takes the component over.",
)
@dry_run
@copying
def split(
    component: str,
    shards: int | None,
    placement: str | None,
    over: tuple[str, ...],
    routes: tuple[str, ...],
    to_cluster: str | None,
    dry_run: bool,
    where: str | None,
    output: Output,
    **options: Any,
) -> int:
    """Give COMPONENT another number of shards or another placement, or shards for the first time.

    Each key is copied to its new shard, into databases that nothing uses, or into a cluster.
    Readers do not wait; writers wait once, until all have left the old shards. Nothing is lost if
    this command is killed: `shardkit move resume COMPONENT`. Undo it with `shardkit move reverse
    COMPONENT`. The exit code is 1 if another program wrote to the old databases afterwards.
    """
    servers = [server for each in over for server in each.split(",")]
    new: Any = {
        "shards": shards,
        "placement": placement,
        "over": servers,
        "routes": routes or None,
        "to_cluster": to_cluster,
    }
    if not dry_run:
        return run(start_split, where, output, component, **new, **options)
    with config_client(config_server(where)) as config:
        limited = {name: options[name] for name in ("hold", "offline")}
        return show_plan(output, plan_split(config, component, **new, **limited))
