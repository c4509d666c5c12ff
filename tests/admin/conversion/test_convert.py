"""Families of keys are copied into structures while clients write them; on two servers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any
from uuid import UUID

import pytest

import shardkit
from shardkit import ShardKit, ShardKitError, ShardMap
from shardkit.admin.conversion.convert import Converted, convert
from shardkit.admin.conversion.forms import Conversion
from shardkit.admin.doctor.targets import databases_with
from shardkit.local import LocalServers

MAP = """
defaults: {host: 127.0.0.1, socket_timeout: 30}
components:
  old: {shards: [{port: 7001}, {port: 7002}, {port: 7001, db: 2}]}
  new: {shards: [{port: 7001, db: 1}, {port: 7002, db: 1}]}
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as running:
        yield running


@pytest.fixture
def kit(servers: LocalServers) -> Iterator[ShardKit]:
    for server in servers.servers:
        with server.client() as client:
            client.flushall()
    with shardkit.connect(servers.shard_map) as opened:
        yield opened


def copied(kit: ShardKit, conversion: Conversion, **options: Any) -> Converted:
    return convert(kit, "new", conversion, databases_with(kit, "old"), **{"share": 1.0, **options})


NAMES = Conversion("user:<n>:name", "string", "strings", "user:name")


def test_changes_that_clients_make_during_the_copy_are_not_lost(kit: ShardKit) -> None:
    keys = [f"user:{n}:name" for n in range(1500)]
    old = kit.key_sharded("old")
    old.mset(dict.fromkeys(keys[:1200], "before"))
    ending, ended = threading.Event(), threading.Event()
    asked = 0

    def write() -> None:
        choose = random.Random(7)
        try:
            while not ending.wait(0.0005):
                key = choose.choice(keys)
                if choose.random() < 0.3:
                    old.delete(key)
                else:
                    old.set(key, f"{choose.random()}")
        finally:
            ended.set()

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        if asked == 10:
            ending.set()
        return ended.is_set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        result = copied(kit, NAMES, stopped=stopped)
    finally:
        ending.set()
        writer.join()
    names = kit.strings("user:name", component="new")
    assert names.mget(range(1500)) == old.mget(keys)
    assert result.followed > 0
    assert result.entries > 900


def test_a_repeated_copy_removes_what_is_gone_and_writes_what_differs(kit: ShardKit) -> None:
    old = kit.key_sharded("old")
    old.mset({f"user:{n}:name": f"name {n}" for n in range(300)})
    assert copied(kit, NAMES).copied == 300
    old.delete("user:7:name")
    old.set("user:8:name", "Ada")
    again = copied(kit, NAMES, offline=True)
    assert (again.copied, again.removed, again.entries) == (1, 1, 299)
    assert kit.strings("user:name", component="new").mget([7, 8]) == [None, b"Ada"]


def test_a_copy_that_was_interrupted_is_completed_by_the_next(kit: ShardKit) -> None:
    kit.key_sharded("old").mset({f"user:{n}:name": "x" for n in range(2000)})

    def interrupt(step: str, entries: int) -> None:
        if entries > 900:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(kit, NAMES, progress=interrupt)
    assert 0 < copied(kit, NAMES).copied < 2000
    assert kit.hash("user:name:strings", component="new").hlen() == 2000


def plain(kit: ShardKit, key: str) -> Any:
    return kit.key_sharded("old")[key]


def records(kit: ShardKit) -> Any:
    for n in range(200):
        plain(kit, f"city:{n}").hset(f"city:{n}", mapping={"name": f"City {n}", "pop": 7 * n})
    return {str(n): {"name": f"City {n}", "pop": str(7 * n)} for n in range(200)}


def numbers(kit: ShardKit) -> Any:
    kit.key_sharded("old").mset({f"score:{n}": n % 5 for n in range(300)})
    return {n: {"value": n % 5, "there": 1} for n in range(300)}


def members(kit: ShardKit) -> Any:
    plain(kit, "ids").sadd("ids", *range(5, 2000))
    return set(range(5, 2000))


def ranks(kit: ShardKit) -> Any:
    scores = {f"player {n}": n / 4 for n in range(2000)}
    plain(kit, "ranks").zadd("ranks", scores)
    return scores


def fields(kit: ShardKit) -> Any:
    plain(kit, "cities").hset("cities", mapping={n: f"City {n}" for n in range(2000)})
    return {str(n): f"City {n}".encode() for n in range(2000)}


CASES: dict[str, tuple[Conversion, Callable[[ShardKit], Any], Callable[[Any], Any]]] = {
    "records": (
        Conversion("city:<n>", "hash", "hash", "city:hash", {"codec": "tokens"}, train=100),
        records,
        lambda found: found.hgetall(),
    ),
    "packed": (
        Conversion(
            "score:<n>", "string", "packed", "scores", {"fields": {"value": "u8", "there": "u1"}}
        ),
        numbers,
        lambda found: dict(found.scan_iter()),
    ),
    "set": (
        Conversion("ids", "set", "set", "ids:set", {"members": "int"}),
        members,
        lambda found: found.smembers(),
    ),
    "sorted set": (
        Conversion("ranks", "zset", "sorted_set", "ranks:sorted"),
        ranks,
        lambda found: dict(found.zscan_iter()),
    ),
    "hash": (
        Conversion("cities", "hash", "hash", "cities:hash"),
        fields,
        lambda found: found.hgetall(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_structure_holds_what_the_family_has(kit: ShardKit, case: str) -> None:
    conversion, write, read = CASES[case]
    expected = write(kit)
    result = copied(kit, conversion)
    assert read(conversion.open(kit, "new")) == expected
    assert (result.entries, result.copied, result.passes) == (len(expected), len(expected), 2)


def test_a_large_key_that_changes_is_compared_again_at_the_end(kit: ShardKit) -> None:
    expected = members(kit)
    conversion = CASES["set"][0]
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            plain(kit, "ids").srem("ids", 5, 6)
            plain(kit, "ids").sadd("ids", 9999)
        return asked > 3

    copied(kit, conversion, stopped=stopped)
    assert conversion.open(kit, "new").smembers() == expected - {5, 6} | {9999}


def test_days_of_visitors_become_unique_visitors(kit: ShardKit) -> None:
    choose = random.Random(3)
    for day in (1, 2):
        key = f"unique:2026-11-0{day}"
        sessions = [str(UUID(int=choose.getrandbits(128), version=4)) for _ in range(100 * day)]
        plain(kit, key).sadd(key, *sessions)
    parameters = {"precision": "60-bit", "first_day": 200}
    conversion = Conversion("unique:<date>", "set", "unique_visitors", "visitors", parameters)
    result = copied(kit, conversion)
    visitors = conversion.open(kit, "new")
    assert [visitors.count(date(2026, 11, day)) for day in (1, 2)] == [100, 200]
    assert result.copied == 300


@pytest.mark.parametrize(
    ("conversion", "value", "reason"),
    [
        (Conversion("a:<n>", "string", "strings", "b", {"codec": "json"}), "no JSON", "a:1: "),
        (
            Conversion("a:<n>", "string", "packed", "b", {"fields": {"value": "u8"}}),
            "007",
            "is not a whole number",
        ),
    ],
)
def test_a_value_that_the_structure_cannot_store_is_named(
    kit: ShardKit, conversion: Conversion, value: str, reason: str
) -> None:
    plain(kit, "a:1").set("a:1", value)
    with pytest.raises(ShardKitError, match=reason):
        copied(kit, conversion, offline=True)


def test_a_structure_whose_keys_would_belong_to_the_family_is_refused() -> None:
    with pytest.raises(ShardKitError, match="would belong to the family"):
        Conversion("user:<n>", "hash", "hash", "user")
    with pytest.raises(ShardKitError, match="use one of"):
        Conversion("user:<n>", "hash", "index", "users")


def test_a_plan_is_read_as_it_was_written() -> None:
    for conversion, _, _ in CASES.values():
        assert Conversion.parse(conversion.to_json()) == conversion
    with pytest.raises(ShardKitError, match="the plan cannot be read"):
        Conversion.parse('{"keys": "a"}')
