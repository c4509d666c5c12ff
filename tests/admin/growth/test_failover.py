"""Failover on real servers, under clients that write all the time."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from arranged import client_of
from faces import eventually, free_port
from growth_helpers import (
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
    writing,
)
from moments import killed_at

import shardkit
from shardkit.admin.growth import apply_fences, fail_over, pending_fences
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError, NewerFormatError
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
