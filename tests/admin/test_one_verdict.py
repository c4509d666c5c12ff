"""`status`, `check`, `doctor` and pushes judge a server alike, and name what is unfinished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from click.testing import CliRunner

from shardkit import Entry, ShardMap
from shardkit.admin import push
from shardkit.admin.changes import text_of
from shardkit.admin.growth import Move, start_move
from shardkit.admin.growth.gate import fence_value
from shardkit.cli.app import app
from shardkit.local import LocalServer
from shardkit.network import survey as module
from shardkit.network.rules import judge
from shardkit.network.server_queries import greeting_of
from shardkit.network.survey import ServerFacts, SurveyedEntry, Target, survey, targets_of
from shardkit.operations.commands import Shard

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
    with config.client() as client:
        client.delete("config:growth:fences")
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
