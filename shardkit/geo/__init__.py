"""IP to city over shards: ranges in blocks, atomic imports, and local copies."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
