"""Named configuration of any type, beside the entries: ``config:<type>:<component>``, JSON objects.

Each process reads an object about once in ``max_age`` seconds. While the server is down, or holds
something broken, calls return the last good value, and the first one logs why. Entries, of type
``redis``, are written by pushing a shard map, which checks them together.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from shardkit import log_records
from shardkit.config.component import check_name
from shardkit.config.entry import load_json
from shardkit.config.problem import invalid
from shardkit.errors import ConfigError, ConfigServerError, InvalidEntryError, MissingEntryError
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.server_errors import meaning
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.recent import Recent

logger = logging.getLogger("shardkit")

_ENTRY_TYPES = ("redis", "shards", "removed", "pushed", "history")


def directory_key(kind: str, component: str) -> str:
    """Return the key of an object, ``config:flags:checkout``; refuse what cannot be part of one."""
    if not isinstance(kind, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", kind):
        raise ConfigError(f"type {kind!r} cannot be used", "use letters, digits, '_', '-' and '.'")
    problems = list(check_name(component, "component"))
    if problems:
        raise invalid(problems)
    return f"config:{kind}:{component}"


class _DirectoryCache:
    """The values that were read, for both directories; ``client`` returns the server's client."""

    def __init__(
        self, client: Callable[[], Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._clock = clock
        self._lock = ForkSafeLock()
        self._cache: Recent[str, tuple[float, dict[str, Any]]] = Recent()
        self._failing: Recent[str, None] = Recent()  # keys whose failure has been logged

    def _read(
        self, kind: str, component: str, max_age: float
    ) -> Generator[Callable[[], Any], Any, dict[str, Any]]:
        key = directory_key(kind, component)
        client = self._client()  # first: a closed kit has none
        cached = self._cache.get(key)
        if cached is not None and self._clock() < cached[0] + max_age:
            return copy.deepcopy(cached[1])  # the caller's own, to change
        try:
            return self._store(key, (yield partial(client.get, key)))
        except (InvalidEntryError, RedisError, OSError) as error:
            return self._last_good(key, error)

    def _store(self, key: str, text: Any) -> dict[str, Any]:
        if text is None:
            self._forget(key)
            raise MissingEntryError(f"{key} is missing", "set it, or use another component")
        value = load_json(text, key)
        if not isinstance(value, dict):
            raise InvalidEntryError(f"{key} holds no JSON object", "set it again")
        with self._lock:
            self._cache[key] = self._clock(), value
            self._failing.pop(key, None)
        return copy.deepcopy(value)

    def _last_good(self, key: str, error: Exception) -> dict[str, Any]:
        with self._lock:
            cached = self._cache.get(key)
            if cached is not None:
                self._cache[key] = self._clock(), cached[1]  # not read again before ``max_age``
            is_news = key not in self._failing
            self._failing[key] = None
        if cached is not None:
            if is_news:
                about = log_records.fields("object-keeps-value", key=key, cause=str(error))
                logger.warning("%s keeps its last good value: %s", key, error, extra=about)
            return copy.deepcopy(cached[1])
        if isinstance(error, ConfigError):
            raise error
        text, remedy = meaning(error) or (error, "start the config server")
        raise ConfigServerError(f"{key} cannot be read: {text}", remedy)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._cache.pop(key, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._cache)} cached, {len(self._failing)} failing>"


def _writable_key(kind: str, component: str) -> str:
    key = directory_key(kind, component)
    if kind in _ENTRY_TYPES:
        raise ConfigError(f"{key} is an entry", "push a shard map: shardkit config push")
    return key


def _as_json(key: str, value: Mapping[str, Any]) -> str:
    try:
        if not isinstance(value, Mapping):
            raise TypeError
        text = json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidEntryError(f"{key}: the value is no JSON object", "give a dict") from None
    _check_keys(key, value)
    return text


def _check_keys(key: str, value: object) -> None:
    """Refuse keys that JSON turns into text, so that 7 and "7" would become one."""
    inner: Iterable[object] = ()
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise InvalidEntryError(f"{key}: {name!r} is no key of a JSON object", "use text")
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    for entry in inner:
        _check_keys(key, entry)


def _prefix(kind: str) -> str:
    return directory_key(kind, "x")[:-1]


def _components(kind: str, keys: Iterable[bytes]) -> list[str]:
    return sorted(key.decode().removeprefix(_prefix(kind)) for key in keys)


class Directory(_DirectoryCache):
    """The directory on a config server, blocking. Made by ``kit.directory``."""

    def get(self, kind: str, component: str, max_age: float = 1.0) -> dict[str, Any]:
        """Return an object, read about once in ``max_age`` seconds. Cost: one GET, if it is time.

        Raises:
            ClosedError: the kit is closed.
            MissingEntryError: the object is not there.
            InvalidEntryError: it is no JSON object, and this process has no earlier value.
            ConfigServerError: the config server is down, and this process has no earlier value.
        """
        return run_steps(self._read(kind, component, max_age))

    def set(self, kind: str, component: str, value: Mapping[str, Any]) -> None:
        """Store an object; other processes see it within their ``max_age``.

        Raises:
            InvalidEntryError: the value is no JSON object.
            ConfigError: the key is an entry's, which a push writes.
        """
        key = _writable_key(kind, component)
        self._client().set(key, _as_json(key, value))
        self._forget(key)

    def delete(self, kind: str, component: str) -> bool:
        """Remove an object; return whether it was there."""
        key = _writable_key(kind, component)
        self._forget(key)
        return bool(self._client().delete(key))

    def names(self, kind: str) -> list[str]:
        """List the components that have an object of a type, with SCAN."""
        return _components(kind, self._client().scan_iter(match=f"{_prefix(kind)}*"))


class AsyncDirectory(_DirectoryCache):
    """The directory on a config server, awaiting; see `Directory`."""

    async def get(self, kind: str, component: str, max_age: float = 1.0) -> dict[str, Any]:
        """Return an object; see `Directory.get`."""
        return await arun_steps(self._read(kind, component, max_age))

    async def set(self, kind: str, component: str, value: Mapping[str, Any]) -> None:
        """Store an object; see `Directory.set`."""
        key = _writable_key(kind, component)
        await self._client().set(key, _as_json(key, value))
        self._forget(key)

    async def delete(self, kind: str, component: str) -> bool:
        """Remove an object; return whether it was there."""
        key = _writable_key(kind, component)
        self._forget(key)
        return bool(await self._client().delete(key))

    async def names(self, kind: str) -> list[str]:
        """List the components that have an object of a type."""
        keys = [key async for key in self._client().scan_iter(match=f"{_prefix(kind)}*")]
        return _components(kind, keys)
