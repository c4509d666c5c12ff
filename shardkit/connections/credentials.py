"""Credentials that change: of the environment, a file or the application, at each connect.

redis-py asks a connection's ``credential_provider`` whenever it connects. An entry whose user or
password is a ``${NAME}`` reference, or whose password is in a ``password_file``, gets one that
reads the environment and the file. A provider of tokens that expire is given in Python, for a
component (``connect(…, credential_providers={…})``).
"""

from __future__ import annotations

from typing import Any

from redis.credentials import CredentialProvider

from shardkit.config.entry import Entry
from shardkit.config.url import REFERENCE, read_url

_FIELDS = ("username", "password", "url")


class EntryCredentials(CredentialProvider):
    """What an entry says as user and password, its references read anew each time.

    Args:
        entry: the entry.
        where: the key that it came from, for error messages.
        part: the field whose credentials these are, ``sentinel``; empty for the entry's own.
    """

    def __init__(self, entry: Entry, where: str, part: str = "") -> None:
        self._entry = entry
        self._where = where
        self._part = part

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user, if one is named, and the password.

        Raises:
            ConfigError: a reference is not in the environment any more.
        """
        fields: dict[str, Any] = self._entry.resolved(self._where)
        if self._part:
            fields = fields[self._part]
        user, password = fields.get("username"), fields.get("password") or ""
        return (user, password) if user else (password,)


def credentials_of(entry: Entry, fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Return what to add to an entry's resolved fields where its credentials are references.

    Returns:
        ``credentials``, and ``sentinel_credentials`` for those that the Sentinels ask for.
    """
    found: dict[str, Any] = {}
    changes = _refers(entry.fields) or "password_file" in {**_url(entry), **entry.fields}
    if changes and (fields.get("username") or fields.get("password")):
        found["credentials"] = EntryCredentials(entry, where)
    if _refers(entry.fields.get("sentinel", {})):
        found["sentinel_credentials"] = EntryCredentials(entry, where, "sentinel")
    return found


def _url(entry: Entry) -> dict[str, Any]:
    url = entry.fields.get("url")
    return {} if url is None or REFERENCE.fullmatch(url) else dict(read_url(url))


def _refers(fields: dict[str, Any]) -> bool:
    return any(REFERENCE.search(str(fields.get(name, ""))) for name in _FIELDS)
