"""A component's data is deleted only when that is certain to hurt nobody."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shardkit import ShardMap
from shardkit.admin import delete_data, push
from shardkit.admin.retire import last_known, remove
from shardkit.config.store import read_epoch
from shardkit.errors import ConfigError
from shardkit.local import LocalServer


def test_data_stays_while_the_component_is_there_or_nobody_knows_who_uses_it(
    own_server: LocalServer,
) -> None:
    described = {
        name: {"entry": {"host": "127.0.0.1", "port": own_server.port, "db": db}}
        for name, db in (("old", 1), ("new", 2))
    }
    with own_server.client(db=9) as config, own_server.client(db=1) as old:
        push(config, ShardMap.parse(json.dumps({"components": described})))
        old.set("k", "v")
        with pytest.raises(ConfigError, match="'old' is still there; remove it first: shardkit re"):
            delete_data(last_known(config, "old"))
        remove(config, last_known(config, "old"))
        removed, epoch = last_known(config, "old"), read_epoch(config)
        assert (removed.removed, list(removed.others)) == (True, ["new"])
        remove(config, removed)
        assert read_epoch(config) == epoch, "it was removed before: nothing is pushed"
        config.execute_command("ACL", "SETUSER", "default", "-client|list")
        said = "nobody knows who uses component 'old': .*cannot be asked.*; start the server, or gr"
        with pytest.raises(ConfigError, match=said):
            delete_data(removed, quiet=0)
        config.execute_command("ACL", "SETUSER", "default", "+client|list")
        assert old.get("k") == b"v"
        assert delete_data(replace(removed, others={}), quiet=0) == 1
        assert not old.exists("k")
