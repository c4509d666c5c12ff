"""A market: users list items for whole amounts of money, others buy them.

Each user has an account; an offer has one too, which holds the item and the price. Listing moves
the item from the seller's account to the offer's. Buying moves it to the buyer, and the money to
the seller. Each is one transfer (see `shardkit.coordination.transfers`): one script if the three
accounts live together. Otherwise, after a crash, other processes finish or undo it. So nothing is
sold twice, and no money and no item is lost. Money is exact, up to 10^18. Names of items and users
can be any text.

After Redis in Action, sections 4.4, 6.2 and 11.4.2, whose market loses items when it lists them,
and accepts negative prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from shardkit.coordination.transfers import HIGHEST, Account, Leg, Transfers
from shardkit.errors import InvalidArgumentError, counted
from shardkit.operations.arguments import rows_of, shown
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    stream,
)
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.damage import damage, stored_integer

MONEY = "money"


class Market(Structure[Face]):
    """A market. Made by ``kit.market``.

    Args:
        component: the component; the name of each user and each offer decides its shard.

    Attributes:
        transfers: its accounts; call ``transfers.recover()`` from time to time.
    """

    deferred: DeferredFace[Market[Deferred]]

    def __init__(
        self, driver: Driver, component: str, name: str = "market", **options: Any
    ) -> None:
        super().__init__(driver, component, name)
        self.transfers: Transfers[Any] = Transfers(driver, component, name, **options)

    @operation
    def deposit(self, user: str, money: int = 0, items: Iterable[str] = ()) -> Operation[None]:
        """Give a user money and items from outside.

        Raises:
            InvalidArgumentError: the amount is not an integer, or negative; or there are 2,000
                items or more.

        Cost: one exchange.
        """
        check_integer(self.name, "money", money, 0, HIGHEST)
        changes = {MONEY: money} | {_item(item): 1 for item in items}
        result = yield from Transfers.issue.steps(self.transfers, Leg(_user(user), changes))
        if not result:
            raise InvalidArgumentError(
                f"{self.name}: the balance of {shown(user)} would be too large", "deposit less"
            )

    @operation
    def list(self, item: str, seller: str, price: int) -> Operation[bool | None]:
        """Offer an item for a price.

        Returns:
            True; None if the seller does not have the item, or already offers one; False if others
            undid the call, or kept changing the same offer.

        Raises:
            InvalidArgumentError: the price is not an integer, or negative.
            ShardErrors: a server failed; see `Transfers.transfer`.

        Cost: one exchange if the user and the offer live together, otherwise five; one more for
            None.
        """
        check_integer(self.name, "price", price, 0, HIGHEST)
        offer = Leg(_offer(item, seller), {_item(item): 1}, {"price": None}, {"price": str(price)})
        takes = Leg(_user(seller), {_item(item): -1})
        return (yield from self._carry_out(item, seller, takes, offer))

    @operation
    def unlist(self, item: str, seller: str) -> Operation[bool | None]:
        """Withdraw an offer; results and costs are those of `list`."""
        offer = Leg(_offer(item, seller), {_item(item): -1}, {}, {"price": None})
        item_leg = Leg(_user(seller), {_item(item): 1})
        return (yield from self._carry_out(item, seller, item_leg, offer))

    @operation
    def purchase(self, buyer: str, item: str, seller: str, price: int) -> Operation[bool | None]:
        """Buy an item for the price that the buyer has seen.

        Returns:
            True; None if there is no such offer, its price is different, the buyer has not enough
            money, or is the seller; False as `list`.

        Errors and costs are those of `list`.
        """
        check_integer(self.name, "price", price, 0, HIGHEST)
        if buyer == seller:
            return None
        offer = Leg(_offer(item, seller), {_item(item): -1}, {"price": str(price)}, {"price": None})
        pays = Leg(_user(buyer), {MONEY: -price, _item(item): 1})
        earns = Leg(_user(seller), {MONEY: price})
        return (yield from self._carry_out(item, seller, pays, earns, offer))

    @operation
    def price(self, item: str, seller: str) -> Operation[int | None]:
        """Return the price of an offer; None if there is none.

        Cost: one exchange.
        """
        offer = _offer(item, seller)
        [account] = yield from Transfers.read.steps(self.transfers, offer)
        text = account.fields.get("price")
        key = f"{self.name}:{{{offer}}}"
        count = account.balances.get(_item(item), 0)
        if not account.in_flight and count != (text is not None):
            actual = f"{counted(count, 'item')} {'without' if text is None else 'with'} a price"
            raise damage(self.component, key, actual, "one item with a price, or neither")
        if text is None or not count:
            return None
        return stored_integer(self.component, key, "f:price", text, 0, HIGHEST)

    @operation
    def user(self, user: str) -> Operation[Account]:
        """Return a user's account: ``balances["money"]``, and ``item/…`` for each item.

        Cost: one exchange.
        """
        [account] = yield from Transfers.read.steps(self.transfers, _user(user))
        return account

    @operation
    def total(
        self, users: Iterable[str], offers: Iterable[tuple[str, str]] = ()
    ) -> Operation[dict[str, int]]:
        """Return the sums of users' and offers' money and items; see `Transfers.total`."""
        names = [_user(user) for user in users]
        names += [_offer(*offer) for offer in self._pairs(offers)]
        return (yield from Transfers.total.steps(self.transfers, names))

    @stream
    def check(
        self, users: Iterable[str] = (), offers: Iterable[tuple[str, str]] = ()
    ) -> Stream[Damage]:
        """Return what calls would refuse as damaged; change nothing.

        Offers are pairs of item and seller. Cost: one exchange for each, and those of
        `Transfers.check`.
        """
        pairs = self._pairs(offers)
        yield from check_reads(*(partial(Market.price.steps, self, *pair) for pair in pairs))
        yield from Transfers.check.steps(self.transfers, *map(_user, users))

    def _pairs(self, offers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        return rows_of(self.name, "offers", offers, "(item, seller)", 2, 2)

    def _carry_out(self, item: str, seller: str, *legs: Leg) -> Operation[bool | None]:
        result = yield from Transfers.transfer.steps(self.transfers, *legs)
        if result.done:
            return True
        if result.reason in ("undone", "busy"):
            return False
        yield from Market.price.steps(self, item, seller)  # raises if the offer is damaged
        return None


def _user(user: str) -> str:
    return f"user/{_quoted(user)}"


def _item(item: str) -> str:
    return f"item/{_quoted(item)}"


def _offer(item: str, seller: str) -> str:
    return f"listing/{_quoted(item)}/{_quoted(seller)}"


def _quoted(name: str) -> str:
    """Return a name without braces and slashes, so that no two names have the same key."""
    if isinstance(name, str) and name:
        with suppress(UnicodeEncodeError):
            return quote(name, safe="")
    raise InvalidArgumentError(f"name={shown(name)} of a user or an item", "give text")
