"""What is simulated of structures beside protocols.py: cached results of searches, moves between
lists, tasks that are queued twice, fan-outs of many passes, and configurations that go back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from shared import Roles, components_at, map_of, persist, pull, push, read_epoch, read_history

from shardkit import ShardKit, ShardMap
from shardkit.errors import ConfigError
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
