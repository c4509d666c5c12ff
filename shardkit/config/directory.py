"""Named configuration of any type, beside the entries: ``config:<type>:<component>``.

::

    config:flags:checkout   {"new_basket": true}      a STRING holding a JSON object

The config server is the directory from which every process learns what it needs to know. An object
is read about once in ``wait`` seconds and process; while the server is away or holds something
broken, the last good one is given, and that is logged once. Entries, of type ``redis``, are written
by a push of a shard map, which checks them together.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from redis.exceptions import RedisError

from shardkit.config.component import check_name
from shardkit.config.entry import load_json
from shardkit.config.problem import invalid
from shardkit.errors import ConfigError, ConfigServerError, InvalidEntryError, MissingEntryError

logger = logging.getLogger("shardkit")

_OURS = ("redis", "shards")


def directory_key(kind: str, component: str) -> str:
    """Return the key of an object: ``config:flags:checkout``.

    Raises:
        ConfigError: the type or the component cannot be part of a key.
    """
    if not isinstance(kind, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", kind):
        raise ConfigError(f"type {kind!r} cannot be used", "use letters, digits, '_', '-' and '.'")
    problems = list(check_name(component, "component"))
    if problems:
        raise invalid(problems)
    return f"config:{kind}:{component}"


class _Known:
    """What was read, and how it is judged; shared by both directories."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Any]] = {}
        self._troubled: set[str] = set()

    def _fresh(self, key: str, wait: float) -> Any:
        kept = self._kept.get(key)
        if kept is not None and self._clock() < kept[0] + wait:
            return copy.deepcopy(kept[1])  # the caller's own, to change as he likes
        return None

    def _read(self, key: str, text: Any) -> Any:
        if text is None:
            self._forget(key)
            raise MissingEntryError(f"{key} is missing", "set it, or name another component")
        value = load_json(text, key)
        if not isinstance(value, dict):
            raise InvalidEntryError(f"{key} holds no JSON object", "set it again")
        with self._lock:
            self._kept[key] = self._clock(), value
            self._troubled.discard(key)
        return copy.deepcopy(value)

    def _last_good(self, key: str, error: Exception) -> Any:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept[key] = self._clock(), kept[1]  # not asked again before its time
            is_news = key not in self._troubled
            self._troubled.add(key)
        if kept is not None:
            if is_news:
                logger.warning("%s keeps its last good value: %s", key, error)
            return copy.deepcopy(kept[1])
        if isinstance(error, ConfigError):
            raise error
        raise ConfigServerError(f"{key} cannot be read: {error}", "start the config server")

    def _forget(self, key: str) -> None:
        with self._lock:
            self._kept.pop(key, None)

    @staticmethod
    def _written(kind: str, component: str, value: Mapping[str, Any]) -> tuple[str, str]:
        key = directory_key(kind, component)
        if kind in _OURS:
            raise ConfigError(f"{key} is an entry", "push a shard map: shardkit config push")
        try:
            if not isinstance(value, Mapping):
                raise TypeError
            return key, json.dumps(dict(value), allow_nan=False)
        except (TypeError, ValueError):
            raise InvalidEntryError(f"{key}: the value is no JSON object", "give a dict") from None


class Directory(_Known):
    """The directory on a config server, blocking. Made by ``kit.directory``.

    Args:
        client: returns the config server's client.
    """

    def __init__(self, client: Callable[[], Any], **options: Any) -> None:
        super().__init__(**options)
        self._client = client

    def get(self, kind: str, component: str, wait: float = 1.0) -> dict[str, Any]:
        """Return an object, read about once in ``wait`` seconds. Cost: one GET, if it is time.

        Raises:
            MissingEntryError: it is not there.
            InvalidEntryError: it was never seen, and is no JSON object.
            ConfigServerError: it was never seen, and the config server is away.
        """
        key = directory_key(kind, component)
        value = self._fresh(key, wait)
        if value is None:
            try:
                value = self._read(key, self._client().get(key))
            except (InvalidEntryError, RedisError, OSError) as error:
                value = self._last_good(key, error)
        return dict(value)

    def set(self, kind: str, component: str, value: Mapping[str, Any]) -> None:
        """Store an object; other processes see it within their ``wait``.

        Raises:
            InvalidEntryError: it is no JSON object.
            ConfigError: it is an entry, which a push writes.
        """
        key, text = self._written(kind, component, value)
        self._client().set(key, text)
        self._forget(key)

    def delete(self, kind: str, component: str) -> bool:
        """Remove an object; return whether it was there."""
        key, _ = self._written(kind, component, {})
        self._forget(key)
        return bool(self._client().delete(key))

    def names(self, kind: str) -> list[str]:
        """List the components that have an object of a type, with SCAN."""
        prefix = directory_key(kind, "x")[:-1]
        found = self._client().scan_iter(match=f"{prefix}*")
        return sorted(key.decode().removeprefix(prefix) for key in found)


class AsyncDirectory(_Known):
    """The directory on a config server, awaiting; see `Directory`."""

    def __init__(self, client: Callable[[], Any], **options: Any) -> None:
        super().__init__(**options)
        self._client = client

    async def get(self, kind: str, component: str, wait: float = 1.0) -> dict[str, Any]:
        """Return an object; see `Directory.get`."""
        key = directory_key(kind, component)
        value = self._fresh(key, wait)
        if value is None:
            try:
                value = self._read(key, await self._client().get(key))
            except (InvalidEntryError, RedisError, OSError) as error:
                value = self._last_good(key, error)
        return dict(value)

    async def set(self, kind: str, component: str, value: Mapping[str, Any]) -> None:
        """Store an object; see `Directory.set`."""
        key, text = self._written(kind, component, value)
        await self._client().set(key, text)
        self._forget(key)

    async def delete(self, kind: str, component: str) -> bool:
        """Remove an object; return whether it was there."""
        key, _ = self._written(kind, component, {})
        self._forget(key)
        return bool(await self._client().delete(key))

    async def names(self, kind: str) -> list[str]:
        """List the components that have an object of a type."""
        prefix = directory_key(kind, "x")[:-1]
        found = [key async for key in self._client().scan_iter(match=f"{prefix}*")]
        return sorted(key.decode().removeprefix(prefix) for key in found)
