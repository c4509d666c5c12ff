"""Cached functions: computed once by all processes together, invalidated by key and by tag."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.caching.functions import (
        AsyncCachedFunction as AsyncCachedFunction,
        CachedFunction as CachedFunction,
        Caching as Caching,
        CachingOptions as CachingOptions,
    )
    from shardkit.caching.near import near_copies as near_copies
else:
    __getattr__, __dir__ = lazy_names(__name__)
