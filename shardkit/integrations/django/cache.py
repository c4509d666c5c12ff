"""A cache of Django over the shards of a component.

::

    CACHES = {
        "default": {
            "BACKEND": "shardkit.integrations.django.cache.ShardKitCache",
            "LOCATION": "cache",                      # the component
            "OPTIONS": {
                "TOPOLOGY": "configs/local.yaml",     # or a config server; default: the default kit
                "IGNORE_EXCEPTIONS": True,            # a dead shard is a miss
            },
        }
    }

Each key lives on the shard of its name; ``get_many`` and the like take one exchange with all shards
concerned. The options that django-redis has mean what they mean there: ``IGNORE_EXCEPTIONS``,
``LOG_IGNORED_EXCEPTIONS``, ``SERIALIZER`` and ``COMPRESSOR`` (dotted paths), and the method `ttl`.
Integers are stored as such, so that servers can add to them.
Values are pickled, as by Django's own backend: write access to the servers means running code here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import redis
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache, default_key_func
from django.core.cache.backends.redis import RedisSerializer
from django.utils.module_loading import import_string

from shardkit import log_records
from shardkit.errors import ShardErrors, ShardFailure, ShardKitError
from shardkit.integrations.kits import kit_of
from shardkit.operations.commands import (
    Argument,
    Command,
    Partial,
    Replies,
    Transaction,
    raise_failures,
    script_call,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation, pages

logger = logging.getLogger("shardkit.integrations")

_UNLINKED_AT_ONCE = 1000


class ShardKitCache(BaseCache):
    """Django's cache backend; see the module's text.

    Args:
        location: the component.
        params: Django's settings of this cache.
    """

    def __init__(self, location: str, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        options = params.get("OPTIONS", {})
        self._component = location
        self._topology: str | None = options.get("TOPOLOGY")
        self._name: str = options.get("NAME", "cache")
        self._ignore = bool(options.get("IGNORE_EXCEPTIONS", False))
        self._log = bool(options.get("LOG_IGNORED_EXCEPTIONS", False))
        self._serializer = _made(options.get("SERIALIZER"), options) or RedisSerializer()
        self._compressor = _made(options.get("COMPRESSOR"), options)

    def raising(self) -> ShardKitCache:
        """Return this cache as one that ignores no errors; for sessions."""
        found = ShardKitCache.__new__(ShardKitCache)
        found.__dict__.update(self.__dict__)
        found._ignore = False
        return found

    # ---- Django's methods

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """Set a value if there is none; return whether it was set."""
        stored, seconds = self._key(key, version), self._seconds(timeout)
        if seconds == 0:
            return not self.has_key(key, version)
        args = ("SET", stored, self._dump(value), "NX", *_expiry(seconds))
        return bool(self._one(Command(self._component, stored, args), False))

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """Return a value, or the default."""
        found = self._one(self._command("GET", self._key(key, version)), None)
        return default if found is None else self._load(found)

    def set(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        """Set a value."""
        self._one(self._set(self._key(key, version), value, self._seconds(timeout)), None)

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Change when a value expires; return whether there is one."""
        stored, seconds = self._key(key, version), self._seconds(timeout)
        if seconds is not None:
            return bool(self._one(self._command("EXPIRE", stored, seconds), 0))
        # PERSIST alone replies 0 for a value that does not expire.
        commands = (self._command("PERSIST", stored), self._command("EXISTS", stored))
        return bool(self._one(Transaction(self._component, stored, commands), [0, 0])[1])

    def delete(self, key: Any, version: int | None = None) -> bool:
        """Delete a value; return whether there was one."""
        return bool(self._one(self._command("UNLINK", self._key(key, version)), 0))

    def has_key(self, key: Any, version: int | None = None) -> bool:
        """Return whether there is a value."""
        return bool(self._one(self._command("EXISTS", self._key(key, version)), 0))

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Add to an integer and return it.

        Raises:
            ValueError: there is none, or it or ``delta`` is not an integer.

        Cost: one exchange, three for an integer of more than 64 bits.
        """
        if not isinstance(delta, int):
            raise ValueError(f"delta={delta!r} is not an integer")
        stored = self._key(key, version)

        def call(name: str, *args: Argument) -> Any:
            return self._one(script_call(self._component, script(name), [stored], args), None)

        while True:
            found = call("integrations/cache_incr", delta)
            if found is None:
                raise ValueError(f"Key {key!r} not found")
            if isinstance(found, bytes):
                return int(found)
            [old] = found
            value = self._load(old)
            if type(value) is not int:
                raise ValueError(f"{key!r} is not an integer")
            if call("integrations/cache_replace", old, value + delta):
                return value + delta

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """Return the values that there are, by key."""
        names = {self._key(key, version): key for key in keys}
        batch = [self._command("GET", stored) for stored in names]
        found = self._checked(self._run(batch), [None] * len(batch))
        rows = zip(names.values(), found, strict=True)
        return {key: self._load(value) for key, value in rows if value is not None}

    def set_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[Any]:
        """Set values; return the keys of those that could not be set."""
        seconds = self._seconds(timeout)
        batch = [self._set(self._key(key, version), value, seconds) for key, value in data.items()]
        replies = self._run(batch)
        self._checked(replies, [None] * len(batch))
        rows = zip(data, replies, strict=True)
        return [key for key, reply in rows if isinstance(reply, ShardFailure)]

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """Delete values."""
        batch = [self._command("UNLINK", self._key(key, version)) for key in keys]
        self._checked(self._run(batch), [0] * len(batch))

    def clear(self) -> bool:
        """Delete all values of this cache, of every version; other keys of the component stay.

        A cache with a KEY_FUNCTION deletes all keys that start with its NAME and a colon.

        Cost: a scan of every shard.
        """
        kit = kit_of(self._topology)
        try:
            component = kit.component(self._component)
            mine = _literal(f"{self._name}:") + "*"
            if self.key_func is default_key_func:  # with a version of any name
                mine = _literal(f"{self._name}:{self.key_prefix}:") + "[^:]*"
            shards: list[int | None] = [*range(len(component.shards))] or [None]
            for shard in shards:
                client: Any = kit.client(self._component, shard)
                for page in pages(client.scan_iter(match=mine, count=1000), _UNLINKED_AT_ONCE):
                    pipe = client.pipeline(transaction=False)
                    for stored in page:  # one by one, as a cluster has them in many slots
                        pipe.unlink(stored)
                    pipe.execute()
        except (redis.RedisError, ShardKitError) as error:
            if not self._ignore:
                raise
            self._ignored(error)
            return False
        return True

    # ---- django-redis's

    def ttl(self, key: Any, version: int | None = None) -> int | None:
        """Return the seconds until a value expires; None if it does not, 0 if there is none."""
        found = int(self._one(self._command("TTL", self._key(key, version)), -2))
        return None if found == -1 else max(0, found)

    # ---- what these share

    def _key(self, key: Any, version: int | None) -> str:
        return f"{self._name}:{self.make_and_validate_key(key, version=version)}"

    def _seconds(self, timeout: Any) -> int | None:
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return None if timeout is None else max(0, int(timeout))

    def _command(self, name: str, stored: str, *args: Argument) -> Command:
        return Command(self._component, stored, (name, stored, *args))

    def _set(self, stored: str, value: Any, seconds: int | None) -> Command:
        data = self._dump(value)  # also of a value that is not kept: it must be one that can be
        if seconds == 0:
            return self._command("UNLINK", stored)
        return self._command("SET", stored, data, *_expiry(seconds))

    def _dump(self, value: Any) -> Argument:
        if type(value) is int:
            return value
        data: Argument = self._serializer.dumps(value)
        return data if self._compressor is None else self._compressor.compress(data)

    def _load(self, stored: bytes) -> Any:
        with suppress(ValueError):
            return int(stored)
        if self._compressor is not None:
            with suppress(Exception):  # django-redis's leave short values as they are
                stored = self._compressor.decompress(stored)
        return self._serializer.loads(stored)

    def _one(self, request: Command | Transaction, missing: Any) -> Any:
        return self._checked(self._run([request]), [missing])[0]

    def _run(self, batch: list[Any]) -> list[Any]:
        """Send a batch; failures are among the replies."""
        if not batch:
            return []

        def steps() -> Operation[list[Any]]:
            return (yield Partial(batch))  # type: ignore[no-any-return]

        try:
            return kit_of(self._topology).driver.run(steps())
        except ShardKitError as error:
            if not self._ignore:
                raise
            return [ShardFailure(error.message, error.remedy)] * len(batch)

    def _checked(self, replies: list[Any], missing: list[Any]) -> list[Any]:
        """Return replies; those that failed as missing, or raise, as it is set."""
        failed = Replies(replies)
        try:
            raise_failures(failed, own=False)
        except ShardErrors as errors:
            if not self._ignore:
                raise
            self._ignored(errors)
            return [
                instead if _has_failed(reply) else reply
                for reply, instead in zip(replies, missing, strict=True)
            ]
        return replies

    def _ignored(self, error: Exception) -> None:
        if self._log:
            about = log_records.fields(
                "cache-error-ignored", component=self._component, cause=str(error)
            )
            logger.error("cache %s: ignored: %s", self._component, error, extra=about)


def _has_failed(reply: Any) -> bool:
    several = reply if isinstance(reply, list) else [reply]
    return any(isinstance(each, ShardFailure) for each in several)


def _expiry(seconds: int | None) -> tuple[Argument, ...]:
    return () if seconds is None else ("EX", seconds)


def _literal(text: str) -> str:
    """Return a pattern that matches this text only."""
    return "".join(f"\\{sign}" if sign in "*?[]\\" else sign for sign in text)


def _made(what: str | Callable[..., Any] | None, options: Mapping[str, Any]) -> Any:
    """Return an object of a class that is given by its dotted path."""
    if what is None:
        return None
    found: Any = import_string(what) if isinstance(what, str) else what
    try:
        return found() if callable(found) else found
    except TypeError:  # django-redis's take the options
        return found(options)
