"""Asking many servers at once, so that a dead one holds nobody up.

Every question has a thread of its own and a deadline. Threads, because a name server that does not
answer obeys no socket timeout; they are daemons, so that not even such a one keeps the program from
ending.
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

from shardkit.connections import Connector

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# What redis-py raises where a server cannot be used; the second is none of its RedisErrors.
ServerErrors = (RedisError, RedisClusterException, OSError)

TIMEOUT = 1.0  # seconds that a server has to answer
_STEPS = 4  # so many waits, at most, make one question: for a name, Sentinels, a connection, INFO


def ask_all(
    questions: Mapping[K, Callable[[], T]], timeout: float = TIMEOUT
) -> dict[K, T | Exception]:
    """Ask all questions at the same time.

    Args:
        questions: what to call, by any key.
        timeout: seconds that one exchange may take; a question may take four of them.

    Returns:
        The answers by the same keys, in their order: what was returned, or what was raised, a
        TimeoutError for those that took too long.
    """
    answers: queue.SimpleQueue[tuple[K, T | Exception]] = queue.SimpleQueue()

    def ask(key: K, question: Callable[[], T]) -> None:
        try:
            answers.put((key, question()))
        except Exception as error:
            answers.put((key, error))

    for key, question in questions.items():
        threading.Thread(target=ask, args=(key, question), daemon=True).start()
    late = redis.TimeoutError("no answer in time")
    found: dict[K, T | Exception] = dict.fromkeys(questions, late)
    deadline = time.monotonic() + _STEPS * timeout
    try:
        for _ in questions:
            key, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            found[key] = answer
    except queue.Empty:
        pass
    return found


@contextmanager
def client_of(fields: Mapping[str, Any], timeout: float = TIMEOUT) -> Iterator[Any]:
    """Give a redis-py client that waits no longer than so, and is closed afterwards.

    Args:
        fields: an entry's fields, references resolved.
        timeout: seconds.
    """
    limits = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "protocol": 2,
        "decode_responses": False,
        "retries": 0,
    }
    client = Connector().blocking({**fields, **limits})
    try:
        yield client
    finally:
        client.close()
        if isinstance(client, redis.Redis):
            client.connection_pool.disconnect()
