"""Ad targeting over shards, on the core of search."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
