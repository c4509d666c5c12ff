"""A social network over shards: users, statuses, followers and timelines."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
