"""A server behind a way that can hang in one direction, or speaks TLS."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any

from faces import PATIENCE

from shardkit import ShardMap
from shardkit.local import LocalServer


class Slow:
    """A way to a server that can be stopped in one direction, for CLIENT TRACKING, or cut.

    Attributes:
        delay: seconds by which replies are late.
    """

    def __init__(self, port: int, at: int = 0, ssl: SSLContext | None = None) -> None:
        self.delay = 0.0
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)  # clients refuse certificates
        self._open = {way: asyncio.Event() for way in ("up", "down", "tracking")}
        for each in self._open.values():
            each.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", at, ssl=ssl))
        self.port = self._server.sockets[0].getsockname()[1]

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10 * PATIENCE)

    def stop(self, way: str) -> None:
        self._loop.call_soon_threadsafe(self._open[way].clear)

    def go_on(self, way: str) -> None:
        self._loop.call_soon_threadsafe(self._open[way].set)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(lambda: [w.transport.abort() for w in self._writers])

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, server = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, server}
        try:
            await asyncio.gather(self._pass(reader, server, "up"), self._pass(back, writer, "down"))
        except OSError:
            pass
        finally:
            for each in (writer, server):
                each.close()
                self._writers.discard(each)

    async def _pass(self, reader: Any, writer: asyncio.StreamWriter, way: str) -> None:
        while data := await reader.read(65536):
            await asyncio.sleep(self.delay if way == "down" else 0)
            await self._open["tracking" if b"TRACKING" in data else way].wait()
            writer.write(data)
        raise ConnectionResetError


@contextmanager
def slow(server: LocalServer) -> Iterator[tuple[Slow, ShardMap]]:
    way = Slow(server.port)
    entry = {"port": way.port, "socket_timeout": PATIENCE, "breaker": False}
    try:
        yield way, ShardMap.parse(json.dumps({"components": {"many": {"shards": [entry]}}}))
    finally:
        way.close()
