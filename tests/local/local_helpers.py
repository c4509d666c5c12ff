"""Looking at processes from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import faces
from faces import alive
from redis.exceptions import RedisError


def eventually(done: Callable[[], bool]) -> bool:
    """Whether something is done in time; what servers refuse meanwhile is not yet done."""

    def attempt() -> bool:
        with suppress(RedisError):
            return done()
        return False

    return faces.eventually(attempt)


def all_end(pids: Iterable[int]) -> bool:
    return eventually(lambda: not any(alive(pid) for pid in pids))
