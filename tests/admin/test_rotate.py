"""Passwords are rotated under load without an error; what cannot be known stops the rotation."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from arranged import before_sending, client_of, map_of, meanwhile, paused
from click.testing import CliRunner
from faces import eventually
from redis.exceptions import AuthenticationError

import shardkit
from shardkit import Entry, ShardMap, admin
from shardkit.admin import PasswordRotation, abort_rotation, push
from shardkit.cli.app import app
from shardkit.errors import ConfigError
from shardkit.local import LocalSentinel, LocalServer

CHANGES_KEY = "config:changes"

# What takes a Sentinel that cannot log in, or a clock of the test.
module: Any = import_module("shardkit.admin.rotate")
OLD, NEW = "theOldPassword", "theNewPassword"
WEB = "shardkit:data:0@web1/4711"


@pytest.fixture(scope="module")
def servers() -> Iterator[list[LocalServer]]:
    """A config server, and a master with its replica; the fixture below gives them a user."""
    with LocalServer() as config, LocalServer() as master, LocalServer(replica_of=master) as copy:
        yield [config, master, copy]


@pytest.fixture
def config(servers: list[LocalServer]) -> Iterator[redis.Redis]:
    for server in servers[:2]:
        client_of(server).flushall()
    for server in servers[1:]:
        with server.client() as client:
            client.execute_command("ACL", "LOG", "RESET")
            grants = ("on", f">{OLD}", "~*", "&*", "+@all")
            client.execute_command("ACL", "SETUSER", "app", "reset", *grants)
    with servers[0].client() as client:
        yield client


def described(servers: list[LocalServer], password: str = f"password: {OLD}") -> ShardMap:
    _, master, copy = servers
    return ShardMap.parse(
        f"""
        defaults: {{host: 127.0.0.1, username: app, {password}}}
        components:
          data:
            shards:
              - {{port: {master.port}, db: 1, replicas: [{{port: {copy.port}}}]}}
              - {{port: {master.port}, db: 2}}
          other: {{entry: {{url: 'redis://app:{OLD}@127.0.0.1:{master.port}/3'}}}}
        """.replace(f"app:{OLD}@", f"app:{OLD}@" if OLD in password else "")
    )


def turn(config: redis.Redis, servers: list[LocalServer], **options: Any) -> PasswordRotation:
    return admin.rotate(
        config, servers[0].entry, "app", **{"password": NEW, "settled": 0.1, **options}
    )


def stored(servers: list[LocalServer]) -> dict[str, Any]:
    """The components that clients read."""
    with shardkit.connect(f"redis://{servers[0].address}") as kit:
        return {name: kit.component(name) for name in kit.components()}


def logs_in(server: LocalServer, password: str) -> bool:
    with redis.Redis(port=server.port, username="app", password=password) as client:
        try:
            return bool(client.ping())
        except AuthenticationError:
            return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A password_file with the old password."""
    path = tmp_path / "password"
    path.write_text(OLD)
    return path


@contextlib.contextmanager
def old_client(servers: list[LocalServer], name: str = WEB) -> Iterator[redis.Redis]:
    """A client of the master, logged in with the old password."""
    with redis.Redis(port=servers[1].port, username="app", password=OLD) as other:
        other.client_setname(name)
        yield other


def test_a_rotation_under_load_is_smooth(servers: list[LocalServer], config: redis.Redis) -> None:
    push(config, described(servers))
    where = f"redis://{servers[0].address}"
    written = opened = 0
    with shardkit.connect(where) as kit:
        numbers = kit.set("numbers", component="data", total=100_000, members=int)
        other = kit.client("other")

        def write() -> None:
            nonlocal written, opened
            numbers.sadd(written)
            other.incr("count")
            written += 1
            if written % 50 == 0:
                with shardkit.connect(where) as fresh:
                    fresh.client("data", 1).ping()
                opened += 1

        with meanwhile(write, 0.003):
            rotation = turn(config, servers, message="quarterly", settled=2.5)
        assert numbers.scard() == int(other.get("count") or 0) == written
    assert rotation.done, rotation
    assert rotation.pending == []
    assert rotation.servers == sorted(server.address for server in servers[1:])
    assert written > 100
    assert opened > 2
    assert [logs_in(each, word) for each in servers[1:] for word in (NEW, OLD)] == [True, False] * 2
    components = stored(servers)
    everything = [entry for _, entry in components["data"].entries()] + [components["other"].entry]
    assert OLD not in "".join(entry.to_json() for entry in everything if entry)
    assert components["data"].shards[0].replicas[0].fields["password"] == NEW
    assert json.loads(config.lindex("config:history", 0))["message"] == "quarterly"
    assert not config.exists("config:rotation:app")


def test_an_unread_push_stops_it(servers: list[LocalServer], config: redis.Redis) -> None:
    push(config, described(servers))
    with old_client(servers):
        stopped = turn(config, servers, client_timeout=0)
        assert not stopped.done
        assert stopped.step == "published"
        assert [each.process for each in stopped.pending] == ["web1/4711"]
        assert "does not say which push it uses" in stopped.pending[0].reason
        assert all(logs_in(server, word) for server in servers[1:] for word in (OLD, NEW))
        with pytest.raises(ConfigError, match="was not finished; continue it: --resume"):
            turn(config, servers)
        with pytest.raises(ConfigError, match="was published"):
            abort_rotation(config, servers[0].entry, "app")
    assert turn(config, servers, resume=True, password=None).done
    assert not logs_in(servers[1], OLD)


def test_a_refused_login_restores_the_old(servers: list[LocalServer], config: redis.Redis) -> None:
    push(config, described(servers))

    with contextlib.ExitStack() as trying:

        def late(rotation: PasswordRotation) -> None:
            """A program that connects for moments only, and so was not seen."""
            if rotation.step == "published":
                trying.close()
                trying.enter_context(meanwhile(lambda: logs_in(servers[1], OLD), 0.1))

        stopped = turn(config, servers, ignore_others=True, progress=late, settled=0.6)
    assert not stopped.done
    assert "was refused with the old password, which is taken again" in stopped.pending[0].reason
    assert logs_in(servers[1], OLD)


@pytest.mark.parametrize("inline", [True, False])
def test_replicas_that_no_entry_names_change_over(
    servers: list[LocalServer], config: redis.Redis, path: Path, inline: bool
) -> None:
    _, master, copy = servers
    secret = {"password": OLD} if inline else {"password_file": str(path)}
    entry = {"host": "127.0.0.1", "port": master.port, "username": "app", **secret}
    push(config, map_of(data={"entry": entry}))
    with LocalServer(replica_of=copy) as chained, chained.client() as client:
        while client.info("replication")["master_link_status"] != "up":
            time.sleep(0.01)
        client.execute_command("ACL", "SETUSER", "app", "on", f">{OLD}", "~*", "&*", "+@all")
        rotation = turn(config, servers)
        assert rotation.done, rotation
        assert rotation.servers == sorted(each.address for each in (master, copy, chained))
        assert [logs_in(chained, password) for password in (OLD, NEW)] == [False, True]
        client.execute_command("ACL", "DELUSER", "app")
        rotation = turn(config, servers, password="theNext")
        assert rotation.done, rotation
        [*_, warning] = rotation.warnings
        assert (
            warning
            == f"set the password of replicas that cannot be asked as 'app': {chained.address}"
        )


def test_files_are_written(servers: list[LocalServer], config: redis.Redis, path: Path) -> None:
    push(config, described(servers, f"password_file: {path}"))
    with old_client(servers):
        stopped = turn(config, servers, client_timeout=0)
        assert [each.process for each in stopped.pending] == ["web1/4711"]
        assert "is on another host: write its password_file" in stopped.pending[0].reason
        assert path.read_text() == f"{NEW}\n"
        assert turn(config, servers, resume=True, password=None, distributed=True).done
    assert stopped.epoch == 0
    with shardkit.connect(f"redis://{servers[0].address}") as kit:
        assert kit.client("data", 0).ping()


def test_the_environment_stops_it_before_anything_is_published_and_then_until_restarts(
    servers: list[LocalServer], config: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_PASSWORD", OLD)
    push(config, described(servers, "password: '${APP_PASSWORD}'"))
    with pytest.raises(
        ConfigError, match=r"gives the old password here, as .*nothing was published"
    ):
        turn(config, servers)
    monkeypatch.setenv("APP_PASSWORD", NEW)
    with old_client(servers):
        stopped = turn(config, servers, resume=True, client_timeout=0)
        assert "has the old password in its environment: restart it" in stopped.pending[0].reason
    assert turn(config, servers, resume=True).done


def test_it_is_taken_back_as_long_as_it_was_not_published(
    servers: list[LocalServer], config: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_PASSWORD", OLD)
    push(config, described(servers, "password: '${APP_PASSWORD}'"))
    with pytest.raises(
        ConfigError, match="the rotation of 'app' has not started; leave out --resume"
    ):
        turn(config, servers, resume=True)
    with pytest.raises(ConfigError, match="nothing was published"):
        turn(config, servers)
    assert logs_in(servers[2], NEW)
    abort_rotation(config, servers[0].entry, "app")
    assert not logs_in(servers[2], NEW)
    with pytest.raises(ConfigError, match="the rotation of 'app' has not started"):
        abort_rotation(config, servers[0].entry, "app")


def test_a_rotation_that_was_killed_after_its_push_is_not_taken_back(
    servers: list[LocalServer], config: redis.Redis
) -> None:
    push(config, described(servers))

    pushed: list[str] = []

    def is_next(connection: Any, text: str) -> bool:
        pushed.extend([text] if "EXEC" in text and "config:redis:data" in text else [])
        return pushed not in ([], [text])

    stop = Mock(side_effect=KeyboardInterrupt)
    with before_sending(is_next, stop), pytest.raises(KeyboardInterrupt):
        turn(config, servers)
    with pytest.raises(ConfigError, match="was published: clients log in with it"):
        abort_rotation(config, servers[0].entry, "app")
    assert logs_in(servers[1], NEW)
    assert turn(config, servers, resume=True, password=NEW).done


def test_what_others_push_during_a_rotation_stays(
    servers: list[LocalServer], config: redis.Redis
) -> None:
    push(config, described(servers))
    moved = ShardMap.parse(described(servers).to_yaml().replace("/3", "/5"))

    def at(step: str, pushed: ShardMap) -> Any:
        left = [pushed]
        return lambda now: now.step == step and left and push(config, left.pop(), force=True)

    with pytest.raises(ConfigError, match="another password of 'app' again, and both are taken"):
        turn(config, servers, progress=at("published", described(servers)))
    assert logs_in(servers[1], OLD)
    assert turn(config, servers, resume=True, progress=at("added", moved)).done
    assert stored(servers)["other"].entry.database == 5
    assert [logs_in(servers[1], word) for word in (OLD, NEW)] == [False, True]


def test_a_stopped_rotation_that_others_have_undone_publishes_nothing(
    servers: list[LocalServer], config: redis.Redis
) -> None:
    push(config, described(servers))

    def undone(rotation: PasswordRotation) -> None:
        config.delete(CHANGES_KEY)  # as ten seconds after it was stopped
        abort_rotation(config, servers[0].entry, "app")

    with pytest.raises(ConfigError, match="another process has continued or undone the rotation"):
        turn(config, servers, progress=undone)
    assert logs_in(servers[1], OLD)
    assert NEW not in str(stored(servers)["data"].shards[0].to_json())


def test_another_users_password_stays(servers: list[LocalServer], config: redis.Redis) -> None:
    push(config, described(servers))
    with servers[2].client() as copy:
        copy.config_set("masteruser", "peer")
        copy.config_set("masterauth", OLD)  # by chance the same
        try:
            assert turn(config, servers).done
            assert copy.config_get("masterauth") == {"masterauth": OLD}
        finally:
            copy.config_set("masteruser", "")
            copy.config_set("masterauth", "")


def test_unfit_servers_stop_it_early(servers: list[LocalServer], config: redis.Redis) -> None:
    push(config, described(servers))
    client_of(servers[2]).execute_command("ACL", "SETUSER", "app", ">another")
    with pytest.raises(ConfigError, match="takes 2 passwords of 'app' already"):
        turn(config, servers)
    said = f"{servers[2].address} .*nothing was changed"
    with paused(servers[2]), pytest.raises(ConfigError, match=said):
        turn(config, servers, timeout=0.2)
    with pytest.raises(ConfigError, match="user 'nobody' has a password in no entry"):
        admin.rotate(config, servers[0].entry, "nobody", NEW)
    assert not logs_in(servers[1], NEW)


@pytest.mark.parametrize(
    ("source", "password", "said"),
    [
        (f"password: {OLD}", "Xy${HOME}9", "contains ${NAME}, which entries replace"),
        ("password_file: FILE", "two\nlines", "is more than one line"),
        ("password_file: FILE", "line\r", "is more than one line"),
    ],
)
def test_a_password_that_clients_would_read_differently_is_refused(
    servers: list[LocalServer],
    config: redis.Redis,
    path: Path,
    source: str,
    password: str,
    said: str,
) -> None:
    push(config, described(servers, source.replace("FILE", str(path))))
    with pytest.raises(ConfigError, match=re.escape(f"the new password of 'app' {said}")):
        turn(config, servers, password=password)
    assert config.get("config:rotation:app") is None


STATE = {"format": 1, "user": "app", "hash": hashlib.sha256(NEW.encode()).hexdigest()}


@pytest.mark.parametrize(
    ("state", "options", "said"),
    [
        (None, {"password": None}, "the new password was not given; give it"),
        (
            STATE,
            {"password": "another", "resume": True},
            "is not the one that the rotation started with; give that one, or undo .*: --abort",
        ),
        (
            {"format": 2},
            {"resume": True},
            "config:rotation:app cannot be read by this release; use the release that began",
        ),
    ],
)
def test_a_rotation_goes_on_only_with_what_it_began_with(
    servers: list[LocalServer], config: redis.Redis, state: Any, options: Any, said: str
) -> None:
    push(config, described(servers))
    if state is not None:
        config.set("config:rotation:app", json.dumps(state))
    with pytest.raises(ConfigError, match=said):
        turn(config, servers, **options)
    assert logs_in(servers[1], OLD)
    assert not logs_in(servers[1], NEW)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((f">{NEW}",), "takes the new password of 'app' already; choose another"),
        (("nopass",), "nothing was changed: user 'app' needs no password.* then try again"),
        (("-client|list",), "the processes .* are unknown.*or grant CLIENT LIST"),
    ],
)
def test_a_user_that_cannot_be_rotated_is_named(
    servers: list[LocalServer], config: redis.Redis, rules: tuple[str, ...], said: str
) -> None:
    push(config, described(servers))
    client_of(servers[1]).execute_command("ACL", "SETUSER", "app", *rules)
    with pytest.raises(ConfigError, match=said):
        turn(config, servers)


def test_a_user_that_is_not_there_is_named(servers: list[LocalServer], config: redis.Redis) -> None:
    push(config, described(servers))
    login = {"username": "admin", "password": "theAdmins"}
    for server in servers[1:]:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "admin", "on", ">theAdmins", "~*", "+@all")
            client.execute_command("ACL", "DELUSER", "app")
    with pytest.raises(
        ConfigError, match="user 'app' does not exist; correct the entry, then try again"
    ):
        turn(config, servers, login=login)


def test_an_unsaved_change_is_a_warning(servers: list[LocalServer], config: redis.Redis) -> None:
    _, master, copy = servers
    login = {"host": "127.0.0.1", "username": "app", "password": OLD}
    entry = {**login, "port": master.port, "replicas": [{**login, "port": copy.port}]}
    push(config, map_of(data={"entry": entry}))
    client_of(master).execute_command("ACL", "SETUSER", "app", "-config")
    rotated = turn(config, servers)
    assert rotated.done
    [warning] = rotated.warnings
    assert warning == (
        f"{master.address} cannot save the change: once restarted, only what its configuration "
        "says is taken"
    )
    entry = stored(servers)["data"].entry
    assert [entry.fields["password"], entry.fields["replicas"][0]["password"]] == [NEW, NEW]


def test_silent_programs_can_be_ignored(servers: list[LocalServer], config: redis.Redis) -> None:
    push(config, described(servers))
    with old_client(servers, "") as other:
        other.client_setinfo("LIB-NAME", "batch")
        other.client_setinfo("LIB-VER", "1.0")
        [pending] = turn(config, servers, client_timeout=0).pending
        assert pending.reason == "batch 1.0 does not report what it uses: check it"
        assert turn(config, servers, resume=True, ignore_others=True).done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write another user's file")
def test_the_file_stays_its_owners(
    servers: list[LocalServer], config: redis.Redis, path: Path
) -> None:
    os.chown(path, 65534, 65533)
    path.chmod(0o440)
    link = path.with_name("link")
    link.symlink_to(path)
    push(config, described(servers, f"password_file: {link}"))
    assert turn(config, servers).done
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (65534, 65533, 0o440)
    assert path.read_text() == f"{NEW}\n"
    assert link.is_symlink()


def test_no_file_no_push(servers: list[LocalServer], config: redis.Redis, path: Path) -> None:
    path = path.rename(
        path.with_name("p" * 250)
    )  # the new one's name, which is made first, is longer
    push(config, described(servers, f"password_file: {path}"))
    said = (
        f"password_file {path} cannot be written, so nothing was published: .*; write it yourself"
    )
    with pytest.raises(ConfigError, match=said):
        turn(config, servers)
    assert path.read_text() == OLD


@pytest.mark.parametrize(
    ("refuses", "said"),
    [
        (True, "cannot be sent the new password, .*: no such master; start it, or remove it"),
        (
            False,
            r"does not see the master with the new password \(master,s_down\).*check its log",
        ),
    ],
)
def test_bad_sentinels_stop_it(monkeypatch: pytest.MonkeyPatch, refuses: bool, said: str) -> None:
    def told(*words: str) -> dict[str, str]:
        if refuses:
            raise redis.ResponseError("no such master")
        return {"flags": "master,s_down"}

    monkeypatch.setattr(module, "_SENTINEL_SECONDS", 0)
    sentinel = SimpleNamespace(
        connection_pool=SimpleNamespace(connection_kwargs={"host": "s1", "port": 26379}),
        execute_command=told,
    )
    with pytest.raises(ConfigError, match=f"the Sentinel s1:26379 of data {said}"):
        module._tell_sentinel(sentinel, "main", NEW, "data")


def test_who_still_uses_the_old_password_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: float(len(slept)), sleep=slept.append)
    monkeypatch.setattr(module, "time", clock)
    pending = [["web"], ["web"], [], ["late"], [], [], []]
    turning = SimpleNamespace(
        pending=lambda *_: pending[len(slept)], rotation=SimpleNamespace(), progress=lambda _: None
    )

    def wait(seconds: float) -> bool:
        slept.clear()
        return bool(module._OngoingRotation.await_clients(turning, {}, seconds, 2.0))

    assert wait(3.5)
    assert len(slept) == 6, "nobody was left for two seconds"
    assert not wait(3.0)
    assert turning.rotation.pending == ["late"]


def test_the_command_shows_what_it_would_do_and_never_a_password(
    servers: list[LocalServer], config: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(config, described(servers))
    monkeypatch.setitem(admin.rotate.__wrapped__.__kwdefaults__, "settled", 0.1)

    def run(*arguments: str, code: int = 0) -> str:
        words = ["rotate", "app", "-c", f"redis://{servers[0].address}", *arguments]
        found = CliRunner().invoke(app, words)
        assert found.exit_code == code, found.output
        assert NEW not in found.output
        assert OLD not in found.output
        return found.stdout

    monkeypatch.setenv("SHARDKIT_NEW_PASSWORD", NEW)
    planned = run("--dry-run")
    assert f"2 servers: {', '.join(sorted(s.address for s in servers[1:]))}" in planned
    assert "inline in 4 entries: pushed" in planned
    assert not logs_in(servers[1], NEW)
    with old_client(servers, f"shardkit:data:0@{platform.node()}x/7"):
        stopped = json.loads(run("--client-timeout", "0", "--json", code=1))
    assert stopped["pending"][0]["process"] == f"{platform.node()}x/7"
    assert not stopped["done"]
    assert "take only the new password" in run("--resume")


def test_a_config_servers_file_is_rotated(servers: list[LocalServer], path: Path) -> None:
    with LocalServer(users={"admin": "theAdmins", "ops": OLD}) as server, server.client() as config:
        login = {"username": "ops", "password_file": str(path)}
        entry = Entry({"host": "127.0.0.1", "port": server.port, **login}, "config server")
        push(config, map_of(a={"entry": {"port": servers[0].port}}))
        with shardkit.connect(entry) as kit:
            assert kit.component("a").entry is not None
            assert admin.rotate(config, entry, "ops", NEW, settled=0.1).done
            config.execute_command("CLIENT", "KILL", "USER", "ops")
            config.ping()  # the killed ones are closed before this is answered
            kit.topology.expire()
            assert kit.components() == ["a"]
        assert path.read_text() == f"{NEW}\n"
        server.restart()
        with redis.Redis(port=server.port, username="ops", password=NEW) as kept:
            assert kept.ping()


def test_a_rotated_requirepass_survives_a_restart() -> None:
    with (
        LocalServer(password=OLD) as server,
        LocalServer() as config_server,
        config_server.client() as config,
    ):
        with server.client() as client:
            client.config_set("requirepass", OLD)
            client.config_rewrite()
        push(config, map_of(a={"entry": {"port": server.port, "password": OLD}}))
        rotated = admin.rotate(config, config_server.entry, "default", NEW, settled=0.1)
        assert rotated.done, rotated
        assert rotated.warnings == []
        assert client_of(server, password=NEW).ping()
        server._users["default"] = NEW  # how restart() finds out whether it serves again
        server.restart()
        with redis.Redis(port=server.port, password=NEW) as kept:
            assert kept.ping()


def test_sentinels_and_the_replicas_that_they_name_change_over_too() -> None:
    users = {"app": OLD}
    with (
        LocalServer() as server,
        LocalSentinel("main", users=users, sentinel_password="theirs", sentinels=2) as watched,
        server.client() as config,
    ):
        addresses = [["127.0.0.1", each.port] for each in watched.sentinels]
        sentinel = {"service": "main", "sentinels": addresses, "password": "theirs"}
        entry = {"sentinel": sentinel, "username": "app", "password": OLD}
        push(config, map_of(data={"entry": entry}))
        with shardkit.connect(f"redis://{server.address}") as kit:
            client = kit.client("data")
            client.set("k", 1)
            router = kit.key_sharded("data")
            with meanwhile(lambda: (client.incr("k"), router["k"].incr("k")), 0.01):
                turned = admin.rotate(config, server.entry, "app", NEW, settled=0.3, timeout=2)
            assert turned.done, turned
            servers = [watched.master, *watched.replicas]
            assert turned.servers == sorted(each.address for each in servers)
            assert not any(logs_in(each, OLD) for each in servers)
            assert all(logs_in(each, NEW) for each in servers)
            # Sentinels log in with it, and so does the replica with its master.
            for each in servers:
                client_of(each, username="app", password=NEW).execute_command(
                    "CLIENT", "KILL", "USER", "app"
                )
            with watched.master.client(username="app", password=NEW) as own:
                assert eventually(
                    lambda: (
                        sum(
                            each["name"].startswith("sentinel") and each["name"].endswith("-cmd")
                            for each in own.client_list()
                        )
                        == 2
                    )
                )
            for asked in watched.sentinels:
                with asked.client() as client:
                    assert eventually(lambda: client.sentinel_master("main")["flags"] == "master")
            with watched.replicas[0].client(username="app", password=NEW) as own:
                assert eventually(lambda: own.info("replication")["master_link_status"] == "up")
