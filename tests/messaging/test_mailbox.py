"""Mailboxes on real servers: nothing is lost, what is acknowledged is gone, and limits hold."""

from __future__ import annotations

import asyncio
import threading
import time
from random import Random

import pytest
from faces import Face, clocked, holder, keys_of
from messaging_helpers import Clock, bodies

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError, NewerFormatError
from shardkit.messaging import DROP_OLDEST, Mailboxes


def test_what_is_sent_is_fetched_in_order_and_gone_once_it_is_acknowledged(face: Face) -> None:
    mail = face.kit.mailboxes(component="many")
    before = time.time()
    sent = [{"n": n, "text": "grüße"} for n in range(12)]
    ids = [face.run(mail.send("anna", "ben", body)) for body in sent]
    assert ids == list(range(1, 13))
    first = face.run(mail.fetch("anna"))
    assert bodies(first) == sent[:10]
    assert {message.sender for message in first} == {"ben"}
    assert all(before - 5 < message.at < time.time() + 5 for message in first)
    assert bodies(face.run(mail.fetch("anna"))) == sent[10:]
    assert face.run(mail.fetch("anna")) == []
    assert face.run(mail.unread("anna")) == 12
    assert face.run(mail.acknowledge("anna", first)) == 10
    assert face.run(mail.acknowledge("anna", [*first, 11])) == 1
    assert face.run(mail.counts("anna"))[:3] == (1, 1, 0)
    assert face.run(mail.unread_many(["anna", "nobody"])) == [1, 0]
    assert face.run(mail.fetch("nobody")) == []


def test_a_message_whose_reader_died_comes_again_when_its_lease_ends(face: Face) -> None:
    clock = Clock()
    mail = clocked(face.kit, now=clock).mailboxes(component="few")
    face.run(mail.send_many([("anna", "ben", n) for n in range(3)]))
    assert bodies(face.run(mail.fetch("anna", 2, lease=30))) == [0, 1]
    clock.seconds += 29
    assert bodies(face.run(mail.fetch("anna", 1, lease=30))) == [2]
    clock.seconds += 1
    again = face.run(mail.fetch("anna"))
    assert bodies(again) == [0, 1]
    assert face.run(mail.release("anna", again[:1])) == 1
    assert face.run(mail.release("anna", [99])) == 0
    assert bodies(face.run(mail.fetch("anna"))) == [0]
    clock.seconds += 60
    assert bodies(face.run(mail.fetch("anna"))) == [0, 1, 2]


def test_what_is_popped_is_gone_and_ids_go_on(face: Face) -> None:
    mail = face.kit.mailboxes(component="one")
    face.run(mail.send_many([("anna", "ben", n) for n in range(2500)]))
    assert bodies(face.run(mail.pop("anna", 1))) == [0]
    assert bodies(face.list(mail.pop_all("anna"))) == list(range(1, 2500))
    assert face.run(mail.counts("anna")) == (0, 0, 0, 0)
    assert face.run(mail.send("anna", "ben", "next")) == 2501
    assert face.run(mail.clear("anna")) == 1
    assert face.run(mail.unread("anna")) == 0


def test_a_full_mailbox_refuses_or_drops_its_oldest_message(face: Face) -> None:
    refusing = face.kit.mailboxes("a", component="few", limit=2)
    assert [face.run(refusing.send("anna", "ben", n)) for n in range(3)] == [1, 2, None]
    face.run(refusing.acknowledge("anna", [1]))
    assert face.run(refusing.send_many([("anna", "b", 3), ("anna", "b", 4)])) == [3, None]

    dropping = face.kit.mailboxes("b", component="few", limit=2, policy=DROP_OLDEST)
    face.run(dropping.send("anna", "ben", 0))
    assert bodies(face.run(dropping.fetch("anna"))) == [0]  # leased ones are dropped too
    assert face.run(dropping.send_many([("anna", "ben", n) for n in (1, 2, 3)])) == [2, 3, 4]
    assert bodies(face.run(dropping.fetch("anna"))) == [2, 3]
    assert face.run(dropping.counts("anna"))[:3] == (2, 2, 2)

    small = face.kit.mailboxes("c", component="few", byte_limit=300, policy=DROP_OLDEST)
    for n in range(9):
        assert face.run(small.send("anna", "ben", str(n) * 80)) == n + 1
    assert face.run(small.send("anna", "ben", "x" * 300)) is None  # would never fit
    assert 1 <= face.run(small.unread("anna")) <= 2
    assert 0 < face.run(small.counts("anna")).bytes <= 300


def test_mailboxes_are_spread_over_all_shards_and_one_exchange_sends_to_many(kit: ShardKit) -> None:
    mail = kit.mailboxes(component="many")
    owners = [f"user:{n}" for n in range(200)]
    assert mail.send_many([(owner, "root", "hello") for owner in owners]) == [1] * 200
    assert mail.unread_many(owners) == [1] * 200
    used = {kit.component("many").shard_of(f"mailbox:{{{owner}}}").number for owner in owners}
    assert len(used) == 16
    assert len([key for key in keys_of(kit, "many") if key.endswith("}")]) == 200


def test_who_waits_is_woken_by_the_message(face: Face, shard_map: ShardMap) -> None:
    mail = face.kit.mailboxes(component="many")
    with_delay = threading.Timer(0.15, lambda: sender.send("anna", "ben", "now"))
    with shardkit.connect(shard_map) as other:
        sender = other.mailboxes(component="many")
        with_delay.start()
        began = time.monotonic()
        assert bodies(face.run(mail.fetch("anna", timeout=30))) == ["now"]
        assert time.monotonic() - began < 8  # it looks again by itself only after ten seconds
        assert face.run(mail.fetch("anna", timeout=0.05)) == []
        with_delay.join()
        assert not [key for key in keys_of(other, "many") if key.endswith(":waiters")]


def test_who_does_not_wait_asks_once_and_registers_nowhere(kit: ShardKit) -> None:
    steps = kit.mailboxes(component="one").deferred.fetch("anna")
    reply = kit.driver.link.send(next(steps))
    with pytest.raises(StopIteration, match=r"^\[\]$"):
        steps.send(reply)


def test_a_waiter_is_woken_when_a_lease_ends(face: Face) -> None:
    mail = face.kit.mailboxes(component="one")
    face.run(mail.send("anna", "ben", 1))
    assert face.run(mail.fetch("anna", lease=0.2))
    assert bodies(face.run(mail.fetch("anna", timeout=5))) == [1]


async def test_a_thousand_waiting_readers_share_a_connection_and_do_not_poll(
    akit: AsyncShardKit,
) -> None:
    mail = akit.mailboxes(component="one")
    owners = [f"user:{n}" for n in range(1000)]
    waiting = [asyncio.create_task(mail.fetch(owner, timeout=60)) for owner in owners]
    client = await akit.client("one")
    for _ in range(2000):
        if await client.scard("mailbox:{user:999}:waiters"):
            break
        await asyncio.sleep(0.01)
    before = await client.info("commandstats")
    clients = (await client.info("clients"))["connected_clients"]
    await asyncio.sleep(0.3)  # time in which some of a thousand that poll would have asked
    after = await client.info("commandstats")
    called = [int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"]) for stats in (before, after)]
    assert called[0] == called[1]
    assert clients < 100  # of whatever else is connected too
    await mail.send_many([(owner, "root", owner) for owner in owners])
    found = await asyncio.gather(*waiting)
    assert [bodies(messages) for messages in found] == [[owner] for owner in owners]


async def test_cancelling_a_reader_loses_no_message(akit: AsyncShardKit) -> None:
    mail = akit.mailboxes(component="one")
    taken = 0
    for n in range(40):
        await mail.send("anna", "ben", n)
        reading = asyncio.create_task(mail.pop("anna", timeout=1) if n % 2 else mail.fetch("anna"))
        for _ in range(n % 5):
            await asyncio.sleep(0)
        reading.cancel()
        try:
            found = await reading
            taken += len(found)
            await mail.acknowledge("anna", found)
        except asyncio.CancelledError:
            pass
    rest = await mail.fetch("anna", 1000)
    assert taken + len(rest) == 40


def test_threads_that_fetch_and_die_deliver_everything_as_a_model_says(kit: ShardKit) -> None:
    """Random sends, fetches, deaths, acknowledgements and releases against a model."""
    random, clock = Random(18), Clock()
    mail = clocked(kit, now=clock).mailboxes(component="few", limit=30)
    waiting: dict[int, int] = {}  # of the model: message by id
    leases: dict[int, float] = {}
    acknowledged: set[int] = set()
    last = 0
    for n in range(600):
        clock.seconds += random.choice((0, 0, 1, 5))
        match random.randrange(5):
            case 0 | 1:
                id_ = mail.send("anna", "ben", n)
                assert (id_ is None) == (len(waiting) == 30)
                if id_ is not None:
                    last += 1
                    assert id_ == last
                    waiting[id_] = n
            case 2:
                limit = random.randint(1, 8)
                free = [i for i in waiting if leases.get(i, 0) <= clock.seconds]
                found = mail.fetch("anna", limit, lease=10)
                assert len(found) == min(limit, len(free))
                for message in found:
                    assert message.id not in acknowledged
                    assert message.id in free
                    assert waiting[message.id] == message.body
                    leases[message.id] = clock.seconds + 10
            case 3 if leases:
                done = random.sample(sorted(leases), random.randint(1, len(leases)))
                assert mail.acknowledge("anna", done) == len(done)
                for id_ in done:
                    del leases[id_], waiting[id_]
                    acknowledged.add(id_)
            case 4 if leases:
                back = random.choice(sorted(leases))
                assert mail.release("anna", [back]) == 1
                leases[back] = 0
        assert mail.unread("anna") == len(waiting)
    assert not list(mail.check("anna"))


def test_parallel_readers_never_get_one_message_at_a_time(kit: ShardKit) -> None:
    mail = kit.mailboxes(component="one")
    mail.send_many([("anna", "ben", n) for n in range(400)])
    got: list[int] = []

    def read() -> None:
        while found := mail.fetch("anna", 3):
            got.extend(bodies(found))
            mail.acknowledge("anna", found)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(400))


def test_what_is_damaged_is_named_and_blocks_nobody(kit: ShardKit) -> None:
    mail = kit.mailboxes(component="many")
    mail.send_many([("anna", "ben", n) for n in range(3)])
    server = holder(kit, "many", "mailbox:{anna}")
    stored = server.zrange("mailbox:{anna}", 1, 1)[0]
    server.zrem("mailbox:{anna}", stored)
    server.zadd("mailbox:{anna}", {b"no JSON": 2})
    assert [found.key for found in mail.check("anna")] == [
        "mailbox:{anna}",
        "mailbox:{anna}:state",  # the bytes
    ]
    with pytest.raises(DamagedDataError, match=r"message 2.*acknowledge\('anna', \[id\]\)"):
        mail.fetch("anna")
    mail.acknowledge("anna", [2])
    assert bodies(mail.fetch("anna")) == [0, 2]
    server.hset("mailbox:{anna}:state", "last", 2)
    found = {(damage.key, damage.found) for damage in mail.check("anna")}
    assert ("mailbox:{anna}:state", "last=2") in found
    server.hset("mailbox:{anna}:state", "last", 3)
    server.hset("mailbox:{anna}:state", "format", 2)
    with pytest.raises(NewerFormatError, match="has format 2, this release reads 1"):
        mail.send("anna", "ben", 4)
    server.delete("mailbox:{anna}:state")
    assert mail.send("anna", "ben", 4) == 4  # no id is given twice
    [found] = mail.check("anna")  # the bytes of the others
    assert (found.key, found.found[:6]) == ("mailbox:{anna}:state", "bytes=")
    assert mail.clear("anna") == 3
    assert mail.counts("anna").bytes == 0
    assert not list(mail.check("anna"))


def test_bad_arguments_are_named(kit: ShardKit) -> None:
    mail = kit.mailboxes(component="one")
    calls = [
        lambda: mail.send("{anna}", "ben", 1),
        lambda: mail.send("anna", "ben", {1, 2}),
        lambda: mail.send("anna", "ben", float("nan")),
        lambda: mail.send("anna", "ben", {7: "a", "7": "b"}),
        lambda: mail.send("anna", "ben", "x" * 2**21),
        lambda: mail.fetch("anna", 0),
        lambda: mail.fetch("anna", lease=0),
        lambda: mail.fetch("anna", timeout=-1),
        lambda: mail.acknowledge("anna", [0]),
        lambda: kit.mailboxes("{m}", component="one"),
        lambda: kit.mailboxes(component="one", limit=0),
        lambda: kit.mailboxes(component="one", policy="explode"),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"mailbox|name="):
            call()
    assert isinstance(mail, Mailboxes)


@pytest.mark.parametrize("part", ["", ":leased", ":state", ":waiters"])
def test_a_mailbox_whose_key_is_of_another_type_is_named_and_nothing_else(
    part: str, kit: ShardKit
) -> None:
    mail = kit.mailboxes(component="one")
    mail.send("anna", "ben", 1)
    key, client = f"mailbox:{{anna}}{part}", kit.client("one")
    assert key in mail._keys("anna")
    client.delete(key)
    client.set(key, "x")
    [found] = mail.check("anna")
    assert (found.key, found.repair) == (key, "delete the key")


def test_a_last_id_that_is_no_number_is_named(kit: ShardKit) -> None:
    mail = kit.mailboxes(component="one")
    mail.send("anna", "ben", 1)
    kit.client("one").hset("mailbox:{anna}:state", "last", "many")
    [found] = mail.check("anna")
    assert (found.key, found.found) == ("mailbox:{anna}:state", "last=b'many'")
    assert "clear" in found.repair


def test_a_large_mailbox_is_cleared_in_portions(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = face.kit.mailboxes(component="few")
    face.run(mail.send_many([("anna", "ben", n) for n in range(5)]))
    monkeypatch.setattr("shardkit.messaging.mailbox.MOST_AT_ONCE", 2)
    assert face.run(mail.clear("anna")) == 5
    assert face.run(mail.counts("anna")) == (0, 0, 0, 0)
    assert face.run(mail.clear("anna")) == 0
