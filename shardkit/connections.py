"""redis-py's pools and connections, made safe.

redis-py 8 repeats a command up to ten times when the answer does not come in time: an INCR sent to
a server that stood still for some seconds was applied twice, and a BLPOP of eight seconds failed
after 59. So the connections that we build

- never repeat a command by themselves (an entry may ask for it: ``retries``);
- wait for a blocking command as long as it blocks, and the socket timeout on top;
- speak RESP2, unless the entry says otherwise, so that no push message comes between replies;
- belong to a pool that can retire: it goes on serving those who hold it, and closes each connection
  as it comes back.

All through redis-py's documented extension points, ``connection_class`` and ``connection_pool``.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio as aioredis
from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry
from redis.utils import SENTINEL as NOT_GIVEN

from shardkit.config.entry import DEFAULT_PORT
from shardkit.routing.command_keys import blocking_seconds

SOCKET_TIMEOUT = 5.0
CONNECT_TIMEOUT = 5.0

# The names that can block; whether a call does, blocking_seconds says.
_MAY_BLOCK = frozenset(
    {
        *("BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BLMPOP", "BZMPOP", "BZPOPMIN", "BZPOPMAX"),
        *("XREAD", "XREADGROUP", "WAIT", "WAITAOF"),
    }
)


# The fields of an entry that every kind of connection takes as they are.
_COMMON = (
    "db",
    "username",
    "password",
    "max_connections",
    "health_check_interval",
    "client_name",
    "encoding",
    "encoding_errors",
    "decode_responses",
)


class _Patient:
    """Reads the answer of a blocking command with that command's patience."""

    socket_timeout: float | None
    _blocks: float | None = None

    def send_command(self, *args: Any, **kwargs: Any) -> Any:
        if args[0] in _MAY_BLOCK:
            self._blocks = blocking_seconds(args)
        return super().send_command(*args, **kwargs)  # type: ignore[misc]

    def read_response(self, *args: Any, timeout: Any = NOT_GIVEN, **kwargs: Any) -> Any:
        if self._blocks is not None:
            if timeout is NOT_GIVEN:
                timeout = patience(self._blocks, self.socket_timeout)
            self._blocks = None
        return super().read_response(*args, timeout=timeout, **kwargs)  # type: ignore[misc]


class _AsyncPatient:
    """The same for awaiting connections, whose ``timeout`` argument means something else."""

    socket_timeout: float | None
    _blocks: float | None = None

    async def send_command(self, *args: Any, **kwargs: Any) -> None:
        if args[0] in _MAY_BLOCK:
            self._blocks = blocking_seconds(args)
        await super().send_command(*args, **kwargs)  # type: ignore[misc]

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        blocks, self._blocks = self._blocks, None
        if blocks is None or kwargs.get("timeout") is not None:
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]
        with patient(self, blocks):
            return await super().read_response(*args, **kwargs)  # type: ignore[misc]


def patience(blocks: float, socket_timeout: float | None) -> float | None:
    """Return how long to wait for a command that may block so long; None is for ever."""
    if not blocks or socket_timeout is None or math.isinf(blocks):
        return None
    return blocks + socket_timeout


@contextmanager
def patient(connection: Any, blocks: float) -> Iterator[None]:
    """Have an awaiting connection wait for a command that may block so long.

    Not through the ``timeout`` of its read_response: redis-py takes that as "return None then",
    which would lose the answer.
    """
    usual = connection.socket_timeout
    connection.socket_timeout = patience(blocks, usual)
    try:
        yield
    finally:
        connection.socket_timeout = usual


class _Retiring:
    """A pool that can be told to close its connections as they come back."""

    retired = False

    def retire(self) -> None:
        """Close idle connections now, and every other one when it is released."""
        self.retired = True
        self.disconnect(inuse_connections=False)  # type: ignore[attr-defined]

    def release(self, connection: Any) -> None:
        if self.retired:
            connection.disconnect()
        super().release(connection)  # type: ignore[misc]


class _AsyncRetiring:
    retired = False

    async def retire(self) -> None:
        """Close idle connections now, and every other one when it is released."""
        self.retired = True
        await self.disconnect(inuse_connections=False)  # type: ignore[attr-defined]

    async def release(self, connection: Any) -> None:
        if self.retired:
            await connection.disconnect(nowait=True)
        await super().release(connection)  # type: ignore[misc]


class TcpConnection(_Patient, redis.Connection):
    """redis-py's TCP connection, patient with blocking commands."""


class TlsConnection(_Patient, redis.SSLConnection):
    """redis-py's TLS connection, patient with blocking commands."""


class UnixConnection(_Patient, redis.UnixDomainSocketConnection):
    """redis-py's Unix socket connection, patient with blocking commands."""


class SentinelConnection(_Patient, sentinel.SentinelManagedConnection):
    """redis-py's Sentinel-managed connection, patient with blocking commands."""


class SentinelTlsConnection(_Patient, sentinel.SentinelManagedSSLConnection):
    """redis-py's Sentinel-managed TLS connection, patient with blocking commands."""


class AsyncTcpConnection(_AsyncPatient, aioredis.Connection):
    """The awaiting TCP connection, patient with blocking commands."""


class AsyncTlsConnection(_AsyncPatient, aioredis.SSLConnection):
    """The awaiting TLS connection, patient with blocking commands."""


class AsyncUnixConnection(_AsyncPatient, aioredis.UnixDomainSocketConnection):
    """The awaiting Unix socket connection, patient with blocking commands."""


class AsyncSentinelConnection(_AsyncPatient, aiosentinel.SentinelManagedConnection):
    """The awaiting Sentinel-managed connection, patient with blocking commands."""


class AsyncSentinelTlsConnection(_AsyncPatient, aiosentinel.SentinelManagedSSLConnection):
    """The awaiting Sentinel-managed TLS connection, patient with blocking commands."""


class Pool(_Retiring, redis.ConnectionPool):
    """redis-py's pool, able to retire."""


class SentinelPool(_Retiring, sentinel.SentinelConnectionPool):
    """redis-py's Sentinel pool, able to retire."""


class AsyncPool(_AsyncRetiring, aioredis.ConnectionPool):
    """The awaiting pool, able to retire."""


class AsyncSentinelPool(_AsyncRetiring, aiosentinel.SentinelConnectionPool):
    """The awaiting Sentinel pool, able to retire."""


class Connector:
    """Builds redis-py clients for entries: the one place that knows how.

    `shardkit.links.memory` replaces it to build clients of in-memory servers.
    """

    def blocking(self, fields: Mapping[str, Any]) -> redis.Redis | redis.RedisCluster:
        """Return a blocking client; connects only for a cluster, whose nodes it must learn.

        Args:
            fields: an entry's fields, references resolved (`Entry.resolved`).
        """
        common = _common(fields, Retry)
        if fields.get("cluster"):
            return redis.RedisCluster(
                host=fields.get("host", "localhost"),
                port=fields.get("port", DEFAULT_PORT),
                connection_pool_class=Pool,
                connection_class=TlsConnection if fields.get("ssl") else TcpConnection,
                **_without(common, "db"),
                **_network(fields),
            )
        pool: redis.ConnectionPool
        if "sentinel" in fields:
            asked = fields["sentinel"]
            manager = sentinel.Sentinel(  # type: ignore[no-untyped-call]
                _addresses(asked), sentinel_kwargs=_to_sentinels(fields, asked, Retry)
            )
            pool = SentinelPool(  # type: ignore[no-untyped-call]
                asked["service"],
                manager,
                connection_class=SentinelTlsConnection if fields.get("ssl") else SentinelConnection,
                **common,
                **_network(fields),
            )
        elif "unix_socket_path" in fields:
            pool = Pool(connection_class=UnixConnection, path=fields["unix_socket_path"], **common)
        else:
            pool = Pool(
                connection_class=TlsConnection if fields.get("ssl") else TcpConnection,
                host=fields.get("host", "localhost"),
                port=fields.get("port", DEFAULT_PORT),
                **common,
                **_network(fields),
            )
        return redis.Redis(connection_pool=pool)

    def awaiting(self, fields: Mapping[str, Any]) -> aioredis.Redis | aioredis.RedisCluster:
        """Return an awaiting client; connects when it is first used."""
        common = _common(fields, AsyncRetry)
        if fields.get("cluster"):
            return aioredis.RedisCluster(
                host=fields.get("host", "localhost"),
                port=fields.get("port", DEFAULT_PORT),
                ssl=bool(fields.get("ssl")),
                **_without(common, "db"),
                **_network(fields),
            )
        pool: aioredis.ConnectionPool
        if "sentinel" in fields:
            asked = fields["sentinel"]
            manager = aiosentinel.Sentinel(  # type: ignore[no-untyped-call]
                _addresses(asked), sentinel_kwargs=_to_sentinels(fields, asked, AsyncRetry)
            )
            tls = fields.get("ssl")
            pool = AsyncSentinelPool(  # type: ignore[no-untyped-call]
                asked["service"],
                manager,
                connection_class=AsyncSentinelTlsConnection if tls else AsyncSentinelConnection,
                **common,
                **_network(fields),
            )
        elif "unix_socket_path" in fields:
            path = fields["unix_socket_path"]
            pool = AsyncPool(connection_class=AsyncUnixConnection, path=path, **common)
        else:
            pool = AsyncPool(
                connection_class=AsyncTlsConnection if fields.get("ssl") else AsyncTcpConnection,
                host=fields.get("host", "localhost"),
                port=fields.get("port", DEFAULT_PORT),
                **common,
                **_network(fields),
            )
        return aioredis.Redis(connection_pool=pool)


def _common(fields: Mapping[str, Any], retry: type[Any]) -> dict[str, Any]:
    """What every kind of connection takes."""
    retries = fields.get("retries", 0)
    backoff = ExponentialWithJitterBackoff(base=0.05, cap=1) if retries else NoBackoff()
    return {
        "protocol": fields.get("protocol", 2),
        "socket_timeout": fields.get("socket_timeout", SOCKET_TIMEOUT),
        "retry": retry(backoff, retries),
        **{name: fields[name] for name in _COMMON if name in fields},
    }


def _network(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What connections over a network take, TLS or not."""
    taken = {
        "socket_connect_timeout": fields.get("socket_connect_timeout", CONNECT_TIMEOUT),
        "socket_keepalive": fields.get("socket_keepalive", True),
    }
    if fields.get("ssl"):
        taken |= {n: v for n, v in fields.items() if n.startswith("ssl_")}
        if "ssl_min_version" in taken:
            taken["ssl_min_version"] = getattr(ssl.TLSVersion, taken["ssl_min_version"])
    return taken


def _addresses(asked: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [(host, port) for host, port in asked["sentinels"]]


def _to_sentinels(
    fields: Mapping[str, Any], asked: Mapping[str, Any], retry: type[Any]
) -> dict[str, Any]:
    """How to connect to the Sentinels themselves: the entry's timeouts and TLS, own credentials."""
    taken = {
        "socket_timeout": fields.get("socket_timeout", SOCKET_TIMEOUT),
        "protocol": 2,
        "retry": retry(NoBackoff(), 0),
        **_network(fields),
        **{name: asked[name] for name in ("username", "password") if name in asked},
    }
    return taken | {"ssl": True} if fields.get("ssl") else taken


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
