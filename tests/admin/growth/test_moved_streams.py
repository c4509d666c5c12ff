"""Streams whose pending entries were deleted or trimmed, in the copy and in the comparison."""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis
from growth_helpers import PATIENT, Fleet, certified
from test_looks_again import call, faces

from shardkit.admin.growth import compare


def described(client: Any, key: str) -> Any:
    """A stream as XINFO STREAM FULL has it, but for times of delivery."""
    found = client.xinfo_stream(key, full=True)
    for name in ("radix-tree-keys", "radix-tree-nodes"):
        del found[name]
    for group in found["groups"]:
        group["pending"] = [[*each[:2], each[3]] for each in group["pending"]]
        for consumer in group["consumers"]:
            consumer["pending"] = [[each[0], each[2]] for each in consumer["pending"]]
            for name in ("seen-time", "active-time"):
                consumer.pop(name, None)
    return found


def fill(client: redis.Redis, key: str, seed: int, size: int) -> None:
    """Write a stream with consumers, and delete some of what they have."""
    chance = random.Random(seed)
    ids: list[bytes] = []
    for group in ("a", "b", "empty"):
        client.xgroup_create(key, group, "0", mkstream=True)
    client.xgroup_createconsumer(key, "a", "idle")
    for n in range(60):
        ids.append(client.xadd(key, {"n": n, "v": "x" * size}))  # type: ignore[arg-type]
        if chance.random() < 0.6:
            names = chance.choice("ab"), chance.choice(["one", "two"])
            client.xreadgroup(*names, {key: ">"}, count=chance.randrange(1, 9))
        if chance.random() < 0.2:
            client.xdel(key, *chance.sample(ids, min(len(ids), 4)))
        if chance.random() < 0.1:
            client.xack(key, "a", *chance.sample(ids, min(len(ids), 3)))
        if chance.random() < 0.1:
            pending = client.xpending_range(key, "a", "-", "+", 5)
            held = [each["message_id"] for each in pending]
            if held:
                client.xclaim(key, "a", "two", 0, held)
    end = seed % 4
    if end == 1:
        client.xtrim(key, maxlen=3, approximate=False)
    elif end == 2:
        client.xtrim(key, maxlen=0, approximate=False)
    elif end == 3:
        client.xdel(key, ids[-1])


@faces
@pytest.mark.parametrize("size", [10, 20_000])
def test_streams_keep_pending_entries_that_were_deleted(fleet: Fleet, face: str, size: int) -> None:
    fleet.push(0)
    with fleet.servers[0].client(db=2) as old:
        for seed in range(4):
            fill(old, f"{{3}}{seed}", seed, size)
        before = {seed: described(old, f"{{3}}{seed}") for seed in range(4)}
        gone = [
            each
            for seed, found in before.items()
            for group in found["groups"]
            for each in group["pending"]
            if not old.xrange(f"{{3}}{seed}", each[0], each[0])
        ]
        assert gone
    move = ["users:1"], fleet.name(1)
    certified(call(face, "start_move", fleet.config, *move, hold=PATIENT))
    with fleet.servers[1].client(db=2) as new:
        for seed, found in before.items():
            assert described(new, f"{{3}}{seed}") == found, seed


def test_a_deleted_pending_entry_that_is_missing_is_a_difference(fleet: Fleet) -> None:
    with fleet.servers[0].client() as one, fleet.servers[1].client() as other:
        fill(one, "s", 2, 10)
        other.restore("s", 0, one.dump("s"))  # type: ignore[arg-type]
        clients = (lambda _: one), (lambda _: other)
        assert compare(*clients, [0]).same
        [first, *_] = one.xpending_range("s", "a", "-", "+", 1)
        assert not one.xrange("s", first["message_id"], first["message_id"])
        other.xack("s", "a", first["message_id"])
        assert not compare(*clients, [0]).same
