"""The four ways of the market that the benchmark compares keep the same rules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis.exceptions import WatchError

import shardkit
from shardkit import ShardMap
from shardkit.errors import InvalidArgumentError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from coordination.markets import MARKETS
from coordination.touches import WAYS, touches
from coordination.workers import LOCK_ON_SOCKET, SHARE_ON_SOCKET, pairs_of


@pytest.fixture(params=list(MARKETS))
def way(
    request: pytest.FixtureRequest, shard_map: ShardMap, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    entry = shard_map.components["one"].entry
    assert entry is not None
    with ExitStack() as kits:
        connect = shardkit.connect
        monkeypatch.setattr(shardkit, "connect", lambda *args: kits.enter_context(connect(*args)))
        yield lambda: MARKETS[request.param](int(entry.fields["port"]))


def test_every_way_keeps_the_rules(way: Any) -> None:
    market = way()
    market.deposit("c", 0, ["a.b", "ring"])
    market.deposit("b.c", 0, ["a"])
    market.deposit("bill", 100)
    assert market.list("a.b", "c", 7) is True
    assert market.list("a", "b.c", 8) is True  # not the same offer
    assert market.list("a.b", "c", 1) is None
    assert market.list("sword", "c", 1) is None
    assert market.purchase("bill", "a.b", "c", 8) is None  # it has another price
    assert market.purchase("c", "a.b", "c", 7) is None
    assert market.purchase("nobody", "a.b", "c", 7) is None
    assert market.purchase("bill", "a.b", "c", 7) is True
    assert market.purchase("bill", "a.b", "c", 7) is None
    assert market.list("ring", "c", 0) is True
    assert market.purchase("bill", "ring", "c", 0) is True
    assert market.user("bill") == (93, {"a.b", "ring"})
    assert market.user("c") == (7, set())
    assert market.user("b.c") == (0, set())
    for wrong in (-1, 9.75, True):
        with pytest.raises(
            (ValueError, InvalidArgumentError), match=rf"price={wrong}[:;] give an integer"
        ):
            market.list("a.b", "bill", wrong)
        with pytest.raises(
            (ValueError, InvalidArgumentError), match=rf"price={wrong}[:;] give an integer"
        ):
            market.purchase("bill", "a", "b.c", wrong)


def test_in_every_way_nothing_is_sold_twice_and_no_debts_are_made(way: Any) -> None:
    users = [f"u{n}" for n in range(4)]
    bank = way()
    for user in users:
        bank.deposit(user, 5, [f"{user}-{n}" for n in range(2)])
    items = [f"{user}-{n}" for user in users for n in range(2)]

    def work(seed: int) -> None:
        random, market = Random(seed), way()
        for _ in range(25):
            user, item = random.choice(users), random.choice(items)
            assert market.list(item, user, 2) is not False
            for seller in random.sample(users, 2):
                assert market.purchase(random.choice(users), item, seller, 2) is not False

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(work, n) for n in range(4)]:
            each.result(60)
    for seller in users:  # what is still offered is bought
        for item in items:
            bank.deposit("rich", 2)
            bank.purchase("rich", item, seller, 2)
    found = {user: bank.user(user) for user in (*users, "rich")}
    assert sorted(item for _, owned in found.values() for item in owned) == sorted(items)
    assert sum(money for money, _ in found.values()) == 4 * 5 + 2 * len(users) * len(items)
    assert min(money for money, _ in found.values()) >= 0


def test_a_buyer_that_is_always_too_slow_gives_up_and_is_counted(shard_map: ShardMap) -> None:
    entry = shard_map.components["one"].entry
    assert entry is not None
    market = MARKETS["WATCH"](int(entry.fields["port"]))

    def too_slow(pipe: Any) -> None:
        pipe.watch("market")
        raise WatchError

    assert market.attempts(too_slow, 0.01) is False
    assert market.retries >= 1
    with pytest.raises(KeyError, match="True"):
        market.attempts(lambda pipe: {}[pipe.watch("market")], 1)
    market.redis.zadd("market", {"offer": 1})
    with market.redis.pipeline() as pipe:  # which fails if its connection watches still
        assert pipe.set("x", 1).execute() == [True]


@pytest.mark.parametrize("way", WAYS)
def test_a_touch_does_the_same_in_every_execution(way: str, shard_map: ShardMap) -> None:
    entry = shard_map.components["one"].entry
    assert entry is not None
    client, touch = touches(way, int(entry.fields["port"]))
    for n in range(30):
        touch("t", "ann", f"item{n}")
    touch("t", "ann", None)
    touch("t", "bob", "item29")
    assert client.hget("login:", "t") == b"bob"
    assert client.zcard("viewed:t") == 25
    assert client.zrange("viewed:t", 0, 0) == [b"item5"]
    assert client.zrange("viewed:", 0, 0, withscores=True) == [(b"item29", -2.0)]
    assert client.zcard("viewed:") == 30
    assert client.zscore("recent:", "t") > 0


@pytest.mark.parametrize("way", [LOCK_ON_SOCKET, SHARE_ON_SOCKET])
def test_scripts_on_a_socket_acquire_and_release(way: str, shard_map: ShardMap) -> None:
    entry = shard_map.components["one"].entry
    assert entry is not None
    pairs = [pairs_of(way, int(entry.fields["port"])) for _ in range(2)]
    for pair in (*pairs, *pairs):
        pair()
