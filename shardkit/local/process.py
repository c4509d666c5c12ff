"""A server process that never outlives this one.

Each server has a guard process, a few lines of `sh` that wait on a pipe from this process. When
this process ends (returned, raised, interrupted, terminated or killed: the kernel closes the pipe
in any case) the guard stops the server, first with SIGTERM so that it can save its data:

::

    this process ──── pipe ────► guard ┐ one process group of their own: the terminal's Ctrl-C
         └─────── starts ──────► server┘ does not reach it, and one signal ends all of it

The server joins the guard's group before it runs, and holds the pipe open until then, so the guard
cannot miss it. Signals go to the group, never to a process id that may have been reused. (Linux's
PR_SET_PDEATHSIG does not work here: it fires when the *thread* that started the server ends.)

A forked child closes its copies of the pipes at once, and cannot stop its parent's servers.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from shardkit.errors import LocalServerError

_SAVING: Final = 5.0  # seconds that a killed server's child may take
EXIT_TIMEOUT: Final = 10.0  # seconds that servers have to end when Python exits

# $1 is a directory to remove. Lines on the pipe are the server's process id, for waiting only.
_GUARD = """
trap '' HUP INT QUIT TERM
pid=
while read -r line; do pid=$line; done
kill -TERM 0
kill -CONT 0
n=0
while [ -n "$pid" ] && [ "$n" -lt 50 ] && kill -0 "$pid" 2>/dev/null; do
    sleep 0.1
    n=$((n + 1))
done
[ -z "$1" ] || rm -rf -- "$1"
kill -KILL 0
"""


class GuardedProcess:
    """One process with its guard; both are this process's children. Not thread-safe.

    Without a ``directory`` it runs in a temporary one that is removed at the end.
    """

    def __init__(self, directory: Path | None) -> None:
        scratch = directory is None
        self.directory = (
            Path(tempfile.mkdtemp(prefix="shardkit-")) if directory is None else directory
        )
        self._scratch = self.directory if scratch else None
        self._ours = True
        self._server: subprocess.Popen[bytes] | None = None
        with _forking:  # or a child forked now would keep the pipe open
            reader, self._pipe = os.pipe()
            _guarded.add(self)
        try:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "shardkit-guard", str(self._scratch or "")],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                process_group=0,
            )
        except BaseException:
            os.close(self._pipe)
            self._pipe = -1
            self._remove_scratch()
            raise
        finally:
            os.close(reader)

    @property
    def ours(self) -> bool:
        """False in a forked child of the process that started it."""
        return self._ours

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._server is not None
        return self._server.pid

    def running(self) -> bool:
        """Whether the server runs, or is paused; in a forked child, whether its pid exists."""
        if self._server is None:
            return False
        if self._ours:
            return self._server.poll() is None
        try:
            os.kill(self._server.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def run(self, command: Sequence[str], log: Path) -> None:
        """Start the server; its output is appended to the log."""
        with locked(log) as output:
            try:
                self._server = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.directory,
                    process_group=self._guard.pid,
                )
            except OSError as error:
                raise LocalServerError(
                    f"{command[0]} cannot be run: {error.strerror}",
                    "set SHARDKIT_SERVER to a valkey-server or redis-server for this machine",
                ) from error
        with suppress(BrokenPipeError):  # the guard was killed
            os.write(self._pipe, b"%d\n" % self._server.pid)

    def terminate(self) -> None:
        """Send the server SIGTERM, and SIGCONT in case it is paused."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal, if it still runs."""
        if self._ours and self._server is not None:
            self._server.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """Wait until the server has ended; return whether it has."""
        if not self._ours or self._server is None:
            return True
        try:
            self._server.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Kill the whole group, and remove the temporary directory. May be called again."""
        if not self._ours or self._pipe < 0:
            return
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        if self._server is not None:
            self._server.wait()
        os.close(self._pipe)
        self._pipe = -1
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _disown(self) -> None:
        """In a forked child: release the parent's pipe and processes."""
        self._ours = False
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        for process in (getattr(self, "_guard", None), self._server):
            if process is not None and process.returncode is None:
                process.returncode = 0  # not this process's child: nothing to wait for


def finish(processes: Sequence[GuardedProcess], timeout: float) -> None:
    """Stop servers that are still running, in parallel, with time to save their data."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + timeout
    for process in processes:
        process.wait(deadline - time.monotonic())
        process.end()


_forking = threading.RLock()
_guarded: weakref.WeakSet[GuardedProcess] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    global _forking
    _forking = threading.RLock()
    for process in list(_guarded):
        process._disown()


atexit.register(lambda: finish(list(_guarded), EXIT_TIMEOUT))


@contextmanager
def locked(log: Path) -> Iterator[BinaryIO]:
    """Open a server's log. A server that has it as its output keeps it locked until it has ended.

    Raises:
        LocalServerError: it cannot be opened, or another server has it; both would save into one
            directory.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO waits
    try:
        descriptor = os.open(log, flags, 0o666)
    except OSError as error:
        raise LocalServerError(
            f"{log} cannot be opened: {error.strerror}", "remove it, or use another directory"
        ) from error
    with open(descriptor, "ab") as output:
        end = time.monotonic() + _SAVING
        while True:
            try:
                fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # perhaps it was killed, and its child is still saving
                if time.monotonic() > end:
                    raise LocalServerError(
                        f"{log.parent} is in use: another server saves its data there",
                        "stop that server, or use another directory",
                    ) from None
                time.sleep(0.05)
        yield output


# The lock is looked up when it is used: a forked child has a new one.
os.register_at_fork(
    before=lambda: _forking.acquire(),
    after_in_parent=lambda: _forking.release(),
    after_in_child=_after_fork_in_child,
)
