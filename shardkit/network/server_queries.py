"""Queries many servers in parallel, so that a dead one does not delay the others.

Every query has its own thread and a deadline. Threads are needed because socket timeouts do not
apply to a name server that does not answer; they are daemons, so that none of them keeps the
program from ending.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from redis.exceptions import RedisClusterException, RedisError

from shardkit.network.connections import Connector

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# What redis-py raises if a server cannot be used; RedisClusterException is not a RedisError.
ServerErrors = (RedisError, RedisClusterException, OSError)

TIMEOUT = 1.0  # seconds for one answer of a server
_STEPS = 4  # a query waits for at most a name, Sentinels, a connection and INFO


def query_all(
    queries: Mapping[K, Callable[[], T]], timeout: float = TIMEOUT
) -> dict[K, T | Exception]:
    """Run all queries in parallel.

    Args:
        queries: functions by any key.
        timeout: seconds for one exchange; a query may take four of them.

    Returns:
        By the same keys, in their order, what each query returned or raised; a TimeoutError for
        those that took too long.
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
    found: dict[K, T | Exception] = dict.fromkeys(queries, late)
    deadline = time.monotonic() + _STEPS * timeout
    try:
        for _ in queries:
            key, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            found[key] = answer
    except queue.Empty:
        pass
    return found


@contextmanager
def client_of(
    fields: Mapping[str, Any], timeout: float = TIMEOUT, connector: Connector | None = None
) -> Iterator[Any]:
    """Give a redis-py client with a timeout, and close it afterwards.

    Args:
        fields: an entry's fields, references resolved.
        timeout: seconds.
        connector: creates the client; None for the usual one.
    """
    limits = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
        "decode_responses": False,
        "retries": 0,
    }
    client = (connector or Connector()).blocking({**fields, **limits})
    try:
        yield client
    finally:
        client.close()
        if isinstance(client, redis.Redis):
            client.connection_pool.disconnect()
