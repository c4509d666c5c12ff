"""What is simulated of locks, semaphores, transfers and markets."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from shardkit import ShardKit
from shardkit.coordination import Hold, Leg, Transfers
from shardkit.errors import LockLostError, LockTimeoutError, StaleTokenError
from shardkit.market import Market
from shardkit.simulation import CLIENTS, NETWORK, Client, Protocol, Register

_ENDED = (LockLostError, LockTimeoutError, StaleTokenError)


class Locks(Protocol):
    """A counter is read and written under a lock.

    No two clients think that they hold it, and as it is guarded, no increment is lost, whoever
    stands still for how long.
    """

    clients = 3
    shards = 1
    faults = (*NETWORK, *CLIENTS, "cancel", "time", "crash")
    appendfsync = "always"
    model = Register(0)

    def setup(self, kit: ShardKit) -> None:
        self.held: list[Hold[Any]] = []

    async def client(self, client: Client) -> None:
        lock = client.kit.lock("l", component="data", ttl=2.0, wait=client.choose((20.0, 3.0)))
        for _ in range(client.choose((1, 2))):
            try:
                async with lock as hold:
                    self.held.append(hold)
                    await self.increment(client, hold)
                    await asyncio.sleep(client.choose((0.0, 3.0)))
            except _ENDED as error:
                client.log(type(error).__name__)

    async def increment(self, client: Client, hold: Hold[Any]) -> None:
        guard: Any = hold.guard("data")
        [count] = await guard.execute(("GET", "n"))  # makes its token known, too

        async def incr() -> int:
            await guard.execute(("SET", "n", int(count or 0) + 1))
            return int(count or 0) + 1

        await client.call(incr)

    def invariant(self, kit: ShardKit) -> None:
        thinking = [hold for hold in self.held if hold.remaining > 0]
        assert len(thinking) <= 1, thinking

    def at_end(self, kit: ShardKit) -> None:
        with kit.lock("l", component="data", ttl=2.0, wait=60.0, renew=False):
            pass


class Semaphores(Locks):
    """At most two clients think that they hold a share; each gets one, in the end."""

    clients = 4
    faults = (*NETWORK, *CLIENTS, "cancel", "time")
    model = None

    async def client(self, client: Client) -> None:
        shares = client.kit.semaphore(
            "s", component="data", limit=2, ttl=2.0, wait=client.choose((20.0, 1.0))
        )
        try:
            async with shares as hold:
                self.held.append(hold)
                await asyncio.sleep(client.choose((0.5, 0.0, 3.0)))
                hold.check()
        except _ENDED as error:
            client.log(type(error).__name__)

    def invariant(self, kit: ShardKit) -> None:
        thinking = [hold for hold in self.held if hold.remaining > 0]
        assert len(thinking) <= 2, thinking

    def at_end(self, kit: ShardKit) -> None:
        shares = kit.semaphore("s", component="data", limit=2, ttl=1.0, wait=60.0, renew=False)
        assert shares.acquire()
        assert shares.acquire()
        assert shares.acquire(wait=0) is None


class Transferring(Protocol):
    """Transfers between accounts on different shards, each of an amount of its own, a power of two.

    So the balances tell which were carried out: all that said so, none that said no, each once, on
    both sides or none. What the accounts have together, read at one moment, never changes.
    """

    clients = 2
    faults = (*NETWORK, *CLIENTS, "cancel", "time", "crash")
    appendfsync = "always"
    shards = 3
    start = 10_000

    def transfers(self, kit: Any) -> Any:
        return Transfers(kit.driver, "data", grace=5.0, monotonic=time.monotonic)

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
        for n in range(2):
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


class Markets(Protocol):
    """Two buyers and a seller who changes his price: sold once, for a price that was asked."""

    faults = (*NETWORK, "kill", "freeze", "time")
    prices = (5, 7)

    def market(self, kit: Any) -> Any:
        market: Market[Any] = kit.market(component="data", grace=5.0)
        market.transfers._monotonic = lambda: time.monotonic()
        return market

    def setup(self, kit: ShardKit) -> None:
        market = self.market(kit)
        market.deposit("seller", 0, ["lamp"])
        market.deposit("buyer 0", 10)
        market.deposit("buyer 1", 10)
        market.list("lamp", "seller", self.prices[0])
        self.bought: list[tuple[str, int]] = []
        self.unlisted = False  # and from then on it can only be bought for the second price

    def client_functions(self) -> Sequence[Callable[[Client], Any]]:
        return [self.buyer, self.buyer, self.seller]

    async def buyer(self, client: Client) -> None:
        market = self.market(client.kit)
        for _ in range(2):
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
    "transfers": Transferring,
    "markets": Markets,
}
