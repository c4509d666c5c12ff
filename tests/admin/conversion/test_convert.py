"""Families of keys are copied into structures while clients write them; on two servers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from itertools import count
from typing import Any
from uuid import UUID

import pytest
import redis
from arranged import emptied, map_of, meanwhile

import shardkit
from shardkit import ShardKit, ShardKitError, ShardMap
from shardkit.admin import Conversion, Converted, biggest_keys, convert, databases_with, execute
from shardkit.errors import ConfigError, GrowthError
from shardkit.local import LocalCluster, LocalServer, LocalServers

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
    with emptied(servers) as opened:
        yield opened


def at_first(change: Callable[[], object], asked: int = 3) -> Callable[[], bool]:
    """Tells a copy when to stop: a change comes when it is first asked, and then some passes."""
    times = count(1)

    def stopped() -> bool:
        number = next(times)
        if number == 1:
            change()
        return number > asked

    return stopped


def copied(kit: ShardKit, conversion: Conversion, **options: Any) -> Converted:
    return convert(kit, "new", conversion, databases_with(kit, "old"), **{"share": 1.0, **options})


NAMES = Conversion("user:<n>:name", "string", "strings", "user:name")


def test_changes_that_clients_make_during_the_copy_are_not_lost(kit: ShardKit) -> None:
    keys = [f"user:{n}:name" for n in range(1500)]
    old = kit.key_sharded("old")
    old.mset(dict.fromkeys(keys[:1200], "before"))
    choose = random.Random(7)

    def write() -> None:
        key = choose.choice(keys)
        old.delete(key) if choose.random() < 0.3 else old.set(key, f"{choose.random()}")

    with ExitStack() as writing:
        writing.enter_context(meanwhile(write, 0.0005))
        tells = at_first(lambda: None, 10)
        result = copied(kit, NAMES, stopped=lambda: tells() and not writing.close())
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


def test_a_family_that_is_gone_or_whose_server_was_restarted_removes_nothing(
    kit: ShardKit, servers: LocalServers
) -> None:
    kit.key_sharded("old").mset({f"user:{n}:name": "x" for n in range(300)})

    def lose(step: str, entries: int) -> None:
        server = servers.servers[1]
        if step == "comparing" and server in running:
            running.remove(server)
            server.kill()
            server.restart()  # empty

    running = list(servers.servers)
    with pytest.raises(GrowthError, match="a server was restarted"):
        copied(kit, NAMES, offline=True, progress=lose)
    for shard, _ in kit.component("old").entries():
        kit.client("old", shard.number).flushdb()
    with pytest.raises(GrowthError, match=r"has no keys, and user:name has .*nothing was removed"):
        copied(kit, NAMES, offline=True)


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


def log(kit: ShardKit) -> Any:
    plain(kit, "log").rpush("log", *range(2100))
    return [str(n) for n in range(2100)]


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
    "list": (Conversion("log", "list", "list", "log:list"), log, lambda found: [*found.items()]),
    "hash": (Conversion("cities", "hash", "hash", "cities:hash"), fields, lambda f: f.hgetall()),
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

    def change() -> None:
        plain(kit, "ids").srem("ids", 5, 6)
        plain(kit, "ids").sadd("ids", 9999)

    copied(kit, conversion, stopped=at_first(change))
    assert conversion.open(kit, "new").smembers() == expected - {5, 6} | {9999}


def test_a_list_that_is_pushed_and_popped_is_compared_again_at_the_end(kit: ShardKit) -> None:
    expected = log(kit)
    conversion = CASES["list"][0]

    def change() -> None:
        plain(kit, "log").lpop("log", 3)
        plain(kit, "log").rpush("log", "last")

    copied(kit, conversion, stopped=at_first(change))
    assert list(conversion.open(kit, "new").items()) == [*expected[3:], "last"]
    plain(kit, "log").delete("log")
    assert copied(kit, conversion, offline=True).entries == 0
    assert list(conversion.open(kit, "new").items()) == []


def expiring(conversion: Conversion) -> Conversion:
    return replace(conversion, expires=True)


def test_strings_keep_their_times_to_live_while_clients_change_them(kit: ShardKit) -> None:
    old = kit.key_sharded("old")
    due = 1000 * (round(time.time()) + 1000)
    for n in range(400):
        key = f"user:{n}:name"
        old[key].set(key, n, pxat=due + n if n % 4 else None)
    changes: dict[int, tuple[Any, ...]] = {
        1: ("PEXPIREAT", due + 5000),
        2: ("PERSIST",),
        3: ("PEXPIRE", 1),  # it is gone before the copy ends
        4: ("SET", "other", "PXAT", due),
    }

    def change() -> None:
        for n, (command, *args) in changes.items():
            key = f"user:{n}:name"
            plain(kit, key).execute_command(command, key, *args)

    result = copied(kit, expiring(NAMES), stopped=at_first(change))
    assert (result.entries, result.passes) == (400, 2)
    names = kit.strings("user:name", component="new")
    fields = kit.hash("user:name:strings", component="new")
    expected = {n: due + n if n % 4 else -1 for n in range(400)}
    expected |= {1: due + 5000, 2: -1, 3: -2, 4: due}
    assert fields.hpexpiretime(*expected) == list(expected.values())
    assert names.mget([2, 3, 4]) == [b"2", None, b"other"]


@pytest.mark.parametrize("case", ["set", "sorted set", "list", "hash"])
def test_a_structure_expires_when_its_key_does(kit: ShardKit, case: str) -> None:
    conversion, write, read = CASES[case]
    expected = write(kit)
    plain(kit, conversion.keys).expire(conversion.keys, 1000)
    copied(kit, expiring(conversion))
    structure = conversion.open(kit, "new")
    assert read(structure) == expected
    assert 900 < structure.ttl() <= 1000
    plain(kit, conversion.keys).persist(conversion.keys)
    copied(kit, expiring(conversion), offline=True)
    assert structure.ttl() == -1


@pytest.fixture
def clustered(cluster: LocalCluster) -> Iterator[ShardKit]:
    with LocalServer() as running:
        old, new = ({"entry": each.entry.fields} for each in (cluster, running))
        with shardkit.connect(map_of(old=old, new=new)) as opened:
            yield opened


def test_a_family_of_a_cluster_is_copied_while_clients_write(
    clustered: ShardKit, cluster: LocalCluster
) -> None:
    with cluster.client() as client:
        for n in range(600):
            client.set(f"user:{n}:name", n, px=10**6 if n % 2 else None)
        client.sadd("ids", *range(5, 2000))

        def change() -> None:
            for n in range(50):
                client.set(f"user:{n}:name", f"changed {n}")
            client.delete("user:599:name")

        result = copied(clustered, expiring(NAMES), stopped=at_first(change))
    assert (result.entries, result.passes, result.followed) == (600, 2, 51)
    names = clustered.strings("user:name", component="new")
    assert names.mget([7, 100, 599]) == [b"changed 7", b"100", None]
    fields = clustered.hash("user:name:strings", component="new")
    assert [due > 0 for due in fields.hpexpiretime(7, 101, 102)] == [False, True, False]
    assert copied(clustered, NAMES, offline=True).removed == 0
    conversion = CASES["set"][0]
    assert copied(clustered, conversion).entries == 1995
    assert conversion.open(clustered, "new").scard() == 1995


def test_a_copy_during_which_slots_have_moved_is_refused(
    clustered: ShardKit, cluster: LocalCluster
) -> None:
    with cluster.nodes[0].client() as first, cluster.nodes[1].client() as second:

        def move(owner: Any) -> None:
            new = owner.execute_command("CLUSTER MYID")
            for node in (second, first):
                node.execute_command("CLUSTER SETSLOT", 0, "NODE", new)

        with pytest.raises(GrowthError, match="slots of the cluster have"):
            copied(clustered, NAMES, stopped=at_first(lambda: move(second), 0))
        move(first)


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
    plain(kit, "unique:2026-11-02").expire("unique:2026-11-02", 1000)
    copied(kit, expiring(conversion), offline=True)
    left = {
        key: round(client.ttl(key))
        for client in (each.client for each in databases_with(kit, "new"))
        for key in client.scan_iter(match="visitors:2026-11-0*")
    }
    assert left
    for key, seconds in left.items():
        assert 900 < seconds <= 1001 if b"2026-11-02" in key else seconds == -1, key


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


@pytest.mark.parametrize(
    ("conversion", "key", "other"),
    [
        (Conversion("a", "list", "list", "b"), "a", r"^a: a \(127.* is a hash, not a list; rename"),
        (
            Conversion("v:<date>", "set", "unique_visitors", "b"),
            "v:2026-11-01",
            r"^v:<date>: v:2026-11-01 \(127.* is a hash, not a set; rename it",
        ),
    ],
)
def test_a_key_of_another_type_is_named(
    kit: ShardKit, conversion: Conversion, key: str, other: str
) -> None:
    plain(kit, key).hset(key, "f", 1)
    with pytest.raises(GrowthError, match=other):
        copied(kit, conversion, offline=True)


def test_libraries_of_functions_that_are_loaded_do_not_disturb(kit: ShardKit) -> None:
    kit.key_sharded("old")["user:1:name"].set("user:1:name", "Ada")

    def load() -> None:
        for database in databases_with(kit, "old"):
            code = "redis.register_function('own', function() return 1 end)"
            database.client.function_load(f"#!lua name=own\n{code}", replace=True)

    assert copied(kit, NAMES, stopped=at_first(load)).copied == 1


def test_names_with_special_characters_match_themselves_only(kit: ShardKit) -> None:
    old = kit.key_sharded("old")
    names = ["a[b]*:5:x", "a[b]*:6:x", "ab:7:x", "a[b]*:8:y", "a[b]*:n:x"]
    old.mset({name: name for name in names})
    conversion = Conversion("a[b]*:<n>:x", "string", "strings", "names")
    assert copied(kit, conversion, offline=True).entries == 2
    found = kit.hash("names:strings", component="new").hgetall()
    assert sorted(map(str, found)) == ["5", "6"]


def test_a_structure_whose_keys_would_belong_to_the_family_is_refused() -> None:
    with pytest.raises(ShardKitError, match="would belong to the family"):
        Conversion("user:<n>", "hash", "hash", "user")
    with pytest.raises(ShardKitError, match="is not a family of keys"):
        Conversion("user:<id>", "hash", "hash", "other")
    with pytest.raises(ShardKitError, match="into='index'; give one of"):
        Conversion("user:<n>", "hash", "index", "users")  # type: ignore[arg-type]
    with pytest.raises(ShardKitError, match="type='stream'; use one of"):
        Conversion("user:<n>", "stream", "strings", "users")


def test_a_plan_is_read_as_it_was_written() -> None:
    for conversion, _, _ in CASES.values():
        assert Conversion.parse(conversion.to_json()) == conversion
    with pytest.raises(ShardKitError, match="the plan cannot be read"):
        Conversion.parse('{"keys": "a"}')


@pytest.fixture
def components(cluster: LocalCluster, cluster_map: ShardMap) -> list[Any]:
    """One component on the cluster, with 100 keys."""
    with cluster.client() as client:
        for n in range(100):
            client.set(f"k{n}", "v" * (n + 1))
    return list(cluster_map.components.values())


def test_the_keys_of_all_nodes_are_looked_at(components: list[Any]) -> None:
    looked_at: list[int] = []
    found = biggest_keys(components, 3, by="elements", progress=looked_at.append)
    assert [(each.key, each.elements) for each in found] == [
        (b"k99", 100), (b"k98", 99), (b"k97", 98),
    ]  # fmt: skip
    assert looked_at[-1] == 100


def test_every_node_is_asked_whatever_one_answers(
    cluster: LocalCluster, components: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    refusing = cluster.nodes[1]
    far = map_of(far={"entry": {"host": "${NOWHERE}", "port": 1}}).components
    with refusing.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-config|get")
        try:
            found = execute([*components, *far.values()], ["CONFIG", "GET", "port"])
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+config|get")
    assert found.keys() == {*(f"127.0.0.1:{node.port}" for node in cluster.nodes), "${NOWHERE}:1"}
    for server, answer in found.items():
        port = server.rpartition(":")[2]
        if port == "1":
            assert isinstance(answer, ConfigError)
            assert "NOWHERE" in str(answer)
        elif int(port) == refusing.port:
            assert isinstance(answer, redis.ResponseError)
        else:
            assert port in str(answer)
