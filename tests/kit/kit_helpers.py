"""What the tests of kits ask servers."""

from __future__ import annotations

import time
from collections.abc import Callable

from shardkit.local import LocalServer


def clients_of(server: LocalServer) -> int:
    """How many clients a server has, the one that asks aside."""
    with server.client() as client:
        return len(client.client_list()) - 1


def eventually(done: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
