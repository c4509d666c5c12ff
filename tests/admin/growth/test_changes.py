"""What changes in a fleet is recorded, and what must not overlap does not: for each command."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from arranged import client_of
from click.testing import CliRunner
from faces import drawn, eventually
from growth_helpers import FAST, PATIENT, Fleet, follow, kill_small_move, small, still_there
from moments import Killed
from redis.client import Pipeline

import shardkit
from shardkit.admin import backup, changes, delete_data, last_known, remove
from shardkit.admin.changes import (
    APART,
    COMMANDS,
    KINDS,
    Change,
    begin,
    open_changes,
    read_changes,
    require_open,
    taking_part,
)
from shardkit.admin.growth import (
    abort_move,
    apply_balance,
    journal,
    measure_balance,
    plan_balance,
    plan_move,
    resume_move,
    reverse_move,
    start_move,
    start_split,
)
from shardkit.cli.app import app
from shardkit.errors import ConfigError, GrowthError
from shardkit.local import LocalServer

backups: Any = import_module("shardkit.admin.backup")


def of(kind: str, *databases: str, **fields: Any) -> Change:
    return Change(kind=kind, name="users", databases=list(databases), **fields)


def test_a_change_ends_with_its_process(
    own_server: LocalServer, lower: Callable[..., None]
) -> None:
    lower(change_lease=0.5)
    with own_server.client() as config:
        with taking_part(config, of("retire", "a/1")):
            [at_first] = read_changes(config)
            assert eventually(lambda: read_changes(config)[0].until > at_first.until), "renewed"
        assert open_changes(config) == []
        config.hset(changes.CHANGES_KEY, at_first.id, changes.text_of(at_first))  # was killed
        assert eventually(lambda: open_changes(config) == [])
        old = replace(at_first, id="old", ended=1.0)
        config.hset(changes.CHANGES_KEY, "old", changes.text_of(old))
        begin(config, of("retire", "a/1"))
        assert "old" not in [each.id for each in read_changes(config)]


def test_a_stopped_process_does_not_get_its_change_back(
    own_server: LocalServer, lower: Callable[..., None]
) -> None:
    lower(change_lease=0.5)
    with own_server.client() as config, taking_part(config, of("restore", "a/1")) as stopped:
        ended = replace(stopped, id="of the other", kind="split", until=0.0)
        config.delete(changes.CHANGES_KEY)
        begin(config, ended)
        time.sleep(0.5)  # the lease ends
        with pytest.raises(GrowthError, match="users: this process was stopped"):
            require_open(config, stopped)
        assert [each.id for each in open_changes(config)] == ["of the other"]


def test_a_balance_and_its_own_moves_overlap(fleet: Fleet) -> None:
    small(fleet)
    plan = plan_balance(fleet.config, measure_balance(fleet.config, to=[fleet.name(1)]))
    others = of("attach", f"{fleet.name(0)}/*")
    seen = []

    def look(step: str) -> None:
        seen.append([(each.kind, bool(each.within)) for each in open_changes(fleet.config)])
        with pytest.raises(GrowthError, match=r": a balance of .* uses the same databases"):
            begin(fleet.config, of("split", f"{fleet.name(1)}/1"))

    assert [each.phase for each in apply_balance(fleet.config, plan, progress=look)] == ["done"]
    assert [("balance", False), ("move", True)] in seen
    begin(fleet.config, others)


def test_retire_keeps_what_a_split_fills(fleet: Fleet) -> None:
    old = {"shards": [fleet.at(1, db=0), fleet.at(1, db=1)]}
    fleet.describe({"users": {"shards": [fleet.at(0, db=1), fleet.at(0, db=2)]}, "old": old})
    small(fleet)
    remove(fleet.config, last_known(fleet.config, "old"))
    refused = []

    def retire(step: str) -> None:
        if step == "holding writers" and not refused:
            with pytest.raises(GrowthError, match="old: a split of users") as raised:
                delete_data(last_known(fleet.config, "old"), quiet=0)
            refused.append(raised)

    start_split(
        fleet.config, "users", shards=4, over=[fleet.name(1)], hold=PATIENT, progress=retire
    )
    assert refused
    assert still_there(fleet)


def test_what_an_interrupted_move_needs_is_not_retired(fleet: Fleet) -> None:
    kill_small_move(fleet, "push")
    with pytest.raises(GrowthError, match=r"users: a move of users:1 \(fenced, .*resume users:1"):
        remove(fleet.config, last_known(fleet.config, "users"))
    assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert still_there(fleet)


@pytest.mark.parametrize(
    ("moment", "of"),
    [("watch", "config:fence"), ("execute_command", b"k")],
    ids=["watch", "unlink"],
)
def test_retire_that_was_stopped_deletes_nothing_of_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, moment: str, of: Any
) -> None:
    """It wakes when a move has filled the database, or is about to."""
    old = {"shards": [fleet.at(1, db=0), fleet.at(1, db=2)]}
    fleet.describe({"users": {"shards": [fleet.at(0, db=1), fleet.at(0, db=2)]}, "old": old})
    small(fleet)
    remove(fleet.config, last_known(fleet.config, "old"))
    client_of(fleet.servers[1]).set("k", 1)
    go_on = getattr(Pipeline, moment)

    def asleep(pipe: Any, *args: Any, **options: Any) -> Any:
        if args[-1] == of:
            monkeypatch.setattr(Pipeline, moment, go_on)
            for each in open_changes(fleet.config):
                ended = changes.text_of(replace(each, until=1.0))
                fleet.config.hset(changes.CHANGES_KEY, each.id, ended)
            with fleet.servers[1].client() as client:
                client.delete("k")
                client.set("config:fence", "{}")
            fleet.move_shard()
        return go_on(pipe, *args, **options)

    monkeypatch.setattr(Pipeline, moment, asleep)
    with pytest.raises(GrowthError, match=r"may be at work|nothing more was deleted"):
        delete_data(last_known(fleet.config, "old"), quiet=0)
    assert still_there(fleet)


@pytest.fixture
def cut_after_a_move(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have a shard move while a backup connects to the servers."""
    small(fleet)
    moved: list[Any] = []

    def feeds(*args: Any, real: Any = backups._feeds) -> Any:
        opened = list(real(*args))
        moved.extend([] if moved else [fleet.move_shard()])
        return opened

    monkeypatch.setattr(backups, "_feeds", feeds)
    return moved


def test_a_backup_begins_again_if_entries_change(
    fleet: Fleet, cut_after_a_move: list[Any], tmp_path: Path
) -> None:
    users = last_known(fleet.config, "users").component
    keys = client_of(fleet.servers[0], db=2).dbsize() - 1  # without the witness
    manifest = backup([users], tmp_path / "backup", config=fleet.config)
    assert cut_after_a_move[0].phase == "done"
    [there] = [each for each in manifest.servers if "users:1" in each.shards]
    assert there.server == fleet.name(1)
    assert there.keys["2"] >= keys


def test_a_backup_is_refused_if_entries_lead_to_what_a_move_has_left(
    fleet: Fleet, tmp_path: Path
) -> None:
    small(fleet)
    fleet.move_shard()
    fleet.config.flushall()  # and what there was before the move is restored
    shards = [fleet.at(0, db=db) for db in (1, 2)]
    fleet.describe({"users": {"shards": shards}}, force=["users"], above=50)
    users = last_known(fleet.config, "users").component
    said = rf"users:1 .{fleet.name(0)}/2. is closed by a move to {fleet.name(1)} .*shardkit changes"
    with pytest.raises(ConfigError, match=said):
        backup([users], tmp_path / "backup", config=fleet.config)


def test_a_backup_is_refused_while_entries_do_not_tell_where_the_data_is(
    fleet: Fleet, lower: Callable[..., None], tmp_path: Path
) -> None:
    small(fleet)
    lower(backup_pause=0.01)
    users = last_known(fleet.config, "users").component
    with taking_part(fleet.config, of("failover", "a/*")):
        said = "the fleet changed during each of 20 cuts .failover of users is at work.; try again"
        with pytest.raises(ConfigError, match=said):
            backup([users], tmp_path / "backup", config=fleet.config)
    assert not (tmp_path / "backup").exists()


def test_a_fence_that_could_be_evicted_stops_a_move(fleet: Fleet) -> None:
    small(fleet)
    for server in fleet.servers[:2]:
        with server.client() as client:
            client.config_set("maxmemory", 100_000_000)
            client.config_set("maxmemory-policy", "allkeys-lru")
    said = f"{fleet.name(0)} evicts keys .allkeys-lru., so it could lose config:fence.*volatile one"
    with pytest.raises(GrowthError, match=said):
        fleet.move_shard()
    for what in (["users:1"], fleet.name(0)):
        notes = plan_move(fleet.config, what, fleet.name(1)).notes
        assert any(f"{fleet.name(1)} evicts keys (allkeys-lru)" in note for note in notes)
    client_of(fleet.servers[0]).config_set("maxmemory-policy", "volatile-lru")
    assert fleet.move_shard().phase == "done"


def test_the_abort_of_a_reversal_leaves_the_move(fleet: Fleet) -> None:
    small(fleet)

    def kill(step: str) -> None:
        if step == "comparing":
            raise Killed

    done = start_split(fleet.config, "users", shards=4, over=[fleet.name(1)], hold=PATIENT)
    with pytest.raises(Killed):
        reverse_move(fleet.config, "users", progress=kill)
    aborted = abort_move(fleet.config, "users")
    assert (aborted.undoes, aborted.phase) == (done.id, "aborted")
    assert reverse_move(fleet.config, "users", hold=PATIENT).phase == "done"
    assert still_there(fleet)
    states = [(each.kind, each.phase, each.undoes) for each in read_changes(fleet.config)]
    assert states == [
        ("split", "done", ""),
        ("split", "aborted", done.id),
        ("split", "done", done.id),
    ]


def test_what_a_killed_process_held_ends_though_the_clock_is_set_back(
    own_server: LocalServer,
) -> None:
    with own_server.client() as config:
        hour = time.time() + 3600
        killed = Change(kind="retire", name="a", databases=["*/*"], until=hour)
        config.hset(changes.CHANGES_KEY, killed.id, changes.text_of(killed))
        begin(config, Change(kind="restore", name="b", databases=["*/*"]))
        config.set("config:growth:lease", "host/1/x", exat=round(hour))
        with pytest.raises(GrowthError, match="its lease ends within 10 s"), journal.lease(config):
            pass
        assert config.pttl("config:growth:lease") <= 10_000


@pytest.mark.parametrize(
    "damage",
    [
        *("no JSON", "[]", {"kind": 1}, {"id": []}, {"databases": ["a:1/2", 3]}, {"name": None}),
        *({"started": "x"}, {"ended": None}, {"until": [1]}, {"within": {}}, {"databases": "x"}),
    ],
    ids=str,
)
def test_a_damaged_record_stops_only_what_must_not_overlap_a_move(
    own_server: LocalServer, damage: Any
) -> None:
    with own_server.client() as config:
        good = json.loads(changes.text_of(Change(kind="retire", name="a", databases=["a:1/2"])))
        text = damage if isinstance(damage, str) else json.dumps({**good, **damage})
        config.hset(changes.CHANGES_KEY, "x", text)
        said = r"^b: config:changes \w+ cannot be read, so it may be .*; check it. If nothing is b"
        with pytest.raises(GrowthError, match=said):
            begin(config, Change(kind="retire", name="b", databases=["*/*", "odd"]))
        with taking_part(config, Change(kind="failover", name="b", databases=["*/*"])) as change:
            assert read_changes(config) == [change]


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
    return Change(kind=kind, name="others", until=time.time() + changes.LEASE, **common)


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
    stored["owner"] = "elsewhere/1"
    wrong = []
    for second in random.Random(first).sample(sorted(COMMANDS), drawn(4, len(COMMANDS))):
        fleet.config.delete(CHANGES_KEY)
        fleet.config.hset(CHANGES_KEY, mapping=before)
        alone, said = begins(fleet, words, second)
        assert alone is not None, said
        fleet.config.hdel(CHANGES_KEY, alone.id)
        stored["until"] = opened.until and time.time() + changes.LEASE
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
    databases = [f"{client_of(fleet.servers[3]).info('server')['run_id']}/3"]
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


def test_the_page_says_of_every_command_that_writes_without_a_record_why() -> None:
    without = [each for names, why in rows("command without a record | why") for each in names]
    assert sorted([*COMMANDS, *without, *READS]) == sorted(commands(app))
