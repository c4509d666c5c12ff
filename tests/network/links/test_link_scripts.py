"""Scripts and transactions over links, on servers that know the script or do not."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from link_helpers import Face, command, count_of, forget_scripts, opened
from redis.exceptions import ExecAbortError, NoScriptError, ResponseError

from shardkit import CommandRefused, ShardMap
from shardkit.local import LocalServers
from shardkit.operations import Command, Script, Transaction
from shardkit.operations.commands import script_call

BUMP = Script("bump", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
ECHO = Script("echo", "return ARGV")
BROKEN = Script("broken", "return return")
FAILING = Script("failing", "redis.call('SET', KEYS[1], 'x'); return redis.call('INCR', KEYS[1])")


def bump(key: str, by: int = 1, to: str = "many") -> Command:
    return script_call(to, BUMP, [key], [by])


async def test_scripts_run_on_servers_without_them(face: Face, servers: LocalServers) -> None:
    keys = [f"k{n}" for n in range(200)]
    before = sum(count_of(server, "eval") for server in servers.servers)
    assert await face.send(*map(bump, keys)) == [1] * 200
    assert await face.send(*map(bump, keys)) == [2] * 200
    # The text went once to each of the four servers of 16 shards, and never again.
    assert sum(count_of(server, "eval") for server in servers.servers) - before == 4


async def test_one_script_call_takes_the_short_way_once_it_is_known(face: Face) -> None:
    assert [await face.send(bump("k", n)) for n in (1, 2, 3)] == [[1], [3], [6]]


async def test_forgotten_scripts_are_sent_again(face: Face, servers: LocalServers) -> None:
    keys = [f"k{n}" for n in range(50)]
    await face.send(*map(bump, keys))
    forget_scripts(*servers.servers)
    batch: list[Any] = []
    for key in keys:
        batch += [command("many", f"{key}:other", "SET", key), bump(key), bump(key)]
        batch += [command("many", f"{key}:other", "GET"), script_call("many", ECHO, [key], [key])]
    replies = await face.send(*batch)
    assert not replies.failed
    for n, key in enumerate(keys):
        sent, first, second, read, echoed = replies[5 * n : 5 * n + 5]
        assert sent == b"OK"
        assert sorted([first, second]) == [2, 3]
        assert read == key.encode()
        assert echoed == [key.encode()]
    forget_scripts(*servers.servers)
    assert await face.send(bump("k0")) == [4]


async def test_a_script_that_does_not_compile_is_an_error_that_says_so(face: Face) -> None:
    good, bad, other = await face.send(
        bump("k1"), script_call("many", BROKEN, ["k2"]), command("many", "k3", "SET", 1)
    )
    assert (good, other) == (1, b"OK")
    assert isinstance(bad, CommandRefused)
    assert bad.command == "broken"
    assert "compil" in str(bad)


async def test_a_script_that_fails_leaves_the_others_alone(face: Face) -> None:
    replies = await face.send(
        *[script_call("one", FAILING, [f"k{n}"]) for n in range(3)], bump("k", to="one")
    )
    assert [type(reply) for reply in replies] == [CommandRefused] * 3 + [int]
    assert "not an integer" in str(replies[0])
    assert await face.send(command("one", "k1", "GET")) == [b"x"]  # no rollback


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


async def test_an_error_that_a_script_returns_is_refused_with_its_text(face: Face) -> None:
    for text in ("return redis.error_reply('MINE too many')", "return {err = 'MINE too many'}"):
        [reply] = await face.send(script_call("one", Script("refuses", text), ["k"]))
        assert isinstance(reply, CommandRefused)
        assert "too many" in str(reply)


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


async def test_a_refused_command_of_a_transaction_names_its_own_key(face: Face) -> None:
    """Also if the transaction, and the command in it, are placed by another key."""
    texts, members = "{k}texts", "{k}members"
    await face.send(command("many", texts, "SET", "x"), command("many", members, "SADD", "x"))
    inner = [
        Command("many", texts, ("STRLEN", texts)),
        Command("many", texts, ("INCR", members)),
        Command("many", texts, ("PFCOUNT", texts, members)),
        Command("many", texts, ("SINTERSTORE", "{k}both", members, texts)),
    ]
    [replies] = await face.send(group(texts, *inner))
    assert [getattr(reply, "key", reply) for reply in replies] == [
        *(1, members, f"one of {texts}, {members}", f"one of {{k}}both, {members}, {texts}"),
    ]


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


async def test_forgotten_scripts_run_in_transactions(face: Face, servers: LocalServers) -> None:
    for _ in range(2):
        k = "k"
        [replies] = await face.send(group(k, bump(k), command("many", k, "GET"), bump(k, 10)))
        assert replies[2] - replies[0] == 10
        assert replies[1] == str(replies[0]).encode()
        forget_scripts(*servers.servers)


async def test_an_empty_transaction_has_no_replies(face: Face) -> None:
    assert await face.send(group("k"), command("many", "k", "SET", 1)) == [[], b"OK"]


def test_redis_py_tells_a_missing_script_by_its_class(servers: LocalServers) -> None:
    with servers.servers[0].client() as client, pytest.raises(NoScriptError) as raised:
        client.evalsha("0" * 40, 0)
    assert "NOSCRIPT" not in str(raised.value)  # so its text does not tell
    assert isinstance(raised.value, redis.ResponseError)
