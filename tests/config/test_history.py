"""Each push is remembered, and the state after each can be seen and pushed again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from arranged import map_of

from shardkit import ShardMap
from shardkit.config import store
from shardkit.config.store import HISTORY_KEY, MOST_PUSHES, PushRecord
from shardkit.errors import ConfigError, InvalidEntryError
from shardkit.local import LocalServer


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[redis.Redis]:
    with server.client() as connected:
        connected.flushall()
        yield connected


def shard_map(**ports: int) -> ShardMap:
    described = {name: {"shards": [{"port": port}]} for name, port in ports.items()}
    return replace(map_of(**described), source="some.yaml")


def ports(client: redis.Redis, epoch: int) -> dict[str, int]:
    found = store.components_at(client, epoch)
    return {name: each.shards[0].fields["port"] for name, each in found.items()}


def test_a_push_says_who_when_from_where_and_why(client: redis.Redis) -> None:
    store.push(client, shard_map(a=1), author="ada@ops", message="the first")
    store.push(client, shard_map(a=2))
    latest, first = store.read_history(client)
    first_push = PushRecord(1, 0, first.at, "ada@ops", "some.yaml", "the first", {"a": {}})
    assert first == first_push
    assert abs(first.at - client.time()[0]) < 60
    assert json.loads(latest.before["a"]["config:redis:a:0"]) == {"port": 1}
    assert "@" in latest.author


def test_a_push_that_is_refused_or_changes_nothing_is_not_in_it(client: redis.Redis) -> None:
    store.push(client, shard_map(a=1))
    store.push(client, shard_map(a=1))
    with pytest.raises(ConfigError, match="pushed: component 'a' holds data, and the push"):
        store.push(client, shard_map(b=1), prune=True)
    assert [each.epoch for each in store.read_history(client)] == [1]


def test_the_history_is_bounded(client: redis.Redis) -> None:
    for port in range(1, MOST_PUSHES + 6):
        store.push(client, shard_map(a=port))
    assert client.llen(HISTORY_KEY) == MOST_PUSHES
    assert ports(client, 5) == {"a": 5}
    with pytest.raises(ConfigError, match="choose one from 5 to 105"):
        store.components_at(client, 4)


RECORD = PushRecord(2, 1, 0.5, "a", "b", "c", {"a": {"k": "v"}})
WRONG = {"author": [7], "epoch": [True], "at": ["0"], "before": [{"a": 7}, {"a": {"k": 1}}]}


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "no JSON", '{"format": 2}', "[1]"),
        *(
            json.dumps({**json.loads(RECORD.to_json()), field: value})
            for field in WRONG
            for value in WRONG[field]
        ),
    ],
)
def test_a_record_that_cannot_be_read_is_named(client: redis.Redis, text: str) -> None:
    client.lpush(HISTORY_KEY, text)
    with pytest.raises(InvalidEntryError, match=HISTORY_KEY):
        store.read_history(client)
