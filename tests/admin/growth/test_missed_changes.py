"""Moves of shards whose source stops telling of changed keys, for a moment or for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from growth_helpers import PATIENT, Fleet, certified, on_redis_too
from moments import before, uncounted_calls

import shardkit
from shardkit.admin.growth import (
    Move,
    moves,
    resume_move,
    start_move,
    verify_move,
)
from shardkit.errors import GrowthError

FENCE_KEY = "config:fence"

SETTING = "notify-keyspace-events"


class Shard:
    """The keys of ``users:1``, which is in database 2 of the first server."""

    def __init__(self, fleet: Fleet) -> None:
        fleet.push(0)
        self.fleet = fleet
        with shardkit.connect(fleet.url) as kit:
            router = kit.key_sharded("users")
            self.keys = [key for key in (f"k{n}" for n in range(200)) if router.shard_of(key) == 1]
            router.mset(dict.fromkeys(self.keys, "old"))

    def write(self, value: str = "new") -> None:
        """Set half of the keys, and delete the others."""
        with shardkit.connect(self.fleet.url) as kit:
            router = kit.key_sharded("users")
            for key in self.keys[::2]:
                router[key].set(key, value)
            for key in self.keys[1::2]:
                router[key].delete(key)

    def has(self, value: str = "new") -> bool:
        """Whether entries lead to what `write` wrote."""
        with shardkit.connect(self.fleet.url) as kit:
            found = kit.key_sharded("users").mget(self.keys)
        return bool(found[::2] == [value.encode()] * len(found[::2]) and not any(found[1::2]))

    def move(
        self, moment: str, meddle: Callable[[], object], times: int = 1, *, kill: bool = False
    ) -> Move:
        """Move it, and do something else when the mover has come so far."""
        left = [times]

        def tell(what: str) -> None:
            if what.startswith(moment) and left[0]:
                left[0] -= 1
                meddle()

        options: Any = {"hold": PATIENT, "kill": kill, "progress": tell}
        return start_move(self.fleet.config, ["users:1"], self.fleet.name(1), **options)


def set_by_somebody(source: redis.Redis, write: Callable[[], object]) -> None:
    source.config_set(SETTING, "Ex")
    write()


def set_and_set_back(source: redis.Redis, write: Callable[[], object]) -> None:
    before = source.config_get(SETTING)[SETTING]
    source.config_set(SETTING, "Ex")
    write()
    source.config_set(SETTING, before)


def set_back_and_statistics_reset(source: redis.Redis, write: Callable[[], object]) -> None:
    set_and_set_back(source, write)
    source.config_resetstat()
    # As many calls as the mover has seen in the beginning.
    source.config_set(SETTING, source.config_get(SETTING)[SETTING])


def subscription_lost(source: redis.Redis, write: Callable[[], object]) -> None:
    source.client_kill_filter(_type="pubsub")
    write()


def flushed(source: redis.Redis, write: Callable[[], object]) -> None:
    source.client().execute_command("FLUSHALL")
    write()


MEDDLERS = [set_by_somebody, set_and_set_back, set_back_and_statistics_reset]
MEDDLERS += [subscription_lost, flushed]


@pytest.mark.long(6)
@pytest.mark.parametrize("moment", ["copied", "comparing", "holding writers"])
@pytest.mark.parametrize("meddle", MEDDLERS)
def test_doubtful_copies_are_redone(fleet: Fleet, meddle: Callable[..., None], moment: str) -> None:
    shard = Shard(fleet)
    with fleet.servers[0].client() as source:
        source.config_resetstat()
        move = shard.move(moment, lambda: meddle(source, shard.write))
        assert source.config_get(SETTING)[SETTING] == ""
    assert move.phase == "done"
    assert fleet.masters()[1] == fleet.name(1)
    assert shard.has("new")
    assert certified(move)
    assert verify_move(fleet.config, "users:1").certificate == move.certificate | {
        "at": pytest.approx(move.certificate["at"], abs=60)
    }


@on_redis_too
def test_databases_that_are_swapped_during_the_copy_are_copied_again(fleet: Fleet) -> None:
    shard = Shard(fleet)
    with fleet.servers[0].client() as source, fleet.servers[0].client(db=9) as other:
        other.mset(dict.fromkeys(shard.keys[::2], "new"))
        shard.move("copied", lambda: source.swapdb(2, 9))
    assert shard.has("new")


def test_a_move_whose_copies_all_miss_changes_gives_up_and_names_the_cause(fleet: Fleet) -> None:
    shard = Shard(fleet)
    with fleet.servers[0].client() as source, fleet.servers[1].client(db=2) as target:
        said = (
            rf"^users:1 \({fleet.name(0)}\): each of 3 copies may have missed changes "
            r"\(CONFIG SET was called\): nothing has changed for clients; "
            r"correct that, and resume: shardkit move resume users:1$"
        )
        with pytest.raises(GrowthError, match=said):
            shard.move("copied", lambda: set_by_somebody(source, shard.write), times=99)
        assert fleet.masters()[1] == fleet.name(0)
        assert shard.has("new")
        assert [each.phase for each in moves(fleet.config)] == ["begun"]
        shard.write("newer")
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
        assert shard.has("newer")
        assert not target.exists(FENCE_KEY)


def test_a_fence_that_nobody_tells_of_is_noticed(fleet: Fleet) -> None:
    """Even if calls of CONFIG SET were not counted."""
    shard = Shard(fleet)
    with uncounted_calls(), fleet.servers[0].client() as source:
        shard.move("holding writers", lambda: set_by_somebody(source, shard.write))
    assert shard.has("new")


def test_only_held_writers_give_a_same(fleet: Fleet) -> None:
    shard = Shard(fleet)
    seen: list[Any] = []

    def look() -> None:
        [move] = moves(fleet.config)
        seen.append(move.certificate)

    with before("decide", look):
        shard.move("holding writers", look)
    assert seen[0] is None
    assert seen[1]["same"]


def test_what_is_written_at_the_old_place_unnoticed_is_kept(fleet: Fleet) -> None:
    shard = Shard(fleet)
    with fleet.servers[0].client() as source, fleet.servers[0].client(db=2) as old:

        def meddle() -> None:
            source.config_set(SETTING, "Ex")
            old.set("stray", 1)

        move = shard.move("emptying", meddle)
        assert move.certificate is not None
        assert move.certificate["stale"] == ["2 stray"]
        assert old.get("stray") == b"1"


def test_a_target_that_evicts_copied_keys_does_not_take_over(fleet: Fleet) -> None:
    shard = Shard(fleet)
    shard.write()
    with fleet.servers[1].client() as target, fleet.servers[1].client(db=2) as new:

        def evict() -> None:
            fence = new.get(FENCE_KEY)
            target.config_set("maxmemory-policy", "allkeys-random")
            target.config_set("maxmemory", 1)
            while new.dbsize():
                target.ping()  # a server evicts keys before it executes a command
            target.config_set("maxmemory", 0)
            new.set(FENCE_KEY, fence)

        said = f"{fleet.name(1)} was restarted or has evicted keys"
        with pytest.raises(GrowthError, match=said):
            shard.move("holding writers", evict)
        assert fleet.masters()[1] == fleet.name(0)
        assert shard.has("new")
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
        assert shard.has("new")


def change_by_every_command(source: redis.Redis, other: redis.Redis, second: redis.Redis) -> None:
    """Change keys in all ways that send notifications."""
    run: Any = source.execute_command
    run("RENAME", "renamed", "renamed.new")
    run("COPY", "copied", "copied.new")
    run("RESTORE", "restored", 0, source.dump("copied"), "REPLACE")
    other.set("moved", "in")
    other.execute_command("MOVE", "moved", 2)
    second.set("migrated", "in")
    port = source.connection_pool.connection_kwargs["port"]
    second.execute_command("MIGRATE", "127.0.0.1", port, "migrated", 2, 1000)
    run("PEXPIRE", "expired", 1)
    run("EXPIRE", "expires", 1000)
    run("PERSIST", "persists")
    run("HPEXPIRE", "fields", 1, "FIELDS", 1, "gone")
    run("HEXPIRE", "fields", 1000, "FIELDS", 1, "later")
    run("EVAL", "redis.call('SET', KEYS[1], 'in')", 1, "scripted")
    code = "redis.register_function('f', function(k) return redis.call('SET', k[1], 'in') end)"
    source.function_load(f"#!lua name=l\n{code}", replace=True)
    run("FCALL", "f", 1, "called")
    run("LMOVE", "list", "list.new", "LEFT", "RIGHT")
    run("SORT", "list", "ALPHA", "STORE", "sorted")
    run("SUNIONSTORE", "union", "set")
    run("GETEX", "got", "PX", 1)
    with source.pipeline() as pipe:
        pipe.set("in transaction", "in")
        pipe.execute()
    run("XGROUP", "CREATE", "stream", "g", 0)


def dumped(client: redis.Redis) -> dict[Any, Any]:
    return {key: client.dump(key) for key in client.scan_iter() if not key.startswith(b"config:")}


@pytest.mark.parametrize("moment", ["comparing", "holding writers"])
def test_changes_by_every_command_are_copied(fleet: Fleet, moment: str) -> None:
    shard = Shard(fleet)
    a, b = fleet.servers[:2]
    with (
        a.client(db=2) as source,
        a.client(db=5) as other,
        b.client(db=7) as second,
        b.client(db=2) as target,
    ):
        for key in ("renamed", "copied", "expired", "expires", "got"):
            source.set(key, "in")
        source.set("persists", "in", ex=1000)
        source.set("restored", "old")
        source.hset("fields", mapping={"gone": 1, "later": 2, "stays": 3})
        source.rpush("list", "b", "a", "c")
        source.sadd("set", "x")
        for n in (1, 2, 3):
            source.xadd("stream", {"n": n}, id=f"{n}-1")
        done: list[Any] = []

        def meddle() -> None:
            change_by_every_command(source, other, second)
            source.xreadgroup("g", "c", {"stream": ">"}, count=2)
            while moment == "comparing" and target.dump("stream") != source.dump("stream"):
                pass
            # This sends no notification. Streams are copied again at the end.
            source.xack("stream", "g", "1-1")
            while source.hlen("fields") > 2 or source.exists("expired", "got"):
                pass
            done.append(dumped(source))

        assert certified(shard.move(moment, meddle, kill=True))  # MIGRATE keeps a connection
        [expected] = done
        found = dumped(target)
        assert {k for k in expected if found.get(k) != expected[k]} <= {b"fields"}
        assert found.keys() == expected.keys()
        assert target.hgetall("fields") == {b"later": b"2", b"stays": b"3"}
        [ttl] = target.execute_command("HTTL", "fields", "FIELDS", 1, "later")
        assert ttl > 900
        assert (target.ttl("expires") > 900, target.ttl("persists")) == (True, -1)
        assert target.xpending("stream", "g")["pending"] == 1
