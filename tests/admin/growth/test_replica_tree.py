"""Which server replicates which, over several levels; replicas, and servers with several names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import before_sending, client_of
from faces import eventually, free_port
from growth_helpers import FAST, PATIENT, Fleet, follow, replication, small, still_there, writing
from moments import before, killed_at

import shardkit
from shardkit.admin.growth import (
    ReplicaNode,
    VerifiedReplica,
    abort_move,
    attach_replica,
    detach_replica,
    fail_over,
    moves,
    plan_move,
    replica_tree,
    resume_move,
    start_move,
    verify_replica,
    verify_replicas,
)
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError, PushRefusedError
from shardkit.local import LocalServer


def tree(fleet: Fleet) -> list[ReplicaNode]:
    with shardkit.connect(fleet.url) as kit:
        return replica_tree([kit.component("users")])


def test_a_tree_of_replicas_shows_every_level_and_who_does_not_follow(
    fleet: Fleet, lower: Callable[..., None]
) -> None:
    a, b, c = fleet.servers
    fleet.push(0, (1,))
    nodes = tree(fleet)
    assert [(node.depth, node.state) for node in nodes] == [(0, "master"), (1, "follows nobody")]
    follow(b, a)
    follow(c, b)
    assert eventually(lambda: [node.behind for node in tree(fleet)] == [None, 0, 0], 30)
    nodes = tree(fleet)
    assert [(str(node.server), node.depth, node.state, node.ok) for node in nodes] == [
        (fleet.name(0), 0, "master", True),
        (fleet.name(1), 1, "in sync", True),
        (fleet.name(2), 2, "in sync", True),
    ]
    output = fleet.run("replicas", "tree").output
    assert "in sync" in output or "behind" in output
    lower(replica_levels=1)  # as with servers that replicate each other in a circle
    assert len(tree(fleet)) == 2
    b.kill()
    assert not all(node.ok for node in tree(fleet))


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
        shown = fleet.run("replicas", "tree", "--timeout", "20", "--json")
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
    refusals: list[tuple[Callable[..., object], tuple[str, ...], str]] = [
        (attach_replica, (b, a), "is not empty: it would lose its keys"),
        (detach_replica, (b,), "follows no server that entries name"),
        (detach_replica, (a,), f"entries name {a} as a master"),
        (attach_replica, (a, b), f"entries name {a} as a master"),
        (attach_replica, (c, b), "neither a shard nor a master"),
    ]
    for change, servers, said in refusals:
        with pytest.raises((GrowthError, InvalidArgumentError), match=said):
            change(fleet.config, *servers)


def test_an_attach_fails_if_entries_name_another_master_by_then(
    fleet: Fleet,
) -> None:
    fleet.push(0)
    words = "replicas", "attach", fleet.name(1), "--to", fleet.name(0)
    with before("wait for the copy", lambda: fleet.push(2)):
        assert f"entries have stopped naming {fleet.name(0)}" in fleet.run(*words, code=1).output
    assert named_replicas(fleet) == [[], []]
    assert replication(fleet.servers[1])["role"] == "master"


def test_the_replica_that_a_master_needs_is_not_detached_and_a_dead_one_is(fleet: Fleet) -> None:
    fleet.replicated(1)
    with fleet.servers[0].client() as client:
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(GrowthError, match="takes writes only with 1 replicas"):
            detach_replica(fleet.config, fleet.name(1))
        client.config_set("min-replicas-to-write", 0)
    fleet.servers[1].kill()
    detach_replica(fleet.config, fleet.name(1))
    assert named_replicas(fleet) == [[], []]


def test_only_a_replica_that_its_master_confirms_is_detached(fleet: Fleet) -> None:
    fleet.replicated(1)
    a, b = fleet.name(0), fleet.name(1)
    with fleet.servers[0].client() as master, fleet.servers[1].client() as replica:
        master.execute_command("ACL", "SETUSER", "default", "-config")
        said = f"{a} does not say how many replicas it needs .*conf"
        with pytest.raises(GrowthError, match=said):
            detach_replica(fleet.config, b)
        replica.execute_command("ACL", "SETUSER", "default", "-info")
        said = f"{b} may be alive, but INFO failed .*still follow {a}"
        with pytest.raises(GrowthError, match=said):
            detach_replica(fleet.config, b)
        assert named_replicas(fleet) == [[b], [b]]
        detach_replica(fleet.config, b, force=True)
        assert named_replicas(fleet) == [[], []]


def test_a_write_is_verified_on_replicas_and_their_disks(fleet: Fleet) -> None:
    a, b, c = fleet.servers
    follow(b, a)
    fleet.push(0, (1, 2))
    alias = {"host": "localhost", "port": a.port, "replicas": [{"port": b.port}]}
    fleet.describe({"users_too": {"entry": alias}})
    with shardkit.connect(fleet.url) as kit:
        components = [kit.component(name) for name in ("users", "users_too")]
    found = verify_replicas(components, timeout=0.3)
    verdicts = {str(replica): verdict for (_, replica), verdict in found.items()}
    assert verdicts[fleet.name(1)].ok
    assert verdicts[fleet.name(1)].synced is None, "it has no append-only file"
    assert not verdicts[fleet.name(2)].linked
    with b.client() as replica, a.client() as master, c.client() as other:
        assert not verify_replica(master, other, timeout=3600).linked, "it is a master"
        replica.config_set("appendonly", "yes")
        found = verify_replica(master, replica)
        assert (found.ok, found.synced) == (True, True)
        assert not master.exists("sync:wait")
        master.zadd("sync:wait", {"left behind": 1})
        replica.replicaof("127.0.0.1", str(fleet.servers[2].port))
        assert not verify_replica(master, replica, timeout=0.1).ok
        assert not master.exists("sync:wait"), "also what others left is removed"
        b.pause()
        try:
            with pytest.raises(redis.TimeoutError, match="no answer in time"):
                verify_replica(master, replica, timeout=0.1)
        finally:
            b.resume()
    done = fleet.run("verify-replica", "--timeout", "0.1", code=1)
    assert "no link to the master" in done.output
    fleet.servers[2].kill()
    found = verify_replicas(components, timeout=0.1)
    assert {str(replica): type(answer) for (_, replica), answer in found.items()} == {
        fleet.name(1): VerifiedReplica, fleet.name(2): redis.ConnectionError,
    }  # fmt: skip


# Servers that are named by references only, or are seen to by others.
ELSEWHERE = {
    "far": {
        "entry": {
            "host": "${HOST}",
            "port": 1,
            "replicas": [{"host": "${REPLICA}"}, {"host": "127.0.0.1", "port": 1}],
        }
    },
    "nodes": {"entry": {"host": "node", "cluster": True}},
}


def test_entries_name_servers_by_host_and_port(fleet: Fleet) -> None:
    follow(fleet.servers[1], fleet.servers[0])
    replicas = [{"host": "${REPLICA}"}, fleet.at(1)]
    own = {"own": {"entry": fleet.at(0, replicas=replicas)}}
    fleet.describe({**ELSEWHERE, **own}, check=False)
    a, b = fleet.name(0), fleet.name(1)
    assert str(attach_replica(fleet.config, b, a).master) == a
    with pytest.raises(InvalidArgumentError, match=r"127\.0\.0\.1:1 is neither a sha"):
        attach_replica(fleet.config, fleet.name(2), "127.0.0.1:1")
    with pytest.raises(InvalidArgumentError, match=r"127\.0\.0\.1:1 follows no server tha"):
        detach_replica(fleet.config, "127.0.0.1:1")
    assert str(detach_replica(fleet.config, b).master) == a


@pytest.mark.parametrize("database", [0, 3])
def test_a_replica_is_verified_in_the_database_of_its_entry(fleet: Fleet, database: int) -> None:
    follow(fleet.servers[1], fleet.servers[0])
    described = {"db": database} if database else {}
    entry = fleet.at(0, replicas=[fleet.at(1)], **described)
    fleet.describe({"data": {"entry": entry}}, check=False)
    with shardkit.connect(fleet.url) as kit, fleet.servers[0].client(db=database) as master:
        key, seen = b"sync:wait", []
        look = lambda: seen.append(master.exists(key))  # noqa: E731
        with before_sending(lambda connection, text: "ZREM" in text or "DEL" in text, look):
            [answer] = verify_replicas([kit.component("data")]).values()
    assert isinstance(answer, VerifiedReplica)
    assert answer.ok
    assert seen == [1]


def test_a_node_of_a_cluster_is_neither_moved_nor_replicated(fleet: Fleet) -> None:
    with LocalServer(config={"cluster-enabled": True, "cluster-port": free_port()}) as node:
        fleet.describe({"data": {"entry": {"host": "127.0.0.1", "port": node.port}}})
        name = f"127.0.0.1:{node.port}"
        [problem] = plan_move(fleet.config, name, fleet.name(0)).problems
        assert problem == f"{name} is a node of a cluster, which moves slots itself"
        with pytest.raises(GrowthError, match=f"{name} is a node of a cluster: CLUSTER REPLICATE"):
            attach_replica(fleet.config, fleet.name(0), name)


def test_a_tree_says_of_each_server_what_it_follows_instead(fleet: Fleet) -> None:
    a, b, c = fleet.servers
    fleet.push(0, (1,))
    client_of(b).replicaof("127.0.0.1", "1")
    [_, node] = tree(fleet)
    assert (node.state, node.ok) == ("no link", False)
    follow(b, c)
    nodes = tree(fleet)
    assert [(str(node.server), node.depth, node.state) for node in nodes] == [
        (fleet.name(0), 0, "master"),
        (fleet.name(1), 1, f"follows {fleet.name(2)}, not the master of its entry"),
    ]
    refusals = [(0, "is a replica of another server; correct"), (1, "are one server; correct that")]
    for master, said in refusals:
        with pytest.raises(GrowthError, match=f"{fleet.name(1)} {said}"):
            attach_replica(fleet.config, fleet.name(1), fleet.name(master))
    follow(a, c)
    [node, *_] = tree(fleet)
    assert (node.state, node.ok) == ("is a replica, though an entry names it as master", False)
    fleet.push(0)
    a.kill()
    [node] = tree(fleet)
    assert node.state.startswith("does not answer (")


HOSTS = {"a": "127.0.0.1", "b": "localhost"}


def two_names(fleet: Fleet, numbers: dict[str, int], **more: Any) -> None:
    """Push two components whose entries have two names of the first server."""
    entries = {name: fleet.at(0, db=db, **more) for name, db in numbers.items()}
    fleet.describe({name: {"entry": {**entries[name], "host": HOSTS[name]}} for name in entries})


def addresses(fleet: Fleet) -> dict[str, str]:
    with shardkit.connect(fleet.url) as kit:
        return {name: kit.component(name).entries()[0][1].address for name in HOSTS}


def write_and_read(fleet: Fleet, value: str) -> list[str | None]:
    """Return what both components had, and write to both."""
    with shardkit.connect(fleet.url) as kit:
        found = [kit.client(name).set("k", value, get=True) for name in HOSTS]
    return [None if each is None else each.decode() for each in found]


def test_move_server_moves_entries_with_every_name_of_the_server(fleet: Fleet) -> None:
    two_names(fleet, {"a": 1, "b": 2})
    assert write_and_read(fleet, "old") == [None, None]
    assert plan_move(fleet.config, fleet.name(0), fleet.name(1)).shards == ("a", "b")
    assert fleet.move_server().phase == "done"
    assert addresses(fleet) == {"a": f"{fleet.name(1)}/1", "b": f"{fleet.name(1)}/2"}
    assert write_and_read(fleet, "new") == ["old", "old"]


def test_move_shards_moves_a_database_with_every_name_of_its_server(fleet: Fleet) -> None:
    two_names(fleet, {"a": 1, "b": 1})
    assert write_and_read(fleet, "old") == [None, "old"]
    with pytest.raises(GrowthError, match="b is in the same database: specify it as well"):
        start_move(fleet.config, ["a"], fleet.name(1))
    plan = plan_move(fleet.config, ["a"], f"localhost:{fleet.servers[0].port}")
    assert any("are one server" in each for each in plan.problems)
    assert start_move(fleet.config, ["a", "b"], fleet.name(1), hold=3).phase == "done"
    assert addresses(fleet) == {"a": f"{fleet.name(1)}/1", "b": f"{fleet.name(1)}/1"}
    assert write_and_read(fleet, "new") == ["old", "new"]


@pytest.mark.parametrize("crashed", [False, True])
def test_failover_repoints_every_name_of_the_master(fleet: Fleet, crashed: bool) -> None:
    follow(fleet.servers[1], fleet.servers[0])
    two_names(fleet, {"a": 1, "b": 2}, replicas=[fleet.at(1)])
    if crashed:
        fleet.servers[0].stop(0)
    done = fail_over(fleet.config, "a")
    assert done.shards == ("a", "b")
    assert addresses(fleet) == {"a": f"{fleet.name(1)}/1", "b": f"{fleet.name(1)}/2"}
    assert write_and_read(fleet, "new") == [None, None]


def test_an_entry_with_a_unix_socket_stops_a_move(fleet: Fleet, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with LocalServer(config={**FAST, "unixsocket": path}) as server:
        there = {"host": "127.0.0.1", "port": server.port, "db": 1}
        entries = {"a": there, "b": {"unix_socket_path": path, "db": 2}}
        described = {name: {"entry": entry} for name, entry in entries.items()}
        fleet.describe(described)
        said = "config:redis:b leads to .* by a socket, Sentinels or a reference"
        with pytest.raises(GrowthError, match=said):
            start_move(fleet.config, f"127.0.0.1:{server.port}", fleet.name(1))
        with pytest.raises(GrowthError, match=said):
            fail_over(fleet.config, "a")
        assert plan_move(fleet.config, ["a"], fleet.name(1)).problems == ()
        described["b"]["entry"]["db"] = 1
        fleet.describe(described, force=["b"])
        with pytest.raises(GrowthError, match=said):
            start_move(fleet.config, ["a"], fleet.name(1))


def test_a_move_is_found_by_any_name_of_its_server(fleet: Fleet) -> None:
    two_names(fleet, {"a": 1, "b": 2})
    names = [f"{host}:{fleet.servers[0].port}" for host in HOSTS.values()]
    with killed_at("hand over"):
        start_move(fleet.config, names[0], fleet.name(1))
    said = f"^{names[0]} is already being moved to .*; resume it: shardkit move resume {names[0]}"
    for to in (1, 2):
        with pytest.raises(GrowthError, match=said):
            start_move(fleet.config, names[1], fleet.name(to))
    assert abort_move(fleet.config, names[1]).phase == "aborted"
    assert start_move(fleet.config, names[1], fleet.name(1)).phase == "done"
    assert [(each.name, each.phase) for each in moves(fleet.config)] == [
        (names[0], "aborted"),
        (names[1], "done"),
    ]
    for unknown in fleet.name(2), "a", "a:1":
        with pytest.raises(ConfigError, match=f"^{unknown} has no move; see: shardkit move status"):
            abort_move(fleet.config, unknown)


def entry(fleet: Fleet) -> dict[str, Any]:
    return dict(json.loads(fleet.config.get("config:redis:data")))


@pytest.mark.parametrize("rest", ["", "/4", "/4?socket_timeout=2"])
def test_a_url_keeps_everything_but_its_server(fleet: Fleet, rest: str) -> None:
    fleet.describe(
        {"data": {"entry": {"url": f"redis://{fleet.name(0)}{rest}", "read_from": "replica"}}}
    )
    before = entry(fleet)
    fleet.move_server(hold=PATIENT)
    moved = before["url"].replace(fleet.name(0), fleet.name(1))
    assert entry(fleet) == {**before, "url": moved}


def test_a_replica_that_takes_over_brings_its_zone_and_leaves_the_others_as_they_were(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARE", "127.0.0.1")
    follow(fleet.servers[1], fleet.servers[0])
    others = [
        {"url": f"redis://{fleet.name(2)}", "zone": "north"},
        {"host": "${SPARE}", "port": 1},
    ]
    new = fleet.at(1, zone="east")
    described = fleet.at(0, db=5, zone="west", replicas=[new, *others])
    fleet.describe({"data": {"entry": described}}, check=False)
    fail_over(fleet.config, "data", fleet.name(1), hold=PATIENT)
    former = fleet.at(0, zone="west")
    assert entry(fleet) == fleet.at(1, db=5, zone="east", replicas=[*others, former])
    fleet.servers[1].kill()
    fail_over(fleet.config, "data", fleet.name(0), hold=PATIENT)
    assert entry(fleet) == fleet.at(0, db=5, zone="west", replicas=others)


@pytest.mark.parametrize("text", ["", "a:0", "a:65536", "a:b", "::1", "redis://a:1", "a b", "a/1"])
def test_what_is_no_address_is_refused(fleet: Fleet, text: str) -> None:
    fleet.push(0)
    with pytest.raises(InvalidArgumentError, match=f"^{text!r} is not a server; specify"):
        attach_replica(fleet.config, text, fleet.name(0))


@pytest.mark.parametrize("once", [True, False])
def test_a_mover_repeats_its_push_a_few_times(fleet: Fleet, once: bool) -> None:
    small(fleet)
    pushes = 0

    def push_others() -> None:
        nonlocal pushes
        pushes += 1
        fleet.describe({"others": {"entry": fleet.at(2, db=pushes)}}, check=False)

    def is_push(connection: Any, text: str) -> bool:
        return "MULTI" in text and "config:epoch" in text and "config:redis:users" in text

    with before_sending(is_push, push_others, once=once):
        if once:
            assert fleet.move_shard().phase == "done"
        else:
            with pytest.raises(PushRefusedError, match="other pushes came in between"):
                fleet.move_shard()
    assert pushes == (1 if once else 10)
    assert fleet.config.exists("config:redis:others")
    if not once:
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    assert still_there(fleet)
