"""A cache of Django over the shards of a component; docs/integrations.md has its settings.

Each key lives on the shard of its name; ``get_many`` and the like take one exchange with all shards
concerned. The options and methods that django-redis has mean what they mean there.
Integers are stored as such, so that servers can add to them.
Values are pickled, as by Django's own backend: write access to the servers means running code here.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote

import redis
from asgiref.sync import sync_to_async
from django.core.cache.backends.base import (
    DEFAULT_TIMEOUT,
    BaseCache,
    default_key_func,
    get_key_func,
)
from django.core.cache.backends.redis import RedisSerializer
from django.utils.module_loading import import_string

from shardkit import log_records
from shardkit.errors import (
    InvalidArgumentError,
    ShardFailure,
    ShardKitError,
    StructureError,
)
from shardkit.integrations.kits import kit_of
from shardkit.kit.routers import KeyShardedConnection
from shardkit.operations.arguments import LONGEST_WAIT, Seconds, check_number, check_seconds, shown
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
from shardkit.operations.reply_kinds import require_right
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import LONGEST_EXPIRY
from shardkit.structures.codecs.named import is_bounded
from shardkit.structures.codecs.plain import GROWTH, check_growth, most_inflated

logger = logging.getLogger("shardkit.integrations")

_OPTIONS = {"TOPOLOGY", "NAME", "IGNORE_EXCEPTIONS", "LOG_IGNORED_EXCEPTIONS", "SERIALIZER"}
_OPTIONS |= {"COMPRESSOR", "GROWTH", "PICKLE_VERSION", "MAX_ENTRIES", "CULL_FREQUENCY"}
_UNLINKED_AT_ONCE = 1000
_SCANNED_AT_ONCE = 1000


class ShardKitCache(BaseCache):
    """Django's cache backend; see the module's text."""

    def __init__(self, location: str, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        options = params.get("OPTIONS", {})
        own_classes = {"SERIALIZER", "COMPRESSOR"} & set(options)  # may have options, too
        for wrong in () if own_classes else set(options) - _OPTIONS:
            raise InvalidArgumentError(
                f"CACHES: {shown(wrong)} is no option of ShardKitCache",
                f"remove it, or use one of {', '.join(sorted(_OPTIONS))}",
            )
        if not isinstance(location, str):
            raise InvalidArgumentError(
                f"CACHES: LOCATION={shown(location)}", "name one component, whose servers a map has"
            )
        self._component = location
        self._topology: str | None = options.get("TOPOLOGY")
        self._name: str = options.get("NAME", "cache")
        self._ignore = bool(options.get("IGNORE_EXCEPTIONS", False))
        self._log = bool(options.get("LOG_IGNORED_EXCEPTIONS", False))
        self._serializer = _created(options.get("SERIALIZER"), options) or RedisSerializer()
        self._compressor = _created(options.get("COMPRESSOR"), options)
        self._growth = check_growth(f"CACHES: {location}", options.get("GROWTH", GROWTH))
        reverse = params.get("REVERSE_KEY_FUNCTION")
        self._reverse_key = get_key_func(reverse) if reverse else None

    def raising(self) -> ShardKitCache:
        """Return this cache as one that ignores no errors; for sessions."""
        strict = copy.copy(self)
        strict._ignore = False
        return strict

    # ---- Django's methods

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """Set a value if there is none; return whether it was set."""
        return self.set(key, value, timeout, version, nx=True)

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """Return a value, or the default."""
        reply = self._one(self._command("GET", self._key(key, version)), None)
        return default if reply is None else self._load(reply)

    def set(
        self,
        key: Any,
        value: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
        *,
        nx: bool = False,
        xx: bool = False,
    ) -> bool:
        """Set a value, with ``nx`` if there is none, with ``xx`` if there is; return whether."""
        stored, seconds = self._key(key, version), self._seconds(timeout)
        if seconds == 0 and nx:
            return not self.has_key(key, version)
        conditions = ["NX"] * nx + ["XX"] * xx
        return bool(self._one(self._set(stored, value, seconds, *conditions), None))

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
        """Add to an integer, or raise ValueError. One exchange, three beyond 64 bits."""
        if not isinstance(delta, int):
            raise ValueError(f"delta={delta!r} is not an integer")
        stored = self._key(key, version)

        def call(name: str, *args: Argument) -> Any:
            request = script_call(self._component, script(name), [stored], args)
            return self._one(request, None, _incremented)

        while True:
            reply = call("integrations/cache_incr", int(delta))
            if reply is None:
                raise ValueError(f"Key {key!r} not found")
            if isinstance(reply, int):
                return reply
            [old] = reply
            value = self._load(old)
            if type(value) is not int:
                raise ValueError(f"{key!r} is not an integer")
            if call("integrations/replace", old, value + delta, "KEEPTTL"):
                return value + delta

    def get_or_set(
        self,
        key: Any,
        default: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: int | None = None,
    ) -> Any:
        """Return a value, which one caller of all processes computes. One exchange, or seven."""
        value = self.get(key, self._missing_key, version)
        if value is not self._missing_key:
            return value
        if not callable(default) or self._seconds(timeout) == 0:
            return super().get_or_set(key, default, timeout, version)
        lock = kit_of(self._topology).lock(
            quote(self._key(key, version)),  # without braces
            component=self._component,
            kind="cache_lock",
            blocking_timeout=None,
            reentrant=True,
        )
        try:
            lock.acquire()
        except ShardKitError as error:
            self._ignored(error)
            return default()
        try:
            return super().get_or_set(key, default, timeout, version)
        finally:
            with suppress(ShardKitError):  # it expires
                lock.release()
                self._run([self._command("EXPIRE", lock.key, 60)], 0)  # not one for each, for days

    def incr_version(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Return the version to which a value is moved, or raise ValueError if there is none."""
        version = self.version if version is None else version
        old, new = self._key(key, version), self._key(key, version + delta)
        commands = (self._command("GET", old), self._command("PTTL", old))
        data, left = self._one(Transaction(self._component, old, commands), [None, 0])
        if data is None:
            raise ValueError(f"Key {key!r} not found")
        expiry = () if left < 0 else ("PX", max(1, left))
        self._one(self._command("SET", new, data, *expiry), None)
        self._one(self._command("UNLINK", old), 0)
        return version + delta

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """Return the values that there are, by key."""
        names = {self._key(key, version): key for key in keys}
        batch = [self._command("GET", stored) for stored in names]
        rows = zip(names.values(), self._run(batch, None), strict=True)
        return {key: self._load(value) for key, value in rows if value is not None}

    def set_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[Any]:
        """Set values; return the keys of those that could not be set."""
        seconds = self._seconds(timeout)
        batch = [self._set(self._key(key, version), value, seconds) for key, value in data.items()]
        replies = self._run(batch, None)
        return [key for key, reply in zip(data, replies, strict=True) if reply is None]

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """Delete values."""
        batch = [self._command("UNLINK", self._key(key, version)) for key in keys]
        self._run(batch, 0)

    def clear(self) -> bool:
        """Delete all values of this cache, of every version; other keys of the component stay.

        A cache with a KEY_FUNCTION deletes all keys that start with its NAME and a colon.

        Cost: a scan of every shard.
        """
        pattern = _literal(f"{self._name}:") + "*"
        if self.key_func is default_key_func:  # with a version of any name
            pattern = _literal(f"{self._name}:{self.key_prefix}:") + "[^:]*"
        return self._unlinked(pattern) is not None

    # ---- django-redis's

    def delete_pattern(
        self,
        pattern: str,
        version: int | None = None,
        prefix: str | None = None,
        *,
        itersize: int = _SCANNED_AT_ONCE,
    ) -> int:
        """Delete the values whose keys match a pattern, ``user:*``; return how many.

        ``version`` and ``prefix`` are the cache's by default; ``itersize`` is the number of keys
        that a server looks at in one exchange, at most 1,000.

        Cost: a scan of every shard; so for the other methods with patterns.
        """
        return self._unlinked(self._pattern(pattern, version, prefix), itersize) or 0

    def keys(self, search: str, version: int | None = None) -> list[str]:
        """Return the keys that match a pattern, as they were given to this cache."""
        return list(self.iter_keys(search, version=version))

    def iter_keys(
        self, search: str, itersize: int = _SCANNED_AT_ONCE, *, version: int | None = None
    ) -> Iterator[str]:
        """Yield the keys that match a pattern; of a KEY_FUNCTION, by the REVERSE_KEY_FUNCTION."""
        start = self.key_func("", self.key_prefix, self.version if version is None else version)
        try:
            for stored in self._scan(self._pattern(search, version), itersize):
                key = key_bytes(stored).decode().removeprefix(f"{self._name}:")
                yield self._reverse_key(key) if self._reverse_key else key.removeprefix(start)
        except (redis.RedisError, ShardKitError) as error:
            self._ignored(error)

    def ttl(self, key: Any, version: int | None = None) -> int | None:
        """Return the seconds until a value expires; None if it does not, 0 if there is none."""
        return self._left("TTL", key, version)

    def pttl(self, key: Any, version: int | None = None) -> int | None:
        """Return the milliseconds likewise."""
        return self._left("PTTL", key, version)

    def expire(self, key: Any, timeout: Seconds, version: int | None = None) -> bool:
        """Have a value expire in ``timeout`` seconds; return whether there is one."""
        milliseconds = round(1000 * self._time(timeout))
        return bool(self._one(self._command("PEXPIRE", self._key(key, version), milliseconds), 0))

    def pexpire(self, key: Any, timeout: float, version: int | None = None) -> bool:
        """Likewise, in ``timeout`` milliseconds."""
        milliseconds = check_number(self._name, "timeout", timeout, -(2**40), 2**40)
        return self.expire(key, milliseconds / 1000, version)

    def expire_at(self, key: Any, when: datetime | float, version: int | None = None) -> bool:
        """Likewise, at a time: a datetime, or Unix time in seconds."""
        seconds = when.timestamp() if isinstance(when, datetime) else self._time(when)
        return self.pexpire_at(key, 1000 * seconds, version)

    def pexpire_at(self, key: Any, when: datetime | float, version: int | None = None) -> bool:
        """Likewise, at a time: a datetime, or Unix time in milliseconds."""
        if isinstance(when, datetime):
            return self.expire_at(key, when, version)
        milliseconds = round(check_number(self._name, "when", when, 0, 2**48))
        return bool(self._one(self._command("PEXPIREAT", self._key(key, version), milliseconds), 0))

    def persist(self, key: Any, version: int | None = None) -> bool:
        """Have a value not expire; return whether there is one that would have."""
        return bool(self._one(self._command("PERSIST", self._key(key, version)), 0))

    def lock(
        self,
        key: Any,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking_timeout: float | None = None,
        *,
        thread_local: bool = True,
    ) -> Any:
        """Return redis-py's lock, on the shard of the key; ``kit.lock`` has more guarantees."""
        kit, stored = kit_of(self._topology), self._key(key, version)
        client = kit.client(*kit.component(self._component).shard_of(stored))
        return client.lock(
            stored, timeout, sleep, blocking_timeout=blocking_timeout, thread_local=thread_local
        )

    def _key(self, key: Any, version: int | None) -> str:
        return f"{self._name}:{self.make_and_validate_key(key, version=version)}"

    def _pattern(self, pattern: str, version: int | None, prefix: str | None = None) -> str:
        prefix = self.key_prefix if prefix is None else prefix
        wanted = str(self.version if version is None else version)
        made_key = self.key_func(pattern, _literal(prefix), _literal(wanted))
        return f"{_literal(self._name)}:{made_key}"

    def _router(self) -> KeyShardedConnection:
        return kit_of(self._topology).key_sharded(self._component)

    def _scan(self, pattern: str, at_once: int) -> Iterator[Any]:
        return self._router().scan_iter(pattern, min(at_once, _SCANNED_AT_ONCE))

    def _unlinked(self, pattern: str, at_once: int = _SCANNED_AT_ONCE) -> int | None:
        """Delete what matches; return how many keys, None if an error was ignored."""
        try:
            matching = pages(self._scan(pattern, at_once), _UNLINKED_AT_ONCE)
            return sum(self._router().unlink(*page) for page in matching)
        except (redis.RedisError, ShardKitError) as error:
            self._ignored(error)
            return None

    def _left(self, command: str, key: Any, version: int | None) -> int | None:
        left = int(self._one(self._command(command, self._key(key, version)), -2))
        return None if left == -1 else max(0, left)

    def _time(self, timeout: Seconds) -> float:
        return check_seconds(self._name, "timeout", timeout, -LONGEST_WAIT, LONGEST_EXPIRY)

    def _seconds(self, timeout: Any) -> int | None:
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return None if timeout is None else max(0, int(self._time(timeout)))

    def _command(self, name: str, stored: str, *args: Argument) -> Command:
        return Command(self._component, stored, (name, stored, *args))

    def _set(self, stored: str, value: Any, seconds: int | None, *conditions: str) -> Command:
        data = self._dump(value)  # also of a value that is not kept: it must be one that can be
        if seconds == 0:
            return self._command("UNLINK", stored)
        expiry = () if seconds is None else ("EX", seconds)
        return self._command("SET", stored, data, *conditions, *expiry)

    def _dump(self, value: Any) -> Any:
        if type(value) is int:
            return value
        data = self._serializer.dumps(value)
        if self._compressor is None:
            return data
        packed = self._compressor.compress(data)
        is_readable = len(data) <= most_inflated(len(packed), self._growth)
        return packed if is_readable or is_bounded(packed, self._growth) else data

    def _load(self, stored: bytes) -> Any:
        with suppress(ValueError):
            return int(stored)
        if self._compressor is not None:
            if not is_bounded(stored, self._growth):
                raise StructureError(
                    f"cache {self._component}: a value would become more than {self._growth} times "
                    "its stored bytes",
                    "set it again, or, if it is yours, set a larger GROWTH",
                )
            with suppress(Exception):  # django-redis's leave short values as they are
                stored = self._compressor.decompress(stored)
        return self._serializer.loads(stored)

    def _one(self, request: Command | Transaction, missing: Any, read: Any = None) -> Any:
        return self._run([request], missing, read)[0]

    def _run(self, batch: list[Any], missing: Any, read: Any = None) -> list[Any]:
        """Send a batch; return its replies as ``read`` converts them.

        Raise failures; where they are ignored, return ``missing`` in their places.
        """
        replies = [missing] * len(batch)

        def steps() -> Operation[None]:
            answers = yield Partial(batch)
            require_right(batch, answers)
            answers = Replies(map(read, answers) if read else answers)
            replies[:] = [missing if _has_failed(answer) else answer for answer in answers]
            raise_failures(answers, own=False)

        if batch:
            try:
                kit_of(self._topology).driver.run(steps())
            except ShardKitError as error:
                self._ignored(error)
        return replies

    def _ignored(self, error: Exception) -> None:
        if not self._ignore:
            raise error
        if self._log:
            about = log_records.fields(
                "cache-error-ignored", component=self._component, cause=str(error)
            )
            logger.error("cache %s: ignored: %s", self._component, error, extra=about)


def _incremented(reply: Any) -> Any:
    """Return the new integer; the stored value in a list if the server cannot add to it."""
    if isinstance(reply, list):
        [old] = reply
        return [memoryview(old).tobytes()]
    return reply if reply is None or isinstance(reply, ShardFailure) else int(reply)


def _awaited(name: str) -> Any:
    async def call(self: ShardKitCache, *args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(getattr(self, name))(*args, **kwargs)

    return call


# Django's own make several calls of each of these.
_ONE_CALL = ("get_many", "set_many", "delete_many", "has_key", "get_or_set", "incr", "incr_version")
for _name in _ONE_CALL:
    setattr(ShardKitCache, f"a{_name}", _awaited(_name))


def _has_failed(reply: Any) -> bool:
    several = reply if isinstance(reply, list) else [reply]
    return any(isinstance(error, ShardFailure) for error in several)


def _literal(text: str) -> str:
    """Return a pattern that matches this text only."""
    return "".join(f"\\{sign}" if sign in "*?[]\\" else sign for sign in text)


def _created(what: str | Callable[..., Any] | None, options: Mapping[str, Any]) -> Any:
    """Return an object of a class that is given by its dotted path."""
    if what is None:
        return None
    factory: Any = import_string(what) if isinstance(what, str) else what
    try:
        return factory() if callable(factory) else factory
    except TypeError:  # django-redis's take the options
        return factory(options)
