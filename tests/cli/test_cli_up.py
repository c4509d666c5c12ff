"""`shardkit up` in processes of its own: what it starts ends with it, however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from cli_helpers import COMMAND, SECRET, ends
from faces import PATIENCE

import shardkit
from shardkit.admin.growth import start_move

MAP = """
config_server: {port: 7100}
components:
  unique:
    entry: {host: a.internal}
    shards: {count: 4, over: [{host: a.internal, db: 1}, {host: b.internal, db: 1}]}
"""


class Running(NamedTuple):
    process: subprocess.Popen[str]
    told: Any

    @property
    def pids(self) -> list[int]:
        return [server["pid"] for server in self.told["servers"]]

    def end(self, number: signal.Signals) -> str:
        """Send a signal; return what was written to stderr in the end."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        assert not out
        assert SECRET not in err
        return err


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    processes = []

    def start(text: str, *options: str, name: str = "map.yaml") -> Running:
        path = tmp_path / name
        path.write_text(text)
        process = subprocess.Popen(
            [*COMMAND, "up", str(path), "--free-ports", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            assert SECRET not in line
            lines.append(line)
            if line == "}\n":
                return Running(process, json.loads("".join(lines)))
        assert process.stderr is not None
        pytest.fail(process.stderr.read())

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("name", ["SIGHUP", "SIGKILL"])  # others do by the other signals
def test_a_signal_stops_every_server(up: Callable[..., Running], name: str) -> None:
    running = up(MAP)
    assert len(running.pids) == 3
    err = running.end(signal.Signals[name])
    if name != "SIGKILL":
        assert err.splitlines()[-1] == "stopped 3 servers"
        assert running.process.returncode == 0
    assert all(map(ends, running.pids))


def test_signals_ignored_by_nohup_stay_ignored(tmp_path: Path) -> None:
    (path := tmp_path / "map.yaml").write_text(MAP)
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *COMMAND, "up", str(path), "--free-ports"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("started 3 servers in ")
    status = Path(f"/proc/{process.pid}/status").read_text()
    [ignored] = re.findall(r"^SigIgn:\s+(\w+)$", status, re.MULTILINE)
    assert int(ignored, 16) & 1 << signal.SIGHUP - 1
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert err.splitlines()[-1] == "stopped 3 servers"


def test_the_map_is_pushed_and_can_be_used_at_once(up: Callable[..., Running]) -> None:
    running = up(MAP)
    assert running.told["pushed"] is True
    found = [server["shards"] for server in running.told["servers"]]
    assert found == [[], ["unique", "unique:0", "unique:2"], ["unique:1", "unique:3"]]
    with shardkit.connect(running.told["config"]) as kit:
        assert kit.key_sharded("unique", shards=4)["key"].set("key", 1)
        server = running.told["servers"][1]
        assert kit.client("unique").info("server")["process_id"] == server["pid"]
        assert kit.component("unique").epoch == 1
    assert running.end(signal.SIGTERM).splitlines()[-1] == "stopped 3 servers"
    assert running.process.returncode == 0
    assert all(map(ends, running.pids))


def test_a_map_with_passwords_is_written_for_this_user_only(
    up: Callable[..., Running], tmp_path: Path
) -> None:
    written = tmp_path / "written.yaml"
    text = f"defaults: {{password: {SECRET}, username: app}}\n{MAP}"
    running = up(text, "--write", str(written), "--no-push")
    assert running.told["pushed"] is False
    assert running.told["config"] == running.told["written"] == str(written)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    with shardkit.connect(written) as kit:
        assert kit.key_sharded("unique")["key"].set("key", 1)
        assert kit.client("unique").acl_whoami() in ("app", b"app")
    running.end(signal.SIGTERM)


def test_a_password_by_reference_is_told_as_one(
    up: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWN_PASSWORD", SECRET)
    running = up("defaults: {password: '${TOWN_PASSWORD}', username: app}\n" + MAP)
    url = running.told["config"]
    assert url.startswith("redis://app:${TOWN_PASSWORD}@127.0.0.1:")
    with shardkit.connect(url) as kit:
        assert kit.key_sharded("unique")["key"].set("key", 1)
    running.end(signal.SIGTERM)


def test_data_is_kept_in_a_directory_and_not_stranded_by_another_map(
    up: Callable[..., Running], tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    up(MAP.replace("count: 4", "count: 2"), "--data-dir", data).end(signal.SIGTERM)
    running = up(MAP, "--data-dir", data)  # there are no data yet
    with shardkit.connect(running.told["config"]) as kit:
        assert len(kit.component("unique").shards) == 4
        kit.key_sharded("unique")["key"].set("key", "kept")
    running.end(signal.SIGTERM)
    running = up(MAP, "--data-dir", data)
    with shardkit.connect(running.told["config"]) as kit:
        assert kit.key_sharded("unique")["key"].get("key") == b"kept"
    running.end(signal.SIGTERM)
    path = tmp_path / "bigger.yaml"
    path.write_text(MAP.replace("count: 4", "count: 8"))
    refused = subprocess.run(
        [*COMMAND, "up", str(path), "--free-ports", "--data-dir", data],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    [line] = [line for line in refused.stderr.splitlines() if "error: " in line]
    assert "going from 4 to 8 shards" in line
    assert line.endswith("start with another --data-dir, or with --no-push and push with --force")


@pytest.mark.parametrize("are_lost", [False, True])
def test_a_map_from_before_a_move_is_not_pushed(
    up: Callable[..., Running], tmp_path: Path, are_lost: bool
) -> None:
    data = str(tmp_path / "data")
    running = up(MAP, "--data-dir", data)
    with shardkit.connect(running.told["config"]) as kit:
        b = kit.component("unique").shards[3].address.rpartition("/")[0]
        config = redis.Redis.from_url(running.told["config"])
        assert start_move(config, ["unique:0"], b, hold=3 * PATIENCE).phase == "done"
        if are_lost:
            config.flushall()
        config.close()
    running.end(signal.SIGTERM)
    path = tmp_path / "map.yaml"
    command = [*COMMAND, "up", str(path), "--free-ports", "--data-dir", data]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "unique:0: a move or split has left the database that the map names" in refused.stderr
    assert "start with --no-push" in refused.stderr


def test_a_server_that_ends_by_itself_is_named(up: Callable[..., Running]) -> None:
    running = up(MAP)
    assert running.process.stderr is not None
    os.kill(running.pids[2], signal.SIGKILL)
    address = running.told["servers"][2]["address"]
    told = ""
    while "has ended" not in told:
        told = running.process.stderr.readline()
        assert told
    assert told.startswith(f"unique:1 ({address}) has ended; to restart it, ")
    for pid in running.pids[:2]:
        os.kill(pid, signal.SIGKILL)
    _, err = running.process.communicate(timeout=60)
    assert err.splitlines()[-1].startswith("shardkit: error: every server has ended; ")
    assert running.process.returncode == 1


def test_a_taken_port_is_one_line_and_nothing_runs(
    up: Callable[..., Running], tmp_path: Path
) -> None:
    running = up("components: {a: {entry: {port: 7001}}}")
    [server] = running.told["servers"]
    path = tmp_path / "taken.yaml"
    path.write_text(f"components: {{a: {{entry: {{port: {server['port']}}}}}}}")
    refused = subprocess.run(
        [*COMMAND, "up", str(path)], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 1
    assert not refused.stdout
    assert refused.stderr == (
        f"shardkit: error: a (port {server['port']}) cannot listen: port {server['port']} of "
        "127.0.0.1 is taken; stop what listens there, or use --free-ports\n"
    )
    running.end(signal.SIGTERM)


@pytest.mark.parametrize("secret", ["", SECRET])
def test_people_see_where_the_servers_are_and_how_to_connect(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(f"defaults: {{password: {secret}}}\n{MAP}" if secret else MAP)
    process = subprocess.Popen(
        [*COMMAND, "up", str(path), "--free-ports"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().rstrip("\n") for _ in range(7)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert lines[0].split() == ["server", "address", "shards", "pid"]
    assert lines[2].split()[2:5] == ["unique", "unique:0,2", lines[2].split()[4]]
    if secret:
        assert lines[5] == "To connect, write the map with the real ports: --write FILE"
    else:
        assert lines[5].startswith("export SHARDKIT_CONFIG=redis://127.0.0.1:")
    assert lines[6] == "Ctrl-C stops the servers."
    assert err.splitlines()[0].startswith("started 3 servers in ")
    assert err.splitlines()[-1] == "stopped 3 servers"
    assert process.returncode == 0
    assert not out
