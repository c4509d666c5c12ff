"""A component's data is deleted only when that is certain to hurt nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from arranged import map_of

from shardkit.admin import Retirement, delete_data, last_known, push, remove
from shardkit.errors import ConfigError
from shardkit.local import LocalCluster, LocalServer

LONG = 3600.0  # seconds; much longer than any test


@pytest.fixture
def config(own_server: LocalServer) -> Iterator[redis.Redis]:
    with own_server.client(db=9) as client:
        yield client


def retired(config: redis.Redis, old: dict[str, Any], new: dict[str, Any]) -> Retirement:
    """Push two components, remove ``old``, and return it as if that were long ago."""
    push(config, map_of(old={"entry": old}, new={"entry": new}), force=["old", "new"])
    remove(config, last_known(config, "old"))
    return replace(last_known(config, "old"), removed_for=2 * LONG)


def at(server: LocalServer, db: int, host: str = "127.0.0.1") -> dict[str, Any]:
    return {"host": host, "port": server.port, "db": db}


def set_unused(client: Any, key: str, seconds: int) -> None:
    """Set a key that was last used some seconds ago."""
    client.set(key, "v")
    client.restore(key, 0, client.dump(key), replace=True, idletime=seconds)


def test_data_stays_while_it_may_be_used(own_server: LocalServer, config: redis.Redis) -> None:
    own, other = ({"entry": at(own_server, db)} for db in (1, 2))
    with own_server.client(db=1) as old:
        push(config, map_of(old=own, new=other))
        old.set("k", "v")
        with pytest.raises(ConfigError, match="'old' is still there; remove it first: shardkit re"):
            delete_data(last_known(config, "old"))
        remove(config, last_known(config, "old"))
        removed, epoch = last_known(config, "old"), int(config.get("config:epoch") or 0)
        assert (removed.removed, list(removed.others)) == (True, ["new"])
        remove(config, removed)
        assert int(config.get("config:epoch") or 0) == epoch, (
            "it was removed before: nothing is pushed"
        )
        config.execute_command("ACL", "SETUSER", "default", "-client|list")
        said = "component 'old': the processes that use it are unknown: .*cannot be asked.*; start"
        with pytest.raises(ConfigError, match=said):
            delete_data(removed, quiet=0)
        config.execute_command("ACL", "SETUSER", "default", "+client|list")
        assert old.get("k") == b"v"
        assert delete_data(replace(removed, others={}), quiet=0) == 1
        assert not old.exists("k")


def test_removal_starts_the_quiet_time(own_server: LocalServer, config: redis.Redis) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    with own_server.client(db=1) as old:
        set_unused(old, "k", 2 * int(LONG))
        removed = last_known(config, "old")
        assert 0 <= removed.removed_for < 60
        said = r"'old' was removed \d+ s ago, less than the quiet time of 3600 s; repeat .* in 3\d"
        with pytest.raises(ConfigError, match=said):
            delete_data(removed, quiet=LONG)
        with pytest.raises(ConfigError, match=r"less than .*; repeat the command in 1 s"):
            delete_data(replace(removed, removed_for=LONG - 0.1), quiet=LONG)
        assert old.exists("k")
        assert delete_data(retirement, quiet=LONG) == 1


def test_a_key_used_lately_keeps_the_data(own_server: LocalServer, config: redis.Redis) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    with own_server.client(db=1) as old:
        for n in range(600):
            set_unused(old, f"k{n}", 2 * int(LONG))
        old.get("k7")
    said = r"config:redis:old \(127.0.0.1:\d+/1\) is still used, so nothing .*: key k7 \d+ s ago"
    with pytest.raises(ConfigError, match=said):
        delete_data(retirement, quiet=LONG)
    with own_server.client(db=1) as old:
        set_unused(old, "k7", 2 * int(LONG))
        assert old.dbsize() == 601, "and config:witness"
    assert delete_data(retirement, quiet=LONG) == 600


def test_a_read_at_a_replica_keeps_the_data(own_server: LocalServer, config: redis.Redis) -> None:
    with own_server.client(db=1) as old:
        set_unused(old, "k", 2 * int(LONG))
    with LocalServer(replica_of=own_server) as copy, copy.client(db=1) as reader:
        entry = {**at(own_server, 1), "replicas": [{"port": copy.port}]}
        retirement = retired(config, entry, at(own_server, 2))
        reader.get("k")
        with pytest.raises(ConfigError, match=r"config:redis:old replicas\[0\] .* is still used"):
            delete_data(retirement, quiet=LONG)


def test_unrecorded_use_keeps_the_data(own_server: LocalServer, config: redis.Redis) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    with own_server.client(db=1) as old:
        old.set("k", "v")
        config.config_set("maxmemory-policy", "allkeys-lfu")
        try:
            with pytest.raises(
                ConfigError, match=r"does not show when its keys were used, so nothing .*LFU"
            ):
                delete_data(retirement, quiet=LONG)
        finally:
            config.config_set("maxmemory-policy", "noeviction")
        assert old.exists("k")


def test_data_of_another_component_is_kept(own_server: LocalServer, config: redis.Redis) -> None:
    said = r"config:redis:old \(localhost:\d+/1\) shares a database with config:redis:new \(127"
    with own_server.client(db=1) as client:
        client.set("k", "v")
        retirement = retired(config, at(own_server, 1, "localhost"), at(own_server, 1))
        with pytest.raises(ConfigError, match=said):
            delete_data(retirement, quiet=0)
        retirement = retired(config, at(own_server, 1, "localhost"), at(own_server, 2))
        assert delete_data(retirement, quiet=0) == 1


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", ["old", "newer"])
def test_databases_that_are_pushed_again_meanwhile_keep_the_rest(
    own_server: LocalServer, config: redis.Redis, name: str, by_hand: bool
) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    pushed: list[int] = []

    def again(deleted: int) -> None:
        if not pushed:
            pushed.append(deleted)
            if by_hand:
                config.set(f"config:redis:{name}", json.dumps(at(own_server, 1)))
            else:
                push(config, map_of(**{name: {"entry": at(own_server, 1)}}), force=[name])

    with own_server.client(db=1) as old:
        old.mset({f"k{n}": n for n in range(1200)})
        said = (
            r"has entries again: no more keys"
            if name == "old"
            else r"shares a database with .*newer"
        )
        with pytest.raises(ConfigError, match=said):
            delete_data(retirement, quiet=0, progress=again)
        assert len(old.keys("k*")) == 1200 - pushed[0] > 0


def test_an_unknown_server_keeps_the_data(own_server: LocalServer, config: redis.Redis) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    away = map_of(new={"entry": {"host": "127.0.0.1", "port": 1}})
    said = r"config:redis:new \(127.0.0.1:1/0\) cannot be asked which server it is, so the keys"
    with pytest.raises(ConfigError, match=said):
        delete_data(replace(retirement, others=away.components), quiet=0)


def test_any_named_node_of_a_cluster_keeps_the_data(
    config: redis.Redis, cluster: LocalCluster
) -> None:
    with cluster.client() as client:
        client.set("k", "v")
        first, second, *_ = [node.port for node in client.get_primaries()]
        nodes = [{"cluster": True, "host": "127.0.0.1", "port": port} for port in (first, second)]
        retirement = retired(config, nodes[0], nodes[1])
        with pytest.raises(ConfigError, match="shares a database with config:redis:new"):
            delete_data(retirement, quiet=0)
        config.delete("config:redis:new")
        alone = replace(retirement, others={})
        with pytest.raises(ConfigError, match="is still used, so nothing was deleted: key k"):
            delete_data(alone, quiet=LONG)
        assert client.get("k") == b"v"
        assert delete_data(alone, quiet=0) == 1
