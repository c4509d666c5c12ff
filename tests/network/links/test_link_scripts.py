"""Scripts and transactions over links, on servers that know the script or do not."""

from __future__ import annotations

from typing import Any

import pytest
from link_helpers import Face, command, count_of, opened, script_call
from redis.exceptions import ExecAbortError, ResponseError

from shardkit import CommandRefused, ShardMap
from shardkit.local import LocalServers
from shardkit.operations import Command, Script, Transaction

BUMP = Script("bump", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
BROKEN = Script("broken", "return return")


def bump(key: str, by: int = 1, to: str = "many") -> Command:
    return script_call(to, BUMP, [key], [by])


async def test_scripts_run_on_servers_without_them(face: Face, servers: LocalServers) -> None:
    keys = [f"k{n}" for n in range(200)]
    before = sum(count_of(server, "eval") for server in servers.servers)
    assert await face.send(*map(bump, keys)) == [1] * 200
    assert await face.send(*map(bump, keys)) == [2] * 200
    # The text went once to each of the four servers of 16 shards, and never again.
    assert sum(count_of(server, "eval") for server in servers.servers) - before == 4


async def test_a_script_that_does_not_compile_is_an_error_that_says_so(face: Face) -> None:
    good, bad, other = await face.send(
        bump("k1"), script_call("many", BROKEN, ["k2"]), command("many", "k3", "SET", 1)
    )
    assert (good, other) == (1, b"OK")
    assert isinstance(bad, CommandRefused)
    assert bad.command == "broken"
    assert "compil" in str(bad)


async def test_a_restarted_server_gets_its_scripts_again(kind: str) -> None:
    plan = ShardMap.parse("components: {data: {shards: [{port: 7001}, {port: 7002}]}}")
    with LocalServers(plan, ports="free") as servers:
        async with opened(kind, servers.shard_map) as face:
            keys = [f"k{n}" for n in range(20)]
            for _ in range(2):
                replies = await face.send(*[bump(key, to="data") for key in keys])
                assert replies == [1] * 20
                for server in servers.servers:
                    server.restart()  # keeps no data
            assert await face.send(bump("k0", to="data")) == [1]


LUA: list[tuple[str, Any]] = [
    ("true", 1),
    ("false", None),
    ("3.7", 3),
    ("-3.7", -3),
    ("2^53", 2**53),
    ("1e30", -(2**63)),
    ("'text'", b"text"),
    ("'\\0\\255'", b"\x00\xff"),
    ("string.format('%.0f', 1e14)", b"100000000000000"),
    ("{}", []),
    ("{1, 'two', {3, {4}}}", [1, b"two", [3, [4]]]),
    ("{1, 2, nil, 4}", [1, 2]),
    ("{1, false, true, 4.9}", [1, None, 1, 4]),
    ("{ok = 'FINE'}", b"FINE"),
    ("redis.call('SET', 'lua', 1)", b"OK"),
    ("redis.call('GET', 'absent')", None),
    ("redis.call('HGETALL', 'absent')", []),
]


@pytest.mark.parametrize(("lua", "python"), LUA)
async def test_lua_values_become_these_replies(face: Face, lua: str, python: Any) -> None:
    script = Script("value", f"return {lua}")
    for _ in range(2):  # by its text, by its SHA-1
        assert await face.send(script_call("one", script, ["k"])) == [python]
    together = await face.send(*[script_call("one", script, ["k"])] * 3)
    assert together == [python] * 3
    [group] = await face.send(Transaction("one", "k", (script_call("one", script, ["k"]),)))
    assert group == [python]


def group(key: str, *commands: Any, to: str = "many") -> Transaction:
    return Transaction(to, key, tuple(commands))


async def test_an_error_inside_a_transaction_stands_in_its_place(face: Face) -> None:
    k = "k"
    replies = await face.send(
        command("many", k, "SET", "text"),
        group(
            k,
            command("many", "k2", "INCR"),
            command("many", k, "LPUSH", 1),
            command("many", k, "GET"),
        ),
        command("many", k, "STRLEN"),
    )
    assert replies.failed
    assert replies[0::2] == [b"OK", 4]
    one, wrong, read = replies[1]
    assert (one, read) == (1, b"text")
    assert isinstance(wrong, CommandRefused)
    assert wrong.command == "LPUSH"
    assert "WRONGTYPE" in str(wrong)


async def test_an_aborted_transaction_says_why_and_did_nothing(face: Face) -> None:
    before, aborted, after = await face.send(
        command("many", "a", "SET", 1),
        group("b", command("many", "b", "SET", 1), Command("many", "b", ("NOSUCH", "b"))),
        command("many", "b", "GET"),
    )
    assert (before, after) == (b"OK", None)
    assert isinstance(aborted, CommandRefused)
    assert aborted.command == "MULTI"
    assert isinstance(aborted.error, ResponseError)
    assert not isinstance(aborted.error, ExecAbortError)
    assert "the server has no command NOSUCH" in str(aborted)
