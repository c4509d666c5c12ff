"""Statuses for tests, and a cluster of PostgreSQL of the tests' own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def status(number: int, uid: int = 1, posted: float | None = None, **more: str) -> dict[str, str]:
    """A status's fields."""
    posted = float(number) if posted is None else posted
    return {"uid": str(uid), "posted": repr(posted), "message": f"it's number {number}", **more}


def find_postgresql() -> Path | None:
    """The directory of PostgreSQL's programs, where it is installed."""
    found = shutil.which("initdb")
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = Path(found) if found else (places[-1] if places else None)
    return path.parent if path else None


@contextmanager
def postgresql(programs: Path) -> Iterator[str]:
    """Run a cluster on a free port; give its DSN. PostgreSQL refuses to run as root."""
    user = None
    if os.geteuid() == 0:
        user = next((u for u in ("postgres", "nobody") if _user_exists(u)), None)
    # Not in pytest's directory, which another user cannot enter.
    with tempfile.TemporaryDirectory(prefix="shardkit-postgresql-") as data:
        if user:
            shutil.chown(data, user)
        with _running(programs, data, user) as dsn:
            yield dsn


@contextmanager
def _running(programs: Path, data: str, user: str | None) -> Iterator[str]:
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-E", "UTF8", "-N"],
        check=True,
        capture_output=True,
        user=user,
        cwd="/",
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=4MB"]
    server = subprocess.Popen(
        [programs / "postgres", "-D", data, "-p", str(port), "-k", "", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
        cwd="/",
    )
    try:
        yield f"postgresql://tests@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.send_signal(signal.SIGQUIT)  # at once
            server.wait(10)


def _user_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
