"""Full-text search over shards: documents whole on one shard, queries sent to all."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
