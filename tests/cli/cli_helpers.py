"""What the tests of the command line share."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from arranged import map_of
from click.testing import CliRunner
from faces import alive, eventually

import shardkit
from shardkit.cli.app import app
from shardkit.local import LocalServer, LocalServers

SECRET = "s3cretWord"

COMMAND = [sys.executable, "-m", "shardkit"]


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


class Cli:
    """Runs command lines in this process; no output may hold the password."""

    def __call__(
        self, *arguments: object, code: int | None = None, secret: str = SECRET, **options: Any
    ) -> Result:
        """Return what a command line wrote, after a check of its exit code if one is given."""
        found = CliRunner().invoke(app, list(map(str, arguments)), **options)
        assert secret not in found.output
        assert secret not in found.stderr
        result = Result(found.exit_code, found.stdout, found.stderr)
        assert code in (None, result.code), result
        return result

    def json(self, *arguments: object, code: int = 0, **options: Any) -> Any:
        """Return the document of a command line with --json."""
        return json.loads(self(*arguments, "--json", code=code, **options).out)


def config_server(servers: LocalServers) -> LocalServer:
    """Return the config server of servers that have one."""
    assert servers.config_server is not None
    return servers.config_server


@contextmanager
def edited_map(path: Path, written: Path | None = None) -> Iterator[dict[str, Any]]:
    """Give the components of a shard map's file to change; write it, or another file."""
    described = yaml.safe_load(path.read_text())
    yield described["components"]
    (written or path).write_text(yaml.safe_dump(described))


def in_terminal(
    columns: int,
    *arguments: object,
    stdout: int | None = None,
    until: Callable[[str], bool] | None = None,
) -> tuple[int, str]:
    """Run the program in a terminal so wide; return its exit code and what it wrote there.

    It is interrupted when what it has written so far is enough, if that is given.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=theirs if stdout is None else stdout,
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
        if until is not None and until(written.decode(errors="replace")):
            until = None
            process.send_signal(signal.SIGINT)
    os.close(ours)
    return process.wait(30), written.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """Return a terminal's text without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def ends(pid: int) -> bool:
    """Whether a process is gone, or goes in time."""
    return eventually(lambda: not alive(pid))


def placed(rule: str, count: int) -> Callable[[str | bytes], int]:
    """The number of a key's shard by a rule of placement."""
    shards = [{"db": n} for n in range(count)]
    with shardkit.connect(map_of(a={"shards": shards, "placement": rule})) as kit:
        component = kit.component("a")
    return lambda key: component.shard_of(key).number or 0
