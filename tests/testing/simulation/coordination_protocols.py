"""What is simulated of locks and their kin, rate limits, transfers and markets."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from shared import Roles

from shardkit import ShardKit
from shardkit.coordination import Hold, Leg
from shardkit.errors import LockLostError, LockTimeoutError, StaleTokenError
from shardkit.testing import CLIENTS, NETWORK, Client, Protocol, Register

_ENDED = (LockLostError, LockTimeoutError, StaleTokenError)


class Locks(Protocol):
    """A counter is read and written under a lock.

    No two clients think that they hold it, and as it is guarded, no increment is lost, whoever
    stands still for how long.
    """

    clients = 3
    shards = 1
    faults = (*NETWORK, *CLIENTS, "cancel", "time", "drift", "crash", "deaf")
    appendfsync = "always"
    model = Register(0)
    most = 1
    renew = True

    def setup(self, kit: ShardKit) -> None:
        self.held: list[Hold[Any]] = []

    async def client(self, client: Client) -> None:
        wait = client.choose((20.0, 3.0))
        lock = client.kit.lock(
            "l", component="data", ttl=2.0, blocking_timeout=wait, renew=self.renew
        )
        for _ in range(client.choose((1, 2))):
            try:
                async with lock as hold:
                    self.started(hold)
                    await self.increment(client, hold)
                    await asyncio.sleep(client.choose((0.0, 3.0)))
            except _ENDED as error:
                client.log(type(error).__name__)

    def started(self, hold: Hold[Any]) -> None:
        self.held.append(hold)
        self.check()

    def check(self) -> None:
        thinking = [hold for hold in self.held if hold.remaining > 0]
        assert len(thinking) <= self.most, thinking

    def invariant(self, kit: ShardKit) -> None:
        self.check()

    async def increment(self, client: Client, hold: Hold[Any]) -> None:
        guard: Any = hold.guard("data")
        [count] = await guard.execute(("GET", "n"))  # makes its token known, too

        async def incr() -> int:
            await guard.execute(("SET", "n", int(count or 0) + 1))
            return int(count or 0) + 1

        await client.call(incr)

    def at_end(self, kit: ShardKit) -> None:
        time.sleep(3)  # the dead hold it no longer
        with kit.lock("l", component="data", ttl=2.0, blocking_timeout=60.0, renew=False):
            pass


class Semaphores(Locks):
    """At most two clients think that they hold a share; each gets one, in the end."""

    clients = 4
    faults = (*NETWORK, *CLIENTS, "cancel", "time", "drift")
    model = None
    most = 2

    async def client(self, client: Client) -> None:
        shares = client.kit.semaphore(
            "s", component="data", limit=2, ttl=2.0, blocking_timeout=client.choose((20.0, 1.0))
        )
        try:
            async with shares as hold:
                self.started(hold)
                await asyncio.sleep(client.choose((0.5, 0.0, 3.0)))
                hold.check()
        except _ENDED as error:
            client.log(type(error).__name__)

    def at_end(self, kit: ShardKit) -> None:
        shares = kit.semaphore(
            "s", component="data", limit=2, ttl=1.0, blocking_timeout=60.0, renew=False
        )
        assert shares.acquire()
        assert shares.acquire()
        assert shares.acquire(blocking_timeout=0) is None


class ReadWriteLocks(Locks):
    """Who writes is alone; who waits to write is not passed by for ever."""

    clients = 3
    faults = (*NETWORK, *CLIENTS, "cancel", "time")
    model = None

    def setup(self, kit: ShardKit) -> None:
        self.reading: list[Hold[Any]] = []
        self.writing: list[Hold[Any]] = []

    async def client(self, client: Client) -> None:
        lock = client.kit.read_write_lock(
            "rw", component="data", ttl=2.0, blocking_timeout=client.choose((20.0, 1.0))
        )
        for _ in range(client.choose((1, 2))):
            writes = client.choose((client.number % 2 == 0, True, False))
            try:
                async with lock.write if writes else lock.read as hold:
                    (self.writing if writes else self.reading).append(hold)
                    await asyncio.sleep(client.choose((0.5, 0.0, 3.0)))
            except _ENDED as error:
                client.log(type(error).__name__)

    def invariant(self, kit: ShardKit) -> None:
        writing = [hold for hold in self.writing if hold.remaining > 0]
        reading = [hold for hold in self.reading if hold.remaining > 0]
        assert len(writing) <= 1, writing
        assert not (writing and reading), (writing, reading)

    def at_end(self, kit: ShardKit) -> None:
        lock = kit.read_write_lock(
            "rw", component="data", ttl=1.0, blocking_timeout=60.0, renew=False
        )
        with lock.read, lock.read:
            assert lock.write.acquire(blocking_timeout=0) is None
        with lock.write:
            assert lock.read.acquire(blocking_timeout=0) is None


class Elections(Locks):
    """Terms increase, also when clocks jump; what leaders write comes in the order of terms."""

    clients = 2
    faults = (*NETWORK, *CLIENTS, "cancel", "time", "clock")
    model = None

    def setup(self, kit: ShardKit) -> None:
        self.terms: list[int] = []

    async def client(self, client: Client) -> None:
        election = client.kit.election("e", component="data", ttl=2.0, blocking_timeout=20.0)
        for _ in range(2):
            before = max(self.terms, default=0)
            leadership = await election.campaign()
            if leadership is None:
                continue
            assert leadership.token > before, (leadership.token, before)
            self.terms.append(leadership.token)
            try:
                await leadership.guard("data").execute(("RPUSH", "written", leadership.token))
            except StaleTokenError as error:
                client.log(type(error).__name__)
            await asyncio.sleep(client.choose((0.5, 3.0)))
            await election.resign(leadership)

    def invariant(self, kit: ShardKit) -> None:
        pass  # a clock that jumps ends terms before their leaders know

    def at_end(self, kit: ShardKit) -> None:
        assert kit.election("e", component="data", ttl=2.0, renew=False).campaign(
            blocking_timeout=60.0
        )
        written = [int(term) for term in kit.client("data", shard=0).lrange("written", 0, -1)]
        assert written == sorted(written)


class QuorumLocks(Locks):
    """At most one thinks that it has a majority; tokens increase, whatever a minority loses."""

    clients = 2
    shard_map = "components: {a: {entry: {host: a}}, b: {entry: {host: b}}, c: {entry: {host: c}}}"
    faults = (*NETWORK, *CLIENTS, "cancel", "cut_off", "time", "crash")
    model = None

    def lock(self, kit: Any, wait: float) -> Any:
        return kit.quorum_lock("q", components=["a", "b", "c"], ttl=2.0, blocking_timeout=wait)

    def setup(self, kit: ShardKit) -> None:
        self.held = []

    async def client(self, client: Client) -> None:
        lock = self.lock(client.kit, 1.0)
        before = max((hold.token for hold in self.held), default=0)
        hold = await lock.acquire()
        if hold is not None:
            assert hold.token > before, (hold.token, before)
            self.held.append(hold)
            await asyncio.sleep(client.choose((0.2, 1.0)))
            await lock.release(hold)

    def at_end(self, kit: ShardKit) -> None:
        with self.lock(kit, 60.0):
            pass


class MultiLocks(Locks):
    """Several locks in whatever order they are named: all or none, and nobody waits for ever."""

    shards = 2
    faults = (*NETWORK, *CLIENTS, "cancel", "time")
    model = None
    names = ("x", "y", "z")

    def setup(self, kit: ShardKit) -> None:
        self.by_name: dict[str, list[Hold[Any]]] = {name: [] for name in self.names}

    async def client(self, client: Client) -> None:
        first = client.choose(range(3))
        names = [self.names[(first + n) % 3] for n in range(2)]
        several = client.kit.multi_lock(names, component="data", ttl=2.0, blocking_timeout=20.0)
        began = client.time
        holds = await several.acquire(blocking_timeout=client.choose((20.0, 0.0)))
        if holds is None:
            assert not any(lock._holds for lock in several._locks), "one is held all the same"
            return
        for hold in holds:
            self.by_name[hold.name].append(hold)
        client.log(f"has {names} after {client.time - began:g} s")
        await asyncio.sleep(client.choose((0.5, 3.0)))
        await several.release(holds)
        assert not any(lock._holds for lock in several._locks), "one is still held"

    def invariant(self, kit: ShardKit) -> None:
        for name, holds in self.by_name.items():
            thinking = [hold for hold in holds if hold.remaining > 0]
            assert len(thinking) <= 1, (name, thinking)

    def at_end(self, kit: ShardKit) -> None:
        with kit.multi_lock(
            self.names, component="data", ttl=100.0, blocking_timeout=60.0, renew=False
        ):
            pass


class Latches(Roles):
    """A latch opens when it was counted down, not before; who waits is told, whatever is lost."""

    roles = ("worker", "worker", "waiter")
    faults = (*NETWORK, *CLIENTS, "cancel", "time")
    shards = 1
    count = 4

    def setup(self, kit: ShardKit) -> None:
        kit.countdown_latch("l", component="data").set(self.count)
        self.began = self.done = 0
        self.opened_at = float("inf")

    async def worker(self, client: Client) -> None:
        latch = client.kit.countdown_latch("l", component="data")
        for _ in range(2):
            self.began, done = self.began + 1, self.done
            left = await latch.count_down()
            assert self.count - self.began <= left < self.count - done, left
            self.done += 1
            if self.done == self.count:
                self.opened_at = client.time

    async def waiter(self, client: Client) -> None:
        opened = await client.kit.countdown_latch("l", component="data").wait(timeout=300.0)
        assert self.began == self.count if opened else self.opened_at > client.time - 90

    def at_end(self, kit: ShardKit) -> None:
        left = kit.countdown_latch("l", component="data").count()
        assert self.count - self.began <= left <= self.count - self.done, left


class CachedFunctions(Roles):
    """What a call returns began to be computed after each invalidation that ended before the call.

    That is so whoever computes meanwhile, is killed, or stands still; and nobody waits for ever.
    """

    roles = ("reader", "reader", "writer")
    faults = (*NETWORK, *CLIENTS, "cancel", "time")
    shards = 2
    ttl = 60.0

    def setup(self, kit: ShardKit) -> None:
        self.number = self.valid = 0  # of the source, and the least that may be returned

    def function(self, client: Client) -> Any:
        @client.kit.cached("data", ttl=self.ttl, stale=30, key="k{n}", tags=("t",))
        async def read(n: int) -> int:
            found = self.number
            await asyncio.sleep(client.choose((0.0, 0.1, 1.0)))
            return found

        return read

    async def reader(self, client: Client) -> None:
        read = self.function(client)
        for _ in range(4):
            await asyncio.sleep(client.choose((0.0, 0.05, 0.5)))
            valid = self.valid
            call = read.refresh if client.choose((False, False, False, True)) else read
            assert await call(client.choose((0, 0, 1))) >= valid

    async def writer(self, client: Client) -> None:
        read = self.function(client)
        for _ in range(4):
            await asyncio.sleep(client.choose((0.05, 0.0, 0.5)))
            self.number = number = self.number + 1
            if client.choose((True, False)):
                await read.invalidate_tag("t")
            else:
                await read.invalidate(0)
                await read.invalidate(1)
            self.valid = max(self.valid, number)

    def at_end(self, kit: ShardKit) -> None:
        read = kit.cached("data", ttl=self.ttl, stale=30, key="k{n}", tags=("t",))(
            lambda n: self.number
        )
        assert [read(n) >= self.valid for n in (0, 1)] == [True, True]


class CachedAges(Protocol):
    """No call returns a value that is older than it may be, however long the next one takes."""

    clients = 3
    faults = (*NETWORK, *CLIENTS, "cancel")
    shards = 1
    ttl, stale = 0.5, 0.5
    longest_put = 11.0  # seconds until what was computed is stored, or its lease has ended

    async def client(self, client: Client) -> None:
        @client.kit.cached("data", ttl=self.ttl, stale=self.stale, key="k")
        async def read() -> float:
            await asyncio.sleep(client.choose((0.0, 60.0, 0.1)))
            if client.choose((False, False, True)):
                raise LookupError
            return client.time

        for _ in range(5):
            await asyncio.sleep(client.choose((0.0, 0.3, 20.0)))
            call = client.choose((read, read, read.refresh))
            called = client.time
            with suppress(LookupError):
                computed = await call()
                assert called - computed <= self.longest_put + self.ttl + self.stale


class NearReads(Protocol):
    """No read is older than a near copy may be, and a client reads at least what it wrote.

    Servers in memory announce nothing, so a copy is used for its age.
    """

    clients = 3
    faults = (*NETWORK, *CLIENTS)
    shards = 1
    max_age = 1.0

    def setup(self, kit: ShardKit) -> None:
        self.counts = [(0, float("-inf"))]  # and when they were answered

    async def client(self, client: Client) -> None:
        near = client.kit.near("data", 10**6, max_age=self.max_age).key_sharded("data")
        for _ in range(6):
            await asyncio.sleep(client.choose((0.3, 0.0, 1.0)))
            called = client.time
            least = max(count for count, at in self.counts if at + self.max_age <= called)
            if client.choose((False, True)):
                least, *_ = await asyncio.gather(near.incr("n"), near.get("n"), near.mget(["n"]))
                self.counts.append((least, client.time))
            assert int(await near.get("n") or 0) >= least
            assert int((await near.mget(["n", "m"]))[0] or 0) >= least


class Barriers(Protocol):
    """A round opens for three arrivals; one that was withdrawn, or sent again, is not one more."""

    clients = 4
    faults = (*NETWORK, *CLIENTS, "time")
    shards = 1
    parties = 2

    def setup(self, kit: ShardKit) -> None:
        self.arrived = self.withdrawn = self.opened = 0

    async def client(self, client: Client) -> None:
        barrier = client.kit.barrier("b", component="data", parties=self.parties)
        for _ in range(2):
            self.arrived += 1
            if await barrier.wait(timeout=client.choose((20.0, 0.0, 1.0))):
                self.opened += 1
            else:
                self.withdrawn += 1

    def invariant(self, kit: ShardKit) -> None:
        rounds = (self.arrived - self.withdrawn) // self.parties
        assert self.opened <= self.parties * rounds, (self.opened, self.arrived, self.withdrawn)


class RateLimits(Protocol):
    """No more hits are allowed in any time than the limit says, and as many once it is over."""

    faults = (*NETWORK, *CLIENTS, "cancel", "time")
    shards = 1
    limit, per = 3, 10.0
    algorithms = ("gcra", "sliding_window")

    def setup(self, kit: ShardKit) -> None:
        self.hits: dict[str, list[tuple[float, float]]] = {name: [] for name in self.algorithms}

    def rate_limit(self, kit: Any, algorithm: str) -> Any:
        return kit.rate_limit(
            algorithm, component="data", limit=self.limit, per=self.per, algorithm=algorithm
        )

    async def client(self, client: Client) -> None:
        algorithm = client.choose(self.algorithms)
        limit = self.rate_limit(client.kit, algorithm)
        for _ in range(6):
            sent = client.time
            decision = await limit.hit("k")
            if decision.allowed:
                self.hits[algorithm].append((sent, client.time))
            await asyncio.sleep(client.choose((0.5, 3.0, 0.0)))

    def at_end(self, kit: ShardKit) -> None:
        for algorithm, hits in self.hits.items():
            for first, _ in hits:
                for last in (got for _, got in hits if got >= first):
                    within = sum(first <= sent and got <= last for sent, got in hits)
                    length = last - first
                    if algorithm == "gcra":
                        most = self.limit + int(length * self.limit / self.per)
                    else:
                        most = self.limit * (1 + int(length / self.per))
                    assert within <= most, (algorithm, within, length)
            limit = self.rate_limit(kit, algorithm)
            time.sleep(2 * self.per)
            assert [limit.hit("k").allowed for _ in range(self.limit + 1)] == [True] * 3 + [False]


class Transferring(Protocol):
    """Transfers between accounts on different shards, each of an amount of its own, a power of two.

    So the balances tell which were carried out: all that said so, none that said no, each once, on
    both sides or none. What the accounts have together, read at one moment, never changes.
    """

    clients = 2
    faults = (*NETWORK, *CLIENTS, "cancel", "time", "drift", "crash")
    appendfsync = "always"
    shards = 3
    start = 10_000

    def transfers(self, kit: Any) -> Any:
        return kit.transfers(component="data", grace=5.0)

    def setup(self, kit: ShardKit) -> None:
        self.tried: dict[int, tuple[str, str]] = {}
        self.done: set[int] = set()
        self.refused: set[int] = set()
        of = kit.component("data").shard_of
        on = {of(f"transfers:{{{name}}}").number: name for name in "abcdefghij"}
        self.names = tuple(on.values())  # each on a shard of its own
        for name in self.names:
            self.transfers(kit).issue(Leg(name, {"x": self.start}))

    async def client(self, client: Client) -> None:
        transfers = self.transfers(client.kit)
        for n in range(client.choose((1, 2))):
            amount = 2 ** (2 * client.number + n)
            giver, taker = (self.names[n] for n in client.choose(((0, 1), (1, 0), (2, 1), (1, 2))))
            self.tried[amount] = giver, taker
            result = await transfers.transfer(
                Leg(giver, {"x": -amount}), Leg(taker, {"x": amount}, {}, {"from": giver})
            )
            (self.done if result else self.refused).add(amount)
        last = client.choose(("", "total", "recover"))
        if last == "total":
            assert await transfers.total(self.names) == {"x": 3 * self.start}
        elif last == "recover":
            await asyncio.sleep(6)
            await transfers.recover(*self.names)

    def at_end(self, kit: ShardKit) -> None:
        transfers = self.transfers(kit)
        time.sleep(6)
        transfers.recover(*self.names)
        assert transfers.total(self.names) == {"x": 3 * self.start}
        accounts = dict(zip(self.names, transfers.read(*self.names), strict=True))
        assert not any(account.in_flight for account in accounts.values())
        found = {name: accounts[name].balances["x"] - self.start for name in self.names}
        unsure = sorted(self.tried.keys() - self.done - self.refused)
        possible = []
        for chosen in range(2 ** len(unsure)):
            carried = self.done | {each for n, each in enumerate(unsure) if chosen >> n & 1}
            expected = Counter(dict.fromkeys(self.names, 0))
            for amount in carried:
                giver, taker = self.tried[amount]
                expected[giver] -= amount
                expected[taker] += amount
            possible.append(dict(expected))
        assert found in possible, (found, self.done, unsure)


class Markets(Roles):
    """Two buyers and a seller who changes his price: sold once, for a price that was asked."""

    roles = ("buyer", "buyer", "seller")
    faults = (*NETWORK, "kill", "freeze", "time")
    prices = (5, 7)

    def market(self, kit: Any) -> Any:
        return kit.market(component="data", grace=5.0)

    def setup(self, kit: ShardKit) -> None:
        market = self.market(kit)
        market.deposit("seller", 0, ["lamp"])
        market.deposit("buyer 0", 10)
        market.deposit("buyer 1", 10)
        market.list("lamp", "seller", self.prices[0])
        self.bought: list[tuple[str, int]] = []
        self.unlisted = False  # and from then on it can only be bought for the second price

    async def buyer(self, client: Client) -> None:
        market = self.market(client.kit)
        for _ in range(client.choose((1, 2))):
            price = client.choose(self.prices)
            gone = self.unlisted
            if await market.purchase(f"buyer {client.number}", "lamp", "seller", price):
                assert not gone if price == self.prices[0] else self.unlisted, price
                self.bought.append((f"buyer {client.number}", price))

    async def seller(self, client: Client) -> None:
        market = self.market(client.kit)
        if await market.unlist("lamp", "seller"):
            self.unlisted = True
            await market.list("lamp", "seller", self.prices[1])
            assert await market.price("lamp", "seller") in (None, self.prices[1])

    def at_end(self, kit: ShardKit) -> None:
        market = self.market(kit)
        time.sleep(6)
        users = ("seller", "buyer 0", "buyer 1")
        market.transfers.recover(*(f"user/{user.replace(' ', '%20')}" for user in users))
        assert market.total(users, [("lamp", "seller")]) == {"money": 20, "item/lamp": 1}
        assert len(self.bought) <= 1, self.bought
        for user in users[1:]:
            account = market.user(user)
            paid = 10 - account.balances.get("money", 0)
            assert paid in ((5, 7) if "item/lamp" in account.balances else (0,)), account
            assert all(paid == price for who, price in self.bought if who == user)
        assert market.user("seller").balances.get("money", 0) in (0, *self.prices)


COORDINATION: dict[str, type[Protocol]] = {
    "locks": Locks,
    "semaphores": Semaphores,
    "read-write locks": ReadWriteLocks,
    "elections": Elections,
    "quorum locks": QuorumLocks,
    "multi-locks": MultiLocks,
    "latches": Latches,
    "cached functions": CachedFunctions,
    "cached ages": CachedAges,
    "near reads": NearReads,
    "barriers": Barriers,
    "rate limits": RateLimits,
    "transfers": Transferring,
    "markets": Markets,
}
