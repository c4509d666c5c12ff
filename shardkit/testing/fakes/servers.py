"""In-memory servers: fakeredis behind redis-py's own clients, with faults on demand.

Clients and pools are those that `shardkit.network.connections.Connector` builds; only their
connections lead to memory. Each address is a separate server, with databases, scripts and
transactions. All clients, blocking and awaiting, of all kits with the same connector see the same
data. docs/testing.md says what each fault does, and what differs from a real server.

Links repeat idempotent commands once, and what a server refuses that loads its data or is a replica
for as long as the entry's ``socket_timeout``.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias

import redis
import redis.asyncio as aioredis
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    RedisError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit.config.entry import DEFAULT_PORT, Entry
from shardkit.errors import RoutingError, extra
from shardkit.network.connections import Connector
from shardkit.network.connections.redis_private import parse_error
from shardkit.network.links.user_clients import DirectClient, MultiplexedClient
from shardkit.operations.forks import ForkSafeLock
from shardkit.routing.command_keys import key_positions
from shardkit.routing.placement import slot_of

Packed: TypeAlias = str | bytes | Iterable[bytes]

# Affected only if named: commands that set up a connection, and those that surround others.
_AROUND: Final = frozenset(
    {
        *("AUTH", "HELLO", "SELECT", "CLIENT", "ASKING", "READONLY", "READWRITE"),
        *("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "SCRIPT"),
    }
)
_THIS_HOST: Final = frozenset({"localhost", "127.0.0.1", "::1", ""})
# Fields that a server in memory ignores.
_IGNORED: Final = frozenset(
    {
        *("unix_socket_path", "sentinel", "cluster", "replicas"),
        *("username", "password", "auth", "credentials", "sentinel_credentials"),
    }
)
_CROSS_SLOT: Final = "CROSSSLOT Keys in request don't hash to the same slot"


@dataclass(eq=False)
class _Fault:
    """A fault that affects the next ``times`` commands, or the next ones of these ``names``."""

    error: Callable[[], Exception]  # makes the error that the client gets instead of an answer
    executes: bool = False
    # Whether the connection breaks after the command, so that no later one arrives.
    cuts: bool = False
    times: float = 1
    names: frozenset[str] = frozenset()

    def affects(self, name: str) -> bool:
        return name in self.names if self.names else name not in _AROUND


class MemoryServer:
    """A server in memory, and its faults. Created by `MemoryConnector`.

    Thread-safe. Faults take effect in the order in which they were given.

    Attributes:
        address: ``127.0.0.1:7001``, ``unix:/path``, ``sentinel:service@host:port,…``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.in_slots = False
        self.fake = _connections().FakeServer(version=(7, 2))
        self._lock = ForkSafeLock()
        self._faults: list[_Fault] = []
        self._down = False
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inside: redis.Redis = self.client()
        _servers.add(self)

    @property
    def entry(self) -> Entry:
        """The entry to connect with, through the connector of this server."""
        return Entry(_fields_of(self.address), self.address)

    # ---- faults

    def down(self) -> None:
        """Refuse connections and break the open ones, even while they wait for an answer.

        The data is kept; see `flush`.
        """
        with self._lock:
            self._down = True
            broken = list(self._connections)
        for connection in broken:
            connection.break_off()
        for client in self._inside.client_list():
            self.unblock(int(client["id"]))

    def up(self) -> None:
        """Accept connections again."""
        with self._lock:
            self._down = False

    def lose_command(self, *commands: str, times: int | None = 1) -> None:
        """Break the connection before the next command is executed.

        Args:
            commands: only commands of these names are affected, named as they are sent (redis-py's
                ``incr`` sends INCRBY). By default all are.
            times: how many commands are affected; None for all until `clear`.
        """
        self._add(_Fault(closed_by_server, cuts=True), commands, times)

    def lose_answer(self, *commands: str, times: int | None = 1) -> None:
        """Break the connection after the next command is executed; see `lose_command`."""
        self._add(_Fault(closed_by_server, executes=True, cuts=True), commands, times)

    def hang(self, *commands: str, times: int | None = 1) -> None:
        """Execute the next command too late: its client times out, without really waiting.

        See `lose_command` for the arguments. A command that blocks on the server does block.
        """
        self._add(_Fault(self._timeout, executes=True), commands, times)

    def answer(self, error: str | RedisError, *commands: str, times: int | None = 1) -> None:
        """Answer the next command with an error, without executing it.

        Inside a transaction this aborts it, as on a real server. ``error`` is a server's text
        (``"LOADING …"``), or an exception of redis-py. See `lose_command` for the others.
        """
        given = parse_error(error) if isinstance(error, str) else error
        self._add(_Fault(lambda: copy.copy(given)), commands, times)

    def clear(self) -> None:
        """Remove all faults, and accept connections again."""
        with self._lock:
            self._faults.clear()
            self._down = False

    def client(self, **arguments: Any) -> redis.Redis:
        """Return a blocking client that no fault affects; ``arguments`` are of ``redis.Redis``."""
        given = {"connection_class": _connections().InsideConnection, "protocol": 2, **arguments}
        fake: redis.Redis = _connections().FakeRedis(server=self.fake, **given)
        return fake

    def flush(self) -> None:
        """Delete all data and scripts."""
        self._inside.flushall()
        self._inside.script_flush()

    def __repr__(self) -> str:
        return f"<MemoryServer {self.address}{', down' * self._down}>"

    # ---- called by its connections

    def accept(self, connection: Any) -> None:
        """Accept a connection, or refuse it."""
        with self._lock:
            if self._down:
                raise ConnectionRefusedError(111, "Connection refused")
        self.note(connection)

    def note(self, connection: Any) -> None:
        """Note a connection, which breaks when this goes down."""
        with self._lock:
            self._connections.add(connection)

    def unblock(self, client_id: int) -> None:
        """End a command that blocks."""
        self._inside.client_unblock(client_id, error=True)

    def fault_of(self, args: Sequence[bytes]) -> _Fault | None:
        """Return the fault that affects a command; None if it is executed normally."""
        if self._faults:
            name = args[0].decode(errors="replace").upper()
            with self._lock:
                for fault in self._faults:
                    if fault.affects(name):
                        fault.times -= 1
                        if fault.times <= 0:
                            self._faults.remove(fault)
                        return fault
        if self.in_slots and _crosses_slots(args):
            return _Fault(lambda: parse_error(_CROSS_SLOT))
        return None

    def _add(self, fault: _Fault, commands: Iterable[str], times: int | None) -> None:
        fault.names = frozenset(name.upper() for name in commands)
        fault.times = math.inf if times is None else times
        with self._lock:
            if fault.times > 0:
                self._faults.append(fault)

    def _timeout(self) -> Exception:
        return TimeoutError(f"Timeout reading from {self.address}")


# A fork waits for the commands of other threads: a child has copies neither of locks that nobody
# releases nor of half of what a command does.
_servers: Final[weakref.WeakSet[MemoryServer]] = weakref.WeakSet()
_locked: Final = threading.local()


def _hold() -> None:
    _locked.locks = [server.fake.lock for server in list(_servers)]
    for lock in _locked.locks:
        lock.acquire()


def _release() -> None:
    for lock in _locked.locks:
        lock.release()


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_release)


class MemoryConnector(Connector):
    """Builds clients of servers in memory. Pass it to a kit: ``connect(…, connector=memory)``.

    Kits with the same connector share its servers. A new connector has none.

    Raises:
        LocalServerError: fakeredis, or lupa for its scripts, is not installed.
    """

    breaks = False  # a test that has a server up again wants it at once
    shares = False

    def __init__(self) -> None:
        super().__init__(DirectClient, MultiplexedClient)
        _connections()
        self._servers: dict[str, MemoryServer] = {}
        self._lock = ForkSafeLock()

    @property
    def servers(self) -> list[MemoryServer]:
        """The servers that have been connected to, or requested with `server`."""
        return list(self._servers.values())

    def server(self, where: str | Entry) -> MemoryServer:
        """Return the server at an address; it is created if it does not exist.

        Args:
            where: ``"127.0.0.1:7001"``, a URL, a `MemoryServer.address`, or an entry.

        Raises:
            InvalidEntryError: it is not an address.
        """
        if isinstance(where, str):
            if "://" not in where:
                if where.startswith(("unix:", "sentinel:")):
                    return self._server(where)
                where = f"redis://{where}"
            where = Entry({"url": where}, "address")
        return self._server(server_address(where.resolved("address")))

    def flush(self) -> None:
        """Delete all data and scripts of all servers."""
        for server in self.servers:
            server.flush()

    def blocking(self, fields: Mapping[str, Any]) -> redis.Redis | redis.RedisCluster:
        """Return a blocking client of a server in memory; see `Connector.blocking`."""
        client = super().blocking(plain_tcp_fields(fields))
        pool = self._lead_to_memory(client, fields, _connections().MemoryConnection)
        return MemoryCluster(connection_pool=pool) if fields.get("cluster") else client

    def awaiting(self, fields: Mapping[str, Any]) -> aioredis.Redis | aioredis.RedisCluster:
        """Return an awaiting client of a server in memory; see `Connector.awaiting`."""
        client = super().awaiting(plain_tcp_fields(fields))
        pool = self._lead_to_memory(client, fields, _connections().AsyncMemoryConnection)
        return AsyncMemoryCluster(connection_pool=pool) if fields.get("cluster") else client

    def _server(self, address: str) -> MemoryServer:
        with self._lock:
            if address not in self._servers:
                self._servers[address] = MemoryServer(address)
            return self._servers[address]

    def _lead_to_memory(self, client: Any, fields: Mapping[str, Any], connection: type[Any]) -> Any:
        server = self._server(server_address(fields))
        server.in_slots = server.in_slots or bool(fields.get("cluster"))
        pool = client.connection_pool
        pool.connection_class = connection
        pool.connection_kwargs["memory"] = server
        return pool


class _OneNode:
    """The methods of a cluster's client that links use; the client is its only node."""

    name = "memory"

    def get_node_from_key(self, key: bytes) -> Any:
        return self

    def get_node(self, host: str, port: int) -> Any:
        return self

    def get_redis_connection(self, node: Any) -> Any:
        return node

    @property
    def nodes_manager(self) -> Any:
        """The object whose ``initialize`` reads the slots."""
        return self


class MemoryCluster(_OneNode, redis.Redis):
    """A blocking client of a cluster in memory."""

    def initialize(self) -> None:
        """Read the slots: there is nothing to do."""


class AsyncMemoryCluster(_OneNode, aioredis.Redis):  # type: ignore[misc]  # redis-py's own overlap
    """An awaiting client of a cluster in memory."""


@cache
def _connections() -> Any:
    """Return the connections to servers in memory, which import fakeredis."""
    with extra("testing", "servers in memory"):
        import_module("lupa")  # fakeredis runs scripts with it
        return import_module("shardkit.testing.fakes.connections")


def closed_by_server() -> Exception:
    """Return the error of a connection that was broken."""
    return ConnectionError("Connection closed by server.")


def _crosses_slots(args: Sequence[bytes]) -> bool:
    with suppress(RoutingError):  # unknown: the server refuses it
        return len({slot_of(args[n]) for n in key_positions(args)}) > 1
    return False


def plain_tcp_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's fields without those for which a real server would be needed."""
    plain = {n: v for n, v in fields.items() if n not in _IGNORED and not n.startswith("ssl")}
    if fields.keys() & {"unix_socket_path", "sentinel"}:
        plain |= {"host": server_address(fields), "port": 0}  # for messages
    return plain


def _fields_of(address: str) -> dict[str, Any]:
    """Return the fields of an entry whose `server_address` is this one."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        return {"unix_socket_path": rest}
    if kind == "sentinel":
        service, _, sentinels = rest.rpartition("@")
        pairs = [list(_pair(sentinel)) for sentinel in sentinels.split(",")]
        return {"sentinel": {"service": service, "sentinels": pairs}}
    host, port = _pair(address)
    return {"host": host, "port": port}


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def server_address(fields: Mapping[str, Any]) -> str:
    """Return the address that identifies a server."""
    if "sentinel" in fields:
        field = fields["sentinel"]
        sentinels = sorted(f"{host}:{port}" for host, port in field["sentinels"])
        return f"sentinel:{field['service']}@{','.join(sentinels)}"
    if "unix_socket_path" in fields:
        return f"unix:{fields['unix_socket_path']}"
    host = fields.get("host", "localhost")
    host = "127.0.0.1" if host in _THIS_HOST else f"[{host}]" if ":" in host else host
    return f"{host}:{fields.get('port', DEFAULT_PORT)}"
