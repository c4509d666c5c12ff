"""The market: the rules of listing and buying, exact money, and nothing lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from faces import Face

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError


@pytest.mark.parametrize("component", ["one", "many"])
def test_an_item_is_listed_and_bought(face: Face, component: str) -> None:
    run, market = face.run, face.kit.market(component=component)
    run(market.deposit("frank", 0, ["ring", "sword"]))
    run(market.deposit("bill", 125))
    assert run(market.list("ring", "frank", 97)) is True
    assert run(market.list("ring", "frank", 1)) is None  # there is an offer, and no second ring
    assert run(market.list("shield", "frank", 97)) is None
    assert run(market.price("ring", "frank")) == 97
    assert run(market.purchase("bill", "ring", "frank", 96)) is None  # seen another price
    assert run(market.purchase("frank", "ring", "frank", 97)) is None
    assert run(market.purchase("nobody", "ring", "frank", 97)) is None
    assert run(market.purchase("bill", "ring", "frank", 97)) is True
    assert run(market.purchase("bill", "ring", "frank", 97)) is None
    assert run(market.price("ring", "frank")) is None
    assert run(market.user("bill")).balances == {"money": 28, "item/ring": 1}
    assert run(market.user("frank")).balances == {"money": 97, "item/sword": 1}
    assert run(market.list("sword", "frank", 5)) is True
    assert run(market.unlist("sword", "frank")) is True
    assert run(market.unlist("sword", "frank")) is None
    everything = run(market.total(["bill", "frank"], [("ring", "frank"), ("sword", "frank")]))
    assert everything == {"money": 125, "item/ring": 1, "item/sword": 1}


@pytest.mark.parametrize("component", ["one", "many"])
def test_prices_are_whole_numbers_of_any_size_and_free_is_one(
    kit: ShardKit, component: str
) -> None:
    market = kit.market(component=component)
    huge = 10**17 + 3
    market.deposit("a", 0, ["3", "x"])
    market.deposit("b", huge)
    assert market.list("3", "a", huge)
    assert market.list("x", "a", 0)
    assert market.purchase("b", "x", "a", 0)
    assert market.purchase("b", "3", "a", huge)
    assert market.user("a").balances == {"money": huge}
    assert market.user("b").balances == {"item/3": 1, "item/x": 1}
    for price in (-1, 9.75, True, "5", 10**18 + 1):
        wrong: Any = price
        with pytest.raises(InvalidArgumentError, match="price="):
            market.list("3", "b", wrong)
        with pytest.raises(InvalidArgumentError, match="price="):
            market.purchase("a", "3", "b", wrong)


@pytest.mark.parametrize("name", ["caf\udce9", "", 5])
def test_names_that_are_no_text_are_refused(name: Any, kit: ShardKit) -> None:
    market = kit.market(component="one")
    for call in (
        lambda: market.deposit("ada", 5, [name]),
        lambda: market.total([name]),
        lambda: list(market.check([name])),
        lambda: list(market.check(offers=[(name, "ada")])),
    ):
        with pytest.raises(InvalidArgumentError, match="name="):
            call()


def test_names_cannot_be_taken_for_others(kit: ShardKit) -> None:
    market = kit.market(component="many")
    market.deposit("c", 0, ["a.b", "a/b", "{x}"])
    market.deposit("b.c", 0, ["a"])
    market.deposit("b/c", 0, ["a"])
    for price, (item, seller) in enumerate(
        [("a.b", "c"), ("a", "b.c"), ("a/b", "c"), ("a", "b/c")]
    ):
        assert market.list(item, seller, price)
    assert market.list("{x}", "c", 9)
    assert [
        market.price(*offer) for offer in [("a.b", "c"), ("a", "b.c"), ("a/b", "c"), ("a", "b/c")]
    ] == [0, 1, 2, 3]


@pytest.mark.parametrize("component", ["one", "many"])
def test_nothing_is_sold_twice(kit: ShardKit, component: str) -> None:
    market = kit.market(component=component)
    users = [f"u{n}" for n in range(6)]
    for user in users:
        market.deposit(user, 100, [f"{user}-{n}" for n in range(3)])
    items = [f"{user}-{n}" for user in users for n in range(3)]
    offers = [(item, seller) for item in items for seller in users]

    def work(seed: int) -> int:
        random, bought = Random(seed), 0
        for _ in range(30):
            user, item = random.choice(users), random.choice(items)
            if random.random() < 0.5:
                market.list(item, user, random.randint(0, 60))
            else:
                seller = random.choice(users)
                price = market.price(item, seller)
                if price is not None:
                    bought += market.purchase(user, item, seller, price) is True
        return bought

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(work, n) for n in range(4)]:
            each.result(120)
    everything = market.total(users, offers)
    assert everything == {"money": 600} | {f"item/{item}": 1 for item in items}


def test_an_offer_that_lost_its_price_is_named_and_where_it_is(face: Face, kit: ShardKit) -> None:
    market = face.kit.market(component="one")
    face.run(market.deposit("a", 0, ["x"]))
    assert face.run(market.list("x", "a", 7)) is True
    client: Any = kit.client("one")
    [key] = [key for key in client.scan_iter("market:*") if client.hdel(key, "f:price")]
    with pytest.raises(DamagedDataError, match="1 item without a price") as raised:
        face.run(market.price("x", "a"))
    assert (raised.value.shard, raised.value.key) == ("one", key.decode())


def test_nobody_has_more_money_than_can_be_counted(face: Face) -> None:
    market = face.kit.market(component="one")
    for _ in range(4):
        face.run(market.deposit("midas", 10**18))
    with pytest.raises(InvalidArgumentError, match="the balance of 'midas' would be too large"):
        face.run(market.deposit("midas", 10**18, ["ring"]))
    assert face.run(market.user("midas")).balances == {"money": 4 * 10**18}
