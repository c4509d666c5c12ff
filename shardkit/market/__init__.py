"""A market: items that users list and buy, with money that cannot get lost."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.market.market import Market as Market
else:
    __getattr__, __dir__ = lazy_names(__name__)
