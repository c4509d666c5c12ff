"""Statuses on disk: all of them, while Redis holds the recent ones.

A `StatusStore` keeps each status by its id, in one table with an index for reading an author's
statuses in order of time::

    statuses   id │ uid │ posted       │ fields
               ───┼─────┼──────────────┼──────────────────────────────────────────
               17 │ 4   │ 1431864000.5 │ {"uid": "4", "posted": "1431864000.5", "message": …}

    index      (uid, posted, id)

Ids are never reused, and what was removed stays removed: a row without author and fields remains,
so that a late or repeated write does not bring the status back.

A store's methods block; operations reach them by a ``Call`` (`shardkit.social.content.cache`).
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.operation import pages
from shardkit.structures.base.arguments import check_integer

Fields: TypeAlias = Mapping[str, str]
StatusCursor: TypeAlias = tuple[float, int]
TableRow: TypeAlias = tuple[int, int, float, str]

# Statuses in one statement or transaction, and on one page of an author's.
AT_ONCE = 500
MOST_PAGE = 10_000
LARGEST = 2**63 - 1
_MOST_FIELDS = 500
_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class StatusStore(Protocol):
    """Where all statuses are kept. Thread-safe; its methods block.

    Each raises the database's own errors when the database fails.
    """

    def put_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses, replacing existing ones; they are on disk when this returns.

        Args:
            statuses: fields by id; they include ``uid``, the author's id, and ``posted``, the time
                as a number, such as microseconds since 1970. Each batch of 500 is written
                atomically, but not all together: after an interruption write them again.

        Returns:
            The ids of those that had been removed before, and were not written.

        Raises:
            InvalidArgumentError: a status is malformed; nothing was written.
        """
        raise NotImplementedError

    def add_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses without replacing existing ones; otherwise as `put_many`."""
        raise NotImplementedError

    def get_many(self, ids: Iterable[int], /) -> dict[int, dict[str, str]]:
        """Return the fields of existing statuses, by id."""
        raise NotImplementedError

    def remove_many(self, ids: Iterable[int], /) -> int:
        """Remove statuses, also those written later; return how many existed."""
        raise NotImplementedError

    def by_author(
        self,
        uid: int,
        *,
        limit: int = 30,
        cursor: StatusCursor | None = None,
        oldest_first: bool = False,
    ) -> list[tuple[int, dict[str, str]]]:
        """Return a page of an author's statuses, ids with fields, by (time, id).

        Args:
            uid: the author's id.
            limit: the most statuses to return, up to 10,000.
            cursor: the (time, id) of the last status of the page before.
            oldest_first: go forward in time; by default the newest come first.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close its connections."""


class TableStatusStore:
    """What stores share whose database speaks SQL, with a cursor as DB-API 2.0 describes it.

    Args:
        table: the table's name.

    Raises:
        InvalidArgumentError: the table's name is not a plain name.
    """

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
        found: dict[int, dict[str, str]] = {}
        for batch in pages(ids, AT_ONCE):
            with self._cursor() as cursor:
                rows = self._select(cursor, "id, fields", "uid > 0", batch)
            found |= {status: self._decode(fields) for status, fields in rows}
        return found

    def remove_many(self, ids: Iterable[int], /) -> int:
        """Remove statuses; see `StatusStore.remove_many`. Cost: one transaction for each 500."""
        removed = 0
        for batch in pages(sorted(set(ids)), AT_ONCE):
            with self._cursor(write=True) as cursor:
                removed += self._remove(cursor, batch)
        return removed

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
        # Ordered by id, so that two writers of the same statuses cannot deadlock.
        for batch in pages(sorted(table_rows(statuses)), AT_ONCE):
            with self._cursor(write=True) as cursor:
                cursor.executemany(query, batch)
                found = self._select(cursor, "id", "uid = 0", [row[0] for row in batch])
            removed.update(status for (status,) in found)
        return removed

    def _select(self, cursor: Any, columns: str, where: str, ids: Sequence[int]) -> Sequence[Any]:
        among, parameters = self._among(ids)
        query = f"SELECT {columns} FROM {self._table} WHERE {where} AND id {among}"
        cursor.execute(query, parameters)
        rows: Sequence[Any] = cursor.fetchall()
        return rows

    # ---- what databases do in different ways

    @abstractmethod
    def _cursor(self, *, write: bool = False) -> AbstractContextManager[Any]:
        """Lend a cursor; if it writes, in a transaction."""

    @abstractmethod
    def _among(self, ids: Sequence[int]) -> tuple[str, Sequence[Any]]:
        """Return the condition that an id is one of these, and its parameters."""

    @abstractmethod
    def _remove(self, cursor: Any, ids: Sequence[int]) -> int:
        """Replace rows by rows without author, also where there are none; return how many existed.

        Args:
            cursor: in a transaction.
            ids: in ascending order, each once.
        """

    @staticmethod
    @abstractmethod
    def _decode(fields: Any) -> dict[str, str]:
        """Return the fields of a status as the database returned them."""


def table_rows(statuses: Mapping[int, Fields]) -> list[TableRow]:
    """Return statuses as rows of the table: id, author, time, and all fields as JSON.

    Raises:
        InvalidArgumentError: an id is not a positive integer, a field is not text, or ``uid`` or
            ``posted`` is missing or not a number.
    """
    return [_table_row(status, fields) for status, fields in statuses.items()]


def _table_row(status: int, fields: Fields) -> TableRow:
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
