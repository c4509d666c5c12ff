"""Builds redis-py clients for entries: the one place that knows how."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import redis
import redis.asyncio as aioredis
from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.cluster import LoadBalancingStrategy
from redis.driver_info import DriverInfo
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from shardkit.config.entry import DEFAULT_PORT
from shardkit.events import watched
from shardkit.network.connections.connection import (
    AsyncSentinelConnection,
    AsyncSentinelTlsConnection,
    AsyncTcpConnection,
    AsyncTlsConnection,
    AsyncUnixConnection,
    SentinelConnection,
    SentinelTlsConnection,
    TcpConnection,
    TlsConnection,
    UnixConnection,
    require_open,
)
from shardkit.network.connections.policy import NO_POLICY, CallPolicy
from shardkit.network.connections.pool import AsyncPool, AsyncSentinelPool, Pool, SentinelPool
from shardkit.network.connections.redis_private import learn_slots, set_connection_class

SOCKET_TIMEOUT = 5.0
CONNECT_TIMEOUT = 5.0

# The fields of an entry that every kind of connection takes as they are, and their defaults. They
# are given always: libraries look for them among a pool's arguments.
_COMMON: dict[str, Any] = {
    "db": 0,
    "username": None,
    "password": None,
    "health_check_interval": 0,
    "client_name": None,
    "encoding": "utf-8",
    "encoding_errors": "strict",
    "decode_responses": False,
}


# What our connections take and redis-py's do not.
_LIMITS = ("exchange_timeout", "max_reply_bytes", "extend_blocking_timeout")
# redis-py's BlockingConnectionPool's.
BLOCKING_POOL_SIZE, BLOCKING_POOL_TIMEOUT = 50, 20.0
# What a cluster's client itself wants to know of its connections.
_ASKED_OF_CLUSTERS = (
    *("protocol", "decode_responses", "encoding", "encoding_errors", "max_connections"),
)


class ClusterClient(redis.RedisCluster):
    """redis-py's cluster client, which says so when its kit is closed under a call.

    One that a holder has closed learns the cluster anew: others who share it go on.
    """

    closed = False
    policy = NO_POLICY

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Execute a command."""
        try:
            if self.get_default_node() is None and not self.closed:  # type: ignore[no-untyped-call]
                learn_slots(self)
            with watched(self.policy, (args,)):
                return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]
        except Exception:  # redis-py finds nodes without connections, and others
            require_open(self)
            raise


class AsyncClusterClient(aioredis.RedisCluster):
    """redis-py's awaiting cluster client; a command waits until it has learnt the cluster.

    redis-py's own lets commands pass as soon as the nodes are known, while what it still learns
    over the same connections replaces these: of many tasks that began together, some failed. This
    one can also drain, and stays closed with its kit.

    Attributes:
        connection_class: of this client alone; tells all its connections that they drain, or that
            the kit is closed.
    """

    connection_class: Any
    policy = NO_POLICY

    @property
    def draining(self) -> bool:
        """Whether each connection is closed when it is released."""
        return bool(self.connection_class.draining)

    @draining.setter
    def draining(self, value: bool) -> None:
        self.connection_class.draining = value

    @property
    def closed(self) -> bool:
        """Whether the kit is closed."""
        return bool(self.connection_class.closed)

    @closed.setter
    def closed(self, value: bool) -> None:
        self.connection_class.closed = value

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Wait until the cluster is known, and execute a command."""
        await self.initialize()
        with watched(self.policy, (args,)):
            return await super().execute_command(*args, **kwargs)

    async def initialize(self, *args: Any, **kwargs: Any) -> Any:
        """Learn the cluster's nodes, unless the kit is closed."""
        require_open(self)
        try:
            return await super().initialize(*args, **kwargs)
        except RedisClusterException:
            require_open(self)  # it may have been closed meanwhile
            raise

    def __del__(self, *_: Any) -> None:
        """Nothing: a client that drained has no connections, and the nodes warn of others."""


class Connector:
    """Builds redis-py clients for entries.

    `shardkit.testing.fakes.servers` replaces it to build clients of in-memory servers.

    Args:
        blocking_class: what blocking clients are, `redis.Redis` or a subclass.
        awaiting_class: what awaiting clients are, `redis.asyncio.Redis` or a subclass.

    Attributes:
        breaks: whether servers have breakers unless their entries say ``breaker: false``.
    """

    breaks = True

    def __init__(
        self,
        blocking_class: type[redis.Redis] = redis.Redis,
        awaiting_class: type[aioredis.Redis] = aioredis.Redis,
    ) -> None:
        self._blocking_class = blocking_class
        self._awaiting_class = awaiting_class

    def node_classes(self, fields: Mapping[str, Any]) -> tuple[type[Any], type[Any], type[Any]]:
        """Return what connects to a cluster's nodes, its pools, and what awaits connections."""
        if fields.get("ssl"):
            return TlsConnection, Pool, AsyncTlsConnection
        return TcpConnection, Pool, AsyncTcpConnection

    def blocking(self, fields: Mapping[str, Any]) -> redis.Redis | redis.RedisCluster:
        """Return a blocking client; connects only for a cluster, whose nodes it must learn.

        Args:
            fields: an entry's fields, references resolved (`Entry.resolved`); in ``credentials``
                and ``sentinel_credentials`` may be redis-py's providers, asked at each connect.
        """
        common = _common(fields, Retry)
        if fields.get("cluster"):
            return _cluster(fields, common, *self.node_classes(fields)[:2])
        pool: Pool | SentinelPool
        if "sentinel" in fields:
            asked = fields["sentinel"]
            manager = sentinel.Sentinel([])  # type: ignore[no-untyped-call]
            to_sentinels = _to_sentinels(fields, asked, Retry)
            pools = [
                Pool(host=host, port=port, **to_sentinels) for host, port in asked["sentinels"]
            ]
            for each in pools:
                each.credentials = fields.get("sentinel_credentials")
            manager.sentinels = [redis.Redis(connection_pool=each) for each in pools]
            pool = SentinelPool(
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
        pool.credentials = fields.get("credentials")
        _bound(pool, fields)
        return self._blocking_class(connection_pool=pool)

    def awaiting(self, fields: Mapping[str, Any]) -> aioredis.Redis | aioredis.RedisCluster:
        """Return an awaiting client; connects when it is first used."""
        common = _common(fields, AsyncRetry)
        if fields.get("cluster"):
            cluster = AsyncClusterClient(
                host=fields.get("host", "localhost"),
                port=fields.get("port", DEFAULT_PORT),
                ssl=bool(fields.get("ssl")),
                **{n: v for n, v in common.items() if n not in ("db", *_LIMITS)},
                **_network(fields),
                **_replicas_of(fields),
            )
            policy: CallPolicy = fields.get("policy", NO_POLICY)
            base: Any = self.node_classes(fields)[2]

            class AsyncNodeConnection(base):  # type: ignore[misc]
                """Of this cluster alone, as its attributes are those of all its connections."""

                def __init__(self, **given: Any) -> None:
                    super().__init__(**given)
                    self.credential_provider = fields.get("credentials")
                    self.policy = policy.of_node(self.host, self.port)

            for name in _LIMITS:
                if name in common:
                    setattr(AsyncNodeConnection, name, common[name])
            set_connection_class(cluster, AsyncNodeConnection)
            cluster.connection_class = AsyncNodeConnection
            cluster.policy = policy
            return cluster
        pool: AsyncPool | AsyncSentinelPool
        if "sentinel" in fields:
            asked = fields["sentinel"]
            manager = aiosentinel.Sentinel([])  # type: ignore[no-untyped-call]
            to_sentinels = _to_sentinels(fields, asked, AsyncRetry)
            tls = fields.get("ssl")
            to_sentinels["connection_class"] = AsyncTlsConnection if tls else AsyncTcpConnection
            pools = [
                AsyncPool(host=host, port=port, **to_sentinels) for host, port in asked["sentinels"]
            ]
            for each in pools:
                each.credentials = fields.get("sentinel_credentials")
            manager.sentinels = [aioredis.Redis(connection_pool=each) for each in pools]
            pool = AsyncSentinelPool(
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
        pool.credentials = fields.get("credentials")
        _bound(pool, fields)
        pool.as_redis_py = not fields.get("multiplex", True)
        return self._awaiting_class(connection_pool=pool)


def _cluster(
    fields: Mapping[str, Any],
    common: dict[str, Any],
    connection: type[Any],
    pool: type[Any],
) -> redis.RedisCluster:
    host, port = fields.get("host", "localhost"), fields.get("port", DEFAULT_PORT)
    options = _without(common, "db") | _network(fields)
    policy: CallPolicy = fields.get("policy", NO_POLICY)
    retry, own = options["retry"], _without(_without(options, "retry"), "max_connections")

    class NodeConnection(connection):  # type: ignore[misc]
        # The options go here: of those that are given to the cluster it drops some in silence.
        def __init__(self, **given: Any) -> None:
            super().__init__(**{**given, **own})
            self.credential_provider = fields.get("credentials")
            self.policy = policy.of_node(self.host, self.port)

    class NodePool(pool):  # type: ignore[misc]
        # Of nodes that become known later as well.
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            where = self.connection_kwargs
            _bound(self, {"policy": policy.of_node(where["host"], where["port"])})

        def drain(self) -> None:
            type(self).draining = True
            super().drain()

        def close_for_good(self) -> None:
            type(self).closed = type(self).draining = True
            super().close_for_good()

    # Only a cluster by URL looks at the classes of pool and connection.
    client = ClusterClient(
        url=f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}",
        retry=retry,
        connection_pool_class=NodePool,
        connection_class=NodeConnection,
        **{name: options[name] for name in _ASKED_OF_CLUSTERS if name in options},
        **_replicas_of(fields),
    )
    client.policy = policy
    return client


def _replicas_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a cluster's client is told that sends reads to the replicas of their slots, in turn."""
    if not fields.get("reads_replicas"):
        return {}
    return {"load_balancing_strategy": LoadBalancingStrategy.ROUND_ROBIN_REPLICAS}


def _bound(pool: Any, fields: Mapping[str, Any]) -> None:
    """Have a pool keep to the policy of its server, and its callers wait if the entry says so."""
    if "blocking_pool" in fields:
        pool.wait_seconds = fields["blocking_pool"].get("timeout", BLOCKING_POOL_TIMEOUT)
    pool.policy = fields.get("policy", NO_POLICY)
    if pool.policy.breaker is not None:
        pool.policy.breaker.pools.add(pool)


@cache
def driver_info() -> DriverInfo:
    """Return how our connections introduce themselves, as ``CLIENT LIST`` shows it.

    Without it redis-py looks its own version up among the installed packages for every connection,
    which takes longer than to connect.
    """
    return DriverInfo().add_upstream_driver("shardkit", version("shardkit"))


def _common(fields: Mapping[str, Any], retry: type[Any]) -> dict[str, Any]:
    """What every kind of connection takes."""
    retries = fields.get("retries", 0)
    backoff = ExponentialWithJitterBackoff(base=0.05, cap=1) if retries else NoBackoff()
    if "blocking_pool" in fields:
        size = fields["blocking_pool"].get("size", BLOCKING_POOL_SIZE)
        fields = {**fields, "max_connections": size}
    return {
        "protocol": fields.get("protocol", 2),
        "socket_timeout": fields.get("socket_timeout", SOCKET_TIMEOUT),
        "retry": retry(backoff, retries),
        "driver_info": driver_info(),
        **{name: fields.get(name, default) for name, default in _COMMON.items()},
        **{name: fields[name] for name in ("max_connections", *_LIMITS) if name in fields},
    }


def _network(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What connections over a network take, TLS or not."""
    taken = {
        "socket_connect_timeout": fields.get("socket_connect_timeout", CONNECT_TIMEOUT),
        "socket_keepalive": fields.get("socket_keepalive", True),
    }
    if "socket_keepalive_options" in fields:
        asked = fields["socket_keepalive_options"].items()
        taken["socket_keepalive_options"] = {getattr(socket, n): value for n, value in asked}
    if fields.get("ssl"):
        taken |= {n: v for n, v in fields.items() if n.startswith("ssl_")}
        if "ssl_min_version" in taken:
            taken["ssl_min_version"] = getattr(ssl.TLSVersion, taken["ssl_min_version"])
    return taken


def _to_sentinels(
    fields: Mapping[str, Any], asked: Mapping[str, Any], retry: type[Any]
) -> dict[str, Any]:
    """How to connect to the Sentinels themselves: the entry's timeouts and TLS, own credentials."""
    return {
        "connection_class": TlsConnection if fields.get("ssl") else TcpConnection,
        "socket_timeout": fields.get("socket_timeout", SOCKET_TIMEOUT),
        "protocol": 2,
        "retry": retry(NoBackoff(), 0),
        "driver_info": driver_info(),
        **_network(fields),
        **{name: asked[name] for name in ("username", "password") if name in asked},
    }


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
