"""Statuses in PostgreSQL, for several machines that share them: extra ``postgresql``.

The table is that of `shardkit.social.content.sqlite_store`; ``fields`` is of type ``json``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shardkit.errors import InvalidArgumentError
from shardkit.operations.operation import pages
from shardkit.social.content.sqlite_store import (
    AT_ONCE,
    Fields,
    StatusCursor,
    check_table,
    overwrite_clause,
    page_query,
    table_rows,
)

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

# Creating the same table twice at the same time fails; this lock is the database's.
_CREATION = 7_211_840_512


class PostgreSQLStatusStore:
    """Statuses in a table of PostgreSQL, by psycopg's pool of connections.

    Args:
        dsn: where the database is, as libpq takes it: ``postgresql://user@host/database``.
        table: the table's name; it is created where it is not there.
        connections: how many are open at most: how many calls run at the same time.
        timeout: how long a call waits for one of them, in seconds.

    Raises:
        InvalidArgumentError: psycopg is not installed, or the table's name is no plain name.
        psycopg_pool.PoolTimeout: the database cannot be reached.

    Thread-safe. Made after a fork, not before.
    """

    def __init__(
        self, dsn: str, table: str = "statuses", *, connections: int = 8, timeout: float = 30.0
    ) -> None:
        check_table(table)
        try:
            pool_class = importlib.import_module("psycopg_pool").ConnectionPool
        except ImportError:
            raise InvalidArgumentError(
                "PostgreSQLStatusStore needs psycopg and its pool",
                "pip install 'shardkit[postgresql]'",
            ) from None
        self._table = table
        self._pool: ConnectionPool[Any] = pool_class(
            dsn,
            min_size=min(1, connections),
            max_size=connections,
            timeout=timeout,
            open=True,
            check=pool_class.check_connection,
        )
        try:
            self._create()
        except BaseException:
            self._pool.close()
            raise

    def _create(self) -> None:
        table = self._table
        with self._pool.connection() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION,))
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (id bigint PRIMARY KEY,"
                " uid bigint NOT NULL, posted double precision NOT NULL, fields json NOT NULL)"
            )
            connection.execute(
                f"CREATE INDEX IF NOT EXISTS {table}_of_owner ON {table} (uid, posted, id)"
            )

    def put_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses; see `StatusStore.put_many`. Cost: one transaction for every 500."""
        return self._write(statuses, overwrite_clause(self._table))

    def add_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write new statuses; see `StatusStore.add_many`. Cost: one transaction for every 500."""
        return self._write(statuses, "NOTHING")

    def _write(self, statuses: Mapping[int, Fields], conflict: str) -> set[int]:
        table = self._table
        refused: set[int] = set()
        query = f"INSERT INTO {table} VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO {conflict}"
        deleted = f"SELECT id FROM {table} WHERE uid = 0 AND id = ANY(%s)"
        # In order of id: two writers of the same statuses wait for one another, in no circle.
        for batch in pages(sorted(table_rows(statuses)), AT_ONCE):
            with self._pool.connection() as connection, connection.cursor() as cursor:
                cursor.executemany(query, batch)
                cursor.execute(deleted, ([row[0] for row in batch],))
                refused.update(status for (status,) in cursor.fetchall())
        return refused

    def get_many(self, ids: Iterable[int], /) -> dict[int, dict[str, str]]:
        """Return statuses; see `StatusStore.get_many`. Cost: one query for every 500."""
        found: dict[int, dict[str, str]] = {}
        query = f"SELECT id, fields FROM {self._table} WHERE uid > 0 AND id = ANY(%s)"
        for batch in pages(ids, AT_ONCE):
            with self._pool.connection() as connection:
                found.update(connection.execute(query, (batch,)).fetchall())
        return found

    def delete_many(self, ids: Iterable[int], /) -> int:
        """Remove statuses; see `StatusStore.delete_many`. Cost: one transaction for every 500."""
        removed = 0
        # As in _write, in order of id. A row that was there before has an xmax: the update's.
        query = (
            f"INSERT INTO {self._table} SELECT id, 0, 0, 'null' FROM unnest(%s::bigint[]) AS id"
            " ORDER BY id ON CONFLICT (id) DO UPDATE SET uid = 0, posted = 0, fields = 'null'"
            f" WHERE {self._table}.uid > 0 RETURNING xmax::text <> '0'"
        )
        for batch in pages(sorted(set(ids)), AT_ONCE):
            with self._pool.connection() as connection:
                found = connection.execute(query, (batch,)).fetchall()
            removed += sum(there for (there,) in found)
        return removed

    def of_owner(
        self,
        uid: int,
        *,
        before: StatusCursor | None = None,
        after: StatusCursor | None = None,
        num: int = 30,
    ) -> list[tuple[int, dict[str, str]]]:
        """Return a page of an author's statuses; see `StatusStore.of_owner`.

        Cost: one query, that reads ``num`` entries of the index from the cursor on.
        """
        query, parameters = page_query(self._table, "%s", uid, before, after, num)
        with self._pool.connection() as connection:
            found: list[tuple[int, dict[str, str]]]
            found = connection.execute(query, parameters).fetchall()
        return found

    def close(self) -> None:
        """Close the pool's connections."""
        self._pool.close()
