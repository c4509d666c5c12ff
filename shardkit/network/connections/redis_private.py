"""Everything that shardkit uses of redis-py beyond its documentation.

Each private part has one name here and is used nowhere else. When a new redis-py moves one, the
contract test, tests/network/connections/test_redis_private.py, fails and names it; adapt it here.

Two kinds of names cannot be wrapped: mixins override `Connection._connect` (in
`shardkit.testing.fakes.connections`, for fakeredis) and `_connection_arguments`, and pipelines
declare `_is_async_client` and `_event_dispatcher`, which the
types of redis-py's command methods need. The contract test covers these, too.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from itertools import chain
from operator import attrgetter, methodcaller
from ssl import SSLWantReadError, SSLWantWriteError
from typing import Any

import redis
from hiredis import PushNotification
from redis import sentinel
from redis._parsers import Encoder, _AsyncHiredisParser, _HiredisParser
from redis._parsers.hiredis import NOT_ENOUGH_DATA as INCOMPLETE
from redis._parsers.socket import (  # type: ignore[attr-defined]
    SENTINEL as NOT_GIVEN,
    SERVER_CLOSED_CONNECTION_ERROR,
)
from redis.asyncio import sentinel as aiosentinel
from redis.asyncio.cluster import (
    ClusterNode as AsyncClusterNode,
    NodesManager as AsyncNodesManager,
    RedisCluster as AsyncRedisCluster,
)
from redis.client import EMPTY_RESPONSE, NEVER_DECODE
from redis.cluster import PRIMARY, REPLICA, ClusterNode
from redis.connection import DefaultParser
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TimeoutError as RedisTimeoutError,
)
from redis.utils import str_if_bytes

from shardkit.network.connections.databases import DatabaseMovedError, Steps
from shardkit.operations.deadlines import current
from shardkit.operations.reply_kinds import READING_ERRORS
from shardkit.operations.steps import arun_steps, run_by_face, run_steps

# ---- blocking connections. Written in C, as they are used at every call.

socket_of: Callable[[Any], Any] = attrgetter("_sock")
"""The socket; None while it is not connected."""

address_of: Callable[[Any], str] = methodcaller("_host_error")
"""The server's address, for messages."""


def set_timeout(connection: Any, seconds: float | None) -> None:
    """Set the timeout of a blocking connection's reads and writes, in seconds; None for ever."""
    sock = connection._sock
    if sock is not None and hasattr(sock, "settimeout"):  # not a fake one
        sock.settimeout(seconds)
        connection._parser._socket_timeout = seconds


# ---- connections of both kinds


# What sockets raise when their time is over; without any, TLS's want more.
LATE = (TimeoutError, BlockingIOError, SSLWantReadError, SSLWantWriteError)


class _Limited:
    """A parser over that of a connection of ours, which checks the limits of an incomplete reply.

    They count from its first bytes: until then, the reader may subscribe or block. Pushes in front
    of it are part of it, unless its command may block.
    """

    run: Callable[[Steps[Any]], Any]
    receive: Callable[..., Any]  # waits for data
    _pushed_at: float | None = None  # when the first push came, while a reply is read
    _replies: Any
    _reader: Any = None
    _connected = True  # redis-py sets it of awaiting ones

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Closed before it is collected with its connection, or it would warn. Python calls
        # finalizers in any order, but only after the callbacks of weak references.
        self._open: list[Any] = []
        weakref.finalize(self, _close_all_left, self._open).atexit = False

    def on_connect(self, connection: Any, **kwargs: Any) -> None:
        super().on_connect(connection, **kwargs)  # type: ignore[misc]
        transport = transport_of(connection)
        if transport is None and not getattr(connection, "_sock", None):
            raise ConnectionError(SERVER_CLOSED_CONNECTION_ERROR)  # by another thread or task
        sock = connection._sock if transport is None else transport.get_extra_info("socket")
        # Weakly, as a transport has its event loop, which may be dropped. uvloop's cannot be.
        with suppress(TypeError):
            self._open[:] = [sock if transport is None else weakref.ref(transport)]
        self._replies = connection.parses(sock)
        self._reader = self._replies.reader

    @run_by_face
    def read_response(
        self: Any, disable_decoding: bool = False, push_request: bool = False, **options: Any
    ) -> Steps[Any]:
        """Read a reply; return an error instead of one that cannot be decoded.

        redis-py's own code calls itself after each push, so a thousand would end Python's stack.
        """
        if self._reader is None or not self._connected:
            raise ConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
        replies, first_at, size, self._pushed_at = self._replies, 0.0, 0, None
        gets = replies.gets_raw if disable_decoding else replies.gets_decoded
        headers = replies.headers
        while True:
            try:
                reply = gets()
            except TypeError as error:  # a list as a map's key
                raise InvalidResponse(f"the server sent what is no reply: {error}") from error
            if reply is INCOMPLETE:
                if size:
                    replies.check(time.monotonic() - first_at, size)
                if headers.suspect:
                    headers.go_on()
                    continue
                data = yield partial(self.receive, **options)
                if not data:
                    raise ConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
                first_at, size = first_at if size else time.monotonic(), size + len(data)
                headers.feed(data, len(data))
            elif isinstance(reply, PushNotification):
                self._pushed_at = self._pushed_at or time.monotonic()
                name = reply[0] if reply else None
                if isinstance(name, bytes | str) and name.isascii():
                    reply = yield partial(self.handle_push_response, reply)
                if push_request:
                    return reply
                size = 0 if replies.may_block else size
            else:
                first = reply[0] if isinstance(reply, list) and reply else reply
                if isinstance(first, ConnectionError):
                    raise first
                return reply


def undecodable(error: UnicodeDecodeError) -> ResponseError:
    """Return the error of a reply that cannot be decoded; later ones can be read."""
    return ResponseError(f"the reply cannot be decoded: {error}")


class LimitedParser(_Limited, _HiredisParser):
    """redis-py's parser, within the limits of a reply and the caller's deadline."""

    run = staticmethod(run_steps)

    def can_read(self, timeout: float | None = 0) -> bool:
        """Whether something has come, or comes within ``timeout`` seconds; nothing is read."""
        if self._sock is None:
            raise ConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
        milliseconds = None if timeout is None else 1000 * max(0, timeout)  # negative: for ever
        return bool(self._replies.has_more() or self._replies.poll(milliseconds))

    def receive(self, timeout: Any = NOT_GIVEN) -> bytes:
        """Wait for data, and return it."""
        sock = self._sock
        if sock is None:
            raise ConnectionError(SERVER_CLOSED_CONNECTION_ERROR)
        usual = self._socket_timeout
        wanted = usual if timeout is NOT_GIVEN else timeout
        deadline = current.get()
        allowed = wanted if deadline is None else deadline.shorten(wanted)
        started = time.monotonic()
        if self._pushed_at and deadline is not None and deadline.left() <= 0:  # they may never end
            raise deadline.passed(started - self._pushed_at)
        try:
            if allowed != usual:
                sock.settimeout(allowed)
            data: bytes = sock.recv(self.socket_read_size)
            return data
        except LATE:
            if deadline is not None and allowed != wanted and deadline.left() <= 0:
                raise deadline.passed(time.monotonic() - started) from None
            raise RedisTimeoutError("Timeout reading from socket") from None
        finally:
            if allowed != usual:
                sock.settimeout(usual)


class AsyncLimitedParser(_Limited, _AsyncHiredisParser):
    """redis-py's awaiting parser, within the limits of a reply."""

    run = staticmethod(arun_steps)

    async def receive(self) -> bytes:
        """Wait for data, and return it."""
        stream: Any = self._stream
        data: bytes = await stream.read(self._read_size)
        return data


def parse_error(line: str) -> Exception:
    """Return redis-py's exception for an error as a server writes it."""
    error: Exception = DefaultParser.parse_error(line)  # type: ignore[no-untyped-call]
    return error


def is_script_missing(error: object) -> bool:
    """Whether this is the error of a server that lacks a script, so that nothing was executed.

    Servers say "No matching script"; a caller's script may return its own NOSCRIPT after a write.
    """
    return isinstance(error, NoScriptError) and str(error).startswith("No matching script")


# Whether redis-py's `connect` repeats all of it, as ``retries`` say, not only the socket's part.
CONNECT_REPEATS = "retry" in redis.Connection.connect.__code__.co_names

PREVIOUS_MASTER = "The previous master is now a slave"
"""redis-py's error for a master that Sentinels replaced."""


class MasterNotFoundError(sentinel.MasterNotFoundError, aiosentinel.MasterNotFoundError):
    """No Sentinel names a master."""


class MasterChangingError(MasterNotFoundError):
    """Sentinels are replacing a master, and have no other yet; nothing was sent."""


def is_unready(error: object) -> bool:
    """Whether a server refused because it loads, is a replica, or was left: nothing was executed.

    Decided by the servers' texts, as a caller's script may return errors of the same names after a
    write; and by redis-py's own for a master that Sentinels replaced.
    """
    text = str(error)
    if isinstance(error, ReadOnlyError):
        return text.startswith("You can't write against a read only")
    if isinstance(error, BusyLoadingError):
        return "is loading the dataset in memory" in text
    if isinstance(error, MasterDownError):
        return text.startswith("Link with MASTER is down and replica-serve")
    if isinstance(error, DatabaseMovedError):
        return error.elsewhere
    if isinstance(error, MasterChangingError):
        return True
    return isinstance(error, ConnectionError) and text == PREVIOUS_MASTER


def is_closed(error: object) -> bool:
    """Whether a server refused a write for want of replicas, as a cluster does that was left."""
    return isinstance(error, ResponseError) and "NOREPLICAS Not enough good rep" in str(error)


def is_unblocked(error: object) -> bool:
    """Whether a server ended a blocking command because it is a replica now.

    A pop or read was not executed. After WAIT, another server counts none of the same writes.
    """
    return str(error).startswith("UNBLOCKED force unblock")


def lost_its_role(error: Exception) -> bool:
    """Whether a server refused or unblocked a command because it is a replica now."""
    return is_unready(error) or str(error).startswith("UNBLOCKED ")


def has_connect_callbacks(connection: Any) -> bool:
    """Whether the connection has a subscriber, which subscribes again when it reconnects."""
    return any(callback() is not None for callback in connection._connect_callbacks)


def unread(connection: Any) -> bytes:
    """Return what an awaiting connection has received and not parsed."""
    return bytes(getattr(getattr(connection._parser, "_stream", None), "_buffer", b""))


def has_unread(connection: Any) -> bool:
    """Whether data was received on a connection that was not read."""
    return connection.reply_parser.has_more() or bool(unread(connection))


_ADDRESS = ("_host", "host", "port", "path", "service_name")


@cache
def slots_of(kind: Any) -> list[str]:
    """Return the names of attributes for which the objects of a class have slots."""
    slots = [name for class_ in kind.__mro__ for name in getattr(class_, "__slots__", ())]
    return [name for name in slots if not name.startswith("__")]


def move_connection(connection: Any, to: Any) -> None:
    """Make an empty object of the same class what a connection is.

    What is left is unconnected, and tells only where it led, which redis-py puts into metrics.
    """
    kind: Any = type(connection)
    for name in slots_of(kind):
        if hasattr(connection, name):
            setattr(to, name, getattr(connection, name))
            delattr(connection, name)
    to.__dict__ = known = connection.__dict__
    connection.__dict__ = {name: known[name] for name in _ADDRESS if name in known}
    connection._sock = connection._reader = connection._writer = None


def postpone_health_check(connection: Any, now: float) -> None:
    """Note that the server has just answered."""
    if connection.health_check_interval:
        connection.next_health_check = now + connection.health_check_interval


def health_check_is_due(connection: Any, now: float) -> bool:
    """Whether the server must be checked before the next use."""
    interval = connection.health_check_interval
    if interval and now > connection.next_health_check:
        return True
    return bool(connection.login_expires and connection.login.is_due())


# ---- awaiting connections


def transport_of(connection: Any) -> Any:
    """Return the asyncio transport; None while it is not connected, and in memory."""
    return getattr(getattr(connection, "_writer", None), "transport", None)


@cache
def library_name() -> dict[str, Any]:
    """Return the arguments of connections for the name and version that ``CLIENT LIST`` shows.

    Without them, redis-py looks up its own version for every connection, which takes longer than
    connecting.
    """
    name, ours = "shardkit", version("shardkit")
    try:
        from redis.driver_info import DriverInfo
    except ModuleNotFoundError:  # before redis-py 7.2
        return {"lib_name": f"redis-py({name}_v{ours})", "lib_version": redis.__version__}
    return {"driver_info": DriverInfo().add_upstream_driver(name, ours)}


# ---- pools


def himport_registry() -> dict[str, Any]:
    """Return the argument of a pool's connections for the fieldsets of HIMPORT."""
    try:
        from redis.himport import HImportRegistry
    except ModuleNotFoundError:  # before redis-py 8
        return {}
    return {"himport_registry": HImportRegistry()}


# ---- clusters


def slot_owners(client: Any) -> Mapping[int, Sequence[Any]]:
    """Return the nodes of each slot, its master first."""
    owners: Mapping[int, Sequence[Any]] = getattr(client.nodes_manager, "slots_cache", {})
    return owners


def nodes_of_slot(client: Any, slot: int) -> Sequence[Any]:
    """Return the nodes of a slot, its master first; none if none is known."""
    return slot_owners(client).get(slot, ())


def reads_replicas(client: Any) -> bool:
    """Whether a cluster's client reads from replicas: its connections to them say READONLY."""
    return getattr(client, "load_balancing_strategy", None) is not None


def replica_in(nodes: Sequence[Any], near: Collection[str], stays: bool) -> Any:
    """Return a replica among the nodes of a slot, always the same of a process; else the master.

    Replicas that are ``near``, by name, come first, then, if it ``stays``, a near master.
    """
    replicas = [node for node in nodes[1:] if node.name in near]
    if not replicas and not (stays and nodes[0].name in near):
        replicas = list(nodes[1:])
    return replicas[os.getpid() % len(replicas)] if replicas else nodes[0]


def is_replica(node: Any) -> bool:
    """Whether a cluster's node is a replica, as far as its client knows."""
    return getattr(node, "server_type", None) == REPLICA


def node_of(client: Any, host: str, port: int) -> Any:
    """Return a cluster's node; it becomes known if it is not yet, as it owns no slot so far."""
    node = client.get_node(host, port)
    if node is None:
        node = _new_node(client.nodes_manager, host, port)
        node = client.nodes_manager.nodes_cache.setdefault(node.name, node)
    return node


def _new_node(manager: Any, host: str, port: int) -> Any:
    if not isinstance(manager, AsyncNodesManager):
        return ClusterNode(host, port, PRIMARY)  # type: ignore[no-untyped-call]
    node = AsyncClusterNode(host, port, PRIMARY, **manager.connection_kwargs)
    _lend_from(node, manager.make_pool)  # type: ignore[attr-defined]
    return node


class _Lender:
    """A pool of ours in place of the idle connections of an awaiting cluster's node.

    The node takes connections there, and puts them back.
    """

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.popleft, self.append = pool.get_available_connection, pool.release_nowait

    def __len__(self) -> int:
        return len(self.pool.connections.idle)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self.pool.connections.idle))


def _lend_from(node: Any, make_pool: Callable[[dict[str, Any]], Any]) -> None:
    """Have an awaiting cluster's node use a pool of ours, made of its connections' arguments."""
    if not isinstance(node._free, _Lender):
        pool = make_pool({**node.connection_kwargs, "max_connections": node.max_connections})
        node._free, node._connections = _Lender(pool), pool.connections


def pool_of_node(node: Any) -> Any:
    """Return the pool of an awaiting cluster's node."""
    return node.connection_pool if hasattr(node, "connection_pool") else node._free.pool


def pools_of_nodes(client: Any) -> list[Any]:
    """Return the pools of an awaiting cluster's nodes."""
    manager = client.nodes_manager
    nodes = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]
    return list(dict.fromkeys(map(pool_of_node, nodes)))


def learn_slots(client: Any) -> Any:
    """Have a cluster's client learn its slots again; of an awaiting one, a coroutine."""
    return client.nodes_manager.initialize()


def ask_others_too(client: Any, others: Callable[[], Sequence[tuple[str, int]]]) -> None:
    """Have a cluster's client ask other nodes if none answers of those that it knows.

    An awaiting one's nodes use pools of ours, which its ``make_pool`` makes.
    """
    manager = client.nodes_manager
    kind: Any = type(manager)
    awaits = isinstance(client, AsyncRedisCluster)

    def discover(options: dict[str, Any]) -> Steps[None]:
        learn = partial(kind.initialize, manager, **options)
        try:
            yield learn
        except RedisClusterException as error:
            refusal = refusal_in(error)
            if refusal or not str(error).startswith("Redis Cluster cannot be connected"):
                raise (refusal or error) from error.__cause__
            nodes = [_new_node(manager, *address) for address in others()]
            known, manager.startup_nodes = manager.startup_nodes, {n.name: n for n in nodes}
            try:
                yield learn
            except BaseException:
                manager.startup_nodes = known  # they may come back
                for node in nodes if awaits else ():
                    pool_of_node(node).close_for_good()
                raise

    def initialize(self: Any, **options: Any) -> None:
        run_steps(discover(options))

    async def ainitialize(
        self: Any, additional_startup_nodes_info: Any = (), **options: Any
    ) -> None:
        handled = sys.exception()  # before 3.12, what a coroutine is woken up with hides it
        more = [_new_node(self, *address) for address in additional_startup_nodes_info or ()]
        for node in more:
            self.startup_nodes.setdefault(node.name, node)
        try:
            await arun_steps(discover(options))
        except RedisClusterException as error:
            error.__context__ = handled or error.__context__
            raise

    def set_nodes(self: Any, old: dict[str, Any], *args: Any, **options: Any) -> None:
        kind.set_nodes(self, old, *args, **options)
        for node in old.values():
            _lend_from(node, self.make_pool)

    # Not as attributes of the object, which has __slots__.
    own: dict[str, Any] = {"__slots__": (), "initialize": initialize}
    if awaits:
        own |= {"initialize": ainitialize, "set_nodes": set_nodes}
        own["make_pool"] = staticmethod(client.make_pool)
        for node in manager.startup_nodes.values():
            _lend_from(node, client.make_pool)
    manager.__class__ = type(kind.__name__, (kind,), own)


def refusal_in(error: BaseException) -> RedisClusterException | None:
    """Return why a node refused to tell its slots; redis-py says that it is in no cluster."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ResponseError) and "cluster support disabled" not in str(cause):
            return RedisClusterException(str(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def learn_commands_of_any(cluster: AsyncRedisCluster) -> None:
    """Have an awaiting cluster learn the commands from a node that answers, not only the first."""
    learn = cluster.commands_parser.initialize

    async def initialize(node: Any = None) -> None:
        failure: Exception | None = None
        for any_node in [node, *cluster.get_nodes()]:
            try:
                return await learn(any_node)
            except (ConnectionError, RedisTimeoutError) as error:
                failure = error
            except READING_ERRORS as error:
                text = f"the reply to COMMAND cannot be used ({type(error).__name__})"
                failure = InvalidResponse(text)
        assert failure is not None
        raise failure

    cluster.commands_parser.initialize = initialize  # type: ignore[method-assign]


def abandon_connections(closable: Any) -> None:
    """Close the sockets of an awaiting pool or cluster whose event loop is closed or a parent's."""
    for connection in chain(closable.connections, *(pool.connections for pool in closable.below)):
        connection.inherited = connection.own and not has_connect_callbacks(connection)
        transport = getattr(getattr(connection, "_writer", None), "transport", None)
        while transport is not None:  # asyncio's: TLS's first, then the socket's
            transport._closed = transport._closing = True
            sock, transport._sock = getattr(transport, "_sock", None), None
            if sock is not None:
                sock.close()
            protocol = getattr(transport, "_ssl_protocol", None)
            transport = getattr(protocol, "_transport", None)
        connection._reader = connection._writer = None


def close_left(line: Any) -> None:
    """Close the socket of a connection that is collected, or its transport if its loop runs here.

    Other loops close theirs when they end.
    """
    if isinstance(line, asyncio.BaseTransport):
        running = asyncio._get_running_loop()
        if running is not None and getattr(line, "_loop", None) is running:
            _close_transport(line)
    elif line is not None:
        line.close()


def _close_all_left(lines: list[Any]) -> None:
    for line in lines:
        close_left(line() if isinstance(line, weakref.ref) else line)


def close_connection_now(connection: Any) -> None:
    """Close an awaiting connection without another turn of its running event loop."""
    if hasattr(connection, "tell_closed"):  # ours
        connection.tell_closed()
        connection.forget_use()
    _close_transport(transport_of(connection))
    connection._reader = connection._writer = None  # last: a writer warns of an open transport


def _close_transport(transport: Any) -> None:
    """Close asyncio's transport now: its own method needs the loop's next turn, or warns."""
    while hasattr(transport, "_ssl_protocol"):  # TLS's, over the socket's
        transport = transport._ssl_protocol._transport
    if hasattr(transport, "_call_connection_lost"):
        if not transport._conn_lost:  # else that is on its way
            if not transport._loop.is_closed():
                transport._loop._remove_reader(transport._sock_fd)
                transport._loop._remove_writer(transport._sock_fd)
            transport._closing, transport._conn_lost = True, 1
            transport._call_connection_lost(None)
    elif transport is not None:
        transport.abort()


def client_over(client: Any, pool: Any) -> Any:
    """Return a client like another one over another pool: a tenth of the time of making it."""
    other = copy.copy(client)
    other.connection_pool = pool
    vars(other).pop("_shardkit_kept", None)  # see `kept_with`
    callbacks = client.response_callbacks  # a table without regard to case
    other.response_callbacks = type(callbacks)({})
    dict.update(other.response_callbacks, callbacks)
    return other


def reply_callbacks(client: Any) -> Mapping[Any, Callable[..., Any]]:
    """Return what turns replies into the values of redis-py's methods, by command."""
    if not hasattr(client, "response_callbacks"):  # a cluster's
        node = client.get_default_node()
        client = getattr(node, "redis_connection", node)
    callbacks: Mapping[Any, Callable[..., Any]] = client.response_callbacks
    return callbacks


# redis-py's own, for others.
__all__ = ["EMPTY_RESPONSE", "INCOMPLETE", "NEVER_DECODE", "NOT_GIVEN", "Encoder", "str_if_bytes"]
