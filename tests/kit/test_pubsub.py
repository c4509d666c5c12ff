"""Pub/sub over shards: each message arrives once, or in a gap that is reported."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest
from arranged import ask, exit_code, forked, map_of
from faces import PATIENCE, Face, eventually, faced
from link_helpers import paused
from redis import Redis
from redis.exceptions import RedisError

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.errors import (
    CommandRefused,
    InvalidArgumentError,
    PushRefusedError,
    ShardKitError,
)
from shardkit.local import LocalCluster, LocalSentinel, LocalServer, LocalServers

KINDS = ["blocking", "awaiting"]
MESSAGES = int(os.environ.get("EVENTS", "1500"))
SHARDS = 4


def received(face: Face, events: Any, count: int, seconds: float = 5) -> list[dict[str, Any]]:
    """The next messages, at most so many, that come in time."""
    found = []
    until = time.monotonic() + seconds * PATIENCE
    while len(found) < count and time.monotonic() < until:
        message = face.run(events.get_message(timeout=0.1))
        found += [] if message is None else [message]
    return found


def close(face: Face, events: Any) -> None:
    face.run((events.aclose if hasattr(events, "aclose") else events.close)())


@pytest.fixture(params=KINDS)
def noisy(request: pytest.FixtureRequest, servers: LocalServers, shard_map: Any) -> Iterator[Face]:
    """A kit of each face over servers that tell of key events."""
    for server in servers.servers:
        ask(server, "config_set", "notify-keyspace-events", "KEA")
    with faced(request.param, shard_map) as face:
        yield face
    for server in servers.servers:
        ask(server, "config_set", "notify-keyspace-events", "")


def test_messages_arrive_from_every_shard_once(face: Face) -> None:
    router = face.kit.key_sharded("many")
    events = router.pubsub(ignore_subscribe_messages=True)
    handled: list[Any] = []
    names = [f"news:{n}" for n in range(40)]
    face.run(events.subscribe(*names[1:], **{names[0]: handled.append}))
    face.run(events.psubscribe("news:1*"))
    assert [face.run(router.publish(name, name)) for name in names] == [
        2 if name.startswith("news:1") else 1 for name in names
    ]
    got = received(face, events, 39 + 11)
    by_kind = {
        kind: sorted(m["channel"].decode() for m in got if m["type"] == kind)
        for kind in ("message", "pmessage")
    }
    assert by_kind == {
        "message": sorted(names[1:]),
        "pmessage": sorted(name for name in names if name.startswith("news:1")),
    }
    assert handled == [
        {"type": "message", "pattern": None, "channel": b"news:0", "data": b"news:0"}
    ]
    face.run(events.unsubscribe())
    face.run(events.punsubscribe("news:1*"))
    assert not events.subscribed
    assert face.run(router.publish("news:5", "unheard")) == 0
    close(face, events)


def test_key_events_come_from_each_shards_own_database(noisy: Face) -> None:
    router, other = (noisy.kit.key_sharded(name) for name in ("few", "both"))
    events = router.pubsub()
    noisy.run(
        events.psubscribe("__keyevent@*__:set", "__keyspace@*__:a*", "__keyevent@*__:expired")
    )
    assert {m["type"] for m in received(noisy, events, 3)} == {"psubscribe"}
    for name in "abcdefgh":
        noisy.run(other.set(name, 1))
        noisy.run(router.set(name, 1))
    noisy.run(router.set("short", 1, px=1))
    got = received(noisy, events, 8 + 1 + 1 + 1)
    told = Counter((m["pattern"], m["data"]) for m in got)
    assert told == Counter(
        [(b"__keyevent@*__:set", name.encode()) for name in [*"abcdefgh", "short"]]
        + [(b"__keyspace@*__:a*", b"set"), (b"__keyevent@*__:expired", b"short")]
    )
    assert {m["channel"][:14] for m in got} == {b"__keyevent@10_", b"__keyspace@10_"}
    close(noisy, events)


def test_names_of_events_without_a_database_of_their_own_are_refused(face: Face) -> None:
    events = face.kit.key_sharded("many").pubsub()
    for subscribe, name in (
        (events.subscribe, "__keyevent@0__:expired"),
        (events.psubscribe, "__keyspace@0__:*"),
        (events.psubscribe, "__key*"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"__key.*use psubscribe\('__keyspace@\*"):
            face.run(subscribe(name))
    assert not events.subscribed
    close(face, events)


def test_a_refused_subscription_is_an_error(face: Face, servers: LocalServers) -> None:
    for server in servers.servers:
        ask(server, "execute_command", "ACL SETUSER", "default", "resetchannels", "&own:*")
    events = face.kit.key_sharded("many").pubsub()
    try:
        with pytest.raises(CommandRefused, match=r"many:\d+: a subscription was refused"):
            face.run(events.subscribe("others"))
    finally:
        for server in servers.servers:
            ask(server, "execute_command", "ACL SETUSER", "default", "allchannels")
        close(face, events)


def test_a_cluster_has_sharded_channels(kind: str, cluster_map: ShardMap, cluster: Any) -> None:
    with faced(kind, cluster_map) as face:
        router = face.kit.key_sharded("cluster")
        events = router.pubsub(ignore_subscribe_messages=True)
        names = [f"news:{n}" for n in range(12)]
        face.run(events.subscribe(*names))
        assert [face.run(router.publish(name, "m")) for name in names] == [1] * 12
        assert sorted(m["channel"].decode() for m in received(face, events, 12)) == sorted(names)
        with pytest.raises(InvalidArgumentError, match="have no patterns"):
            face.run(events.psubscribe("news:*"))
        for node in cluster.nodes:
            ask(node, "config_set", "notify-keyspace-events", "KEA")
        face.run(events.psubscribe("__keyevent@*__:set"))
        for name in names:
            face.run(router.set(name, 1))
        assert sorted(m["data"].decode() for m in received(face, events, 12)) == sorted(names)
        close(face, events)
        for node in cluster.nodes:
            ask(node, "config_set", "notify-keyspace-events", "")


class Published(NamedTuple):
    shard: str
    start: float
    end: float
    sure: bool


def lost_in_gaps(published: list[Published], counts: Counter[int], gaps: list[Any]) -> int:
    """Check that each message came once or is in a gap; return how many are in gaps."""
    assert [n for n, count in counts.items() if count > 1] == []
    lost = [m for n, m in enumerate(published) if m.sure and n not in counts]
    for each in lost:
        assert any(
            gap["shard"] == each.shard and gap["since"] <= each.end and gap["until"] >= each.start
            for gap in gaps
        ), (each, gaps)
    return len(lost)


@pytest.mark.long(2)
@pytest.mark.timeout(90 + MESSAGES // 500)
@pytest.mark.parametrize("pattern", [False, True], ids=["channels", "pattern"])
def test_each_message_arrives_once_or_in_a_gap_while_servers_die_and_shards_move(
    kind: str, pattern: bool
) -> None:
    random, names = Random(59), [f"c{n}" for n in range(8)]
    with LocalServer() as config, LocalServer() as a, LocalServer() as b, LocalServer() as c:
        homes = [a, b, c, a]

        def arrange() -> None:
            entries = [dict(home.entry.fields, db=n) for n, home in enumerate(homes)]
            with config.client() as client:
                push(client, map_of(e={"shards": entries}))

        arrange()
        published: list[Published] = []
        with (
            faced(kind, f"redis://{config.address}/0") as face,
            shardkit.connect(f"redis://{config.address}/0") as kit,
        ):
            events = face.kit.key_sharded("e").pubsub(ignore_subscribe_messages=True)
            face.run(events.psubscribe("c*") if pattern else events.subscribe(*names))

            def publish() -> None:
                router = kit.key_sharded("e")
                for n in range(MESSAGES):
                    name, start, sure = names[n % len(names)], time.time(), True
                    try:
                        router.publish(name, n)
                    except ShardKitError:
                        sure = False
                        time.sleep(0.01)
                    shard = f"e:{router.shard_of(name)}"
                    published.append(Published(shard, start, time.time(), sure))
                    time.sleep(0.001 if MESSAGES < 10_000 else 0)

            def disturb() -> None:
                while publishing.is_alive():
                    server = random.choice([a, b, c])
                    server.kill()
                    time.sleep(random.random() / 5)
                    server.restart()
                    time.sleep(random.random())
                    homes[random.randrange(SHARDS)] = random.choice([a, b, c])
                    with suppress(PushRefusedError):  # a busy server's data is not compared in time
                        arrange()

            threads = [threading.Thread(target=each) for each in (publish, disturb)]
            publishing = threads[0]
            for thread in threads:
                thread.start()
            counts: Counter[int] = Counter()
            gaps, quiet = [], 0.0
            while publishing.is_alive() or quiet < 1.5 * PATIENCE:
                message = face.run(events.get_message(timeout=0.5))
                quiet = quiet + 0.5 if message is None else 0
                if message is not None and message["type"] == "gap":
                    gaps.append(message)
                elif message is not None:
                    counts[int(message["data"])] += 1
            for thread in threads:
                thread.join()
            close(face, events)
    lost = lost_in_gaps(published, counts, gaps)
    assert len(counts) > MESSAGES / 3
    print(f"{len(published)} published, {len(counts)} received, {len(gaps)} gaps, {lost} lost")


@pytest.mark.long(2)
@pytest.mark.parametrize("how", ["killed", "replaced"])
def test_failovers_by_sentinels_are_followed_with_gaps(kind: str, how: str) -> None:
    with LocalSentinel("main", replicas=2, sentinels=1) as watched:
        asked: Any = watched.sentinel()
        with faced(kind, map_of(e={"shards": [dict(watched.entry.fields)]})) as face:
            events = face.kit.key_sharded("e").pubsub(ignore_subscribe_messages=True)
            face.run(events.subscribe("c"))
            published: list[Published] = []
            counts: Counter[int] = Counter()
            gaps, after, until = [], 0, time.monotonic() + 60 * PATIENCE
            while after < 120 and time.monotonic() < until:
                start, sure, n = time.time(), True, len(published)
                if n == 50 and how == "killed":
                    watched.master.kill()
                elif n == 50:  # the former master lives, and answers, for ever
                    ask(watched.master, "execute_command", "ACL", "SETUSER", "default", "-slaveof")
                    asked.sentinels[0].execute_command("SENTINEL FAILOVER", "main")
                try:  # by somebody who hears of the failover first
                    host, port = asked.discover_master("main")
                    with Redis(host=host, port=port, socket_timeout=1) as publisher:
                        publisher.publish("c", n)
                except RedisError:
                    sure = False
                after += sure and n > 50 and bool(gaps)
                published.append(Published("e:0", start, time.time(), sure))
                while message := face.run(events.get_message(timeout=0.02)):
                    if message["type"] == "gap":
                        gaps.append(message)
                    else:
                        counts[int(message["data"])] += 1
            close(face, events)
    lost_in_gaps(published, counts, gaps)
    assert gaps
    assert max(counts) > len(published) - 20


def test_a_forked_child_has_subscriptions_of_its_own_and_takes_nothing_from_its_parent(
    servers: LocalServers, shard_map: Any
) -> None:
    with shardkit.connect(shard_map) as kit:
        router = kit.key_sharded("many")
        events = router.pubsub(ignore_subscribe_messages=True)
        names = [f"news:{n}" for n in range(20)]
        events.subscribe(*names)
        reading, writing = os.pipe()

        def hear() -> None:
            heard = set[str]()
            while heard != {*names}:
                if message := events.get_message(timeout=1):
                    heard |= {(message["channel"] or b"").decode()} - {""}
                    os.write(writing, message["type"][:1].encode())  # gap, message

        child = forked(hear)
        assert os.read(reading, 1) == b"g"  # it is connected
        time.sleep(1)  # for the gaps of its other shards
        for name in names:
            assert router.publish(name, "hello") == 2
        found = [
            message["channel"].decode()
            for message in (events.get_message(timeout=5) for _ in names)
        ]
        assert sorted(found) == sorted(names)
        assert exit_code(child) == 0
        assert events.get_message(timeout=0.3) is None
        told = os.read(reading, 1000).decode()
        assert told.count("m") == len(names)
        events.close()


def test_a_channel_whose_slot_moves_is_followed_with_a_gap(kind: str) -> None:
    with (
        LocalCluster() as whole,
        whole.client() as asking,
        faced(kind, map_of(cluster={"entry": dict(whole.entry.fields)})) as face,
    ):
        router = face.kit.key_sharded("cluster")
        events = router.pubsub(ignore_subscribe_messages=True)
        face.run(events.subscribe("moves", "stays"))
        owner = asking.get_node_from_key("moves").name
        [source] = [node for node in whole.nodes if node.address == owner]
        target = next(node for node in whole.nodes if node.address != owner)
        identity, slot = ask(target, "execute_command", "CLUSTER MYID"), asking.keyslot("moves")
        others, since = [n for n in whole.nodes if n not in (source, target)], time.time()
        for node in (target, source, *others):  # or these hear of it when they are told
            ask(node, "execute_command", "CLUSTER SETSLOT", slot, "NODE", identity)
        [gap, *_] = received(face, events, 1)
        assert (gap["type"], gap["shard"]) == ("gap", "cluster")
        assert gap["since"] < since  # the target knows it before the source
        while face.run(events.get_message(timeout=1)):
            pass  # other gaps
        assert face.run(router.publish("moves", "again")) == 1
        assert received(face, events, 1)[0]["data"] == b"again"
        close(face, events)


@pytest.mark.long(1)
def test_a_node_that_is_cut_off_from_the_majority_has_a_gap(kind: str) -> None:
    with (
        LocalCluster() as whole,
        whole.client() as asking,
        faced(kind, map_of(cluster={"entry": dict(whole.entry.fields)})) as face,
    ):
        events = face.kit.key_sharded("cluster").pubsub(ignore_subscribe_messages=True)
        face.run(events.subscribe("c"))
        owner = asking.get_node_from_key("c").name
        [node] = [node for node in whole.nodes if node.address == owner]
        others = [each for each in whole.nodes if each is not node]
        # As others see it, this node has a successor soon.
        with paused(*others), node.client() as client:
            listening = {each["id"] for each in client.client_list() if each["ssub"] == "1"}
            assert len(listening) == 1
            while client.cluster("INFO")["cluster_state"] == "ok":
                assert face.run(events.get_message(timeout=0.1)) is None
            cut_off = time.time()
            while listening & {each["id"] for each in client.client_list()}:
                assert face.run(events.get_message(timeout=0.1)) is None
        [gap] = received(face, events, 1, seconds=20)
        assert gap["type"] == "gap"
        assert gap["since"] < cut_off < gap["until"]
        close(face, events)


@pytest.mark.parametrize("kind", KINDS)
def test_a_former_place_that_hangs_delays_no_new_one(kind: str) -> None:
    with LocalServer(name="config") as config, LocalServer() as former, LocalServer() as new:

        def move(server: LocalServer, **options: Any) -> None:
            with config.client() as client:
                shards = [{"port": server.port, "socket_timeout": 600}]
                push(client, map_of(e={"shards": shards}), **options)

        move(former)
        with faced(kind, f"redis://{config.address}") as face:
            events = face.kit.key_sharded("e").pubsub(ignore_subscribe_messages=True)
            face.run(events.subscribe("c"))
            got: list[Any] = []
            reading = threading.Thread(
                target=lambda: got.append(face.run(events.get_message(timeout=60)))
            )
            with paused(former):
                move(new, force={"e"})
                reading.start()
                assert eventually(lambda: ask(new, "pubsub_numsub", "c") == [(b"c", 1)])
            reading.join()
            assert [message["type"] for message in got] == ["gap"]
            close(face, events)
