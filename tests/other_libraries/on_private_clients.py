"""Once imported, every redis-py pool that a library makes is that of a private client of a kit.

`suites` has each process of a library's suite import it. What entries cannot say (a connection
class of the caller's, certificates in objects) stays redis-py's.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import redis
import redis.asyncio as aioredis
import redis.asyncio.client
import redis.asyncio.connection
import redis.client
import redis.connection

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap

_FIELDS = {
    **{name: name for name in ("host", "port", "db", "username", "password", "client_name")},
    **{name: name for name in ("decode_responses", "encoding", "encoding_errors", "protocol")},
    **{name: name for name in ("socket_timeout", "socket_connect_timeout", "max_connections")},
    **{name: name for name in ("health_check_interval", "socket_keepalive")},
    "path": "unix_socket_path",
}
# What entries say in another way, or redis-py's clients fill in by themselves.
_WITHOUT = frozenset({"socket_keepalive_options", "socket_type", "retry_on_timeout"})
_KINDS = (
    *(redis.connection.Connection, redis.connection.UnixDomainSocketConnection),
    *(aioredis.Connection, aioredis.UnixDomainSocketConnection),
)
_besides: dict[str, Any] = json.loads(os.environ.get("SHARDKIT_PRIVATE_CLIENTS") or "{}")
made: Counter[str] = Counter()
_kits: dict[tuple[int, str], ShardKit] = {}
_akits: dict[tuple[int, str], AsyncShardKit] = {}


def entry_of(given: dict[str, Any], waits: bool) -> ShardMap | None:
    """A map of one entry that says what a pool was given; None if it cannot."""
    fields: dict[str, Any] = dict(_besides)
    if given.get("connection_class", _KINDS[0]) not in _KINDS:
        return None
    for name, value in given.items():
        if name in _FIELDS and value is not None:
            fields[_FIELDS[name]] = value
        elif name.startswith("ssl_") and value is not None:
            return None
    if waits:
        size = fields.pop("max_connections", None) or 50
        fields["blocking_pool"] = {"size": size, "timeout": given.get("timeout", 20)}
    if "unix_socket_path" in fields:
        fields = {n: v for n, v in fields.items() if n not in ("host", "port")}
    for name in ("db", "port"):
        if name in fields:
            fields[name] = int(fields[name])
    try:
        return ShardMap.parse(json.dumps({"components": {"library": {"entry": fields}}}))
    except (shardkit.ShardKitError, TypeError):
        return None


class _Named(type):
    """Has `isinstance` hold for redis-py's and for shardkit's pools."""

    of: type[Any]

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.of)

    def __call__(cls, *args: Any, **given: Any) -> Any:
        if args:
            given["connection_class"] = args[0]
        where = entry_of(given, "Blocking" in cls.__name__)
        if where is None:
            made["redis-py's"] += 1
            return cls.of(*args, **given)
        made["private clients'"] += 1
        return cls.pool(where, given)  # type: ignore[attr-defined]

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.of, name)


def _blocking(where: ShardMap, given: dict[str, Any]) -> Any:
    key = os.getpid(), str(where)
    kit = _kits.get(key)
    if kit is None:
        kit = _kits[key] = shardkit.connect(where)
    client: Any = kit.client("library", private=True)
    return client.connection_pool


_OF_THE_PRIVATE = frozenset(
    {"release", "disconnect", "reset", "_available_connections", "connection_kwargs"}
)


class _Late(aioredis.ConnectionPool):
    """A private client's awaiting pool, made in the loop that first needs a connection."""

    def __init__(self, where: ShardMap, given: dict[str, Any]) -> None:
        # The client chooses its callbacks by the protocol before the entry is known.
        given = {n: v for n, v in given.items() if n != "timeout"}
        super().__init__(**{**given, "protocol": given.get("protocol") or 2})
        self.where, self.private = where, None

    async def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self.private is None:
            kit = await shardkit.aconnect(self.where)
            _akits[id(self), ""] = kit
            client: Any = await kit.client("library", private=True)
            self.private = client.connection_pool
        return await self.private.get_connection()

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_THE_PRIVATE:
            private = self.__dict__.get("private")
            if private is not None:
                return getattr(private, name)
        return super().__getattribute__(name)


def _replacement(name: str, of: type[Any], pool: Any) -> type[Any]:
    found = _Named(name, (), {"of": of, "pool": staticmethod(pool)})
    found.from_url = classmethod(of.from_url.__func__)  # type: ignore[attr-defined]
    return found


def _replace() -> None:
    for name in ("ConnectionPool", "BlockingConnectionPool"):
        plain = _replacement(name, getattr(redis.connection, name), _blocking)
        for module in (redis, redis.connection, redis.client):
            if hasattr(module, name):
                setattr(module, name, plain)
        awaiting = _replacement(name, getattr(redis.asyncio.connection, name), _Late)
        for module in (aioredis, redis.asyncio.connection, redis.asyncio.client):
            if hasattr(module, name):
                setattr(module, name, awaiting)


def tell() -> None:
    """Write down which pools were made, once."""
    path = os.environ.get("SHARDKIT_MADE")
    if path and made:
        with Path(path).open("a") as file:
            file.write(json.dumps(made) + "\n")
        made.clear()


if os.environ.get("SHARDKIT_PRIVATE_CLIENTS"):
    _replace()
    atexit.register(tell)
