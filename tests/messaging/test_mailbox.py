"""Mailboxes on real servers: nothing is lost, what is acknowledged is gone, and limits hold."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from faces import Face, Time, clocked, drawn, holder
from messaging_helpers import bodies

from shardkit import AsyncShardKit, ShardKit
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    NewerFormatError,
    ParameterMismatchError,
)
from shardkit.geo import City, IpRange
from shardkit.messaging import DROP_OLDEST, REFUSE, Mailboxes, RecordTally, Total, by_place


def test_a_message_has_a_sender_and_a_time_and_its_body_unchanged(face: Face) -> None:
    mail, before = face.kit.mailboxes(component="many"), time.time()
    body = {"text": "grüße", "n": [None, 2.5]}
    assert face.run(mail.send("anna", "ben", body)) == 1
    [message] = face.run(mail.fetch("anna"))
    assert (message.id, message.sender, message.body) == (1, "ben", body)
    assert before - 5 < message.at < time.time() + 5
    assert face.run(mail.fetch("nobody")) == []


@pytest.mark.parametrize("policy", [REFUSE, DROP_OLDEST])
def test_random_calls_agree_with_a_model(face: Face, policy: str) -> None:
    """Sends, fetches, deaths, pops, acknowledgements and releases; leased ones are dropped too."""
    random, clock, run = Random(18), Time(), face.run
    mail = clocked(face.kit, now=clock).mailboxes(component="few", limit=8, policy=policy)
    stored: dict[int, int] = {}  # of the model: message by id
    leases: dict[int, float] = {}
    last = fetched = dropped = 0

    def remove(id_: int) -> bool:
        leases.pop(id_, None)
        return stored.pop(id_, None) is not None

    for n in range(drawn(200, 600)):
        clock.at += random.choice((0, 0, 1, 5))
        limit, some = random.randint(1, 4), [random.randint(1, last + 1) for _ in range(2)]
        match random.choice(("send", "send", "fetch", "pop", "acknowledge", "release")):
            case "send" if policy == REFUSE and len(stored) == 8:
                assert run(mail.send("anna", "ben", n)) is None
            case "send":
                last += 1
                stored[last] = n
                assert run(mail.send("anna", "ben", n)) == last
                if len(stored) > 8:
                    dropped += remove(min(stored))
            case "acknowledge":
                assert run(mail.acknowledge("anna", some)) == sum(map(remove, some))
            case "release":
                assert run(mail.release("anna", some)) == sum(id_ in leases for id_ in some)
                leases |= {id_: 0 for id_ in some if id_ in leases}
            case verb:
                ended = sorted((end, str(id_)) for id_, end in leases.items() if end <= clock.at)
                again = sorted(int(id_) for _, id_ in ended[:limit])
                fresh = [id_ for id_ in stored if id_ > fetched][: limit - len(again)]
                fetched = max([fetched, *fresh])
                lease = {"lease": 10} if verb == "fetch" else {}
                found = run(getattr(mail, verb)("anna", limit, **lease))
                expected = [(id_, stored[id_]) for id_ in again + fresh]
                assert [(message.id, message.body) for message in found] == expected
                for id_, _ in expected:
                    if verb == "fetch":
                        leases[id_] = clock.at + 10
                    else:
                        remove(id_)
        assert run(mail.counts("anna"))[:3] == (len(stored), len(leases), dropped)
    assert run(mail.unread_many(["anna", "nobody"])) == [len(stored), 0]
    assert face.list(mail.check("anna")) == []
    assert run(mail.clear("anna")) == len(stored)
    assert run(mail.send("anna", "ben", "no id is given twice")) == last + 1


def test_more_messages_than_one_exchange_has_are_sent_and_popped(face: Face) -> None:
    mail = face.kit.mailboxes(component="one")
    sent = face.run(mail.send_many([("anna", "ben", n) for n in range(2500)]))
    assert sent == [*range(1, 2501)]
    assert bodies(face.list(mail.pop_all("anna"))) == [*range(2500)]
    assert face.run(mail.counts("anna")) == (0, 0, 0, 0)


def test_a_mailbox_that_is_full_of_bytes_drops_or_refuses(face: Face) -> None:
    small = face.kit.mailboxes(component="few", byte_limit=300, policy=DROP_OLDEST)
    for n in range(9):
        assert face.run(small.send("anna", "ben", str(n) * 80)) == n + 1
    assert face.run(small.send("anna", "ben", "x" * 300)) is None  # would never fit
    assert 1 <= face.run(small.unread("anna")) <= 2
    assert 0 < face.run(small.counts("anna")).bytes <= 300
    refusing = face.kit.mailboxes("b", component="few", limit=2)
    assert face.run(refusing.send_many([("anna", "b", n) for n in range(3)])) == [1, 2, None]


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
    with pytest.raises(DamagedDataError, match="last=2, where an integer from 3"):
        mail.send("anna", "ben", 4)
    server.hset("mailbox:{anna}:state", "last", 3)
    server.hset("mailbox:{anna}:state", "format", 2)
    with pytest.raises(NewerFormatError, match="has format 2, this release reads 1"):
        mail.send("anna", "ben", 4)
    server.delete("mailbox:{anna}:state")
    assert mail.send("anna", "ben", 4) == 4  # no id is given twice
    leased, counted = mail.check("anna")  # what was fetched, and the bytes of the others
    assert (leased.key, leased.found) == ("mailbox:{anna}:leased", "leases of 2")
    assert (counted.key, counted.found[:6]) == ("mailbox:{anna}:state", "bytes=")
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


@pytest.mark.parametrize(
    ("field", "value"),
    [("last", "x"), ("next", 2**31), ("next", ""), ("bytes", -1), ("format", "x")],
)
def test_clearing_repairs_a_mailbox(face: Face, kit: ShardKit, field: str, value: Any) -> None:
    mail = face.kit.mailboxes(component="one")
    for body in range(3):
        face.run(mail.send("anna", "ben", body))
    face.run(mail.fetch("anna", 1))
    kit.client("one").hset("mailbox:{anna}:state", field, value)
    with pytest.raises(DamagedDataError, match=rf"mailbox:{{anna}}:state is damaged: {field}="):
        face.run(mail.fetch("anna"))
    [found] = face.list(mail.check("anna"))
    assert (found.key, found.repair) == (
        "mailbox:{anna}:state",
        "clear(owner) removes all messages",
    )
    assert face.run(mail.clear("anna")) == 3
    assert face.list(mail.check("anna")) == []
    assert face.run(mail.send("anna", "ben", "new")) > 3


def test_a_large_mailbox_is_cleared_in_portions(face: Face) -> None:
    mail = face.kit.mailboxes(component="few")
    face.run(mail.send_many([("anna", "ben", n) for n in range(2500)]))
    assert face.run(mail.clear("anna")) == 2500
    assert face.run(mail.counts("anna")) == (0, 0, 0, 0)
    assert face.run(mail.clear("anna")) == 0


Words = RecordTally[tuple[str, str]]


def counted(lines: list[bytes]) -> Words:
    """A tally of lines of a day and a word."""

    def key(line: bytes) -> tuple[str, str] | None:
        words = line.decode().split()
        return (words[0], words[1]) if len(words) == 2 else None

    tally: Words = RecordTally(key, lambda key: [Total(key[0], "word", key[1])])
    tally.add(lines)
    return tally


def lines_of(seed: int, count: int = 4000) -> list[bytes]:
    random = Random(seed)
    return [b"day%d w%d" % (random.randrange(3), random.randrange(2500)) for _ in range(count)]


def stored(face: Face, totals: Any) -> dict[str, dict[str, int]]:
    return {day: dict(face.list(totals.all(day, "word"))) for day in ("day0", "day1", "day2")}


def expected(*files: list[bytes]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {f"day{n}": Counter() for n in range(3)}
    for line in (line for file in files for line in file):
        day, word = line.decode().split()
        counts[day][word] += 1
    return {day: dict(words) for day, words in counts.items()}


def test_sources_are_added_together_and_each_only_once(face: Face) -> None:
    totals = face.kit.totals(component="many")
    files = [lines_of(1), lines_of(2)]
    for n, lines in enumerate(files):
        assert face.run(totals.flush(f"file{n}", counted([*lines, b"", b"too many words"])))
        assert not face.run(totals.flush(f"file{n}", counted(lines)))
    assert stored(face, totals) == expected(*files)
    assert face.run(totals.flush("file0", counted(files[0]), aggregator="again"))
    found = expected(*files, files[0])
    assert stored(face, totals) == found
    top = face.run(totals.top("day0", "word", 3))
    assert [count for _, count in top] == sorted(found["day0"].values(), reverse=True)[:3]
    word = top[0][0]
    assert face.run(totals.get("day0", "word", word, "no such")) == [top[0][1], 0]
    assert face.run(totals.sources("day0")) == {
        ("", "file0"): True,
        ("", "file1"): True,
        ("again", "file0"): True,
    }
    assert not face.run(totals.flush("empty", counted([])))
    assert face.run(totals.expire("day0", timedelta(minutes=1), "word"))


def test_a_flush_killed_between_any_two_steps_is_repeated_without_counting_twice(
    kit: ShardKit,
) -> None:
    lines = lines_of(3, 7000)
    face = Face(kit, None)
    for killed_after in range(1, 4):
        totals = kit.totals(f"t{killed_after}", component="few")
        steps = totals.deferred.flush("file", counted(lines))
        batch: Any = next(steps)
        for n in range(killed_after):
            replies = kit.driver.link.send(batch)
            if n + 1 < killed_after:
                try:
                    batch = steps.send(replies)
                except StopIteration:
                    break
        totals.flush("file", counted(lines))
        assert stored(face, totals) == expected(lines)
        assert all(totals.sources("day1").values())


def test_a_flush_of_other_counts_under_the_same_name_is_refused(kit: ShardKit) -> None:
    totals = kit.totals(component="few")
    assert totals.flush("file", counted([b"day0 a"]))
    assert not totals.flush("file", counted([b"day0 a"]))
    with pytest.raises(ParameterMismatchError, match=r"'file'.*'day0'"):
        totals.flush("file", counted([b"day0 b"]))
    with pytest.raises(InvalidArgumentError, match="group"):
        totals.top("{day}", "word")
    client: Any = kit.client("few", kit.component("few").shard_of("totals:{day0}:done").number)
    client.hset("totals:{day0}:done", '["","file"]', "what?")
    with pytest.raises(DamagedDataError, match="pages added"):
        totals.flush("file", counted([b"day0 a"]))


def test_log_lines_are_counted_by_day_and_place(kit: ShardKit) -> None:
    ip = kit.ip_to_city(component="one")
    bonn, lyon = City("Bonn", "NRW", "Germany"), City("Lyon", "Rhône", "France")
    ip.import_from([IpRange.of("192.0.2.0/25", city=bonn), IpRange.of("192.0.2.128/25", city=lyon)])

    def parse(line: bytes) -> tuple[str, bytes] | None:
        words = line.split()
        return (words[1].decode(), words[0]) if len(words) > 1 else None

    tally = by_place(ip.local(), parse)
    tally.add([b"192.0.2.1 2015-05-17 x", b"192.0.2.2 2015-05-17", b"192.0.2.200 2015-05-17", b""])
    tally.add([b"no-address 2015-05-17", b"198.51.100.1 2015-05-17"])
    assert tally.skipped == 3
    totals = kit.totals(component="few")
    totals.flush("a.log", tally)
    assert totals.top("2015-05-17", "country") == [("Germany", 2), ("France", 1)]
    assert totals.top("2015-05-17", "city", 1) == [('["Bonn","NRW","Germany"]', 2)]


def test_only_so_many_cities_of_addresses_are_remembered(lower: Any) -> None:
    lower(city_cached_addresses=2)
    asked = []

    class Cities:
        def find(self, address: str) -> City:
            asked.append(address)
            return City(f"City of {address}", "", "")

    tally = by_place(Cities(), lambda line: ("day", line.decode()))  # type: ignore[arg-type]
    tally.add([b"a", b"b", b"a", b"c", b"c", b"a"])
    assert asked == ["a", "b", "c", "a"]
    assert tally.skipped == 0


def test_a_kind_that_is_not_text_is_named(kit: ShardKit) -> None:
    totals = kit.totals(component="one")
    totals.flush("file", counted([b"day0 a"]))
    kit.client("one").zadd("totals:{day0}:of:word", {b"\xff": 3})
    for read in (lambda: totals.top("day0", "word"), lambda: list(totals.all("day0", "word"))):
        with pytest.raises(DamagedDataError, match=r"of:word is damaged: b'\\xff', where text"):
            read()
