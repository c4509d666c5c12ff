"""What is simulated of structures beside protocols.py: cached results of searches, moves between
lists, tasks that are queued twice, fan-outs of many passes, and configurations that go back."""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from shared import (
    Roles,
    components_at,
    is_outage,
    map_of,
    persist,
    pull,
    push,
    read_epoch,
    read_history,
)

from shardkit import ShardKit, ShardMap
from shardkit.errors import ConfigError, FileLeaseLostError, FileStalledError
from shardkit.messaging import RecordTally, Total
from shardkit.testing import CLIENTS, NETWORK, Client, Protocol


class CachedResults(Roles):
    """Pages of a cached result while documents are replaced and removed.

    No document is on two pages, one that nobody touches is on one, and one that was removed is on
    none from then on.
    """

    roles = ("reader", "writer", "reader")
    faults = (*NETWORK, *CLIENTS, "time")
    documents = tuple(f"d{n}" for n in range(6))
    touched = documents[::2]

    def index(self, kit: Any) -> Any:
        return kit.search("docs", component="data", statistics_ttl=0)

    def setup(self, kit: ShardKit) -> None:
        found = self.index(kit)
        for document in self.documents:
            found.index(document, "red")
        self.gone: set[str] = set()

    async def writer(self, client: Client) -> None:
        found = self.index(client.kit)
        for _ in range(3):
            document = client.choose(self.touched)
            call = client.choose(("remove", "replace", "again"))
            self.gone.discard(document)
            if call == "remove":
                await persist(lambda: found.remove(document))  # noqa: B023
            else:
                word = "green" if call == "replace" else "red"
                await persist(lambda: found.index(document, word))  # noqa: B023
            if call == "remove":
                self.gone.add(document)

    async def reader(self, client: Client) -> None:
        found = self.index(client.kit)
        seen: list[str] = []
        token, offset, total = None, 0, 1
        while offset < total:
            gone = set(self.gone)
            page = await persist(
                lambda: found.search("red", limit=2, offset=offset, cache=30, result=token)  # noqa: B023
            )
            ids = [hit.id for hit in page.hits]
            assert not gone & self.gone & set(ids), f"{gone & set(ids)} are gone, but found"
            if token is not None and page.result != token:
                return  # it had expired, and the query was run again
            token, total, offset = page.result, page.total, offset + 2
            seen += ids
        assert len(seen) == len(set(seen)), f"on two pages: {seen}"
        missing = set(self.documents) - set(self.touched) - set(seen)
        assert not missing, f"on no page: {missing}"


class TwoDeques:
    """The model of two lists, between which values move."""

    initial: Hashable = ((), ())

    def apply(self, state: Any, name: str, args: tuple[Any, ...]) -> Iterable[tuple[Any, Hashable]]:
        if name == "lmove":
            source, target, src, dest = args
            lists = list(state)
            if not lists[source]:
                yield None, state
                return
            values = lists[source]
            value = values[0] if src == "LEFT" else values[-1]
            lists[source] = values[1:] if src == "LEFT" else values[:-1]
            there = lists[target]
            lists[target] = (value, *there) if dest == "LEFT" else (*there, value)
            yield value, tuple(lists)
        elif name == "rpush":
            number, *values = args
            lists = list(state)
            lists[number] += tuple(values)
            yield len(lists[number]), tuple(lists)
        else:
            yield list(state[args[0]]), state


class TwoLists(Protocol):
    """Values move between two lists in parts: each is in one of them, and in its place."""

    clients = 3
    model = TwoDeques()
    faults = (*NETWORK, *CLIENTS, "cancel")

    def lists(self, kit: Any) -> list[Any]:
        names = ("{jobs}:todo", "{jobs}:doing")
        return [kit.list(name, component="data", part_size=2) for name in names]

    async def client(self, client: Client) -> None:
        lists = self.lists(client.kit)

        async def rpush(number: int, *values: str) -> Any:
            return await lists[number].rpush(*values)

        async def lmove(source: int, target: int, src: str, dest: str) -> Any:
            return await lists[source].lmove(lists[target], src, dest)

        async def lrange(number: int) -> Any:
            return await lists[number].lrange(0, -1)

        for n in range(4):
            call = client.choose((rpush, lmove, lmove, lrange))
            number = client.choose((0, 1))
            if call is rpush:
                values = [f"{client.number}.{n}.{m}" for m in range(client.choose((3, 1)))]
                await client.call(rpush, number, *values)
            elif call is lmove:
                target = client.choose((1 - number, number))
                ends = [client.choose(("LEFT", "RIGHT")) for _ in range(2)]
                await client.call(lmove, number, target, *ends)
            else:
                await client.call(lrange, number)

    def at_end(self, kit: ShardKit) -> None:
        everything = [value for each in self.lists(kit) for value in each.items()]
        assert len(everything) == len(set(everything)), everything
        assert len(everything) == sum(each.llen() for each in self.lists(kit))


class TaskQueues(Protocol):
    """A task is in one place at any time."""

    def queues(self, kit: Any) -> Any:
        return kit.queues(component="data", attempts=3, retry_delay=1.0)

    def places(self, kit: ShardKit) -> tuple[set[str], Counter[str]]:
        """Return the ids of all tasks, and how often each is in a list of tasks."""
        conn: Any = kit.client("data", kit.component("data").shard_of("queues:{q}").number)
        key = "queues:{q}"
        listed = conn.lrange(key, 0, -1)
        for part in ("delayed", "taken", "dead"):
            listed += conn.zrange(f"{key}:{part}", 0, -1)
        tasks = {id_.decode() for id_ in conn.hkeys(f"{key}:tasks")}
        return tasks, Counter(id_.decode() for id_ in listed)

    def invariant(self, kit: ShardKit) -> None:
        tasks, places = self.places(kit)
        assert set(places) == tasks, (places, tasks)
        assert all(count == 1 for count in places.values()), places


class Duplicates(Roles, TaskQueues):
    """Producers queue tasks with the same ids, and cancel them, while a worker does them.

    A task is in one place, is not done more often than it was queued, and is not lost.
    """

    roles = ("producer", "producer", "worker")
    faults = (*NETWORK, *CLIENTS, "time")
    ids = ("a", "b")

    def setup(self, kit: ShardKit) -> None:
        self.sent: Counter[str] = Counter()
        self.queued: set[str] = set()
        self.ended: Counter[str] = Counter()
        self.unsure: set[str] = set()

    async def producer(self, client: Client) -> None:
        queues = self.queues(client.kit)
        for _ in range(3):
            id_ = client.choose(self.ids)
            if client.choose((False, False, True)):
                self.unsure.add(id_)
                self.ended[id_] += bool(await queues.cancel("q", id_))
            else:
                self.sent[id_] += 2  # if the connection breaks, it is sent once more
                await queues.enqueue("q", "work", [id_], id=id_, delay=client.choose((0, 2)))
                self.queued.add(id_)

    async def worker(self, client: Client) -> None:
        queues = self.queues(client.kit)
        for _ in range(4):
            task = await queues.take("q", lease=5, timeout=client.choose((3.0, 0.0)))
            if task is None:
                continue
            if client.choose(("acknowledge", "release")) == "release":
                await queues.release(task)
                continue
            self.unsure.add(task.id)
            self.ended[task.id] += bool(await queues.acknowledge(task))

    def at_end(self, kit: ShardKit) -> None:
        tasks, _ = self.places(kit)
        lost = self.queued - tasks - self.unsure
        assert not lost, f"{lost} are lost"
        assert self.ended <= self.sent, "a task ended more often than it was queued"


class SocialProtocol(Protocol):
    """A social network of few parts, whose fan-outs take many passes."""

    most_steps = 20_000
    most_faults = 2

    def network(self, kit: Any) -> Any:
        return kit.social(component="data", parts=2, relation_parts=2, home_limit=20, pass_size=2)

    def repair(self, kit: ShardKit) -> Any:
        """Complete what clients left; return the network."""
        network = self.network(kit)
        for _ in range(3):
            if network.pending(older_than=0):
                network.repair(older_than=0)
        return network


class FanOut(Roles, SocialProtocol):
    """Posts and deletions reach followers in many passes while these come and leave.

    Without reconciliation: a post that exists is in the timelines of all who follow, and what was
    deleted is in none. Who left while a client died may keep one (`FanOut`'s own documentation).
    """

    roles = ("writer", "deleter", "follower")

    def setup(self, kit: ShardKit) -> None:
        network = self.network(kit)
        self.author, *self.followers = [network.create_user(f"u{n}", f"{n}") for n in range(5)]
        for follower in self.followers[1:]:
            network.follow(follower, self.author)
        self.left: set[int] = set()
        self.ended = 0

    async def writer(self, client: Client) -> None:
        network = self.network(client.kit)
        for n in range(2):
            await network.post(self.author, f"{n}")
        self.ended += 1

    async def deleter(self, client: Client) -> None:
        """Delete what was posted, also while its followers get it."""
        network = self.network(client.kit)
        for _ in range(2):
            for status in await network.profile(self.author):
                await network.delete_status(self.author, status.id)
        self.ended += 1

    async def follower(self, client: Client) -> None:
        network = self.network(client.kit)
        for _ in range(2):
            who = client.choose(self.followers)
            if client.choose(("unfollow", "follow")) == "follow":
                await network.follow(who, self.author)
            else:
                self.left.add(who)
                await network.unfollow(who, self.author)
        self.ended += 1

    def timeline(self, kit: ShardKit, uid: int) -> set[int]:
        router = kit.key_sharded("data")
        key = f"home:{{social:{uid}}}"
        return {int(member) for member in router[key].zrange(key, 0, -1)}

    def at_end(self, kit: ShardKit) -> None:
        network = self.repair(kit)
        posted = {status.id for status in network.profile(self.author)}
        following = {uid for uid in self.followers if list(network.following(uid))}
        for uid in self.followers:
            held = self.timeline(kit, uid)
            if uid in following:
                assert posted <= held, f"{posted - held} did not reach {uid}"
                assert held <= posted, f"{held - posted} were deleted, and {uid} has them"
            elif uid not in self.left or self.ended == 3:
                assert not held, f"{uid} follows nobody and has {held}"


class ConfigProtocol(Protocol):
    """Maps are pushed, each of which has all shards on one host."""

    config_server = True
    appendfsync = "always"

    pauses = (0.5, 0.0)

    def pusher(self, client: Client) -> None:
        """Push a map of each host in turn."""
        source: Any = client.kit.topology.source
        for host in ("moved", "data", "third"):
            try:
                push(source.client(), map_of(host), force=True, message=host)
            except ConfigError as error:
                client.log(f"push: {type(error).__name__}")
            time.sleep(client.choose(self.pauses))

    @staticmethod
    def host_of(component: Any) -> str:
        hosts = {entry.fields["host"] for entry in component.shards}
        assert len(hosts) == 1, f"half a version: {hosts}"
        return str(hosts.pop())

    def allows(self, error: Exception) -> bool:
        return isinstance(error, ConfigError) or super().allows(error)


class Rollbacks(Roles, ConfigProtocol):
    """Pushes, and pushes of what an earlier epoch had: each epoch has what its push wrote."""

    roles = ("pusher", "roller", "reader")
    faults = (*NETWORK, *CLIENTS, "cut_off", "crash")

    def roller(self, client: Client) -> None:
        source: Any = client.kit.topology.source
        for _ in range(3):
            try:
                conn = source.client()
                epoch = max(1, read_epoch(conn) - client.choose((1, 2)))
                then = components_at(conn, epoch)
                host = self.host_of(then["data"])
                records = {record.epoch: record.message for record in read_history(conn)}
                assert records.get(epoch) in (host, "", None), (epoch, host, records)
                push(conn, ShardMap(then), force=True, prune=True, message=host)
            except ConfigError as error:
                client.log(f"rollback: {type(error).__name__}")
            time.sleep(client.choose((0.5, 0.0)))

    def reader(self, client: Client) -> None:
        epoch = 0
        for _ in range(4):
            component = client.kit.component("data")
            self.host_of(component)
            assert component.epoch >= epoch
            epoch = component.epoch
            time.sleep(client.choose((1.1, 0.1)))

    def at_end(self, kit: ShardKit) -> None:
        source: Any = kit.topology.source
        conn = source.client()
        for record in read_history(conn):
            if record.message:
                host = self.host_of(components_at(conn, record.epoch)["data"])
                assert host == record.message, (record.epoch, host, record.message)
        self.host_of(pull(conn).components["data"])


COLLECTIONS: dict[str, type[Protocol]] = {
    "cached results": CachedResults,
    "two lists": TwoLists,
    "duplicate tasks": Duplicates,
    "fan-out": FanOut,
    "rollbacks": Rollbacks,
}


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


class Counters(Protocol):
    """Hits are counted in the background, each once, while others clean away what is old.

    What was flushed is there, and never more than was hit. What is older than the slices that are
    kept is cleaned, and only that.
    """

    clients = 2
    faults = (*NETWORK, *CLIENTS, "crash")
    appendfsync = "always"
    names = ("home", "about")

    def recorder(self, kit: Any) -> Any:
        return kit.counters("c", component="data", precisions={10: 3, 3600: 20})

    def record(self, recorder: Any, name: str, mine: Counter[str]) -> None:
        recorder.hit(name)
        mine[name] += 1

    def setup(self, kit: ShardKit) -> None:
        self.recorded = [Counter[str]() for _ in range(self.clients)]
        self.flushed = [Counter[str]() for _ in range(self.clients)]

    async def client(self, client: Client) -> None:
        recorder = self.recorder(client.kit)
        mine = self.recorded[client.number]
        for _ in range(4):
            call = client.choose(("record", "flush", "read", "clean"))
            if call == "record":
                self.record(recorder, client.choose(self.names), mine)
                await asyncio.sleep(client.choose((0.0, 1.5)))
            elif call == "flush":
                before = Counter(mine)
                if await recorder.flush():
                    self.flushed[client.number] = before
            elif call == "read":
                await self.read(recorder)
            else:
                await self.clean(recorder)

    async def read(self, recorder: Any) -> None:
        total = await recorder.total(self.names, 3600)
        assert total <= sum((each.total() for each in self.recorded), 0)

    async def clean(self, recorder: Any) -> None:
        await recorder.clean()

    def check(self, found: Counter[str]) -> None:
        least: Counter[str] = sum(self.flushed, Counter())
        most: Counter[str] = sum(self.recorded, Counter())
        assert least <= found <= most, (least, found, most)

    def at_end(self, kit: ShardKit) -> None:
        counters = self.recorder(kit)
        self.check(Counter({name: counters.total([name], 3600) for name in self.names}))
        time.sleep(3 * 2560)
        counters.clean()
        self.check(Counter({name: counters.total([name], 3600) for name in self.names}))
        for number in range(self.shards):
            conn: Any = kit.client("data", number)
            for key in conn.keys("c:*:of:*"):
                assert not [field for field in conn.hkeys(key) if field.startswith(b"10:")]
            for key in conn.keys("c:*:known"):
                assert conn.zcard(key) == len(conn.keys(key.decode()[: -len("known")] + "of:*"))


class Logging(Counters):
    """Messages are logged in the background, each once; an hour's counts are rotated once."""

    faults = (*NETWORK, *CLIENTS, "crash", "time")

    def recorder(self, kit: Any) -> Any:
        return kit.logs("l", component="data")

    def record(self, recorder: Any, name: str, mine: Counter[str]) -> None:
        recorder.record("shop", name)
        mine[name] += 1

    async def read(self, recorder: Any) -> None:
        entries = await recorder.recent("shop")
        most: Counter[str] = sum(self.recorded, Counter())
        assert Counter(entry.message for entry in entries) <= most

    async def clean(self, recorder: Any) -> None:
        await recorder.common("shop")

    def at_end(self, kit: ShardKit) -> None:
        logs = self.recorder(kit)
        entries = logs.recent("shop")
        self.check(Counter(entry.message for entry in entries))
        by_hour: dict[int, Counter[str]] = {}
        for entry in entries:
            hour = int(entry.time.timestamp() // 3600)
            by_hour.setdefault(hour, Counter())[entry.message] += 1
        kept = sorted(by_hour)[-2:]
        for period, at in (("current", -1), ("last", -2)):
            common = logs.common("shop", period=period)
            if common is None or len(kept) < -at:
                continue
            hour = int(common.hour.timestamp() // 3600)
            assert Counter(dict(common.counts)) == by_hour[hour], (period, common, by_hour)


METRICS: dict[str, type[Protocol]] = {"counters": Counters, "logs": Logging}
