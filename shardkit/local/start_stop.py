"""Starts and stops several servers in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from shardkit.errors import LocalServerError
from shardkit.local.server import START_TIMEOUT, STOP_TIMEOUT, LocalServer

Started: TypeAlias = Callable[[LocalServer], object]


def start_all(
    servers: Sequence[LocalServer], timeout: float = START_TIMEOUT, started: Started | None = None
) -> None:
    """Start servers in parallel and wait until all answer; if one fails, stop them all."""
    refuse_running(servers)
    deadline = time.monotonic() + timeout
    try:
        # Servers with a given port first, or another might take it as a free one.
        for server in sorted(servers, key=lambda server: not server._asked_port):
            server._launch()
        for server in servers:
            server._await_ready(deadline)
            server._await_copy(deadline)
            if started is not None:
                started(server)
    except BaseException:
        stop_all(servers, 0)
        raise


def refuse_running(servers: Sequence[LocalServer]) -> None:
    """Refuse to start servers of which one runs."""
    for server in servers:
        if server.running:
            raise LocalServerError(f"{server.name} runs already", "stop it first")


def stop_all(servers: Sequence[LocalServer], timeout: float = STOP_TIMEOUT) -> None:
    """Stop servers in parallel; see `LocalServer.stop`."""
    try:
        for server in servers:
            server._ask_to_end()
        deadline = time.monotonic() + timeout
        for server in servers:
            server._await_end(deadline, patient=timeout > 0)
    finally:
        for server in servers:
            server._end()
