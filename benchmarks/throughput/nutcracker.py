"""twemproxy in front of servers: Debian's `nutcracker`."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def twemproxy(ports: Sequence[int]) -> Iterator[int]:
    """Run it, and give its port; raises FileNotFoundError if it is not installed."""
    servers = "".join(f"   - 127.0.0.1:{port}:1\n" for port in ports)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port, stats = taken.getsockname()[1], other.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="shardkit-twemproxy-") as directory:
        path = Path(directory) / "nutcracker.yml"
        path.write_text(
            f"all:\n  listen: 127.0.0.1:{port}\n  hash: crc32a\n  distribution: modula\n"
            f"  redis: true\n  servers:\n{servers}",
            encoding="utf-8",
        )
        process = subprocess.Popen(
            [
                *("nutcracker", "-c", str(path), "-a", "127.0.0.1", "-s", str(stats)),
                *("-o", f"{directory}/nutcracker.log", "-p", f"{directory}/nutcracker.pid"),
            ]
        )
        try:
            while process.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.01)
            yield port
        finally:
            process.terminate()
            process.wait()
