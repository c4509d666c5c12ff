"""Each command that takes part is refused beside each kind that the table names, and no other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from growth_helpers import Fleet, filled, follow, there

import shardkit
from shardkit.admin.changes import (
    APART,
    CHANGES_KEY,
    KINDS,
    LEASE,
    RESTLESS,
    now_of,
    read_changes,
    text_of,
)
from shardkit.admin.growth.journal import KEYS, Move
from shardkit.cli.app import app

# One command of each kind. {b} and {c} are servers, {tmp} is a directory.
COMMANDS = {
    "move": "move shards users:1 --to {b} --hold 3",
    "split": "split users --shards 3 --over {b} --hold 3",
    "retire": "retire old --delete-data --quiet 0",
    "restore": "restore {tmp}/monday {tmp}/map.yaml",
    "convert": "convert {tmp}/plan.json --component users --on {a}/5 --offline",
    "replan": "replan users ids --total 1000 --yes",
    "attach": "replicas attach {b} --to users:0",
    "detach": "replicas detach {c} --force",
    "rotate": "rotate app --wait 0 --ignore-others",
    "persistence": "persistence apply everysec users",
    "failover": "failover users:0 --hold 3",
    "backup": "backup {tmp}/tuesday users",
}


class Arranged:
    """A fleet in which all of these commands can be run."""

    def __init__(self, fleet: Fleet, work: Path) -> None:
        self.fleet = fleet
        follow(fleet.servers[2], fleet.servers[0])
        users = [fleet.at(0, db=db, replicas=[fleet.at(2)]) for db in (1, 2)]
        old = {"old": {"shards": [fleet.at(0, db=7)]}}
        locked = {"locked": {"entry": fleet.at(0, db=9, username="app", password="p")}}
        for server in fleet.servers[0], fleet.servers[2]:
            with server.client() as client:
                client.execute_command("ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all")
        fleet.describe({"users": {"shards": users}, **old, **locked})
        self.kept = filled(fleet)
        with shardkit.connect(fleet.url) as kit:
            kit.set("ids", component="users", total=64, part_size=16, members=int).sadd(*range(99))
        with fleet.servers[0].client(db=5) as client:
            client.mset({f"user:{n}:name": f"name {n}" for n in range(200)})
        self.names = {each: fleet.name(n) for n, each in enumerate("abc")} | {"tmp": str(work)}
        shards = [fleet.at(1, db=db) for db in (1, 2)]
        document = {
            "config_server": {"url": fleet.url},
            "components": {"users": {"shards": shards}},
        }
        (work / "map.yaml").write_text(json.dumps(document))
        self.run("backup {tmp}/monday users")
        self.run("advise --on {a}/5 --output {tmp}/plan.json")
        self.run("retire old")
        fleet.config.delete(CHANGES_KEY)

    def run(self, command: str) -> Result:
        words = command.format_map(self.names).split()
        environment = {"SHARDKIT_CONFIG": self.fleet.url, "SHARDKIT_NEW_PASSWORD": "another one"}
        return CliRunner(env={**os.environ, **environment}).invoke(app, words)

    def beside(self, *kinds: str) -> Any:
        """Have changes of these kinds be open, of all databases."""
        self.fleet.config.delete(CHANGES_KEY)
        now = now_of(self.fleet.config)
        for kind in kinds:
            change = Move("theirs", KEYS, "a:1", "b:1", ["theirs:1"], kind=kind, started=now)
            change.databases, change.until = ["*/*"], now + 10 * LEASE
            self.fleet.config.hset(CHANGES_KEY, change.id, text_of(change))


@pytest.fixture
def arranged(fleet: Fleet, tmp_path: Path) -> Arranged:
    return Arranged(fleet, tmp_path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_commands_do_not_overlap_with_what_the_table_names(arranged: Arranged, kind: str) -> None:
    for other in sorted(APART[kind]):
        arranged.beside(other)
        refused = arranged.run(COMMANDS[kind])
        assert refused.exit_code == 1, (other, refused.output)
        assert f" {other} of theirs (" in refused.output, refused.output
        assert there(arranged.fleet) == arranged.kept
    waits = RESTLESS if kind == "backup" else ()
    beside = [each for each in KINDS if each not in {*APART[kind], *waits}]
    arranged.beside(*beside)
    done = arranged.run(COMMANDS[kind])
    assert "uses the same databases" not in done.output
    assert done.exit_code == 0, done.output
    recorded = [each.kind for each in read_changes(arranged.fleet.config)]
    assert recorded.count(kind) == 1 + (kind in beside)
    assert there(arranged.fleet) == arranged.kept
