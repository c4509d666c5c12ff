"""``shardkit replicas``: which server replicates which."""

from __future__ import annotations

from collections.abc import Sequence

import click

from shardkit.cli.options import common_options, components, config_option, examples, opened
from shardkit.cli.output import BAD, Output, Styled, Table, number
from shardkit.growth import replica_tree


@click.group(
    short_help="Show which server replicates which.",
    epilog=examples("shardkit replicas tree", "shardkit replicas tree timelines --json"),
)
def replicas() -> None:
    """Show which server replicates which."""


@replicas.command()
@click.argument("names", metavar="[COMPONENT]...", nargs=-1)
@config_option
@common_options
def tree(names: Sequence[str], where: str | None, as_json: bool) -> int:
    """Show masters, their replicas and theirs; exit code 1 if one is not in order."""
    output = Output(as_json)
    with opened(where) as topology:
        found, _ = components(topology, names)
    with output.busy("asking the servers"):
        nodes = replica_tree(found.values())
    code = 0 if all(node.ok for node in nodes) else 1
    if as_json:
        output.document(
            [
                {
                    "server": str(node.server),
                    "depth": node.depth,
                    "state": node.state,
                    "behind": node.behind,
                }
                for node in nodes
            ]
        )
        return code
    table = Table.of("server", "state", number("bytes behind"))
    for node in nodes:
        state = node.state if node.ok else Styled(node.state, BAD)
        table.row("  " * node.depth + str(node.server), state, node.behind)
    output.table(table)
    return code
