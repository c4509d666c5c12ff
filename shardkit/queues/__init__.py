"""Task queues over shards: waiting, delayed, leased and dead tasks, and workers."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
