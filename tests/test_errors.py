"""The contract of docs/errors.md."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import shardkit
import shardkit.admin
import shardkit.admin.growth
from shardkit import ShardKit, ShardMap, errors
from shardkit.errors import (
    CommandRefused,
    CommandsRefused,
    InvalidArgumentError,
    OperationErrors,
    ShardErrors,
    ShardFailure,
    ShardKitError,
    ShardsUnavailable,
    ShardTimeout,
    ShardUnavailable,
)
from shardkit.local import LocalServer
from shardkit.testing import MemoryServers

TWO = "components: {c: {shards: [{port: 1}, {port: 2}]}, own: {entry: {port: 3}}}"


@pytest.fixture
def servers() -> MemoryServers:
    return MemoryServers(ShardMap.parse(TWO))


@pytest.fixture
def kit(servers: MemoryServers) -> Iterator[ShardKit]:
    with shardkit.connect(servers.shard_map, connector=servers) as opened:
        yield opened


CALLS: dict[str, Callable[[ShardKit], Any]] = {
    "structure": lambda kit: kit.hash("h", component="c").hget("f"),
    "several shards": lambda kit: kit.hash("h", component="c").hlen(),
    "client": lambda kit: kit.client("own").get("k"),
    "redis-py's pipeline": lambda kit: kit.client("own").pipeline().get("k").execute(),
    "router": lambda kit: kit.key_sharded("c")["k"].get("k"),
    "bulk": lambda kit: kit.key_sharded("c").mget(["k", "l"]),
    "pipeline": lambda kit: kit.key_sharded("c").pipeline().get("k").execute(),
    "blocking command": lambda kit: kit.client("own").blpop(["l"], 1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [ShardUnavailable, redis.ConnectionError, redis.RedisError])
def test_one_handler_catches_what_a_single_call_raises(
    servers: MemoryServers, kit: ShardKit, name: str, kind: type[Exception]
) -> None:
    for component, number in (("c", 0), ("c", 1), ("own", None)):
        servers.server_of(component, number).down()
    with pytest.raises(kind) as raised:
        CALLS[name](kit)
    error: Any = raised.value
    assert isinstance(error, ShardKitError)
    assert not error.maybe_executed
    assert error.shard.partition(":")[0] in ("c", "own")
    assert error.address in str(error)
    assert error.shard in str(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda kit: kit.hash("h", component="c").hset("f", "v"),
        lambda kit: kit.client("own").incr("text"),
        lambda kit: kit.client("own").pipeline().incr("text").execute(),
        lambda kit: kit.key_sharded("c")["text"].incr("text"),
    ],
)
def test_a_refused_command_is_a_response_error_that_names_the_server(call: Any) -> None:
    with LocalServer() as server:
        port, text = server.port, "components: {c: {entry: {port: %d}}, own: {entry: {port: %d}}}"
        shard_map = ShardMap.parse(text % (port, port))
        with server.client() as admin, shardkit.connect(shard_map) as kit:
            admin.set("text", "x")
            admin.execute_command("ACL", "SETUSER", "default", "-hset")
            with pytest.raises(redis.ResponseError) as raised:
                call(kit)
    assert f"127.0.0.1:{port}/0" in str(raised.value) or f"localhost:{port}/0" in str(raised.value)
    assert raised.value.shard in ("c", "own")  # type: ignore[attr-defined]


def test_redis_pys_own_classes_keep_the_beginning_of_their_text() -> None:
    with LocalServer() as server:
        shard_map = ShardMap.parse(f"components: {{c: {{entry: {{port: {server.port}}}}}}}")
        with shardkit.connect(shard_map) as kit:
            client = kit.client("c")
            client.xgroup_create("s", "g", mkstream=True)
            with pytest.raises(redis.ResponseError, match=r"^BUSYGROUP .* \[c, .*\]$") as raised:
                client.xgroup_create("s", "g")
    assert type(raised.value) is redis.ResponseError


def test_a_server_that_hangs_is_a_timeout_of_both_trees() -> None:
    with LocalServer() as server:
        entry = f"{{port: {server.port}, socket_timeout: 0.1}}"
        with shardkit.connect(ShardMap.parse(f"components: {{c: {{entry: {entry}}}}}")) as kit:
            client = kit.client("c")
            client.ping()
            server.pause()
            try:
                with pytest.raises(redis.TimeoutError) as raised:
                    client.set("k", 1)
            finally:
                server.resume()
    assert isinstance(raised.value, ShardTimeout)
    assert isinstance(raised.value, redis.ConnectionError)
    assert raised.value.maybe_executed


def test_a_group_is_of_the_kind_of_all_its_failures() -> None:
    away, refused = ShardUnavailable("a is away", shard="a"), CommandRefused("b: no", shard="b")
    group = ShardErrors("1 shard failed (a)", [away])
    assert type(group) is ShardsUnavailable
    assert (group.shard, group.exceptions) == ("a", (away,))
    assert type(ShardErrors("1 shard failed (b)", [refused])) is CommandsRefused
    mixed = ShardErrors("2 shards failed (a, b)", [away, refused])
    assert type(mixed) is ShardErrors
    assert not isinstance(mixed, ShardFailure)
    with pytest.raises(AttributeError, match="shard"):
        _ = mixed.shard
    caught = []
    try:
        raise mixed
    except* redis.ConnectionError as unavailable:
        caught += unavailable.exceptions
    except* redis.ResponseError as answered:
        caught += answered.exceptions
    assert caught == [away, refused]


def test_together_raises_inside_the_tree(servers: MemoryServers, kit: ShardKit) -> None:
    mapping = kit.hash("h", component="c")
    for number in (0, 1):
        servers.server_of("c", number).down()
    with pytest.raises(OperationErrors) as raised:
        kit.together(mapping.deferred.hget("f"), mapping.deferred.hget("g"))
    assert isinstance(raised.value, ShardErrors)
    assert [type(each) for each in raised.value.exceptions] == [ShardsUnavailable] * 2
    assert not raised.value.maybe_executed
    first = raised.value.exceptions[0]
    assert str(OperationErrors("2 failed", [first, first])) == f"2 failed: {first}"


def test_every_error_pickles_and_has_a_readable_repr() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        arguments: tuple[Any, ...] = ("the thing is wrong", "try")
        if name == "DamagedDataError":
            arguments = ("key", "a text", "a list")
        elif issubclass(kind, ShardErrors):
            arguments = ("1 shard failed", [CommandRefused("a: no", shard="a", address="b:1")])
        error = kind(*arguments)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        assert repr(error).startswith(type(error).__name__)


def test_every_public_error_is_importable_from_one_place() -> None:
    package = Path(shardkit.__file__).parent
    for module in (shardkit, shardkit.admin, shardkit.admin.growth):
        for name in module.__all__:
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, Exception):
                assert name in errors.__all__
    for path in package.rglob("*.py"):
        if "testing" not in path.parts and path.name != "errors.py":
            assert not re.search(r"^class .*\(ShardKitError", path.read_text("utf-8"), re.M), path
    assert issubclass(InvalidArgumentError, ValueError)
