"""Which server replicates which, and failover, on real servers, under clients that write."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import before_sending, client_of, paused
from faces import eventually, free_port
from growth_helpers import (
    FAST,
    LEAST,
    PATIENT,
    Fleet,
    ask_for_a_replica,
    check_nothing_lost,
    describe,
    follow,
    losing_nothing,
    on_redis_too,
    replication,
    small,
    still_there,
    writing,
)
from moments import before, killed_at

import shardkit
from shardkit.admin.growth import (
    ReplicaNode,
    VerifiedReplica,
    abort_move,
    apply_fences,
    attach_replica,
    detach_replica,
    fail_over,
    moves,
    pending_fences,
    plan_move,
    replica_tree,
    resume_move,
    start_move,
    verify_replica,
    verify_replicas,
)
from shardkit.errors import (
    ConfigError,
    GrowthError,
    InvalidArgumentError,
    NewerFormatError,
    PushRefusedError,
)
from shardkit.local import LocalServer


def is_master(client: redis.Redis) -> bool:
    return bool(client.info("replication")["role"] == "master")


def offset(client: redis.Redis) -> int:
    """How far a server has come, of the writes of its master."""
    said = client.info("replication")
    return int(said.get("slave_repl_offset", said["master_repl_offset"]))


@on_redis_too
def test_a_planned_failover_loses_nothing_and_no_call_fails(fleet: Fleet) -> None:
    fleet.replicated(1, 2)
    with losing_nothing(fleet) as writers:
        done = fail_over(fleet.config, "users:1", fleet.name(1))
        time.sleep(0.3)  # they go on writing at the new master
    assert done.planned
    assert done.held is not None
    assert done.held < 1.0
    assert done.shards == ("users:0", "users:1")
    assert fleet.masters() == [fleet.name(1)] * 2
    assert max(writers.longest.values()) < 2 * PATIENT
    with fleet.servers[0].client() as old, fleet.servers[2].client() as other:
        for client in (old, other):
            assert client.info("replication")["master_port"] == fleet.servers[1].port
    with shardkit.connect(fleet.url) as kit:
        replicas = kit.component("users").shards[0].replicas
        addresses = {each.address.partition("/")[0] for each in replicas}
        assert addresses == {fleet.name(0), fleet.name(2)}


@on_redis_too
def test_after_a_crash_the_best_replica_takes_over_and_the_old_master_is_fenced(
    fleet: Fleet,
) -> None:
    a, b, c = fleet.replicated(1, 2)
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        router.mset({f"k{n}": n for n in range(100)})
        client_of(a).wait(2, 5000)
        c.pause()  # it lags, while b gets more
        router["more"].set("more", 1)
        with a.client() as client, b.client() as replica:
            assert eventually(lambda: offset(replica) >= offset(client))
        a.kill()
        c.resume()
        done = fail_over(fleet.config, "users:0")
        assert not done.planned
        assert str(done.target) == fleet.name(1), "it has the most writes"
        assert done.followers == (fleet.name(2),)
        assert fleet.masters() == [fleet.name(1)] * 2
        kit.topology.expire()  # as after a second
        assert router["more"].get("more") == b"1"
        assert router["more"].set("more", 2)
        assert [str(each.source) for each in pending_fences(fleet.config)] == [fleet.name(0)]
        assert [each.applied for each in apply_fences(fleet.config)] == [False]
        a.restart()
        [fence] = apply_fences(fleet.config, timeout=5)
        assert fence.applied
        assert pending_fences(fleet.config) == []
        with a.client() as client, pytest.raises(Exception, match="read only replica"):
            client.set("stray", 1)


@pytest.mark.long(2)
@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_crash_under_load_loses_no_durable_write_and_repeats_none(
    fleet: Fleet, replicas: int, least: bool
) -> None:
    a, b, _ = fleet.replicated(1)
    if least:
        ask_for_a_replica(a, b)
    with writing(fleet, replicas) as writers:
        a.kill()
        fail_over(fleet.config, "users:0")
        a.restart()
        time.sleep(0.5)  # it is a second master, until it is fenced
        [fence] = apply_fences(fleet.config, timeout=30)
        assert fence.applied
        before = writers.acknowledged.total()
        goes_on = eventually(lambda: writers.acknowledged.total() >= before + 20, 30)
        assert goes_on, writers.errors[-3:]
    if replicas:
        check_nothing_lost(fleet, writers)
    for key, count in writers.acknowledged.items():
        if key != "ids":
            assert fleet.value(key) <= count + writers.uncertain[key]


@pytest.mark.parametrize("durable", [0, 1])
def test_locks_exclude_while_roles_change(fleet: Fleet, durable: int) -> None:
    fleet.replicated(1)
    end, inside, both, entered = threading.Event(), [], [], Counter[str]()
    errors: list[str] = []

    def hold(name: str) -> None:
        with shardkit.connect(fleet.url) as kit:
            options: Any = {"durable": durable, "durable_timeout": PATIENT, "ttl": 60}
            options["blocking_timeout"] = 30
            lock = kit.lock("l", component="users", **options)
            while not end.is_set():
                try:
                    with lock:
                        inside.append(name)
                        both.extend(inside[1:])
                        time.sleep(0.002)
                        inside.remove(name)
                        entered[name] += 1
                except (redis.RedisError, shardkit.ShardKitError, ExceptionGroup) as error:
                    errors.append(repr(error))

    threads = [threading.Thread(target=hold, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    try:
        for target in (1, 0, 1):
            time.sleep(0.3)
            fail_over(fleet.config, "users:0", fleet.name(target))
        so_far = entered.total()
        assert eventually(lambda: entered.total() >= so_far + 20, 30), errors[-3:]
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert both == []
    assert errors == []


def test_after_a_crash_a_replica_takes_over_though_another_one_is_dead_too(fleet: Fleet) -> None:
    a, b, _ = fleet.replicated(1, 2)
    b.kill()
    a.kill()
    done = fail_over(fleet.config, "users:0")
    assert str(done.target) == fleet.name(2)
    assert fleet.masters() == [fleet.name(2)] * 2


@on_redis_too
def test_masters_that_ask_for_replicas_are_fenced_without_a_guard_and_no_call_fails(
    fleet: Fleet,
) -> None:
    a, b, _ = fleet.replicated(1)
    ask_for_a_replica(a, b)
    with losing_nothing(fleet):
        fail_over(fleet.config, "users:0")
    assert client_of(b).config_get(LEAST)[LEAST] == "1"
    b.kill()
    fail_over(fleet.config, "users:0")  # a has no replica now, and takes writes
    with shardkit.connect(fleet.url) as kit:
        assert kit.key_sharded("users")["k"].set("k", 1)
    b.restart()  # alone, as a master: nobody has fenced it
    with b.client() as client:
        assert is_master(client)
        with pytest.raises(redis.ResponseError, match=r"NOREPLICAS|good replicas"):
            client.set("stray", 1)
    assert [fence.applied for fence in apply_fences(fleet.config, timeout=5)] == [True]
    assert client_of(a).config_get(LEAST)[LEAST] == "1"


@pytest.mark.parametrize("moment", ["hand over", "failover: push entries"])
def test_a_failover_that_is_killed_leaves_no_master_that_asks_for_fewer_replicas(
    fleet: Fleet, moment: str
) -> None:
    a, b, _ = fleet.replicated(1, 2)
    ask_for_a_replica(a, b)
    with killed_at(moment, "ask for replicas"):
        fail_over(fleet.config, "users:0", fleet.name(1))
    with b.client() as client:
        assert client.config_get(LEAST)[LEAST] == "0"
        fail_over(fleet.config, "users:0", fleet.name(1))
        assert fleet.masters() == [fleet.name(1)] * 2
        assert client.config_get(LEAST)[LEAST] == "1"
    assert not fleet.config.exists("config:growth:least")


def refuse_clients(server: LocalServer, admin: redis.Redis) -> None:
    admin.config_set("maxclients", len(admin.client_list()))


def change_the_password(server: LocalServer, admin: redis.Redis) -> None:
    admin.acl_setuser("default", passwords=["+another"], reset_passwords=True, enabled=True)


def take_away_info(server: LocalServer, admin: redis.Redis) -> None:
    admin.execute_command("ACL", "SETUSER", "default", "-info")


def answer_late(server: LocalServer, admin: redis.Redis) -> None:
    server.pause()  # as a script that runs for long


@pytest.mark.long(2)
@pytest.mark.parametrize(
    ("meddle", "why", "evidence"),
    [
        (refuse_clients, "max number of clients reached", "it replied"),
        (change_the_password, "Authentication required.", "it replied"),
        (take_away_info, "User default has no permissions to run the 'info' .*", "it replied"),
        (answer_late, "Timeout .*", "its replica {replica} has a link to it"),
    ],
)
def test_a_master_that_may_be_alive_is_replaced_only_if_that_is_forced(
    fleet: Fleet, meddle: Callable[..., None], why: str, evidence: str
) -> None:
    a, b, _ = fleet.replicated(1)
    said = (
        rf"^users:0 \({fleet.name(0)}\): the master may be alive: "
        rf"{evidence.format(replica=fleet.name(1))}, but INFO failed \({why}\)\. A failover now "
        r"loses all writes that the replica has not got and all that clients still send to the old "
        r"master; make INFO work, or, if these writes may be lost: --force$"
    )
    with a.client() as admin, b.client() as replica:
        admin.ping()
        meddle(a, admin)
        with pytest.raises(GrowthError, match=said):
            fail_over(fleet.config, "users:0")
        assert not is_master(replica)
        assert fleet.masters() == [fleet.name(0)] * 2
        assert pending_fences(fleet.config) == []
        done = fail_over(fleet.config, "users:0", force=True)
        assert (str(done.target), done.planned) == (fleet.name(1), False)
        assert is_master(replica)
    assert fleet.masters() == [fleet.name(1)] * 2
    assert [str(each.source) for each in pending_fences(fleet.config)] == [fleet.name(0)]


def test_a_refusing_master_is_not_replaced(fleet: Fleet, lower: Callable[..., None]) -> None:
    a, _, _ = fleet.replicated(1)
    lower(crash_notice=0.05)
    with a.client() as client:
        client.config_set("port", free_port())
        with pytest.raises(GrowthError, match=r"has a link to it, but INFO failed .*refused"):
            fail_over(fleet.config, "users:0")
    assert fleet.masters() == [fleet.name(0)] * 2


def test_a_master_that_is_silent_to_all_its_replicas_is_replaced(fleet: Fleet) -> None:
    a, b, c = fleet.replicated(1, 2)
    a.pause()
    lose_link(b)
    with pytest.raises(GrowthError, match=rf"its replica {fleet.name(2)} has a link to it"):
        fail_over(fleet.config, "users:0")
    c.pause()
    with pytest.raises(GrowthError, match=rf"its replica {fleet.name(2)} cannot say, but INFO"):
        fail_over(fleet.config, "users:0")
    assert fleet.masters() == [fleet.name(0)] * 2
    c.resume()
    lose_link(c)
    assert not fail_over(fleet.config, "users:0").planned
    assert fleet.masters()[0] != fleet.name(0)


def lose_link(replica: LocalServer) -> None:
    """Have a replica notice that its master is silent."""
    client_of(replica).config_set("repl-timeout", 2)
    assert eventually(lambda: replication(replica)["master_link_status"] == "down")


def hand_over(master: LocalServer, replica: LocalServer) -> None:
    """What a failover does before it pushes the entries."""
    client_of(master).execute_command("FAILOVER", "TO", "127.0.0.1", replica.port)
    assert eventually(lambda: replication(replica)["role"] == "master")


def test_a_failover_after_a_crash_that_was_killed_before_its_push_is_completed(
    fleet: Fleet,
) -> None:
    a, _, _ = fleet.replicated(1, 2)
    a.kill()
    with killed_at("failover: repoint"):
        fail_over(fleet.config, "users:0", fleet.name(1))
    assert fleet.masters() == [fleet.name(0)] * 2
    a.restart()  # as a master, which it is no longer
    done = fail_over(fleet.config, "users:0")
    assert (str(done.target), done.planned) == (fleet.name(1), False)
    assert done.followers == (fleet.name(2),)
    assert fleet.masters() == [fleet.name(1)] * 2
    assert [fence.applied for fence in apply_fences(fleet.config, timeout=5)] == [True]


def test_a_replica_that_is_a_master_takes_over_only_by_force(fleet: Fleet) -> None:
    a, b, _ = fleet.replicated(1)
    hand_over(a, b)
    a.kill()
    with pytest.raises(GrowthError, match=rf"{fleet.name(1)} is a master already"):
        fail_over(fleet.config, "users:0")
    fail_over(fleet.config, "users:0", fleet.name(1), force=True)
    assert fleet.masters() == [fleet.name(1)] * 2


def test_what_cannot_be_failed_over_is_refused(fleet: Fleet) -> None:
    fleet.push(0)
    gone = {"cluster": True, "host": "127.0.0.1", "port": free_port()}
    fleet.describe(
        {"far": {"entry": {"url": "redis://${HOST}/1"}}, "gone": {"entry": gone}}, force=True
    )
    refusals: list[tuple[str, type[Exception], str]] = [
        ("users:0", GrowthError, "no replica that answers"),
        ("users", InvalidArgumentError, "users has 2 shards"),
        ("nobody:7", InvalidArgumentError, "neither a shard nor a master"),
        ("users:9", InvalidArgumentError, "is no shard"),
        ("far", ConfigError, "config:redis:far does not name its server .*; write"),
        ("gone", GrowthError, "config:redis:gone: no node can be asked: .*; start"),
    ]
    for name, error, said in refusals:
        with pytest.raises(error, match=said):
            fail_over(fleet.config, name)
    follow(fleet.servers[2], fleet.servers[1])
    others = f"{fleet.name(2)} replicates {fleet.name(1)}, not {fleet.name(0)}: nothing has"
    with pytest.raises(GrowthError, match=others):
        fail_over(fleet.config, "users:0", fleet.name(2))
    fleet.servers[0].kill()
    with pytest.raises(GrowthError, match=others):
        fail_over(fleet.config, fleet.name(0), fleet.name(2))


def test_lost_masters_get_fenced(own_server: LocalServer) -> None:
    entry = {"host": "127.0.0.1", "port": own_server.port}
    with own_server.client(db=9) as config:
        describe(config, {"data": {"entry": entry}})
        master = f"127.0.0.1:{own_server.port}"
        config.hset("config:growth:fences", "127.0.0.1:1", json.dumps({"master": master}))
        assert [each.applied for each in apply_fences(config, timeout=0.1)] == [False]
        with ThreadPoolExecutor() as threads:
            guarding = threads.submit(apply_fences, config, timeout=60)
            config.delete("config:growth:fences")  # others have done it
            assert [each.applied for each in guarding.result()] in ([True], [])
        assert apply_fences(config) == []


@pytest.mark.parametrize("stored", ["", "[]", '{"master": "a b"}'])
def test_a_fence_that_cannot_be_read_is_named(fleet: Fleet, stored: str) -> None:
    fleet.config.hset("config:growth:fences", "a:1", stored)
    said = "config:growth:fences a:1 holds no fence; check it, and delete it if all is well"
    with pytest.raises(ConfigError, match=said):
        pending_fences(fleet.config)
    fleet.config.hset("config:growth:fences", "a:1", '{"format": 2}')
    with pytest.raises(NewerFormatError, match="fences a:1 has format 2; use the release that"):
        pending_fences(fleet.config)


def test_a_master_that_was_replaced_stays_a_replica_when_it_is_restarted(fleet: Fleet) -> None:
    a, b, _ = fleet.replicated(1)
    with losing_nothing(fleet):
        fail_over(fleet.config, "users:0")
        a.restart()
        with a.client() as client:
            assert not is_master(client)
        # At once: it may still be being filled.
        assert str(fail_over(fleet.config, "users:0").target) == fleet.name(0)
        b.restart()
    assert fleet.masters() == [fleet.name(0)] * 2


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
        (attach_replica, (a, "users:0"), f"entries name {a} as a master"),
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
        with paused(b), pytest.raises(redis.TimeoutError, match="no answer in time"):
            verify_replica(master, replica, timeout=0.1)
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
