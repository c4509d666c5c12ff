"""The entries that were read last, saved on disk, so that programs start without the config server.

::

    {"format": 1, "server": "config.internal:6379/0", "sha256": "…",
     "components": {"unique": {"read": 1790000000.0, "stored": {"config:redis:unique": "…", …}}}}

A thread writes the file when entries have changed, and once a minute the times at which they were
read. All processes of a user may share a file: each keeps what others have written. The file holds
the passwords that the entries hold, so only its owner may read it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from shardkit import log_records
from shardkit.config.component import EPOCH_KEY, Stored
from shardkit.config.entry import open_regular, replacing
from shardkit.errors import ConfigServerError
from shardkit.operations.arguments import parse_json
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import start_thread
from shardkit.recent import Recent

logger = logging.getLogger("shardkit")

MAX_AGE = 86_400.0
REFRESH = 60.0  # seconds after which the times are written again
_MOST_BYTES = 256 * 1024**2
_LOCK_TRIES, _LOCK_PAUSE = 20, 0.01

Content: TypeAlias = dict[str, dict[str, Any]]
"""By component: when it was ``read``, as Unix time, and its ``stored`` texts by key."""


class UnusableFileError(Exception):
    """The file cannot be used; the text says why."""


class SavedEntries:
    """The file of one config server's entries. Safe to use from many threads and processes."""

    def __init__(self, path: str | Path, max_age: float, server: str) -> None:
        self.path = Path(path)
        self.max_age = max_age
        self._server = server
        self._lock = threading.Lock()  # of the following
        self._known: Content = {}  # what this process has read
        self._gone: Recent[str, float] = Recent()  # components that it found missing, and when
        self._written_at = 0.0
        self._thread: threading.Thread | None = None
        self._dirty = False
        self._seen: tuple[tuple[int, ...], Content] = (), {}  # the file's stamp and content
        self._reported = ""  # why the file could not be used or written
        renewed_in_children(self)

    def note(self, name: str, stored: Stored) -> None:
        """Note that a component was read."""
        texts = {
            key: value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
            for key, value in stored.items()
            if value is not None or key == EPOCH_KEY
        }
        before = self._known.get(name)
        self._known[name] = {"read": time.time(), "stored": texts}
        self._gone.pop(name, None)
        if before is None or before["stored"] != texts or self._is_old():
            self._write_soon()

    def forget(self, name: str) -> None:
        """Note that the config server does not have a component."""
        self._known.pop(name, None)
        if name not in self._gone:
            self._gone[name] = time.time()
            self._write_soon()

    def confirm(self) -> None:
        """Note that everything that was read is still as it was."""
        if self._known and self._is_old():
            now = time.time()
            for saved in list(self._known.values()):
                saved["read"] = now
            self._write_soon()

    def load(self, name: str) -> tuple[Stored, float] | None:
        """Return a component's saved texts, and their age in seconds; None if there are none.

        Raises:
            ConfigServerError: they are older than ``max_age``.
        """
        saved = self._usable().get(name)
        if saved is None:
            return None
        age = max(0.0, time.time() - saved["read"])
        if age > self.max_age:
            raise ConfigServerError(
                f"component {name!r} was saved in {self.path} {shown_age(age)} ago, which is more "
                f"than cache_max_age={self.max_age:g} allows",
                "start the config server, or allow a greater age",
            )
        texts = saved["stored"].items()
        return {k: v if v is None else v.encode(errors="surrogateescape") for k, v in texts}, age

    def names(self) -> list[str]:
        """Return the saved components that are not too old."""
        oldest = time.time() - self.max_age
        return sorted(name for name, saved in self._usable().items() if saved["read"] >= oldest)

    def _usable(self) -> Content:
        """Return the file's content; nothing, and a warning, if it cannot be used."""
        try:
            return self._read()
        except FileNotFoundError:
            return {}
        except (UnusableFileError, OSError) as error:
            self._report(f"the saved entries in {self.path} are not used: {error}")
            return {}

    def _read(self) -> Content:
        with open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, getattr(os, "geteuid", int)()):
                raise UnusableFileError("it is another user's; remove it")
            if status.st_nlink != 1:
                raise UnusableFileError("it has a second name, by a hard link; remove it")
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise UnusableFileError("others may write it; chmod it to 600")
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            if stamp == self._seen[0]:
                return self._seen[1]
            data = file.read(_MOST_BYTES)
        try:
            whole = parse_json(data)
            content: Content = whole["components"]
            if whole["format"] != 1 or whole["sha256"] != _digest(content):
                raise UnusableFileError("it is damaged, or of a later release")
            if whole["server"] != self._server:
                raise UnusableFileError(f"they are those of config server {whole['server']}")
        except (ValueError, LookupError, TypeError) as error:
            raise UnusableFileError(f"it is damaged ({type(error).__name__})") from None
        self._seen = stamp, content
        return content

    def _report(self, problem: str) -> None:
        if problem != self._reported:
            self._reported = problem
            about = log_records.fields("saved-entries-doubtful", file=str(self.path))
            logger.warning("%s", problem, extra=about)

    # ---- writing

    def _is_old(self) -> bool:
        return time.monotonic() - self._written_at > REFRESH

    def _write_soon(self) -> None:
        with self._lock:
            self._dirty = True
            if self._thread is not None:
                return
            # It ends before the process does.
            self._thread = threading.Thread(target=self._write_all, name="shardkit-cache")
            try:
                start_thread(self._thread)
            except RuntimeError:  # no more threads can be started; a later change tries again
                self._thread = None

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if not self._dirty:
                    self._thread = None
                    return
                self._dirty, self._written_at = False, time.monotonic()
            try:
                self._write()
            except OSError as error:
                self._report(f"the entries cannot be saved in {self.path}: {error}")
            except Exception:  # nobody is there to be told
                about = log_records.fields("saved-entries-failed", file=str(self.path))
                logger.exception("the entries cannot be saved in %s", self.path, extra=about)

    def _write(self) -> None:
        """Replace the file by one that has what it had, and what this process has read."""
        with _locked(self.path.absolute().parent):
            content: Content = {}
            with suppress(OSError, UnusableFileError):
                content = dict(self._read())
            for name, gone in list(self._gone.items()):
                if name in content and content[name]["read"] <= gone:
                    del content[name]
            for name, saved in list(self._known.items()):
                if name not in content or content[name]["read"] <= saved["read"]:
                    content[name] = dict(saved)
            whole = {"format": 1, "server": self._server, "sha256": _digest(content)}
            whole["components"] = content
            with replacing(self.path) as file:
                file.write(json.dumps(whole, indent=1).encode())

    def after_fork(self) -> None:
        """Forget the parent's thread and lock in a forked child."""
        self._lock, self._thread = threading.Lock(), None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder; after a while, go on without."""
    number = None
    try:
        import fcntl

        number = os.open(folder, os.O_RDONLY)
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(_LOCK_PAUSE)
    except (ImportError, OSError):
        pass
    try:
        yield
    finally:
        if number is not None:
            os.close(number)


def _digest(content: Content) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shown_age(seconds: float) -> str:
    """Return an age for messages: ``3 h``."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
