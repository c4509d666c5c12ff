"""Which server replicates which, over several levels."""

from __future__ import annotations

from click.testing import CliRunner
from growth_helpers import Fleet, follow

from shardkit.cli.app import app
from shardkit.config.store import read_components
from shardkit.growth import replica_tree


def test_a_tree_of_replicas_shows_every_level_and_who_does_not_follow(fleet: Fleet) -> None:
    a, b, c = fleet.servers
    fleet.push(0, (1,))
    nodes = replica_tree(read_components(fleet.config).values())
    assert [(node.depth, node.state) for node in nodes] == [(0, "master"), (1, "follows nobody")]
    follow(b, a)
    follow(c, b)
    while True:
        nodes = replica_tree(read_components(fleet.config).values())
        if len(nodes) == 3 and nodes[2].ok:
            break
    assert [str(node.server) for node in nodes] == [fleet.name(0), fleet.name(1), fleet.name(2)]
    assert [node.depth for node in nodes] == [0, 1, 2]
    assert all(node.ok for node in nodes)
    done = CliRunner().invoke(app, ["replicas", "tree", "--config", fleet.url])
    assert "in sync" in done.output or "behind" in done.output
    b.kill()
    nodes = replica_tree(read_components(fleet.config).values())
    assert not all(node.ok for node in nodes)
