"""What the tests of coordination share: processes that can be stopped and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from arranged import map_of
from faces import eventually

from shardkit import ShardMap
from shardkit.local import LocalServer


@contextmanager
def with_jumping_clocks(where: Path) -> Iterator[tuple[ShardMap, Callable[[int], None]]]:
    """Start a server whose clock a test sets, and another; give their map, and what sets the clock.

    ``one`` is on the first of them, every second shard of ``many`` too. It takes Debian's package
    libfaketime; without it the test is skipped.
    """
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("without Debian's package libfaketime no server's clock can be set")
    file, ahead = where / "ahead", 0
    file.write_text("+0\n")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FAKETIME_TIMESTAMP_FILE", str(file))
            patch.setenv("FAKETIME_NO_CACHE", "1")
            patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            patch.setenv("LD_PRELOAD", str(library))
            jumping = stack.enter_context(LocalServer())
        steady = stack.enter_context(LocalServer())
        client = stack.enter_context(jumping.client())

        def set_clock(seconds: int) -> None:
            """Have it so many seconds ahead of the machine's."""
            nonlocal ahead
            ahead = seconds
            (where / "new").write_text(f"{seconds:+d}\n")
            (where / "new").replace(file)
            assert eventually(lambda: abs(client.time()[0] - time.time() - ahead) < 2)

        shards = [{"port": each.port, "db": n} for n in (1, 2) for each in (jumping, steady)]
        yield map_of(one={"entry": {"port": jumping.port}}, many={"shards": shards}), set_clock


@contextmanager
def processes(code: str, shard_map: ShardMap, *args: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """Run Python code once for each argument, with ``kit`` and ``argument``; kill them at the end.

    Each prints lines; standard input is theirs.
    """
    text = (
        "import json, sys, os, time, shardkit\n"
        f"kit = shardkit.connect(shardkit.ShardMap.parse({shard_map.to_yaml()!r}))\n"
        "argument = json.loads(sys.argv[1])\n" + code
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", text, json.dumps(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for argument in args
    ]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.wait()
            for pipe in (each.stdin, each.stdout):
                if pipe:
                    pipe.close()


@contextmanager
def forked(code: str, shard_map: ShardMap, argument: Any = None) -> Iterator[Callable[[int], int]]:
    """Give what forks a process that runs ``work(number)``, and returns its id; all are killed.

    ``code`` defines ``work``. Forking takes a hundredth of the time of starting a process.
    """
    started: list[int] = []
    nursery = """
import signal, traceback
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for text in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            work(int(text))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    print(pid, flush=True)
"""
    with processes(code + nursery, shard_map, argument) as [process]:

        def fork(number: int) -> int:
            say(process, str(number))
            started.append(int(line(process)))
            return started[-1]

        try:
            yield fork
        finally:
            for pid in started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str], text: str = "go") -> None:
    """Give a process a line."""
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()
