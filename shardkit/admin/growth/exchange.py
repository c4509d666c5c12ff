"""Many commands in one exchange, with a tenth of the work that redis-py's pipelines take for each.

::

    PTTL a  PTTL b  DUMP a  DUMP b      packed by columns (see `network/links/resp.py`)
    replies                             read at once, as the server sends them

A copy is as fast as this process, as long as the servers have time left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from redis.exceptions import ResponseError

from shardkit.network.connections import read_replies_of
from shardkit.network.links.resp import Arguments, pack_all

Commands: TypeAlias = Sequence[Arguments]
"""Commands; they are packed quickly if they have one name and as many arguments each."""


@contextmanager
def one_connection(client: Any) -> Iterator[Callable[..., list[Any]]]:
    """Yield a function that sends commands and returns the raw replies, all over one connection.

    Refusals are exceptions among the replies. If the block fails, the connection is closed.
    """
    pool = client.connection_pool
    connection = pool.get_connection()
    complete = False

    def send(*batches: Commands) -> list[Any]:
        chunks = [chunk for batch in batches if batch for chunk in pack_all(batch)]
        replies: list[Any] = []
        if chunks:
            connection.send_packed_command([b"".join(chunk.data for chunk in chunks)])
            read_replies_of(connection)(replies, sum(chunk.replies for chunk in chunks), True)
        return replies

    try:
        yield send
        complete = True
    finally:
        if not complete:
            connection.disconnect()
        pool.release(connection)


def ask(client: Any, *batches: Commands) -> list[Any]:
    """Send commands in one exchange; return the raw replies.

    Raises:
        ResponseError: the server refuses one of them.
    """
    with one_connection(client) as send:
        replies = send(*batches)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def ask_each(clients: Mapping[int, Any], command: Callable[[Any], Arguments]) -> list[Any]:
    """Send a command to each database of a server in one exchange; return the raw replies.

    Raises:
        ResponseError: the server refuses one of them.
    """
    [(home, first), *_] = clients.items()
    if len(clients) == 1:
        return ask(first, [command(first)])
    commands = [each for n, client in clients.items() for each in (select(n), command(client))]
    return ask(first, [*commands, select(home)])[1:-1:2]


def select(number: int) -> Arguments:
    """Return the command that selects a database."""
    return ("SELECT", number)


def refusal(replies: Sequence[Any]) -> ResponseError | None:
    """Return the first refusal among replies."""
    return next((each for each in replies if isinstance(each, ResponseError)), None)
