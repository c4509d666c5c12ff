"""A `redis.asyncio.Redis` whose tasks share one connection.

::

    await client.get("a")    ┐
    await client.incr("n")   ├─► one connection, one write a turn of the loop, replies in order
    await client.hgetall(…)  ┘
    await client.blpop(…)    ───► a connection of its own, as with redis-py
    client.pipeline(), client.pubsub(), client.lock(…), WATCH, SELECT, CLIENT …   likewise

redis-py takes a connection from its pool for each call in flight: a thousand tasks want a thousand
connections, and each pays for taking one, writing and waiting alone. Here what neither blocks nor
changes its connection's state is submitted to a `MultiplexedConnection`, as operations are.

It is redis-py's client in all else: types, methods, callbacks, errors. Two things differ. With the
entry's ``retries``, commands take redis-py's way, because it repeats them. And a server that stands
still lets all its tasks wait together, and fail together after the socket timeout.
"""

from __future__ import annotations

import inspect
from typing import Any

import redis.asyncio as aioredis

from shardkit.connections.redis_private import EMPTY_RESPONSE, NEVER_DECODE
from shardkit.errors import RoutingError
from shardkit.routing.command_keys import has_plain_form
from shardkit.transport.multiplexer import ConnectionLost, ConnectionSource, MultiplexedConnection
from shardkit.transport.resp import Chunk, pack_command

# What has no key, or several, and neither blocks nor concerns its connection.
_SHARED = frozenset(
    {
        *(
            "MGET",
            "MSET",
            "DEL",
            "UNLINK",
            "EXISTS",
            "TOUCH",
            "PING",
            "ECHO",
            "PUBLISH",
            "SPUBLISH",
        ),
        *("DBSIZE", "TIME", "SCAN", "KEYS", "INFO", "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"),
        *("SINTER", "SUNION", "SDIFF", "SINTERSTORE", "SUNIONSTORE", "SDIFFSTORE", "SMOVE"),
        *("ZUNIONSTORE", "ZINTERSTORE", "ZDIFFSTORE", "RENAME", "RENAMENX", "COPY", "BITOP"),
        *("PFCOUNT", "PFMERGE", "LMOVE", "RPOPLPUSH", "FCALL", "FCALL_RO", "RANDOMKEY"),
    }
)
_is_shared: dict[Any, bool] = {}


class MultiplexedClient(aioredis.Redis):
    """redis-py's awaiting client, over one connection; see the module's text.

    It belongs to the event loop in which it is first used.
    """

    _multiplexed: MultiplexedConnection | None = None
    _takes_redis_pys_way: bool | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute a command, over the shared connection if it can be."""
        name = args[0]
        shared = _is_shared.get(name)
        if shared is None:
            shared = _may_share(name)
        if self._takes_redis_pys_way is None:
            self._takes_redis_pys_way = self._repeats_or_encodes()
        if (
            not shared
            or self._takes_redis_pys_way
            or self.connection is not None
            or NEVER_DECODE in options
            or EMPTY_RESPONSE in options
        ):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        try:
            data = pack_command(args)
        except (TypeError, UnicodeEncodeError):  # redis-py takes more, and says what it does not
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        connection = self._multiplexed
        if connection is None:
            connection = self._multiplexed = MultiplexedConnection(
                ConnectionSource(self.connection_pool, raw=False)
            )
        try:
            request = await connection.submit([Chunk(data, 1)])
        except ConnectionLost as lost:
            raise lost.error from lost.error.__cause__
        reply = request.replies[0]
        if request.refused and isinstance(reply, Exception):
            raise reply
        callback = self.response_callbacks.get(name)
        if callback is None:
            return reply
        options.pop("keys", None)
        value = callback(reply, **options)
        return await value if inspect.isawaitable(value) else value

    def _repeats_or_encodes(self) -> bool:
        """Whether redis-py does for each command what the shared connection does not."""
        pool: Any = self.connection_pool
        retry = pool.connection_kwargs.get("retry")
        return (
            not hasattr(pool.connection_class, "is_reusable")
            or (retry is not None and retry.get_retries() > 0)
            or pool.connection_kwargs.get("encoding", "utf-8") != "utf-8"
            or pool.connection_kwargs.get("encoding_errors", "strict") != "strict"
        )


def _may_share(name: Any) -> bool:
    """Return whether commands of a name may share a connection; remember it."""
    shared = type(name) is str and (name in _SHARED or _has_one_key(name))
    if len(_is_shared) < 4096:
        _is_shared[name] = shared
    return shared


def _has_one_key(name: str) -> bool:
    try:
        return has_plain_form(name, 1_000)
    except RoutingError:
        return False
