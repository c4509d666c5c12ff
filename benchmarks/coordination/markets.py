"""Four ways to run a market: WATCH, one lock for all, a lock for each item, transfers (scripts).

The first three are Redis in Action's, with whole prices and expected prices; the locks are
shardkit's. All have users of ids, and offers in a ZSET; those of transfers are accounts.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import redis
from redis.exceptions import WatchError

import shardkit

# Listers have items, and buyers money, without end: what is counted is the trading.
RICH = 10**15


class _OnServer:
    """What all share: a list that tells buyers what was offered."""

    def __init__(self, port: int) -> None:
        self.redis: Any = redis.Redis(port=port, decode_responses=True)
        self.retries = 0

    def offered(self, item: str, seller: str) -> None:
        self.redis.lpush("offers", f"{item} {seller}")

    def next_offer(self) -> tuple[str, str] | None:
        found = self.redis.rpop("offers")
        return None if found is None else tuple(found.split(" "))


class Watching(_OnServer):
    """Optimistic: WATCH, and again if somebody was faster."""

    def guarded(self, item: str, *users: str) -> AbstractContextManager[Any]:
        """Return what is held while an item or a user is traded."""
        return ExitStack()

    def list(self, item: str, seller: str, price: int) -> bool | None:
        """Offer an item."""
        inventory, member = f"inventory:{seller}", f"{item}.{seller}"
        self.redis.sadd(inventory, item)  # it has just made it
        end = time.time() + 5
        with self.redis.pipeline() as pipe, self.guarded(item, seller):
            while time.time() < end:
                try:
                    pipe.watch(inventory)
                    if not pipe.sismember(inventory, item):
                        return None
                    pipe.multi()
                    pipe.zadd("market", {member: price})
                    pipe.srem(inventory, item)
                    pipe.execute()
                    return True
                except WatchError:
                    self.retries += 1
        return False

    def purchase(self, buyer: str, item: str, seller: str, price: int) -> bool | None:
        """Buy an item."""
        member = f"{item}.{seller}"
        self.redis.hsetnx(f"users:{buyer}", "funds", RICH)
        end = time.time() + 10
        with self.redis.pipeline() as pipe, self.guarded(item, buyer):
            while time.time() < end:
                try:
                    self.watched(pipe, buyer)
                    found = pipe.zscore("market", member)
                    funds = int(pipe.hget(f"users:{buyer}", "funds") or 0)
                    if found is None or found != price or funds < price:
                        return None
                    pipe.multi()
                    pipe.hincrby(f"users:{seller}", "funds", price)
                    pipe.hincrby(f"users:{buyer}", "funds", -price)
                    pipe.sadd(f"inventory:{buyer}", item)
                    pipe.zrem("market", member)
                    pipe.execute()
                    return True
                except WatchError:
                    self.retries += 1
        return False

    def watched(self, pipe: Any, buyer: str) -> None:
        """Watch what a purchase reads, unless a lock protects it."""
        pipe.watch("market", f"users:{buyer}")


class OneLock(Watching):
    """One lock for the whole market."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        where = shardkit.ShardMap.parse(f"components: {{a: {{entry: {{port: {port}}}}}}}")
        self.kit = shardkit.connect(where)

    def guarded(self, item: str, *users: str) -> AbstractContextManager[Any]:
        """Return what is held while an item or a user is traded."""
        return self.kit.lock("market", component="a", wait=30)

    def watched(self, pipe: Any, buyer: str) -> None:
        """Watch what a purchase reads, unless a lock protects it."""
        pipe.watch(f"users:{buyer}")  # what is read must not be queued


class LockForEachItem(OneLock):
    """A lock for the item, and one for the user."""

    def guarded(self, item: str, *users: str) -> AbstractContextManager[Any]:
        """Return what is held while an item or a user is traded."""
        return self.kit.multi_lock([f"item-{item}", *users], component="a", wait=30)


class Scripts(_OnServer):
    """shardkit's market, on one server."""

    MAP = "components: {{a: {{entry: {{port: {port}}}}}}}"

    def __init__(self, port: int) -> None:
        super().__init__(port)
        kit = shardkit.connect(shardkit.ShardMap.parse(self.MAP.format(port=port)))
        self.market = kit.market(component="a")
        self._rich: set[str] = set()

    def list(self, item: str, seller: str, price: int) -> bool | None:
        """Offer an item."""
        self.market.deposit(seller, 0, [item])
        return self.market.list(item, seller, price)

    def purchase(self, buyer: str, item: str, seller: str, price: int) -> bool | None:
        """Buy an item."""
        if buyer not in self._rich:
            self.market.deposit(buyer, RICH)
            self._rich.add(buyer)
        return self.market.purchase(buyer, item, seller, price)


class Sharded(Scripts):
    """The same over four shards: transfers in steps."""

    MAP = (
        "components: {{a: {{shards: {{count: 4, over: [{{port: {port}, db: 1}}, "
        "{{port: {port}, db: 2}}, {{port: {port}, db: 3}}, {{port: {port}, db: 4}}]}}}}}}"
    )


MARKETS = {
    "WATCH": Watching,
    "one lock": OneLock,
    "a lock for each item": LockForEachItem,
    "scripts": Scripts,
    "transfers over 4 shards": Sharded,
}
