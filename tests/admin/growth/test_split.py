"""Another number of shards, on real servers, under clients that write all the time."""

from __future__ import annotations

import json
from typing import Any

from growth_helpers import (
    PATIENT,
    Fleet,
    certified,
    check_nothing_lost,
    on_redis_too,
    writing,
)

import shardkit
from shardkit.admin.growth import reverse_move, start_split, verify_move
from shardkit.testing.simulation.linearizability import Register, check_linearizable


def fill(fleet: Fleet) -> dict[str, Any]:
    """Write keys of every type where their names say; return what they are."""
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        router.mset({f"k{n}": "v" * n for n in range(200)})
        router["soon"].set("soon", 1, ex=1000)
        router["hash"].hset("hash", mapping={f"f{n}": n for n in range(3000)})
        router["set"].sadd("set", *range(500))
        router["zset"].zadd("zset", {f"m{n}": n / 3 for n in range(1500)})
        router["list"].rpush("list", *range(2500))
        router["stream"].xadd("stream", {"a": 1}, id="1-1")
        router["stream"].xgroup_create("stream", "readers", "0")
        router["stream"].xreadgroup("readers", "one", {"stream": ">"})
        router["{tag}:1"].set("{tag}:1", "tagged")
    return there(fleet)


def there(fleet: Fleet) -> dict[str, Any]:
    """What `fill` wrote, as a client finds it."""
    with shardkit.connect(fleet.url) as kit:
        router: Any = kit.key_sharded("users")
        assert 0 < router["soon"].ttl("soon") <= 1000
        return {
            "strings": router.mget([f"k{n}" for n in range(200)]),
            "hash": router["hash"].hgetall("hash"),
            "encodings": [router[k].object("encoding", k) for k in ("hash", "set", "zset")],
            "set": router["set"].smembers("set"),
            "zset": router["zset"].zrange("zset", 0, -1, withscores=True),
            "list": router["list"].lrange("list", 0, -1),
            "pending": router["stream"].xpending("stream", "readers"),
            "tagged": router["{tag}:1"].get("{tag}:1"),
        }


@on_redis_too
def test_shards_are_split_under_load_and_back_without_losing_anything(fleet: Fleet) -> None:
    fleet.push(0)
    before = fill(fleet)
    with writing(fleet, shards=None) as writers:
        move = start_split(
            fleet.config, "users", shards=5, over=[fleet.name(1), fleet.name(2)], hold=PATIENT
        )
        assert move.phase == "done"
        assert certified(move)
        assert move.certificate is not None
        assert move.certificate["stale"] == []
        assert json.loads(fleet.config.get("config:shards:users"))["shards"] == 5
        with fleet.servers[0].client(db=1) as old:
            assert set(old.keys()) <= {b"config:fence", b"config:witness"}
            assert old.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
        assert there(fleet) == before
        back = reverse_move(fleet.config, "users", hold=PATIENT)
        assert certified(back)
        assert fleet.masters() == [fleet.name(0)] * 2
        assert there(fleet) == before
    assert writers.errors == []
    assert verify_move(fleet.config, "users").certificate is not None
    check_nothing_lost(fleet, writers)
    check_linearizable(writers.history, Register())
