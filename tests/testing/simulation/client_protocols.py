"""What is simulated of clients: workers, deadlines and breakers, entries that move, closing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from shared import BothFaces, Counted, Roles, is_outage, map_of, push, rest, run_blocking, settled

from shardkit import ShardKit
from shardkit.errors import BreakerOpenError, ClosedError, ConfigError, ShardErrors
from shardkit.operations import Command, Operation, Partial, Script, Structure, operation
from shardkit.operations.commands import script_call
from shardkit.queues import AsyncWorker, Worker
from shardkit.routing.placement import slot_of
from shardkit.testing import CLIENTS, NETWORK, Client, Protocol
from shardkit.testing.simulation.cluster import NODES


class Workers(Roles):
    """Workers of both faces, with threads, leases and retries: no task is lost.

    Each is executed at least once, or still there; one is not executed again once its worker was
    told that it is done.
    """

    faults = (*NETWORK, *CLIENTS, "cancel")
    ids = ("a", "b")
    most_steps = 3000

    def setup(self, kit: ShardKit) -> None:
        self.executed: Counter[str] = Counter()
        self.done: set[str] = set()
        queues = self.queues(kit)
        for id_ in self.ids:
            queues.enqueue("q", "work", [id_], id=id_)

    def queues(self, kit: Any) -> Any:
        return kit.queues(component="data", attempts=50, retry_delay=0.1)

    def note(self, id_: str) -> None:
        assert id_ not in self.done, f"{id_} is executed again"
        self.executed[id_] += 1

    def blocking(self, client: Client) -> None:
        def work(id_: str) -> None:
            self.note(id_)
            time.sleep(client.choose((0.0, 1.2)))
            if client.choose((False, True)):
                raise ValueError("it fails now and then")

        worker = Worker(self.queues(client.kit), "q", {"work": work}, concurrency=2, lease=1)
        worker.run(burst=True)

    async def awaiting(self, client: Client) -> None:
        async def work(id_: str) -> None:
            self.note(id_)
            await asyncio.sleep(client.choose((0.0, 1.2)))

        worker = AsyncWorker(self.queues(client.kit), "q", {"work": work}, concurrency=2, lease=1)
        await worker.run(burst=True, signals=False)

    def waiting(self, kit: ShardKit) -> set[str]:
        number = kit.component("data").shard_of("queues:{q}").number
        conn: Any = kit.client("data", number)
        return {each.decode() for each in conn.hkeys("queues:{q}:tasks")}

    def invariant(self, kit: ShardKit) -> None:
        self.done = set(self.ids) - self.waiting(kit)
        assert self.done <= set(self.executed), f"{self.done - set(self.executed)} are lost"

    def at_end(self, kit: ShardKit) -> None:
        time.sleep(20)  # what the dead had leased is free by then
        left, queues = self.waiting(kit), self.queues(kit)
        taken = set()
        while (task := queues.take("q", lease=60, timeout=0)) is not None:
            taken.add(task.id)
        assert taken == left


class Deadlines(BothFaces):
    """Calls to several servers in a block with a deadline, whatever the servers do.

    Each ends in time; one that a breaker refuses, at once. When the faults are over, servers are
    asked again.
    """

    shards = 3
    faults = (*NETWORK, "crash", "cut_off")
    appendfsync = "always"
    seconds = 0.5

    def hash(self, kit: Any) -> Any:
        return kit.hash("h", component="data", parts=4)

    def setup(self, kit: ShardKit) -> None:
        self.hash(kit).hset(mapping=dict.fromkeys("abcd", 1))

    def ended(self, client: Client, started: float, error: Exception | None) -> None:
        took = client.time - started
        assert took < self.seconds + 0.1, f"took {took} s"
        if error is None:
            return
        assert is_outage(error), error
        causes = error.exceptions if isinstance(error, ShardErrors) else [error]
        if all(isinstance(getattr(each, "error", each), BreakerOpenError) for each in causes):
            assert took < 0.1, f"took {took} s although the breaker was open"

    async def use(self, client: Client) -> None:
        for n in range(9):
            started, error = client.time, None
            try:
                with client.kit.deadline(self.seconds):
                    await settled(self.read(client))
            except Exception as found:
                error = found
            self.ended(client, started, error)
            if n >= 4:
                if error is None:
                    return
                await rest(client, 70)
        raise AssertionError("servers are not asked again")

    def read(self, client: Client) -> Any:
        if client.number:
            return self.hash(client.kit).hmget(["a", "b", "c", "d"])
        pipe = client.kit.key_sharded("data").pipeline()
        for key in "abcd":
            pipe.get(key)
        return pipe.execute()


class Together(BothFaces):
    """Operations of several structures in lock step: each is done once, those that fail alone."""

    shards = 3
    faults = (*NETWORK, "kill", "freeze")
    names = ("l0", "l1", "l2", "l3")

    def setup(self, kit: ShardKit) -> None:
        self.pushed: Counter[tuple[str, str]] = Counter()

    def lists(self, kit: Any) -> list[Any]:
        return [kit.list(name, component="data", part_size=3) for name in self.names]

    async def use(self, client: Client) -> None:
        for n in range(2):
            value = f"{client.number}.{n}"
            pushes = [found.deferred.rpush(value) for found in self.lists(client.kit)]
            await settled(client.kit.together(*pushes))
            self.pushed.update((name, value) for name in self.names)

    def at_end(self, kit: ShardKit) -> None:
        stored: Counter[tuple[str, str]] = Counter()
        for name, found in zip(self.names, self.lists(kit), strict=True):
            stored.update((name, value) for value in found.lrange(0, -1))
        assert all(count == 1 for count in stored.values()), "something was done twice"
        assert set(self.pushed) <= set(stored), set(self.pushed) - set(stored)


class Moving(Counted, BothFaces):
    """Entries move to other servers and back while clients count.

    No count is lost or doubled, and no connection stays where no entry leads any more.
    """

    config_server = True
    faults = (*NETWORK, *CLIENTS, "entry", "entry")
    hosts: ClassVar[tuple[str, ...]] = ("data", "moved")

    def changes(self) -> Sequence[Callable[[ShardKit], object]]:
        return [self.move, self.move_back]

    def move(self, kit: ShardKit, host: str = "moved") -> None:
        source: Any = kit.topology.source
        push(source.client(), map_of(host), force=True)

    def move_back(self, kit: ShardKit) -> None:
        self.move(kit, "data")

    async def use(self, client: Client) -> None:
        router = client.kit.key_sharded("data")
        for n in range(5):
            key = f"k{n % 2}"
            self.sent[key] += 1
            try:
                conn = await settled(router[key])
                await settled(conn.incr(key))
                self.answered[key] += 1
            except Exception as error:
                if not self.allows(error):
                    raise
            await rest(client, client.choose((0.0, 1.2)))
        before = await settled(client.kit.component("data"))
        await rest(client, 4)
        self.check_connections(client, before, await settled(client.kit.component("data")))

    def check_connections(self, client: Client, before: Any, after: Any) -> None:
        if before.epoch == after.epoch:  # nothing has changed for four seconds
            there = {f"{entry.fields['host']}:{entry.fields['port']}" for entry in after.shards}
            left = set(client.connections) - there - {"config:6379", "home:6379"}
            assert not left, f"connections to {left} although entries say {there}"

    def at_end(self, kit: ShardKit) -> None:
        counted: Counter[str] = Counter()
        for host in self.hosts:
            self.move(kit, host)
            kit.topology.expire()
            router = kit.key_sharded("data")
            for key in ("k0", "k1"):
                counted[key] += int(router[key].get(key) or 0)
        self.check_counts(counted)

    def allows(self, error: Exception) -> bool:
        return isinstance(error, ConfigError) or super().allows(error)


class Closing(Roles):
    """A kit is closed while its threads and tasks use it.

    They get their answers or ClosedError, at once; afterwards no connection is left, and nothing
    works, whatever was looked up before or is known in the process.
    """

    config_server = True
    faults = ("late", "never")
    most_faults = 1

    def setup(self, kit: ShardKit) -> None:
        kit.directory.set("flags", "checkout", {"new": True})

    def prepared(self, kit: Any, client: Any) -> list[Callable[[], Any]]:
        """Everything that would use a server, looked up while the kit is open."""
        hashed, directory = kit.hash("h", component="data", parts=4), kit.directory
        router = kit.key_sharded("data")
        pipe, listener = client.pipeline().get("k"), client.pubsub()
        return [
            lambda: hashed.hget("a"),
            lambda: hashed.hset(mapping={"a": 1, "b": 1}),
            lambda: directory.get("flags", "checkout", max_age=60),
            lambda: directory.set("flags", "other", {}),
            lambda: directory.names("flags"),
            lambda: kit.component("data"),
            lambda: kit.client("data", 0),
            lambda: kit.client("data", private=True),
            lambda: client.incr("k"),
            lambda: client.blpop("nothing", 1),
            lambda: router.mget(["a", "b"]),
            lambda: router.pipeline().set("a", 1).set("b", 1).execute(),
            lambda: pipe.execute(),
            lambda: listener.subscribe("news"),
            lambda: kit.hash("new", component="data", parts=4).hset("f", "v"),
        ]

    async def use(self, calls: Iterator[Callable[[], Any]]) -> None:
        """Make calls until one says that the kit is closed."""
        for call in calls:
            try:
                await settled(call())
            except ClosedError:
                return
            except Exception as error:
                self.check(error)

    def check(self, error: Exception) -> None:
        for each in error.exceptions if isinstance(error, ExceptionGroup) else [error]:
            cause = getattr(each, "error", None) or each
            assert isinstance(each, ClosedError) or is_outage(cause), repr(error)

    async def check_closed(self, client: Client, uses: list[Callable[[], Any]]) -> None:
        assert client.connections == [], client.connections
        for number, call in enumerate(uses):
            try:
                await settled(call())
            except ClosedError:
                continue
            raise AssertionError(f"a closed kit does call {number}")
        await rest(client, 0.01)
        assert client.connections == [], client.connections

    def blocking(self, client: Client) -> None:
        kit = client.kit
        uses = self.prepared(kit, kit.client("data", 0))
        kit.directory.get("flags", "checkout")
        calls = iter([client.choose(uses[:12]) for _ in range(8)])
        threads = [threading.Thread(target=lambda: run_blocking(self.use(calls))) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(client.choose((0.001, 0.0, 0.002, 0.004)))
        kit.close()
        closed = client.time
        for thread in threads:
            thread.join()
        assert client.time - closed < 0.5, "who waited was not told"
        run_blocking(self.check_closed(client, uses))

    async def awaiting(self, client: Client) -> None:
        kit = client.kit
        uses = self.prepared(kit, await kit.client("data", 0))
        await kit.directory.get("flags", "checkout")
        calls = iter([client.choose(uses[:12]) for _ in range(8)])
        tasks = [asyncio.ensure_future(self.use(calls)) for _ in range(3)]
        await asyncio.sleep(client.choose((0.001, 0.0, 0.002, 0.004)))
        await kit.aclose()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.01)
        await self.check_closed(client, uses)


class Streaming(Roles):
    """A set is read as a stream while its parts split.

    What was there when a stream began is given out once, and nothing that nobody has added.
    """

    roles = ("writer", "blocking", "awaiting")
    clients = 3
    faults = (*NETWORK, *CLIENTS, "cancel")

    def set(self, kit: Any) -> Any:
        return kit.set("s", component="data", part_size=4, parts=1, members=int)

    def setup(self, kit: ShardKit) -> None:
        self.there = set(range(6))  # for certain
        self.tried = set(self.there)
        self.set(kit).sadd(*self.there)

    async def writer(self, client: Client) -> None:
        found = self.set(client.kit)
        for n in range(10, 28, 6):
            some = range(n, n + 6)
            self.tried.update(some)
            await found.sadd(*some)
            self.there.update(some)

    def check(self, before: set[int], seen: Counter[int]) -> None:
        assert set(seen) <= self.tried
        assert before <= set(seen), f"{before - set(seen)} are missing"
        assert all(count == 1 for count in seen.values()), seen

    def blocking(self, client: Client) -> None:
        before = set(self.there)
        self.check(before, Counter(self.set(client.kit).sscan_iter(count=1)))

    async def awaiting(self, client: Client) -> None:
        found = self.set(client.kit)
        for _ in range(client.choose((1, 2))):
            before = set(self.there)
            self.check(before, Counter([member async for member in found.sscan_iter(count=1)]))


class Decorated(Counted, Roles):
    """Decorated functions and generators of both faces get the connection of their key's shard."""

    faults = (*NETWORK, *CLIENTS, "cancel")
    keys = ("a", "b", "d")

    def blocking(self, client: Client) -> None:
        @client.kit.sharded_connection("data")
        def push(conn: Any, key: str) -> None:
            conn.rpush(key, client.number)

        @client.kit.sharded_connection("data", key="name")
        def every(conn: Any, start: int, name: str) -> Any:
            for at in range(start, conn.llen(name)):
                yield conn.lindex(name, at)

        for key in self.keys:
            self.sent[key] += 1
            push(key)
            self.answered[key] += 1
            least = self.answered[key]
            assert len(list(every(0, key))) >= least

    async def awaiting(self, client: Client) -> None:
        @client.kit.sharded_connection("data")
        async def push(conn: Any, key: str) -> None:
            await conn.rpush(key, client.number)

        @client.kit.sharded_connection("data", key="name")
        async def every(conn: Any, start: int, name: str) -> Any:
            for at in range(start, await conn.llen(name)):
                yield await conn.lindex(name, at)

        for key in self.keys:
            self.sent[key] += 1
            await push(key)
            self.answered[key] += 1
            least = self.answered[key]
            assert len([value async for value in every(0, key)]) >= least

    def at_end(self, kit: ShardKit) -> None:
        router = kit.key_sharded("data")
        self.check_counts({key: router[key].llen(key) for key in self.sent})


CLIENT: dict[str, type[Protocol]] = {
    "streams": Streaming,
    "decorated functions": Decorated,
    "workers": Workers,
    "deadlines": Deadlines,
    "together": Together,
    "moving entries": Moving,
    "closing": Closing,
}


_NODES = ", ".join(f"{{host: node, port: {n}}}" for n in range(1, NODES + 1))


KEYS = ["{a}1", "{a}2", "{b}1", "{b}2"]
_BUMP = Script("bump", "return redis.call('INCR', KEYS[1])")


class Counts(Structure[Any]):
    """Counts in the keys of a cluster."""

    @operation
    def count(self, keys: Sequence[str], by_script: Sequence[str]) -> Operation[list[Any]]:
        """Add 1 to each, by a command or a script; return the counts, or why one failed."""
        replies = yield Partial(
            [
                *(Command(self.component, key, ("INCR", key)) for key in keys),
                *(script_call(self.component, _BUMP, [key]) for key in by_script),
            ]
        )
        return list(replies)


class MovingSlots(Counted, BothFaces):
    """Slots of a cluster move, key by key, while clients of both faces count in them.

    A count is there once if it was answered and at most once if not; that a slot moves fails no
    call, and whoever is asked last is asked with ASKING.
    """

    roles = ("awaiting", "blocking", "decorated", "mover")
    shard_map = f"""
components:
  data: {{entry: {{host: node, port: 1, cluster: true}}}}
  nodes: {{shards: [{_NODES}]}}
"""
    faults = (*NETWORK, *CLIENTS)
    most_faults = 2

    def setup(self, kit: ShardKit) -> None:
        super().setup(kit)
        self.before = Counter(["{a}1", "{b}1", "{b}2"])
        kit._connector._world.make_cluster("node:1")  # type: ignore[union-attr]
        for key in self.before:
            self.node_of(kit, key).incr(key)

    async def use(self, client: Client) -> None:
        counts = Counts(client.kit.driver, "data", "counts")
        # What is counted by a command, and what by a script.
        ways = ((KEYS, []), (KEYS[:1], KEYS[1:]), ([], KEYS))
        calls: list[tuple[list[str], list[str]]] = [client.choose(ways) for _ in range(2)]
        for keys, by_script in calls:
            self.sent.update([*keys, *by_script])
            self.note([*keys, *by_script], await settled(counts.count(keys, by_script)))

    def decorated(self, client: Client) -> None:
        """Count by redis-py's own client of the cluster."""

        @client.kit.redis_connection("data")
        def count(conn: Any, key: str) -> None:
            conn.incr(key)

        for _ in range(2):
            key = client.choose(KEYS)
            self.sent[key] += 1
            count(key)
            self.answered[key] += 1

    def mover(self, client: Client) -> None:
        """Move slots as ``redis-cli --cluster reshard`` does."""
        nodes = [client.kit.client("nodes", n) for n in range(NODES)]
        ids = [node.execute_command("CLUSTER", "MYID") for node in nodes]
        at = {slot: slot * NODES // 16384 for slot in map(slot_of, KEYS)}
        for _ in range(2):
            slot = client.choose(list(at))
            source, target = at[slot], (at[slot] + client.choose((1, 2))) % NODES
            nodes[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
            nodes[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
            while keys := nodes[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
                nodes[source].execute_command("MIGRATE", "node", target + 1, *keys, 0, 5000)
            for n in (target, *(set(range(NODES)) - {target})):
                nodes[n].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
            at[slot] = target

    def node_of(self, kit: ShardKit, key: str) -> Any:
        """The client of the node that has a key at first: a cluster's own takes long to make."""
        return kit.client("nodes", slot_of(key) * NODES // 16384)

    def at_end(self, kit: ShardKit) -> None:
        held: dict[str, int] = {}
        for n in range(NODES):
            conn: Any = kit.client("nodes", n)
            for key in conn.keys("*"):
                assert key.decode() not in held, f"{key} is on two nodes"
                # Who reads what has moved is redirected; of a slot that is moved, with ASKING.
                pipe = conn.pipeline(transaction=False)
                held[key.decode()] = int(pipe.execute_command("ASKING").get(key).execute()[-1])
        self.check_counts({key: held.get(key, 0) - self.before[key] for key in self.sent})


class Sentinels(Roles):
    """A replica takes over, and Sentinels name the old master for a while: clients count on.

    Nothing is counted twice. Who has no call under way has connections to one master only, whatever
    it was told. Once all know of the last failover, calls succeed, and are there.
    """

    replicating = ("one:1", "two:2", "three:3")
    sentinels = ("sentinel:1", "sentinel:2", "sentinel:3")
    shard_map = """
components:
  data:
    entry:
      sentinel: {service: main, sentinels: [[sentinel, 1], [sentinel, 2], [sentinel, 3]]}
"""
    faults = (*NETWORK, "kill", "cut_off", *["sentinels_fail_over"] * 3)
    most_faults = 4

    def setup(self, kit: ShardKit) -> None:
        self.sent: Counter[str] = Counter()
        self.last: dict[str, float] = {}  # when counts began that were answered in the end

    def blocking(self, client: Client) -> None:
        pipe = client.kit.key_sharded("data").pipeline

        @client.kit.redis_connection("data")
        def count_by_client(conn: Any, key: str) -> None:
            self.sent[key] += 1
            conn.incr(key)

        def count(key: str) -> None:
            self.sent[key] += 1
            pipe().incr(key).get("other").execute()

        def attempt(call: Callable[[str], None], key: str) -> bool:
            try:
                call(key)
            except Exception as error:
                if not is_outage(error):
                    raise
                return False
            return True

        for n in range(2):
            threads = [
                threading.Thread(target=attempt, args=(call, f"{n}.{call.__name__}"))
                for call in (count, count_by_client)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.check_connections(client.kit.client("data"))
            time.sleep(client.choose((0.0, 0.2, 2.0)))
        while (left := self.agreed_at(client) + 1 - client.time) > 0:
            time.sleep(left)
        for call in (count, count_by_client):
            started = client.time
            while not attempt(call, key := f"last.{call.__name__}"):
                started = client.time
                time.sleep(1)  # simulated seconds
            self.last[key] = started

    async def awaiting(self, client: Client) -> None:
        router = client.kit.key_sharded("data")

        async def count(key: str) -> None:
            self.sent[key] += 1
            await router.pipeline().incr(key).get("other").execute()

        async def count_alone(key: str) -> None:
            self.sent[key] += 1
            conn = await client.kit.client("data")
            await conn.pipeline(transaction=True).incr(key).execute()

        async def attempt(call: Callable[[str], Any], key: str) -> bool:
            try:
                await call(key)
            except Exception as error:
                if not is_outage(error):
                    raise
                return False
            return True

        for n in range(2):
            await asyncio.gather(
                *(attempt(call, f"a{n}.{call.__name__}") for call in (count, count_alone))
            )
            self.check_connections(await client.kit.client("data"))
            await asyncio.sleep(client.choose((0.0, 0.2, 2.0)))
        while (left := self.agreed_at(client) + 1 - client.time) > 0:  # noqa: ASYNC110 - no event
            await asyncio.sleep(left)
        for call in (count, count_alone):
            started = client.time
            while not await attempt(call, key := f"alast.{call.__name__}"):
                started = client.time
                await asyncio.sleep(1)
            self.last[key] = started

    def agreed_at(self, client: Client) -> float:
        """When all know of the last failover so far."""
        self.failovers = client._world.sentinels
        assert self.failovers is not None
        return self.failovers.agreed_at

    def check_connections(self, conn: Any) -> None:
        idle = conn.connection_pool.connections.idle
        masters = {each.host for each in idle if each.is_reusable()}
        assert len(masters) < 2, f"the next calls go to {masters}"

    def at_end(self, kit: ShardKit) -> None:
        conn: Any = kit.client("data")
        for key, sent in self.sent.items():
            executed = int(conn.get(key) or 0)
            assert executed <= sent, (key, executed)
            if key in self.last and self.last[key] > self.failovers.agreed_at:
                assert executed, f"{key} was answered, and is lost"


class Newcomers(BothFaces, Sentinels):
    """Clients connect anew for each write, while Sentinels replace a master.

    What they write from the beginning of the failover on is not lost, whichever Sentinels still
    name the old master, which takes writes.
    """

    faults = ("sentinels_fail_over",)
    most_faults = 1

    def setup(self, kit: ShardKit) -> None:
        self.written: dict[str, float] = {}  # when the writes began

    async def use(self, client: Client) -> None:
        self.failovers = client._world.sentinels
        conn: Any = await settled(client.kit.client("data"))
        for n in range(6):
            await settled(conn.connection_pool.disconnect())
            began, key = client.time, f"{client.number}.{n}"
            await settled(conn.set(key, 1))
            self.written[key] = began
            await rest(client, client.choose((0.05, 0.0, 0.5)))

    def at_end(self, kit: ShardKit) -> None:
        conn: Any = kit.client("data")
        for key, began in self.written.items():
            if began >= self.failovers.began_at > 0:
                assert conn.exists(key), f"{key} was answered, and is lost"


CLUSTER: dict[str, type[Protocol]] = {
    "moving slots": MovingSlots,
    "sentinels": Sentinels,
    "newcomers to Sentinels": Newcomers,
}
