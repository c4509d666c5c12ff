"""Credentials that may change: from the environment, a file or the application.

redis-py asks a connection's ``credential_provider`` at each connect. That of an entry reads the
environment and the file that the entry names. So clients stay usable when a password is rotated.
Once an entry has changed, its clients log in as the new one says, if that names the same server.
Other entries that had the same login keep theirs. For tokens that expire, pass a provider for the
component (``connect(…, credential_providers={…})``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.credentials import CredentialProvider

from shardkit.config.entry import Entry


class EntryCredentials(CredentialProvider):
    """The user and password of the current entry, or of its field ``part`` (``sentinel``)."""

    def __init__(self, current: Callable[[], Entry], where: str, part: str = "") -> None:
        self._current = current
        self._where = where
        self._part = part

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user, if one is named, and the password.

        Raises:
            ConfigError: a reference is no longer in the environment.
        """
        fields: dict[str, Any] = self._current().resolved(self._where)
        if self._part:
            fields = fields[self._part]
        user, password = fields.get("username"), fields.get("password") or ""
        return (user, password) if user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return what `get_credentials` returns; redis-py's own method logs a warning."""
        return self.get_credentials()


def credentials_of(
    current: Callable[[], Entry], fields: dict[str, Any], where: str
) -> dict[str, Any]:
    """Return the providers for an entry's resolved fields: for the server and for Sentinels."""
    providers: dict[str, Any] = {}
    if fields.get("username") or fields.get("password"):
        providers["credentials"] = EntryCredentials(current, where)
    sentinel = fields.get("sentinel", {})
    if sentinel.get("username") or sentinel.get("password"):
        providers["sentinel_credentials"] = EntryCredentials(current, where, "sentinel")
    return providers
