"""`shardkit failover` where Sentinels or a cluster see to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from growth_helpers import follow

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.cli.app import app
from shardkit.errors import ConfigServerError, InvalidArgumentError
from shardkit.growth import fail_over
from shardkit.growth.servers import GrowthError
from shardkit.local import LocalCluster, LocalSentinel, LocalServer


@contextmanager
def counting(url: str, cut_off: int) -> Iterator[None]:
    """Have a thread count in many keys; in the end the counters must say what was acknowledged.

    At most so many calls may be cut off.
    """
    ended = threading.Event()
    counted: dict[str, int] = {}
    uncertain: dict[str, int] = {}
    errors: list[str] = []

    def write(router: Any) -> None:
        n = 0
        while not ended.wait(0.002):
            n += 1
            key = f"k{n % 50}"
            try:
                router[key].incr(key)
                counted[key] = counted.get(key, 0) + 1
            except (redis.RedisError, shardkit.ShardKitError) as error:
                errors.append(repr(error))
                uncertain[key] = uncertain.get(key, 0) + 1

    with shardkit.connect(url) as kit:
        router = kit.key_sharded("data")
        thread = threading.Thread(target=write, args=(router,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        for key, count in counted.items():
            found = int(router[key].get(key) or 0)
            assert count <= found <= count + uncertain.get(key, 0)
        assert len(errors) <= cut_off, errors


def described(entry: dict[str, Any]) -> ShardMap:
    return ShardMap.parse(json.dumps({"components": {"data": {"entry": entry}}}))


def test_sentinels_replace_the_master_and_no_write_is_lost() -> None:
    with LocalServer() as server, LocalSentinel("main", sentinels=2) as watched:
        follow(watched.replicas[0], watched.master)
        sentinels = [["127.0.0.1", each.port] for each in watched.sentinels]
        url = f"redis://{server.address}"
        with server.client() as config:
            push(config, described({"sentinel": {"service": "main", "sentinels": sentinels}}))
            with counting(url, cut_off=1):  # the call under way, when Sentinels cut all off
                done = fail_over(config, "data")
            assert done.planned
            assert done.shards == ("data",)
            assert str(done.source) == watched.master.address
            assert str(done.target) == watched.replicas[0].address
            with pytest.raises(InvalidArgumentError, match="Sentinels choose the replica"):
                fail_over(config, "data", "127.0.0.1:1")
            unknown = {"service": "other", "sentinels": sentinels}
            push(config, described({"sentinel": unknown}), force=True)
            with pytest.raises(ConfigServerError, match="no Sentinel knows the servers of 'other'"):
                fail_over(config, "data")


def test_a_replica_of_a_cluster_takes_its_masters_place_and_no_write_is_lost() -> None:
    with LocalServer() as server, LocalCluster(replicas_per_master=1) as cluster:
        master, replica = cluster.nodes[1].address, cluster.nodes[4].address
        url = f"redis://{server.address}"
        with server.client() as config:
            push(
                config,
                described(
                    {"cluster": True, "host": "127.0.0.1", "port": int(cluster.nodes[0].port)}
                ),
            )
            with counting(url, cut_off=2):  # one for each failover, seldom
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
