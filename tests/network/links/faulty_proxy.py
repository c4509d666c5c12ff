"""A way to a real server with the faults that servers in memory have, by the names of commands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import hiredis

from shardkit import Entry


@dataclass(eq=False)
class _Fault:
    what: str
    names: tuple[str, ...]
    text: str = ""


@dataclass(eq=False)
class _Way:
    """A client's connection, and the one to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    silent: bool = False
    lost: bool = False
    held: bytearray = field(default_factory=bytearray)  # replies that are late
    in_multi: bool = False


class FaultyProxy:
    """Passes commands on to a server, one by one; each fault affects one that is sent later.

    Attributes:
        seen: the names of the commands that arrived.
    """

    def __init__(self, server_port: int) -> None:
        self.seen: list[str] = []
        self._server_port = server_port
        self._faults: list[_Fault] = []
        self._ways: set[_Way] = set()
        self._opening = 0  # ways
        self._is_down = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._listener = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._listener.sockets[0].getsockname()[1]

    @property
    def entry(self) -> Entry:
        return Entry({"host": "127.0.0.1", "port": self.port}, "proxy")

    def down(self) -> None:
        """Close all connections, and new ones before a byte is answered."""
        self._is_down = True
        self._run(self._cut())

    def up(self) -> None:
        self._is_down = False

    def lose_command(self, *names: str) -> None:
        self._set(_Fault("lose command", names))

    def lose_answer(self, *names: str) -> None:
        self._set(_Fault("lose answer", names))

    def hang(self, *names: str) -> None:
        """Have a command executed, and withhold its reply until `clear`."""
        self._set(_Fault("hang", names))

    def answer(self, error: str, *names: str) -> None:
        """Have a command refused: in a transaction while it is queued, which aborts it."""
        self._set(_Fault("answer", names, error))

    def clear(self) -> None:
        """End all faults; what is late arrives."""
        self._run(self._pass_what_was_sent())
        self._faults.clear()
        self._is_down = False
        self._run(self._deliver())

    def close(self) -> None:
        self.down()
        self._listener.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _set(self, fault: _Fault) -> None:
        self._run(self._pass_what_was_sent())
        self._faults.append(fault)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _pass_what_was_sent(self) -> None:
        """Pass on what clients have sent so far, even if they have closed the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write_eof()
        with suppress(OSError):
            await reader.read()  # this connection was accepted, so all earlier ones were
        writer.transport.abort()
        while self._opening:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(4):  # a turn receives what has arrived, the next one passes it on
            await asyncio.sleep(0)

    async def _cut(self) -> None:
        for way in self._ways:
            way.client.transport.abort()
            way.server.transport.abort()
        while self._ways:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _deliver(self) -> None:
        for way in self._ways:
            way.silent = False
            way.client.write(bytes(way.held))
            way.held.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            writer.transport.abort()
            return
        self._opening += 1
        try:
            replies, server = await asyncio.open_connection("127.0.0.1", self._server_port)
        finally:
            self._opening -= 1
        if self._is_down:  # meanwhile
            writer.transport.abort()
            server.transport.abort()
            return
        way = _Way(writer, server)
        self._ways.add(way)
        try:
            async with asyncio.TaskGroup() as tasks:
                back = tasks.create_task(self._pass_replies(replies, way))
                await self._pass_commands(reader, way)
                if way.lost:
                    await back  # the server ends it once it has executed all
                back.cancel()
        finally:
            writer.transport.abort()
            server.transport.abort()
            self._ways.discard(way)

    async def _pass_replies(self, replies: asyncio.StreamReader, way: _Way) -> None:
        with suppress(OSError):
            while data := await replies.read(65536):
                if way.silent:
                    way.held += data
                elif not way.lost:
                    way.client.write(data)
        way.client.transport.abort()

    async def _pass_commands(self, reader: asyncio.StreamReader, way: _Way) -> None:
        parser = hiredis.Reader()
        with suppress(OSError):
            while data := await reader.read(65536):
                parser.feed(data)
                while (args := parser.gets()) is not False:
                    if not self._pass(tuple(args), way):
                        return

    def _pass(self, args: tuple[bytes, ...], way: _Way) -> bool:
        """Pass a command on; return whether more follow."""
        name = args[0].decode().upper()
        self.seen.append(name)
        fault = next((each for each in self._faults if name in each.names), None)
        if fault is not None and b"__sentinel__:hello" not in args:  # Sentinels subscribe, too
            self._faults.remove(fault)
            if fault.what == "lose command":
                way.client.transport.abort()
                return False
            if fault.what == "answer":
                refuse = b"return {err=ARGV[1]}"
                refused = (b"EVAL", refuse, b"0", fault.text.encode())
                # As a server refuses EXEC: it discards the transaction.
                queued = (b"EXEC", b"refused") if name == "EXEC" else (b"REFUSED",)
                args = queued if way.in_multi else refused
            way.silent = fault.what == "hang"
            way.lost = fault.what == "lose answer"
        way.in_multi = name == "MULTI" or (way.in_multi and name not in ("EXEC", "DISCARD"))
        way.server.write(hiredis.pack_command(args))
        if way.lost:
            way.server.write_eof()
        return not way.lost


@contextmanager
def faulty(server_port: int) -> Iterator[FaultyProxy]:
    """Run a proxy."""
    proxy = FaultyProxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()
