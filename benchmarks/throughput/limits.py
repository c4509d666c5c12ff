"""The limit: hand-written, special-purpose code over raw sockets, with nothing but hiredis.

It handles no failures, timeouts, chunks, scripts or clusters: its time is what the work itself
takes in Python, and 1.0 in every table. It needs only hiredis, so that it also runs in the virtual
environments of other clients.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

import hiredis

Address = tuple[str, int, int]  # host, port, database
pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command


def open_socket(address: Address) -> socket.socket:
    """Return a connected socket with its database selected."""
    host, port, database = address
    sock = socket.create_connection((host, port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if database:
        sock.sendall(pack(("SELECT", database)))
        assert sock.recv(100) == b"+OK\r\n"
    return sock


def _packed(
    commands: Sequence[tuple[Any, ...]], count: int, hashed: Callable[[bytes], int]
) -> tuple[list[list[bytes]], list[list[int]]]:
    """Return the commands of each shard as bytes, and their positions."""
    packed: list[list[bytes]] = [[] for _ in range(count)]
    places: list[list[int]] = [[] for _ in range(count)]
    for n, args in enumerate(commands):
        shard = hashed(args[1].encode()) % count
        packed[shard].append(pack(args))
        places[shard].append(n)
    return packed, places


class RawSockets:
    """A blocking socket and a parser for each shard, the remainder of a key's hash."""

    def __init__(
        self, addresses: Iterable[Address], hashed: Callable[[bytes], int] = crc32
    ) -> None:
        self.hashed = hashed
        self.sockets = [open_socket(address) for address in addresses]
        self.readers = [hiredis.Reader() for _ in self.sockets]

    def one(self, *args: Any) -> Any:
        """Send one command to the shard of its key."""
        shard = crc32(args[1].encode()) % len(self.sockets)
        sock, reader = self.sockets[shard], self.readers[shard]
        sock.sendall(pack(args))
        reader.feed(sock.recv(65536))
        reply = reader.gets()
        while reply is False:
            reader.feed(sock.recv(65536))
            reply = reader.gets()
        return reply

    def batch(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands: route, pack, write to all, read from all, put the replies in order."""
        packed, places = _packed(commands, len(self.sockets), self.hashed)
        for sock, pieces in zip(self.sockets, packed, strict=True):
            if pieces:
                sock.sendall(b"".join(pieces))
        out: list[Any] = [None] * len(commands)
        for sock, reader, positions in zip(self.sockets, self.readers, places, strict=True):
            gets = reader.gets
            for position in positions:
                reply = gets()
                while reply is False:
                    reader.feed(sock.recv(65536))
                    reply = gets()
                out[position] = reply
        return out

    def close(self) -> None:
        """Close the sockets."""
        for sock in self.sockets:
            sock.close()


class _SocketProtocol(asyncio.BufferedProtocol):
    """A connection whose replies go to futures: one for each reply, or one for many."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self.replies: list[Any] = []
        self.data: list[bytes] = []
        self.buffer = memoryview(bytearray(65536))
        self.reader: Any = hiredis.Reader()
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.reader.feed(self.buffer, 0, nbytes)
        gets, waiting = self.reader.gets, self.waiting
        reply = gets()
        while reply is not False:
            count, future = waiting[0]
            if count == 1:
                future.set_result(reply)
                waiting.popleft()
            else:
                self.replies.append(reply)
                if len(self.replies) == count:
                    future.set_result(self.replies)
                    self.replies = []
                    waiting.popleft()
            reply = gets()

    def ask(self, data: bytes, count: int = 1) -> asyncio.Future[Any]:
        """Write at once if no reply is due, otherwise with all others of this turn of the loop."""
        future = self.loop.create_future()
        if not self.waiting:
            self.transport.write(data)
        else:
            if not self.data:
                self.loop.call_soon(self.flush)
            self.data.append(data)
        self.waiting.append((count, future))
        return future

    def flush(self) -> None:
        self.transport.write(b"".join(self.data))
        self.data.clear()


class RawAsyncSockets:
    """An asyncio transport for each shard, with a protocol that only parses."""

    def __init__(self, wires: list[_SocketProtocol]) -> None:
        self.wires = wires

    @classmethod
    async def open(cls, addresses: Iterable[Address]) -> RawAsyncSockets:
        """Connect."""
        loop = asyncio.get_running_loop()
        wires = []
        for address in addresses:
            sock = open_socket(address)
            sock.setblocking(False)
            _, wire = await loop.create_connection(_SocketProtocol, sock=sock)
            wires.append(wire)
        return cls(wires)

    async def one(self, *args: Any) -> Any:
        """Send one command to the shard of its key."""
        return await self.wires[crc32(args[1].encode()) % len(self.wires)].ask(pack(args))

    async def batch(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands; see `RawSockets.batch`."""
        packed, places = _packed(commands, len(self.wires), crc32)
        asked = [
            (positions, wire.ask(b"".join(pieces), len(pieces)))
            for wire, pieces, positions in zip(self.wires, packed, places, strict=True)
            if pieces
        ]
        out: list[Any] = [None] * len(commands)
        for positions, future in asked:
            replies = await future
            if len(positions) == 1:
                replies = [replies]
            for position, reply in zip(positions, replies, strict=True):
                out[position] = reply
        return out

    def close(self) -> None:
        """Close the transports."""
        for wire in self.wires:
            wire.transport.close()
