"""What is simulated of shardkit itself: clients of each structure, and what must hold of it.

`PROTOCOLS` names them all; test_simulator.py and ``make simulate`` run them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

from change_protocols import CHANGES
from client_protocols import CLIENT, CLUSTER
from collection_protocols import (
    COLLECTIONS,
    MESSAGING,
    METRICS,
    ConfigProtocol,
    SocialProtocol,
    TaskQueues,
)
from coordination_protocols import COORDINATION
from shared import BothFaces, Counted, Roles, map_of, persist, rest, settled, use_register

from shardkit import ShardKit
from shardkit.config.store import pull, push
from shardkit.errors import (
    InvalidArgumentError,
    ParameterMismatchError,
    ShardErrors,
    StructureError,
)
from shardkit.geo import City, IpRange
from shardkit.testing import CLIENTS, NETWORK, Client, Protocol, Register


class GrowingHash(Protocol):
    """Fields of a hash whose parts are split under its writers: each is a linearizable register."""

    clients = 3
    shards = 2
    faults = (*NETWORK, *CLIENTS, "cancel")
    model = Register()

    def hash(self, kit: Any) -> Any:
        return kit.hash("h", component="data", part_size=2, parts=1)

    async def client(self, client: Client) -> None:
        found = self.hash(client.kit)
        for n in range(4):
            field = f"f{client.choose((n, 0, 1, 5, 6))}"
            call = client.choose(("set", "get", "delete"))
            await use_register(client, found, call, field, n)

    def at_end(self, kit: ShardKit) -> None:
        found = self.hash(kit)
        everything = found.hgetall()
        assert found.hlen() == len(everything)
        assert found.hmget([*everything, "none"]) == [*everything.values(), None]
        fields = sorted(everything)
        assert sorted(found.hkeys()) == fields
        # All of a field's copies: a split leaves none behind.
        stored: Counter[bytes] = Counter()
        for number in range(self.shards):
            conn: Any = kit.client("data", number)
            for key in conn.keys("h:*"):
                if conn.type(key) == b"hash" and not key.endswith((b"meta", b"registry")):
                    stored.update(f for f in conn.hkeys(key) if f.startswith(b"f"))
        assert all(count == 1 for count in stored.values()), stored


class Lifetime(Protocol):
    """A set that is filled, expired, deleted and created again: always one whole set."""

    clients = 3
    faults = (*NETWORK, "kill", "freeze", "time")

    def set(self, kit: Any) -> Any:
        return kit.set("s", component="data", part_size=4, total=8)

    def setup(self, kit: ShardKit) -> None:
        self.added: dict[str, float] = {}  # by when the call began that was answered
        self.removing = 0  # calls that remove everything and have not been answered
        self.removed = -1.0  # when the last of them was
        self.ended = 0  # clients all of whose calls were answered

    async def client(self, client: Client) -> None:
        found = self.set(client.kit)
        for n in range(3):
            call = client.choose(("sadd", "delete", "expire", "read"))
            if call == "sadd":
                members = [f"{client.number}.{n}.{m}" for m in range(4)]
                started = client.time
                await found.sadd(*members)
                self.added |= dict.fromkeys(members, started)
            elif call == "delete":
                self.removing += 1
                await found.delete()
                self.removing -= 1
                self.removed = client.time
            elif call == "expire":
                self.removing += 1  # for good
                await found.expire(client.choose((100, 2)))
            else:
                assert isinstance(await found.smembers(), set)
        self.ended += 1

    def at_end(self, kit: ShardKit) -> None:
        found = self.set(kit)
        found.scard()
        if not self.removing:
            kept = {member for member, started in self.added.items() if started > self.removed}
            assert kept <= set(found.smembers())
        if self.ended == self.clients:
            self.check_one_end(kit)
        # A write ends a deletion that was interrupted, and removes what a client has left there.
        found.sadd(*map(str, range(16)))
        self.check_one_end(kit)
        members = found.smembers()
        assert found.scard() == len(members)
        assert all(found.smismember(members))
        before = len(members)
        assert found.sadd("new") == 1
        assert found.scard() == before + 1
        found.delete()
        assert found.smembers() == set()
        assert [k for n in range(2) for k in kit.client("data", n).keys("s:*")] == []  # type: ignore[misc]

    def check_one_end(self, kit: ShardKit) -> None:
        keys = [(n, key) for n in range(2) for key in kit.client("data", n).keys("s:*")]  # type: ignore[misc]
        # Parts of a later life that does not end expire in the year 6429.
        expiring = [0 < kit.client("data", n).pttl(key) < 10**12 for n, key in keys]  # type: ignore[operator]
        assert all(expiring) or not any(expiring), list(zip(keys, expiring, strict=True))


class Lives(Protocol):
    """A set that is deleted and created with other parameters: each member is where they say."""

    clients = 3
    faults = (*NETWORK, "kill", "cancel")

    def set(self, kit: Any, total: int) -> Any:
        return kit.set("s", component="data", part_size=4, total=total, members=str)

    async def client(self, client: Client) -> None:
        sets = [self.set(client.kit, total) for total in (8, 12)]
        for n in range(3):
            found = client.choose(sets)
            call = client.choose(("sadd", "replace"))
            with suppress(ParameterMismatchError):
                if call == "sadd":
                    await found.sadd(*(f"{client.number}.{n}.{m}" for m in range(4)), "same")
                else:
                    await found.delete()
                    await client.choose(sets).sadd(f"{client.number}.{n}")

    def at_end(self, kit: ShardKit) -> None:
        for total in (8, 12):
            found = self.set(kit, total)
            with suppress(ParameterMismatchError):
                found.sadd(*map(str, range(24)))  # to all parts: see Lifetime
                assert list(found.check()) == []
                for member in found.smembers():
                    assert found.sismember(member)


class PlannedAnew(Roles):
    """A hash or a set that is replanned under its users.

    Each field of the hash is a linearizable register, and what was added to the set is there. The
    hash has no empty parts (docs/decisions/0030-replanning.md).
    """

    roles = ("user", "planner", "user", "user")
    clients = 4
    shards = 2
    faults = (*NETWORK, *CLIENTS, "cancel")
    model = Register()
    most_steps = 20_000
    others = tuple("abcdefg")  # some in each part

    def hash(self, kit: Any) -> Any:
        return kit.hash("h", component="data", part_size=2, total=3, partition="crc32")

    def set(self, kit: Any) -> Any:
        return kit.set("s", component="data", part_size=2, total=3)

    def setup(self, kit: ShardKit) -> None:
        self.hash(kit).hset(mapping=dict.fromkeys(self.others, 0))
        self.set(kit).sadd("other")
        self.added = {"other"}

    async def planner(self, client: Client) -> None:
        found = client.choose((self.hash, self.set))(client.kit)
        with suppress(StructureError, ShardErrors):
            await found.replan(9)

    async def user(self, client: Client) -> None:
        found, began = self.hash(client.kit), client.time
        for n in range(12):
            field = client.choose(("f1", "f2"))
            call = client.choose(("set", "get", "set", "get", "delete", "add"))
            if n == 4:  # when the parts change places
                await asyncio.sleep(began + 1.05 - client.time)
            await asyncio.sleep(client.choose((0.0, 0.001, 0.01)))
            if call == "add":
                member = f"{client.number}.{n}"
                await self.set(client.kit).sadd(member)
                self.added.add(member)
            else:
                await use_register(client, found, call, field, n)

    def at_end(self, kit: ShardKit) -> None:
        found, ids = self.hash(kit), self.set(kit)
        for each in (found, ids):
            with suppress(InvalidArgumentError):  # it has as many parts
                each.replan(9)
        everything = found.hgetall()
        assert [everything[field] for field in self.others] == [b"0"] * len(self.others)
        assert found.hmget([*everything, "none"]) == [*everything.values(), None]
        assert found.hlen() == len(everything)
        members = ids.smembers()
        assert members >= self.added, f"lost: {self.added - members}"
        assert all(ids.smismember(members))
        for each in (found, ids):
            assert list(each.check()) == []
            assert each.delete()
        left = [kit.client("data", number).keys("[hs]:*[0-9]") for number in range(self.shards)]
        assert not any(left), left


class Deque:
    """The model of a list: a queue with two ends."""

    initial: Hashable = ()

    def apply(self, state: Any, name: str, args: tuple[Any, ...]) -> Iterable[tuple[Any, Hashable]]:
        if name == "rpush":
            yield len(state) + len(args), state + args
        elif name == "lpush":
            yield len(state) + len(args), tuple(reversed(args)) + state
        elif name == "lpop":
            yield (state[0] if state else None), state[1:]
        elif name == "rpop":
            yield (state[-1] if state else None), state[:-1]
        elif name == "rotate":
            moved = state[-1:] + state[:-1]
            yield (state[-1] if state else None), moved
        elif name == "lrange":
            yield list(state), state
        elif name == "lrem":
            left = tuple(value for value in state if value != args[1])
            yield len(state) - len(left), left
        elif name == "ltrim":
            yield True, state[args[0] :]


class Lists(Protocol):
    """A list in parts, pushed, popped, searched and trimmed in steps: linearizable to a deque."""

    clients = 3
    model = Deque()

    def list(self, kit: Any) -> Any:
        found = kit.list("l", component="data", part_size=2)
        found._scripts.searched = found._scripts.visited = 1  # parts in one step
        return found

    async def client(self, client: Client) -> None:
        found = self.list(client.kit)

        async def rotate() -> Any:
            return await found.lmove(found, "RIGHT", "LEFT")

        for n in range(4):
            name = client.choose(
                ("rpush", "lpop", "lpush", "rpop", "rotate", "lrange", "lrem", "ltrim")
            )
            if name in ("rpush", "lpush"):
                values = [f"{client.number}.{n}.{m}" for m in range(client.choose((1, 3)))]
                await client.call(getattr(found, name), *values, "x", name=name)
            elif name == "lrem":
                await client.call(found.lrem, 0, "x", name=name)
            elif name == "ltrim":
                await client.call(found.ltrim, 3, -1, name=name)
            elif name == "rotate":
                await client.call(rotate)
            elif name == "lrange":
                await client.call(lambda: found.lrange(0, -1), name="lrange")
            else:
                await client.call(getattr(found, name), name=name)

    def at_end(self, kit: ShardKit) -> None:
        found = self.list(kit)
        assert found.llen() == len(list(found.items()))


class WaitingLists(Roles):
    """Consumers wait for values: each value is popped once, and none stays with a waiter there."""

    roles = ("producer", "consumer", "consumer")
    faults = (*NETWORK, "kill", "freeze", "cancel")

    def setup(self, kit: ShardKit) -> None:
        self.sent: list[str] = []
        self.pushed: list[str] = []
        self.popped: list[str] = []

    def list(self, kit: Any) -> Any:
        return kit.list("l", component="data", part_size=2)

    async def producer(self, client: Client) -> None:
        found = self.list(client.kit)
        for n in range(4):
            value = f"v{n}"
            self.sent.append(value)
            await (found.rpush(value) if n % 2 else found.lpush(value))
            self.pushed.append(value)

    async def consumer(self, client: Client) -> None:
        found = self.list(client.kit)
        while (value := await found.blpop(timeout=3)) is not None:
            assert value not in self.popped, f"{value} was popped twice"
            self.popped.append(value)

    def at_end(self, kit: ShardKit) -> None:
        found = self.list(kit)
        left = found.lrange(0, -1)
        assert not set(left) & set(self.popped)
        assert len(left) == len(set(left))
        assert set(left) | set(self.popped) <= set(self.sent)


class CancelledConsumers(WaitingLists):
    """Nothing fails, but consumers are cancelled: then every value is popped, or still there."""

    faults = ("cancel",)
    most_faults = 2

    def at_end(self, kit: ShardKit) -> None:
        super().at_end(kit)
        left = self.list(kit).lrange(0, -1)
        assert set(self.pushed) <= {*left, *self.popped}


class Visitors(Protocol):
    """Unique visitors: no session is new twice, and the count is never too high."""

    clients = 3
    sessions = tuple(f"550e8400-e29b-41d4-a716-4466554400{n:02}" for n in range(4))
    day = date(2023, 11, 14)

    def counter(self, kit: Any) -> Any:
        return kit.unique_visitors("u", component="data", precision="exact", first_day=300)

    def setup(self, kit: ShardKit) -> None:
        self.new: Counter[str] = Counter()
        self.tried: set[str] = set()
        self.observed = self.counter(kit)

    async def client(self, client: Client) -> None:
        found = self.counter(client.kit)
        for n in range(2):
            session = self.sessions[client.choose((n, 0, 3))]
            self.tried.add(session)
            if await found.visit(session, self.day):
                self.new[session] += 1
                assert self.new[session] == 1, f"{session} was new twice"

    def invariant(self, kit: ShardKit) -> None:
        count = self.observed.count(self.day)
        assert count <= len(self.tried), f"{count} of {len(self.tried)} that have come"

    def at_end(self, kit: ShardKit) -> None:
        found = self.counter(kit)
        there = list(found.ids(self.day))
        assert found.count(self.day) <= len(there)
        assert found.recount(self.day) == len(there)
        assert set(self.new) <= self.tried


class Queues(Roles, TaskQueues):
    """Task queues: a task is in one place, acknowledged once, and never lost."""

    roles = ("producer", "worker", "worker")
    faults = (*NETWORK, *CLIENTS, "cancel", "time", "drift", "crash")
    appendfsync = "always"
    most_steps = 1500
    ids = ("a", "b", "c")

    def setup(self, kit: ShardKit) -> None:
        self.queued: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.unsure: Counter[str] = Counter()  # acknowledged, and not answered

    async def producer(self, client: Client) -> None:
        queues = self.queues(client.kit)
        for id_ in self.ids:
            delay = client.choose((0, 2))

            async def enqueue(id_: str = id_, delay: int = delay) -> None:
                self.sent[id_] += 2  # if the connection breaks, it is sent once more
                await queues.enqueue("q", "work", [id_], id=id_, delay=delay)

            await persist(enqueue)
            self.queued[id_] += 1
        if client.choose((False, True)):
            await persist(lambda: queues.revive_all("q"))

    async def worker(self, client: Client) -> None:
        queues = self.queues(client.kit)
        for _ in range(4):
            task = await queues.take("q", lease=5, timeout=client.choose((3.0, 0.0)))
            if task is None:
                continue
            client.log(f"works on {task.id}, attempt {task.attempts}")
            assert task.args == (task.id,)
            ending = client.choose(("acknowledge", "extend", "release", "fail"))
            if ending == "extend":
                await queues.extend(task, 5)
                await asyncio.sleep(3)
                ending = "acknowledge"
            if ending == "acknowledge":
                self.unsure[task.id] += 1
                # False also if it was sent twice, as the first answer was lost.
                if await queues.acknowledge(task):
                    self.done[task.id] += 1
                    self.unsure[task.id] -= 1
            else:
                await getattr(queues, ending)(task)

    def at_end(self, kit: ShardKit) -> None:
        tasks, _ = self.places(kit)
        for id_ in self.queued:
            assert id_ in tasks or self.done[id_] or self.unsure[id_], f"{id_} is lost"
        assert tasks | set(self.done) <= set(self.sent)
        assert self.done <= self.sent, "a task was acknowledged twice"


class Pipelines(Counted, BothFaces):
    """Batches over shards: nothing is executed twice, a shard that fails costs its own replies."""

    roles = ("awaiting", "blocking")
    shards = 3
    faults = (*NETWORK, *CLIENTS, "crash", "read_only", "not_ready")
    appendfsync = "always"

    async def use(self, client: Client) -> None:
        keys = [f"k{n}.{client.number}" for n in range(6)]
        for _ in range(2):
            pipe = client.kit.key_sharded("data").pipeline()
            for key in keys:
                pipe.incr(key)
            self.sent.update(keys)
            self.check_replies(client, keys, await settled(pipe.execute(raise_on_error=False)))

    def check_replies(self, client: Client, keys: list[str], replies: list[Any]) -> None:
        self.note(keys, replies)

    def at_end(self, kit: ShardKit) -> None:
        router = kit.key_sharded("data")
        self.check_counts({name: int(router[name].get(name) or 0) for name in self.sent})


class OneLostConnection(Pipelines):
    """One connection breaks: only the commands of its shard fail."""

    faults = ("lose_command", "lose_answer", "never")
    most_faults = 1

    def setup(self, kit: ShardKit) -> None:
        super().setup(kit)
        self.failed: set[int | None] = set()

    def check_replies(self, client: Client, keys: list[str], replies: list[Any]) -> None:
        component = client.kit.topology.component("data")
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, Exception):
                self.failed.add(component.shard_of(key).number)
        assert len(self.failed) <= 1, self.failed


class IpGenerations(Roles):
    """Cities are imported again while they are looked up: a look-up finds the old or the new."""

    roles = ("importer", "reader")
    faults = (*NETWORK, *CLIENTS, "time")
    clients = 2

    def cities(self, number: int) -> list[Any]:
        return [
            IpRange.of("10.0.0.0/16", None, city=City(f"A{number}", "", "", 2 * number)),
            IpRange.of("10.1.0.0/16", None, city=City(f"B{number}", "", "", 2 * number + 1)),
        ]

    def setup(self, kit: ShardKit) -> None:
        kit.ip_to_city(component="data").import_from(self.cities(0), grace=10)

    async def importer(self, client: Client) -> None:
        found = client.kit.ip_to_city(component="data")
        for number in (1, 2):
            await found.import_from(self.cities(number), grace=10)

    async def reader(self, client: Client) -> None:
        found = client.kit.ip_to_city(component="data")
        for _ in range(2):
            started = client.time
            cities = await found.find_many(["10.0.1.1", "10.1.1.1"])
            if client.time - started < 5:  # the grace ends for a reader that stood still
                assert all(cities), cities
                first, second = cities
                assert (first.city, second.city) in [(f"A{n}", f"B{n}") for n in range(3)]
            await asyncio.sleep(client.choose((0.0, 1.0, 20.0)))

    def at_end(self, kit: ShardKit) -> None:
        found = kit.ip_to_city(component="data")
        first, second = found.find_many(["10.0.1.1", "10.1.1.1"])
        assert first is not None
        assert second is not None
        assert first.city[1:] == second.city[1:]
        assert found.import_from(self.cities(7), grace=10).cities == 2
        later = found.find("10.0.1.1")
        assert later is not None
        assert later.city in ("A7", first.city)  # this process may still hold the view before


class Search(Protocol):
    """Documents are indexed again and removed: what is found is what is stored, and all of it."""

    clients = 2
    faults = (*NETWORK, *CLIENTS, "cancel")
    words = ("red", "green", "blue")

    def documents(self, kit: Any) -> Any:
        return kit.search("docs", component="data", statistics_ttl=0)

    async def client(self, client: Client) -> None:
        found = self.documents(client.kit)
        for n in range(3):
            doc = f"d{client.choose((0, 1, 2))}"
            call = client.choose(("index", "remove", "search"))
            if call == "index":
                word = client.choose(self.words)
                await persist(lambda: found.index(doc, f"{word} {client.number}.{n}"))  # noqa: B023
            elif call == "remove":
                await persist(lambda: found.remove(doc))  # noqa: B023
            else:
                results = await found.search(client.choose(self.words))
                assert len({hit.id for hit in results.hits}) == len(results.hits)

    def at_end(self, kit: ShardKit) -> None:
        found = self.documents(kit)
        stored = found.get_many([f"d{n}" for n in range(3)])
        assert found.count() == len(stored)
        for word in self.words:
            expected = {id_ for id_, doc in stored.items() if word in doc.text["text"]}
            results = found.search(word)
            assert {hit.id for hit in results.hits} == expected, (word, stored)
            assert results.total == len(expected)


class Social(SocialProtocol):
    """A social network under faults: after repair, counters, relations and timelines agree."""

    clients = 2
    faults = (*NETWORK, *CLIENTS)
    shards = 2

    def setup(self, kit: ShardKit) -> None:
        network = self.network(kit)
        self.users = [network.create_user(f"u{n}", f"User {n}") for n in range(3)]
        network.follow(self.users[1], self.users[0])

    async def client(self, client: Client) -> None:
        network = self.network(client.kit)
        users = self.users
        mine: list[int] = []
        for n in range(3):
            call = client.choose(("post", "follow", "unfollow", "delete", "block"))
            one = users[client.choose((0, 1, 2))]
            other = users[client.choose((1, 2, 0))]
            if call == "post":
                mine.append(await network.post(users[0], f"{client.number}.{n}"))
            elif call == "delete" and mine:
                await network.delete_status(users[0], mine.pop())
            elif one != other and call != "delete":
                await getattr(network, call)(one, other)

    def at_end(self, kit: ShardKit) -> None:
        network = self.repair(kit)
        assert network.pending(older_than=0) == []
        for uid in self.users:
            result = network.reconcile(uid)
            assert result is not None
        following = {uid: {r.id for r in network.following(uid)} for uid in self.users}
        followers = {uid: {r.id for r in network.followers(uid)} for uid in self.users}
        profiles = {uid: [s.id for s in network.profile(uid)] for uid in self.users}
        for uid in self.users:
            user = network.get_user(uid)
            assert user.following == len(following[uid]), (user, following[uid])
            assert user.followers == len(followers[uid]), (user, followers[uid])
            assert user.posts == len(profiles[uid])
            home = {status.id for status in network.home(uid)}
            expected = {id_ for each in following[uid] for id_ in profiles[each]}
            assert home == expected, (uid, home, expected)
            for other in self.users:
                assert (uid in followers[other]) == (other in following[uid])
                if other != uid and network.blocks(uid, other):
                    assert other not in following[uid] | followers[uid]


class Configuration(BothFaces, ConfigProtocol):
    """Entries are pushed and rolled back while clients read: each reads whole versions."""

    roles = ("blocking", "awaiting", "pusher")
    pauses = (0.5, 3.0)
    shards = 2
    faults = (*NETWORK, *CLIENTS, "entry", "cut_off", "crash", "two_masters", "time")
    most_faults = 4

    def changes(self) -> Sequence[Callable[[ShardKit], object]]:
        return [self.move, self.restore_an_old_snapshot]

    def move(self, kit: ShardKit) -> None:
        source: Any = kit.topology.source
        push(source.client(), map_of("moved"), force=True)

    def restore_an_old_snapshot(self, kit: ShardKit) -> None:
        source: Any = kit.topology.source
        source.client().flushall()
        push(source.client(), map_of("data"))

    async def use(self, client: Client) -> None:
        epoch = 0
        for _ in range(5):
            component = await settled(client.kit.component("data"))
            self.host_of(component)
            assert component.epoch >= epoch, f"epoch {component.epoch} after {epoch}"
            epoch = component.epoch
            await rest(client, client.choose((1.1, 0.1)))

    def at_end(self, kit: ShardKit) -> None:
        source: Any = kit.topology.source
        self.host_of(pull(source.client()).components["data"])


PROTOCOLS: dict[str, type[Protocol]] = {
    "growing hash": GrowingHash,
    "lifetime": Lifetime,
    "lives": Lives,
    "replanned": PlannedAnew,
    "lists": Lists,
    "waiting lists": WaitingLists,
    "cancelled consumers": CancelledConsumers,
    "visitors": Visitors,
    "queues": Queues,
    "pipelines": Pipelines,
    "one lost connection": OneLostConnection,
    "IP generations": IpGenerations,
    "search": Search,
    "social network": Social,
    "configuration": Configuration,
    **CLIENT,
    **COLLECTIONS,
    **CHANGES,
    **CLUSTER,
    **COORDINATION,
    **METRICS,
    **MESSAGING,
}
