"""Django's cache, sessions and tasks over shards: `cache.ShardKitCache`, `sessions`, `tasks`."""
