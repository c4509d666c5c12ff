"""Every step of docs/one-redis.md is done, in order, while an application writes."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from arranged import client_of
from click.testing import CliRunner

import shardkit
from shardkit.cli.app import app
from shardkit.local import LocalServer
from tests.docs.test_pages import run
from tests.examples.test_deployment import shows

PAGE = (Path(__file__).parents[2] / "docs" / "one-redis.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"^```(?P<kind>sh|python)\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```)?",
    re.DOTALL | re.MULTILINE,
)


class Application:
    """A thread that counts through a router, from the moment that the page has one."""

    def __init__(self) -> None:
        self.counts = {f"count:{n}": 0 for n in range(50)}
        self.failed: list[Exception] = []
        self._ending = Event()
        self._thread = Thread(target=self._count)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread.ident:
            self._thread.join()

    def _count(self) -> None:
        with shardkit.connect() as kit:
            router = kit.key_sharded("app")
            while not self._ending.wait(0.01):
                for key in self.counts:
                    try:
                        router.incr(key)
                        self.counts[key] += 1
                    except Exception as error:
                        self.failed.append(error)


def fill(server: LocalServer) -> None:
    with server.client() as client, client.pipeline(transaction=False) as pipe:
        for n in range(300):
            pipe.hset(f"user:{n}", mapping={"name": f"name {n}", "city": "Ayr"})
            pipe.set(f"page:{n}", f"page {n}", ex=3600)
        pipe.rpush("rq:queue:default", *range(10))
        pipe.execute()


def test_one_server_becomes_two_and_one_again_by_the_steps_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    names: dict[str, Any] = {}
    writing = Application()
    with LocalServer() as config, LocalServer() as redis1, LocalServer() as redis2:
        fill(redis1)
        hosts = {"config": config, "redis1": redis1, "redis2": redis2}

        def type_line(line: str) -> str:
            if line.startswith("export "):
                monkeypatch.setenv(*line.removeprefix("export ").split("=", 1))
                return ""
            more = ["--hold", "3"] if line.startswith(("shardkit split", "shardkit move r")) else []
            done = CliRunner().invoke(app, [*shlex.split(line)[1:], *more])
            assert done.exit_code == 0, (line, done.output)
            output = str(done.output)
            for name, server in hosts.items():
                output = output.replace(server.address, f"{name}:6379")
            return output

        try:
            for block in BLOCK.finditer(PAGE):
                code = block["code"]
                for name, server in hosts.items():
                    code = code.replace(f"{name}:6379", server.address)
                if block["kind"] == "python":
                    asyncio.run(run("one-redis.md", code, 0, names))
                    if "kit" in names and not writing.counts["count:0"]:
                        writing.start()
                    continue
                output = "".join(type_line(line) for line in code.splitlines())
                if block["shown"]:
                    # Depends on how often the application happens to write.
                    said = re.sub(r"\d+ keys? were written all the time\n", "", output)
                    assert shows(block["shown"], said), output
                if "shardkit split" in code:
                    assert kit_finds(names["app"])
                    assert len(names["kit"].topology.reread("app").shards) == 8
        finally:
            writing.stop()
        assert writing.failed == []
        assert names["kit"].client("jobs").llen("rq:queue:default") == 10
        assert kit_finds(names["app"])
        counted = {key: int(names["app"].get(key)) for key in writing.counts}
        assert counted == writing.counts
        assert min(counted.values()) > 0
        assert len(names["kit"].topology.reread("app").shards) == 0
        assert client_of(redis2).keys("user:*") == []
        names["kit"].close()


def kit_finds(router: Any) -> bool:
    """Whether every user is found, with its fields."""
    with router.pipeline() as pipe:
        for n in range(300):
            pipe.hget(f"user:{n}", "name")
        return bool(pipe.execute() == [f"name {n}".encode() for n in range(300)])
