"""A market: items that users list and buy, with money that cannot get lost."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
