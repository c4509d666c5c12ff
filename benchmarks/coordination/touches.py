"""What a web page's view costs in one command after the other, in a pipeline, and in MULTI/EXEC.

After Redis in Action, section 4.5: fewer round trips make most of the difference, a transaction
costs little beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis

WAYS = ("one by one", "pipeline", "MULTI/EXEC")
KEPT = 25


def touches(way: str, port: int) -> tuple[Any, Callable[[str, str, str | None], None]]:
    """Return a client, and what notes that a token's user views an item, or nothing special."""
    client: Any = redis.Redis(port=port)

    def send(to: Any, token: str, user: str, item: str | None) -> None:
        now = time.time()
        to.hset("login:", token, user)
        to.zadd("recent:", {token: now})
        if item is not None:
            to.zadd(f"viewed:{token}", {item: now})
            to.zremrangebyrank(f"viewed:{token}", 0, -KEPT - 1)
            to.zincrby("viewed:", -1, item)

    def touch(token: str, user: str, item: str | None) -> None:
        if way == "one by one":
            send(client, token, user, item)
            return
        with client.pipeline(transaction=way == "MULTI/EXEC") as pipe:
            send(pipe, token, user, item)
            pipe.execute()

    return client, touch


def benchmark(way: str, port: int, seconds: float) -> float:
    """Return how many calls were made a second."""
    _, touch = touches(way, port)
    done, end = 0, time.time() + seconds
    while time.time() < end:
        touch("token", "user", f"item{done % 1000}")
        done += 1
    return done / seconds
