"""A config server with several addresses, or behind Sentinels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from arranged import ask
from click.testing import CliRunner
from link_helpers import eventually, of, opened
from topology_helpers import follows, one_at

from shardkit import Entry, ShardMap
from shardkit.admin import push
from shardkit.cli.app import app
from shardkit.errors import ConfigServerError, InvalidEntryError
from shardkit.local import LocalSentinel, LocalServer


@pytest.fixture
def pair() -> Iterator[tuple[LocalServer, LocalServer]]:
    with LocalServer() as master, LocalServer(replica_of=master) as replica:
        yield master, replica


async def test_the_next_address_is_used_while_the_first_is_away(
    kind: str, pair: tuple[LocalServer, LocalServer]
) -> None:
    master, replica = pair
    with master.client() as client:
        push(client, one_at(1))
        client.wait(1, 10_000)
    url = f"redis://127.0.0.1:{master.port},127.0.0.1:{replica.port}/0"
    async with opened(kind, url) as first:
        assert await follows(first, 1)
        assert await of(first.kit.components()) == ["one"]
        master.kill()
        async with opened(kind, url) as later:  # as a program that starts now
            assert await follows(later, 1)
            assert await of(later.kit.components()) == ["one"]
            with replica.client() as client:
                client.replicaof("NO", "ONE")
                push(client, one_at(2))
            for face in (first, later):
                assert await follows(face, 2)


async def test_if_none_answers_the_error_names_all(kind: str) -> None:
    named = r"config server 127.0.0.1:1/3, 127.0.0.1:2/3 cannot be read"
    with pytest.raises(ConfigServerError, match=named):
        async with opened(kind, "redis://127.0.0.1:1,127.0.0.1:2/3") as face:
            await of(face.kit.component("one"))


async def test_sentinels_name_the_config_server(kind: str) -> None:
    with LocalSentinel("config", replicas=1, sentinels=3) as watched:
        with watched.master.client() as client:
            push(client, one_at(1))
            client.wait(1, 10_000)
        addresses = ",".join(f"127.0.0.1:{each.port}" for each in watched.sentinels)

        def is_pushed() -> bool:
            with suppress(redis.RedisError, ConfigServerError), watched.replicas[0].client() as new:
                if new.role()[0] == b"master" and new.exists("config:epoch"):
                    push(new, one_at(2))
                    return True
            return False

        async with opened(kind, f"redis+sentinel://{addresses}/config/0") as face:
            assert await follows(face, 1)
            with watched.master.client() as client:  # so that it is not demoted
                client.execute_command("ACL", "SETUSER", "default", "-slaveof")
            ask(watched.sentinels[0], "execute_command", "SENTINEL FAILOVER", "config")
            assert await eventually(is_pushed)  # Sentinels cut connections off meanwhile
            assert await follows(face, 2)


def test_commands_use_the_first_master(
    pair: tuple[LocalServer, LocalServer], tmp_path: Path
) -> None:
    master, replica = pair
    file = tmp_path / "map.yaml"
    file.write_text(f"components: {{one: {{entry: {{port: {master.port}}}}}}}")
    url = f"redis://127.0.0.1:{replica.port},127.0.0.1:{master.port}/0"
    result = CliRunner().invoke(app, ["config", "push", str(file), "--config", url])
    assert result.exit_code == 0, result.output
    assert ask(master, "exists", "config:redis:one")


def test_the_url_of_sentinels_becomes_the_fields_of_an_entry() -> None:
    url = (
        "rediss+sentinel://app:${PW}@s1,[::1]:26380/main.db/2?socket_timeout=3&sentinel_password=x"
    )
    assert Entry({"url": url}).fields == {
        "sentinel": {
            "service": "main.db",
            "sentinels": [["s1", 26379], ["::1", 26380]],
            "password": "x",
        },
        "username": "app",
        "password": "${PW}",
        "db": 2,
        "ssl": True,
        "socket_timeout": 3.0,
    }
    shard_map = ShardMap.parse(
        "config_server: {url: 'redis+sentinel://s1,s2/config'}\ncomponents: {a: {entry: {}}}"
    )
    assert shard_map.config_server is not None
    assert shard_map.config_server.address == "sentinel:config/0"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+sentinel://s1,s2", "names no service"),
        ("redis+sentinel://s1,s2/main/x", "names no service, or no database number"),
        ("redis+sentinel://s1,:1/main", "names a Sentinel that cannot be one"),
        ("redis+sentinel://s1/main?nosuch=1", "sets an unknown field"),
        ("redis://a,b/0", "names several servers"),
    ],
)
def test_unusable_urls_are_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidEntryError, match=problem):
        Entry({"url": url})
