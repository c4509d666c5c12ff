"""Group chat on real servers: ids, positions and membership are exact, whoever dies when."""

from __future__ import annotations

import asyncio
import gzip
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from arranged import map_of
from faces import PATIENCE, Exchanges, Face, Time, clocked, drawn, eventually, holder, keys_of
from messaging_helpers import bodies

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.local import LocalCluster
from shardkit.messaging import Chats, Message


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


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as found:
        yield found


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


def test_where_sharded_channels_are_refused_plain_ones_wake(cluster: LocalCluster) -> None:
    client = cluster.client()
    nodes = [client.get_redis_connection(node) for node in client.get_primaries()]
    for node in nodes:
        node.execute_command("ACL", "SETUSER", "default", "-ssubscribe")
    over = map_of(c={"entry": dict(cluster.entry.fields)})
    try:
        with shardkit.connect(over) as kit, shardkit.connect(over) as other:
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


MESSAGES = 60
SUPERVISOR = """
import os, random, signal, sys, time
import shardkit
from shardkit.errors import FileLeaseLostError, FileStalledError
from shardkit.messaging import RecordTally, Total

shard_map, folder, notes, what, kills = sys.argv[1:]
chance = random.Random(32)

def note(*words):
    line = " ".join(map(str, words)) + "\\n"
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)

def files_of(kit):
    return kit.files(component="many", attempts=1000)

def publish(kit):
    files = files_of(kit)
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if "parts" in name:
            list(files.publish_parts("logs", path, part_size=30_000, lease=1))
        else:
            files.publish("logs", path, lease=1)
    files.close("logs")

def add_up(reader):
    def read(kit):
        files, totals = files_of(kit), kit.totals(component="many")
        for file in files.take_all("logs", reader, lease=1):
            tally = RecordTally(
                lambda line: line.split()[0], lambda word: [Total(reader, "word", word.decode())]
            )
            tally.add(files.lines(file))
            totals.flush(f"{reader} {file.name}", tally)
            files.done(file)
    return read

def send(kit):
    chats, mail = kit.chats(component="many"), kit.mailboxes(component="many")
    while chats.send("c", "anna", "hi") < 60:
        pass
    while mail.send("ben", "anna", "hi") < 60:
        pass
    note("sent")

def member(user):
    def follow(kit):
        chats = kit.chats(component="many")
        while True:
            for message in chats.fetch_from("c", user, 5, timeout=30):
                note(user, "got", message.id)
                chats.acknowledge("c", user, message)
                note(user, "acknowledged", message.id)
                if message.id >= 60:
                    return
    return follow

def recipient(kit):
    mail = kit.mailboxes(component="many")
    while not (os.path.exists(notes) and "sent" in open(notes).read() and not mail.unread("ben")):
        for message in mail.fetch("ben", 3, lease=1, timeout=0.2):
            note("mail got", message.id)
            if mail.acknowledge("ben", [message]):
                note("mail acknowledged", message.id)

roles = {
    "files": [publish, add_up("x"), add_up("x"), add_up("y")],
    "messages": [send, member("anna"), member("ben"), recipient, recipient],
}[what]
running = {}

def start(role):
    pid = os.fork()
    if pid == 0:
        try:
            with shardkit.connect(shard_map) as kit:
                role(kit)
            os._exit(0)
        except (FileLeaseLostError, FileStalledError):
            os._exit(1)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(2)
    running[pid] = role

for role in roles:
    start(role)
killed = 0
while running:
    if killed < int(kills):
        time.sleep(chance.uniform(0.02, 0.2))
        os.kill(chance.choice(sorted(running)), signal.SIGKILL)  # it may have ended
    pid, status = os.waitpid(-1, 0)
    killed += os.WIFSIGNALED(status)
    role = running.pop(pid)
    if status:
        start(role)
print("killed", killed)
"""


def supervise(tmp_path: Path, shard_map: ShardMap, what: str, kills: int) -> list[str]:
    (tmp_path / "map.yaml").write_text(shard_map.to_yaml(), encoding="utf-8")
    arguments = (tmp_path / "map.yaml", tmp_path / "logs", tmp_path / "notes", what, str(kills))
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, *arguments],
        capture_output=True,
        check=True,
        text=True,
        timeout=100 * PATIENCE,
    )
    assert int(done.stdout.removeprefix("killed ")) > 0  # others had ended, or were not reaped yet
    found = tmp_path / "notes"
    return found.read_text(encoding="utf-8").splitlines() if found.exists() else []


@pytest.fixture
def logs(tmp_path: Path) -> Counter[str]:
    """Logs in a directory, plain and gzip; returns how often each word is in them."""
    chance, words = random.Random(5), [f"word{n}" for n in range(40)]
    (tmp_path / "logs").mkdir()
    counts: Counter[str] = Counter()
    for n in range(4):
        lines = [f"{chance.choice(words)} {m}" for m in range(6000)]
        counts.update(line.split()[0] for line in lines)
        content = "\n".join(lines).encode()
        if n % 2:
            content = gzip.compress(content[:20_000]) + gzip.compress(content[20_000:])
        name = f"{n}{'-parts' if n > 1 else ''}.log{'.gz' if n % 2 else ''}"
        (tmp_path / "logs" / name).write_bytes(content)
    return counts


def test_publishers_and_aggregators_that_are_killed_count_every_line_once(
    kit: ShardKit, shard_map: ShardMap, tmp_path: Path, logs: Counter[str]
) -> None:
    files, totals = kit.files(component="many"), kit.totals(component="many")
    files.create("logs", ["x", "y"], byte_limit=100_000, chunk_size=2000)
    supervise(tmp_path, shard_map, "files", 5)
    for reader in "xy":
        assert dict(totals.all(reader, "word")) == logs
    status = files.status("logs")
    assert (status.held, status.files, status.open) == (0, [], {"x": 0, "y": 0})
    assert not status.failed
    assert not [key for key in keys_of(kit, "many") if key.startswith("files:{logs:")]


def test_members_and_recipients_that_are_killed_get_everything_and_nothing_after_acknowledging_it(
    kit: ShardKit, shard_map: ShardMap, tmp_path: Path
) -> None:
    kit.chats(component="many").create("anna", ["ben"], chat="c")
    notes = supervise(tmp_path, shard_map, "messages", 6)
    for who in ("anna", "ben", "mail"):
        got: set[int] = set()
        acknowledged: set[int] = set()
        for user, *said in map(str.split, notes):
            if user == who and said[0] == "got":
                assert int(said[1]) not in acknowledged, "it came again"
                got.add(int(said[1]))
            elif user == who:
                acknowledged.add(int(said[1]))
        assert got >= set(range(1, MESSAGES + 1))
