"""Every command of the CLI that changes the fleet, beside each kind of open change."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from faces import drawn
from growth_helpers import FAST, PATIENT, Fleet, follow

import shardkit
from shardkit.admin import changes
from shardkit.admin.changes import APART, COMMANDS, KINDS, WITHOUT, Change
from shardkit.admin.growth import journal, start_move
from shardkit.cli.app import app
from shardkit.local import LocalServer

CHANGES_KEY = "config:changes"

READS = {
    *("advise", "changes list"),
    *("check", "clients", "completion", "config diff", "config history", "config pull"),
    *("config show", "config validate", "dashboard", "demo cached", "demo celery"),
    *("demo logs", "files status", "geo find"),
    *("geo info", "init", "keys", "locate", "locks show", "logs", "move status"),
    *("persistence estimate", "persistence show", "plan", "queues dead", "queues show"),
    *("replicas tree", "search export", "search info", "search query", "search verify"),
    *("status", "top", "url"),
}


class Began(BaseException):
    """A command has recorded its change."""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, dict[str, list[str]]]]:
    """A fleet on which every command has something to do; and the commands."""
    with ExitStack() as stack:
        config, *servers = (
            stack.enter_context(LocalServer(name=name, config=FAST))
            for name in ("config", "a", "b", "c", "d")
        )
        for server in (config, *servers):
            with server.client() as client:
                client.acl_setuser("app", True, passwords=["+old"], keys="*", commands=["+@all"])
                client.execute_command("ACL", "SETUSER", "app", "&*")
        fleet = Fleet(config, servers)
        stack.callback(fleet.config.close)
        login = {"username": "app", "password": "old"}
        follow(servers[2], servers[0])
        entries = [fleet.at(0, db=db, replicas=[fleet.at(2)], **login) for db in (1, 2)]
        moved, old = fleet.at(0, db=3, **login), fleet.at(3, db=4, **login)
        others = {"moved": {"entry": moved}, "old": {"entry": old}}
        fleet.describe({"users": {"shards": entries}, **others})
        with shardkit.connect(fleet.url) as kit:
            kit.set("planned", component="users", total=64, part_size=16, members=int).sadd(
                *range(500)
            )
            kit.set("ids", component="users", members=int, parts=4, part_size=64).sadd(7)
            number = kit.component("users").shard_of("ids:meta").number
            meta = kit.client("users", number)
            meta.hdel("ids:meta", "part_size")
            meta.hset("ids:meta", "shard_size", 64)
            for n in range(300):
                key = f"user:{n}:name"
                kit.key_sharded("users")[key].set(key, f"name {n % 7}")
        start_move(fleet.config, ["moved"], fleet.name(3), hold=PATIENT)
        folder = tmp_path_factory.mktemp("busy")
        plan, backup, where = folder / "plan", str(folder / "backup"), folder / "map.json"
        at = f"{fleet.name(0)}/1"
        fleet.run("advise", "--on", f"redis://app:old@{at}", "--output", str(plan))
        fleet.run("backup", backup, "moved")
        target = {"moved": {"entry": fleet.at(1, db=5)}}
        where.write_text(
            json.dumps({"config_server": {"port": config.port}, "components": target}),
            encoding="utf-8",
        )
        fleet.run("retire", "old")
        yield (
            fleet,
            {
                "apply": [str(where), "--yes"],
                "move server": [fleet.name(0), "--to", fleet.name(1)],
                "move shards": ["users:1", "--to", fleet.name(1)],
                "move reverse": ["moved"],
                "split": ["users", "--shards", "4", "--over", fleet.name(1)],
                "balance": ["users", "--to", fleet.name(1), "--move"],
                "adopt": ["users", "--on", f"redis://app:old@{at}"],
                "convert": [str(plan), "--component", "users", "--offline"],
                "replan": ["users", "--yes"],
                "upgrade": ["users", "--yes"],
                "doctor": ["users", "--repack"],
                "retire": ["old", "--delete-data", "--quiet", "0"],
                "failover": ["users:0"],
                "replicas attach": [fleet.name(2), "--to", fleet.name(0)],
                "replicas detach": [fleet.name(2)],
                "backup": [str(folder / "other")],
                "restore": [backup, str(where)],
                "rotate": ["app"],
                "persistence apply": ["everysec", "users"],
            },
        )


def open_change(kind: str) -> Change:
    common: dict[str, Any] = {"databases": ["*/*"], "owner": "elsewhere/1", "started": 1.0}
    if kind in ("move", "split"):
        place = ["10.9.9.9:1/1"]
        return journal.Move(
            *("others:0", "keys", "10.9.9.9:1", "10.9.9.9:2", ["others:0"], place, place),
            placements=["crc32", "crc32"] if kind == "split" else [],
            kind=kind,
            **common,
        )
    return Change(kind=kind, name="others", until=1e12, **common)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are killed as soon as they have recorded their change."""
    monkeypatch.setenv("SHARDKIT_NEW_PASSWORD", "the-new-one")

    def begin(*args: Any, real: Any = changes.begin, **options: Any) -> None:
        real(*args, **options)
        raise Began

    monkeypatch.setattr(changes, "begin", begin)


@pytest.mark.usefixtures("begun")
@pytest.mark.long(5)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_what_the_table_says(
    busy: tuple[Fleet, dict[str, list[str]]], command: str
) -> None:
    fleet, words = busy
    before = fleet.config.hgetall(CHANGES_KEY)
    refused, tried = set(), random.Random(command).sample(sorted(KINDS), drawn(4, len(KINDS)))
    for kind in tried:
        other = open_change(kind)
        fleet.config.hset(CHANGES_KEY, other.id, changes.text_of(other))
        try:
            at = [] if command == "restore" else ["--config", fleet.url]  # its map names it
            done = CliRunner().invoke(app, [*command.split(), *words[command], *at])
            assert done.exit_code == 1, done.output
            article = "an" if kind[0] in "au" else "a"
            refusal = rf": {article} {kind} of others.*\(.*started .* by elsewhere/1\)"
            assert re.search(refusal, done.output), done.output
            refused.add(kind)
        except Began:
            pass
        finally:
            fleet.config.delete(CHANGES_KEY, "config:growth:lease")
            fleet.config.hset(CHANGES_KEY, mapping=before)
    assert refused == APART[COMMANDS[command]] & set(tried)


def begins(fleet: Fleet, words: dict[str, list[str]], command: str) -> tuple[Change | None, str]:
    """Have a command record its change, and be killed then; return that, and what it says."""
    at = [] if command == "restore" else ["--config", fleet.url]
    known = {each.id for each in changes.read_changes(fleet.config)}
    try:
        done = CliRunner().invoke(app, [*command.split(), *words[command], *at])
    except Began:
        fleet.config.delete("config:growth:lease")
        [own] = [each for each in changes.read_changes(fleet.config) if each.id not in known]
        return own, ""
    return None, done.output


@pytest.mark.usefixtures("begun")
@pytest.mark.long(8)
@pytest.mark.parametrize("first", COMMANDS)
def test_pairs_of_commands_that_are_at_work_follow_the_table(
    busy: tuple[Fleet, dict[str, list[str]]], first: str
) -> None:
    fleet, words = busy
    before = fleet.config.hgetall(CHANGES_KEY)
    [opened, _] = begins(fleet, words, first)
    assert opened is not None
    stored = json.loads(fleet.config.hget(CHANGES_KEY, opened.id))  # type: ignore[arg-type]
    stored |= {"owner": "elsewhere/1", "until": 1e12 if opened.until else 0.0}
    wrong = []
    for second in random.Random(first).sample(sorted(COMMANDS), drawn(4, len(COMMANDS))):
        fleet.config.delete(CHANGES_KEY)
        fleet.config.hset(CHANGES_KEY, mapping=before)
        alone, said = begins(fleet, words, second)
        assert alone is not None, said
        fleet.config.hdel(CHANGES_KEY, alone.id)
        fleet.config.hset(CHANGES_KEY, opened.id, json.dumps(stored))
        beside, said = begins(fleet, words, second)
        is_apart = alone.kind in APART[opened.kind] and alone.touches(opened)
        if is_apart != (beside is None and opened.name in said):
            wrong.append((second, is_apart, said))
    fleet.config.delete(CHANGES_KEY)
    fleet.config.hset(CHANGES_KEY, mapping=before)
    assert wrong == []


def test_a_conversion_waits_for_a_move_of_the_keys_that_it_reads(
    busy: tuple[Fleet, dict[str, list[str]]],
) -> None:
    fleet, words = busy
    with fleet.servers[3].client() as client:
        databases = [f"{client.info('server')['run_id']}/3"]
    other = replace(open_change("move"), databases=databases)
    fleet.config.hset(CHANGES_KEY, other.id, changes.text_of(other))
    done = fleet.run("convert", *words["convert"], "--from", "moved", code=1)
    fleet.config.hdel(CHANGES_KEY, other.id)
    assert "a move of others" in done.output


def commands(group: click.Group, *before: str) -> Iterator[str]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from commands(found, *before, name)
        else:
            yield " ".join((*before, name))


def test_every_command_records_a_change_or_says_why_it_does_not() -> None:
    assert sorted([*COMMANDS, *WITHOUT, *READS]) == sorted(commands(app))


def rows(heading: str) -> Iterable[tuple[list[str], str]]:
    page = Path("docs/growth.md").read_text(encoding="utf-8")
    table = page.partition(f"| {heading} |\n|---|---|\n")[2].partition("\n\n")[0]
    for row in table.splitlines():
        names, said = row.removeprefix("| ").removesuffix(" |").split(" | ")
        yield re.findall("`(.*?)`", names), said


def test_the_page_shows_which_changes_must_not_overlap() -> None:
    shown = {
        command: set(re.findall("`(.*?)`", apart))
        for names, apart in rows("command | must not overlap")
        for command in names
    }
    assert shown == {command: set(APART[kind]) for command, kind in COMMANDS.items()}
    why = {
        command: reason
        for names, reason in rows("command without a record | why")
        for command in names
    }
    assert why == WITHOUT
