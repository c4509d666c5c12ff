"""Each push is remembered, and the state after each can be seen and pushed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from arranged import map_of
from click.testing import CliRunner

from shardkit import ShardMap
from shardkit.admin import push
from shardkit.cli.app import app
from shardkit.errors import ConfigError
from shardkit.local import LocalServer

HISTORY_KEY = "config:history"
MOST_PUSHES = 100

Told = Callable[..., Any]


@pytest.fixture
def client(server: LocalServer) -> Iterator[redis.Redis]:
    with server.client() as connected:
        connected.flushall()
        yield connected


@pytest.fixture
def told(server: LocalServer) -> Told:
    """What a command of ``shardkit config`` says as JSON, or its error."""

    def run(*words: str) -> Any:
        at = ["-c", f"redis://{server.address}", "--json"]
        done = CliRunner().invoke(app, ["config", *words, *at])
        return done.stderr if done.exit_code else json.loads(done.stdout)

    return run


def shard_map(server: LocalServer, **timeouts: int) -> ShardMap:
    described = {
        name: {"shards": [{"port": server.port, "db": 1, "socket_timeout": seconds}]}
        for name, seconds in timeouts.items()
    }
    return replace(map_of(**described), source="some.yaml")


def test_a_push_says_who_when_from_where_and_why(
    client: redis.Redis, server: LocalServer, told: Told
) -> None:
    push(client, shard_map(server, a=1), author="ada@ops", message="the first")
    push(client, shard_map(server, a=2))
    latest, first = told("history")["pushes"]
    said = {"epoch": 1, "author": "ada@ops", "source": "some.yaml", "message": "the first"}
    assert first == {**first, **said, "components": ["a"]}
    assert "@" in latest["author"]
    stored = json.loads(client.lindex(HISTORY_KEY, 1))
    assert abs(stored["at"] - client.time()[0]) < 60


def test_a_push_that_is_refused_or_changes_nothing_is_not_in_it(
    client: redis.Redis, server: LocalServer, told: Told
) -> None:
    push(client, shard_map(server, a=1))
    push(client, shard_map(server, a=1))
    with pytest.raises(ConfigError, match="pushed: component 'a' holds data, and the push"):
        push(client, shard_map(server, b=1), prune=True)
    assert [each["epoch"] for each in told("history")["pushes"]] == [1]


def test_the_history_is_bounded(client: redis.Redis, server: LocalServer, told: Told) -> None:
    for seconds in range(1, MOST_PUSHES + 6):
        push(client, shard_map(server, a=seconds), check=False)
    assert client.llen(HISTORY_KEY) == MOST_PUSHES
    [shard] = told("show", "a", "--at", "5")["components"]["a"]["shards"]
    assert shard["socket_timeout"] == 5
    assert "choose one from 5 to 105" in told("show", "--at", "4")


WRONG = {"author": [7], "epoch": [True], "at": ["0"], "before": [{"a": 7}, {"a": {"k": 1}}]}


@pytest.mark.parametrize(
    "change",
    ["{}", "no JSON", '{"format": 2}', "[1]"]
    + [{field: value} for field in WRONG for value in WRONG[field]],  # type: ignore[attr-defined]
    ids=str,
)
def test_a_record_that_cannot_be_read_is_named(
    client: redis.Redis, server: LocalServer, told: Told, change: Any
) -> None:
    push(client, shard_map(server, a=1))
    good = json.loads(client.lindex(HISTORY_KEY, 0))
    client.lpush(HISTORY_KEY, change if isinstance(change, str) else json.dumps(good | change))
    assert HISTORY_KEY in told("history")
