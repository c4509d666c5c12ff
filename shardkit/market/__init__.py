"""A market: items that users list and buy, with money that cannot get lost."""

from shardkit.market.market import Market

__all__ = ["Market"]
