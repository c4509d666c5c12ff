"""The chat page's server: two users over WebSockets, and a server that is killed and comes back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers

client = pytest.importorskip("websockets.sync.client")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]
MAP = """
components: {timelines: {shards: {count: 4, over: [{port: 7001}, {port: 7002}]}}}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def serving(port: int, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A chat server that is ready."""
    command = [sys.executable, "-m", "uvicorn", "examples.chat_page:app", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning"], cwd=ROOT, env=environment)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def test_users_talk_and_a_server_that_is_killed_and_comes_back_loses_nothing(
    tmp_path: Path,
) -> None:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        path = tmp_path / "map.yaml"
        components = {
            name: {"shards": [dict(entry.fields) for entry in component.shards]}
            for name, component in servers.shard_map.components.items()
        }
        path.write_text(json.dumps({"components": components}))
        environment = {**os.environ, "SHARDKIT_CONFIG": str(path)}
        port = free_port()

        def connect(user: str) -> Any:
            return client.connect(f"ws://127.0.0.1:{port}/ws/lunch/{user}", open_timeout=30)

        def receive(connection: Any, seen: set[int]) -> str:
            """The next message that was not seen yet, as the page shows it."""
            while True:
                message = json.loads(connection.recv(timeout=30))
                if message["id"] not in seen:
                    seen.add(message["id"])
                    return f"{message['sender']}: {message['body']}"

        seen: dict[str, set[int]] = {"anna": set(), "ben": set()}
        with serving(port, environment) as server, connect("anna") as anna:
            anna.send("first")
            assert receive(anna, seen["anna"]) == "anna: first"
            with connect("ben") as ben:
                eventually(lambda: _joined(servers, "ben"))
                anna.send("second")
                for user, connection in (("anna", anna), ("ben", ben)):
                    assert receive(connection, seen[user]) == "anna: second"
            anna.send("third, while ben is away")
            assert receive(anna, seen["anna"]) == "anna: third, while ben is away"
            server.kill()
            server.wait()
        with serving(port, environment), connect("ben") as ben, connect("anna") as anna:
            assert receive(ben, seen["ben"]) == "anna: third, while ben is away"
            ben.send("back")
            assert receive(anna, seen["anna"]) == "ben: back"
            assert receive(ben, seen["ben"]) == "ben: back"


def _joined(servers: LocalServers, user: str) -> bool:
    with shardkit.connect(servers.shard_map) as kit:
        return "lunch" in kit.chats(component="timelines").unread(user)


def eventually(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
