"""Queries many servers in parallel, so that a dead one does not delay the others.

Each query has a daemon thread, because socket timeouts do not apply to a silent name server.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from shardkit.network.connections import Connector
from shardkit.network.connections.clients import pools_of
from shardkit.network.connections.reply_kinds import check_replies

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# What redis-py raises if a server cannot be used; RedisClusterException is not a RedisError.
ServerErrors = (RedisError, RedisClusterException, OSError)

TIMEOUT = 1.0  # seconds for one exchange
# Of a config server, unless its entry says others: the first caller waits for it.
CONFIG_LIMITS = {
    "socket_timeout": TIMEOUT,
    "socket_connect_timeout": TIMEOUT,
    "exchange_timeout": 10.0,
}
STEPS = 4  # a query waits at most for a name, Sentinels, a connection and INFO


def query_all(
    queries: Mapping[K, Callable[[], T]], timeout: float = TIMEOUT
) -> dict[K, T | Exception]:
    """Run all queries in parallel; return by key what each returned or raised.

    A query may take four times the ``timeout``, in seconds; then it gets a TimeoutError.
    """
    answers: queue.SimpleQueue[tuple[K, T | Exception]] = queue.SimpleQueue()

    def run(key: K, query: Callable[[], T]) -> None:
        try:
            answers.put((key, query()))
        except Exception as error:
            answers.put((key, error))

    for key, query in queries.items():
        threading.Thread(target=run, args=(key, query), daemon=True).start()
    late = redis.TimeoutError("no answer in time")
    results: dict[K, T | Exception] = dict.fromkeys(queries, late)
    deadline = time.monotonic() + STEPS * timeout
    try:
        for _ in queries:
            key, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            results[key] = answer
    except queue.Empty:
        pass
    return results


def greeting_of(client: Any) -> dict[str, str]:
    """Return the texts that a server says of itself by HELLO, which every user may run."""
    try:
        words = client.execute_command("HELLO", "2")
    except ResponseError:  # before Redis 6
        return {}
    pairs = zip(words[::2], words[1::2], strict=False)
    return {name.decode(): value.decode() for name, value in pairs if isinstance(value, bytes)}


@contextmanager
def client_of(
    fields: Mapping[str, Any], timeout: float = TIMEOUT, connector: Connector | None = None
) -> Iterator[Any]:
    """Give a redis-py client for an entry's resolved fields, with a timeout in seconds."""
    limits = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
        "decode_responses": False,
        "retries": 0,
    }
    client: Any = (connector or Connector()).blocking({**fields, **limits})
    if isinstance(client, redis.Redis):
        check_replies(client, reports=True)
    try:
        yield client
    finally:
        for pool in pools_of(client):
            pool.close_for_good()
