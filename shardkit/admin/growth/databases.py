"""The databases that a move of shards concerns, on one server: their keys and connections."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar

from redis.exceptions import RedisError

from shardkit.admin.growth.exchange import accepted, one_connection
from shardkit.admin.growth.fence import is_own
from shardkit.admin.growth.relocation import Login, Place, ServerAddress
from shardkit.admin.growth.servers import OPERATOR, LoginOf, connected_to
from shardkit.network.connections.databases import READING, WAITING, numbers_in

T = TypeVar("T")
R = TypeVar("R")

MOST_NAMED = 20
USUAL_DATABASES = 16  # of a server
# Last commands of connections that have sent nothing but a greeting.
_GREETING = frozenset({"NULL", "auth", "hello", "client", "client|setinfo"})
_TIMEOUT = 10.0  # seconds for one answer
_PAGE = 100  # keys that are listed and deleted at a time, while other clients wait


@contextmanager
def database_client(server: ServerAddress, login: Login, number: int) -> Iterator[Any]:
    """Yield a client of a database, with the user and TLS of an entry."""
    with connected_to(server, login, timeout=_TIMEOUT, database=number) as client:
        yield client


@contextmanager
def clients_of(places: Iterable[Place], login_of: LoginOf) -> Iterator[dict[Place, Any]]:
    """Yield clients of databases, by their places."""
    with ExitStack() as stack:
        yield {
            at: stack.enter_context(database_client(at.server, login_of(at.server), at.database))
            for at in places
        }


def at_once(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call a function for each item, in threads if there are several; raise the first error."""
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
    keys = (key for key in client.scan_iter(count=_PAGE) if not is_own(key))
    return [key.decode(errors="backslashreplace") for key in islice(keys, most)]


def pages(client: Any, count: int = _PAGE) -> Iterator[list[bytes]]:
    """Yield the keys of a database that are not shardkit's own, about `count` at a time."""
    with one_connection(client) as line:
        cursor: Any = None
        line.post([("SCAN", 0, "COUNT", count)])
        while cursor != b"0":
            [(cursor, keys)] = accepted(line.replies())
            if cursor != b"0":  # the server is at it while the caller works
                line.post([("SCAN", cursor, "COUNT", count)])
            page = [key for key in keys if not is_own(key)]
            if page:
                yield page


def connections_to(client: Any, databases: Collection[int]) -> list[Mapping[str, str]]:
    """Return the connections that may use databases of a server, as CLIENT LIST has them.

    shardkit's say in their names which they use (see `network/connections/databases.py`), others
    use the one that they are in. Connections that wait at the fence, subscribers and operators' own
    are left out, and those that have only greeted the server: they are as good as not yet there.
    """
    numbers = set(databases)
    return [
        each
        for each in ({"name": "", **line} for line in client.client_list())
        if numbers & {int(each["db"]), *numbers_in(each["name"])}
        and not each["name"].startswith((OPERATOR, WAITING))
        and not set(each["flags"]) & set("SM")
        and not (each.get("resp") != "3" and "P" in each["flags"])
        and not _only_greets(each)
    ]


def _only_greets(connection: Mapping[str, str]) -> bool:
    """Whether a connection has sent nothing yet but who it is, and not even its name."""
    age, idle = int(connection.get("age", 0)), int(connection.get("idle", 0))
    is_greeting = connection.get("cmd", "") in _GREETING and age - idle <= 1
    return is_greeting and not connection["name"]


def only_reads(connection: Mapping[str, str]) -> bool:
    """Whether nothing is written over a connection."""
    return connection["name"].startswith(READING)


def free_databases(
    server: ServerAddress, login: Login, used: Collection[int | None]
) -> Iterator[int]:
    """Yield the databases of a server that are not used and have no keys."""
    try:
        with connected_to(server, login) as client:
            count = database_count(client)
            filled = {name[2:] for name in client.info("keyspace")}
    except (RedisError, OSError):
        filled, count = set(), USUAL_DATABASES  # the plan reports that it cannot be used
    for number in range(count):
        if number in used:
            continue
        if str(number) in filled:
            with database_client(server, login, number) as client:
                if strays(client, 1):
                    continue
        yield number


def database_count(client: Any) -> int:
    """Return how many databases a server has; if it does not say so, as many as usual."""
    with suppress(RedisError):  # CONFIG is not permitted
        return int(client.config_get("databases")["databases"])
    return USUAL_DATABASES
