"""Shards are moved into a cluster, and out of one, under clients that write all the time."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import redis
from arranged import client_of
from faces import PATIENCE, eventually, faced
from growth_helpers import (
    FAST,
    PATIENT,
    Fleet,
    certified,
    check_nothing_lost,
    filled,
    losing_nothing,
    replication,
    there,
    writing,
)
from moments import before as overtaken, killed_at
from redis.crc import key_slot

import shardkit
import shardkit.admin.growth.awaiting as awaiting
from shardkit.admin.growth import (
    abort_move,
    fail_over,
    moves,
    plan_split,
    repair_changes,
    resume_move,
    reverse_move,
    start_split,
)
from shardkit.errors import GrowthError, InvalidArgumentError
from shardkit.local import LocalCluster, LocalServer
from shardkit.testing import Register, check_linearizable

ENTRY = "config:redis:users"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(replicas_per_master=1, config=FAST) as found:
        yield found


@pytest.fixture
def fleet(cluster: LocalCluster) -> Iterator[Fleet]:
    """Two servers, and an empty cluster that is open."""
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("min-replicas-to-write", 0)
            if client.info("replication")["role"] == "master":
                client.flushall()
    with LocalServer(name="config") as config, LocalServer() as a, LocalServer() as b:
        found = Fleet(config, [a, b])
        yield found
        found.config.close()


@pytest.fixture(params=[True, False], ids=["into", "out of"])
def split(
    request: pytest.FixtureRequest, fleet: Fleet, cluster: LocalCluster
) -> tuple[bool, dict[str, Any]]:
    """Whether shards go into the cluster or come out of it, and how."""
    if request.param:
        fleet.push(0)
        return True, {"to_cluster": cluster.nodes[1].address, "hold": PATIENT}
    in_cluster(fleet, cluster)
    return False, {"shards": 3, "over": [fleet.name(0), fleet.name(1)], "hold": PATIENT}


@pytest.fixture(autouse=True)
def _patient_writers(lower: Any) -> None:
    """Fences stay for longer on a busy machine, and while movers are killed one after another."""
    lower(fence_wait=10.0 * PATIENCE)


def test_shards_go_into_a_cluster_under_load_and_back(fleet: Fleet, cluster: LocalCluster) -> None:
    fleet.push(0)
    before = filled(fleet)
    with losing_nothing(fleet, shards=None):
        move = start_split(fleet.config, "users", to_cluster=cluster.nodes[0].address, hold=PATIENT)
        assert certified(move)["stale"] == []
        assert json.loads(fleet.config.get(ENTRY))["cluster"] is True
        assert there(fleet) == before
        assert certified(reverse_move(fleet.config, "users", hold=PATIENT))
        assert fleet.masters() == [fleet.name(0)] * 2
        assert there(fleet) == before


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_fences_of_guards_stay_behind_when_shards_go_into_a_cluster(
    fleet: Fleet, cluster: LocalCluster, face: str
) -> None:
    fleet.push(0)
    with faced(face, fleet.url) as users:
        hold = users.run(users.kit.lock("stock", component="users").acquire())
        guard = hold.guard("users")
        users.run(guard.claim(*map(str, range(20))))
        options: Any = {"to_cluster": cluster.nodes[0].address, "hold": PATIENT}
        assert users.eventually(
            lambda: start_split(fleet.config, "users", **options).phase == "done"
        )
        assert users.run(guard.execute(("INCR", "5"))) == [1]
    for node in cluster.nodes:
        assert not client_of(node).keys("*:stock:fence")


def stored(fleet: Fleet) -> dict[str, Any]:
    """The component's entry; empty if it has shards."""
    return json.loads(fleet.config.get(ENTRY) or "{}")


def settings(cluster: LocalCluster) -> set[str]:
    """What closes the cluster's nodes, or does not."""
    found = set()
    for node in cluster.nodes:
        found.add(client_of(node).config_get("min-replicas-to-write")["min-replicas-to-write"])
    return found


def entry_of(cluster: LocalCluster) -> dict[str, Any]:
    return {"cluster": True, "host": "127.0.0.1", "port": cluster.nodes[0].port}


def in_cluster(fleet: Fleet, cluster: LocalCluster) -> None:
    fleet.describe({"users": {"entry": entry_of(cluster)}})


def test_keys_of_a_tag_stay_together_and_clients_find_them_out_of_a_cluster(
    fleet: Fleet, cluster: LocalCluster
) -> None:
    in_cluster(fleet, cluster)
    keys = [f"k{n}" for n in range(40)]

    async def main() -> None:
        async with await shardkit.aconnect(fleet.url) as akit:
            with shardkit.connect(fleet.url) as kit:
                router = kit.key_sharded("users")
                visitors = kit.set("v", component="users", total=9)
                router.mset({key: key for key in keys})
                router["{u}:1"].mset({"{u}:1": 1, "{u}:2": 2})
                visitors.sadd("a", "b", "c")
                kept: Any = kit.client("users")
                akept: Any = await akit.key_sharded("users")["k0"]
                assert await akept.get("k0") == b"k0"
                over = [fleet.name(0), fleet.name(1)]
                move = await awaiting.start_split(
                    fleet.config, "users", shards=3, over=over, hold=PATIENT
                )
                assert certified(move)
                for key in keys:
                    assert await akept.append(key, "!") == len(key) + 1
                    assert kept.append(key, "!") == len(key) + 2
                assert router.mget(keys) == [f"{key}!!".encode() for key in keys]
                assert router["{u}:2"].mget("{u}:1", "{u}:2") == [b"1", b"2"]
                assert visitors.scard() == 3

    asyncio.run(main())
    with shardkit.connect(fleet.url) as kit:
        assert len(kit.topology.component("users").shards) == 3
    # Nobody writes there any more: neither a client of another library, nor after a failover.
    assert len(settings(cluster)) == 1
    assert settings(cluster) != {"0"}
    with cluster.client() as client, pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        client.set("k0", "elsewhere")
    closed = settings(cluster)
    for moment in ("copy", "finish the copy"):
        with killed_at(moment):
            reverse_move(fleet.config, "users", hold=PATIENT)
        with killed_at("cluster: decide"):  # its nodes have the former marks again, and are open
            abort_move(fleet.config, "users")
        assert abort_move(fleet.config, "users").phase == "aborted"
        assert settings(cluster) == closed, "nobody writes there by old entries"
    assert certified(reverse_move(fleet.config, "users", hold=PATIENT))
    assert settings(cluster) == {"0"}
    assert stored(fleet)["cluster"] is True
    with shardkit.connect(fleet.url) as kit:
        assert kit.key_sharded("users").mget(keys) == [f"{key}!!".encode() for key in keys]


INTO = {
    "capture": False,
    "copy": False,
    "close": False,
    "decide": False,
    "cluster: admit readers": False,
    "cluster: open": True,
    "attest": True,
}
OUT_OF = {
    "copy": False,
    "cluster: writers left": False,
    "cluster: close": False,
    "cluster: mark": False,
    "cluster: turn away": True,
    "shards: open": True,
    "attest": True,
}


@pytest.mark.long(1)
def test_a_split_with_a_cluster_that_is_killed_at_any_point_is_resumed(
    fleet: Fleet, split: tuple[bool, dict[str, Any]]
) -> None:
    into, new = split
    before, at_first = filled(fleet), stored(fleet)
    begin = partial(start_split, fleet.config, "users", **new)
    with losing_nothing(fleet, shards=None):
        for moment, decided in (INTO if into else OUT_OF).items():
            go_on = partial(resume_move, fleet.config, "users") if moves(fleet.config) else begin
            with killed_at(moment, "let go"):
                go_on(hold=PATIENT / 2)
            assert (stored(fleet).get("cluster") != at_first.get("cluster")) == decided, moment
        assert certified(resume_move(fleet.config, "users", hold=PATIENT))
        assert there(fleet) == before


def test_a_split_with_a_cluster_is_aborted_before_it_is_decided(
    fleet: Fleet, cluster: LocalCluster, split: tuple[bool, dict[str, Any]]
) -> None:
    into, new = split
    before, at_first = filled(fleet), stored(fleet)
    # Or it is closed, and the journal does not say so.
    moment = "decide" if into else "decided"
    with killed_at(moment, "let go"):  # for three seconds, nodes answer nobody
        start_split(fleet.config, "users", **{**new, "hold": 3.0})
    assert (settings(cluster) == {"0"}) == into
    assert abort_move(fleet.config, "users").phase == "aborted"
    assert settings(cluster) == {"0"}
    with cluster.client() as client:
        assert list(client.scan_iter(match="config:*")) == []
    said = "users: into cluster" if into else "users: out of"
    assert said in " ".join(fleet.run("move", "status").output.split())
    assert stored(fleet) == at_first
    assert there(fleet) == before
    with shardkit.connect(fleet.url) as kit:
        assert kit.key_sharded("users")["new"].set("new", 1)


def test_shards_are_kept_up_to_date_until_a_split_into_a_cluster_is_reversed(
    fleet: Fleet, cluster: LocalCluster
) -> None:
    fleet.push(0)
    before = filled(fleet)
    new: Any = {"to_cluster": cluster.nodes[0].address, "keep": True, "hold": PATIENT}
    with ThreadPoolExecutor() as threads:
        with losing_nothing(fleet, shards=None):
            split = threads.submit(start_split, fleet.config, "users", **new)
            assert eventually(lambda: stored(fleet) and moves(fleet.config)[0].phase == "kept")
            time.sleep(0.3)  # some writes are copied back
            said: list[str] = []
            back = reverse_move(fleet.config, "users", hold=PATIENT, progress=said.append)
            assert certified(back)
            assert not any("copied" in each for each in said)
        assert split.result().id == back.id
    assert fleet.masters() == [fleet.name(0)] * 2
    assert there(fleet) == before


def test_a_cluster_that_is_left_is_not_kept_up_to_date(fleet: Fleet, cluster: LocalCluster) -> None:
    in_cluster(fleet, cluster)
    with pytest.raises(GrowthError, match="users: a cluster that is left refuses writes, so it"):
        start_split(fleet.config, "users", shards=2, over=[fleet.name(1)], keep=True)
    assert moves(fleet.config) == []


def test_a_cluster_is_entered_and_left_offline(
    fleet: Fleet, split: tuple[bool, dict[str, Any]]
) -> None:
    before = filled(fleet)
    assert certified(start_split(fleet.config, "users", offline=True, **split[1]))
    assert there(fleet) == before


def test_slots_that_move_during_a_copy_stop_it(fleet: Fleet, cluster: LocalCluster) -> None:
    in_cluster(fleet, cluster)
    before = filled(fleet)
    a, b = cluster.nodes[:2]

    def move_a_slot(nodes: tuple[Any, ...], slot: int) -> None:
        for node in nodes:
            with node.client() as client, nodes[-1].client() as to:
                name = to.execute_command("CLUSTER", "MYID")
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)

    with a.client() as client:
        slot = next(
            n for n in range(5000) if not client.execute_command("CLUSTER", "COUNTKEYSINSLOT", n)
        )
    with (
        overtaken("cluster: decide", lambda: move_a_slot((a, b), slot)),
        pytest.raises(GrowthError, match=r"slots of the cluster of .* have moved"),
    ):
        # A node that is closed for longer than a client waits would not say that a slot moved.
        start_split(fleet.config, "users", over=[fleet.name(0)], hold=1.0)
    assert settings(cluster) == {"0"}
    assert there(fleet) == before
    assert certified(resume_move(fleet.config, "users", hold=PATIENT))
    assert there(fleet) == before
    for node in (b, a):
        client_of(node).config_set("min-replicas-to-write", 0)
    move_a_slot((b, a), slot)


def test_a_dry_run_names_what_keeps_shards_from_a_cluster(
    fleet: Fleet, cluster: LocalCluster
) -> None:
    fleet.push(0)
    filled(fleet)
    node = cluster.nodes[0]
    shown = fleet.run("split", "users", "--to-cluster", node.address, "--dry-run")
    said = " ".join(shown.output.split())
    assert f"push one entry with cluster: true and epoch + 1, for {node.address}" in said
    assert "need keys with a common {tag} in a cluster" in said
    for other in cluster.nodes[:3]:
        assert f"{other.address}: " in said
    with cluster.client() as client:
        client.set("somebody's", 1)
        [problem] = plan_split(fleet.config, "users", to_cluster=node.address).problems
        assert "has keys in database 0, such as somebody's: delete them" in problem
        client.flushall()
    with pytest.raises(GrowthError, match=r"is not a node of a cluster: .*; specify HOST:PORT of"):
        plan_split(fleet.config, "users", to_cluster=fleet.name(1))
    with pytest.raises(InvalidArgumentError, match="a cluster has no shards of shardkit's"):
        plan_split(fleet.config, "users", to_cluster=node.address, shards=3)
    fleet.describe({"others": {"entry": entry_of(cluster)}})
    [problem] = plan_split(fleet.config, "users", to_cluster=node.address).problems
    assert problem == f"others is in the cluster of {node.address}, too: use another one"
    with pytest.raises(InvalidArgumentError, match="others is in a cluster, whose nodes have one"):
        plan_split(fleet.config, "others", shards=3)
    plan = plan_split(fleet.config, "others", shards=3, over=[fleet.name(1)])
    assert plan.problems == ()
    assert any("CONFIG SET min-replicas-to-write" in step for step in plan.steps)
    [problem] = plan_split(fleet.config, "users", shards=3, over=[node.address]).problems
    assert f"{node.address} is a node of a cluster: specify --to-cluster" in problem


@pytest.mark.long(2)
@pytest.mark.parametrize("moment", ["push", "admit writers", "take over", ""])
def test_a_split_with_a_cluster_goes_on_after_the_config_server_was_lost(
    fleet: Fleet, cluster: LocalCluster, split: tuple[bool, dict[str, Any]], moment: str
) -> None:
    into, options = split
    before = filled(fleet)
    with killed_at(moment) if moment else nullcontext():
        start_split(fleet.config, "users", **options)
    fleet.config.flushall()
    shards = [fleet.at(0, db=db) for db in (1, 2)]
    former = {"shards": shards} if into else {"entry": entry_of(cluster)}
    fleet.describe({"users": former}, force=["users"], above=100)
    planned = repair_changes(fleet.config, dry_run=True)
    assert {each.action for each in planned} == {"resume" if moment else "follow"}
    assert repair_changes(fleet.config) == planned
    assert [each.phase for each in moves(fleet.config)] == ["done"]
    assert bool(stored(fleet)) is into
    assert there(fleet) == before


@contextmanager
def on_a_cluster() -> Iterator[tuple[Fleet, LocalCluster]]:
    """Give a component ``users`` on a cluster of three masters with a replica each."""
    with (
        LocalServer(name="config") as config,
        LocalCluster(replicas_per_master=1, config=FAST) as cluster,
    ):
        fleet = Fleet(config, list(cluster.nodes))
        entry = {"cluster": True, "host": "127.0.0.1", "port": cluster.nodes[0].port}
        fleet.describe({"users": {"entry": entry}})
        try:
            yield fleet, cluster
        finally:
            fleet.config.close()


def of_second_master() -> list[str]:
    """Return the counters of `Writers` whose slots the second master has at first."""
    counters = [f"{kind}{n}" for kind in "abd" for n in range(7)]
    owned = range(16384 // 3, 2 * 16384 // 3)
    return [key for key in counters if key_slot(key.encode()) in owned]


@pytest.mark.timeout(180)
def test_planned_failovers_of_a_cluster_lose_no_write() -> None:
    with on_a_cluster() as (fleet, cluster):
        with writing(fleet, shards=None) as writers:
            for master, replica in zip(cluster.nodes[:3], cluster.nodes[3:], strict=True):
                done = fail_over(fleet.config, master.address)
                assert (done.planned, str(done.target)) == (True, replica.address)
        # Each client may have a call under way whose connection the former master closes.
        assert len(writers.errors) <= 9, writers.errors
        cluster.await_ready(time.monotonic() + 60)  # on a busy machine nodes take others for down
        check_nothing_lost(fleet, writers)
        check_linearizable(writers.history, Register())


@pytest.mark.timeout(180)
def test_a_crash_of_a_master_in_a_cluster_loses_no_durable_write() -> None:
    with on_a_cluster() as (fleet, cluster):
        dead, replica = cluster.nodes[1], cluster.nodes[4]
        with writing(fleet, replicas=1, shards=None) as writers:
            dead.kill()
            assert eventually(lambda: replication(replica)["role"] == "master", 60), (
                "no replica took over"
            )
            dead.restart()
            assert eventually(lambda: bool(replication(replica)["connected_slaves"]), 60), (
                "the former master does not replicate"
            )
            wrote = {key: writers.acknowledged[key] for key in of_second_master()}
            assert eventually(
                lambda: all(writers.acknowledged[key] > wrote[key] + 3 for key in wrote), 60
            ), "clients do not go on"
        check_nothing_lost(fleet, writers)


@pytest.mark.timeout(180)
def test_a_crash_of_a_master_in_a_cluster_loses_only_what_its_replica_lacked() -> None:
    keys = of_second_master()
    assert len(keys) > 3
    with on_a_cluster() as (fleet, cluster):
        dead, replica = cluster.nodes[1], cluster.nodes[4]
        with dead.client() as master, replica.client() as copy:
            copy.execute_command("READONLY")
            with writing(fleet, shards=None) as writers:
                assert eventually(lambda: set(keys) <= set(writers.acknowledged), 60), (
                    "clients do not write"
                )
                # The replica cannot log in again, so it lacks what is written from now on.
                copy.config_set("masteruser", "nobody")
                copy.config_set("masterauth", "-")
                master.execute_command("CLIENT", "KILL", "TYPE", "replica")
                wrote = dict(writers.acknowledged)
                assert eventually(
                    lambda: all(writers.acknowledged[key] > wrote[key] + 3 for key in keys), 60
                ), "clients do not go on"
                dead.kill()
                time.sleep(0.5)  # replies that came before that are counted
                acknowledged, uncertain = Counter(writers.acknowledged), Counter(writers.uncertain)
                copied = {key: int(copy.get(key) or 0) for key in keys}
                assert replication(replica)["role"] == "slave", "it took over before it was asked"
                assert eventually(lambda: replication(replica)["role"] == "master", 60), (
                    "no replica took over"
                )
                assert eventually(
                    lambda: all(writers.acknowledged[key] > acknowledged[key] + 3 for key in keys),
                    60,
                ), "clients do not go on"
        assert sum(acknowledged[key] - copied[key] for key in keys) > 0, "nothing was lost"
        with shardkit.connect(fleet.url) as kit:
            router = kit.key_sharded("users")
            for key, count in writers.acknowledged.items():
                if key == "ids":
                    continue  # its parts are on all masters
                found = int(router[key].get(key) or 0)
                unsure = writers.uncertain[key]
                if key in copied:  # it goes on from what the replica had
                    count += copied[key] - acknowledged[key]
                    unsure -= uncertain[key]
                assert count <= found <= count + unsure, (key, count, found, unsure)
