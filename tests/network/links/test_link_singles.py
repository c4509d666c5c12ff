"""A single command takes a connection that rests in its pool, and the pool's promises hold."""

from __future__ import annotations

from typing import Any

import pytest
from link_helpers import exit_code, forked, in_threads, mapped

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.local import LocalServers
from shardkit.operations.commands import Command


def ask(kit: ShardKit, *args: Any, to: str = "one") -> Any:
    [reply] = kit.driver.link.send([Command(to, args[1] if len(args) > 1 else "k", args)])
    return reply


def limited(servers: LocalServers, **fields: Any) -> ShardMap:
    return mapped({"port": servers.server_of("one").port, **fields}, "one")


def test_single_commands_of_a_thread_go_over_one_connection(kit: ShardKit) -> None:
    assert len({ask(kit, "CLIENT", "ID") for _ in range(20)}) == 1


def test_ended_threads_leave_their_connection(kit: ShardKit, servers: LocalServers) -> None:
    ids = {in_threads(1, lambda _: ask(kit, "CLIENT", "ID"))[0] for _ in range(5)}
    assert len(ids) == 1
    assert ask(kit, "CLIENT", "ID") in ids


def test_threads_share_what_a_limit_leaves_them(servers: LocalServers) -> None:
    with shardkit.connect(limited(servers, max_connections=1)) as kit:
        assert ask(kit, "SET", "k", "v") == b"OK"
        assert [in_threads(1, lambda _: ask(kit, "GET", "k")) for _ in range(3)] == [[b"v"]] * 3
        assert kit.client("one").get("k") == b"v"  # the same connection, lent to redis-py


def test_a_child_makes_a_connection_of_its_own(kit: ShardKit) -> None:
    client = kit.client("one")
    number = ask(kit, "CLIENT", "ID")

    def use() -> None:
        assert number not in (ask(kit, "CLIENT", "ID"), client.client_id())  # the parent's client

    assert exit_code(forked(use)) == 0
    assert ask(kit, "CLIENT", "ID") == number


@pytest.mark.parametrize("fields", [{"health_check_interval": 1}, {"protocol": 3}])
def test_entries_that_want_more_get_it(servers: LocalServers, fields: dict[str, Any]) -> None:
    with shardkit.connect(limited(servers, **fields)) as kit:
        assert ask(kit, "SET", "k", "v") == b"OK"
        assert ask(kit, "GET", "k") == b"v"
        refused = ask(kit, "INCR", "k")
        assert isinstance(refused, shardkit.CommandRefused)
