"""One market, four ways: WATCH, one lock for all, a lock for each item, transfers (scripts).

The first three are those of Redis in Action (sections 4.4, 6.2 and 11.4.2) without its mistakes:
prices are whole and not negative, the buyer gives the price that he has seen, names cannot be taken
for others, nobody buys from himself, and a lock is held in listing as in buying. The locks are
shardkit's; those of an item and of a user are acquired in one order, so nobody waits in a circle.

Each call answers True; None if a rule refused it; False if the time was over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis
from redis.exceptions import WatchError

import shardkit
from shardkit.errors import LockTimeoutError

LISTING_TIME, BUYING_TIME = 5.0, 10.0
RICH = 10**15


class Watching:
    """Optimistic: WATCH what is read, and begin again if somebody was faster.

    Attributes:
        retries: how often it began again.
    """

    def __init__(self, port: int) -> None:
        self.redis: Any = redis.Redis(port=port, decode_responses=True)
        self.retries = 0

    def deposit(self, user: str, money: int, items: Iterable[str] = ()) -> None:
        """Give a user money and items from outside."""
        with self.redis.pipeline() as pipe:
            pipe.hincrby(f"users:{user}", "funds", money)
            for item in items:
                pipe.sadd(f"inventory:{user}", item)
            pipe.execute()

    def user(self, user: str) -> tuple[int, set[str]]:
        """Return a user's money and items."""
        money = self.redis.hget(f"users:{user}", "funds")
        return int(money or 0), set(self.redis.smembers(f"inventory:{user}"))

    def list(self, item: str, seller: str, price: int) -> bool | None:
        """Offer an item."""
        check_price(price)
        inventory, offer = f"inventory:{seller}", offer_of(item, seller)

        def attempt(pipe: Any) -> bool | None:
            pipe.watch(inventory, "market")
            if not pipe.sismember(inventory, item) or pipe.zscore("market", offer) is not None:
                return None
            pipe.multi()
            pipe.zadd("market", {offer: price})
            pipe.srem(inventory, item)
            pipe.execute()
            return True

        return self.attempts(attempt, LISTING_TIME, item, seller)

    def purchase(self, buyer: str, item: str, seller: str, price: int) -> bool | None:
        """Buy an item for the price that the buyer has seen."""
        check_price(price)
        offer = offer_of(item, seller)
        if buyer == seller:
            return None

        def attempt(pipe: Any) -> bool | None:
            pipe.watch("market", f"users:{buyer}")
            found = pipe.zscore("market", offer)
            funds = int(pipe.hget(f"users:{buyer}", "funds") or 0)
            if found is None or found != price or funds < price:
                return None
            pipe.multi()
            pipe.hincrby(f"users:{seller}", "funds", price)
            pipe.hincrby(f"users:{buyer}", "funds", -price)
            pipe.sadd(f"inventory:{buyer}", item)
            pipe.zrem("market", offer)
            pipe.execute()
            return True

        return self.attempts(attempt, BUYING_TIME, item, buyer)

    def attempts(
        self, attempt: Callable[[Any], bool | None], seconds: float, *concerned: str
    ) -> bool | None:
        """Attempt it until nobody was faster, or the time is over."""
        end = time.monotonic() + seconds
        with self.redis.pipeline() as pipe:
            while time.monotonic() < end:
                try:
                    return attempt(pipe)
                except WatchError:
                    self.retries += 1
        return False


class _Unwatched:
    """A pipeline under a lock: what is read need not be watched, only not be queued."""

    def __init__(self, client: Any, pipe: Any) -> None:
        self.zscore, self.hget, self.sismember = client.zscore, client.hget, client.sismember
        self.zadd, self.zrem, self.sadd, self.srem = pipe.zadd, pipe.zrem, pipe.sadd, pipe.srem
        self.hincrby, self.execute = pipe.hincrby, pipe.execute

    def watch(self, *keys: str) -> None:
        pass

    multi = watch


class OneLock(Watching):
    """One lock for the whole market."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        where = shardkit.ShardMap.parse(f"components: {{a: {{entry: {{port: {port}}}}}}}")
        self.kit = shardkit.connect(where)

    def attempts(
        self, attempt: Callable[[Any], bool | None], seconds: float, *concerned: str
    ) -> bool | None:
        """Attempt it once, under the lock."""
        try:
            with self.lock(seconds, *concerned), self.redis.pipeline() as pipe:
                return attempt(_Unwatched(self.redis, pipe))
        except LockTimeoutError:
            return False

    def lock(self, wait: float, item: str, user: str) -> Any:
        """Return what is held in a trade."""
        return self.kit.lock("market", component="a", blocking_timeout=wait)


class LockForEachItem(OneLock):
    """A lock for the item, and one for the user whose money or items are read."""

    def lock(self, wait: float, item: str, user: str) -> Any:
        """Return what is held in a trade."""
        names = [f"item-{json.dumps(item)}", f"user-{json.dumps(user)}"]
        return self.kit.multi_lock(names, component="a", blocking_timeout=wait)


class Scripts:
    """shardkit's market on one server: a script for each call."""

    MAP = "components: {{a: {{entry: {{port: {port}}}}}}}"
    retries = 0

    def __init__(self, port: int) -> None:
        kit = shardkit.connect(shardkit.ShardMap.parse(self.MAP.format(port=port)))
        self.market = kit.market(component="a")
        self.deposit, self.list, self.purchase = (
            *(self.market.deposit, self.market.list),
            self.market.purchase,
        )

    def user(self, user: str) -> tuple[int, set[str]]:
        """Return a user's money and items."""
        found = self.market.user(user).balances
        items = {name.removeprefix("item/") for name in found if name.startswith("item/")}
        return found.get("money", 0), items


class Sharded(Scripts):
    """The same over four shards: transfers in steps."""

    MAP = (
        "components: {{a: {{shards: {{count: 4, over: [{{port: {port}, db: 1}}, "
        "{{port: {port}, db: 2}}, {{port: {port}, db: 3}}, {{port: {port}, db: 4}}]}}}}}}"
    )


def check_price(price: int) -> None:
    """Refuse what would make money; scores of sorted sets are exact up to 2^53."""
    if type(price) is not int or not 0 <= price <= 2**53:
        raise ValueError(f"price={price!r}: give an integer, 0 to 2^53")


def offer_of(item: str, seller: str) -> str:
    """Return the member of an offer, which no two offers share."""
    return json.dumps([item, seller])


MARKETS = {
    "WATCH": Watching,
    "one lock": OneLock,
    "a lock for each item": LockForEachItem,
    "scripts": Scripts,
    "transfers over 4 shards": Sharded,
}
