"""What the tests of the command line share."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any, NamedTuple

from faces import alive, eventually

SECRET = "s3cretWord"

# Ctrl-C may be ignored where the tests run (a job in the background); the program is started so.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from shardkit.__main__ import main; main()"
)
COMMAND = [sys.executable, "-c", PROGRAM]


class Result(NamedTuple):
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def error(self) -> str:
        """The error: one line, and no traceback."""
        assert self.code, self
        lines = [line for line in self.err.splitlines() if not line.startswith("warning: ")]
        assert len(lines) == 1, self
        assert lines[0].startswith("shardkit: error: "), self
        return lines[0].removeprefix("shardkit: error: ")


Cli = Callable[..., Result]
ReadJson = Callable[..., Any]


def in_terminal(columns: int, *arguments: str) -> tuple[int, str]:
    """Run the program in a terminal so wide; return its exit code and what it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    return process.wait(30), written.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """Return a terminal's text without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def ends(pid: int) -> bool:
    """Whether a process is gone, or goes in time."""
    return eventually(lambda: not alive(pid))
