"""Status stores in SQL databases: SQLite, and PostgreSQL for several machines.

One table has each status by id: its author, time, and fields as JSON; an index of author, time and
id serves pages of an author's statuses. The row of a removed status stays, without author and
fields, so that a late or repeated write does not bring the status back.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sqlite3
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from shardkit.errors import ClosedError, InvalidArgumentError, extra
from shardkit.operations.arguments import Seconds, checked, shown
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.operation import pages
from shardkit.social.status_cache import AT_ONCE, LARGEST, Fields, StatusCursor, table_rows
from shardkit.structures.base.arguments import check_integer, check_seconds

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

MOST_PAGE = 10_000
_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# Creating the same table twice at once fails, so each creator first gets this database lock.
_CREATION_LOCK = 7_211_840_512
# Connections that a forked child inherited, referenced so that it never closes them.
_inherited: list[sqlite3.Connection] = []


class TableStatusStore:
    """The common part of stores in an SQL database with DB-API 2.0 cursors."""

    _MARK: ClassVar[str]  # stands for a parameter in a query
    _COLUMNS: ClassVar[str]

    def __init__(self, table: str) -> None:
        # The name becomes part of queries; everything else is a parameter.
        if not isinstance(table, str) or not _TABLE.fullmatch(table):
            raise InvalidArgumentError(
                f"table={shown(table)}", "give lower-case letters, digits and underscores"
            )
        self._table = table

    def put_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses; see `StatusStore.put_many`. Cost: one transaction for each 500."""
        return self._write(
            statuses,
            "UPDATE SET uid = excluded.uid, posted = excluded.posted, fields = excluded.fields"
            f" WHERE {self._table}.uid > 0",
        )

    def add_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write new statuses; see `StatusStore.add_many`. Cost: one transaction for each 500."""
        return self._write(statuses, "NOTHING")

    def get_many(self, ids: Iterable[int], /) -> dict[int, dict[str, str]]:
        """Return statuses; see `StatusStore.get_many`. Cost: one query for each 500."""
        statuses: dict[int, dict[str, str]] = {}
        for batch in pages(ids, AT_ONCE):
            with self._cursor() as cursor:
                rows = self._select(cursor, "id, fields", "uid > 0", batch)
            statuses |= {status: self._decode(fields) for status, fields in rows}
        return statuses

    def remove_many(self, ids: Iterable[int], /) -> int:
        """Remove statuses; see `StatusStore.remove_many`. Cost: one transaction for each 500."""
        removed = 0
        for batch in pages(sorted(set(ids)), AT_ONCE):
            with self._cursor(write=True) as cursor:
                removed += self._remove(cursor, batch)
        return removed

    @checked
    def by_author(
        self,
        uid: int,
        *,
        limit: int = 30,
        cursor: StatusCursor | None = None,
        oldest_first: bool = False,
    ) -> list[tuple[int, dict[str, str]]]:
        """Return a page of an author's statuses; see `StatusStore.by_author`.

        Raises:
            InvalidArgumentError: a number is out of range.

        Cost: one query, which reads ``limit`` entries of the index from the cursor on.
        """
        check_integer("by_author", "uid", uid, 1, LARGEST)
        check_integer("by_author", "limit", limit, 1, MOST_PAGE)
        sign, order = (">", "ASC") if oldest_first else ("<", "DESC")
        mark = self._MARK
        where = f"uid = {mark}"
        if cursor is not None:
            where += f" AND (posted, id) {sign} ({mark}, {mark})"
        query = (
            f"SELECT id, fields FROM {self._table} WHERE {where}"
            f" ORDER BY posted {order}, id {order} LIMIT {mark}"
        )
        with self._cursor() as database:
            database.execute(query, (uid, *(cursor or ()), limit))
            rows = database.fetchall()
        return [(status, self._decode(fields)) for status, fields in rows]

    def _create(self, cursor: Any) -> None:
        table = self._table
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} ({self._COLUMNS})")
        cursor.execute(f"CREATE INDEX IF NOT EXISTS {table}_of_owner ON {table} (uid, posted, id)")

    def _write(self, statuses: Mapping[int, Fields], on_conflict: str) -> set[int]:
        removed: set[int] = set()
        marks = ", ".join([self._MARK] * 4)
        query = f"INSERT INTO {self._table} VALUES ({marks}) ON CONFLICT (id) DO {on_conflict}"
        # In order of ids, so that two writers of the same statuses cannot deadlock.
        for batch in pages(sorted(table_rows(statuses)), AT_ONCE):
            with self._cursor(write=True) as cursor:
                cursor.executemany(query, batch)
                rows = self._select(cursor, "id", "uid = 0", [row[0] for row in batch])
            removed.update(status for (status,) in rows)
        return removed

    def _select(self, cursor: Any, columns: str, where: str, ids: Sequence[int]) -> Sequence[Any]:
        among, parameters = self._among(ids)
        query = f"SELECT {columns} FROM {self._table} WHERE {where} AND id {among}"
        cursor.execute(query, parameters)
        rows: Sequence[Any] = cursor.fetchall()
        return rows

    # ---- what differs between databases

    @abstractmethod
    def _cursor(self, *, write: bool = False) -> AbstractContextManager[Any]:
        """Lend a cursor, for writing in a transaction."""

    @abstractmethod
    def _among(self, ids: Sequence[int]) -> tuple[str, Sequence[Any]]:
        """Return the condition that an id is one of these, and its parameters."""

    @abstractmethod
    def _remove(self, cursor: Any, ids: Sequence[int]) -> int:
        """Write rows without author for ascending ids; return how many existed before."""

    @staticmethod
    @abstractmethod
    def _decode(fields: Any) -> dict[str, str]:
        """Return the fields of a status as the database returned them."""


class SQLiteStatusStore(TableStatusStore):
    """Statuses in an SQLite file with a write-ahead log: reads and writes run in parallel.

    Args:
        path: the file; it and its table are created if they do not exist.
        safe: whether a write that returned survives a power failure, which costs one wait for the
            disk for each batch; without it, only a process crash.

    Raises:
        InvalidArgumentError: the path is not a file's, or the table's name is not a plain name.

    Thread-safe: each running call has a connection of its own, reused by later calls. A forked
    child opens its own.
    """

    _MARK = "?"
    _COLUMNS = (
        "id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, posted REAL NOT NULL, fields TEXT NOT NULL"
    )

    @checked
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
        try:
            with self._cursor() as cursor:
                cursor.execute("PRAGMA journal_mode = WAL")
                self._create(cursor)
        except (sqlite3.DatabaseError, ValueError) as error:
            self.close()
            raise InvalidArgumentError(
                f"path={shown(str(path))} cannot be used: {error}",
                "give the path of a store's file, or of a new one",
            ) from error

    def close(self) -> None:
        """Close idle connections now, and used ones when their calls end."""
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
        try:
            database.execute(f"PRAGMA synchronous = {'FULL' if self._safe else 'NORMAL'}")
        except sqlite3.Error:
            database.close()
            raise
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


class PostgreSQLStatusStore(TableStatusStore):
    """Statuses in a table of PostgreSQL, through psycopg's connection pool.

    Args:
        dsn: the database, as libpq takes it: ``postgresql://user@host/database``.
        table: the table's name; it is created if it does not exist.
        connections: the most open connections, and so the most concurrent calls.
        timeout: how long a call waits for a connection, in seconds.

    Raises:
        InvalidArgumentError: psycopg is not installed, or the table's name is not a plain name.
        psycopg_pool.PoolTimeout: the database cannot be reached.

    Thread-safe. Create it after a fork, not before.
    """

    _MARK = "%s"
    _COLUMNS = (
        "id bigint PRIMARY KEY, uid bigint NOT NULL, posted double precision NOT NULL,"
        " fields json NOT NULL"
    )

    @checked
    def __init__(
        self, dsn: str, table: str = "statuses", *, connections: int = 8, timeout: Seconds = 30.0
    ) -> None:
        super().__init__(table)
        check_integer("statuses", "connections", connections, 1, 10_000)
        timeout = check_seconds("statuses", "timeout", timeout)
        with extra("postgresql", "stores in PostgreSQL"):
            pool_class = importlib.import_module("psycopg_pool").ConnectionPool
        self._pool: ConnectionPool[Any] = pool_class(
            dsn,
            min_size=1,
            max_size=connections,
            timeout=timeout,
            open=True,
            check=pool_class.check_connection,
        )
        try:
            with self._cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION_LOCK,))
                self._create(cursor)
        except BaseException:
            self._pool.close()
            raise

    def close(self) -> None:
        """Close the pool's connections."""
        self._pool.close()

    @contextmanager
    def _cursor(self, *, write: bool = False) -> Iterator[Any]:
        # The pool's context manager commits or rolls back in any case.
        with self._pool.connection() as connection, connection.cursor() as cursor:
            yield cursor

    def _among(self, ids: Sequence[int]) -> tuple[str, Sequence[Any]]:
        return "= ANY(%s)", (ids,)

    def _remove(self, cursor: Any, ids: Sequence[int]) -> int:
        # In order of ids, as in _write. A row that existed has an xmax: this update's transaction.
        cursor.execute(
            f"INSERT INTO {self._table} SELECT id, 0, 0, 'null' FROM unnest(%s::bigint[]) AS id"
            " ORDER BY id ON CONFLICT (id) DO UPDATE SET uid = 0, posted = 0, fields = 'null'"
            f" WHERE {self._table}.uid > 0 RETURNING xmax::text <> '0'",
            (ids,),
        )
        return sum(existed for (existed,) in cursor.fetchall())

    @staticmethod
    def _decode(fields: dict[str, str]) -> dict[str, str]:
        return fields
