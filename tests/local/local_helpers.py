"""Looking at processes from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from redis.exceptions import RedisError


def alive(pid: int) -> bool:
    """Whether a process is there and more than a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # gone in between, or no Linux
        return not os.path.exists("/proc/self")


def eventually(done: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether something is done in time; what servers refuse meanwhile is not yet done."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(RedisError):
            if done():
                return True
        time.sleep(0.01)
    return False


def all_end(pids: Iterable[int]) -> bool:
    return eventually(lambda: not any(alive(pid) for pid in pids))
