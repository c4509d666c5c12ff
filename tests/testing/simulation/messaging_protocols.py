"""What is simulated of messaging: mailboxes, chats, files for many readers, totals."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from shared import Roles, is_outage

from shardkit import ShardKit
from shardkit.errors import FileLeaseLostError, FileStalledError
from shardkit.messaging import RecordTally, Total
from shardkit.testing import CLIENTS, NETWORK, Client, Protocol


async def attempt(call: Callable[[], Any]) -> Any:
    """Make a call once; an outage gives None, and may have done it."""
    try:
        return await call()
    except Exception as error:
        if not is_outage(error):
            raise
        await asyncio.sleep(0.5)
        return None


def server_of(kit: ShardKit, key: str) -> Any:
    return kit.client("data", kit.component("data").shard_of(key).number)


class Mailing(Roles):
    """Mailboxes: what was sent is there until it is acknowledged, and then never comes again."""

    roles = ("sender", "reader", "reader")
    faults = (*NETWORK, *CLIENTS, "cancel", "time")
    most_steps = 1500

    def setup(self, kit: ShardKit) -> None:
        self.sent: set[int] = set()
        self.acknowledged: set[int] = set()  # for certain
        self.tried: set[int] = set()

    def mail(self, kit: Any) -> Any:
        return kit.mailboxes(component="data")

    async def sender(self, client: Client) -> None:
        mail = self.mail(client.kit)
        for n in range(3):
            id_ = await attempt(lambda n=n: mail.send("anna", "ben", n))
            if id_ is not None:
                self.sent.add(id_)

    async def reader(self, client: Client) -> None:
        mail = self.mail(client.kit)
        for _ in range(3):
            before, timeout = set(self.acknowledged), client.choose((3.0, 0.0))
            found = await attempt(
                lambda timeout=timeout: mail.fetch("anna", 2, lease=5, timeout=timeout)
            )
            for message in found or ():
                assert message.id not in before, f"{message.id} came again"
                if client.choose((True, False)):
                    self.tried.add(message.id)
                    done = await attempt(lambda id_=message.id: mail.acknowledge("anna", [id_]))
                    if done is not None:
                        self.acknowledged.add(message.id)
                else:
                    await attempt(lambda id_=message.id: mail.release("anna", [id_]))

    def stored(self, kit: ShardKit) -> list[tuple[bytes, float]]:
        key = "mailbox:{anna}"
        found: list[tuple[bytes, float]] = server_of(kit, key).zrange(key, 0, -1, withscores=True)
        return found

    def invariant(self, kit: ShardKit) -> None:
        key, stored = "mailbox:{anna}", self.stored(kit)
        size = int(server_of(kit, key).hget(f"{key}:state", "bytes") or 0)
        assert size == sum(len(message) for message, _ in stored)
        lost = self.sent - self.tried - {int(id_) for _, id_ in stored}
        assert not lost, f"{lost} were sent, and are gone"


class Chatting(Protocol):
    """Chats: positions never go back, nobody misses a message, and every member sees his chats."""

    clients = 3
    faults = (*NETWORK, *CLIENTS, "cancel", "time")
    most_steps = 2000
    users = ("anna", "ben")

    def setup(self, kit: ShardKit) -> None:
        self.positions = dict.fromkeys(self.users, 0)
        assert kit.chats(component="data").create("root", self.users, 0, chat="c") == "c"
        for n in range(2):
            kit.chats(component="data").send("c", "root", n)

    async def client(self, client: Client) -> None:
        chats = client.kit.chats(component="data")
        user = self.users[client.number % 3 == 0]
        for n in range(5):
            match client.choose(("read", "send", "leave", "join", "wait")):
                case "join":
                    await attempt(lambda: chats.join("c", user))
                case "send":
                    await attempt(lambda n=n: chats.send("c", "root", n))
                case "leave":
                    await attempt(lambda: chats.leave("c", user))
                case "wait":
                    await asyncio.sleep(61)
                case _:
                    for news in await attempt(lambda: chats.fetch(user)) or ():
                        ids = [message.id for message in news.messages]
                        assert ids == list(range(ids[0], ids[-1] + 1)), "a message is missing"
                        upto = client.choose((ids[0], ids[-1]))
                        await attempt(lambda upto=upto: chats.acknowledge("c", user, upto))

    def invariant(self, kit: ShardKit) -> None:
        key = "chat:{c}"
        server = server_of(kit, key)
        members = server.zrange(f"{key}:members", 0, -1, withscores=True)
        last = int(server.hget(f"{key}:state", "last"))
        ids = [int(id_) for _, id_ in server.zrange(key, 0, -1, withscores=True)]
        lowest = min(int(position) for _, position in members)
        assert ids == list(range(lowest + 1, last + 1)), (ids, lowest, last)
        for name, position in members:
            user = name.decode()
            if user != "root":
                assert position >= self.positions[user], f"the position of {user} went back"
                self.positions[user] = int(position)
            listed = f"chat:user:{{{user}}}"
            assert server_of(kit, listed).hexists(listed, "c"), f"{user} does not see his chat"


HELD = """
local bytes = 0
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  bytes = bytes + redis.call('STRLEN', key)
end
return bytes"""
SOURCES = {"a": "1x 1y 2x 3x 3x", "b": "1x 2y 2z"}


class Distributing(Protocol):
    """Files: each reader reads all of each, once; no more is held than the limit allows."""

    shards = 1
    faults = (*NETWORK, *CLIENTS, "time")
    most_steps = 3000
    limit = 8
    contents = ("abcdefg", "012")

    def setup(self, kit: ShardKit) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        kit.files(component="data").create("c", ["x", "y"], byte_limit=self.limit, chunk_size=4)

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        return [self.publisher, self.reader_of("x"), self.reader_of("x"), self.reader_of("y")]

    async def publisher(self, client: Client) -> None:
        files = client.kit.files(component="data")
        for n, content in enumerate(self.contents):

            async def publish(n: int = n, content: str = content) -> None:
                source = io.BytesIO(content.encode())
                await files.publish("c", source, name=str(n), timeout=5)

            try:
                await attempt(publish)
            except (FileStalledError, FileLeaseLostError):
                await asyncio.sleep(30)

    def reader_of(self, reader: str) -> Callable[[Client], Any]:
        async def read(client: Client) -> None:
            files = client.kit.files(component="data", attempts=100)
            for _ in range(2):
                try:
                    await attempt(lambda: self.read_one(client, files, reader))
                except (FileStalledError, FileLeaseLostError):
                    await asyncio.sleep(client.choose((1, 30)))

        return read

    async def read_one(self, client: Client, files: Any, reader: str) -> None:
        file = await files.take("c", reader, lease=8, timeout=3)
        if file is None:
            return
        content, at = self.contents[int(file.name)], file.position.offset
        async with aclosing(files.read(file)) as blocks:  # a lost lease ends it half-way
            async for block in blocks:
                same = content[at : at + len(block)] == block.decode()
                assert same, "what was read is not the file"
                at += len(block)
                if client.choose((False, True)):
                    await files.checkpoint(file)
        assert at == len(content), "a file was read that is not complete"
        await asyncio.sleep(client.choose((0, 9)))  # longer than the lease
        await files.done(file)
        self.done[reader, file.name] += 1
        assert self.done[reader, file.name] == 1, "a file was finished twice"

    def invariant(self, kit: ShardKit) -> None:
        servers: list[Any] = [kit.client("data", n) for n in range(self.shards)]
        held = sum(server.eval(HELD, 0, "files:{c:*") for server in servers)
        assert held <= self.limit, f"{held} bytes are held"


class Flushing(Protocol):
    """Totals: each source counts once, whoever flushes it how often and dies when."""

    clients = 3
    faults = (*NETWORK, *CLIENTS, "cancel")

    def tally(self, source: str) -> RecordTally[str]:
        tally: RecordTally[str] = RecordTally(
            str.strip, lambda key: [Total(key[0], "word", key[1])]
        )
        tally.add(SOURCES[source].split())
        return tally

    async def client(self, client: Client) -> None:
        totals = client.kit.totals(component="data")
        for _ in range(3):
            source = client.choose(("a", "b"))
            await attempt(lambda source=source: totals.flush(source, self.tally(source)))

    def counted(self, kit: ShardKit) -> Counter[str]:
        totals = kit.totals(component="data")
        return Counter(
            {group + word: n for group in "123" for word, n in totals.all(group, "word")}
        )

    def invariant(self, kit: ShardKit) -> None:
        most = Counter(" ".join(SOURCES.values()).split())
        assert self.counted(kit) <= most, "something was counted twice"

    def at_end(self, kit: ShardKit) -> None:
        for source in SOURCES:
            kit.totals(component="data").flush(source, self.tally(source))
        assert self.counted(kit) == Counter(" ".join(SOURCES.values()).split())


MESSAGING: dict[str, type[Protocol]] = {
    "mailboxes": Mailing,
    "chats": Chatting,
    "files": Distributing,
    "flushes": Flushing,
}
