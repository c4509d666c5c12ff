"""What movers push, and how long they wait until it has been read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import redis

from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import journal
from shardkit.admin.growth.journal import push_changed, wait_until_read
from shardkit.config.component import Component
from shardkit.errors import PushRefusedError
from shardkit.local import LocalServer


def component(name: str, server: LocalServer, database: int) -> Component:
    described = {name: {"entry": {"host": "127.0.0.1", "port": server.port, "db": database}}}
    return ShardMap.parse(json.dumps({"components": described})).components[name]


def others_push(config: redis.Redis, server: LocalServer, database: int) -> None:
    others = {"others": component("others", server, database)}
    push(config, ShardMap(others, source="test"), check=False)


def test_a_mover_repeats_its_push_a_few_times(own_server: LocalServer) -> None:
    with own_server.client(db=9) as config:
        others_push(config, own_server, 0)
        disturbed, asked, forgotten = 2, 0, 1000

        def change(found: Mapping[str, Component]) -> dict[str, Component]:
            nonlocal asked
            asked += 1
            if asked > forgotten:
                return {"mine": component("mine", own_server, asked)}
            if asked <= disturbed:
                others_push(config, own_server, asked)
            return {} if "mine" in found else {"mine": component("mine", own_server, 1)}

        with journal.lease(config) as lease:
            epoch = push_changed(lease, change, "a move", witnessed=False)
            assert (asked, epoch) == (3, 4), "it has read again after each push of others"
            assert push_changed(lease, change, "a move") == 4, "nothing is left to push"
            asked, disturbed = 0, 1000
            config.delete("config:redis:mine")
            with pytest.raises(PushRefusedError, match="other pushes came in between"):
                push_changed(lease, change, "a move")
        assert asked == journal._ATTEMPTS
        assert not config.exists("config:redis:mine")
        epoch = int(config.get("config:epoch") or 0)
        assert epoch == 4 + asked
        forgotten = 0
        with journal.lease(config) as lease:
            assert push_changed(lease, change, "a move") == epoch + 1, "it pushes once"


def test_no_client_list_no_wait(own_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    monkeypatch.setattr(
        journal, "time", SimpleNamespace(monotonic=lambda: float(len(looked)), sleep=looked.append)
    )
    with own_server.client() as config, own_server.client() as reader:
        reader.client_setname("shardkit:config-server/3@batch")
        wait_until_read(config, 4, 2)
        waited = len(looked)
        assert waited > 1
        wait_until_read(config, 3, 2)
        assert len(looked) == waited, "it has read that"
        config.execute_command("ACL", "SETUSER", "default", "-client|list")
        wait_until_read(config, 4, 2)
        assert len(looked) == waited
