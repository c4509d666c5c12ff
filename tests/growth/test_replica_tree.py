"""Which server replicates which, over several levels; replicas that come and go."""

from __future__ import annotations

import json
import time

import pytest
import redis
from click.testing import CliRunner
from growth_helpers import Fleet, follow, writing

from shardkit.cli.app import app
from shardkit.config.store import read_components
from shardkit.errors import InvalidArgumentError
from shardkit.growth import (
    VerifiedReplica,
    attach_replica,
    detach_replica,
    replica_tree,
    verify_replica,
    verify_replicas,
)
from shardkit.growth.servers import GrowthError


def test_a_tree_of_replicas_shows_every_level_and_who_does_not_follow(fleet: Fleet) -> None:
    a, b, c = fleet.servers
    fleet.push(0, (1,))
    nodes = replica_tree(read_components(fleet.config).values())
    assert [(node.depth, node.state) for node in nodes] == [(0, "master"), (1, "follows nobody")]
    follow(b, a)
    follow(c, b)
    end = time.monotonic() + 30
    while [node.behind for node in nodes] != [None, 0, 0]:
        assert time.monotonic() < end, nodes
        nodes = replica_tree(read_components(fleet.config).values())
    assert [node.state for node in nodes] == ["master", "in sync", "in sync"]
    assert [str(node.server) for node in nodes] == [fleet.name(0), fleet.name(1), fleet.name(2)]
    assert [node.depth for node in nodes] == [0, 1, 2]
    assert all(node.ok for node in nodes)
    done = CliRunner().invoke(app, ["replicas", "tree", "--config", fleet.url])
    assert "in sync" in done.output or "behind" in done.output
    b.kill()
    nodes = replica_tree(read_components(fleet.config).values())
    assert not all(node.ok for node in nodes)


def named_replicas(fleet: Fleet) -> list[list[str]]:
    return [
        [f"{each['host']}:{each['port']}" for each in json.loads(stored).get("replicas", ())]
        for stored in fleet.config.mget(["config:redis:users:0", "config:redis:users:1"])
    ]


def test_a_replica_is_attached_and_detached_while_clients_write(fleet: Fleet) -> None:
    fleet.push(0)
    a, b, c = (fleet.name(n) for n in range(3))
    with writing(fleet) as writers:
        done = attach_replica(fleet.config, b, "users:1", zone="z1")
        assert (str(done.master), done.named) == (a, True)
        assert named_replicas(fleet) == [[b], [b]]
        assert attach_replica(fleet.config, b, a).epoch == done.epoch, "it is attached already"
        below = attach_replica(fleet.config, c, b)
        assert not below.named
        assert named_replicas(fleet) == [[b], [b]]
        tree = ["replicas", "tree", "--wait", "20", "--json", "--config", fleet.url]
        shown = CliRunner().invoke(app, tree)
        assert [(node["server"], node["depth"]) for node in json.loads(shown.output)] == [
            (a, 0), (b, 1), (c, 2),
        ]  # fmt: skip
        with pytest.raises(GrowthError, match=f"has replicas itself: {c}"):
            detach_replica(fleet.config, b)
        assert str(detach_replica(fleet.config, c).master) == b
        detach_replica(fleet.config, b)
    assert writers.errors == []
    assert named_replicas(fleet) == [[], []]
    with fleet.servers[1].client() as client:
        assert client.info("replication")["role"] == "master"
        assert client.info("keyspace"), "it keeps its data"
    with pytest.raises(GrowthError, match="is not empty: it would lose its keys"):
        attach_replica(fleet.config, b, a)
    with pytest.raises(InvalidArgumentError, match="follows no server that entries name"):
        detach_replica(fleet.config, b)
    with pytest.raises(GrowthError, match=f"entries name {a} as a master"):
        detach_replica(fleet.config, a)
    with pytest.raises(GrowthError, match=f"entries name {a} as a master"):
        attach_replica(fleet.config, a, b)
    with pytest.raises(InvalidArgumentError, match="neither a shard nor a master"):
        attach_replica(fleet.config, c, b)


def test_the_replica_that_a_master_needs_is_not_detached_and_a_dead_one_is(fleet: Fleet) -> None:
    follow(fleet.servers[1], fleet.servers[0])
    fleet.push(0, (1,))
    with fleet.servers[0].client() as client:
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(GrowthError, match="takes writes only with 1 replicas"):
            detach_replica(fleet.config, fleet.name(1))
        client.config_set("min-replicas-to-write", 0)
    fleet.servers[1].kill()
    detach_replica(fleet.config, fleet.name(1))
    assert named_replicas(fleet) == [[], []]


def test_a_write_is_verified_on_replicas_and_their_disks(fleet: Fleet) -> None:
    a, b, _ = fleet.servers
    follow(b, a)
    fleet.push(0, (1, 2))
    components = read_components(fleet.config).values()
    found = verify_replicas(components, timeout=0.3)
    verdicts = {str(replica): verdict for (_, replica), verdict in found.items()}
    assert verdicts[fleet.name(1)].ok
    assert verdicts[fleet.name(1)].synced is None, "it has no append-only file"
    assert not verdicts[fleet.name(2)].linked
    with b.client() as replica, a.client() as master:
        replica.config_set("appendonly", "yes")
        found = verify_replica(master, replica)
        assert (found.ok, found.synced) == (True, True)
        assert not master.exists("sync:wait")
        master.zadd("sync:wait", {"left behind": 1})
        replica.replicaof("127.0.0.1", str(fleet.servers[2].port))
        assert not verify_replica(master, replica, timeout=0.1).ok
        assert not master.exists("sync:wait"), "also what others left is removed"
    done = CliRunner().invoke(app, ["verify-replica", "--timeout", "0.1", "--config", fleet.url])
    assert done.exit_code == 1
    assert "it has no link to its master" in done.output
    fleet.servers[2].kill()
    found = verify_replicas(components, timeout=0.1)
    assert {str(replica): type(answer) for (_, replica), answer in found.items()} == {
        fleet.name(1): VerifiedReplica, fleet.name(2): redis.ConnectionError,
    }  # fmt: skip


def test_a_tree_says_of_each_server_what_it_follows_instead(fleet: Fleet) -> None:
    a, b, c = fleet.servers
    fleet.push(0, (1,))
    follow(b, c)
    nodes = replica_tree(read_components(fleet.config).values())
    assert [(str(node.server), node.depth, node.state) for node in nodes] == [
        (fleet.name(0), 0, "master"),
        (fleet.name(1), 1, f"follows {fleet.name(2)}, not the master of its entry"),
    ]
    with pytest.raises(GrowthError, match=f"{fleet.name(1)} is a replica of another server; noth"):
        attach_replica(fleet.config, fleet.name(1), fleet.name(0))
    with pytest.raises(GrowthError, match=f"{fleet.name(1)} are one server; nothing was changed"):
        attach_replica(fleet.config, fleet.name(1), fleet.name(1))
    follow(a, c)
    [node, *_] = replica_tree(read_components(fleet.config).values())
    assert (node.state, node.ok) == ("is a replica, though an entry names it as master", False)
    fleet.push(0)
    a.kill()
    [node] = replica_tree(read_components(fleet.config).values())
    assert node.state.startswith("does not answer (")
