"""Job search over shards: the jobs all of whose requirements a candidate meets."""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
