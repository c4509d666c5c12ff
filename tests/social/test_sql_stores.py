"""The stores of statuses on disk: SQLite, and PostgreSQL where it is installed."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from faces import drawn
from hypothesis import given, settings, strategies as st
from store_helpers import find_postgresql, postgresql, status

from shardkit.errors import ClosedError, InvalidArgumentError
from shardkit.social import PostgreSQLStatusStore, SQLiteStatusStore, StatusStore

PROGRAMS = find_postgresql()
TABLES = count()


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """A running PostgreSQL."""
    if PROGRAMS is None:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg_pool")
    with postgresql(PROGRAMS) as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], StatusStore]]:
    """What opens a store of each kind, the same one every time, empty at first."""
    stores: list[StatusStore] = []
    if request.param == "postgresql":
        where, table = request.getfixturevalue("dsn"), f"test_{next(TABLES)}"

    def open_store() -> StatusStore:
        store: StatusStore
        if request.param == "sqlite":
            store = SQLiteStatusStore(tmp_path / "statuses.db")
        else:
            store = PostgreSQLStatusStore(where, table, connections=4)
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[[], StatusStore]) -> StatusStore:
    return opened()


def test_what_is_put_is_got_by_id(store: StatusStore) -> None:
    store.put_many({1: status(1), 2: status(2, message="it's 'quoted' \\ \n\0 é 😀")})
    found = store.get_many([2, 3, 1])
    assert found == {1: status(1), 2: status(2, message="it's 'quoted' \\ \n\0 é 😀")}
    assert store.get_many([]) == {}


def test_deleting_says_how_many_there_were(store: StatusStore) -> None:
    store.put_many({n: status(n) for n in range(1, 5)})
    assert store.remove_many([1, 2, 99]) == 2
    assert store.remove_many([1, 2, 99]) == 0
    assert set(store.get_many(range(1, 100))) == {3, 4}


def test_what_is_new_is_added_and_nothing_else_changed(store: StatusStore) -> None:
    store.put_many({1: status(1, text="as it was")})
    assert store.add_many({1: status(1), 2: status(2)}) == set()
    assert store.get_many([1, 2]) == {1: status(1, text="as it was"), 2: status(2)}


def test_what_was_deleted_stays_deleted_even_if_it_comes_later(store: StatusStore) -> None:
    store.put_many({1: status(1)})
    assert store.remove_many([1, 2, 2]) == 1
    many = {n: status(n) for n in (1, 2, 3)}
    assert store.put_many(many) == {1, 2}
    assert store.add_many(many) == {1, 2}
    assert store.get_many(many) == {3: status(3)}
    assert [found for found, _ in store.by_author(1)] == [3]
    assert store.remove_many([1, 2, 3]) == 1


def test_it_is_there_after_it_was_opened_again(opened: Callable[[], StatusStore]) -> None:
    first = opened()
    first.put_many({5: status(5)})
    first.close()
    assert opened().get_many([5]) == {5: status(5)}


def test_pages_of_an_author_have_no_gaps_at_equal_times(store: StatusStore) -> None:
    times = [1.0, 2.0, 2.0, 2.0, 2.0, 3.25]
    store.put_many({n: status(n, 4, time) for n, time in enumerate(times, 1)})
    store.put_many({50: status(50, 5, 2.0)})
    pages, cursor = [], None
    while page := store.by_author(4, cursor=cursor, limit=2):
        pages.append([found for found, _ in page])
        cursor = float(page[-1][1]["posted"]), page[-1][0]
    assert pages == [[6, 5], [4, 3], [2, 1]]
    assert [
        found for found, _ in store.by_author(4, cursor=(2.0, 3), limit=2, oldest_first=True)
    ] == [4, 5]


@given(
    posted=st.dictionaries(st.integers(1, 40), st.tuples(st.integers(1, 3), st.integers(0, 4))),
    cursor=st.tuples(st.integers(0, 4).map(float), st.integers(0, 41)),
    num=st.integers(1, 9),
)
@settings(max_examples=drawn(25, 60))
def test_any_page_is_what_sorting_gives(
    tmp_path_factory: pytest.TempPathFactory,
    posted: dict[int, tuple[int, int]],
    cursor: tuple[float, int],
    num: int,
) -> None:
    store = SQLiteStatusStore(tmp_path_factory.mktemp("page") / "s.db", safe=False)
    store.put_many({n: status(n, uid, float(time)) for n, (uid, time) in posted.items()})
    mine = sorted((float(time), n) for n, (uid, time) in posted.items() if uid == 2)
    before = [n for time, n in reversed(mine) if (time, n) < cursor][:num]
    after = [n for time, n in mine if (time, n) > cursor][:num]
    assert [n for n, _ in store.by_author(2, cursor=cursor, limit=num)] == before
    assert [n for n, _ in store.by_author(2, cursor=cursor, limit=num, oldest_first=True)] == after
    store.close()


def test_threads_write_and_read_at_the_same_time(store: StatusStore) -> None:
    def work(thread: int) -> int:
        mine = range(thread * 100 + 1, thread * 100 + 101)
        for start in range(0, 100, 20):
            some = mine[start : start + 20]
            store.put_many({n: status(n, thread + 1) for n in some})
            store.put_many({2001: status(2001), 2002: status(2002)})  # of all threads
            assert len(store.get_many(some)) == 20
        return store.remove_many(mine[::2])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [50] * 8
    assert len(store.get_many(range(1, 2000))) == 400


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"uid": "1"}, "posted"),
        ({"posted": "1"}, "uid"),
        ({"uid": "x", "posted": "1"}, "uid='x'"),
        ({"uid": "0", "posted": "1"}, "uid='0'"),
        ({"uid": "1", "posted": "nan"}, "posted='nan'"),
        ({"uid": "1", "posted": "1", "n": 5}, "'n'"),
        (dict.fromkeys(map(str, range(600)), "x"), "600 fields"),
    ],
)
def test_what_is_no_status_is_refused_before_anything_is_written(
    store: StatusStore, fields: Any, said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        store.put_many({1: status(1), 2: fields})
    with pytest.raises(InvalidArgumentError, match="id=0"):
        store.put_many({1: status(1), 0: status(2)})
    assert store.get_many([1]) == {}


def test_arguments_out_of_range_are_refused(store: StatusStore) -> None:
    for wrong in ({"limit": 0}, {"limit": 10**6}):
        with pytest.raises(InvalidArgumentError, match="0; give an integer, 1 to 10"):
            store.by_author(1, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="uid"):
        store.by_author(0)
    for cursor in (True, "x", (1, "2"), [3]):
        with pytest.raises(InvalidArgumentError, match="cursor"):
            store.by_author(1, cursor=cursor)  # type: ignore[arg-type]


def test_a_table_has_a_plain_name_and_a_file_a_path(tmp_path: Path) -> None:
    for table in ("a b", "", "x; DROP TABLE y", "Ä", "1a"):
        with pytest.raises(InvalidArgumentError, match="table"):
            SQLiteStatusStore(tmp_path / "x.db", table)
        with pytest.raises(InvalidArgumentError, match="table"):
            PostgreSQLStatusStore("", table)
    for path in (":memory:", "", 7, None, b"x.db", "a\0b"):
        with pytest.raises(InvalidArgumentError, match="path"):
            SQLiteStatusStore(path)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="dsn"):
        PostgreSQLStatusStore(7)  # type: ignore[arg-type]


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SQLiteStatusStore(tmp_path / "x.db")
    store.close()
    with pytest.raises(ClosedError, match=r"x\.db"):
        store.get_many([1])


def test_a_failed_batch_leaves_no_part_and_the_store_goes_on(tmp_path: Path) -> None:
    store = SQLiteStatusStore(tmp_path / "x.db")
    with sqlite3.connect(tmp_path / "x.db") as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON statuses WHEN new.id = 3"
            " BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
    other.close()
    with pytest.raises(sqlite3.IntegrityError, match="disk full"):
        store.put_many({n: status(n) for n in (1, 2, 3)})
    assert store.get_many([1, 2, 3]) == {}
    store.put_many({1: status(1)})
    assert set(store.get_many([1, 2, 3])) == {1}
    store.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_failed_read_gives_its_connection_back(tmp_path: Path) -> None:
    store = SQLiteStatusStore(tmp_path / "x.db")
    before = 0

    def rename(name: str, other: str) -> None:
        database = sqlite3.connect(tmp_path / "x.db")
        database.execute(f"ALTER TABLE {name} RENAME TO {other}")
        database.close()

    rename("statuses", "hidden")
    for _ in range(3):
        with pytest.raises(sqlite3.OperationalError, match="no such table: statuses"):
            store.get_many([1])
        before = before or descriptors()
    rename("hidden", "statuses")
    assert store.get_many([1]) == {}
    assert descriptors() == before
    store.close()


def test_a_store_that_is_closed_while_a_call_runs_closes_that_calls_connection_at_its_end(
    tmp_path: Path,
) -> None:
    before = descriptors()
    store = SQLiteStatusStore(tmp_path / "x.db")
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(store.put_many, {1: status(1)})
        threading.Event().wait(0.1)  # in which it begins to wait for the other one
        assert not writing.done()
        store.close()
        other.execute("COMMIT")
        writing.result(30)
    assert other.execute("SELECT count(*) FROM statuses").fetchall() == [(1,)]
    other.close()
    assert descriptors() == before


def _write_in_child(store: SQLiteStatusStore) -> None:
    store.put_many({2: status(2)})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_uses_connections_of_its_own(tmp_path: Path) -> None:
    store = SQLiteStatusStore(tmp_path / "x.db")
    store.put_many({1: status(1)})
    child = multiprocessing.get_context("fork").Process(target=_write_in_child, args=(store,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert set(store.get_many([1, 2])) == {1, 2}
    store.close()


def test_a_store_that_cannot_create_its_table_leaves_no_pool_behind(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    before = set(threading.enumerate())
    read_only = f"{dsn}?options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="CREATE TABLE"):
        PostgreSQLStatusStore(read_only, "never", connections=1)
    assert set(threading.enumerate()) == before


def test_without_psycopg_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg_pool", None)
    with pytest.raises(InvalidArgumentError, match=r"shardkit\[postgresql\]"):
        PostgreSQLStatusStore("postgresql://127.0.0.1/none")


def test_postgresql_that_closed_its_connections_is_connected_to_again(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    store = PostgreSQLStatusStore(dsn, "cut", connections=2)
    store.put_many({1: status(1)})
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
    assert store.get_many([1]) == {1: status(1)}
    store.close()
