"""What is wrong in a fleet, said alike by all commands; and components that nobody uses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
import redis
from arranged import client_of, map_of, paused
from click.testing import CliRunner

import shardkit
from shardkit import Entry, ShardMap, admin
from shardkit.admin import (
    CheckFinding,
    CheckReport,
    Retirement,
    biggest_keys,
    check_structures,
    delete_data,
    execute,
    last_known,
    push,
    remove,
)
from shardkit.admin.changes import text_of
from shardkit.admin.growth import Move, start_move
from shardkit.admin.growth.gate import fence_value
from shardkit.cli.app import app
from shardkit.errors import ConfigError
from shardkit.local import LocalCluster, LocalServer
from shardkit.network import survey as module
from shardkit.network.rules import judge
from shardkit.network.server_queries import greeting_of
from shardkit.network.survey import ServerFacts, SurveyedEntry, Target, survey, targets_of
from shardkit.operations.commands import Shard


@pytest.fixture(scope="module")
def running() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
def server(running: LocalServer) -> Iterator[redis.Redis]:
    """A client of the server, whose settings are restored."""
    with running.client() as client:
        client.flushall()
        names = ("maxmemory", "maxmemory-policy", "maxclients")
        before = {name: client.config_get(name)[name] for name in names}
        yield client
        client.replicaof("NO", "ONE")
        for name, value in before.items():
            client.config_set(name, value)
        client.execute_command("ACL", "DELUSER", "tried")


def looked_at(running: LocalServer, *shards: dict[str, Any], **entry: Any) -> CheckReport:
    place = {"host": "127.0.0.1", "port": running.port}
    described: dict[str, Any] = {"shards": [{**place, **shard} for shard in shards]}
    data = described if shards else {"entry": {**place, **entry}}
    return admin.check(map_of(data=data).components.values())


def only(report: CheckReport) -> CheckFinding:
    [found] = report.findings
    assert found.remedy
    return found


def test_memory_at_its_limit_is_reported(running: LocalServer, server: redis.Redis) -> None:
    server.setrange("large", 20_000_000, "x")  # beside which what clients take does not count
    used = server.info("memory")["used_memory"]
    server.config_set("maxmemory", used // 2)
    assert only(looked_at(running)).problem == "is above its maxmemory: it refuses writes"
    server.config_set("maxmemory", int(used * 1.06))
    found = only(looked_at(running))
    assert found.warning
    assert found.problem.endswith("of its maxmemory")
    server.config_set("maxmemory-policy", "allkeys-lru")
    server.config_set("maxmemory", used * 10)
    assert only(looked_at(running)).problem == (
        "evicts keys (allkeys-lru): structures lose parts and parameters as memory runs out"
    )
    server.config_set("maxmemory-policy", "noeviction")


def test_rights_that_are_missing_are_named(running: LocalServer, server: redis.Redis) -> None:
    rights = ("on", ">pw", "~*", "+@all", "-hdel", "-script|exists")
    server.execute_command("ACL", "SETUSER", "tried", *rights)
    found = only(looked_at(running, username="tried", password="pw"))
    assert found.problem == "does not let the user run HDEL, SCRIPT EXISTS"
    server.execute_command("ACL", "SETUSER", "tried", "+@all", "-info")
    found = only(looked_at(running, username="tried", password="pw"))
    assert found.warning
    assert found.problem == "does not let the user run INFO"
    found = only(looked_at(running, username="tried", password="wrong"))
    assert "the user or password is refused" in found.problem


def test_what_the_user_may_not_ask_is_left_out(running: LocalServer, server: redis.Redis) -> None:
    server.set("k", 1)
    rights = ("on", ">pw", "~*", "+@all")
    for missing, keys in ("-time", 1), ("-select", 0), ("-scan", 0):
        server.execute_command("ACL", "SETUSER", "tried", "reset", *rights, missing)
        report = looked_at(running, username="tried", password="pw")
        assert report.keys == keys
        assert {finding.kind for finding in report.findings} <= {"rights", "sampling"}


def test_a_replica_where_a_master_is_named_hurts(running: LocalServer, server: redis.Redis) -> None:
    server.execute_command("ACL", "SETUSER", "tried", "on", ">pw", "~*", "+@all", "-hdel")
    server.replicaof("127.0.0.1", 1)
    report = looked_at(running, username="tried", password="pw")
    problems = [found.problem for found in report.findings]
    assert "is a replica, which refuses writes" in problems
    assert "has lost its master" in problems
    assert not [said for said in problems if "user run" in said]  # it does not write there


def test_replicas_that_are_not_there_hurt(running: LocalServer, server: redis.Redis) -> None:
    with LocalServer() as other:
        report = looked_at(running, replicas=[{"port": other.port}])
    problems = [found.problem for found in report.findings]
    assert problems == [
        "is a master, with data of its own",
        "has 0 of the 1 replicas that its entry names",
    ]


def test_clients_near_their_limit_hurt(running: LocalServer, server: redis.Redis) -> None:
    server.config_set("maxclients", server.info("clients")["connected_clients"] + 1)
    assert " clients of " in only(looked_at(running)).problem


def test_wrong_databases_are_problems(running: LocalServer, server: redis.Redis) -> None:
    assert only(looked_at(running, {"db": 999})).problem == "has no database 999"
    found = only(looked_at(running, {"db": 1}, {"db": 1, "host": "localhost"}))
    assert found.where.startswith("data:1 ")
    assert found.problem == "has the same database as data:0"
    client_of(running, db=1).mset({f"key:{n}": 1 for n in range(40)})
    found = only(looked_at(running, {"db": 1}, {"db": 2}))
    assert found.where == f"data:0 (127.0.0.1:{running.port}/1)"
    assert found.problem.endswith("of 40 sampled keys on shard 1")


def test_keys_that_functions_place_by_another_argument_are_declared(
    running: LocalServer, server: redis.Redis
) -> None:
    shards = [{"host": "127.0.0.1", "port": running.port, "db": db} for db in (1, 2)]
    routes = [r"user:(\d+):.*", "any visits:.*"]
    silent, loud = (
        map_of(data={"shards": shards, "route": route}) for route in (routes, routes[:1])
    )
    with shardkit.connect(silent) as kit:

        @kit.sharded_connection("data")
        def count_visit(conn: Any, session: int, key: str) -> None:
            conn.pfadd(key, session)

        @kit.sharded_connection("data")
        def rename(conn: Any, user: int, name: str) -> None:
            conn.set(f"user:{user}:name", name)

        for n in range(100):
            count_visit(n, f"visits:{n % 40}")
            rename(n, "Ada")
    assert admin.check(silent.components.values()).findings == []
    found = admin.check(loud.components.values()).findings
    assert found
    assert all("declare keys that functions place" in each.remedy for each in found)


def test_the_unusable_does_not_hide_the_rest(running: LocalServer, server: redis.Redis) -> None:
    report = looked_at(running, {"db": 1}, {"port": 1}, {"password": "${NOT_SET_HERE}"})
    assert report.servers == 1
    problems = sorted(found.problem for found in report.findings)
    assert "NOT_SET_HERE" in problems[1]
    assert "cannot be reached" in problems[0]
    assert not report.ok


def test_a_server_without_an_answer_is_named(running: LocalServer, server: redis.Redis) -> None:
    with paused(running):
        found = only(looked_at(running))
    assert found.problem == "cannot be reached: no answer in time"
    assert "suspended" in found.remedy


def test_an_epoch_that_went_back_is_noticed(running: LocalServer, server: redis.Redis) -> None:
    described = map_of(data={"shards": [{"port": running.port, "db": 1}]})
    push(server, described)
    assert admin.check(described.components.values(), config=server).findings == []
    server.delete("config:epoch")
    found = only(admin.check(described.components.values(), config=server))
    assert "went back to epoch 0: its servers have witnessed epoch 1" in found.problem
    assert "--restored" in found.remedy
    with running.client(db=1) as data:
        for damaged in ("inf", "-inf", -1, 1e300):
            data.zadd("config:witness", {"data": damaged})
            assert admin.check(described.components.values(), config=server).ok


def test_damaged_structures_are_found(running: LocalServer, server: redis.Redis) -> None:
    described = map_of(data={"shards": [{"port": running.port, "db": 1}]})
    with shardkit.connect(described) as kit:
        kit.set("ids", component="data", total=1000, members=int).sadd_many(range(1000))
        assert check_structures(kit, described.components) == ([], 1)
        client = kit.client("data", 0)
        part = next(key for key in client.scan_iter(match="*ids*") if b"meta" not in key)
        client.delete(part)
        client.set(part, "not a set")
        findings, read = check_structures(kit, described.components)
    assert read == 1
    assert findings[0].where == "data/ids (data:0)"
    assert "is damaged: " in findings[0].problem
    assert findings[0].remedy


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"rdb_last_bgsave_status": "err"}, "failed to save its last snapshot"),
        ({"aof_last_write_status": "err"}, "failed to write to its append-only file"),
        ({"aof_last_bgrewrite_status": "err"}, "failed to rewrite its append-only file"),
        ({"loading": 1}, "is loading its data"),
        (
            {"connected_slaves": 1, "slave0": {"lag": 12, "state": "online"}},
            "has a replica that is 12 s behind",
        ),
        (
            {"maxmemory": 1, "maxmemory_policy": "volatile-lru"},
            "is above its maxmemory: it evicts keys (volatile-lru)",
        ),
    ],
)
def test_each_sickness_that_a_server_reports_is_named_with_its_remedy(
    running: LocalServer,
    server: redis.Redis,
    said: dict[str, Any],
    problem: str,
) -> None:
    info = redis.Redis.info
    told = lambda self, *names: {**info(self, *names), **said}  # noqa: E731
    with patch.object(redis.Redis, "info", told):
        assert only(looked_at(running)).problem == problem


def test_a_clock_that_is_off_and_a_server_that_loads_are_named(
    running: LocalServer, server: redis.Redis
) -> None:
    now = redis.Redis.time
    with patch.object(redis.Redis, "time", lambda self: (now(self)[0] + 10, 0)):
        found = only(looked_at(running))
    assert found.warning
    assert re.fullmatch(r"has a clock that is (9|10)\.\d s ahead", found.problem)

    def ping(self: redis.Redis) -> bool:
        raise redis.BusyLoadingError("LOADING Redis is loading the dataset in memory")

    with patch.object(redis.Redis, "ping", ping):
        assert "loading" in only(looked_at(running)).problem


def test_a_server_that_takes_long_for_each_ping_is_asked_nothing_else(
    running: LocalServer, server: redis.Redis, lower: Callable[..., None]
) -> None:
    server.config_resetstat()
    lower(slow_ping=-1.0, survey_patience=0.0)
    assert only(looked_at(running)).problem.startswith("stalls: one PING took ")
    assert not server.info("commandstats").keys() & {"cmdstat_info", "cmdstat_scan"}


def test_a_shared_database_is_scanned_once(own_server: LocalServer) -> None:
    entry = {"entry": own_server.entry.fields}
    components = map_of(one=entry, other=entry).components
    with own_server.client() as client:
        client.mset({f"k{n}": "v" for n in range(1200)})
        client.rpush("list", *range(300))
    looked_at: list[int] = []
    [longest, *others] = biggest_keys(
        list(components.values()), 5, by="elements", progress=looked_at.append
    )
    assert (longest.key, longest.elements, longest.kind, longest.shard) == (
        b"list", 300, "list", "one",
    )  # fmt: skip
    assert [each.size for each in others] == [1] * 4
    assert looked_at[-1] == 1201
    assert len(looked_at) > 2, "they come in pages"


def components(*entries: dict[str, Any]) -> list[Any]:
    described = {f"c{n}": {"entry": entry} for n, entry in enumerate(entries)}
    return list(map_of(**described).components.values())


def test_unidentified_servers_are_visited_by_each_name(own_server: LocalServer) -> None:
    found = components(
        *({"host": host, "port": own_server.port} for host in ("127.0.0.1", "localhost"))
    )
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-info")
        assert sorted(execute(found, ["INCR", "n"]).values()) == [1, 2]


CHANGES_KEY = "config:changes"

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """Run a command; return its exit code and its JSON document."""

    def run(*words: str) -> tuple[int, Any]:
        done = CliRunner().invoke(app, [*words, "--json"])
        return done.exit_code, json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def servers() -> Iterator[list[LocalServer]]:
    with LocalServer() as config, LocalServer() as source, LocalServer() as target:
        yield [config, source, target]


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "allkeys-lru"])
def test_eviction_is_warned(own_server: LocalServer, run: Run, tmp_path: Path, policy: str) -> None:
    path = str(tmp_path / "map.json")
    described = {"components": {"u": {"entry": {"port": own_server.port}}}}
    Path(path).write_text(json.dumps(described))
    with own_server.client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", policy)
        client.hset("ids:meta", mapping={"kind": "set", "part_size": "100"})
    code, checked = run("check", "-c", path)
    assert code == 0
    said = [each["problem"] for each in checked["findings"]]
    assert all(each["warning"] for each in checked["findings"])
    code, shown = run("status", "-c", path)
    assert code == 0
    assert [each["reason"] for each in shown["shards"]] == (said or [None])
    probed, _ = run("status", "--check", "-c", path)
    assert probed == 0
    _, inspected = run("doctor", "-c", path)
    texts = [each["text"] for each in inspected["findings"] if each["problem"] == "eviction"]
    assert texts == [
        f"{own_server.address.replace('127.0.0.1', 'localhost')} {each}" for each in said
    ]
    assert bool(said) == (policy != "noeviction")


class _Killed(BaseException):
    """The end of a mover, without any cleaning up."""


def test_a_shard_closed_by_a_killed_mover_is_named(servers: list[LocalServer], run: Run) -> None:
    config, source, target = servers
    shards = [{"host": "127.0.0.1", "port": source.port, "db": n} for n in (1, 2)]
    described = ShardMap.parse(json.dumps({"components": {"users": {"shards": shards}}}))
    url = f"redis://{config.address}"

    def killed(step: str) -> None:
        if step.startswith("pushing"):
            raise _Killed

    with config.client() as client:
        push(client, described)
        with pytest.raises(_Killed):
            start_move(client, ["users:1"], target.address, progress=killed)
        client.hset("config:growth:fences", "127.0.0.1:7", json.dumps({"master": "127.0.0.1:8"}))
    code, checked = run("check", "-c", url)
    assert code == 1
    found = {each["kind"]: each for each in checked["findings"]}
    assert found["move"]["where"] == "users:1"
    assert "was interrupted (phase fenced)" in found["move"]["problem"]
    assert found["closed"]["where"].startswith("users:1 (")
    assert found["move"]["remedy"] == found["closed"]["remedy"] == "shardkit move resume users:1"
    assert found["failover"]["remedy"] == "shardkit failover --guard 0"
    code, shown = run("status", "-c", url)
    assert code == 1
    assert [each["state"] for each in shown["shards"]] == ["ok", "closed"]
    assert {each["kind"] for each in shown["findings"]} == {"move", "failover"}
    assert run("status", "--check", "-c", url)[0] == 2
    line = CliRunner().invoke(app, ["status", "-c", url]).stdout
    assert "is closed by a move of its shards that was interrupted" in line
    assert CliRunner().invoke(app, ["move", "resume", "users:1", "-c", url]).exit_code == 0
    client_of(config).delete("config:growth:fences")
    assert run("check", "-c", url)[1]["findings"] == []


def test_moves_are_warnings_or_if_unreadable_problems(servers: list[LocalServer], run: Run) -> None:
    config, source, target = servers
    url = f"redis://{config.address}"
    shard = {"host": "127.0.0.1", "port": source.port, "db": 3}
    with config.client() as client, source.client(db=3) as data:
        push(client, ShardMap.parse(json.dumps({"components": {"one": {"entry": shard}}})))
        data.set("config:fence", fence_value("id", "attempt", target.address))
        move = Move(source.address, "replication", source.address, target.address, [])
        client.hset(CHANGES_KEY, move.id, text_of(replace(move, kind="move")))
        client.set("config:growth:lease", "host/1/token")
        code, checked = run("check", "one", "-c", url)
        assert code == 0
        assert {each["kind"] for each in checked["findings"]} == {"closed", "move"}
        client.hset(CHANGES_KEY, move.id, "no JSON")
        code, checked = run("check", "one", "-c", url)
        assert code == 1
        assert "does not describe a move" in checked["findings"][0]["problem"]
        client.delete(CHANGES_KEY, "config:growth:lease")
        data.delete("config:fence")


REDIS = {"redis_version": "7.4.1"}
VALKEY = {"redis_version": "7.2.4", "valkey_version": "9.0.0"}
OLDER = {**VALKEY, "valkey_version": "8.1.1"}
EXPIRING = {**REDIS, "db0": {"keys": 2, "subexpiry": 1}}


@pytest.mark.parametrize(
    ("master", "replica", "relaxed", "problem"),
    [
        (REDIS, VALKEY, False, "is a Valkey, which does not read what Redis 7.4 and later send"),
        (REDIS, VALKEY, True, None),
        (REDIS, OLDER, True, "is a Valkey, which does not read what Redis 7.4 and later send"),
        (EXPIRING, VALKEY, True, "is a Valkey, which cannot read hashes whose fields expire, or "),
        ({**REDIS, "redis_version": "7.2.9"}, VALKEY, False, None),
        (VALKEY, REDIS, False, "is a Redis, which cannot read what a Valkey sends"),
        (VALKEY, VALKEY, False, None),
    ],
)
def test_a_copy_that_cannot_be_read_is_a_problem(
    master: dict[str, Any], replica: dict[str, Any], relaxed: bool, problem: str | None
) -> None:
    shard = Shard("a", None)
    targets = [Target("", Entry({"port": n}), None, shard, node) for n, node in ((1, ""), (2, "r"))]
    facts = [
        ServerFacts(info=master),
        ServerFacts(info={**replica, "master_link_status": "down"}, reads_later=relaxed),
    ]
    rows = [SurveyedEntry(target, 0, each) for target, each in zip(targets, facts, strict=True)]
    [_, judged] = judge(rows, kinds=["copy"]).entries
    texts = [each.text for each in judged.problems]
    assert [text.startswith(problem or "-") for text in texts] == [True] * bool(problem)


def test_a_database_that_refuses_select_for_another_reason_is_not_missing() -> None:
    def found(refusal: Exception) -> Any:
        client = Mock(execute_command=Mock(side_effect=refusal))
        return module._database(client, 1, sampled=False)

    with pytest.raises(redis.ResponseError, match="not allowed"):
        found(redis.ResponseError("SELECT is not allowed in cluster mode"))
    assert found(redis.exceptions.NoPermissionError("no rights")).exists
    assert not found(redis.ResponseError("DB index is out of range")).exists


@pytest.mark.parametrize(
    ("hello", "role"),
    [([b"role", b"master"], "master"), ([], ""), (redis.ResponseError("unknown command"), "")],
)
def test_the_role_is_known_without_info_if_the_server_supports_hello(hello: Any, role: str) -> None:
    greeting = greeting_of(SimpleNamespace(execute_command=Mock(side_effect=[hello])))
    assert greeting.get("role", "") == role


def test_survey_faults_are_named(own_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    components = ShardMap.parse(f"components: {{a: {{entry: {{port: {own_server.port}}}}}}}")
    monkeypatch.setattr(module, "server_facts", Mock(side_effect=ZeroDivisionError("by zero")))
    with pytest.raises(ZeroDivisionError, match="by zero"):
        survey(targets_of(components.components.values()))


LONG = 3600.0  # seconds; much longer than any test


@pytest.fixture
def config(own_server: LocalServer) -> Iterator[redis.Redis]:
    with own_server.client(db=9) as client:
        yield client


def retired(config: redis.Redis, old: dict[str, Any], new: dict[str, Any]) -> Retirement:
    """Push two components, remove ``old``, and return it as if that were long ago."""
    push(config, map_of(old={"entry": old}, new={"entry": new}), force=["old", "new"])
    remove(config, last_known(config, "old"))
    return replace(last_known(config, "old"), removed_for=2 * LONG)


def at(server: LocalServer, db: int, host: str = "127.0.0.1") -> dict[str, Any]:
    return {"host": host, "port": server.port, "db": db}


def set_unused(client: Any, key: str, seconds: int) -> None:
    """Set a key that was last used some seconds ago."""
    client.set(key, "v")
    client.restore(key, 0, client.dump(key), replace=True, idletime=seconds)


def test_data_stays_while_it_may_be_used(own_server: LocalServer, config: redis.Redis) -> None:
    own, other = ({"entry": at(own_server, db)} for db in (1, 2))
    with own_server.client(db=1) as old:
        push(config, map_of(old=own, new=other))
        old.set("k", "v")
        with pytest.raises(ConfigError, match="'old' is still there; remove it first: shardkit re"):
            delete_data(last_known(config, "old"))
        remove(config, last_known(config, "old"))
        removed, epoch = last_known(config, "old"), int(config.get("config:epoch") or 0)
        assert (removed.removed, list(removed.others)) == (True, ["new"])
        remove(config, removed)
        assert int(config.get("config:epoch") or 0) == epoch, (
            "it was removed before: nothing is pushed"
        )
        config.execute_command("ACL", "SETUSER", "default", "-client|list")
        said = "component 'old': the processes that use it are unknown: .*cannot be asked.*; start"
        with pytest.raises(ConfigError, match=said):
            delete_data(removed, quiet=0)
        config.execute_command("ACL", "SETUSER", "default", "+client|list")
        assert old.get("k") == b"v"
        assert delete_data(replace(removed, others={}), quiet=0) == 1
        assert not old.exists("k")


def test_removal_starts_the_quiet_time(own_server: LocalServer, config: redis.Redis) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    with own_server.client(db=1) as old:
        set_unused(old, "k", 2 * int(LONG))
        removed = last_known(config, "old")
        assert 0 <= removed.removed_for < 60
        said = r"'old' was removed \d+ s ago, less than the quiet time of 3600 s; repeat .* in 3\d"
        with pytest.raises(ConfigError, match=said):
            delete_data(removed, quiet=LONG)
        with pytest.raises(ConfigError, match=r"less than .*; repeat the command in 1 s"):
            delete_data(replace(removed, removed_for=LONG - 0.1), quiet=LONG)
        assert old.exists("k")
        assert delete_data(retirement, quiet=LONG) == 1


def test_a_key_used_lately_keeps_the_data(own_server: LocalServer, config: redis.Redis) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    with own_server.client(db=1) as old:
        for n in range(600):
            set_unused(old, f"k{n}", 2 * int(LONG))
        old.get("k7")
    said = r"config:redis:old \(127.0.0.1:\d+/1\) is still used, so nothing .*: key k7 \d+ s ago"
    with pytest.raises(ConfigError, match=said):
        delete_data(retirement, quiet=LONG)
    with own_server.client(db=1) as old:
        set_unused(old, "k7", 2 * int(LONG))
        assert old.dbsize() == 601, "and config:witness"
    assert delete_data(retirement, quiet=LONG) == 600


def test_a_read_at_a_replica_keeps_the_data(own_server: LocalServer, config: redis.Redis) -> None:
    with own_server.client(db=1) as old:
        set_unused(old, "k", 2 * int(LONG))
    with LocalServer(replica_of=own_server) as copy, copy.client(db=1) as reader:
        entry = {**at(own_server, 1), "replicas": [{"port": copy.port}]}
        retirement = retired(config, entry, at(own_server, 2))
        reader.get("k")
        with pytest.raises(ConfigError, match=r"config:redis:old replicas\[0\] .* is still used"):
            delete_data(retirement, quiet=LONG)


def test_unrecorded_use_keeps_the_data(own_server: LocalServer, config: redis.Redis) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    with own_server.client(db=1) as old:
        old.set("k", "v")
        config.config_set("maxmemory-policy", "allkeys-lfu")
        try:
            with pytest.raises(
                ConfigError, match=r"does not show when its keys were used, so nothing .*LFU"
            ):
                delete_data(retirement, quiet=LONG)
        finally:
            config.config_set("maxmemory-policy", "noeviction")
        assert old.exists("k")


def test_data_of_another_component_is_kept(own_server: LocalServer, config: redis.Redis) -> None:
    said = r"config:redis:old \(localhost:\d+/1\) shares a database with config:redis:new \(127"
    with own_server.client(db=1) as client:
        client.set("k", "v")
        retirement = retired(config, at(own_server, 1, "localhost"), at(own_server, 1))
        with pytest.raises(ConfigError, match=said):
            delete_data(retirement, quiet=0)
        retirement = retired(config, at(own_server, 1, "localhost"), at(own_server, 2))
        assert delete_data(retirement, quiet=0) == 1


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", ["old", "newer"])
def test_databases_that_are_pushed_again_meanwhile_keep_the_rest(
    own_server: LocalServer, config: redis.Redis, name: str, by_hand: bool
) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    pushed: list[int] = []

    def again(deleted: int) -> None:
        if not pushed:
            pushed.append(deleted)
            if by_hand:
                config.set(f"config:redis:{name}", json.dumps(at(own_server, 1)))
            else:
                push(config, map_of(**{name: {"entry": at(own_server, 1)}}), force=[name])

    with own_server.client(db=1) as old:
        old.mset({f"k{n}": n for n in range(1200)})
        said = (
            r"has entries again: no more keys"
            if name == "old"
            else r"shares a database with .*newer"
        )
        with pytest.raises(ConfigError, match=said):
            delete_data(retirement, quiet=0, progress=again)
        assert len(old.keys("k*")) == 1200 - pushed[0] > 0


def test_an_unknown_server_keeps_the_data(own_server: LocalServer, config: redis.Redis) -> None:
    retirement = retired(config, at(own_server, 1), at(own_server, 2))
    away = map_of(new={"entry": {"host": "127.0.0.1", "port": 1}})
    said = r"config:redis:new \(127.0.0.1:1/0\) cannot be asked which server it is, so the keys"
    with pytest.raises(ConfigError, match=said):
        delete_data(replace(retirement, others=away.components), quiet=0)


def test_any_named_node_of_a_cluster_keeps_the_data(
    config: redis.Redis, cluster: LocalCluster
) -> None:
    with cluster.client() as client:
        client.set("k", "v")
        first, second, *_ = [node.port for node in client.get_primaries()]
        nodes = [{"cluster": True, "host": "127.0.0.1", "port": port} for port in (first, second)]
        retirement = retired(config, nodes[0], nodes[1])
        with pytest.raises(ConfigError, match="shares a database with config:redis:new"):
            delete_data(retirement, quiet=0)
        config.delete("config:redis:new")
        alone = replace(retirement, others={})
        with pytest.raises(ConfigError, match="is still used, so nothing was deleted: key k"):
            delete_data(alone, quiet=LONG)
        assert client.get("k") == b"v"
        assert delete_data(alone, quiet=0) == 1


COMMANDS = ["replan a", "replan a --dry-run --total 100000", "locks show", "keys"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reads_entries_that_decode_replies(tmp_path: Path, command: str) -> None:
    path, answers = tmp_path / "map.json", []
    with LocalServer() as server:
        for decodes in (False, True):
            entry = {"port": server.port, "db": 1, "decode_responses": decodes}
            path.write_text(json.dumps({"components": {"a": {"shards": [entry]}}}))
            with shardkit.connect(path) as kit:
                kit.hash("h", component="a", total=1000).hset(mapping=dict.fromkeys(range(9), 1))
                kit.lock("l", component="a", renew=False, ttl=600).acquire()
            done = CliRunner().invoke(app, [*command.split(), "--config", str(path), "--json"])
            answers.append((done.exit_code, done.stdout.count('"'), done.stderr))
            with server.client(db=1) as client:
                client.flushdb()
    assert answers[0] == answers[1]
    assert answers[0][0] == 0
