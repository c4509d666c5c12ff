"""The clients' side of simulated connections: sockets and streams over a `Wire`.

Only these are replaced. redis-py's connections, its parsers, our pools, the links, the dispatcher
and the multiplexer run as they do over a network.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardkit.network.connections import Connector
from shardkit.network.connections.connection import AsyncTcpConnection, TcpConnection
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.pool import AsyncPool, Pool
from shardkit.network.connections.redis_private import socket_of
from shardkit.network.links.cluster_clients import USER_CLIENTS
from shardkit.network.links.user_clients import DirectClient, MultiplexedClient
from shardkit.operations.steps import run_by_face
from shardkit.testing.fakes.servers import plain_tcp_fields, server_address
from shardkit.testing.simulation.processes import Fiber, SimulatedProcess
from shardkit.testing.simulation.servers import Wire

if TYPE_CHECKING:
    from shardkit.testing.simulation.world import World


@cache
def _silent() -> BinaryIO:
    """Return a file that never has anything to read; it stands for a socket where one is polled."""
    return open(os.pipe()[0], "rb", buffering=0, closefd=False)


class SimulatedSocket:
    """A blocking client's socket."""

    def __init__(self, process: SimulatedProcess, timeout: float | None) -> None:
        self.wire: Wire
        self._process = process
        self._timeout = timeout
        self._received = bytearray()
        self._ended = False
        self._user: Fiber | None = None  # the caller that waits for an answer

    def receive(self, data: bytes | None) -> None:
        """Receive data; None at the end of the connection."""
        if data is None:
            self._ended = True
        else:
            self._received += data

    @property
    def readable(self) -> bool:
        """Whether there is anything to read, or the server has closed the connection."""
        return bool(self._received) or self._ended

    def send(self, data: bytes) -> int:
        """Send."""
        self.sendall(data)
        return len(data)

    def sendall(self, data: bytes) -> None:
        """Send."""
        if self._process.dead:
            self._process.unwind()
        if self._ended:
            raise BrokenPipeError(32, "Broken pipe")
        self.wire.write(bytes(data))

    def recv(self, size: int) -> bytes:
        """Receive; waits for the scheduler."""
        self.wire.require_own()
        if not self.readable:
            self.wait_for(self._timeout)
        if not self.readable:
            raise TimeoutError("timed out")
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def recv_into(self, buffer: Any, *_: Any) -> int:
        """Receive into a buffer."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def wait_for(self, seconds: float | None) -> None:
        """Wait at most ``seconds`` seconds until there is something to read."""
        process = self._process
        if process.immediate:
            while self.wire.requests and not self.readable:
                self.wire.deliver()
            if not self.readable:
                time.sleep(seconds or 0.0)
            return
        fiber = Fiber.current
        if process.dead or fiber is None:
            process.unwind()
        assert fiber is not None
        until = float("inf")
        if seconds is not None:
            until = process.now() + seconds / process.clock.rate
        self._user = fiber
        fiber.wait(lambda: self.readable, until)
        self._user = None

    def settimeout(self, seconds: float | None) -> None:
        """Set how long a read may wait."""
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        """Return how long a read may wait."""
        return self._timeout

    def shutdown(self, how: int) -> None:
        """Make its reader find it closed."""
        self._ended = True

    def close(self) -> None:
        """Close the connection; only its user may.

        The system gives its number to the next that is opened, which the user would then write to.
        """
        fiber, users = Fiber.current, self._process.fibers  # a parent's are not among them
        if fiber not in (None, self._user) and self._user in users and not self._process.dead:
            error = AssertionError(f"{self.wire.server.address}: closed while it is in use")
            self._process.failure = self._process.failure or error
        self.wire.close_client()

    def fileno(self) -> int:
        """Return a file that never has anything to read."""
        return _silent().fileno()


class _Wired:
    """What blocking and awaiting connections over a simulated network share."""

    db: Any
    host: str
    port: int
    socket_timeout: float | None
    socket_connect_timeout: float | None
    ends: bool
    _parser: Any

    def __init__(
        self, *, world: World, process: SimulatedProcess, address: str = "", **options: Any
    ) -> None:
        self._world = world
        self._process = process
        super().__init__(**options)
        self._given_address = address

    @property
    def _address(self) -> str:
        """Of which Sentinels decide just before it connects, if it is theirs."""
        return self._given_address or f"{self.host}:{self.port}"

    @run_by_face
    def on_connect_check_health(self: Any, check_health: bool = True) -> Steps[None]:
        """Prepare the parser: the handshake is no step of a schedule."""
        self._parser.on_connect(self)
        self.forget_databases()
        yield self.enter


class _OverWire(_Wired):
    """The parts of a blocking connection that a simulated network replaces."""

    def _connect(self) -> Any:
        process = self._process
        if process.dead:
            process.unwind()
        sock = SimulatedSocket(process, self.socket_timeout)
        seconds = self._world.connect_delay(process, self._address)
        if seconds:
            assert Fiber.current is not None
            Fiber.current.wait(None, process.now() + (self.socket_connect_timeout or seconds))
            raise TimeoutError("timed out")
        sock.wire = self._world.open_wire(process, self._address, self.db, sock.receive)
        return sock

    def shut_down(self) -> None:
        super().shut_down()  # type: ignore[misc]
        sock = socket_of(self)
        if sock is not None:
            sock.shutdown(2)

    def can_read(self, timeout: float | None = 0) -> bool:
        """Wait until there is something to read; return whether there is."""
        if super().can_read(0):  # type: ignore[misc]
            return True
        sock = socket_of(self)
        if timeout != 0 and not sock.readable:
            sock.wait_for(timeout)
        return bool(sock.readable)

    def poll_number(self) -> None:
        """Return None: the system knows nothing of what arrives."""

    def is_reusable(self) -> bool:
        """Whether it is connected, and the server has neither sent anything nor closed it."""
        sock = socket_of(self)
        return sock is not None and not self.ends and not sock.readable


class SimulatedConnection(_OverWire, TcpConnection):
    """A blocking connection over a simulated network."""


class SimulatedPool(Pool):
    """A pool of connections over a simulated network, which are not connected in threads."""

    def acquire(self, connects: bool = True) -> Any:
        """Return a connected connection."""
        return super().acquire()


class _SimulatedTransport(asyncio.Transport):
    def __init__(self, process: SimulatedProcess, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__({"socket": _silent()})
        self.wire: Wire
        self._process = process
        self._loop = loop
        self._protocol: Any = None
        self._closing = False
        self._sock = SimpleNamespace(
            close=lambda: self.wire.close_client()
        )  # what is left without a loop

    def receive(self, data: bytes | None) -> None:
        self._loop.call_soon(self._receive, data)

    def _receive(self, data: bytes | None) -> None:
        if self._closing:
            return
        protocol = self._protocol
        if data is None:
            self._closing = True
            self.wire.close_client()
            protocol.eof_received()
            protocol.connection_lost(None)
        elif isinstance(protocol, asyncio.BufferedProtocol):
            while data and not self._closing and protocol is self._protocol:
                buffer: Any = protocol.get_buffer(-1)
                count = min(len(buffer), len(data))
                buffer[:count] = data[:count]
                protocol.buffer_updated(count)
                data = data[count:]
            if data and not self._closing:
                self._receive(data)
        else:
            protocol.data_received(data)

    def write(self, data: Any) -> None:
        if not self._closing and not self._process.dead:
            self.wire.write(bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.wire.close_client()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def pause_reading(self) -> None:
        """Called by streams that are full."""

    def resume_reading(self) -> None:
        """Called by streams that have room."""


class _Writer(asyncio.StreamWriter):
    def __del__(self, *_: Any) -> None:
        """Nothing: a killed process leaves connections open."""


class _AsyncOverWire(_Wired):
    """The parts of an awaiting connection that a simulated network replaces."""

    _reader: Any
    _writer: Any

    async def _connect(self) -> None:
        process = self._process
        address = self._address
        seconds = self._world.connect_delay(process, address)
        if seconds:
            await asyncio.sleep(self.socket_connect_timeout or seconds)
            raise TimeoutError("timed out")
        loop = asyncio.get_running_loop()
        transport = _SimulatedTransport(process, loop)
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.wire = self._world.open_wire(process, address, int(self.db), transport.receive)
        self._reader = reader
        self._writer = _Writer(transport, protocol, reader, loop)

    def __del__(self, *_: Any) -> None:
        """Nothing: a killed process leaves connections open."""


class AsyncSimulatedConnection(_AsyncOverWire, AsyncTcpConnection):
    """An awaiting connection over a simulated network."""


class _Copied:
    """A client that is made as a copy of the first one of its class.

    Filling a client's table of callbacks takes as long as several steps of a schedule.
    """

    def __init__(self, *, connection_pool: Any) -> None:
        first = _first.get(type(self))
        if first is None:
            super().__init__(connection_pool=connection_pool)  # type: ignore[call-arg]
            first = _first[type(self)] = dict(vars(self))
        vars(self).update(first, connection_pool=connection_pool)
        callbacks = first["response_callbacks"]
        self.response_callbacks = type(callbacks)({})
        dict.update(self.response_callbacks, callbacks)


_first: dict[type[Any], dict[str, Any]] = {}


class SimulatedClient(_Copied, DirectClient):
    """A blocking client."""


class AsyncSimulatedClient(_Copied, MultiplexedClient):  # type: ignore[misc]
    """An awaiting client."""


def _no_retry(kind: type[Any]) -> Any:
    """Return what never tries again, and has no state: a copy for each connection is the same."""
    policy = kind(NoBackoff(), 0)
    policy.__deepcopy__ = lambda memo: policy
    return policy


class SimulatedConnector(Connector):
    """Builds one process's clients of simulated servers."""

    shares = False

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        super().__init__(SimulatedClient, AsyncSimulatedClient, *USER_CLIENTS[2:])
        self._world = world
        self._process = process

    def node_classes(self, fields: Mapping[str, Any]) -> tuple[type[Any], type[Any], type[Any]]:
        """Return what connects to the nodes of a simulated cluster."""
        where: dict[str, Any] = {"world": self._world, "process": self._process}

        class SimulatedNodeConnection(SimulatedConnection):
            def __init__(self, **options: Any) -> None:
                super().__init__(**where, **options)

        class AsyncSimulatedNodeConnection(AsyncSimulatedConnection):
            def __init__(self, **options: Any) -> None:
                super().__init__(**where, **options)

        self._world.make_cluster(server_address(fields))
        return SimulatedNodeConnection, SimulatedPool, AsyncSimulatedNodeConnection

    def blocking(self, fields: Mapping[str, Any]) -> redis.Redis | redis.RedisCluster:
        """Return a blocking client."""
        client, pools = self._lead(super().blocking, fields, SimulatedConnection, Retry)
        for pool in pools:
            pool.__class__ = SimulatedPool
        return client  # type: ignore[no-any-return]

    def awaiting(self, fields: Mapping[str, Any]) -> aioredis.Redis | aioredis.RedisCluster:
        """Return an awaiting client."""
        client, _ = self._lead(super().awaiting, fields, AsyncSimulatedConnection, AsyncRetry)
        return client  # type: ignore[no-any-return]

    def _lead(
        self,
        make: Callable[[Mapping[str, Any]], Any],
        fields: Mapping[str, Any],
        connection: type[Any],
        retry: type[Any],
    ) -> tuple[Any, Sequence[Any]]:
        """Return a client whose pools connect to simulated servers, and these pools.

        If an entry's Sentinels are not simulated, its service is one server.
        """
        if fields.get("cluster"):
            return make({**plain_tcp_fields(fields), "cluster": True}), ()
        where: dict[str, Any] = {"world": self._world, "process": self._process}
        asks = "sentinel" in fields and self._world.sentinels is not None
        client = make(fields if asks else plain_tcp_fields(fields))
        pools = [client.connection_pool]
        if asks:
            pools[0].master.stop_listening()  # to what is not there
            pools += pools[0].below
        else:
            where["address"] = server_address(fields)
        if asks or not fields.get("retries"):
            where["retry"] = _no_retry(retry)
        for pool in pools:
            assert isinstance(pool, Pool | AsyncPool)
            pool.connection_class = connection
            pool.connection_kwargs.update(where)
        return client, pools
