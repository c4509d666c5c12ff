"""Calls that wait, and messages, while a split, a move or a failover changes the servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from arranged import ask, map_of
from faces import PATIENCE, Exchanges, Face, faced
from growth_helpers import PATIENT, Fleet

import shardkit
from shardkit.admin.growth import fail_over, start_split
from shardkit.local import LocalSentinel, LocalServer
from shardkit.messaging import RecordTally, Total
from shardkit.queues import NewTask

INCREMENT = "return redis.call('INCR', KEYS[1])"
CHANNELS = [f"c{n}" for n in range(12)]

both_faces = pytest.mark.parametrize("face", ["blocking", "awaiting"])


def changed(fleet: Fleet, how: str) -> None:
    """Have the second server take the place of the first."""
    if how == "split":
        start_split(fleet.config, "users", shards=5, over=[fleet.name(1)], hold=PATIENT)
    elif how == "move of shards":
        assert fleet.move_shard().phase == "done"
    elif how == "move of a server":
        assert fleet.move_server().phase == "done"
    else:
        fail_over(fleet.config, fleet.name(0), fleet.name(1))


def answer(server: LocalServer, *args: Any) -> Any:
    """What a server replies to a command; False if it does not."""
    try:
        return ask(server, "execute_command", *args)
    except redis.RedisError:
        return False


def has_role(server: LocalServer, role: bytes) -> bool:
    return role in (answer(server, "ROLE") or ())


def messages(users: Face, events: Any, until: Callable[[list[Any]], bool]) -> list[dict[str, Any]]:
    """What comes before something is true; in vain, what comes in time."""
    came: list[dict[str, Any]] = []
    for _ in range(round(200 * PATIENCE)):
        if until(came):
            break
        if (message := users.run(events.get_message(timeout=0.1))) is not None:
            came.append(message)
    return came


@both_faces
@pytest.mark.parametrize("is_pattern", [False, True], ids=["channels", "pattern"])
def test_messages_at_new_shards_are_in_their_gaps(
    fleet: Fleet, face: str, is_pattern: bool
) -> None:
    fleet.push(0)
    with faced(face, fleet.url) as users:
        events = users.kit.key_sharded("users").pubsub(ignore_subscribe_messages=True)
        users.run(events.psubscribe("c*") if is_pattern else events.subscribe(*CHANNELS))
        changed(fleet, "split")
        with shardkit.connect(fleet.url) as kit:  # it knows the new shards first
            router = kit.key_sharded("users")
            for name in CHANNELS:
                router.publish(name, name)
            shards = {name: f"users:{router.shard_of(name)}" for name in CHANNELS}

        def is_told(came: list[Any]) -> bool:
            known = {m["shard"] if m["type"] == "gap" else shards[m["data"].decode()] for m in came}
            return known >= {*shards.values()}

        assert is_told(messages(users, events, is_told))


@both_faces
@pytest.mark.parametrize("how", ["move of a server", "failover"])
def test_no_message_comes_twice_after_a_server_follows_its_successor(
    fleet: Fleet, face: str, how: str
) -> None:
    fleet.push(0)
    if how == "failover":
        fleet.replicated(1)
    with faced(face, fleet.url) as users, shardkit.connect(fleet.url) as kit:
        events = users.kit.key_sharded("users").pubsub(ignore_subscribe_messages=True)
        users.run(events.subscribe(*CHANNELS))
        changed(fleet, how)

        def follows(came: list[Any]) -> bool:
            return all(count for _, count in ask(fleet.servers[1], "pubsub_numsub", *CHANNELS))

        messages(users, events, follows)
        assert follows([])
        for name in CHANNELS:
            kit.key_sharded("users").publish(name, name)
        came = messages(users, events, lambda came: any(m["type"] == "gap" for m in came))
        counts = Counter(m["data"] for m in came if m["type"] == "message")
        assert counts == Counter(name.encode() for name in CHANNELS)
        assert came[-1]["type"] == "gap"  # in which the former server's messages were not taken


@both_faces
@pytest.mark.parametrize("how", ["split", "move of shards", "move of a server", "failover"])
def test_who_waits_is_woken_at_the_new_server(
    fleet: Fleet, face: str, how: str, lower: Callable[..., None]
) -> None:
    lower(waits=1000)  # seconds after which callers look for themselves
    fleet.push(0)
    if how == "failover":
        fleet.replicated(1)
    with faced(face, fleet.url) as users, shardkit.connect(fleet.url) as kit:
        place = kit.component("users").place
        name = next(f"w{n}" for n in range(99) if place(f"mailbox:{{w{n}}}") == 1)
        latch = next(f"l{n}" for n in range(99) if place(f"latch:{{l{n}}}") == 1)
        mail, own = (each.mailboxes(component="users") for each in (users.kit, kit))
        closed, counted = (
            each.countdown_latch(latch, component="users") for each in (users.kit, kit)
        )
        counted.set(1)
        ends = [
            users.start(partial(mail.fetch, name, timeout=None)),
            users.start(partial(closed.wait, None)),
        ]

        def waits_at(number: int) -> bool:
            return bool(ask(fleet.servers[number], "pubsub_channels", "shardkit:wake:*"))

        assert users.eventually(lambda: waits_at(0))
        assert users.eventually(lambda: changed(fleet, how) or True)
        assert users.eventually(lambda: waits_at(1))
        own.send(name, "ann", 1)
        counted.count_down()
        fetched, is_open = [end() for end in ends]
        assert [message.body for message in fetched] == [1]
        assert is_open


@both_faces
@pytest.mark.parametrize("how", ["split", "move of shards", "move of a server", "failover"])
def test_a_registered_script_follows_its_keys(fleet: Fleet, face: str, how: str) -> None:
    fleet.push(0)
    if how == "failover":
        fleet.replicated(1)
    with faced(face, fleet.url) as users:
        router = users.kit.key_sharded("users")
        users.run(router.set("k", 0))

        async def registered() -> Any:
            return router["k"].register_script(INCREMENT)

        is_async = users.runner is not None
        counting = users.run(registered()) if is_async else router["k"].register_script(INCREMENT)
        assert users.run(counting(keys=["k"])) == 1
        assert users.eventually(lambda: changed(fleet, how) or True)
        assert users.run(counting(keys=["k"])) == 2
        assert users.run(counting(keys=["k"])) == 3


@both_faces
def test_scan_iter_misses_no_key_at_a_failover_of_sentinels(face: str) -> None:
    names = {f"n{n}".encode() for n in range(3000)}
    with LocalSentinel("main", replicas=1, sentinels=1) as watched:
        entries = [dict(watched.entry.fields, db=db) for db in (0, 1)]
        with faced(face, map_of(users={"shards": entries})) as users:
            router = users.kit.key_sharded("users")
            users.run(router.mset(dict.fromkeys(names, 1)))
            keys = users.iterate(router.scan_iter("n*", count=10))
            seen = {next(keys) for _ in range(100)}
            sentinel, replica = watched.sentinels[0], watched.replicas[0]
            assert users.eventually(lambda: answer(sentinel, "SENTINEL FAILOVER", "main"))
            assert users.eventually(lambda: (answer(replica, "ROLE") or [b""])[0] == b"master")
            assert users.eventually(
                lambda: (answer(watched.master, "ROLE") or [b""])[0] == b"slave"
            )
            assert seen.union(keys) == names


@both_faces
@pytest.mark.parametrize("how", ["split", "move of shards", "move of a server", "failover"])
def test_iterators_miss_nothing_of_a_key_that_moves(fleet: Fleet, face: str, how: str) -> None:
    fleet.push(0)
    if how == "failover":
        fleet.replicated(1)
    with faced(face, fleet.url) as users:
        chats, totals = (make(component="users") for make in (users.kit.chats, users.kit.totals))
        names = {f"user {n}" for n in range(2500)}
        chat = users.run(chats.create("user 0", [], chat="many"))
        others = sorted(names - {"user 0"})
        for start in range(0, len(others), 500):
            users.run(chats.join(chat, *others[start : start + 500]))
        tally = RecordTally(lambda name: (name,), lambda key: [Total("today", "users", key[0])])
        tally.add(names)
        users.run(totals.flush("a source", tally))
        iterators = users.iterate(chats.members(chat)), users.iterate(totals.all("today", "users"))
        members, of_all = ({next(iterator)[0] for _ in range(50)} for iterator in iterators)
        assert users.eventually(lambda: changed(fleet, how) or True)
        assert members.union(member.user for member in iterators[0]) == names
        assert of_all.union(name for name, _ in iterators[1]) == names


@both_faces
@pytest.mark.parametrize("how", ["split", "move of shards", "move of a server", "failover"])
def test_copies_and_repairs_miss_nothing_of_a_key_that_moves(
    fleet: Fleet, face: str, how: str
) -> None:
    fleet.push(0)
    if how == "failover":
        fleet.replicated(1)
    with faced(face, fleet.url) as users:
        router, tasks = users.kit.key_sharded("users"), users.kit.queues(component="users")
        users.run(router.hset("plain", mapping={f"f{n}": n for n in range(2500)}))
        users.run(tasks.enqueue_many("mail", [NewTask("send", [n]) for n in range(2500)]))
        users.run(router.delete("queues:{mail}"))
        steps = (
            users.kit.hash("copy", component="users", total=5000).deferred.copy_from("plain"),
            tasks.deferred.restore("mail"),
        )
        calls = [Exchanges(users, each) for each in steps]
        for call in calls:
            call.until("HSCAN")
            call.until("HSCAN")
        assert users.eventually(lambda: changed(fleet, how) or True)
        assert [call.end() for call in calls] == [2500, 2500]
