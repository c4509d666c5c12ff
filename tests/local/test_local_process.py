"""No server outlives the process that started it. Every parent here is a real child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import redis
from local_helpers import alive, all_end, eventually

from shardkit.errors import LocalServerError
from shardkit.local import LocalServer

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
