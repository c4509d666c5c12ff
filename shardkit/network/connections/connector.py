"""Builds redis-py clients for entries."""

from __future__ import annotations

import socket
import ssl
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.cluster import LoadBalancingStrategy
from redis.exceptions import ConnectionError, RedisClusterException, TimeoutError
from redis.retry import Retry

from shardkit.config.entry import DEFAULT_PORT
from shardkit.network.connections.connection import (
    AsyncTcpConnection,
    AsyncTlsConnection,
    AsyncUnixConnection,
    TcpConnection,
    TlsConnection,
    UnixConnection,
)
from shardkit.network.connections.connection_state import require_open
from shardkit.network.connections.credentials import source_in
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.policy import NO_POLICY
from shardkit.network.connections.pool import AsyncPool, Pool
from shardkit.network.connections.redis_private import (
    ask_others_too,
    learn_commands_of_any,
    library_name,
    pools_of_nodes,
    refusal_in,
)
from shardkit.network.connections.reply_kinds import check_replies
from shardkit.network.connections.sentinels import (
    AsyncMaster,
    Master,
    SentinelListener,
    Sentinels,
)
from shardkit.network.connections.slot_owner import SERVICE, SlotOwner, in_one_slot
from shardkit.operations.commands import Script
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.recent import Recent

SOCKET_TIMEOUT = 5.0
CONNECT_TIMEOUT = 5.0

# Fields that every connection gets unchanged, with their defaults. They are always passed, because
# libraries look for them among a pool's arguments.
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
# Arguments of our connections that redis-py's do not have.
_LIMITS = ("exchange_timeout", "max_reply_bytes", "extend_blocking_timeout")
BLOCKING_POOL_SIZE, BLOCKING_POOL_TIMEOUT = 50, 20.0  # as in redis-py's BlockingConnectionPool
# Connection arguments that a cluster's client takes itself.
_OF_CLUSTER_CLIENTS = (
    *("protocol", "decode_responses", "encoding", "encoding_errors", "max_connections"),
)

C = TypeVar("C", bound=Any)

registered_scripts: Recent[str, Script] = Recent()
"""The scripts that were registered with clients, by SHA-1."""


class RegistersScripts:
    """Remembers registered scripts, so that a pipeline over shards can load them."""

    if not TYPE_CHECKING:  # redis-py's own type

        def register_script(self, script: str | bytes) -> Any:
            """Return redis-py's `Script`; a pipeline over shards takes it, too."""
            registered = super().register_script(script)
            with suppress(UnicodeDecodeError):
                text = script.decode() if isinstance(script, bytes) else script
                registered_scripts[registered.sha] = Script("script", text)
            return registered


class Drains:
    """What clients of clusters of both faces share."""

    policy = NO_POLICY
    closed: bool | str = False
    draining = False
    below: Any  # the pools of its nodes, which redis-py does not close with it

    def drain(self) -> None:
        """Close idle connections, and others when they are released."""
        self.draining = True
        for pool in self.below:
            pool.drain()

    def close_for_good(self, why: bool | str = True) -> None:
        """Close every connection, and open no other; see the pool's."""
        self.closed, self.draining = why, True
        for pool in self.below:
            pool.close_for_good(why)

    def __repr__(self) -> str:
        nodes: Any = self.get_nodes()  # type: ignore[attr-defined]
        return f"<cluster of {', '.join(sorted(node.name for node in nodes))}>"


class ClusterClient(Drains, RegistersScripts, redis.RedisCluster):
    """redis-py's cluster client, which can drain, and stays closed with its kit."""

    @property
    def below(self) -> list[Any]:
        """The pools of its nodes."""
        nodes = self.get_nodes()  # type: ignore[no-untyped-call]
        return [self.get_redis_connection(node).connection_pool for node in nodes]

    def command(self, **kwargs: Any) -> Any:
        """List the commands of a node that answers; redis-py asks one only, when it is opened."""
        failure: Exception | None = None
        for node in self.get_nodes():  # type: ignore[no-untyped-call]
            try:
                return super().command(**{"target_nodes": node, **kwargs})
            except (ConnectionError, TimeoutError) as error:
                failure = error
        raise failure or RedisClusterException("the cluster has no nodes")


@cache
def _finding_nodes(kind: Any) -> Any:
    """Return a class of subscribers that waits until the cluster is known; redis-py's does not."""

    class ClusterSubscriber(kind):  # type: ignore[misc]
        async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
            await self.cluster.initialize()
            try:
                return await super().execute_command(*args, **kwargs)
            except KeyError as error:
                raise RedisClusterException(f"no node has slot {error} of {args[1]!r}") from None

        async def ssubscribe(self, *args: Any, **kwargs: Any) -> None:
            await self.cluster.initialize()
            await super().ssubscribe(*args, **kwargs)

    return ClusterSubscriber


class AsyncClusterClient(Drains, RegistersScripts, aioredis.RedisCluster):  # type: ignore[misc]  # redis-py's own
    """redis-py's awaiting cluster client; commands wait until it has discovered the cluster.

    redis-py's own lets commands pass as soon as the nodes are known, and then replaces their
    connections while it learns more, so that some of many concurrent tasks failed. This one can
    also drain, and stays closed with its kit.
    """

    make_pool: Callable[[dict[str, Any]], Any]  # for a node; a connector sets it

    @property
    def below(self) -> list[Any]:
        """The pools of its nodes."""
        return pools_of_nodes(self)

    connections = ()  # of its own, beside those

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Execute a command. Wait until the cluster is known."""
        await self.initialize()
        return await super().execute_command(*args, **kwargs)

    def pubsub(self, *args: Any, **kwargs: Any) -> Any:
        """Return redis-py's subscriber to the cluster."""
        pubsub = super().pubsub(*args, **kwargs)
        pubsub.__class__ = _finding_nodes(type(pubsub))  # type: ignore[arg-type]
        return pubsub

    async def initialize(self, *args: Any, **kwargs: Any) -> Any:
        """Learn the cluster's nodes, unless the kit is closed."""
        require_open(self)
        try:
            return await super().initialize(*args, **kwargs)
        except RedisClusterException:
            require_open(self)  # the kit may have been closed in the meantime
            raise

    def __del__(self, *_: Any) -> None:
        """Do nothing: a drained client has no connections, and nodes warn of open ones."""


@dataclass(eq=False)
class Connector:
    """Builds redis-py clients for entries: of the given classes, or subclasses of redis-py's.

    `shardkit.testing.fakes.servers` replaces it to build clients of in-memory servers.
    """

    breaks = True  # whether servers have circuit breakers unless their entries disable them
    shares = True  # whether databases of a server share connections, which open each before use

    blocking_class: type[redis.Redis] = redis.Redis
    awaiting_class: type[aioredis.Redis] = aioredis.Redis
    cluster_class: type[ClusterClient] = ClusterClient
    awaiting_cluster_class: type[AsyncClusterClient] = AsyncClusterClient

    def node_classes(self, fields: Mapping[str, Any]) -> tuple[type[Any], type[Any], type[Any]]:
        """Return the classes of a cluster's connections and pools, and of awaiting connections."""
        if fields.get("ssl"):
            return TlsConnection, Pool, AsyncTlsConnection
        return TcpConnection, Pool, AsyncTcpConnection

    def blocking(self, fields: Mapping[str, Any]) -> redis.Redis | redis.RedisCluster:
        """Return a blocking client; connects only to a cluster, to discover its nodes.

        ``fields`` are an entry's, resolved (`Entry.resolved`). ``credentials`` and
        ``sentinel_credentials`` may be redis-py's providers, asked at each connect.
        """
        if fields.get("cluster"):
            return _cluster(self.cluster_class, fields, *self.node_classes(fields)[:2])
        blocking = self.blocking_class(connection_pool=_pool(fields, _BLOCKING))
        check_replies(blocking)
        return blocking

    def awaiting(self, fields: Mapping[str, Any]) -> aioredis.Redis | aioredis.RedisCluster:
        """Return an awaiting client; connects when it is first used."""
        if fields.get("cluster"):
            return _acluster(self.awaiting_cluster_class, fields, self.node_classes(fields)[2])
        pool = _pool(fields, _AWAITING)
        pool.as_redis_py = pool.as_redis_py or not fields.get("multiplex", True)
        awaiting = self.awaiting_class(connection_pool=pool)
        check_replies(awaiting)
        return awaiting


class _Classes(NamedTuple):
    retry: Any
    client: Any
    master: Any
    run: Any
    pool: Any
    tcp: Any
    tls: Any
    unix: Any


_BLOCKING = _Classes(
    *(Retry, redis.Redis, Master, run_steps, Pool),
    *(TcpConnection, TlsConnection, UnixConnection),
)
_AWAITING = _Classes(
    *(AsyncRetry, aioredis.Redis, AsyncMaster, arun_steps, AsyncPool),
    *(AsyncTcpConnection, AsyncTlsConnection, AsyncUnixConnection),
)


def _pool(fields: Mapping[str, Any], classes: _Classes) -> Any:
    tls, where = fields.get("ssl"), _network(fields)
    kind, master = classes.tls if tls else classes.tcp, None
    if "sentinel" in fields:
        asked = fields["sentinel"]
        clients = [
            classes.client(connection_pool=_to_sentinel(fields, host, port, classes))
            for host, port in asked["sentinels"]
        ]
        listeners = [_listener(fields, host, port) for host, port in asked["sentinels"]]
        master = classes.master(asked["service"], Sentinels(clients, classes.run), listeners)
    elif fields.get("one_slot"):
        node = _pool({n: v for n, v in fields.items() if n != "one_slot"}, classes)
        owner = SlotOwner([classes.client(connection_pool=node)], classes.run)
        kind, master = in_one_slot(kind), classes.master(SERVICE, owner, ())
    elif "unix_socket_path" in fields:
        kind, where = classes.unix, {"path": fields["unix_socket_path"]}
    else:
        host, port = _address(fields)
        where |= {"host": host, "port": port}
    pool = classes.pool(kind, **_common(fields, classes.retry), **where)
    pool.as_redis_py = bool(fields.get("one_slot"))  # all else packs commands itself
    pool.master = master
    pool.credentials = fields.get("credentials") or source_in(fields)
    pool.may_multi = fields.get("select") != "confirmed"
    _bound(pool, fields)
    return pool


def _to_sentinel(fields: Mapping[str, Any], host: str, port: int, classes: _Classes) -> Any:
    """Return a pool to a Sentinel: the entry's timeouts and TLS, credentials of their own."""
    shared = ("ssl", "socket_", *_LIMITS)
    own = {name: value for name, value in fields.items() if name.startswith(shared)}
    own |= {n: v for n, v in fields["sentinel"].items() if n in ("username", "password", "auth")}
    own |= {"host": host, "port": port, "credentials": fields.get("sentinel_credentials")}
    return _pool(own, classes)


_listeners: weakref.WeakValueDictionary[str, SentinelListener] = weakref.WeakValueDictionary()
_listeners_lock = ForkSafeLock()


def _listener(fields: Mapping[str, Any], host: str, port: int) -> SentinelListener:
    given = {n: v for n, v in fields["sentinel"].items() if n not in ("service", "sentinels")}
    tls = sorted((n, v) for n, v in fields.items() if n.startswith("ssl"))
    key = repr((host, port, sorted(given.items()), tls))
    with _listeners_lock:
        listener = _listeners.get(key)
        if listener is None:

            def connect() -> Any:
                return _to_sentinel(fields, host, port, _BLOCKING).make_connection()

            listener = _listeners[key] = SentinelListener(connect)
        return listener


def _cluster(
    kind: type[ClusterClient],
    fields: Mapping[str, Any],
    connection: type[Any],
    pool: type[Any],
) -> redis.RedisCluster:
    seeds, database = seeds_of(fields), ClientDatabase(fields.get("db", 0))
    options = _common(fields, Retry) | _network(fields)

    class NodePool(pool):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _of_node(self, fields, options, database, lambda: owner and owner())

    owner: weakref.ref[Any] | None = None
    failure: Exception | None = None
    for host, port in [*seeds, *_known_nodes(seeds)]:
        try:
            # Only a cluster given by URL uses the classes of pool and connection.
            client = kind(
                url=f"redis://[{host}]:{port}" if ":" in host else f"redis://{host}:{port}",
                retry=options["retry"],
                require_full_coverage=False,
                connection_pool_class=NodePool,
                connection_class=connection,
                **{name: options[name] for name in _OF_CLUSTER_CLIENTS if name in options},
                **_replicas_of(fields),
            )
        except RedisClusterException as error:
            failure = failure or refusal_in(error) or error
        else:
            owner = weakref.ref(client)
            return _prepared(client, fields, seeds)
    assert failure is not None
    raise failure


def _acluster(
    kind: type[AsyncClusterClient], fields: Mapping[str, Any], connection: type[Any]
) -> aioredis.RedisCluster:
    seeds, database = seeds_of(fields), ClientDatabase(fields.get("db", 0))
    options = _common(fields, AsyncRetry) | _network(fields)
    client = kind(
        host=seeds[0][0],
        port=seeds[0][1],
        ssl=bool(fields.get("ssl")),
        require_full_coverage=False,
        **{name: value for name, value in options.items() if name not in (*_LIMITS, "db")},
        **_replicas_of(fields),
    )
    owning = weakref.ref(client)

    def make_pool(given: dict[str, Any]) -> AsyncPool:
        pool = AsyncPool(connection, **given)
        _of_node(pool, fields, {**options, "retry": AsyncRetry(NoBackoff(), 0)}, database, owning)
        return pool

    client.make_pool = make_pool
    learn_commands_of_any(client)
    return _prepared(client, fields, seeds)


def _of_node(
    pool: Any,
    fields: Mapping[str, Any],
    options: Mapping[str, Any],
    database: ClientDatabase,
    owning: Callable[[], Any],
) -> None:
    """Give the pool of a cluster's node what belongs to its entry, and to its client.

    redis-py's clients drop some options without a word.
    """
    where, policy = pool.connection_kwargs, fields.get("policy", NO_POLICY)
    where |= {**options, "db": database.number}
    where.pop("max_connections", None)
    pool.database, pool.credentials = database, fields.get("credentials") or source_in(fields)
    _bound(pool, {"policy": policy.of_node(where["host"], where["port"])})
    if (owner := owning()) is not None:
        pool.closed, pool.draining = owner.closed, owner.draining


Address: TypeAlias = tuple[str, int]
_clusters: weakref.WeakSet[Any] = weakref.WeakSet()  # of this process
_clusters_lock = ForkSafeLock()


def seeds_of(fields: Mapping[str, Any]) -> list[Address]:
    """Return the addresses of the nodes that a cluster's resolved entry names."""
    named = [(host, port) for host, port in fields.get("startup_nodes", ())]
    return list(dict.fromkeys([_address(fields), *named]))


def _known_nodes(seeds: Sequence[Address]) -> list[Address]:
    """Return the nodes that other clients of the same entry have discovered."""
    with _clusters_lock:
        alike = [client for client in _clusters if client.seeds == seeds]
    nodes = [(node.host, node.port) for client in alike for node in client.get_nodes()]
    return list(dict.fromkeys(node for node in nodes if node not in seeds))


def _prepared(client: C, fields: Mapping[str, Any], seeds: list[Address]) -> C:
    client.policy = fields.get("policy", NO_POLICY)
    client.held = bool(fields.get("held"))
    client.seeds = seeds
    # By name, as all nodes may have got new addresses, and the host leads to one of them.
    ask_others_too(client, lambda: [*seeds, *_known_nodes(seeds)])
    with _clusters_lock:
        _clusters.add(client)
    return client


def _address(fields: Mapping[str, Any]) -> tuple[str, int]:
    return fields.get("host", "localhost"), fields.get("port", DEFAULT_PORT)


def _replicas_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not fields.get("reads_replicas"):
        return {}
    return {"load_balancing_strategy": LoadBalancingStrategy.ROUND_ROBIN_REPLICAS}


def _bound(pool: Any, fields: Mapping[str, Any]) -> None:
    """Give a pool its server's policy, and its callers' waiting time from ``blocking_pool``."""
    if "blocking_pool" in fields:
        pool.wait_seconds = fields["blocking_pool"].get("timeout", BLOCKING_POOL_TIMEOUT)
    pool.policy = fields.get("policy", NO_POLICY)
    pool.register()


def _common(fields: Mapping[str, Any], retry: type[Any]) -> dict[str, Any]:
    retries = fields.get("retries", 0)
    backoff = ExponentialWithJitterBackoff(base=0.05, cap=1) if retries else NoBackoff()
    if "blocking_pool" in fields:
        size = fields["blocking_pool"].get("size", BLOCKING_POOL_SIZE)
        fields = {**fields, "max_connections": size}
    return {
        "protocol": fields.get("protocol", 2),
        "socket_timeout": fields.get("socket_timeout", SOCKET_TIMEOUT),
        "retry": retry(backoff, retries),
        **library_name(),
        **{name: fields.get(name, default) for name, default in _COMMON.items()},
        **{name: fields[name] for name in ("max_connections", *_LIMITS) if name in fields},
    }


def _network(fields: Mapping[str, Any]) -> dict[str, Any]:
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
