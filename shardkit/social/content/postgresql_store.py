"""Statuses in PostgreSQL, for several machines that share them: extra ``postgresql``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardkit.errors import InvalidArgumentError
from shardkit.social.content.status_store import TableStatusStore

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

# Creating the same table twice at the same time fails, so this lock of the database is taken first.
_CREATION_LOCK = 7_211_840_512


class PostgreSQLStatusStore(TableStatusStore):
    """Statuses in a table of PostgreSQL, through psycopg's connection pool.

    Args:
        dsn: the database, as libpq takes it: ``postgresql://user@host/database``.
        table: the table's name; it is created if it does not exist.
        connections: the most open connections, and so the most calls at a time.
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

    def __init__(
        self, dsn: str, table: str = "statuses", *, connections: int = 8, timeout: float = 30.0
    ) -> None:
        super().__init__(table)
        try:
            pool_class = importlib.import_module("psycopg_pool").ConnectionPool
        except ImportError:
            raise InvalidArgumentError(
                "PostgreSQLStatusStore needs psycopg and its pool",
                "pip install 'shardkit[postgresql]'",
            ) from None
        self._pool: ConnectionPool[Any] = pool_class(
            dsn,
            min_size=min(1, connections),
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
        # Ordered by id, as in _write. A row that existed has an xmax: this update's transaction.
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
