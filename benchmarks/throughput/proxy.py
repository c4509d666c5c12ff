"""A proxy on loopback that hands on what it gets after a delay, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

Address = tuple[str, int, int]


async def _hand_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(65536):
        loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)


async def _serve(ports: Sequence[int], seconds: float) -> None:
    servers = []
    for port in ports:

        async def accept(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port
        ) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_hand_on(reader, back, seconds), _hand_on(there, writer, seconds))

        servers.append(await asyncio.start_server(accept, "127.0.0.1", 0))
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until told to end
    os._exit(0)  # connections that are still open are nobody's concern


@contextmanager
def delayed(addresses: Sequence[Address], seconds: float) -> Iterator[list[Address]]:
    """Give other addresses for the same servers, so many seconds away in either direction."""
    ports = [str(port) for _, port, _ in addresses]
    process = subprocess.Popen(
        [sys.executable, __file__, str(seconds), *ports],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        found = process.stdout.readline().split()
        yield [("127.0.0.1", int(port), 0) for port in found]
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(_serve([int(port) for port in sys.argv[2:]], float(sys.argv[1])))
