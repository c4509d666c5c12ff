"""What a sick server answers becomes one sentence and a remedy, with the shard and the server."""

from __future__ import annotations

from collections.abc import Iterator
from traceback import format_exception

import pytest
from arranged import map_of
from faces import faced
from scripted_server import scripted

import shardkit
from shardkit import ShardMap
from shardkit.errors import ConfigServerError, ShardErrors, ShardFailure, ShardKitError
from shardkit.local import LocalServer

SECRET = "s3cretWord"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


def failure(server: LocalServer, **entry: object) -> str:
    """Write to a structure on the server; return the error's text."""
    fields = {"host": "127.0.0.1", "port": server.port, **entry}
    described = {"ids": {"shards": [fields]}}
    text = f"components: {described}".replace("'", "")
    with shardkit.connect(ShardMap.parse(text)) as kit:
        ids = kit.set("ids", component="ids", total=100, members=int)
        with pytest.raises(ShardKitError) as raised:
            ids.sadd(1)
    found = raised.value
    failures = found.exceptions if isinstance(found, ExceptionGroup) else [found]
    assert all(isinstance(each, ShardFailure) for each in failures)
    text = str(failures[0])
    assert text.startswith(f"ids:0 (127.0.0.1:{server.port}/")
    assert SECRET not in text
    return text


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_an_unknown_command_is_named_without_what_was_sent(kind: str) -> None:
    with LocalServer(config={"rename-command": ["HSET", ""]}) as server:
        shard_map = ShardMap.parse(f"components: {{a: {{entry: {{port: {server.port}}}}}}}")
        with faced(kind, shard_map) as face:
            pipe = face.kit.key_sharded("a").pipeline().hset("h", "f", SECRET)
            with pytest.raises(ShardErrors, match="1 shard failed") as refused:
                face.run(pipe.execute())
            with pytest.raises(ShardErrors, match="1 shard failed") as script_refused:
                face.run(face.kit.hash("h", component="a").hset("f", SECRET))
    assert "the server has no command HSET; upgrade the server" in str(refused.value)
    assert "lacks a command that the script uses; upgrade" in str(script_refused.value)
    assert SECRET not in "".join(format_exception(refused.value))


def test_a_replica_says_that_it_refuses_writes(server: LocalServer) -> None:
    with LocalServer(replica_of=server) as replica:
        said = failure(replica)
    assert "the server is a replica, which refuses writes; name its master" in said


def test_a_user_without_rights_learns_which(server: LocalServer) -> None:
    with server.client() as client:
        client.acl_setuser("app", True, passwords=[f"+{SECRET}"], keys="*", categories=["+@all"])
        client.execute_command("ACL", "SETUSER", "app", "-eval", "-evalsha", "-hsetnx", "-hset")
    said = failure(server, username="app", password=SECRET)
    assert "the user may not run EVAL" in said or "the user may not run HSET" in said
    assert "grant it: ACL SETUSER <user> +" in said
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "+@all", "resetkeys", "~other:*")
    said = failure(server, username="app", password=SECRET)
    assert "the user may not use this key; grant it: ACL SETUSER <user> ~<pattern>" in said


def test_wrong_and_missing_passwords_and_databases_are_told_apart(server: LocalServer) -> None:
    assert "the server has no password, and the entry gives one" in failure(server, password=SECRET)
    said = failure(server, db=99)
    assert "cannot be used: the server has no database of this number; correct db" in said
    with server.client() as client:
        client.config_set("requirepass", "other")
    assert "the user or password is refused; correct" in failure(server, password=SECRET)
    assert "the server asks for a password; add password:" in failure(server)


def test_a_config_server_that_asks_for_a_password_says_so(server: LocalServer) -> None:
    with server.client() as client:
        client.config_set("requirepass", SECRET)
    with (
        shardkit.connect(f"redis://127.0.0.1:{server.port}") as kit,
        pytest.raises(ConfigServerError, match="asks for a password; add password: to its entry"),
    ):
        kit.client("ids")


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_master_that_no_sentinel_names_is_named(kind: str) -> None:
    with scripted(SENTINEL=b"*0\r\n", ROLE=b"*1\r\n$8\r\nsentinel\r\n") as knows_none:
        entry = {"sentinel": {"service": "a", "sentinels": [["127.0.0.1", knows_none.port]]}}
        with (
            faced(kind, map_of(ids={"entry": entry})) as face,
            pytest.raises(ShardErrors, match=r"1 shard failed") as raised,
        ):
            face.run(face.kit.set("ids", component="ids", members=int).sadd(1))
    assert "no Sentinel names a master for 'a'" in str(raised.value.exceptions[0])
