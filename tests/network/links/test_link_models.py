"""Random batches against a model: whatever is mixed and however it is cut, replies are right."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from link_helpers import Face, command

from shardkit.network.links import multiplexer, resp
from shardkit.operations.commands import Command, Script, Transaction, script_call

BUMP = Script("bump", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
TWICE = Script("twice", "redis.call('INCR', KEYS[1]); return {redis.call('INCR', KEYS[1]), ARGV}")


class Model:
    """Counters, and what commands on them answer."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.counts: dict[str, int] = defaultdict(int)

    def request(self) -> tuple[Command | Transaction, Any]:
        key = f"k{self.dice.randrange(30)}"
        if self.dice.random() < 0.15:
            parts = [self.command(key) for _ in range(self.dice.randrange(5))]
            return Transaction("many", key, tuple(c for c, _ in parts)), [a for _, a in parts]
        return self.command(key)

    def command(self, key: str) -> tuple[Command, Any]:
        kind = self.dice.randrange(5)
        if kind == 0:
            count = self.counts.get(key)
            return command("many", key, "GET"), None if count is None else str(count).encode()
        if kind == 1:
            text = "v" * self.dice.choice([1, 100, 5_000])
            return Command("many", key, ("ECHO", text)), text.encode()
        if kind == 2:
            self.counts[key] += 2
            return script_call("many", TWICE, [key], ["a"]), [self.counts[key], [b"a"]]
        amount = self.dice.randrange(1, 10)
        self.counts[key] += amount
        if kind == 3:
            return script_call("many", BUMP, [key], [amount]), self.counts[key]
        return command("many", key, "INCRBY", amount), self.counts[key]


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
async def test_batches_are_right(face: Face, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(resp, "CHUNK_REQUESTS", chunk)
    monkeypatch.setattr(multiplexer, "MAX_REPLIES", 2 * chunk)
    model = Model(random.Random(chunk))
    for _ in range(25):
        wanted = [model.request() for _ in range(model.dice.choice([1, 2, 10, 150]))]
        replies = await face.send(*[request for request, _ in wanted])
        assert replies == [answer for _, answer in wanted]
