"""Many commands in one exchange, with a tenth of the work that redis-py's pipelines take for each.

::

    PTTL a  PTTL b  DUMP a  DUMP b      packed by columns (see `network/links/resp.py`)
    replies                             read at once, as the server sends them

A copy is as fast as this process, as long as the servers have time left. A server executes all
that one connection has sent without a pause, and other clients wait. So work on a server in use
reads and writes only as many keys at a time (`Slices`) as the server handles in about 0.1 ms.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.network.connections.connection import Closable
from shardkit.network.links.resp import Arguments, pack_all

T = TypeVar("T")

_BYTES = 12_000  # of values in one exchange, about: DUMP packs 4 KB in 25 microseconds
_MOST = 32  # keys of one exchange

Commands: TypeAlias = Sequence[Arguments]
"""Commands; they are packed quickly if they have one name and as many arguments each."""
Clients: TypeAlias = Mapping[Place, Any]
"""Clients of databases."""


def by_server(clients: Mapping[Place, T]) -> dict[ServerAddress, dict[int, T]]:
    """Return what there is of each database by server and number."""
    found: dict[ServerAddress, dict[int, T]] = {}
    for place, client in clients.items():
        found.setdefault(place.server, {})[place.database] = client
    return found


def one_of_each(clients: Clients) -> dict[ServerAddress, Any]:
    """Return a client of each server."""
    return {server: next(iter(own.values())) for server, own in by_server(clients).items()}


class Line:
    """One connection, over which commands may be sent before earlier replies are read."""

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        self._due: deque[int] = deque()  # replies of each `post`
        self._replies: list[Any] = []

    @property
    def is_due(self) -> bool:
        """Whether there are replies to be read."""
        return bool(self._due)

    def post(self, *batches: Commands) -> None:
        """Send commands; `replies` returns what the server answers."""
        chunks = [chunk for batch in batches if batch for chunk in pack_all(batch)]
        self._due.append(sum(chunk.replies for chunk in chunks))
        if chunks:
            self._connection.send_packed_command([b"".join(chunk.data for chunk in chunks)])

    def replies(self) -> list[Any]:
        """Return the raw replies to the earliest `post`; refusals are exceptions among them."""
        count = self._due.popleft()
        if len(self._replies) < count:
            connection = self._connection  # perhaps redis-py's own
            read = getattr(connection, "read_replies", partial(Closable.read_replies, connection))
            read(self._replies, count, True, any(self._due))
        taken, self._replies = self._replies[:count], self._replies[count:]
        return taken

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


def ask_each(clients: Clients, command: Callable[[Any], Arguments]) -> list[Any]:
    """Send a command to each database, in one exchange with each server; return the replies."""
    asked = []
    for own in by_server(clients).values():
        home, first = next(iter(own.items()))
        commands = [each for n, client in own.items() for each in (("SELECT", n), command(client))]
        asked.append((first, [[*commands, ("SELECT", home)]]))
    return [reply for replies in ask_all(asked) for reply in replies[1::2]]


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


@contextmanager
def at_work(share: float) -> Iterator[None]:
    """Pause after the block, so that the block takes at most a share of the time."""
    began = time.monotonic()
    yield
    if share < 1:
        time.sleep((time.monotonic() - began) * (1 / share - 1))
