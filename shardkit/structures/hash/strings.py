"""Many short STRINGs of one namespace, as fields of a sharded hash.

A STRING of its own takes a key's overhead, 50 to 80 bytes, however short its value is. The strings
``user:1``, ``user:2``, … become the fields 1, 2, … of a `ShardedHash` named after the namespace::

    SET user:139960 abc   ──►   user:1093   HASH   {56: abc, …}        field 139960, 128 to a part

One million of 12 bytes take 88 bytes each as keys of Redis 7.0, and 12.7 so (57.7 and 11.6 on
Valkey 9.1).

What it cannot do: the other commands of STRINGs (APPEND, GETRANGE, …), and LRU or LFU eviction of
single ones. Expiry of single ones needs a server that expires fields (Redis 7.4, Valkey 9.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Generic

from shardkit.operations.commands import Key
from shardkit.operations.operation import Deferred, Driver, Face, Operation, Structure, operation
from shardkit.structures.hash.sharded_hash import ShardedHash, V


class ShardedStrings(Structure[Face], Generic[Face, V]):
    """The strings of one namespace. Made by ``kit.strings``.

    Args:
        driver: what runs its operations.
        fields: the hash that they are fields of.

    Every operation costs one exchange, and one more the first time; errors are those of
    `ShardedHash`.
    """

    def __init__(self, driver: Driver, fields: ShardedHash[Any, Any, V]) -> None:
        super().__init__(driver, fields.component, fields.name)
        self._fields: ShardedHash[Deferred, Any, V] = fields.deferred

    @operation
    def set(self, id: Key, value: Any, *, nx: bool = False) -> Operation[bool]:  # noqa: A002 - Redis's word
        """Set a string.

        Args:
            id: its key without the namespace.
            value: what the codec takes.
            nx: only if it is not there.

        Returns:
            Whether it was set.
        """
        if nx:
            return (yield from self._fields.hsetnx(id, value))
        yield from self._fields.hset(id, value)
        return True

    @operation
    def mset(self, mapping: Mapping[Any, Any]) -> Operation[int]:
        """Set many strings, 10,000 an exchange; return how many are new."""
        return (yield from self._fields.hset(mapping=mapping))

    @operation
    def get(self, id: Key) -> Operation[V | None]:  # noqa: A002
        """Return a string; None if it is not there."""
        return (yield from self._fields.hget(id))

    @operation
    def mget(self, *ids: Key) -> Operation[list[V | None]]:
        """Return many strings, in the order asked for; None for those that are not there."""
        return (yield from self._fields.hmget(*ids))

    @operation
    def delete(self, *ids: Key) -> Operation[int]:
        """Remove strings; return how many were there."""
        return (yield from self._fields.hdel(*ids))

    @operation
    def exists(self, id: Key) -> Operation[bool]:  # noqa: A002
        """Return whether a string is there."""
        return (yield from self._fields.hexists(id))

    @operation
    def incr(self, id: Key, amount: int = 1) -> Operation[int]:  # noqa: A002
        """Add to a string that is an integer, or not there; return what it is then."""
        return (yield from self._fields.hincrby(id, amount))

    @operation
    def incrbyfloat(self, id: Key, amount: float) -> Operation[float]:  # noqa: A002
        """Add to a string that is a number, or not there; return what it is then."""
        return (yield from self._fields.hincrbyfloat(id, amount))

    @operation
    def expire(self, seconds: int | timedelta, *ids: Key) -> Operation[list[int]]:
        """Have strings expire; see `ShardedHash.hexpire`."""
        return (yield from self._fields.hexpire(seconds, *ids))
