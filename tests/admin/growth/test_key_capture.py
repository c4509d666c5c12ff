"""Which keys of a server have changed, for who copies them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from shardkit.admin.growth.journal import KEYS, Move
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.admin.growth.rule import rule_of
from shardkit.admin.growth.shard_copy import (
    NEAR,
    DatabaseCopy,
    KeyCapture,
    following,
    turn_on_notifications,
)
from shardkit.errors import GrowthError, MissedChangesError
from shardkit.local import LocalServer

FENCE_KEY = "config:fence"


@contextmanager
def capturing(client: redis.Redis) -> Iterator[KeyCapture]:
    turn_on_notifications(client)
    capture = KeyCapture(client, [0])
    try:
        yield capture
    finally:
        capture.close()


def test_changes_are_not_taken_for_complete_after_the_connection_was_lost() -> None:
    with LocalServer() as server, server.client() as client, capturing(client) as capture:
        client.set("told", 1)
        capture.wait_until_told()
        assert capture.take() == {(0, b"told"): True}
        client.set("told", 2)
        client.client_kill_filter(_type="pubsub")
        for ask in (capture.wait_until_told, capture.take):
            with pytest.raises(GrowthError, match="that tells of changes was lost"):
                ask()


def test_a_lost_link_is_noticed(own_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_server.client() as client, capturing(client) as capture:
        away = redis.ConnectionError("away")
        monkeypatch.setattr(capture._connection, "send_command", Mock(side_effect=away))
        for ask in (capture.wait_until_told, capture.take):
            with pytest.raises(GrowthError, match=r"tells of changes was lost \(away\); copy a"):
                ask()


@pytest.mark.parametrize(("patience", "looks"), [(60.0, 3), (-1.0, 1)])
def test_a_copy_catches_up(monkeypatch: pytest.MonkeyPatch, patience: float, looks: int) -> None:
    monkeypatch.setattr("shardkit.admin.growth.shard_copy._PATIENCE", patience)
    much = {(number, FENCE_KEY.encode()): True for number in range(NEAR + 1)}
    little = {(number, FENCE_KEY.encode()): True for number in range(NEAR)}
    capture: Any = Mock(take=Mock(side_effect=[much, much, little]))
    nobody: Any = None
    DatabaseCopy(nobody, {}, {}, nobody, b"", capture).follow(lambda: True)
    assert capture.take.call_count == looks


def test_a_silent_or_lost_server_stops_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.admin.growth.shard_copy._BARRIER", 0.05)
    with LocalServer() as server, server.client() as client:
        with capturing(client) as capture:
            client.mset({f"k{n}": n for n in range(5)})
            capture.wait_until_told()
            assert [len(capture.take(3)), len(capture.take(3))] == [3, 2]
            server.pause()
            try:
                with pytest.raises(GrowthError, match="does not answer: nothing has changed; try"):
                    capture.wait_until_told()
            finally:
                server.resume()
        client.execute_command("ACL", "SETUSER", "default", "-psubscribe")
        said = r"does not tell of changed keys: .*psubscribe.*; see docs/rights\.md"
        with pytest.raises(GrowthError, match=said):
            KeyCapture(client, [0])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (GrowthError("the target is full", "empty it"), "^the target is full; empty it$"),
        (redis.ConnectionError("away"), "^the copy was interrupted: away; resume it$"),
    ],
)
def test_a_copy_reports_that_it_could_not_follow(error: Exception, said: str) -> None:
    nobody: Any = None
    copy = DatabaseCopy(nobody, {}, {}, nobody, b"", nobody)
    copy.follow = Mock(side_effect=error)  # type: ignore[method-assign]
    with pytest.raises(GrowthError, match=said), following([copy]):
        pass


def test_a_value_that_the_target_refuses_stops_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalServer() as server, server.client(db=0) as old, server.client(db=1) as new:
        old.set("k", "v" * 100)
        new.set(FENCE_KEY, b"mine")
        server_is_full = "maxmemory", 1
        old.config_set(*server_is_full)
        source, target = Place(ServerAddress("old", 1), 0), Place(ServerAddress("new", 1), 1)
        move = Move("users:1", KEYS, "old:1", "new:1", ["users:1"], [str(source)], [str(target)])
        nobody: Any = None
        copy = DatabaseCopy(source.server, {0: old}, {target: new}, rule_of(move), b"mine", nobody)
        said = "^users:1: the target refuses key k: command not allowed when used memory"
        with pytest.raises(GrowthError, match=said):
            copy._copy_changed([(0, b"k")])
        old.config_set("maxmemory", 0)
        copy._copy_changed([])  # what failed before is copied again
        assert new.get("k") == b"v" * 100
        old.set("k2", 1)
        with monkeypatch.context() as patched:
            take = copy._take
            patched.setattr(copy, "_take", lambda *args: take(*args[:3], [-1, b"a value"]))
            said = "^users:1: the target refuses key k2: DUMP payload version or checksum are wr"
            with pytest.raises(GrowthError, match=said):
                copy._copy_changed([(0, b"k2")])
        new.set(FENCE_KEY, b"another's")
        with pytest.raises(GrowthError, match="another process has taken over this move; see:"):
            copy._copy_changed([])


def test_what_a_capture_needs(own_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_server.client() as client:
        client.config_set("notify-keyspace-events", "Ex")
        with pytest.raises(MissedChangesError, match="notify-keyspace-events was changed"):
            KeyCapture(client, [0])
        turn_on_notifications(client)
        monkeypatch.setattr(
            "shardkit.admin.growth.shard_copy._calls", lambda stats: defaultdict(str)
        )
        with pytest.raises(GrowthError, match=r"does not count calls .*; move the whole server: "):
            KeyCapture(client, [0])
        assert client.client_list(_type="pubsub") == []


def test_a_capture_is_complete_until_keys_may_change_without_a_notification() -> None:
    with LocalServer() as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-object")  # refused, and counted
        for command in ("CONFIG RESETSTAT", "SWAPDB 0 1", "REPLICAOF NO ONE"):
            with capturing(client) as capture:
                client.set("k", 1)
                client.config_get("notify-keyspace-events")
                capture.require_complete()
                client.execute_command(*command.split())
                name = command.split()[0] if "CONFIG" not in command else command
                with pytest.raises(MissedChangesError, match=f"{name}.* was called; copy again"):
                    capture.require_complete()
