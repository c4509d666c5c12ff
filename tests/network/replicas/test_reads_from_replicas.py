"""Reads that go to replicas: which server answers, and when none but the master may."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import yaml
from arranged import ask, map_of
from faces import PATIENCE, Face, eventually, faced
from faulty_proxy import FaultyProxy, faulty
from link_helpers import FACES, count_of, mapped, of, paused
from redis.crc import key_slot
from redis.exceptions import MasterDownError
from replication_helpers import Replicated

import shardkit
from shardkit import Entry, ShardKit, ShardMap
from shardkit.admin import push
from shardkit.errors import (
    InvalidArgumentError,
    ShardErrors,
    ShardUnavailable,
)
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.network.connections import redis_private
from shardkit.network.connections.clients import ReplicaOf
from shardkit.network.replicas import ReadFrom, replicas, session
from shardkit.network.replicas.replicas import Replicas, ReplicaState
from shardkit.operations import Shard


def on(face: Face, router: Any, key: str, method: str, *args: Any) -> Any:
    """Call a method of the client of a key, on either face."""

    async def call() -> Any:
        return await getattr(router[key], method)(*args)

    return face.run(call()) if face.runner else getattr(router[key], method)(*args)


def reader(face: Face, decorate: Any) -> Any:
    """A function of either face that reads a key, decorated."""

    def read(conn: Any, key: str) -> Any:
        return conn.get(key)

    async def aread(conn: Any, key: str) -> Any:
        return await conn.get(key)

    found = decorate(aread if face.runner else read)
    return lambda key: face.run(found(key))


@pytest.fixture
def opened(kind: str, replicated: Replicated) -> Iterator[Face]:
    with faced(kind, replicated.map(), zone="z1") as face:
        yield face


def test_reads_go_on_where_there_can_be_no_more_threads(
    opened: Face, replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if thread.name == "shardkit-replicas":
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    router = opened.kit.key_sharded("users", read_from="replica")
    for _ in range(2):
        assert on(opened, router, "k", "get", "k") is None
    assert len(refused) >= 2  # each read tries again


def read_in_session(face: Face, router: Any, name: str) -> None:
    async def read() -> None:
        with session(name):
            await router["k"].get("k")
            await router["k"].get("k")

    if face.runner:
        face.run(read())
        return
    with session(name):
        router["k"].get("k")
        router["k"].get("k")


def test_one_replica_per_process_or_session(opened: Face, replicated: Replicated) -> None:
    router = opened.kit.key_sharded("users", read_from="replica")
    key = "k"
    for _ in range(10):
        on(opened, router, key, "get", key)
    assert sorted(replicated.counts("get")) == [0, 0, 10]
    replicated.forget_counts()
    for user in range(20):
        read_in_session(opened, router, f"user-{user}")
    master, *replicas = replicated.counts("get")
    assert master == 0
    assert all(each % 2 == 0 and each for each in replicas), "each session had its own replica"
    replicated.forget_counts()
    spread = opened.kit.key_sharded("users", read_from=ReadFrom("replica", spread=True))
    for _ in range(10):
        on(opened, spread, key, "get", key)
    assert replicated.counts("get") == [0, 5, 5]


def test_zones_and_the_nearest(opened: Face, replicated: Replicated) -> None:
    router = opened.kit.key_sharded("users", read_from="zone")
    for _ in range(5):
        on(opened, router, "k", "get", "k")
    assert replicated.counts("get") == [0, 0, 5], "the replica in z1"
    nearest = opened.kit.key_sharded("users", read_from="nearest")
    replicated.forget_counts()
    on(opened, nearest, "k", "get", "k")
    assert sum(replicated.counts("get")) == 1


@pytest.mark.parametrize("asked", ["INFO", "HELLO"])
def test_servers_say_their_zones_where_entries_do_not(
    kind: str, replicated: Replicated, asked: str, lower: Any
) -> None:
    """By INFO from Valkey 8.0, by HELLO, which every user may run, from 8.1."""
    lower(replica_interval=3600)  # the first read waits so long at most for the answers
    servers = [replicated.master, *replicated.replicas]
    ports = [{"port": each.port} for each in replicated.replicas]
    described, of_master = replicated.map(replicas=ports), "z9"  # what an entry says counts more
    if asked == "HELLO":
        login = {"username": "limited", "password": "pw", "port": replicated.master.port}
        described, of_master = mapped({**login, "replicas": ports}, "users"), "z0"
    try:
        for n, server in enumerate(servers):
            ask(server, "config_set", "availability-zone", f"z{n}")
            rights = ("on", ">pw", "~*", "+@all", "-info")
            ask(server, "execute_command", "ACL", "SETUSER", "limited", *rights)
        for zone, mode, gets in [
            ("z2", "zone", [0, 0, 5]),
            ("z1", "zone_replica", [0, 5, 0]),
            (of_master, "zone", [5, 0, 0]),
            ("z0", "zone_replica", None),
        ]:
            replicated.forget_counts()
            with faced(kind, described, zone=zone) as face:
                # INFO alone tells the lag.
                read_from = mode if asked == "INFO" else ReadFrom(mode, max_lag=None)
                router = face.kit.key_sharded("users", read_from=read_from)
                for _ in range(5):
                    on(face, router, "k", "get", "k")
                face.kit.plane.replicas.round()  # asks again
            found = replicated.counts("get")
            assert (found == gets) if gets else found[0] == 0, (zone, mode, found)
    finally:
        for server in servers:
            ask(server, "config_set", "availability-zone", "")
            ask(server, "execute_command", "ACL", "DELUSER", "limited")


def test_structures_pipelines_and_bulk_reads(opened: Face, replicated: Replicated) -> None:
    kit = opened.kit
    opened.run(kit.set("ids", component="users", total=1000, members=int).sadd(*range(100)))
    opened.run(kit.hash("h", component="users").hset("a", "1"))
    opened.run(kit.list("l", component="users").rpush("x", "y"))
    opened.run(kit.sorted_set("z", component="users").zadd({"a": 1.0, "b": 2.0}))
    opened.run(kit.statistics(component="users").update("page", "ms", 5.0))
    opened.run(kit.logs(component="users").log("app", "started"))
    replicated.settle()
    replicated.forget_counts()
    ids = kit.set("ids", component="users", total=1000, members=int, read_from="replica")
    assert opened.run(ids.sismember(7))
    assert opened.run(ids.scard()) == 100
    assert opened.run(kit.hash("h", component="users", read_from="replica").hget("a")) == b"1"
    values = kit.list("l", component="users", read_from="replica")
    assert opened.run(values.lrange(0, -1)) == ["x", "y"]
    scores = kit.sorted_set("z", component="users", read_from="replica")
    assert opened.run(scores.zrange(0, -1)) == ["a", "b"]
    logs = kit.logs(component="users", read_from="replica")
    assert [each.message for each in opened.run(logs.recent("app"))] == ["started"]
    totals = kit.totals(component="users", read_from="replica")
    assert opened.run(totals.get("day", "city", "Oslo")) == [0]
    router = kit.key_sharded("users", read_from="replica")
    assert opened.run(router.mget(["a", "b", "c"])) == [None, None, None]
    assert opened.run(router.pipeline().get("a").hgetall("b").execute()) == [None, {}]
    for command in (
        "get",
        "hget",
        "sismember",
        "scard",
        "hgetall",
        "mget",
        "lrange",
        "zscore",
        "zmscore",
    ):
        assert replicated.counts(command)[0] == 0, command
    times = kit.statistics(component="users", read_from="replica")
    assert opened.run(times.slowest("ms")) == [("page", 5.0)]
    assert opened.run(ids.sadd(5000)) == 1
    assert opened.run(ids.sismember(5000)), "what this process wrote is read"


def test_entries_say_where_reads_go(kind: str, replicated: Replicated) -> None:
    with faced(kind, replicated.map(read_from="prefer_replica")) as face:
        users = face.kit.hash("h", component="users")
        router = face.kit.key_sharded("users")
        assert face.run(users.hget("a")) is None
        assert on(face, router, "k", "get", "k") is None
        assert reader(face, face.kit.sharded_connection("users"))("k") is None
        assert replicated.counts("get")[0] == 0
        assert replicated.counts("hget")[0] == 0


def test_a_writable_replica_is_never_written_to(opened: Face, replicated: Replicated) -> None:
    for server in replicated.replicas:
        ask(server, "config_set", "replica-read-only", "no")
    router = opened.kit.key_sharded("users", read_from="replica")
    on(opened, router, "k", "set", "k", 1)
    on(opened, router, "k", "eval", "return redis.call('INCR', KEYS[1])", 1, "k")

    async def pipelined() -> Any:
        return await router["k"].pipeline().incr("k").execute()

    opened.run(pipelined()) if opened.runner else router["k"].pipeline().incr("k").execute()
    opened.run(opened.kit.hash("h", component="users", read_from="replica").hset("a", "1"))
    opened.run(router.pipeline().get("k").set("other", 2).execute())
    replicated.settle()
    assert on(opened, router, "k", "get", "k") == b"3"
    for command in ("set", "incr", "hset"):
        assert len(set(replicated.counts(command))) == 1, "as the master sent it, no more"


@pytest.mark.parametrize("what", ["client", "structure"])
def test_reads_survive_dead_replicas(kind: str, what: str, lower: Any) -> None:
    lower(replica_interval=3600)
    with LocalServer() as master, LocalServer(replica_of=master) as replica:
        entry = {"port": master.port, "replicas": [{"port": replica.port}]}
        described = map_of(one={"shards": [entry]})
        with shardkit.connect(described) as writer, master.client() as client:
            writer.hash("h", component="one").hset("a", "1")
            client.set("k", 1)
            assert client.wait(1, 5000) == 1
        with faced(kind, described) as face:
            router = face.kit.key_sharded("one", read_from="prefer_replica")
            strict = face.kit.key_sharded("one", read_from="replica")
            users = face.kit.hash("h", component="one", read_from="prefer_replica")

            def read() -> Any:
                if what == "client":
                    return on(face, router, "k", "get", "k")
                return face.run(users.hget("a"))

            assert read() == b"1"
            assert count_of(replica, "get" if what == "client" else "hget")
            replica.kill()
            assert read() == b"1"
            with pytest.raises(ShardUnavailable, match=r"does not answer \([^()]+\)\); "):
                on(face, strict, "k", "get", "k")
            master.kill()
            with pytest.raises((redis.ConnectionError, ShardErrors)) as raised:
                read()
            failure = getattr(raised.value, "exceptions", [raised.value])[0]
            assert f"connecting to localhost:{master.port}" in str(failure)


def test_a_read_is_tried_so_often_and_then_its_failure_is_told(
    opened: Face, replicated: Replicated, lower: Any
) -> None:
    lower(replica_interval=3600)
    router = opened.kit.key_sharded("users", read_from="replica")
    hashes = opened.kit.hash("h", component="one", read_from="replica")

    def read() -> tuple[Any, Any]:
        return on(opened, router, "k", "get", "k"), opened.run(hashes.hget("a"))

    assert read() == (None, None)
    for server in replicated.replicas:
        with server.client() as client:
            client.config_set("replica-serve-stale-data", "no")
            client.replicaof("127.0.0.1", "1")  # nobody is there
    lower(read_attempts=1)
    with pytest.raises(MasterDownError, match="Link with MASTER is down"):
        on(opened, router, "k", "get", "k")
    with pytest.raises(ShardErrors) as raised:
        opened.run(hashes.hget("a"))
    assert "is a replica that has lost its master" in str(raised.value.exceptions[0])


def state_of(face: Face) -> tuple[Replicas, Any]:
    """The replicas of a kit, and what is known of those of ``one`` after a read."""
    router = face.kit.key_sharded("one", read_from="replica")
    assert on(face, router, "k", "get", "k") is None
    found = face.kit.plane.replicas
    return found, found._shards[Shard("one", None)]


def test_hung_replica_does_not_disable_those_of_other_shards(
    kind: str, replicated: Replicated, lower: Any
) -> None:
    lower(replica_outdated=1.5)
    entries = [
        {"port": replicated.master.port, "db": n, "replicas": [{"port": each.port}]}
        for n, each in enumerate(replicated.replicas)
    ]
    shard_map = map_of(users={"shards": entries})
    with faced(kind, shard_map) as face:
        router = face.kit.key_sharded("users", read_from="replica")
        keys = {router.shard_of(f"k{n}"): f"k{n}" for n in range(20)}
        for key in keys.values():
            assert on(face, router, key, "get", key) is None
        with paused(replicated.replicas[0]):
            end = time.monotonic() + 3
            while time.monotonic() < end:
                assert on(face, router, keys[1], "get", keys[1]) is None
                time.sleep(0.1)


@pytest.mark.parametrize("what", ["reads for long", "wants no replica", "wants a late one"])
def test_a_switch_catches_up(
    opened: Face, monkeypatch: pytest.MonkeyPatch, lower: Any, what: str
) -> None:
    lower(replica_interval=3600)
    replicas, state = state_of(opened)
    first = state.last[""]
    [other] = [each.entry for each in state.replicas if each.entry != first]
    wanted = Entry({"port": 1}) if what == "wants no replica" else other
    state.wanted = {"": wanted}
    state.reading = int(what == "reads for long")
    ask, asked = Replicas._ask, []

    def late_at_first(asking: Replicas, state: Any, server: ReplicaState) -> Any:
        answer = ask(asking, state, server)
        if server is not state.master:
            asked.append(server.entry)
            if len(asked) < 3:
                return answer._replace(info={**answer.info, "slave_repl_offset": 0})
        return answer

    monkeypatch.setattr(Replicas, "_ask", late_at_first)
    lower(catch_up=0.05 if state.reading else 20)
    replicas._switch(state)
    assert not state.held
    changed = what == "wants a late one"
    assert state.last[""] == (other if changed else first)
    assert state.wanted == ({} if changed else {"": wanted})
    assert asked == ([other] * 3 if changed else [])
    state.reading = 0


def test_so_many_sessions_are_remembered(opened: Face, lower: Any) -> None:
    lower(replica_sessions=2)
    _, state = state_of(opened)
    router = opened.kit.key_sharded("one", read_from="replica")
    for name, remembered in (("a", ["", "a"]), ("b", ["b"]), ("a", ["b", "a"]), ("b", ["b", "a"])):
        read_in_session(opened, router, name)
        assert list(state.last) == remembered


def test_replicas_of_a_service_whose_sentinels_cannot_be_asked_are_not_known() -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise redis.ConnectionError("nobody is there")

    entry = {"sentinel": {"service": "main", "sentinels": [["127.0.0.1", 1]]}}
    component = mapped(entry, "one")
    replicas = Replicas(SimpleNamespace(get=refuse))  # type: ignore[arg-type]
    replicas.ask(component.components["one"], None, ReadFrom("replica"))
    replicas.close()
    [state] = replicas._shards.values()
    assert state.master.problem == "does not answer (nobody is there)"
    assert state.replicas == []


@pytest.mark.parametrize(
    ("said", "problem", "complete_at"),
    [
        ({"slave_repl_offset": 300}, "", 3.0),
        ({"slave_repl_offset": 200}, "", 2.0),
        ({"slave_repl_offset": 199}, "", 1.0),
        ({"slave_repl_offset": 99}, "", float("-inf")),
        ({}, "", float("-inf")),
        ({"role": "master"}, "is a master", float("-inf")),
        ({"master_sync_in_progress": 1}, "is being filled", float("-inf")),
        ({"master_replid": "h2"}, "is not a replica of this master", float("-inf")),
    ],
)
def test_a_replica_has_all_up_to_the_latest_sample_that_its_offset_has_reached(
    replicated: Replicated, said: dict[str, Any], problem: str, complete_at: float
) -> None:
    component = replicated.map().components["one"]
    state = replicas._new_state(component, Shard("one", None))
    for at in (1, 2, 3):
        master = {"role": "master", "master_replid": "h1", "master_repl_offset": 100 * at}
        replicas._update_master(state, replicas._Answer(master, float(at), 0.25))
    usual = {"role": "slave", "master_replid": "h1", "master_link_status": "up"}
    [replica, _] = state.replicas
    replicas._update_replica(state, replica, replicas._Answer({**usual, **said}, 4.0, 0.5))
    assert (replica.problem, replica.complete_at) == (problem, complete_at)
    assert (replica.linked, replica.asked_at, replica.latency) == (True, 4.0, 0.5)
    assert state.master.latency == 0.25


def test_why_no_replica_can_be_read_is_said_of_each(opened: Face, replicated: Replicated) -> None:
    first, second = replicated.replicas
    with first.client() as one, second.client() as other:
        one.replicaof("NO", "ONE")
        other.replicaof("127.0.0.1", str(first.port))
        while other.info("replication")["master_link_status"] != "up":
            time.sleep(0.01)
    strict = opened.kit.key_sharded("users", read_from="replica")
    said = (
        rf"^users:\d has no usable replica \(localhost:{first.port}/\d: is a master; "
        rf"localhost:{second.port}/\d: is not a replica of this master\); see `shardkit status`, "
        "or use read_from='prefer_replica'"
    )
    with pytest.raises(ShardUnavailable, match=said):
        on(opened, strict, "k", "get", "k")


@pytest.mark.parametrize(
    ("known", "since", "why"),
    [
        ({}, 0.0, ""),
        ({"problem": "is being filled"}, 0.0, "is being filled"),
        ({"asked_at": 1.0}, 0.0, "no recent answer"),
        ({}, 99.5, "lacks this process's last write"),
        ({"linked": False}, 0.0, "its link to the master is down"),
        ({"complete_at": 90.0}, 0.0, "lags by more than 5 s"),
    ],
)
def test_unsuitable_replicas_are_not_read(known: dict[str, Any], since: float, why: str) -> None:
    fresh: dict[str, Any] = {"problem": "", "linked": True, "complete_at": 99.0, "asked_at": 99.0}
    state = ReplicaState(Entry({"port": 1}, "one"), **{**fresh, **known})
    assert state.why_not(ReadFrom("replica", max_lag=5), since, 100.0) == why
    stale = "" if "link" in why or "lags" in why else why
    assert state.why_not(ReadFrom("replica", max_lag=None), since, 100.0) == stale


def test_reads_that_are_held_while_a_session_changes_its_replica_go_on_afterwards(
    opened: Face, replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, held = Replicas.begin, []

    def holding(replicas: Replicas, *where: Any, **how: Any) -> Any:
        held.append(where)
        return begin(replicas, *where, **how) if len(held) % 3 == 0 else None

    monkeypatch.setattr(Replicas, "begin", holding)
    router = opened.kit.key_sharded("users", read_from="replica")
    assert on(opened, router, "k", "get", "k") is None
    assert opened.run(opened.kit.hash("h", component="one", read_from="replica").hget("a")) is None
    assert len(held) >= 6
    assert len(held) % 3 == 0, "each read asked until it was not held"


def test_replicas_are_those_of_the_entry_as_it_is_now(kind: str, replicated: Replicated) -> None:
    first, second = replicated.replicas
    with LocalServer() as server, server.client() as config:
        push(config, replicated.map())
        with faced(kind, f"redis://{server.address}") as face:
            router = face.kit.key_sharded("users", read_from="replica")
            replicas = face.kit.plane.replicas

            def read() -> set[int]:
                """Read once; the ports of the replicas that may be read."""
                assert on(face, router, "k", "get", "k") is None
                component = face.kit.plane.topology.last_known("users")
                known = replicas._state(component, component.shard_of("k")).replicas
                return {each.entry.fields["port"] for each in known}

            assert read() == {first.port, second.port}
            push(config, replicated.map(replicas=[{"port": second.port}]))
            face.kit.topology.expire()
            replicated.settle()
            preferring = face.kit.key_sharded("users", read_from="prefer_replica")
            assert on(face, preferring, "k", "get", "k") is None
            replicas.round()
            assert read() == {second.port}
            replicated.forget_counts()
            assert read() == {second.port}
            assert replicated.counts("get")[1:] == [0, 1]


def test_another_shards_move_does_not_switch_replicas(kind: str, replicated: Replicated) -> None:
    described = yaml.safe_load(replicated.map().to_yaml())
    with LocalServer() as server, server.client() as config:
        push(config, replicated.map())
        with faced(kind, f"redis://{server.address}") as face:
            router = face.kit.key_sharded("users", read_from="replica")
            known = face.kit.plane.replicas._shards
            assert not on(face, router, "k", "strlen", "k")
            [shard] = known
            before = known[shard].component.version
            described["components"]["users"]["shards"][1 - shard.number]["db"] = 3
            push(config, ShardMap.parse(json.dumps(described)), check=False)
            face.kit.topology.expire()
            for _ in range(2):
                assert not on(face, router, "k", "strlen", "k")
            assert known[shard].component.version > before
            assert sorted(replicated.counts("strlen")) == [0, 0, 3]


def test_own_writes_are_read_though_replicas_lag(opened: Face, replicated: Replicated) -> None:
    router = opened.kit.key_sharded("users", read_from="replica")
    assert on(opened, router, "k", "get", "k") is None
    with paused(*replicated.replicas):  # the links are up, and nothing arrives
        on(opened, router, "k", "set", "k", "mine")
        assert on(opened, router, "k", "get", "k") == b"mine"
        assert replicated.master.running


def test_sentinels_tell_the_replicas(kind: str) -> None:
    with LocalSentinel("main", replicas=1, sentinels=1) as watched:
        watched.master.client().set("k", "v")
        watched.master.client().wait(1, 5000)
        sentinels = watched.entry.fields["sentinel"]["sentinels"]
        entry = {"sentinel": {"service": "main", "sentinels": sentinels}}
        with faced(kind, mapped(entry, "main")) as face:
            read = reader(face, face.kit.redis_connection("main", read_from="replica"))
            assert read("k") == b"v"
            for sentinel in watched.sentinels:
                sentinel.kill()
            face.kit.plane.replicas.round()  # those that are known go on being asked, and read
            assert read("k") == b"v"
            assert count_of(watched.master, "get") == 0


def knows_replicas(cluster: LocalCluster, of_each: int = 1) -> None:
    """Wait until each node names the replicas, which it does once they have something."""
    for server in cluster.nodes:
        with server.client() as client:
            while any(
                len(slots) < 3 + of_each for slots in client.execute_command("CLUSTER SLOTS")
            ):
                time.sleep(0.02)


def asked_to_read(nodes: list[LocalServer]) -> list[LocalServer]:
    return [each for each in nodes if count_of(each, "get") + count_of(each, "mget")]


def client_of(kit: Any, number: Any) -> Any:
    """The client of component ``c`` by which pipelines go."""
    component = kit.topology.last_known("c")
    if isinstance(kit, ShardKit):
        return kit.clients.get(component, number, raw=False)

    async def found() -> Any:
        return kit.clients.aget(component, number, raw=False)

    return found()


def test_a_cluster_is_read_from_its_replicas(kind: str, lower: Any) -> None:
    with (
        LocalCluster(masters=3, replicas_per_master=1) as cluster,
        faced(kind, mapped(cluster.entry.fields, "c")) as face,
    ):
        router = face.kit.key_sharded("c", read_from="replica")
        keys = [f"k{n}" for n in range(30)]
        face.run(face.kit.key_sharded("c").mset(dict.fromkeys(keys, "v")))
        masters, replicas = cluster.nodes[:3], cluster.nodes[3:]
        for server in masters:
            ask(server, "execute_command", "WAIT", 1, 5000)
        knows_replicas(cluster)

        def asked_masters() -> int:
            return sum(count_of(each, "get") + count_of(each, "mget") for each in masters)

        assert face.run(router.mget(keys)) == [b"v"] * 30
        assert on(face, router, "k1", "get", "k1") == b"v"
        assert asked_masters() == 0
        # Of a slot whose replicas are not known the master answers, of the others they do.
        number: Any = ReplicaOf(None)
        owners: Any = redis_private.slot_owners(face.run(client_of(face.kit, number)))
        owners[key_slot(b"k7")] = owners[key_slot(b"k7")][:1]
        pipe = router.pipeline()
        for key in keys:
            pipe.get(key)
        assert face.run(pipe.execute()) == [b"v"] * 30
        assert asked_masters() == 1
        face.run(router.mset(dict.fromkeys(keys, "mine")))
        assert face.run(router.mget(keys)) == [b"mine"] * 30, "masters answer for a while"
        lower(cluster_writes=-1.0)
        for server in replicas:
            server.kill()
        assert face.run(router.mget(keys)) == [b"mine"] * 30, "masters answer in their place"
        with pytest.raises(InvalidArgumentError, match="impossible on a cluster"):
            face.run(face.kit.key_sharded("c", read_from="nearest").mget(keys))


@pytest.mark.parametrize("source", ["slots", "info", "hello"])
def test_a_cluster_is_read_from_replicas_in_the_zone_of_the_process(
    kind: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source != "slots":  # servers before Valkey 9.1 name no zones there
        monkeypatch.setattr(replicas, "_zones_in_slots", lambda *_: {})
    login = {"username": "limited", "password": "pw"} if source == "hello" else {}
    with LocalCluster(masters=3, replicas_per_master=2) as cluster:
        nodes = ask(cluster.nodes[0], "cluster", "NODES")
        masters: set[str] = set()
        zones: dict[int, str] = {}
        for address, node in sorted(nodes.items()):
            is_near = node["master_id"] not in masters | {"-"}  # one replica of each master
            masters.add(node["master_id"])
            zones[int(address.rpartition(":")[2])] = "near" if is_near else "far"
        for server in cluster.nodes:
            ask(server, "config_set", "availability-zone", zones[server.port])
            rights = ("on", ">pw", "~*", "+@all", "-info")
            ask(server, "execute_command", "ACL", "SETUSER", "limited", *rights)
        if source == "slots":
            version = ask(cluster.nodes[0], "info", "server").get("valkey_version", "0")
            if tuple(map(int, version.split(".")))[:2] < (9, 1):
                pytest.skip("Valkey before 9.1 names no zones in CLUSTER SLOTS")
            with cluster.nodes[0].client() as client:
                client.set_response_callback("CLUSTER SLOTS", repr)
                # Nodes hear from each other in which zones they are.
                assert eventually(
                    lambda: client.execute_command("CLUSTER SLOTS").count("availability-zone") == 9
                )
        for server in cluster.nodes:
            ask(server, "config_resetstat")
        with faced(kind, mapped({**cluster.entry.fields, **login}, "c"), zone="near") as face:
            router = face.kit.key_sharded("c", read_from="zone_replica")
            keys = [f"k{n}" for n in range(30)]
            face.run(face.kit.key_sharded("c").mset(dict.fromkeys(keys, "v")))
            knows_replicas(cluster, 2)
            time.sleep(1.1)  # for a second after a write, masters answer
            assert face.run(router.mget(keys)) == [b"v"] * 30
            assert on(face, router, "k1", "get", "k1") == b"v"
            infos = sum(count_of(each, "info") for each in cluster.nodes)
            assert [zones[each.port] for each in asked_to_read(cluster.nodes)] == ["near"] * 3
            assert (infos > 0) is (source == "info")


@pytest.mark.parametrize("zone", ["a", "b", "c"])
def test_a_cluster_is_read_from_a_master_in_the_zone_before_replicas_elsewhere(
    kind: str, zone: str
) -> None:
    """The zone of the process has masters alone, replicas alone, or no node."""
    with LocalCluster(masters=3, replicas_per_master=1) as cluster:
        masters, replicated = cluster.nodes[:3], cluster.nodes[3:]
        for server in cluster.nodes:
            ask(server, "config_set", "availability-zone", "a" if server in masters else "b")
        knows_replicas(cluster)
        keys = [f"k{n}" for n in range(30)]
        with faced(kind, mapped(cluster.entry.fields, "c"), zone=zone) as face:
            for mode, nodes in [
                ("zone", masters if zone == "a" else replicated),
                ("zone_replica", replicated),
            ]:
                for server in cluster.nodes:
                    ask(server, "config_resetstat")
                router = face.kit.key_sharded("c", read_from=mode)
                assert face.run(router.mget(keys)) == [None] * 30
                assert on(face, router, "k1", "get", "k1") is None
                assert asked_to_read(cluster.nodes) == nodes, mode


@pytest.mark.parametrize(
    ("mode", "zone", "said"),
    [
        *((wrong, "", "prefer_replica") for wrong in ("slave", "", 7)),
        *((m, "", f"'{m}' needs the zone of this process") for m in ("zone", "zone_replica")),
        *(("zone", wrong, r"zone=.* is not a name; pass a str") for wrong in (7, b"z1", None)),
    ],
)
def test_a_mode_or_zone_that_cannot_be_is_refused(
    mode: Any, zone: Any, said: str, replicated: Replicated
) -> None:
    with (
        pytest.raises(InvalidArgumentError, match=said),
        shardkit.connect(replicated.map(), zone=zone) as kit,
    ):
        kit.key_sharded("users", read_from=mode)["k"]


@pytest.mark.parametrize("name", [7, b"user", ""])
def test_a_session_that_has_no_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"session=.*give a text"), session(name):
        pass


REFUSALS = {
    "loading": "LOADING Redis is loading the dataset in memory",
    "lost": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[LocalServer, FaultyProxy]]:
    """A master, and the way to its replica."""
    with (
        LocalServer(config={"repl-diskless-sync-delay": 0}) as master,
        LocalServer(replica_of=master) as replica,
        faulty(replica.port) as proxy,
    ):
        yield master, proxy


def done(face: Face, call: Callable[[], Any]) -> Any:
    """Make a call in the face's event loop, if it has one."""

    async def later() -> Any:
        return await of(call())

    return face.run(later()) if face.runner else call()


def reading(face: Face) -> dict[str, Any]:
    """Ways to read on a replica, by the command that it is sent."""
    words = face.kit.hash("words", component="c")
    router = face.kit.key_sharded("c")
    face.run(words.hset("1", "x"))
    done(face, lambda: router["k"].set("k", "x"))
    return {
        "HGET": lambda: words.hget("1"),
        "GET": lambda: router["k"].get("k"),
        "STRLEN": lambda: router.pipeline().strlen("k").execute(),
    }


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("kind", FACES)
def test_the_master_answers_for_a_replica_that_refuses(
    kind: str, refusal: str, pair: tuple[LocalServer, FaultyProxy]
) -> None:
    master, proxy = pair
    entry = {
        "port": master.port,
        "replicas": [{"port": proxy.port}],
        "read_from": "prefer_replica",
        "socket_timeout": 2 * PATIENCE,
    }
    asked = []
    with faced(kind, map_of(c={"shards": [entry]})) as face:
        for command, read in reading(face).items():

            def reaches_replica(command: str = command, read: Any = read) -> bool:
                seen = len(proxy.seen)
                done(face, read)
                return command in proxy.seen[seen:]

            assert eventually(reaches_replica)
            answer = done(face, read)
            before = proxy.seen.count(command)
            for _ in range(50):
                proxy.answer(REFUSALS[refusal], command)
            assert done(face, read) == answer
            asked.append(proxy.seen.count(command) - before)
            proxy.clear()
    assert max(asked) <= 1
