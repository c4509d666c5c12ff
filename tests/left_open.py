"""What a process has still open: kits, connections, event loops, threads, servers and sockets.

Warnings tell only of what is collected while a test runs. What somebody still refers to, or nobody
has collected yet, is found here, when all tests of a process have ended.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from shardkit import AsyncShardKit, ShardKit
from shardkit.local import process
from shardkit.network.connections.pool import live_pools
from shardkit.network.topology import Topology

_LOOP = asyncio.BaseEventLoop
_opened: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # by which test, as sockets have slots


@contextmanager
def naming_who_opens() -> Iterator[None]:
    """Note of kits, event loops, threads and sockets which test opened them."""

    def noting(kind: type[Any]) -> Any:
        init = kind.__init__

        def noted(self: Any, *args: Any, **kwargs: Any) -> None:
            _opened[self] = os.environ.get("PYTEST_CURRENT_TEST", "?").partition(" ")[0]
            init(self, *args, **kwargs)

        return patch.object(kind, "__init__", noted)

    with noting(Topology), noting(_LOOP), noting(threading.Thread), noting(socket.socket):
        yield


def sockets() -> dict[int, str]:
    """The sockets of this process, by their numbers."""
    found = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with suppress(OSError):
            if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    found[int(name)] = f"{sock.family.name} {sock.getsockname()}"
    return found


def threads() -> set[threading.Thread]:
    """The threads of this process, but for those that keep the time limits of tests.

    And rq's listeners: redis-py forgets that one was told to stop before it ran.
    """
    return {
        each
        for each in threading.enumerate()
        if type(each).__name__ not in ("_DummyThread", "PubSubWorkerThread")
        and not each.name.startswith("pytest_timeout ")
    }


def is_real(connection: Any) -> bool:
    """Whether a connection is open, and not a simulated one."""
    simulated = type(connection).__module__.startswith("shardkit.testing.simulation")
    return connection.is_connected and not simulated


def left_open(known_sockets: dict[int, str], known_threads: set[threading.Thread]) -> list[str]:
    """Name what is open and was not before; threads that are ending get a few seconds."""
    deadline = time.monotonic() + 5
    while threads() - known_threads and time.monotonic() < deadline:
        time.sleep(0.02)
    gc.collect()
    found = [
        f"{each!r}, a {type(each).__qualname__}, made by {_opener(each)}"
        for each in threads() - known_threads
    ]
    found += [
        f"connections of {pool!r}"
        for pool in live_pools()
        if any(is_real(each) for each in pool.connections)
    ]
    for each in gc.get_objects():
        if isinstance(each, _LOOP) and not each.is_closed():
            found.append(f"{each!r}, made by {_opener(each)}")
        elif isinstance(each, ShardKit | AsyncShardKit) and not each.topology.closed:
            found.append(f"a kit of {each.topology.source}, opened by {_opener(each.topology)}")
    found += [f"{each!r}, a server" for each in process._guarded]
    openers = {
        each.fileno(): _opener(each) for each in list(_opened) if isinstance(each, socket.socket)
    }
    return found + [
        f"socket {number}: {name}, made by {openers.get(number)}"
        for number, name in sockets().items()
        if number not in known_sockets
    ]


def _opener(found: Any) -> str:
    return _opened.get(found, "somebody before the tests")
