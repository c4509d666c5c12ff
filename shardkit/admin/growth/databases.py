"""The databases that a move of shards concerns, on one server: their keys and connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from shardkit.admin.growth.fence import is_own
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.admin.growth.servers import connected_to
from shardkit.config.entry import Entry
from shardkit.network.connections.databases import READING, WAITING, numbers_in

T = TypeVar("T")
R = TypeVar("R")

MOST_NAMED = 20
_OWN = "shardkit-move/"  # names of the mover's own connections
_TIMEOUT = 10.0  # seconds for one answer
_PAGE = 100  # keys that are listed and deleted at a time, while other clients wait


@contextmanager
def database_client(server: ServerAddress, like: Entry, where: str, number: int) -> Iterator[Any]:
    """Yield a client of a database, with the user and TLS of an entry."""
    with connected_to(
        server, like, where, timeout=_TIMEOUT, database=number, client_name=f"{_OWN}{number}"
    ) as client:
        yield client


@contextmanager
def clients_of(
    places: Iterable[Place], login: Callable[[ServerAddress], tuple[Entry, str]]
) -> Iterator[dict[Place, Any]]:
    """Yield clients of databases, by their places."""
    with ExitStack() as stack:
        yield {
            place: stack.enter_context(
                database_client(place.server, *login(place.server), place.database)
            )
            for place in places
        }


def at_once(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call a function for each item, in threads if there are several; return when all have ended.

    Raises: the first of their errors.
    """
    every = list(items)
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}

    def call(n: int) -> None:
        try:
            results[n] = work(every[n])
        except BaseException as error:  # raised below
            errors[n] = error

    threads = [threading.Thread(target=call, args=(n,)) for n in range(1, len(every))]
    for thread in threads:
        thread.start()
    if every:
        call(0)
    for thread in threads:
        thread.join()
    for n in sorted(errors):
        raise errors[n]
    return [results[n] for n in range(len(every))]


def strays(client: Any, most: int = MOST_NAMED) -> list[str]:
    """Return at most `most` keys of a database that are not shardkit's own."""
    keys: list[str] = []
    for key in client.scan_iter(count=_PAGE):
        if not is_own(key):
            keys.append(key.decode(errors="backslashreplace"))
            if len(keys) == most:
                break
    return keys


def pages(client: Any) -> Iterator[list[bytes]]:
    """Yield the keys of a database that are not shardkit's own, some at a time."""
    cursor: Any = None
    while cursor != 0:
        cursor, keys = client.scan(cursor or 0, count=_PAGE)
        cursor = int(cursor)
        page = [key for key in keys if not is_own(key)]
        if page:
            yield page


def connections_to(client: Any, databases: Collection[int]) -> list[Mapping[str, str]]:
    """Return the connections that may use databases of a server, as CLIENT LIST has them.

    shardkit's say in their names which they use (see `network/connections/databases.py`), others
    use the one that they are in. Connections that wait at the fence, subscribers and a mover's own
    are left out.
    """
    numbers = set(databases)
    return [
        each
        for each in client.client_list()
        if numbers & {int(each["db"]), *numbers_in(each["name"])}
        and not each["name"].startswith((_OWN, WAITING))
        and not set(each["flags"]) & set("SM")
        and not (each.get("resp") != "3" and "P" in each["flags"])
    ]


def only_reads(connection: Mapping[str, str]) -> bool:
    """Whether nothing is written over a connection."""
    return connection["name"].startswith(READING)
