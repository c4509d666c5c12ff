"""A server that answers something else than Redis does: one error, which names the command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest
import redis
from damages import SUBJECTS, Waited
from faces import Face, drawn
from relays import Relay
from subjects import MAP

import shardkit
from shardkit import ShardKitError, ShardMap
from shardkit.errors import ShardFailure, UnexpectedReply
from shardkit.local import LocalServer
from shardkit.operations import Command, Operation, Transaction

GARBAGE = {
    "a number": b":7\r\n",
    "an empty list": b"*0\r\n",
    "a text": b"$3\r\nabc\r\n",
    "nothing": b"$-1\r\n",
    "a list of a list": b"*1\r\n*0\r\n",
    "numbers": b"*2\r\n:1\r\n:-1\r\n",
    "bytes that are no text": b"$2\r\n\xff\xfe\r\n",
    "a list of several kinds": b"*3\r\n$2\r\n\xff\xfe\r\n$-1\r\n$1\r\nx\r\n",
}


class Relayed:
    """A kit that a relay answers, and another one that the server does."""

    def __init__(self, server: LocalServer, awaits: bool) -> None:
        self.relay = Relay(server.port)
        self.runner = asyncio.Runner() if awaits else None
        self.direct = shardkit.connect(ShardMap.parse(MAP.replace("7001", str(server.port))))
        shard_map = ShardMap.parse(MAP.replace("7001", str(self.relay.port)))
        if self.runner is None:
            self.kit: Any = shardkit.connect(shard_map)
        else:
            self.kit = self.runner.run(shardkit.aconnect(shard_map))
        self.face = Face(self.kit, self.runner)

    def call(self, name: str, call: Callable[[Any], Any]) -> None:
        opened = SUBJECTS[name].open(self.kit)
        result = call(opened if self.runner is None else Waited(opened, self.runner))
        if hasattr(result, "__anext__") or hasattr(result, "__next__"):
            self.face.list(result)

    def garbled(self, call: Callable[[], Any], at: int, reply: bytes) -> Exception | None:
        """Make a call of which the reply of a number is replaced; return its error."""
        self.relay.count, self.relay.nth = 0, {at: reply}
        try:
            call()
        except Exception as error:
            return error
        finally:
            self.relay.nth = {}
        return None

    def close(self) -> None:
        if self.runner is None:
            self.kit.close()
        else:
            self.runner.run(self.kit.aclose())
            self.runner.close()
        self.direct.close()
        self.relay.close()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture(params=["blocking", "awaiting"])
def relayed(request: pytest.FixtureRequest, server: LocalServer) -> Iterator[Relayed]:
    with server.client() as client:
        client.flushall()
    with closing(Relayed(server, request.param == "awaiting")) as relayed:
        yield relayed


@pytest.mark.long(6)
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_call_says_which_reply_it_cannot_use(relayed: Relayed, name: str) -> None:
    subject = SUBJECTS[name]
    subject.fill(subject.open(relayed.direct))
    random, calls = Random(name), [*subject.reads.values(), *subject.writes.values(), subject.check]
    raw, tried = [], 0
    for _ in range(drawn(20, 600)):
        call, at = random.choice(calls), random.randrange(5)
        what = random.choice(list(GARBAGE))
        error = relayed.garbled(lambda call=call: relayed.call(name, call), at, GARBAGE[what])  # type: ignore[misc]
        tried += error is not None
        if not isinstance(error, ShardKitError | redis.RedisError | None):
            raw.append((at, what, error))
        if isinstance(error, UnexpectedReply):
            assert error.shard in str(error)
            assert error.command in str(error)
    assert raw == []
    assert tried


# Steps that are shardkit's by their module's name: an error of others' code is never explained.
OWN: dict[str, Any] = {"__name__": "shardkit.structures.example"}
exec("def steps(batch, read):\n    replies = yield batch\n    return read(replies[0])", OWN)
SADD = Command("data", "s", ("SADD", "s", "a"))
WRONG = {
    "a number for GET": (Command("data", "k", ("GET", "k")), b":7\r\n"),
    "fewer values for HMGET": (
        Command("data", "h", ("HMGET", "h", "a", "b")),
        b"*1\r\n$1\r\n1\r\n",
    ),
    "a text for SADD": (SADD, b"$3\r\nabc\r\n"),
    "a number for EXEC": (Transaction("data", "s", (SADD,)), b":1\r\n"),
    "a list for SADD in EXEC": (Transaction("data", "s", (SADD,)), b"*1\r\n*0\r\n"),
}


@pytest.mark.parametrize("what", WRONG)
def test_only_a_wrong_reply_is_taken_for_the_cause(relayed: Relayed, what: str) -> None:
    relayed.direct.client("data").hset("h", mapping={"a": 1, "b": 2})
    relayed.direct.client("data").set("k", "x")
    command, wrong = WRONG[what]

    def run() -> None:
        steps: Operation[Any] = OWN["steps"]([command], [].index)  # a ValueError
        relayed.face.run(relayed.kit.driver.run(steps))

    right = relayed.garbled(run, 99, b"")
    assert type(right) is ValueError  # of the steps, unchanged
    error = relayed.garbled(run, 0, wrong)
    assert isinstance(error, ShardFailure)
    assert error.shard == "data"
    assert error.maybe_executed


def test_what_the_call_of_a_callers_function_raises_is_no_wrong_reply(relayed: Relayed) -> None:
    relayed.direct.search("docs", component="data").index("1", "a text")
    relayed.direct.sorted_set("scores", component="data").zadd({"ada": float("inf")})
    run, kit = relayed.face.run, relayed.kit
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        run(kit.search("docs", component="data").rebuild(progress=lambda done: None))
    scores = kit.sorted_set("scores", component="data")
    for read in (scores.zrange, scores.zrevrange):
        with pytest.raises(OverflowError, match="cannot convert float infinity to integer"):
            run(read(0, -1, withscores=True, score_cast_func=int))
