"""Statuses in a file of SQLite, which Python brings along; see `shardkit.social.StatusStore`."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardkit.errors import ClosedError, InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.forks import ForkSafeLock
from shardkit.social.content.status_store import TableStatusStore


class SQLiteStatusStore(TableStatusStore):
    """Statuses in a file of SQLite, with a write-ahead log: reading and writing go on in parallel.

    Args:
        path: the file; it and its table are created if they do not exist.
        table: the table's name.
        safe: whether a write that returned survives a loss of power, which costs one wait for the
            disk for each batch; without it, only a crash of the process.

    Raises:
        InvalidArgumentError: the path is not a file's, or the table's name is not a plain name.

    Thread-safe: each running call has a connection of its own, reused by later calls. A forked
    child opens its own.
    """

    _MARK = "?"
    _COLUMNS = (
        "id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, posted REAL NOT NULL, fields TEXT NOT NULL"
    )

    def __init__(self, path: str | Path, table: str = "statuses", *, safe: bool = True) -> None:
        super().__init__(table)
        if str(path) in ("", ":memory:") or str(path).startswith("file:"):
            raise InvalidArgumentError(f"path={shown(str(path))}", "give the path of a file")
        self.path = Path(path)
        self._safe = safe
        self._lock = ForkSafeLock()
        self._idle: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        self._closed = False
        with self._cursor() as cursor:
            cursor.execute("PRAGMA journal_mode = WAL")
            self._create(cursor)

    def close(self) -> None:
        """Close idle connections now, and those in use when their calls end."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for database in idle:
            database.close()

    @contextmanager
    def _cursor(self, *, write: bool = False) -> Iterator[sqlite3.Cursor]:
        database = self._connection()
        cursor = database.cursor()
        try:
            if write:
                cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
            except BaseException:
                if write:
                    database.execute("ROLLBACK")
                raise
            if write:
                database.execute("COMMIT")
        finally:
            cursor.close()
            with self._lock:
                keep = not self._closed and self._pid == os.getpid()
                if keep:
                    self._idle.append(database)
            if not keep:
                database.close()

    def _connection(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise ClosedError(f"the statuses in {self.path} are closed", "open them again")
            if self._pid != os.getpid():
                # A forked child must neither use nor close SQLite's connections.
                _inherited.extend(self._idle)
                self._idle, self._pid = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        # No implicit transactions. One thread at a time uses it, not always the same one.
        database = sqlite3.connect(
            self.path, timeout=30, isolation_level=None, check_same_thread=False
        )
        database.execute(f"PRAGMA synchronous = {'FULL' if self._safe else 'NORMAL'}")
        return database

    def _among(self, ids: Sequence[int]) -> tuple[str, Sequence[Any]]:
        return f"IN ({', '.join('?' * len(ids))})", ids

    def _remove(self, cursor: sqlite3.Cursor, ids: Sequence[int]) -> int:
        [(existed,)] = self._select(cursor, "count(*)", "uid > 0", ids)
        cursor.executemany(
            f"INSERT INTO {self._table} VALUES (?, 0, 0, '') ON CONFLICT (id) DO UPDATE"
            " SET uid = 0, posted = 0, fields = ''",
            [(status,) for status in ids],
        )
        return int(existed)

    @staticmethod
    def _decode(fields: str) -> dict[str, str]:
        decoded: dict[str, str] = json.loads(fields)
        return decoded


# Connections that a forked child inherited, referenced so that it never closes them.
_inherited: list[sqlite3.Connection] = []
