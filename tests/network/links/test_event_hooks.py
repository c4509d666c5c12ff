"""Events: what happens is told in order, on both faces, and to nobody if nobody listens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from link_helpers import command, mapped, opened
from scripted_server import scripted

import shardkit
from shardkit import ShardMap, events
from shardkit.errors import InvalidArgumentError
from shardkit.local import LocalServer
from shardkit.operations.commands import Script, Shard, Transaction, script_call


@pytest.fixture
def told() -> Iterator[list[Any]]:
    found: list[Any] = []
    stop = events.subscribe(found.append)
    yield found
    stop()
    assert events.handlers == []


def of(told: list[Any], *kinds: type) -> list[Any]:
    return [event for event in told if isinstance(event, kinds)]


def names(told: list[Any]) -> list[str]:
    return [type(event).__name__ for event in told]


def test_handlers_must_run_when_they_are_called() -> None:
    async def later(event: Any) -> None:
        raise AssertionError(event)

    with pytest.raises(InvalidArgumentError, match="handler makes a coroutine"):
        events.subscribe(later)


async def test_operations_emit_no_keys(kind: str, own_map: ShardMap, told: list[Any]) -> None:
    async with opened(kind, own_map) as face:
        users = face.kit.hash("SECRET-KEY", component="own_shards")
        await face.value(users.hset(7, "SECRET-VALUE"))
        told.clear()
        assert await face.value(users.hget(7)) == b"SECRET-VALUE"
        assert names(told) == ["CallStarted", "CommandsSent", "CommandsFinished", "CallFinished"]
        started, sent, finished, ended = told
        assert started.name == ended.name == "ShardedHash.hget"
        assert (sent.name, sent.count) == ("HGET", 1)
        assert sent.shard.startswith("own_shards:")
        assert sent.address.startswith("localhost:")
        assert finished.sent is sent
        assert 0 < finished.seconds <= ended.seconds
        if face.blocks:
            assert finished.waited is None
        else:  # in the queue of the loop's connection
            assert 0 <= finished.waited < finished.seconds
        assert ended.started is started
        assert ended.error is None
        assert "SECRET" not in str(told)


async def test_one_event_for_each_server(kind: str, own_map: ShardMap, told: list[Any]) -> None:
    async with opened(kind, own_map) as face:
        pipe = face.kit.key_sharded("own_shards").pipeline()
        for n in range(100):
            pipe.set(f"k{n}", n)
        await face.value(pipe.execute())
        sent = of(told, events.CommandsSent)
        assert {event.shard for event in sent} == {f"own_shards:{n}" for n in range(4)}
        assert sum(event.count for event in sent) == 100
        assert {event.name for event in sent} == {"SET"}
        finished = of(told, events.CommandsFinished)
        assert len(finished) == 4
        assert {each.waited is None for each in finished} == {face.blocks}
        assert [event.name for event in of(told, events.CallFinished)] == ["pipeline"]
        opened_for = {event.shard for event in of(told, events.ConnectionOpened)}
    closed_for = {event.shard for event in of(told, events.ConnectionClosed)}
    assert opened_for == closed_for  # of whichever used it first
    assert len(opened_for) == 1
    assert opened_for < {event.shard for event in sent}


async def test_transactions_list_commands(kind: str, own_map: ShardMap, told: list[Any]) -> None:
    async with opened(kind, own_map) as face:
        inner = (command("own", "k", "INCR"), command("own", "k", "GET"))
        batch = [Transaction("own", "k", inner), command("own", "k", "STRLEN")]
        assert await face.send(*batch) == [[1, b"1"], 1]
        [sent] = of(told, events.CommandsSent)
    assert list(sent.commands_of()) == [("INCR", "k"), ("GET", "k"), ("STRLEN", "k")]


async def test_every_event_is_told(kind: str, own_server: LocalServer, told: list[Any]) -> None:
    with scripted(GET=None) as bad:
        fields = {"port": bad.port, "breaker": {"failures": 2, "interval": 0.05, "min_seconds": 0}}
        async with opened(kind, mapped(fields)) as face:
            await face.send(command("data", "k", "GET", idempotent=True))
            await face.send(command("data", "k", "GET"))
            bad.close()
            for _ in range(3):
                await face.send(command("data", "k", "GET"))
            face.kit.breakers.all()[0].close()
    failed = of(told, events.CommandsFailed)
    assert [each.maybe_executed for each in failed[:2]] == [True, True]
    assert [(each.count, each.attempt) for each in of(told, events.CommandsRetried)][:1] == [(1, 1)]
    assert of(told, events.ConnectionOpened)
    assert of(told, events.ConnectionClosed)
    assert of(told, events.BreakerOpened)[0].address == f"localhost:{bad.port}/0"
    assert of(told, events.BreakerClosed)[0].seconds >= 0


async def test_loaded_scripts_are_reported(kind: str, own_map: ShardMap, told: list[Any]) -> None:
    script = Script("tests/one", "return 1 --" + kind)
    async with opened(kind, own_map) as face:
        for _ in range(2):
            assert await face.send(script_call(Shard("own"), script, ["k"])) == [1]
    assert [each.script for each in of(told, events.ScriptLoaded)] == ["tests/one"]
    assert of(told, events.CommandsSent)[-1].name == "tests/one"


def test_a_changed_entry_is_told(own_map: ShardMap, told: list[Any]) -> None:
    with shardkit.connect(own_map) as kit:
        kit.topology.changed(kit.component("own_shards"))
    assert [each.component for each in of(told, events.EntryChanged)] == ["own_shards"]


def test_a_handler_that_fails_harms_nobody(
    own_map: ShardMap, told: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(event: object) -> None:
        raise RuntimeError("no")

    stop = events.subscribe(fails)
    try:
        with shardkit.connect(own_map) as kit:
            assert kit.client("own").ping()
    finally:
        stop()
    assert of(told, events.CommandsFinished)
    assert "the event handler" in caplog.text


def test_events_can_be_logged(own_map: ShardMap, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "shardkit")
    stop = events.log()
    try:
        with shardkit.connect(own_map) as kit:
            kit.client("own").get("k")
            kit.close()
    finally:
        stop()
    assert "CommandsSent(shard='own'" in caplog.text
    assert "ConnectionOpened" in caplog.text
