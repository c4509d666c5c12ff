"""A push that cannot know what is there already is no push."""

from __future__ import annotations

import pytest

from shardkit import ShardMap
from shardkit.admin import push
from shardkit.config import store
from shardkit.config.store import read_epoch
from shardkit.errors import ConfigServerError
from shardkit.local import LocalServer


def test_unreadable_stops_a_push(own_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(config: object, like: object) -> None:
        raise ConfigServerError("the config server is away", "start it")

    shard_map = ShardMap.parse(f"components: {{own: {{entry: {{port: {own_server.port}}}}}}}")
    with own_server.client() as config:
        with monkeypatch.context() as patched:
            patched.setattr(store, "read_components", away)
            # Servers of what is there already would not hear of this push.
            with pytest.raises(ConfigServerError, match="the config server is away; start it"):
                push(config, shard_map)
        assert not config.keys()
        push(config, shard_map)
        assert read_epoch(config) == 1
