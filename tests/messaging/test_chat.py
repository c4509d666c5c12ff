"""Group chat on real servers: ids, positions and membership are exact, whoever dies when."""

from __future__ import annotations

import asyncio
import threading
import time
from random import Random
from typing import Any

import pytest
from faces import Face, clocked, holder, keys_of
from messaging_helpers import Clock, bodies

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.messaging import Chats, waiting


def news(face: Face, chats: Any, user: str) -> dict[str, list[Any]]:
    return {chat: bodies(messages) for chat, messages, _ in face.run(chats.fetch(user))}


def rest_of(steps: Any, step: Any) -> Any:
    """The steps of an operation from one that it has yielded."""
    while True:
        replies = yield step
        try:
            step = steps.send(replies)
        except StopIteration as done:
            return done.value


def test_members_fetch_at_their_own_pace_until_they_acknowledge(face: Face) -> None:
    chats = face.kit.chats(component="many")
    others = ["ben", "cleo"]
    chat = face.run(chats.create("anna", others, "hello"))
    assert others == ["ben", "cleo"]  # the caller's list is left alone
    assert face.run(chats.send(chat, "ben", "hi")) == 2
    for user in ("anna", "ben", "cleo"):
        assert news(face, chats, user) == {chat: ["hello", "hi"]}
        assert news(face, chats, user) == {chat: ["hello", "hi"]}
        assert face.run(chats.chats(user)) == [chat]
    assert face.run(chats.acknowledge(chat, "ben", 1)) is True
    assert news(face, chats, "ben") == {chat: ["hi"]}
    assert face.run(chats.acknowledge(chat, "ben", 2)) is True
    assert face.run(chats.acknowledge(chat, "ben", 1)) is False  # it never goes back
    assert face.run(chats.fetch("ben")) == []
    assert face.run(chats.unread("ben")) == {chat: 0}
    found = {member.user: member[1:] for member in face.list(chats.members(chat))}
    assert found == {"anna": (0, 2), "ben": (2, 0), "cleo": (0, 2)}
    assert face.run(chats.fetch("nobody")) == []
    assert face.run(chats.fetch("anna", 1))[0].unread == 2


def test_ids_of_chats_and_names_of_users_never_meet_other_keys(kit: ShardKit) -> None:
    chats = kit.chats(component="one")
    names = ["x", "x:members", "x:state", "chat:", "user:x", "user:", ":", "1"]
    for chat in names:
        assert chats.create(chat, names, chat, chat=chat) == chat
    for user in names:
        found = {chat: [each.body for each in new] for chat, new, _ in chats.fetch(user)}
        assert found == {chat: [chat] for chat in names}
    for chat in names:
        assert [message.id for message in chats.history(chat)] == [1]


def test_what_all_have_acknowledged_is_removed_except_for_the_history(face: Face) -> None:
    chats = face.kit.chats(component="few")
    for kept in (0, 2):
        chat = face.run(chats.create("anna", ["ben"], 1, history=kept))
        for n in (2, 3, 4):
            face.run(chats.send(chat, "anna", n))
        face.run(chats.acknowledge(chat, "anna", 4))
        assert bodies(face.run(chats.history(chat))) == [4, 3, 2, 1]
        face.run(chats.acknowledge(chat, "ben", 3))
        face.run(chats.acknowledge(chat, "ben", 4))
        assert bodies(face.run(chats.history(chat))) == [4, 3][:kept]
        assert face.run(chats.send(chat, "ben", 5)) == 5  # numbers go on
    newest = face.run(chats.history(chat, 2))
    assert bodies(newest) == [5, 4]
    assert bodies(face.run(chats.history(chat, 2, cursor=newest[-1].id))) == [3]


def test_who_joins_sees_later_messages_and_who_joins_again_keeps_his_place(face: Face) -> None:
    chats = face.kit.chats(component="many")
    chat = face.run(chats.create("anna", [], 1))
    assert face.run(chats.join(chat, "ben", "cleo")) == 2
    face.run(chats.send(chat, "anna", 2))
    assert face.run(chats.join(chat, "ben")) == 0
    assert news(face, chats, "ben") == {chat: [2]}
    assert face.run(chats.leave(chat, "ben")) is True
    assert face.run(chats.leave(chat, "ben")) is False
    assert face.run(chats.fetch("ben")) == []
    assert face.run(chats.chats("ben")) == []
    assert face.run(chats.acknowledge(chat, "ben", 2)) is None  # which brings nobody back
    assert face.run(chats.send(chat, "ben", 3)) is None
    assert face.run(chats.fetch_from(chat, "ben")) is None


def test_the_last_one_out_removes_the_chat_and_nothing_brings_keys_back(
    face: Face, shard_map: ShardMap
) -> None:
    chats = face.kit.chats(component="one")
    chat = face.run(chats.create("anna", ["ben"], 1))
    face.run(chats.leave(chat, "anna"))
    face.run(chats.acknowledge(chat, "ben", 1))
    face.run(chats.leave(chat, "ben"))
    assert face.run(chats.send(chat, "ben", 2)) is None
    assert face.run(chats.join(chat, "ben")) is None
    assert face.run(chats.acknowledge(chat, "ben", 1)) is None
    with shardkit.connect(shard_map) as kit:
        assert all(key.endswith(":refused") for key in keys_of(kit, "one"))


def test_creating_a_chat_that_exists_changes_nothing(face: Face) -> None:
    chats = face.kit.chats(component="few")
    assert face.run(chats.create("anna", ["ben"], 1, chat="chat:")) == "chat:"
    face.run(chats.acknowledge("chat:", "ben", 1))
    assert face.run(chats.create("ben", ["anna", "dora"], 2, chat="chat:")) is None
    assert face.run(chats.unread("ben")) == {"chat:": 0}
    assert news(face, chats, "anna") == {"chat:": [1]}
    assert face.run(chats.chats("dora")) == []


def test_an_unfinished_join_shows_nobody_anything_and_is_forgotten(kit: ShardKit) -> None:
    clock = Clock()
    chats = clocked(kit, now=clock).chats(component="many")
    chat = chats.create("anna", [], 1)
    assert chat is not None
    kit.driver.run(chats._write_lists(chat, ["ben"], {}))  # and dies before the second step
    assert chats.fetch("ben") == []
    assert chats.chats("ben") == [chat]
    clock.seconds += 61
    assert chats.fetch("ben") == []
    assert chats.chats("ben") == []
    chats.join(chat, "ben")
    chats.send(chat, "anna", 2)
    assert [bodies(found.messages) for found in chats.fetch("ben")] == [[2]]


@pytest.mark.parametrize("stalled", ["create", "join"])
@pytest.mark.parametrize("event", ["forgotten", "overtaken by leaving"])
def test_a_call_that_stalls_between_list_and_chat_begins_again(
    kit: ShardKit, stalled: str, event: str
) -> None:
    """Otherwise leaving removes the join's entry from the list. The simulator found this."""
    clock = Clock()
    chats = clocked(kit, now=clock).chats(component="many")
    slow: Any = chats.deferred.create("anna", ["ben"], 1, chat="c")
    if stalled == "join":
        chats.create("anna", [], 1, chat="c")
        slow = chats.deferred.join("c", "ben")
    batch: Any = next(slow)
    for _ in ("exists", "lists"):
        batch = slow.send(kit.driver.link.send(batch))  # the lists are written; now it stalls
    if event == "forgotten":
        clock.seconds += 61
        assert chats.fetch("ben") == []
        assert chats.chats("ben") == []
    elif stalled == "join":
        assert chats.join("c", "ben") == 1
        assert chats.leave("c", "ben") is True
    assert kit.driver.run(rest_of(slow, batch)) == ("c" if stalled == "create" else 1)
    assert chats.chats("ben") == ["c"]
    chats.send("c", "anna", 2)
    new = [1, 2] if stalled == "create" else [2]
    assert [bodies(each.messages) for each in chats.fetch("ben")] == [new]


def test_a_list_that_was_lost_is_written_from_the_members(kit: ShardKit) -> None:
    chats = kit.chats(component="many")
    users = [f"u{n}" for n in range(50)]
    chat = chats.create("anna", users, 1)
    assert chat is not None
    for user in users[:20]:
        holder(kit, "many", f"chat:user:{{{user}}}").delete(f"chat:user:{{{user}}}")
    assert len(list(chats.check(chat))) == 20
    assert chats.repair(chat) == 20
    assert not list(chats.check(chat))
    assert len(chats.fetch("u7")) == 1


def test_who_waits_is_woken_by_a_message_and_by_leaving(face: Face, shard_map: ShardMap) -> None:
    chats = face.kit.chats(component="many")
    chat = face.run(chats.create("anna", ["ben"]))
    with shardkit.connect(shard_map) as other:
        sender = other.chats(component="many")
        for action, expected in (
            (lambda: sender.send(chat, "anna", "now"), ["now"]),
            (lambda: sender.leave(chat, "ben"), None),
        ):
            timer = threading.Timer(0.15, action)
            timer.start()
            began = time.monotonic()
            found = face.run(chats.fetch_from(chat, "ben", timeout=30))
            timer.join()
            assert (bodies(found) if found is not None else None) == expected
            assert time.monotonic() - began < 8
            if found:
                face.run(chats.acknowledge(chat, "ben", found[-1]))
    assert face.run(chats.fetch_from(chat, "anna", timeout=0)) != []


async def test_listeners_get_every_message_once_in_order_until_they_leave(
    akit: AsyncShardKit,
) -> None:
    chats = akit.chats(component="few")
    users = [f"u{n}" for n in range(5)]
    chat = await chats.create("anna", users)
    assert chat is not None

    async def listen(user: str) -> list[Any]:
        return [message.body async for message in chats.listen(chat, user)]

    listening = [asyncio.create_task(listen(user)) for user in users]
    for n in range(30):
        await chats.send(chat, "anna", n)
        if n % 7 == 0:
            await asyncio.sleep(0.01)
    for user in users:
        while (await chats.unread(user))[chat]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await chats.leave(chat, user)
    assert await asyncio.gather(*listening) == [list(range(30))] * 5


def test_random_histories_agree_with_a_model(kit: ShardKit) -> None:
    """Sends, fetches, acknowledgements; joins and leaves, some of them killed in the middle."""
    random, clock = Random(30), Clock()
    chats = clocked(kit, now=clock).chats(component="many")
    users, names = ["u0", "u1", "u2", "u3"], ["c0", "c1", "c2"]
    members: dict[str, dict[str, int]] = {}
    sent: dict[str, list[tuple[int, int]]] = {}

    def gone(chat: str) -> None:
        if chat in members and not members[chat]:
            del members[chat], sent[chat]

    def killed(steps: Any, after: int) -> None:
        """Run so many exchanges of an operation, and forget the rest."""
        batch = next(steps)
        for n in range(after):
            replies = kit.driver.link.send(batch)
            if n + 1 < after:
                batch = steps.send(replies)

    for n in range(500):
        clock.seconds += random.choice((0, 0, 5, 70))
        user, chat = random.choice(users), random.choice(names)
        present = members.get(chat, {})
        match random.randrange(8):
            case 0:
                others = random.sample(users, 2)
                made = chats.create(user, others, n, chat=chat)
                assert (made is None) == (chat in members)
                if made:
                    members[chat] = dict.fromkeys([user, *others], 0)
                    sent[chat] = [(1, n)]
            case 1 | 2:
                id_ = chats.send(chat, user, n)
                assert (id_ is None) == (user not in present)
                if id_ is not None:
                    assert id_ == sent[chat][-1][0] + 1
                    sent[chat].append((id_, n))
            case 3:
                joined = chats.join(chat, user)
                assert joined == (None if chat not in members else int(user not in present))
                if joined:
                    present[user] = sent[chat][-1][0]
            case 4:
                assert chats.leave(chat, user) == (user in present)
                present.pop(user, None)
                gone(chat)
            case 5:
                if random.random() < 0.5:
                    killed(chats.deferred.join(chat, user), 1)
                elif user in present:
                    killed(chats.deferred.leave(chat, user), 2)
                    del present[user]
                    gone(chat)
            case 6 if user in present:
                id_ = random.randint(1, sent[chat][-1][0])
                assert chats.acknowledge(chat, user, id_) == (id_ > present[user])
                present[user] = max(present[user], id_)
            case _:
                expected = {
                    name: [pair for pair in sent[name] if pair[0] > positions[user]]
                    for name, positions in members.items()
                    if user in positions
                }
                found = {
                    name: [(message.id, message.body) for message in messages]
                    for name, messages, _ in chats.fetch(user)
                }
                assert found == {name: pairs for name, pairs in expected.items() if pairs}
        if chat in members:
            lowest = min(members[chat].values())
            kept = [message.id for message in chats.history(chat, 1000)]
            assert kept == [id_ for id_, _ in reversed(sent[chat]) if id_ > lowest]
    for chat in members:
        assert not list(chats.check(chat))


def test_parallel_fetches_joins_and_leaves_lose_nothing(kit: ShardKit) -> None:
    chats = kit.chats(component="few")
    chat = chats.create("anna", ["ben"])
    assert chat is not None
    got: list[int] = []
    done = threading.Event()

    def fetch() -> None:
        last = 0
        while not (done.is_set() and chats.unread("ben")[chat] == 0):
            for found in chats.fetch("ben", 3):
                assert [message.id for message in found.messages] == sorted(
                    message.id for message in found.messages
                )
                if chats.acknowledge(chat, "ben", found.messages[-1]):
                    got.append(found.messages[-1].id)
                [position] = [m.position for m in chats.members(chat) if m.user == "ben"]
                assert position >= last
                last = position

    def come_and_go() -> None:
        while not done.is_set():
            chats.join(chat, "cleo")
            chats.leave(chat, "cleo")

    threads = [threading.Thread(target=run) for run in (fetch, fetch, come_and_go)]
    for thread in threads:
        thread.start()
    ids = [chats.send(chat, "anna", n) for n in range(200)]
    done.set()
    for thread in threads:
        thread.join()
    assert ids == list(range(1, 201))
    assert max(got) == 200
    assert len(got) == len(set(got))
    assert not list(chats.check(chat))


def test_what_is_damaged_is_named_and_can_be_skipped(kit: ShardKit) -> None:
    chats = kit.chats(component="many")
    chat = chats.create("anna", ["ben"], 1)
    assert chat is not None
    chats.send(chat, "anna", 2)
    key = f"chat:{{{chat}}}"
    server = holder(kit, "many", key)
    server.zremrangebyscore(key, 1, 1)
    server.zadd(key, {b"no JSON": 1})
    assert [found.key for found in chats.check(chat)] == [key]
    with pytest.raises(DamagedDataError, match=r"message 1.*acknowledge"):
        chats.fetch("ben")
    chats.acknowledge(chat, "ben", 1)
    assert [bodies(found.messages) for found in chats.fetch("ben")] == [[2]]
    server.zadd(f"{key}:members", {"ben": 99})
    assert [found.key for found in chats.check(chat)] == [key, f"{key}:members"]
    server.zadd(f"{key}:members", {b"\xff": 0})
    with pytest.raises(DamagedDataError, match=r"members is damaged: b'\\xff', where a name"):
        chats.repair(chat)
    assert (f"{key}:members", "b'\\xff'") in {(each.key, each.found) for each in chats.check(chat)}
    state = server.dump(f"{key}:state")
    server.delete(f"{key}:state")
    assert [found.key for found in chats.check(chat)] == [f"{key}:state"]
    server.restore(f"{key}:state", 0, state)
    server.delete(f"{key}:members")
    assert [found.key for found in chats.check(chat)] == [f"{key}:members"]


def test_bad_arguments_are_named(kit: ShardKit) -> None:
    chats = kit.chats(component="one")
    chat = chats.create("anna", [], 1)
    assert chat is not None
    calls = [
        lambda: chats.create("anna", [str(n) for n in range(1000)]),
        lambda: chats.create("{anna}", []),
        lambda: chats.create("anna", [], history=-1),
        lambda: chats.create("anna", [], history=1_000_001),
        lambda: chats.join(chat),
        lambda: chats.join("no such chat", "{anna}"),
        lambda: chats.create("anna", ["{ben}"], chat=chat),
        lambda: chats.send(chat, "anna", {1}),
        lambda: chats.acknowledge(chat, "anna", 99),
        lambda: chats.acknowledge(chat, "anna", 0),
        lambda: chats.fetch("anna", 0),
        lambda: chats.history(chat, cursor=0),
        lambda: kit.chats("{c}", component="one"),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"chat|name="):
            call()
    assert isinstance(chats, Chats)


def test_messages_that_are_removed_while_they_are_checked_are_no_damage(kit: ShardKit) -> None:
    chats = kit.chats(component="one")
    chat = chats.create("anna", [], 1)
    assert chat is not None
    [stored] = kit.client("one").zrange(f"chat:{{{chat}}}", 0, -1)
    chats.acknowledge(chat, "anna", 1)  # after the check has read it
    assert kit.driver.run(chats._check_messages(chat, [stored, b"no JSON"])) == []


def test_a_listener_waits_on_when_the_longest_wait_is_over(
    kit: ShardKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "RETRY_AFTER", 0.2)  # seconds, in which nothing happens
    looks = 0

    def passing() -> float:
        """Let a year pass between any two looks at the time."""
        nonlocal looks
        looks += 1
        if looks == 3:  # it has waited once in vain, and is waiting again
            chats.send(chat, "anna", "late")
        return 4e7 * looks

    chats = clocked(kit, monotonic=passing).chats(component="one")
    chat: Any = chats.create("anna", ["ben"])
    assert next(iter(chats.listen(chat, "ben"))).body == "late"
