"""Django's cache and sessions over shards: `cache.ShardKitCache` and `sessions`."""
