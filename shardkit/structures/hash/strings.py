"""Many short STRINGs of one namespace, as fields of a sharded hash.

::

    SET user:139960 abc  ──►  user:strings:1093   HASH   {56: abc, …}    field 139960, 128 to a part

Its keys differ from those of the strings it replaces, so both can exist while strings are copied.
docs/hash.md has the figures, and the commands that are not available.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Key
from shardkit.operations.operation import Deferred, Driver, Face, Operation, Structure, operation
from shardkit.structures.base.arguments import check_some, list_or_args
from shardkit.structures.hash.sharded_hash import ShardedHash, V


class ShardedStrings(Structure[Face], Generic[Face, V]):
    """The strings of one namespace. Made by ``kit.strings``.

    Its methods are those of redis-py; a ``name`` is a string's key without the namespace,
    ``fields`` the hash that stores them. Every operation costs one exchange, and one more the first
    time; errors are those of `ShardedHash`.
    """

    def __init__(self, driver: Driver, name: str, fields: ShardedHash[Any, Any, V]) -> None:
        super().__init__(driver, fields.component, name)
        self._fields: ShardedHash[Deferred, Any, V] = fields.deferred

    @operation
    def set(
        self,
        name: Key,
        value: Any,
        ex: int | timedelta | None = None,
        px: int | timedelta | None = None,
        nx: bool = False,
        xx: bool = False,
        keepttl: bool = False,
        *,
        exat: int | datetime | None = None,
        pxat: int | datetime | None = None,
    ) -> Operation[bool | None]:
        """Set a string; return True, or None if it was not set.

        With ``nx`` only if it does not exist, with ``xx`` only if it exists. The times, of which at
        most one is given, and the servers that know them, are those of `ShardedHash.hsetex`; ``xx``
        needs the same servers.
        """
        if nx and xx:
            raise InvalidArgumentError(f"{self.name}: nx and xx exclude each other", "give one")
        if not (xx or keepttl) and ex is px is exat is pxat is None:
            if nx:
                return (yield from self._fields.hsetnx(name, value)) or None
            yield from self._fields.hset(name, value)
            return True
        done = yield from self._fields.hsetex(
            name,
            value,
            ex=ex,
            px=px,
            exat=exat,
            pxat=pxat,
            data_persist_option="FNX" if nx else "FXX" if xx else None,
            keepttl=keepttl,
        )
        return bool(done) or None

    @operation
    def mset(self, mapping: Mapping[Any, Any]) -> Operation[bool]:
        """Set many strings, 10,000 per exchange; return True."""
        if isinstance(mapping, Mapping):
            check_some(self.name, "mset", mapping, "string with its value")
        yield from self._fields.hset(mapping=mapping)
        return True

    @operation
    def get(self, name: Key) -> Operation[V | None]:
        """Return a string; None if it does not exist."""
        return (yield from self._fields.hget(name))

    @operation
    def mget(self, keys: Key | Iterable[Key], *args: Key) -> Operation[list[V | None]]:
        """Return many strings, in the given order; None for those that do not exist.

        ``keys`` is a list of names, or the first name. For an empty list an empty one is returned.
        """
        names = list_or_args(keys, args)
        return (yield from self._fields.hmget(names)) if names else []

    @operation
    def remove(self, *names: Key) -> Operation[int]:
        """Remove strings; return how many existed."""
        return (yield from self._fields.hdel(*names)) if names else 0

    @operation
    def delete(self, *, force: bool = False) -> Operation[bool]:
        """Remove all strings and their parameters; see `ShardedHash.delete`."""
        return (yield from self._fields.delete(force=force))

    @operation
    def exists(self, *names: Key) -> Operation[int]:
        """Return how many of these strings exist."""
        check_some(self.name, "exists", names, "name")
        values = yield from self._fields.hmget(names)
        return sum(value is not None for value in values)

    @operation
    def incr(self, name: Key, amount: int = 1) -> Operation[int]:
        """Add to an integer, 0 if the string does not exist; return the sum."""
        return (yield from self._fields.hincrby(name, amount))

    @operation
    def decr(self, name: Key, amount: int = 1) -> Operation[int]:
        """Subtract from an integer; see `incr`."""
        return (yield from self._fields.hincrby(name, -amount))

    @operation
    def incrbyfloat(self, name: Key, amount: float = 1.0) -> Operation[float]:
        """Add to a number, 0 if the string does not exist; return the sum."""
        return (yield from self._fields.hincrbyfloat(name, amount))

    @operation
    def expire(
        self,
        name: Key,
        time: int | timedelta,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Operation[bool]:
        """Set a string to expire; return whether that was set. See `ShardedHash.hexpire`."""
        [done] = yield from self._fields.hexpire(time, name, nx=nx, xx=xx, gt=gt, lt=lt)
        return done == 1

    @operation
    def persist(self, name: Key) -> Operation[bool]:
        """Remove the time to live of a string; return whether it had one."""
        return (yield from self._fields.hpersist(name)) == [1]

    @operation
    def ttl(self, name: Key) -> Operation[int]:
        """Return the seconds to live: -1 if it does not expire, -2 if it does not exist."""
        [left] = yield from self._fields.httl(name)
        return left

    @operation
    def pttl(self, name: Key) -> Operation[int]:
        """Return the milliseconds to live; see `ttl`."""
        [left] = yield from self._fields.hpttl(name)
        return left
