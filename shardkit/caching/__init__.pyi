from shardkit.caching.functions import (
    AsyncCachedFunction as AsyncCachedFunction,
    CachedFunction as CachedFunction,
    Caching as Caching,
    CachingOptions as CachingOptions,
)
from shardkit.caching.near import near_copies as near_copies
