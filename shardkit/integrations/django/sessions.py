"""Django's sessions over shards: ``SESSION_ENGINE = "shardkit.integrations.django.sessions"``.

As Django's sessions in a cache, under the same keys, with one difference: where the cache ignores
errors, sessions do not. A shard that is away is an error, and no user is logged out by it.
"""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.sessions.backends.cache import SessionStore as CacheSessionStore

from shardkit.integrations.django.cache import ShardKitCache


class SessionStore(CacheSessionStore):
    """A session of Django, in a cache over shards."""

    _cache: Any

    def __init__(self, session_key: str | None = None) -> None:
        super().__init__(session_key)
        if isinstance(self._cache, ShardKitCache):
            self._cache = self._cache.raising()

    def load(self) -> Any:
        """Return the session's data; of one that is gone, an empty dict."""
        # Django's own takes every error for a session that is gone.
        data = self._cache.get(self.cache_key)
        if data is None:
            self._session_key = None
        return data or {}

    async def aload(self) -> Any:
        """Return the session's data; see `load`."""
        return await sync_to_async(self.load)()
