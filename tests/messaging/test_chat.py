"""Group chat on real servers: ids, positions and membership are exact, whoever dies when."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from faces import Exchanges, Face, Time, clocked, drawn, holder, keys_of
from messaging_helpers import bodies

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.messaging import Chats, Message, tagged


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


@pytest.mark.parametrize("stalled", ["create", "join"])
@pytest.mark.parametrize("event", ["forgotten", "overtaken by leaving"])
def test_a_call_that_stalls_between_list_and_chat_begins_again(
    face: Face, stalled: str, event: str
) -> None:
    """Otherwise leaving removes the join's entry from the list. The simulator found this."""
    clock, run = Time(), face.run
    chats: Any = clocked(face.kit, now=clock).chats(component="many")
    slow = chats.deferred.create("anna", ["ben"], 1, chat="c")
    if stalled == "join":
        run(chats.create("anna", [], 1, chat="c"))
        slow = chats.deferred.join("c", "ben")
    exchanges = Exchanges(face, slow)
    for number, _ in enumerate(exchanges):
        if number == 2:  # the lists are written; now it stalls
            if event == "forgotten":
                clock.at += 61
                assert run(chats.fetch("ben")) == []
                assert run(chats.chats("ben")) == []
            elif stalled == "join":
                assert run(chats.join("c", "ben")) == 1
                assert run(chats.leave("c", "ben")) is True
    assert exchanges.result == ("c" if stalled == "create" else 1)
    assert run(chats.chats("ben")) == ["c"]
    run(chats.send("c", "anna", 2))
    new = [1, 2] if stalled == "create" else [2]
    assert [bodies(each.messages) for each in run(chats.fetch("ben"))] == [new]


def test_a_list_that_was_lost_is_written_from_the_members(kit: Any) -> None:
    chats = kit.chats(component="many")
    users = [f"u{n}" for n in range(50)]
    chat = chats.create("anna", users, 1)
    for user in users[:20]:
        holder(kit, "many", f"chat:user:{{{user}}}").delete(f"chat:user:{{{user}}}")
    assert len(list(chats.check(chat))) == 20
    assert chats.repair(chat) == 20
    assert not list(chats.check(chat))
    assert len(chats.fetch("u7")) == 1


def test_who_waits_is_woken_by_a_message_and_by_leaving(face: Face, kit: ShardKit) -> None:
    chats, others = face.kit.chats(component="one"), kit.chats(component="one")
    chat = face.run(chats.create("anna", ["ben"]))
    for action, expected in (
        (lambda: others.send(chat, "anna", "now"), ["now"]),
        (lambda: others.leave(chat, "ben"), None),
    ):
        waiting = face.start(lambda: chats.fetch_from(chat, "ben", timeout=30))
        assert face.eventually(lambda: kit.client("one").scard(f"chat:{{{chat}}}:waiters"))
        began = time.monotonic()
        action()
        found = waiting()
        assert (found and bodies(found)) == expected
        assert time.monotonic() - began < 8  # it looks again by itself only after ten seconds
        if found:
            face.run(chats.acknowledge(chat, "ben", found[-1]))


async def test_listeners_get_every_message_once_in_order_until_they_leave(
    akit: Any,
) -> None:
    chats = akit.chats(component="few")
    users = [f"u{n}" for n in range(5)]
    chat = await chats.create("anna", users)

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


@dataclass
class ModelChat:
    """A chat in plain Python."""

    history: int
    members: dict[str, int]
    kept: list[tuple[int, int]]
    last: int = 1

    def clean(self) -> None:
        done = sum(id_ <= min(self.members.values()) for id_, _ in self.kept)
        del self.kept[: max(0, min(done, len(self.kept) - self.history))]


def test_random_histories_agree_with_a_model(face: Face, kit: ShardKit) -> None:
    """Sends, fetches, acknowledgements; joins and leaves, some of them killed in the middle."""
    random, clock, run = Random(30), Time(), face.run
    chats: Any = clocked(face.kit, now=clock).chats(component="many")
    users, names = ["u0", "u1", "u2", "u3"], ["c0", "c1", "c2"]
    model: dict[str, ModelChat] = {}

    def left(chat: str, user: str) -> None:
        if chat in model and model[chat].members.pop(user, None) is not None:
            if model[chat].members:
                model[chat].clean()
            else:
                del model[chat]

    for n in range(drawn(150, 500)):
        clock.at += random.choice((0, 0, 5, 70))
        user, chat, limit = random.choice(users), random.choice(names), random.randint(1, 4)
        known = model.get(chat, ModelChat(0, {}, []))
        present, last = known.members, known.last
        match random.randrange(9):
            case 0:
                others, history = random.sample(users, 2), random.choice((0, 0, 2))
                made = run(chats.create(user, others, n, chat=chat, history=history))
                assert made == (None if chat in model else chat)
                if made:
                    members = dict.fromkeys([user, *others], 0)
                    model[chat] = ModelChat(history, members, [(1, n)])
            case 1 | 2:
                sent = run(chats.send(chat, user, n))
                assert sent == (last + 1 if user in present else None)
                if sent:
                    known.last = sent
                    known.kept.append((sent, n))
            case 3:
                joined = run(chats.join(chat, user))
                assert joined == (None if chat not in model else int(user not in present))
                if joined:
                    present[user] = last
            case 4:
                assert run(chats.leave(chat, user)) == (user in present)
                left(chat, user)
            case 5:
                exchanges = random.choice((1, 2))
                if user in present:
                    Exchanges(face, chats.deferred.leave(chat, user)).stop_after(exchanges)
                    if exchanges == 2:
                        left(chat, user)
                else:  # into the list, but not into the chat
                    Exchanges(face, chats.deferred.join(chat, user)).stop_after(exchanges)
            case 6:
                id_ = random.randint(1, last)
                done = run(chats.acknowledge(chat, user, id_))
                assert done == (id_ > present[user] if user in present else None)
                if done:
                    present[user] = id_
                    known.clean()
            case 7:
                found = {each.user: each[1:] for each in face.list(chats.members(chat))}
                assert found == {each: (at, last - at) for each, at in present.items()}
                news = run(chats.fetch_from(chat, user, limit))
                assert (news is None) == (user not in present)
            case _:
                of_user = {name: of for name, of in model.items() if user in of.members}
                unread = {name: of.last - of.members[user] for name, of in of_user.items()}
                assert run(chats.unread(user)) == unread
                fetched = {
                    name: (ids(new), left) for name, new, left in run(chats.fetch(user, limit))
                }
                assert fetched == {
                    name: (
                        [id_ for id_ in of.kept if id_[0] > of.members[user]][:limit],
                        unread[name],
                    )
                    for name, of in of_user.items()
                    if unread[name]
                }
        if chat in model:
            newest = model[chat].kept[::-1]
            assert ids(run(chats.history(chat))) == newest
            page = run(chats.history(chat, limit, cursor=newest[0][0] if newest else None))
            assert ids(page) == newest[1 : 1 + limit]
    for chat in list(model):
        assert face.list(chats.check(chat)) == []
        for user in users:
            run(chats.leave(chat, user))
        assert run(chats.send(chat, user, 0)) is None
        assert run(chats.acknowledge(chat, user, 1)) is None  # which brings nothing back
    clock.at += 61
    assert [run(chats.fetch(user)) for user in users] == [[], [], [], []]
    assert all(key.endswith(":refused") for key in keys_of(kit, "many"))


def ids(messages: list[Message]) -> list[tuple[int, Any]]:
    return [(message.id, message.body) for message in messages]


def test_what_is_damaged_is_named_and_can_be_skipped(kit: Any) -> None:
    chats = kit.chats(component="many")
    chat = chats.create("anna", ["ben"], 1)
    chats.send(chat, "anna", 2)
    key = f"chat:{{{chat}}}"
    server = holder(kit, "many", key)
    server.zremrangebyscore(key, 1, 1)
    assert [found.found for found in chats.check(chat)] == ["1 message after 0"]
    server.zadd(key, {b"no JSON": 1})
    assert [found.key for found in chats.check(chat)] == [key]
    with pytest.raises(DamagedDataError, match=r"message 1.*acknowledge"):
        chats.fetch("ben")
    chats.acknowledge(chat, "ben", 1)
    assert [bodies(found.messages) for found in chats.fetch("ben")] == [[2]]
    server.zadd(f"{key}:members", {"ben": 99})
    assert [found.key for found in chats.check(chat)] == [key, f"{key}:members"]
    server.zadd(f"{key}:members", {b"\xff": 0})
    with pytest.raises(DamagedDataError, match=r"members is damaged: b'\\xff', where text"):
        chats.repair(chat)
    assert (f"{key}:members", "b'\\xff'") in {(each.key, each.found) for each in chats.check(chat)}
    state = server.dump(f"{key}:state")
    server.delete(f"{key}:state")
    assert [found.key for found in chats.check(chat)] == [key, f"{key}:state"]
    server.restore(f"{key}:state", 0, state)
    server.delete(f"{key}:members")
    assert [found.key for found in chats.check(chat)] == [key, f"{key}:members"]


def test_bad_arguments_are_named(kit: Any) -> None:
    chats = kit.chats(component="one")
    chat = chats.create("anna", [], 1)
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


def test_a_listener_waits_on_when_the_longest_wait_is_over(
    kit: ShardKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagged, "RETRY_AFTER", 0.2)  # seconds, in which nothing happens
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
