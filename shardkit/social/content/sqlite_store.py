"""Statuses on disk: all of them, of which Redis holds the recent ones.

A `StatusStore` keeps each status by its id, in one table with an index for reading an author's
statuses in order of time::

    statuses   id │ uid │ posted       │ fields
               ───┼─────┼──────────────┼──────────────────────────────────────────
               17 │ 4   │ 1431864000.5 │ {"uid": "4", "posted": "1431864000.5", "message": …}

    index      (uid, posted, id)

Ids are never used twice, and what was deleted stays deleted: a row without author and fields
remains, so that whoever comes late, or is repeated, does not write it again.

`SQLiteStatusStore` needs nothing that Python has not got; for PostgreSQL see
`content.postgresql_store`. A store's functions block: operations reach them by a ``Call``
(`shardkit.social.content.cache`).
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from shardkit.errors import ClosedError, InvalidArgumentError
from shardkit.operations.operation import pages
from shardkit.structures.base.arguments import check_integer, shown

Fields: TypeAlias = Mapping[str, str]
StatusCursor: TypeAlias = tuple[float, int]
Row: TypeAlias = tuple[int, int, float, str]

# How many statuses one statement or transaction takes, and one page of an author's may have.
AT_ONCE = 500
MOST_PAGE = 10_000
LARGEST = 2**63 - 1
_MOST_FIELDS = 500
_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class StatusStore(Protocol):
    """Where all statuses are kept. Thread-safe; its functions block.

    Each raises the database's own errors when the database fails.
    """

    def put_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses, over those that are there; once it returns they are on disk.

        Args:
            statuses: fields by id; among them ``uid``, the author's id, and ``posted``, the time
                as a number, such as microseconds since 1970. Batches of 500 are written each at
                once, all of them are not: whoever is interrupted writes them again.

        Returns:
            the ids of those that had been deleted, and were not written.

        Raises:
            InvalidArgumentError: a status is none; nothing was written.
        """
        raise NotImplementedError

    def add_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses, but not over those that are there; otherwise as `put_many`."""
        raise NotImplementedError

    def get_many(self, ids: Iterable[int], /) -> dict[int, dict[str, str]]:
        """Return the fields of those that there are, by id."""
        raise NotImplementedError

    def delete_many(self, ids: Iterable[int], /) -> int:
        """Remove statuses, also those that will be written later; return how many there were."""
        raise NotImplementedError

    def of_owner(
        self,
        uid: int,
        *,
        before: StatusCursor | None = None,
        after: StatusCursor | None = None,
        num: int = 30,
    ) -> list[tuple[int, dict[str, str]]]:
        """Return a page of an author's statuses, ids with fields, by (time, id).

        Args:
            uid: the author's id.
            before: give those before this (time, id), exclusive; the newest without it. Newest
                first.
            after: give those after it, exclusive. Oldest first.
            num: how many at most.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close its connections."""


def table_rows(statuses: Mapping[int, Fields]) -> list[Row]:
    """Return statuses as a table has them: id, author, time, and all fields as JSON.

    Raises:
        InvalidArgumentError: an id is no positive integer, a field is no text, or ``uid`` or
            ``posted`` is missing or no number.
    """
    return [_row(status, fields) for status, fields in statuses.items()]


def _row(status: int, fields: Fields) -> Row:
    check_integer("status", "id", status, 1, LARGEST)
    if len(fields) > _MOST_FIELDS:
        raise InvalidArgumentError(
            f"status {status}: {len(fields)} fields", f"give at most {_MOST_FIELDS}"
        )
    for name, value in fields.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"status {status}: field {shown(name)} is {shown(value)}", "give text"
            )
    try:
        uid, posted = int(fields["uid"]), float(fields["posted"])
    except KeyError as missing:
        raise InvalidArgumentError(
            f"status {status}: no field {missing}", "give uid and posted"
        ) from None
    except ValueError:
        uid, posted = 0, math.nan
    if not 1 <= uid <= LARGEST or not math.isfinite(posted):
        raise InvalidArgumentError(
            f"status {status}: uid={shown(fields['uid'])} posted={shown(fields['posted'])}",
            "give the author's id, and the time as a number",
        )
    return status, uid, posted, json.dumps(dict(fields))


def overwrite_clause(table: str) -> str:
    """Return what an INSERT does where a status is: write over it, unless it was deleted."""
    return (
        "UPDATE SET uid = excluded.uid, posted = excluded.posted, fields = excluded.fields"
        f" WHERE {table}.uid > 0"
    )


def page_query(
    table: str,
    mark: str,
    uid: int,
    before: StatusCursor | None,
    after: StatusCursor | None,
    num: int,
) -> tuple[str, Sequence[float]]:
    """Return the query for a page of an author's statuses, and its parameters.

    Args:
        table: the table's name.
        mark: how the database writes a parameter.
        uid: the author's id.
        before: the end of the page before it, to go back in time; see `StatusStore.of_owner`.
        after: the same, to go forward.
        num: how many at most.

    Raises:
        InvalidArgumentError: both ends are given, or a number is out of range.
    """
    check_integer("of_owner", "uid", uid, 1, LARGEST)
    check_integer("of_owner", "num", num, 1, MOST_PAGE)
    if before is not None and after is not None:
        raise InvalidArgumentError("of_owner: before and after", "give one of them")
    cursor = before if after is None else after
    sign, order = ("<", "DESC") if after is None else (">", "ASC")
    # The table's name is checked; everything else is a parameter.
    where = f"SELECT id, fields FROM {table} WHERE uid = {mark}"
    if cursor is not None:
        where += f" AND (posted, id) {sign} ({mark}, {mark})"
    query = f"{where} ORDER BY posted {order}, id {order} LIMIT {mark}"
    return query, (uid, *(cursor or ()), num)


def check_table(table: str) -> None:
    """Check the name of a table, which becomes part of queries.

    Raises:
        InvalidArgumentError: it is no plain name.
    """
    if not isinstance(table, str) or not _TABLE.fullmatch(table):
        raise InvalidArgumentError(
            f"table={shown(table)}", "give lower-case letters, digits and underscores"
        )


class SQLiteStatusStore:
    """Statuses in a file of SQLite, with a write-ahead log: readers and the writer go on together.

    Args:
        path: the file; it and its table are created where they are not there.
        table: the table's name.
        safe: whether a write that returned survives the loss of power, which waits for the disk
            once a batch; without it only the crash of the process.

    Raises:
        InvalidArgumentError: the path is none, or the table's name is no plain name.

    Thread-safe: each call that runs has a connection of its own, which it leaves for the next. A
    forked child makes its own.
    """

    def __init__(self, path: str | Path, table: str = "statuses", *, safe: bool = True) -> None:
        check_table(table)
        if str(path) in ("", ":memory:") or str(path).startswith("file:"):
            raise InvalidArgumentError(f"path={shown(str(path))}", "give the path of a file")
        self.path = Path(path)
        self._table = table
        self._safe = safe
        self._lock = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        self._closed = False
        with self._connection() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY,"
                " uid INTEGER NOT NULL, posted REAL NOT NULL, fields TEXT NOT NULL)"
            )
            database.execute(
                f"CREATE INDEX IF NOT EXISTS {table}_of_owner ON {table} (uid, posted, id)"
            )

    def put_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses; see `StatusStore.put_many`. Cost: one transaction for every 500."""
        return self._write(statuses, overwrite_clause(self._table))

    def add_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write new statuses; see `StatusStore.add_many`. Cost: one transaction for every 500."""
        return self._write(statuses, "NOTHING")

    def _write(self, statuses: Mapping[int, Fields], conflict: str) -> set[int]:
        refused: set[int] = set()
        query = f"INSERT INTO {self._table} VALUES (?, ?, ?, ?) ON CONFLICT (id) DO {conflict}"
        for batch in pages(table_rows(statuses), AT_ONCE):
            ids = [row[0] for row in batch]
            deleted = f"SELECT id FROM {self._table} WHERE uid = 0 AND id IN ({_marks(ids)})"
            with self._connection() as database, _transaction(database):
                database.executemany(query, batch)
                refused.update(status for (status,) in database.execute(deleted, ids))
        return refused

    def get_many(self, ids: Iterable[int], /) -> dict[int, dict[str, str]]:
        """Return statuses; see `StatusStore.get_many`. Cost: one query for every 500."""
        found: dict[int, dict[str, str]] = {}
        for batch in pages(ids, AT_ONCE):
            query = (
                f"SELECT id, fields FROM {self._table} WHERE uid > 0 AND id IN ({_marks(batch)})"
            )
            with self._connection() as database:
                for status, fields in database.execute(query, batch):
                    found[status] = json.loads(fields)
        return found

    def delete_many(self, ids: Iterable[int], /) -> int:
        """Remove statuses; see `StatusStore.delete_many`. Cost: one transaction for every 500."""
        removed = 0
        delete = (
            f"INSERT INTO {self._table} VALUES (?, 0, 0, '') ON CONFLICT (id) DO UPDATE"
            " SET uid = 0, posted = 0, fields = ''"
        )
        for batch in pages(dict.fromkeys(ids), AT_ONCE):
            count = f"SELECT count(*) FROM {self._table} WHERE uid > 0 AND id IN ({_marks(batch)})"
            with self._connection() as database, _transaction(database):
                removed += database.execute(count, batch).fetchone()[0]
                database.executemany(delete, [(status,) for status in batch])
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
        query, parameters = page_query(self._table, "?", uid, before, after, num)
        with self._connection() as database:
            found = database.execute(query, parameters).fetchall()
        return [(status, json.loads(fields)) for status, fields in found]

    def close(self) -> None:
        """Close the connections; one that is in use, as soon as its call is done."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for database in idle:
            database.close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        database = self._take()
        try:
            yield database
        finally:
            with self._lock:
                keep = not self._closed and self._pid == os.getpid()
                if keep:
                    self._idle.append(database)
            if not keep:
                database.close()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise ClosedError(f"the statuses in {self.path} are closed", "open them again")
            if self._pid != os.getpid():
                # SQLite's connections must not be used, or closed, by a forked child.
                _abandoned.extend(self._idle)
                self._idle, self._pid = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        # No implicit transactions. Used by one thread at a time, not always the same one.
        database = sqlite3.connect(
            self.path, timeout=30, isolation_level=None, check_same_thread=False
        )
        database.execute(f"PRAGMA synchronous = {'FULL' if self._safe else 'NORMAL'}")
        return database


# What a forked child inherited: kept, so that it is never closed there.
_abandoned: list[sqlite3.Connection] = []


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    with closing(database.execute("BEGIN IMMEDIATE")):
        pass
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _marks(batch: Sequence[int]) -> str:
    return ", ".join("?" * len(batch))
