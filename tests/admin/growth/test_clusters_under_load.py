"""Replicas of a cluster take over while clients write at full speed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from faces import eventually
from growth_helpers import (
    FAST,
    Fleet,
    check_nothing_lost,
    replication,
    writing,
)
from redis.crc import key_slot

import shardkit
from shardkit.admin.growth import fail_over
from shardkit.local import LocalCluster, LocalServer
from shardkit.testing import Register, check_linearizable


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
