"""Messaging on a component that is a cluster: nothing changes for it, waiting included."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from faces import eventually

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalCluster
from shardkit.messaging import RecordTally, Total


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as found:
        yield found


def map_of(cluster: LocalCluster) -> ShardMap:
    return ShardMap.parse(json.dumps({"components": {"c": {"entry": dict(cluster.entry.fields)}}}))


def test_mailboxes_chats_files_and_totals_work_on_a_cluster(cluster: LocalCluster) -> None:
    shard_map = map_of(cluster)
    with shardkit.connect(shard_map) as kit, shardkit.connect(shard_map) as other:
        mail, sender = kit.mailboxes(component="c"), other.mailboxes(component="c")
        for user in ("anna", "ben", "cleo", "dora"):  # on several nodes
            timer = threading.Timer(0.1, sender.send, (user, "root", "hello"))
            timer.start()
            began = time.monotonic()
            [message] = mail.fetch(user, timeout=30)
            assert time.monotonic() - began < 8
            timer.join()
            assert mail.acknowledge(user, [message]) == 1
        sender.send_many([(f"u{n}", "root", n) for n in range(50)])
        assert mail.unread_many([f"u{n}" for n in range(50)]) == [1] * 50

        chats = kit.chats(component="c")
        chat = chats.create("anna", ["ben", "cleo"], "hello")
        assert chat is not None
        assert chats.send(chat, "ben", "hi") == 2
        for user in ("anna", "ben", "cleo"):
            [news] = chats.fetch(user)
            assert chats.acknowledge(chat, user, news.messages[-1])
        assert not list(chats.check(chat))

        files = kit.files(component="c")
        files.create("logs", ["x"], chunk_size=1000)
        content = b"".join(b"line %d\n" % n for n in range(3000))
        files.publish("logs", io.BytesIO(content), name="a")
        file = files.take("logs", "x")
        assert file is not None
        tally = RecordTally(lambda line: line[:6], lambda k: [Total("d", "w", k.decode())])
        tally.add(files.lines(file))
        totals = kit.totals(component="c")
        assert totals.flush("a", tally)
        files.done(file)
        assert files.status("logs").held == 0
        assert sum(count for _, count in totals.all("d", "w")) == 3000


def channels(cluster: LocalCluster, which: str) -> list[str]:
    """The channels of waiting processes that the nodes have."""
    client = cluster.client(decode_responses=True)
    try:
        nodes = [client.get_redis_connection(node) for node in client.get_primaries()]
        return [name for node in nodes for name in node.execute_command("PUBSUB", which)]
    finally:
        client.close()


def waits_for(mail: Any, owner: str) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(mail.fetch(owner, timeout=30)))
    thread.start()
    return thread, found


async def test_only_the_node_of_a_waiter_hears_of_its_wake_up(cluster: LocalCluster) -> None:
    with shardkit.connect(map_of(cluster)) as kit, shardkit.connect(map_of(cluster)) as other:
        mail, sender = kit.mailboxes(component="c"), other.mailboxes(component="c")
        thread, found = waits_for(mail, "eva lotta")  # a tag that is no name of a channel
        [channel] = eventually(lambda: channels(cluster, "SHARDCHANNELS"))
        assert not channels(cluster, "CHANNELS")
        began = time.monotonic()
        sender.send("eva lotta", "root", 1)
        thread.join()
        assert [message.body for message in found] == [1]
        assert time.monotonic() - began < 8

        thread, found = waits_for(mail, "eva lotta")
        assert eventually(lambda: other.client("c").exists("mailbox:{eva lotta}:waiters"))
        _move_slot(cluster, channel)
        assert eventually(lambda: channels(cluster, "SHARDCHANNELS") not in ([], [channel]))
        assert eventually(lambda: other.client("c").scard("mailbox:{eva lotta}:waiters") == 2)
        began = time.monotonic()
        sender.send("eva lotta", "root", 2)
        thread.join()
        assert [message.body for message in found] == [2]
        assert time.monotonic() - began < 8

    async with await shardkit.aconnect(map_of(cluster)) as akit:
        waiting = asyncio.ensure_future(akit.mailboxes(component="c").fetch("ole", timeout=30))
        while not channels(cluster, "SHARDCHANNELS"):  # noqa: ASYNC110 - of a server
            await asyncio.sleep(0.02)
        began = time.monotonic()
        await akit.mailboxes(component="c").send("ole", "root", 3)
        assert [message.body for message in await waiting] == [3]
        assert time.monotonic() - began < 8


def _move_slot(cluster: LocalCluster, channel: str) -> None:
    """Give the slot of a channel to another node, which ends subscriptions of it."""
    client = cluster.client(decode_responses=True)
    nodes = {node.name: client.get_redis_connection(node) for node in client.get_primaries()}
    ids = {name: node.execute_command("CLUSTER", "MYID") for name, node in nodes.items()}
    slot = client.keyslot(channel)
    was = client.get_node_from_key(channel).name
    new = next(name for name in nodes if name != was)
    for name in (new, *(name for name in nodes if name != new)):
        nodes[name].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[new])
    client.close()


def test_where_sharded_channels_are_refused_plain_ones_wake(cluster: LocalCluster) -> None:
    client = cluster.client()
    nodes = [client.get_redis_connection(node) for node in client.get_primaries()]
    for node in nodes:
        node.execute_command("ACL", "SETUSER", "default", "-ssubscribe")
    try:
        with shardkit.connect(map_of(cluster)) as kit, shardkit.connect(map_of(cluster)) as other:
            thread, found = waits_for(kit.mailboxes(component="c"), "pia")
            assert eventually(lambda: channels(cluster, "CHANNELS"))
            began = time.monotonic()
            other.mailboxes(component="c").send("pia", "root", 1)
            thread.join()
            assert [message.body for message in found] == [1]
            assert time.monotonic() - began < 8
    finally:
        for node in nodes:
            node.execute_command("ACL", "SETUSER", "default", "+ssubscribe")
        client.close()
