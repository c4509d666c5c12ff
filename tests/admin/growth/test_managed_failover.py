"""Failovers where Sentinels or a cluster see to it, of which any process may be killed.

``make kills`` has more of each killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import yaml
from arranged import client_of
from click.testing import CliRunner
from faces import eventually, seed
from growth_helpers import (
    FAST,
    REDIS,
    Fleet,
    check_nothing_lost,
    counting,
    describe,
    follow,
    no_redis,
    replication,
    writing,
)
from redis.client import Pipeline

import shardkit
from shardkit import Entry
from shardkit.admin.growth import Takeover, fail_over, failover, servers
from shardkit.admin.growth.relocation import ServerAddress
from shardkit.admin.growth.servers import ServerRole
from shardkit.cli.app import app
from shardkit.dashboard import FleetWatch
from shardkit.errors import (
    ConfigServerError,
    GrowthError,
    InvalidArgumentError,
    ShardErrors,
    ShardUnavailable,
)
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.testing import Register, check_linearizable


def watched_as(config: redis.Redis, watched: LocalSentinel, service: str = "main") -> None:
    """Describe a component by the Sentinels of a service."""
    sentinels = [["127.0.0.1", each.port] for each in watched.sentinels]
    entry = {"sentinel": {"service": service, "sentinels": sentinels}}
    describe(config, {"data": {"entry": entry}}, force=True)


def test_sentinels_replace_the_master_and_no_write_is_lost() -> None:
    with LocalServer() as server, LocalSentinel("main", sentinels=2) as watched:
        follow(watched.replicas[0], watched.master)
        url = f"redis://{server.address}"
        with server.client() as config:
            watched_as(config, watched)
            with counting(url, "data", cut_off=1):  # the call under way, when Sentinels cut all off
                done = fail_over(config, "data")
            assert done.planned
            assert done.shards == ("data",)
            assert str(done.source) == watched.master.address
            assert str(done.target) == watched.replicas[0].address
            with pytest.raises(GrowthError, match="is no replica of it, as the Sentinels of"):
                fail_over(config, "data", "127.0.0.1:1")
            with pytest.raises(GrowthError, match="is the master already"):
                fail_over(config, "data", watched.replicas[0].address)
            watched_as(config, watched, "other")
            with pytest.raises(ConfigServerError, match="no Sentinel knows the servers of 'other'"):
                fail_over(config, "data")


@no_redis
def test_sentinels_of_redis_promote_a_replica_without_handing_over() -> None:
    with LocalServer() as server, LocalSentinel("main", sentinels=2, binary=REDIS) as watched:
        with watched.master.client() as client:
            client.set("k", 1)
            assert client.wait(1, 5000) == 1
        with server.client() as config:
            watched_as(config, watched)
            done = fail_over(config, "data")
        assert not done.planned, "these Sentinels know no COORDINATED"
        assert str(done.target) == watched.replicas[0].address
        assert client_of(watched.replicas[0]).get("k") == b"1"


def test_sentinels_promote_the_replica_that_was_asked_for_and_priorities_are_as_before() -> None:
    with LocalServer() as server, LocalSentinel("main", sentinels=2, replicas=3) as watched:
        for replica in watched.replicas:
            follow(replica, watched.master)
        priorities = [100, 1, 50]  # they would choose the second
        for replica, priority in zip(watched.replicas, priorities, strict=True):
            client_of(replica).config_set("replica-priority", priority)
        with server.client() as config:
            watched_as(config, watched)
            with watched.replicas[0].client() as client:  # somebody was killed who had it so
                client.config_set("replica-priority", 2)
                config.hset("config:growth:priorities", watched.replicas[0].address, 100)
            # While they are stopped for the decision, Sentinels may take the master for down, and
            # tell of none; then nothing is sent.
            with counting(
                f"redis://{server.address}", "data", cut_off=1, unsent="MasterNotFoundError"
            ):
                done = fail_over(config, "data", watched.replicas[2].address)
            assert str(done.target) == watched.replicas[2].address
            for replica, priority in zip(watched.replicas, priorities, strict=True):
                with replica.client() as client:
                    found = client.config_get("replica-priority")
                    assert found == {"replica-priority": str(priority)}
            assert not config.exists("config:growth:priorities")


def test_each_sentinel_has_to_see_the_best_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ServerAddress("10.0.0.1", 6379)
    # The replica that is wanted, another one, and one that is never chosen, of priority 0.
    seen = [(None, 2), (0, 2), (100, 1), (1, 1), (1, 2)]

    class Sentinel:
        def __init__(self) -> None:
            self.left = list(seen)

        def sentinel_slaves(self, service: str) -> list[dict[str, Any]]:
            priorities = (*self.left.pop(0), 0)
            return [
                {"ip": f"10.0.0.{n}", "port": "6379", "slave-priority": str(priority)}
                for n, priority in enumerate(priorities, 1)
                if priority is not None
            ]

    class Dead:
        def sentinel_slaves(self, service: str) -> None:
            raise redis.ConnectionError("away")

    sentinels = [Sentinel(), Dead(), Sentinel()]
    monkeypatch.setattr(failover, "sentinels_of", lambda *_: contextlib.nullcontext(sentinels))
    entry = Entry({"sentinel": {"service": "main", "sentinels": [["10.0.0.9", 1]]}})
    failover._wait_for_priority(entry, "data", wanted)
    assert [each.left for each in sentinels if isinstance(each, Sentinel)] == [[], []]
    monkeypatch.setattr(failover, "_SECONDS", 0.1)
    sentinels[0].left = [(100, 1)] * 100  # type: ignore[union-attr]
    with pytest.raises(GrowthError, match="did not learn within"):
        failover._wait_for_priority(entry, "data", wanted)


LEASED: Any = SimpleNamespace(
    config=None,
    check=lambda: None,
    marking=lambda *clients: contextlib.nullcontext(),
    order=lambda client, *words: client.execute_command(*words),
)
SERVICE = Entry({"sentinel": {"service": "main", "sentinels": [["10.0.0.9", 1]]}})
A, B, C = (ServerAddress(f"10.0.0.{n}", 1) for n in (1, 2, 3))


def test_the_last_refusal_of_the_sentinels_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    class Sentinel:
        def __init__(self, *answers: Exception | None) -> None:
            self.answers = list(answers)

        def execute_command(self, *words: str) -> None:
            asked.append(words[2:])
            if (answer := self.answers.pop(0)) is not None:
                raise answer

    def ask(*sentinels: Sentinel) -> bool:
        given = contextlib.nullcontext(sentinels)
        monkeypatch.setattr(failover, "sentinels_of", lambda *_: given)
        asked.clear()
        return failover._ask_sentinels(LEASED, SERVICE, "data", "main")

    away, refused = redis.ConnectionError("away"), redis.ResponseError("NOGOODSLAVE none")
    old = redis.ResponseError("wrong number of arguments")
    assert ask(Sentinel(away), Sentinel(None)) is True
    assert asked == [("main", "COORDINATED")] * 2
    assert ask(Sentinel(old, None)) is False
    assert asked == [("main", "COORDINATED"), ("main",)]
    with pytest.raises(
        GrowthError, match=r"replaced by no Sentinel: wrong number of arguments; co"
    ):
        ask(Sentinel(old, old))
    with pytest.raises(
        GrowthError, match=r"master of 'main' is replaced by no Sentinel: NOGOODSLAVE none; cor"
    ):
        ask(Sentinel(away), Sentinel(refused))


def test_late_or_disobeying_sentinels_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(lease: Any, entry: Entry, where: str, service: str) -> bool:
        asked.append(service)
        return True

    there = [("data", Entry({"host": A.host, "port": A.port}))]
    monkeypatch.setattr(failover, "servers_of_service", lambda *_: there)
    monkeypatch.setattr(failover, "_ask_sentinels", ask)
    monkeypatch.setattr(failover, "_SECONDS", 0.2)
    monkeypatch.setattr(failover, "_AGAIN", 0.0)
    # What others have left is no business of this service, or cannot be read.
    left = {str(B).encode(): b"100", str(A).encode(): b"unreadable"}
    config = SimpleNamespace(hgetall=lambda key: left)
    lease: Any = SimpleNamespace(**{**vars(LEASED), "config": config})
    said = f"the Sentinels of 'main' did not replace {A} within 0.2 s; check their logs"
    with pytest.raises(GrowthError, match=said):
        failover.fail_over_sentinels(lease, {}, SERVICE, "data", None)
    assert len(asked) > 1, "they may have found no majority"
    assert set(asked) == {"main"}
    monkeypatch.setattr(failover, "_preferring", lambda *_: contextlib.nullcontext())
    done = Takeover(("data",), A, C, True)
    monkeypatch.setattr(failover, "_replace_by_sentinels", lambda *_: done)
    with pytest.raises(
        GrowthError, match=f"the Sentinels chose {C}, not {B}, though .*: they did not"
    ):
        failover.fail_over_sentinels(lease, {}, SERVICE, "data", str(B))


def test_a_replica_whose_priority_may_not_be_changed_is_named() -> None:
    with LocalServer() as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-config")
        address = ServerAddress("127.0.0.1", server.port)
        said = f"{address} does not let its replica-priority be changed .*; give the user CONFIG"
        with pytest.raises(GrowthError, match=said):
            failover._set_priority(LEASED, server.entry, "data", address, 1)


def test_a_replica_that_has_lost_its_old_data_does_not_take_over() -> None:
    said = {"master_sync_in_progress": 1}
    half_filled = ServerRole(False, B, False, 5, "f00d", 9, (), said)
    with pytest.raises(GrowthError, match=f"{A} is half filled: it has lost its old data; use a b"):
        failover._best(B, {A: half_filled}, 60)
    assert failover._best(B, {A: half_filled}, None) == A, "that was forced"


def test_nodes_without_a_working_replica_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry({"cluster": True, "host": A.host, "port": A.port})
    nodes = [failover._Node(A, "a", "", True), failover._Node(B, "b", "a", False)]
    monkeypatch.setattr(failover, "_nodes", lambda *_: nodes)
    with pytest.raises(GrowthError, match=f"{A} is no master with a replica of the cluster; see:"):
        failover.fail_over_cluster(LEASED, entry, "data", str(A), None, force=False)
    asked: list[tuple[str, ...]] = []
    idle = SimpleNamespace(
        execute_command=lambda *words: asked.append(words), info=lambda section: {"role": "slave"}
    )
    monkeypatch.setattr(servers, "connected_to", lambda *_: contextlib.nullcontext(idle))
    monkeypatch.setattr(failover, "_SECONDS", 0.01)
    with pytest.raises(GrowthError, match=rf"{B} did not take over within 0\.01 s: nothing ch"):
        failover.fail_over_cluster(LEASED, entry, "data", str(A), str(B), force=False)
    assert asked == [("CLUSTER", "FAILOVER")]
    nodes[0] = failover._Node(A, "a", "", False, suspected=True)
    said = (
        rf"{A} may be alive: only one node suspects it \(fail\?\)\. A failover loses what {B} has"
    )
    with pytest.raises(GrowthError, match=said):
        failover.fail_over_cluster(LEASED, entry, "data", str(A), str(B), force=False)
    assert asked == [("CLUSTER", "FAILOVER")]


def test_a_replica_of_a_cluster_takes_its_masters_place_and_no_write_is_lost() -> None:
    with LocalServer() as server, LocalCluster(replicas_per_master=1) as cluster:
        master, replica = cluster.nodes[1].address, cluster.nodes[4].address
        url = f"redis://{server.address}"
        with server.client() as config:
            entry = {"cluster": True, "host": "127.0.0.1", "port": int(cluster.nodes[0].port)}
            describe(config, {"data": {"entry": entry}})
            with counting(url, "data", cut_off=2):  # one for each failover, seldom
                done = fail_over(config, master)
                assert (done.planned, str(done.target)) == (True, replica)
                words = ["failover", "data", "--to", master, "--config", url, "--json"]
                back = json.loads(CliRunner().invoke(app, words).stdout)["takeover"]
                assert (back["source"], back["target"]) == (replica, master)
            with pytest.raises(InvalidArgumentError, match="is a cluster of several masters"):
                fail_over(config, "data")
            with pytest.raises(GrowthError, match=f"replicates {master}, not"):
                fail_over(config, cluster.nodes[0].address, replica)
            with pytest.raises(GrowthError, match="is no replica of the cluster"):
                fail_over(config, "data", master)
            with pytest.raises(InvalidArgumentError, match="neither a shard"):
                fail_over(config, "127.0.0.1:1")


def test_of_a_dead_master_of_a_cluster_a_replica_takes_the_place_only_if_that_is_forced() -> None:
    # Left to themselves, the replicas do nothing: who takes over is the test's decision alone.
    config = {"cluster-replica-no-failover": True}
    with (
        LocalServer() as server,
        LocalCluster(replicas_per_master=1, config=config) as cluster,
        server.client() as stored,
        cluster.nodes[0].client() as seen,
    ):
        master, replica = cluster.nodes[1], cluster.nodes[4]
        entry = {"cluster": True, "host": "127.0.0.1", "port": int(cluster.nodes[0].port)}
        describe(stored, {"data": {"entry": entry}})
        master.kill()
        assert eventually(
            lambda: "fail" in seen.cluster("nodes")[master.address]["flags"].split(","), 60
        ), "nobody notices that the master is dead"
        with pytest.raises(GrowthError, match=f"{master.address} is dead. A failover loses what"):
            fail_over(stored, "data", replica.address)
        assert replication(replica)["role"] == "slave", "nothing was changed"
        done = fail_over(stored, "data", replica.address, force=True)
        assert (done.planned, str(done.target)) == (False, replica.address)
        assert replication(replica)["role"] == "master"


LEASE = "config:growth:lease"
ENDED = "Another process may have taken over"


def test_a_node_refuses_what_a_process_orders_that_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It wakes after it has looked at its lease, when others have failed over and back."""
    with (
        LocalServer() as server,
        server.client() as config,
        LocalCluster(replicas_per_master=1) as cluster,
    ):
        entry = {"cluster": True, "host": "127.0.0.1", "port": cluster.nodes[0].port}
        describe(config, {"data": {"entry": entry}})
        first = cluster.nodes[0].address
        [replica] = [
            node.address
            for node in cluster.nodes
            if replication(node).get("master_port") == cluster.nodes[0].port
        ]

        def asleep(pipe: Any, *, real: Any = Pipeline.execute) -> Any:
            if pipe.command_stack[-1][0][:2] == ("CLUSTER", "FAILOVER"):
                monkeypatch.setattr(Pipeline, "execute", real)
                config.delete(LEASE)
                fail_over(config, first, replica)
                fail_over(config, replica, first)
            return real(pipe)

        monkeypatch.setattr(Pipeline, "execute", asleep)
        with pytest.raises(GrowthError, match=ENDED):
            fail_over(config, first, replica)
        assert replication(cluster.nodes[0])["role"] == "master"
        for node in cluster.nodes:
            assert client_of(node).keys("config:fence*") == []


@pytest.mark.parametrize("moment", ["_ask_sentinels", "_set_priority", "_is_master"])
def test_a_stopped_process_does_not_ask_sentinels(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with (
        LocalServer() as server,
        server.client() as config,
        LocalSentinel("main", sentinels=2, replicas=2) as watched,
    ):
        watched_as(config, watched)

        real = getattr(failover, moment)

        def asleep(*args: Any, **options: Any) -> Any:
            config.delete(LEASE)
            return real(*args, **options)

        monkeypatch.setattr(failover, moment, asleep)
        with pytest.raises(GrowthError, match=ENDED):
            fail_over(config, "data", watched.replicas[1].address)
        # Only the last step is one that Sentinels have already taken.
        role = replication(watched.master)["role"]
        assert moment == "_is_master" or role == "master"


@pytest.fixture
def map_file(fleet: Fleet, tmp_path: Path) -> Path:
    """The map of a fleet with a replica, which names its config server."""
    fleet.replicated(1)
    path = tmp_path / "map.yaml"
    fleet.run("config", "pull", "-o", str(path))
    return path


def run(*words: str, at: Path) -> str:
    return CliRunner().invoke(app, [*words, "-c", str(at)]).output


def test_everything_names_the_command_that_replaces_a_dead_master_and_what_it_loses(
    fleet: Fleet, map_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = f"shardkit failover {fleet.name(0)}"
    with shardkit.connect(fleet.url) as kit:
        members, router = kit.hash("h", component="users"), kit.key_sharded("users")
        members.hset("a", 1)
        fleet.servers[0].kill()
        with caplog.at_level(logging.WARNING, "shardkit"):
            with pytest.raises(ShardErrors) as failed:
                members.hset("a", 2)
            with pytest.raises(ShardUnavailable) as raised:
                router["k"].set("k", 1)
        assert f"{command}, which loses" in raised.value.remedy
        assert f"{command}, which loses" in str(failed.value)
        assert f"{command}, which loses" in caplog.text
    for words in (["status"], ["status", "--check"], ["check"]):
        shown = run(*words, at=map_file)
        assert f"{command}: {fleet.name(1)} takes over, and what it had not received" in shown
    config = Entry({"host": "127.0.0.1", "port": fleet.config_server.port})
    with (
        shardkit.connect(fleet.url) as kit,
        closing(FleetWatch(kit, config, interval=0.2)) as watch,
    ):
        assert eventually(lambda: any(command in each["remedy"] for each in watch.problems), 20)


def test_a_client_and_the_dashboard_of_an_older_map_say_so_until_it_is_pulled(
    fleet: Fleet, map_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pull_it = f"{map_file} is older than the entries: users changed at epoch"
    config = Entry({"host": "127.0.0.1", "port": fleet.config_server.port})
    with (
        shardkit.connect(map_file) as kit,
        caplog.at_level(logging.WARNING, "shardkit"),
        closing(FleetWatch(kit, config, interval=0.2)) as watch,
    ):
        router = kit.key_sharded("users")
        router["k"].set("k", 1)
        fleet.servers[0].kill()
        with pytest.raises(ShardUnavailable, match="cannot be reached") as raised:
            router["k"].set("k", 1)
        assert "older" not in raised.value.remedy
        run("failover", fleet.name(0), at=map_file)
        assert eventually(lambda: pull_it in caplog.text, 20)
        with pytest.raises(ShardUnavailable, match="config pull") as raised:
            router["k"].set("k", 1)
        assert pull_it in raised.value.remedy
        watch.check()
        assert any("is older than the entries" in each["text"] for each in watch.problems)
        run("config", "pull", "-o", str(map_file), at=map_file)
        assert eventually(lambda: not failure(lambda: router["k"].set("k", 2)), 20)
        watch.check()
        assert not any("older" in each["text"] for each in watch.problems)


def failure(call: Callable[[], object]) -> Exception | None:
    """Return why a call failed."""
    try:
        call()
    except ShardUnavailable as error:
        return error
    return None


def test_a_replica_that_lost_its_link_long_ago_takes_over_by_the_command_that_is_shown(
    fleet: Fleet, map_file: Path, lower: Callable[..., None]
) -> None:
    lower(down_link=0)
    fleet.servers[0].kill()
    command = f"failover {fleet.name(0)}"
    forced = f"shardkit {command} --force: {fleet.name(1)} takes over, and what it had not"
    assert eventually(lambda: forced in run("status", at=map_file), 20)
    refused = run(*command.split(), at=map_file)
    assert f"{fleet.name(0)}: {fleet.name(1)} has had no link to it for" in refused
    assert f"{fleet.name(1)} is the master" in run(*command.split(), "--force", at=map_file)


def test_a_dead_replica_is_a_warning_and_is_called_a_replica(fleet: Fleet, map_file: Path) -> None:
    fleet.servers[1].kill()
    done = CliRunner().invoke(app, ["check", "-c", str(map_file)])
    assert done.exit_code == 0, done.output
    assert "warning: is a replica that cannot be reached: connection refused" in done.output
    assert f"shardkit replicas detach {fleet.name(1)}" in done.output
    assert run("status", "--check", at=map_file).startswith("OK")


def test_after_a_failover_all_say_that_the_map_file_is_older_until_it_is_pulled(
    fleet: Fleet, map_file: Path
) -> None:
    fleet.servers[0].kill()
    pull_it = f"shardkit config pull -o {map_file}"
    assert pull_it in run("failover", fleet.name(0), at=map_file)
    for word in ("status", "check"):
        shown = run(word, at=map_file)
        assert "is older than the entries: users changed at epoch" in shown
        assert pull_it in shown
        assert "is the master instead" in shown
    fleet.servers[0].restart()
    run("failover", "--guard", "20", at=map_file)
    assert f"name its master, {fleet.name(1)} (after a failover" in run("status", at=map_file)
    assert "wrote" in run("config", "pull", "-o", str(map_file), at=map_file)
    assert "older" not in run("check", at=map_file) + run("status", at=map_file)


def test_the_replica_of_a_dead_master_is_a_warning_that_leads_to_the_master(
    fleet: Fleet, map_file: Path
) -> None:
    fleet.servers[0].kill()
    assert eventually(lambda: "has lost its master" in run("check", at=map_file), 20)
    shown = " ".join(run("check", at=map_file).split())
    assert f"warning: has lost its master see its master, {fleet.name(0)}" in shown
    assert "1 problem, 1 warning" in shown


def test_a_push_says_nothing_of_replicas_that_it_does_not_ask(fleet: Fleet, map_file: Path) -> None:
    fleet.servers[0].kill()
    described = yaml.safe_load(map_file.read_text())
    described["components"]["users"]["shards"][0]["socket_timeout"] = 4
    map_file.write_text(yaml.safe_dump(described))
    done = CliRunner().invoke(app, ["config", "push", str(map_file)])
    assert "start it, or correct the entry, or push with --force users" in done.output


def test_a_refused_failover_is_recorded_as_failed(fleet: Fleet, map_file: Path) -> None:
    assert "error" in run("failover", fleet.name(1), at=map_file)
    [line] = [line for line in run("changes", at=map_file).splitlines() if "failover" in line]
    assert "failed" in line


KILLS = int(os.environ.get("KILLS", "1"))
LASTING = {**FAST, "appendonly": True, "appendfsync": "always"}


@contextmanager
def under_sentinels(
    binary: Path | str | None = None, **options: Any
) -> Iterator[tuple[Fleet, LocalSentinel]]:
    """Give a component ``users`` of two shards, on a master with a replica, under Sentinels."""
    with (
        LocalServer(name="config") as config,
        LocalSentinel("main", config=LASTING, binary=binary, **options) as watched,
    ):
        fleet = Fleet(config, [watched.master, *watched.replicas])
        follow(watched.replicas[0], watched.master)
        entry: dict[str, Any] = dict(watched.entry.fields)
        shards = [{**entry, "db": 1}, {**entry, "db": 2}]
        fleet.describe({"users": {"shards": shards}})
        try:
            yield fleet, watched
        finally:
            fleet.config.close()


def replicated(watched: LocalSentinel) -> bool:
    """Whether one of the two servers replicates the other one, as the Sentinels know."""
    try:
        roles = [replication(server) for server in (watched.master, *watched.replicas)]
    except redis.RedisError:
        return False
    masters = [role for role in roles if role["role"] == "master"]
    linked = [role for role in roles if role.get("master_link_status") == "up"]
    return len(masters) == len(linked) == 1


def wait_until_replicated(watched: LocalSentinel) -> None:
    # Sentinels on a busy machine stop for 30 s at a time (TILT).
    assert eventually(lambda: replicated(watched), 180), "there is no master with its replica"


@pytest.mark.timeout(120 + 20 * KILLS)
def test_failovers_by_sentinels_that_are_killed_at_random_moments_lose_nothing() -> None:
    chance = random.Random(seed("KILLS"))
    # A busy master that Sentinels take for dead would lose what its replica had not got yet.
    with under_sentinels(down_after=60) as (fleet, watched):
        with writing(fleet) as writers:
            for turn in range(KILLS):
                replicas = [
                    server.address
                    for server in (watched.master, *watched.replicas)
                    if replication(server)["role"] == "slave"
                ]
                preferred = ["--to", *replicas[:1]] if replicas and turn % 2 else []
                fleet.kill_command(chance, "failover", "users:0", *preferred)
            wait_until_replicated(watched)
            assert fail_over(fleet.config, "users:0").planned
        check_nothing_lost(fleet, writers)
        check_linearizable(writers.history, Register())
        assert not fleet.config.exists("config:growth:priorities")


@pytest.mark.timeout(180 + 40 * KILLS)
@pytest.mark.parametrize("binary", [None, pytest.param(REDIS, marks=no_redis)])
def test_servers_that_die_under_sentinels_lose_nothing_that_was_durable(
    binary: Path | str | None,
) -> None:
    chance = random.Random(seed("KILLS"))
    with under_sentinels(binary) as (fleet, watched):
        with writing(fleet, replicas=1) as writers:
            for turn in range(KILLS):
                servers = [watched.master, *watched.replicas]
                master = next(each for each in servers if replication(each)["role"] == "master")
                others = [each for each in servers if each is not master]
                dies = [master, *others, chance.choice(watched.sentinels)][turn % 3]
                dies.kill()
                # Before they notice, or long after; both while clients write.
                time.sleep(chance.choice([0.0, 1.0, 2.5]))
                dies.restart()
                wait_until_replicated(watched)
            enough = max(writers.acknowledged.total() + 20, 150)
            goes_on = eventually(lambda: writers.acknowledged.total() >= enough, 30)
            assert goes_on, writers.errors[-3:]
        check_nothing_lost(fleet, writers)
        with shardkit.connect(fleet.url) as kit:
            assert kit.key_sharded("users")["last"].set("last", 1)
