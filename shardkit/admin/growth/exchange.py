"""Many commands in one exchange, with a tenth of the work that redis-py's pipelines take for each.

::

    PTTL a  PTTL b  DUMP a  DUMP b      packed by columns (see `network/links/resp.py`)
    replies                             read at once, as the server sends them

A copy is as fast as this process, as long as the servers have time left. A server executes all
that one connection has sent without a pause, and other clients wait. So work on a server in use
reads and writes only as many keys at a time (`Slices`) as the server handles in about 0.1 ms.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from redis.exceptions import RedisError

from shardkit.admin.growth.relocation import Place, ServerAddress, Stored
from shardkit.admin.growth.servers import OPERATOR, TOKEN_KEY, connected_to
from shardkit.config.component import WITNESS_KEY
from shardkit.network.connections.connection import Closable
from shardkit.network.connections.databases import FENCE_KEY, READING, WAITING, numbers_in
from shardkit.network.connections.reply_kinds import require_kind
from shardkit.network.links.resp import Arguments, pack_all
from shardkit.operations.arguments import check_number
from shardkit.routing.placement import slot_of

T = TypeVar("T")

_BYTES = 12_000  # of values in one exchange, about: DUMP packs 4 KB in 25 microseconds
_MOST = 32  # keys of one exchange

Commands: TypeAlias = Sequence[Arguments]
"""Commands; they are packed quickly if they have one name and as many arguments each."""
Clients: TypeAlias = Mapping[Place, Any]
"""Clients of databases."""


def by_server(clients: Mapping[Place, T]) -> dict[ServerAddress, dict[int, T]]:
    """Return what there is of each database by server and number."""
    servers: dict[ServerAddress, dict[int, T]] = {}
    for place, client in clients.items():
        servers.setdefault(place.server, {})[place.database] = client
    return servers


def one_of_each(clients: Clients) -> dict[ServerAddress, Any]:
    """Return a client of each server."""
    return {server: next(iter(own.values())) for server, own in by_server(clients).items()}


class Line:
    """One connection, over which commands may be sent before earlier replies are read."""

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        self._due: deque[list[Any]] = deque()  # the names of each `post`'s commands

    @property
    def is_due(self) -> bool:
        """Whether there are replies to be read."""
        return bool(self._due)

    def post(self, *batches: Commands) -> None:
        """Send commands; `replies` returns what the server answers."""
        chunks = [chunk for batch in batches if batch for chunk in pack_all(batch)]
        self._due.append([name for batch in batches for name, *_ in batch])
        if chunks:
            self._connection.send_packed_command([b"".join(chunk.data for chunk in chunks)])

    def replies(self) -> list[Any]:
        """Return the raw replies to the earliest `post`; refusals are exceptions among them."""
        names = self._due.popleft()
        connection = self._connection  # perhaps redis-py's own
        read = getattr(connection, "round_trip", partial(Closable.round_trip, connection))
        replies: list[Any]
        replies, _ = read(b"", True, None, len(names), any(self._due))
        for name, reply in zip(names, replies, strict=True):
            if not isinstance(reply, Exception):
                require_kind(name, reply)
        return replies

    def ask(self, *batches: Commands) -> list[Any]:
        """Send commands and return the replies."""
        self.post(*batches)
        return self.replies()

    def close(self, complete: bool = True) -> None:
        """Give the connection back, or close it unless all is ``complete``."""
        if not complete or self._due:
            self._connection.disconnect()
        self._pool.release(self._connection)


@contextmanager
def one_connection(client: Any) -> Iterator[Line]:
    """Yield a connection of a client. If the block fails, it is closed."""
    line = Line(client)
    complete = False
    try:
        yield line
        complete = True
    finally:
        line.close(complete)


def ask(client: Any, *batches: Commands) -> list[Any]:
    """Send commands in one exchange; return the raw replies."""
    [replies] = ask_all([(client, batches)])
    return replies


def ask_all(asked: Sequence[tuple[Any, Sequence[Commands]]]) -> list[list[Any]]:
    """Send batches of commands by several clients at once; return the raw replies to each."""
    with ExitStack() as stack:
        lines = [stack.enter_context(one_connection(client)) for client, _ in asked]
        for line, (_, batches) in zip(lines, asked, strict=True):
            line.post(*batches)
        return [accepted(line.replies()) for line in lines]


def ask_each(clients: Clients, command: Callable[[Place], Arguments]) -> dict[Place, Any]:
    """Send a command to each database, in one exchange with each server; return the replies."""
    asked: list[tuple[Any, list[Commands]]] = []
    places: list[Place] = []
    for server, own in by_server(clients).items():
        home, first = next(iter(own.items()))
        there = [Place(server, number) for number in own]
        commands = [args for at in there for args in (("SELECT", at.database), command(at))]
        asked.append((first, [[*commands, ("SELECT", home)]]))
        places += there
    answers = [reply for replies in ask_all(asked) for reply in replies[1::2]]
    return dict(zip(places, answers, strict=True))


def accepted(replies: list[Any]) -> list[Any]:
    """Return replies, or raise the first refusal among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


class Slices:
    """The number of keys for one exchange, adapted to the size of the values before."""

    def __init__(self, size: int = _BYTES) -> None:
        self._bytes = size
        self._count = 8

    def of(self, keys: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield keys in slices of the size that currently fits."""
        start = 0
        while start < len(keys):
            part = keys[start : start + self._count]
            start += len(part)
            yield part

    def note(self, keys: int, size: int) -> None:
        """Record the bytes of the values of one exchange."""
        fitting = keys * self._bytes // max(size, 1)
        self._count = max(1, min(_MOST, fitting, 2 * self._count))


def check_share(owner: str, share: float) -> float:
    """Return a share of the time, checked."""
    return check_number(owner, "share", share, 0.001, 1)


@contextmanager
def at_work(share: float) -> Iterator[None]:
    """Pause after the block, so that the block takes at most a share of the time."""
    began = time.monotonic()
    yield
    if share < 1:
        time.sleep((time.monotonic() - began) * (1 / share - 1))


R = TypeVar("R")

OWN_KEYS = frozenset({FENCE_KEY.encode(), WITNESS_KEY.encode(), TOKEN_KEY.encode()})
"""Keys of a database that are shardkit's, and do not move."""
_MARK = f"{FENCE_KEY}{{".encode()
MOST_NAMED = 20
USUAL_DATABASES = 16  # of a server
# Last commands of connections that have sent nothing but a greeting.
_GREETING = frozenset({"NULL", "auth", "hello", "client", "client|setinfo"})
_TIMEOUT = 10.0  # seconds for one answer
_PAGE = 100  # keys that are listed and deleted at a time, while other clients wait
_REPEATED = 100_000  # keys that are known again if SCAN repeats them, mostly close to each other


def database_client(
    server: ServerAddress, login: Stored, number: int
) -> AbstractContextManager[Any]:
    """Return a context of a client of a database, with the user and TLS of an entry."""
    return connected_to(server, login, _TIMEOUT, number)


def mark_of(ranges: Iterable[Sequence[int]]) -> str:
    """Return the key of a master that says which attempt is at work."""
    for n in range(1_000_000):
        key = f"{FENCE_KEY}{{{n}}}"
        if any(first <= slot_of(key) <= last for first, last in ranges):
            return key
    raise AssertionError(ranges)


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


def is_own(key: bytes) -> bool:
    """Whether a key is shardkit's own, and does not move."""
    return key in OWN_KEYS or key.startswith(_MARK)


def strays(client: Any, most: int = MOST_NAMED) -> list[str]:
    """Return at most `most` keys of a database that are not shardkit's own."""
    keys = (key for key in client.scan_iter(count=_PAGE) if not is_own(key))
    return [key.decode(errors="backslashreplace") for key in islice(keys, most)]


def pages(client: Any, count: int = _PAGE) -> Iterator[list[bytes]]:
    """Yield the keys of a database that are not shardkit's own, about `count` at a time."""
    seen: set[bytes] = set()
    with one_connection(client) as line:
        cursor: Any = None
        line.post([("SCAN", 0, "COUNT", count)])
        while cursor != b"0":
            [(cursor, keys)] = accepted(line.replies())
            if cursor != b"0":  # the server is at it while the caller works
                line.post([("SCAN", cursor, "COUNT", count)])
            if len(seen) > _REPEATED:
                seen.clear()
            page = [key for key in dict.fromkeys(keys) if key not in seen and not is_own(key)]
            seen.update(page)
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
        line
        for line in ({"name": "", **line} for line in client.client_list())
        if numbers & {int(line["db"]), *numbers_in(line["name"])}
        and not line["name"].startswith((OPERATOR, WAITING))
        and not set(line["flags"]) & set("SM")
        and not (line.get("resp") != "3" and "P" in line["flags"])
        and not (
            not line["name"]
            and line.get("cmd", "") in _GREETING
            and int(line.get("age", 0)) - int(line.get("idle", 0)) <= 1
        )
    ]


def only_reads(connection: Mapping[str, str]) -> bool:
    """Whether nothing is written over a connection."""
    return connection["name"].startswith(READING)


def free_databases(
    server: ServerAddress, login: Stored, used: Collection[int | None]
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
    with suppress(RedisError, KeyError, ValueError):  # CONFIG is not permitted, or says nothing
        return int(client.config_get("databases")["databases"])
    return USUAL_DATABASES
