"""Simulated servers answer as real ones: random commands and scripts, on both, reply by reply."""

from __future__ import annotations

from typing import Any

import hiredis
import redis
from hypothesis import HealthCheck, example, given, settings, strategies as st
from redis.exceptions import ResponseError

from shardkit.local import LocalServer
from shardkit.testing.simulation.servers import SimulatedServer

KEYS = st.sampled_from(["s", "h", "l", "z", "m", "x"])
TEXT = st.sampled_from(["", "a", "b", "7", "-3", "1.5", "\x00\xff", "long " * 20])
NUMBER = st.integers(-3, 4).map(str)
SCORE = st.sampled_from(["0", "1", "-2.5", "3", "inf", "-inf", "nan?"])
# Of each what comes after its key.
COMMANDS: dict[str, list[st.SearchStrategy[str]]] = {
    **{name: [] for name in ("GET", "DEL", "TYPE", "EXISTS", "INCR", "STRLEN", "TTL", "PERSIST")},
    **{name: [] for name in ("HGETALL", "HLEN", "SCARD", "SMEMBERS", "LLEN", "ZCARD")},
    **{name: [] for name in ("LPOP", "RPOP", "HKEYS", "HVALS", "UNLINK", "PTTL", "ZPOPMIN")},
    **{name: [TEXT] for name in ("SET", "APPEND", "SETNX", "SADD", "SREM", "SISMEMBER", "ZREM")},
    **{name: [TEXT] for name in ("LPUSH", "RPUSH", "RPUSHX", "HGET", "HDEL", "HEXISTS", "ZSCORE")},
    **{name: [TEXT, TEXT] for name in ("HSET", "HSETNX", "HMGET", "SADD", "RPUSH", "SMISMEMBER")},
    **{name: [NUMBER, NUMBER] for name in ("GETRANGE", "LRANGE", "LTRIM", "ZRANGE", "ZREVRANGE")},
    **{name: [NUMBER] for name in ("INCRBY", "DECRBY", "LINDEX", "EXPIRE")},
    "LSET": [NUMBER, TEXT],
    "LREM": [NUMBER, TEXT],
    "HINCRBY": [TEXT, NUMBER],
    "ZADD": [SCORE, TEXT],
    "ZINCRBY": [SCORE, TEXT],
    "ZCOUNT": [SCORE, SCORE],
    "ZRANGEBYSCORE": [SCORE, SCORE],
    "ZREMRANGEBYSCORE": [SCORE, SCORE],
    "ZRANK": [TEXT],
    "SETRANGE": [st.sampled_from(["0", "3"]), TEXT],
    "GETDEL": [],
    "ZREMRANGEBYRANK": [NUMBER] * 2,
}
SCRIPTS = {
    "call": "return redis.call(unpack(ARGV))",
    "pcall": "local r = redis.pcall(unpack(ARGV)); return type(r) == 'table' and r.err or r",
    "types": "return {redis.call('EXISTS', KEYS[1]), {1.9, 'a', false, 'never'}, {ok = 'OK'}}",
    "json": "return cjson.encode({redis.call('TYPE', KEYS[1]).ok, #ARGV, tonumber(ARGV[2]) or 0})",
    "text": "return {string.format('%.17g', 0.1), tostring(2^53), 10 / 4, math.floor(-1.5)}",
}


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    key = draw(KEYS)
    args = [name, key, *(draw(each) for each in COMMANDS[name])]
    if draw(st.integers(0, 3)):
        return args
    return ["EVAL", SCRIPTS[draw(st.sampled_from(sorted(SCRIPTS)))], "1", key, *args]


UNORDERED = {"SMEMBERS", "HGETALL", "HKEYS", "HVALS"}


def comparable(args: list[str], reply: Any) -> Any:
    """Return a reply without what servers may answer differently: order, and texts of errors."""
    if isinstance(reply, ResponseError):
        return "an error"
    if args[0] == "EVAL" and "pcall" in args[1] and isinstance(reply, bytes):
        return reply.partition(b" ")[0]
    ordered = not (UNORDERED & {args[0], args[4] if args[0] == "EVAL" else ""})
    if isinstance(reply, list) and not ordered:
        return sorted(map(str, reply))
    return reply


class Simulated:
    """A client of a simulated server."""

    def __init__(self) -> None:
        self.server = SimulatedServer("simulated", lambda: 1.0, log=True)
        self.replies: list[bytes] = []
        self.socket = self.server.connect(0, self.replies.append)

    def ask(self, args: list[str]) -> Any:
        self.server.execute(self.socket, [arg.encode("latin-1") for arg in args])
        reader = hiredis.Reader(replyError=ResponseError)
        reader.feed(self.replies.pop())
        return reader.gets()


def ask(client: redis.Redis, args: list[str]) -> Any:
    try:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*(arg.encode("latin-1") for arg in args))
            return connection.read_response()
        finally:
            client.connection_pool.release(connection)
    except ResponseError as error:
        return error


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(commands(), min_size=5, max_size=30))
@example([["HSET", "h", "", ""], ["EXPIRE", "h", "0"], ["APPEND", "h", ""]])
def test_random_commands_and_scripts_are_answered_as_by_a_real_server(
    own_server: LocalServer, steps: list[list[str]]
) -> None:
    with own_server.client() as client:
        client.flushall()
        simulated = Simulated()
        for args in steps:
            expected, found = ask(client, args), simulated.ask(args)
            assert comparable(args, found) == comparable(args, expected), args
        # A replica that takes over, or a restart, has the same: what the log makes of it.
        read = {"string": ["GET"], "hash": ["HLEN"], "list": ["LRANGE", "0", "-1"]}
        read |= {"set": ["SCARD"], "zset": ["ZRANGE", "0", "-1", "WITHSCORES"], "none": ["GET"]}

        def contents() -> list[Any]:
            found = []
            for key in "shlzmx":
                name, *more = read[simulated.ask(["TYPE", key]).decode()]
                found.append(simulated.ask([name, key, *more]))
            return found

        before = contents()
        simulated.server.lose(2.0, lambda at: None)
        simulated.socket = simulated.server.connect(0, simulated.replies.append)
        assert contents() == before
