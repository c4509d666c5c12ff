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

import shardkit
from shardkit import ShardMap

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from coordination.markets import MARKETS


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
