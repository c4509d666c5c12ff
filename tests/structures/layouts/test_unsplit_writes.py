"""Writes to groups that need no split: what their script checks and leaves to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import DamagedDataError
from shardkit.local import LocalServer


@pytest.fixture
def kit(own_map: ShardMap) -> Iterator[ShardKit]:
    with shardkit.connect(own_map) as kit:
        yield kit


@pytest.fixture
def client(own_server: LocalServer) -> Iterator[Any]:
    with own_server.client() as client:
        yield client


def state_key(client: Any) -> bytes:
    [key] = client.keys("ids:{*}")
    assert isinstance(key, bytes)
    return key


def opened(kit: ShardKit) -> Any:
    return kit.set("ids", component="own", members=int, parts=1)


def test_one_member_costs_a_check_a_write_and_its_count(kit: ShardKit, client: Any) -> None:
    ids = opened(kit)
    ids.sadd(1, 2, 3)
    client.config_resetstat()
    assert ids.sadd(4) == 1
    assert ids.sadd(4) == 0
    assert ids.srem(4) == 1
    calls = {name: value["calls"] for name, value in client.info("commandstats").items()}
    assert calls["cmdstat_hmget"] == 3
    assert calls["cmdstat_hincrby"] == 2
    assert calls["cmdstat_pexpiretime"] == 2  # a part that is made expires with its group
    assert calls["cmdstat_sadd"] == 2
    assert "cmdstat_exists" not in calls
    assert client.hget(state_key(client), "count") == b"3"


def test_a_writer_that_knows_fewer_parts_writes_nothing_there(kit: ShardKit, client: Any) -> None:
    early, bulk, late = opened(kit), opened(kit), opened(kit)
    early.sadd(1)
    bulk.sadd(1)
    late.sadd_many(range(2_000))
    assert len(client.keys("ids:{*}:*")) > early.layout.parts[0]
    assert early.sadd(5_000, 5_001) == 2
    assert early.srem(7) == 1
    assert bulk.layout.parts[0] < early.layout.parts[0]
    assert bulk.sadd_many(range(1_900, 2_100)) == 100
    assert late.smembers() == {*range(2_100), 5_000, 5_001} - {7}
    assert late.scard() == 2_101
    assert not list(late.check())


def test_writers_that_do_not_know_one_another_split_in_time(kit: ShardKit, client: Any) -> None:
    both = opened(kit), opened(kit)
    for n in range(1_200):
        assert both[n % 2].sadd(n) == 1
    sizes = [client.scard(key) for key in client.keys("ids:{*}:*")]
    assert sum(sizes) == 1_200
    assert max(sizes) <= 512
    assert all(client.object("encoding", key) == b"intset" for key in client.keys("ids:{*}:*"))


def test_a_part_that_a_write_makes_expires_with_its_group(kit: ShardKit, client: Any) -> None:
    ids = kit.set("ids", component="own", members=int, parts=1, total=100_000)
    ids.sadd(1, 2)
    ids.expire(1_000)
    for n in range(10, 30):
        ids.sadd(n)
    due = {client.pexpiretime(key) for key in client.keys("ids:*")}
    assert len(due) == 1
    assert due.pop() > 0


@pytest.mark.parametrize("count", [b"many", b"-3", b"1.5"])
def test_damaged_states_stop_a_write(kit: ShardKit, client: Any, count: bytes) -> None:
    ids = opened(kit)
    ids.sadd(1, 2)
    client.hset(state_key(client), "count", count)
    with pytest.raises(DamagedDataError, match="count"):
        ids.sadd(3)
    assert client.smembers(state_key(client) + b":0") == {b"1", b"2"}


def test_a_part_of_another_type_is_named(kit: ShardKit, client: Any) -> None:
    ids = opened(kit)
    ids.sadd(1, 2)
    part = state_key(client) + b":0"
    client.delete(part)
    client.set(part, "x")
    with pytest.raises(DamagedDataError, match="a STRING"):
        ids.sadd(3)


def test_full_groups_report_expiring_fields(kit: ShardKit, client: Any) -> None:
    table = kit.hash("ids", component="own", parts=1, partition="crc32")
    table.hset(mapping={f"f{n}": "v" for n in range(20)})
    # Another client has given fields a time to live, and most have expired since.
    client.hset(state_key(client), mapping={"expiring": 1, "count": 50_000})
    assert table.hset("new", "v") == 1
    assert table.hset("newer", "v") == 1
    assert client.hgetall(state_key(client))[b"parts"] == b"1"
    assert client.hgetall(state_key(client))[b"count"] == b"22"


def test_the_members_of_small_ends_are_not_overtaken_unseen(kit: ShardKit, client: Any) -> None:
    scores = kit.sorted_set("z", component="own", parts=1, bound=10)
    expected: dict[str, float] = {}
    for n in range(120):
        member, score = f"m{n * 37 % 61}", float(n * 53 % 97)
        assert scores.zadd({member: score}) == (member not in expected)
        expected[member] = score
        if n % 5 == 4:
            gone = f"m{n * 11 % 61}"
            assert scores.zrem(gone) == (expected.pop(gone, None) is not None)
        best = sorted(((s, m) for m, s in expected.items()), reverse=True)
        assert scores.zrange(0, 9, desc=True, withscores=True) == [(m, s) for s, m in best[:10]]
        lowest = [(m, s) for s, m in reversed(best[-10:])]
        assert scores.zrange(0, 9, withscores=True) == lowest
    assert scores.zcard() == len(expected)
    assert not list(scores.check())


def test_a_bulk_load_sends_dozens_of_members_in_a_command(kit: ShardKit, client: Any) -> None:
    ids = kit.set("ids", component="own", members=int)
    ids.sadd_many(range(60_000))
    client.config_resetstat()
    ids.sadd_many(range(60_000, 120_000))
    calls = client.info("commandstats")["cmdstat_sadd"]["calls"]
    assert 60_000 / calls > 24
    assert ids.scard() == 120_000
    assert all(client.object("encoding", key) == b"intset" for key in client.keys("ids:{*}:*"))


def test_one_score_that_is_among_neither_end_leaves_both_alone(kit: ShardKit, client: Any) -> None:
    scores = kit.sorted_set("z", component="own", parts=1, bound=10)
    scores.zadd_many((f"m{n}", n) for n in range(100))
    client.config_resetstat()
    assert scores.zadd({"new": 50}) == 1
    assert scores.zadd({"new": 51.5}) == 0
    assert scores.zrem("new") == 1
    calls = {name: value["calls"] for name, value in client.info("commandstats").items()}
    assert calls["cmdstat_hincrby"] == 2
    assert "cmdstat_zcard" not in calls  # neither top nor bottom was looked at
    assert scores.zadd({"best": 1_000}) == 1
    assert scores.zadd({"m99": 40, "m0": 41}) == 0
    assert scores.zrem("m98", "best") == 2
    assert scores.zrange(0, 2, desc=True) == ["m97", "m96", "m95"]
    assert scores.zrange(0, 1) == ["m1", "m2"]
    assert not list(scores.check())
