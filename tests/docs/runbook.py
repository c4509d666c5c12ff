"""The runbook of docs/operations.md, typed literally on embedded servers.

The ``shell`` blocks below a heading are a task. Lines of ``shardkit`` run in this process, and a
comment is what the operator does by hand: `HANDS` says how, so a comment that is not known fails.
Host names stand for embedded servers; they are of an older Redis if this machine has one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from click.testing import CliRunner
from redis.exceptions import ResponseError

from shardkit.cli.app import app
from shardkit.local import LocalServer

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
ADMIN = "theAdministrators"
HOSTS = ("redis1", "redis2", "redis3")
REDIS = shutil.which("redis-server")


def tasks() -> dict[str, list[str]]:
    """Return the lines of each task of the runbook, by its heading."""
    found = {}
    text = PAGE.read_text(encoding="utf-8")
    for heading, body in re.findall(r"^### (\d+\. [^\n]+)\n(.*?)(?=^##)", text, re.M | re.S):
        blocks = re.findall(r"^```shell\n(.*?)^```", body, re.M | re.S)
        found[heading] = [line for block in blocks for line in block.splitlines() if line.strip()]
    return found


class RunbookFleet:
    """Servers, a config server and a map, in a directory that is the operator's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.password = "p1"
        self.timeout = 5
        self.masters = ["redis1", "redis2"]
        self.servers = {name: self.server(name, REDIS) for name in HOSTS}
        self.servers["standby"] = self.server("standby")
        self.config = LocalServer(name="config")
        self.dead: set[str] = set()
        self.output: list[str] = []

    def __enter__(self) -> RunbookFleet:
        for server in (self.config, *self.servers.values()):
            server.start()
        self.read_later_versions("standby")
        for name in ("configs", "backups"):
            (self.directory / name).mkdir(exist_ok=True)
        self.write_map()
        standby = self.map_text(["standby", "standby"], first=4)
        (self.directory / "configs" / "standby.yaml").write_text(standby)
        return self

    def __exit__(self, *error: object) -> None:
        for server in (self.config, *self.servers.values()):
            server.stop(0)

    def server(self, name: str, binary: str | None = None) -> LocalServer:
        users = {"admin": ADMIN, "app": self.password}
        return LocalServer(name=name, users=users, config={"appendonly": True}, binary=binary)

    @property
    def url(self) -> str:
        return f"redis://{self.config.address}"

    def map_text(self, masters: list[str], first: int = 0) -> str:
        """Return a map: each component has databases of its own on both masters."""
        ports = [self.servers[name].port for name in masters]

        def over(offset: int) -> str:
            places = [
                f"{{port: {port}, db: {offset + (first * n)}}}" for n, port in enumerate(ports)
            ]
            return f"[{', '.join(places)}]"

        return f"""
            defaults:
              host: 127.0.0.1
              username: app
              password: {self.password}
              socket_timeout: {self.timeout}
            components:
              unique: {{shards: {over(1)}}}
              work: {{shards: {over(2)}}}
              counts: {{shards: {over(3)}}}
              sessions: {{shards: {over(4)}}}
            """

    def write_map(self) -> None:
        path = self.directory / "configs" / "production.yaml"
        path.write_text(self.map_text(self.masters))

    def read_later_versions(self, name: str) -> None:
        """Have a Valkey read what a Redis of 7.4 or later sends."""
        with self.servers[name].client() as client, suppress(ResponseError):
            client.config_set("rdb-version-check", "relaxed")

    # ---- what is typed

    def type(self, line: str) -> None:
        """Do what a line says."""
        if line.startswith("# "):
            self.by_hand(line.removeprefix("# "))
            return
        words = shlex.split(line)
        environment = {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        assert words[0] == "shardkit", line
        for n, word in enumerate(words):
            name, _, port = word.partition(":")
            if port == "6379":
                words[n] = self.servers[name].address
        self.shardkit(*words[1:], code=None if self.dead else 0, **environment)

    def shardkit(self, *words: str, code: int | None = 0, **environment: str) -> str:
        """Run a command of ours; it must end with the exit code, or with 0 or 1 for None."""
        if words[:2] == ("config", "rollback"):  # EPOCH is what the history shows before the last
            with self.config.client() as client:
                words = (
                    *words[:2],
                    str(json.loads(client.lindex("config:history", 0) or b"")["previous"]),
                    *words[3:],
                )
        given = {"SHARDKIT_CONFIG": self.url, **environment}
        if REDIS and words[0] == "restore":  # which may start a server for what others have written
            given["SHARDKIT_SERVER"] = REDIS
        before = os.getcwd()
        os.chdir(self.directory)
        try:
            found = CliRunner().invoke(app, list(words), env=given)
        finally:
            os.chdir(before)
        expected = (0, 1) if code is None else (code,)
        assert found.exit_code in expected, f"{words}: {found.output}"
        self.output.append(found.output)
        return found.output

    # ---- what is done by hand

    def by_hand(self, what: str) -> None:
        for pattern, do in HANDS.items():
            if match := re.fullmatch(pattern, what):
                do(self, *match.groups())
                return
        raise AssertionError(f"nobody knows how to {what!r}")

    def new_password(self) -> None:
        self.password = "p2"
        self.write_map()
        for name in ("redis3", "standby"):  # which no entry names yet
            with self.servers[name].client() as client:
                client.execute_command("ACL", "SETUSER", "app", "resetpass", ">p2")
                client.config_rewrite()
        standby = self.map_text(["standby", "standby"], first=4)
        (self.directory / "configs" / "standby.yaml").write_text(standby)

    def kill(self, name: str) -> None:
        self.servers[name].kill()
        self.dead.add(name)

    def restart(self, name: str) -> None:
        self.dead.discard(name)
        self.servers[name].restart()

    def stop(self, name: str) -> None:
        self.servers[name].stop()

    def start(self, name: str) -> None:
        self.servers[name].stop(0)
        self.servers[name] = self.server(name, REDIS).start()

    def start_valkey(self, name: str) -> None:
        self.servers[name].stop(0)
        self.servers[name] = self.server(name).start()
        self.read_later_versions(name)

    def name_in_place(self, new: str, old: str) -> None:
        self.masters[self.masters.index(old)] = new
        self.write_map()

    def empty_config_server(self) -> None:
        port = self.config.port
        self.config.stop(0)
        self.config = LocalServer(name="config", port=port).start()

    def set_timeout(self, seconds: str) -> None:
        self.timeout = int(seconds)
        self.write_map()

    def await_unused(self, component: str) -> None:
        time.sleep(5.1)  # as long as `shardkit retire --quiet 5` wants it unused


HANDS: dict[str, Callable[..., None]] = {
    r"write the new password into configs/production\.yaml": RunbookFleet.new_password,
    r"(redis\d) dies": RunbookFleet.kill,
    r"restart (redis\d)": RunbookFleet.restart,
    r"stop (redis\d)": RunbookFleet.stop,
    r"start (redis\d), empty": RunbookFleet.start,
    r"start Valkey as (redis\d), empty": RunbookFleet.start_valkey,
    r"name (redis\d) in place of (redis\d) in configs/production\.yaml": (
        RunbookFleet.name_in_place
    ),
    r"start an empty config server at the old address": RunbookFleet.empty_config_server,
    r"set socket_timeout to (\d+) in configs/production\.yaml": RunbookFleet.set_timeout,
    r"wait until nobody uses (\w+)": RunbookFleet.await_unused,
}
