"""Credentials that change: of the environment, a file or the application, at each connect.

redis-py asks a connection's ``credential_provider`` whenever it connects. That of an entry asks for
the present entry of the same server, and reads the environment and the file that it names: so
whoever holds a client goes on when a password is rotated. A provider of tokens that expire is given
in Python, for a component (``connect(…, credential_providers={…})``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.credentials import CredentialProvider

from shardkit.config.entry import Entry


class EntryCredentials(CredentialProvider):
    """What an entry says as user and password, its references read anew each time.

    Args:
        present: returns the entry as it is now.
        where: the key that it came from, for error messages.
        part: the field whose credentials these are, ``sentinel``; empty for the entry's own.
    """

    def __init__(self, present: Callable[[], Entry], where: str, part: str = "") -> None:
        self._present = present
        self._where = where
        self._part = part

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user, if one is named, and the password.

        Raises:
            ConfigError: a reference is not in the environment any more.
        """
        fields: dict[str, Any] = self._present().resolved(self._where)
        if self._part:
            fields = fields[self._part]
        user, password = fields.get("username"), fields.get("password") or ""
        return (user, password) if user else (password,)


def credentials_of(
    present: Callable[[], Entry], fields: dict[str, Any], where: str
) -> dict[str, Any]:
    """Return what to add to an entry's resolved fields for its credentials.

    Args:
        present: returns the entry as it is now.
        fields: its resolved fields.
        where: the key that it came from, for error messages.

    Returns:
        ``credentials``, and ``sentinel_credentials`` for those that the Sentinels ask for.
    """
    found: dict[str, Any] = {}
    if fields.get("username") or fields.get("password"):
        found["credentials"] = EntryCredentials(present, where)
    sentinel = fields.get("sentinel", {})
    if sentinel.get("username") or sentinel.get("password"):
        found["sentinel_credentials"] = EntryCredentials(present, where, "sentinel")
    return found
