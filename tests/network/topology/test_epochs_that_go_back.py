"""A config server that was restored from an old snapshot does not send clients back."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import Face, faced
from link_helpers import cut, paused

import shardkit
from shardkit import ShardMap, admin
from shardkit.errors import ConfigServerError, ShardErrors
from shardkit.local import LocalServer


@pytest.fixture
def config(server: LocalServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        client.flushall()
        yield client


def four(port: int = 1, shards: int = 4) -> ShardMap:
    """A sharded component and one that is not."""
    entries = [{"port": port, "db": n} for n in range(shards)]
    return map_of(few={"shards": entries}, one={"entry": {"port": port}})


def push(config: redis.Redis, shard_map: ShardMap, **options: Any) -> None:
    admin.push(config, shard_map, force=True, check=False, **options)


def snapshot(config: redis.Redis) -> dict[bytes, bytes]:
    return {key: config.dump(key) for key in config.scan_iter()}  # type: ignore[misc]


def restore(config: redis.Redis, values: dict[bytes, bytes]) -> None:
    put_back(config.pipeline().flushall(), values)


def put_back(pipe: Any, values: dict[bytes, bytes]) -> None:
    """At once: a kit reads what is restored by itself."""
    for key, value in values.items():
        pipe.restore(key, 0, value, replace=True)
    pipe.execute()


class Reader:
    """A kit of either kind that reads again when it is told to."""

    def __init__(self, face: Face) -> None:
        self.kit = face.kit
        self._face = face

    def component(self, name: str) -> Any:
        return self._face.run(self.kit.component(name))

    def now(self, name: str) -> Any:
        self.kit.topology.expire()
        return self.component(name)


@pytest.fixture
def reader(kind: str, server: LocalServer, config: redis.Redis) -> Iterator[Reader]:
    push(config, four())
    with faced(kind, f"redis://{server.address}") as face:
        yield Reader(face)


@pytest.mark.parametrize("lost", [False, True], ids=["old snapshot", "nothing"])
def test_the_newest_known_entries_stay_in_use_with_one_loud_line(
    reader: Reader, config: redis.Redis, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    old = {} if lost else snapshot(config)
    push(config, four(port=2, shards=8))
    known = {name: reader.now(name) for name in ("few", "one")}
    assert len(known["few"].shards) == 8
    caplog.clear()
    restore(config, old)
    for _ in range(3):
        for name, each in known.items():
            assert reader.now(name) is each
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "went back in time: config:epoch was 2 and is" in record.message
    assert "shardkit config push MAP --above 2" in record.message


def test_a_push_above_what_was_seen_leads_on(
    reader: Reader, config: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shardkit")
    old = snapshot(config)
    for n in range(2, 6):
        push(config, four(port=n))
    known = {name: reader.now(name) for name in ("few", "one")}
    restore(config, old)
    assert reader.now("few") is known["few"]
    push(config, four(port=1), above=5)  # what the old snapshot says as well
    for name in known:
        assert reader.now(name).all_shards() == known[name].all_shards()
        assert reader.now(name).entries()[0][1].fields["port"] == 1
    assert reader.now("few").epoch == 6
    assert int(config.get("config:epoch") or 0) == 6
    assert "can be read again" in caplog.text
    push(config, four(port=7))
    assert reader.now("few").epoch == 7


def test_a_component_that_went_back_alone_is_refused(reader: Reader, config: redis.Redis) -> None:
    old = {key: value for key, value in snapshot(config).items() if b"few" in key}
    push(config, four(port=2))
    known = reader.now("few")
    assert known.epoch == 2
    put_back(config.pipeline(), old)
    assert reader.now("few") is known
    assert reader.now("one").entries()[0][1].fields["port"] == 2


def test_what_was_never_read_is_refused_too(server: LocalServer, config: redis.Redis) -> None:
    push(config, four())
    old = snapshot(config)
    push(config, four(port=2))
    with shardkit.connect(f"redis://{server.address}") as kit:
        assert kit.component("one").entry.fields["port"] == 2  # type: ignore[union-attr]
        restore(config, old)
        with pytest.raises(ConfigServerError, match="--above 2"):
            kit.component("few")


def test_manual_entries_without_epoch_may_change(server: LocalServer, config: redis.Redis) -> None:
    config.set("config:redis:one", '{"port": 1}')
    with shardkit.connect(f"redis://{server.address}") as kit:
        assert kit.component("one").entry.fields["port"] == 1  # type: ignore[union-attr]
        config.set("config:redis:one", '{"port": 2}')
        kit.topology.expire()
        assert kit.component("one").entry.fields["port"] == 2  # type: ignore[union-attr]


Connect = Callable[[], Face]


@pytest.fixture
def connect(kind: str, server: LocalServer) -> Iterator[Connect]:
    """Open a kit of either face on the config server, as a client that just started."""
    with ExitStack() as kits:
        yield lambda: kits.enter_context(faced(kind, f"redis://{server.address}"))


def described(server: LocalServer, *databases: int) -> ShardMap:
    shards = ", ".join(f"{{port: {server.port}, db: {n}}}" for n in databases)
    return ShardMap.parse(f"components: {{data: {{shards: [{shards}]}}}}")


def witness(server: LocalServer, epoch: int, *databases: int) -> None:
    for number in databases:
        with server.client(db=number) as client:
            client.zadd("config:witness", {"data": epoch}, gt=True)


def load(face: Face) -> None:
    face.run(face.kit.load("data")) if face.runner else face.kit.component("data")


def incr(face: Face) -> int:
    names = face.kit.hash("names", component="data")
    count: int = face.run(names.hincrby("0", 1))
    return count


def test_an_old_snapshot_stops(server: LocalServer, config: redis.Redis, connect: Connect) -> None:
    admin.push(config, described(server, 1, 2), check=False)
    witness(server, 7, 2, 3)  # of a push that moved shard 0 from database 1 to 3
    face = connect()
    expected = r"went back in time: config:epoch was 7 and is 1, .* --above 7"
    strings = face.kit.strings("s", component="data")
    with pytest.raises((ShardErrors, ConfigServerError)) as refused:
        face.run(strings.mset({"a": "1", "b": "2", "c": "3"}))
    assert re.search(expected, str(refused.value))
    admin.push(config, described(server, 3, 2), force=True, above=7, check=False)
    face.kit.topology.expire()
    face.run(strings.mset({"a": "1", "b": "2", "c": "3"}))
    assert config.zscore("config:witness", "data") is None


def test_unread_pushes_pass(server: LocalServer, config: redis.Redis, connect: Connect) -> None:
    admin.push(config, described(server, 1), check=False)
    face = connect()
    load(face)
    admin.push(config, described(server, 1, 2), force=True, check=False)
    witness(server, 2, 1)
    assert incr(face) == 1


def test_while_the_config_server_is_away_the_known_entries_stay_in_use(
    server: LocalServer, config: redis.Redis, connect: Connect
) -> None:
    with LocalServer() as data:
        admin.push(config, described(data, 1), check=False)
        face = connect()
        load(face)
        witness(data, 2, 1)
        with paused(server):
            assert incr(face) == 1
        cut(data)
        with pytest.raises((ShardErrors, ConfigServerError)) as refused:
            incr(face)  # the next connection asks again
    failures = getattr(refused.value, "exceptions", [refused.value])
    assert "went back in time" in str(failures[0])
