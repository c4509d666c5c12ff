"""The commands of docs/growth.md, as they stand there, on real servers."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from growth_helpers import Fleet, follow

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import reverse_move
from shardkit.cli.app import app
from shardkit.local import LocalServer

PAGE = Path(__file__).parents[3] / "docs" / "growth.md"


def test_the_page_shows_what_happens(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDKIT_CONFIG", fleet.url)
    fleet.push(0)
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users").mset({f"k{n}": n for n in range(20)})
    text = PAGE.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced if not language]
    lines = [line for block in blocks for line in block.splitlines()]
    lines = [line for line in lines if "shardkit balance" not in line]  # see test_balance
    assert len(lines) == 25
    new = LocalServer().start()  # the replica that is attached
    for line in lines:
        if line == "shardkit failover 127.0.0.1:7001":  # a master of that address, with a replica
            with fleet.servers[2].client() as client:
                client.flushall()  # after the shard was there
            follow(fleet.servers[2], fleet.servers[0])
            fleet.push(0, (2,))
        words = line
        for port, address in enumerate((*map(fleet.name, (1, 2)), new.address), start=7011):
            words = words.replace(f"127.0.0.1:{port}", address)
        words = words.replace("127.0.0.1:7001", fleet.name(0))
        done = CliRunner().invoke(app, shlex.split(words)[1:], standalone_mode=False)
        if line.startswith("shardkit move abort"):  # it is done already
            assert "nothing to abort is left" in str(done.exception)
        else:
            assert done.exception is None, (line, done.output, done.exception)
            assert not done.return_value, (line, done.output)
    new.stop(0)
    assert fleet.masters() == [fleet.name(2)] * 2
    with shardkit.connect(fleet.url) as kit:
        found = kit.key_sharded("users").mget([f"k{n}" for n in range(20)])
    assert found == [b"%d" % n for n in range(20)]


def test_the_page_takes_4_shards_to_64_on_16_servers(own_server: LocalServer) -> None:
    [block] = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    where = f"redis://127.0.0.1:{own_server.port}"
    with ExitStack() as stack:
        servers = [stack.enter_context(LocalServer()) for _ in range(16)]
        entries = [{"host": "127.0.0.1", "port": servers[n].port, "db": 1} for n in range(4)]
        text = json.dumps({"components": {"users": {"shards": entries}}})
        with own_server.client() as config:
            push(config, ShardMap.parse(text))
            with shardkit.connect(where) as kit:
                router = kit.key_sharded("users")
                expected = {f"k{n}": b"%d" % n for n in range(500)}
                router.mset({key: int(value) for key, value in expected.items()})
                for line in block.splitlines():
                    words = line.replace(
                        "10.0.0.{1..16}:6379", ",".join(server.address for server in servers)
                    )
                    arguments = [*shlex.split(words)[1:], "--config", where]
                    done = CliRunner().invoke(app, arguments)
                    assert done.exit_code == 0, done.output
                users = kit.topology.reread("users")
                assert len({entry.address for entry in users.shards}) == len(users.shards) == 64
                assert len({entry.fields["port"] for entry in users.shards}) == 16
                assert router.mget(list(expected)) == list(expected.values())
                back = reverse_move(config, "users", hold=3)
                assert back.certificate is not None
                assert back.certificate["same"]
                assert len(kit.topology.reread("users").shards) == 4
                assert router.mget(list(expected)) == list(expected.values())
