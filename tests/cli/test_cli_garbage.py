"""Commands of which a server answers one question with garbage: a clear error line, or success.

``up`` is not among them: it asks only servers that it has started itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from faces import drawn
from relays import Relay

from shardkit import ShardMap, connect
from shardkit.admin import push
from shardkit.cli.app import app
from shardkit.local import LocalServer

GARBAGE = (
    *(
        b"$-1\r\n",
        b":7\r\n",
        b"*0\r\n",
        b"*1\r\n*1\r\n*0\r\n",
        b"*2\r\n:1\r\n:-1\r\n",
        b"+FINE\r\n",
    ),
    *(b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", b"$2\r\n\xff\xfe\r\n", b"-WHAT is this\r\n"),
)


def run(*words: Any) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


class Asked:
    """A config server with data, and a second server, both behind relays."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        servers = [stack.enter_context(LocalServer()) for _ in range(2)]
        self.relay, self.other = (
            stack.enter_context(closing(Relay(server.port))) for server in servers
        )
        self.second: redis.Redis = stack.enter_context(servers[1].client())
        self.folder, config = folder, stack.enter_context(servers[0].client())
        path = self.map("map.yaml", self.relay, self.relay)
        push(config, ShardMap.load(path))
        with connect(f"redis://127.0.0.1:{servers[0].port}") as kit:
            names = {f"user:{n}:name": f"name {n}" for n in range(100)}
            kit.key_sharded("one").mset(names)
            kit.hash("h", component="one", total=1000).hset(mapping=dict.fromkeys(range(50), "x"))
            kit.logs(component="metrics").record("shop", "hello")
        (folder / "text.txt").write_text("hello world")
        self.at = ("-c", f"redis://127.0.0.1:{self.relay.port}")
        run("search", "index", folder / "text.txt", *self.at)
        run("backup", folder / "backup", *self.at)
        run("advise", "one", "--match", "user:*:name", "--output", folder / "names.json", *self.at)

    def map(self, name: str, one: Relay, others: Relay) -> Path:
        """Write a map whose component "one" is behind one relay, the others behind another."""
        ports = {"one": one.port, "search": others.port, "metrics": others.port}
        rows = [
            f"  {component}: {{entry: {{port: {port}, db: {number}}}}}"
            for number, (component, port) in enumerate(ports.items(), 1)
        ]
        path = self.folder / name
        path.write_text("\n".join(["components:", *rows]))
        return path


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with ExitStack() as stack:
        yield Asked(stack, tmp_path_factory.mktemp("asked"))


COMMANDS = {  # with how many replies come first; {o}: the second server is asked
    "restore {backup} {target}": 30,
    "split one --shards 2 --over {o} --dry-run {at}": 30,
    "apply {grown} --plan {at}": 30,
    "convert {names} --component one --offline --share 1 {at}": 60,
    "adopt one --on {r}/1": 3,
    "replan one --dry-run --total 100000 {at}": 25,
    "search info {at}": 11,
    "search query hello {at}": 16,
    "search verify {at}": 48,
    "search rebuild {at}": 60,
    "search export {out} {at}": 19,
    "search index {text} {at}": 7,
    "search remove nothing {at}": 8,
    "logs shop {at}": 7,
    "advise one --sample 20 --families 1 {at}": 60,
    "top --json {at}": 40,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_that_a_reply_is_garbage(asked: Asked, command: str) -> None:
    folder, random, wrong = asked.folder, Random(command), []
    words = command.format(
        at=" ".join(asked.at),
        backup=folder / "backup",
        target=asked.map("target.yaml", asked.other, asked.other),
        grown=asked.map("grown.yaml", asked.other, asked.relay),
        names=folder / "names.json",
        text=folder / "text.txt",
        out=folder / "out.jsonl",
        o=f"127.0.0.1:{asked.other.port}",
        r=f"127.0.0.1:{asked.relay.port}",
    ).split()
    relay = asked.other if "{target}" in command else asked.relay
    for _ in range(drawn(1, 40)):
        asked.second.flushall()
        at, reply = random.randrange(COMMANDS[command]), random.choice(GARBAGE)
        relay.count, relay.nth = 0, {at: reply}
        result = run(*words)
        relay.nth = {}
        said = result.output if result.exit_code else "nothing, as it succeeded"
        if result.exit_code not in (0, 1, 2) or "should not happen" in said or not said.strip():
            wrong.append((at, reply, result.exit_code, result.output))
    assert wrong == []
