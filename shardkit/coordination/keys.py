"""The names, keys and owners of locks and their kin."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from asyncio import current_task
from functools import lru_cache
from itertools import count
from typing import Any
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

from shardkit.operations.arguments import Seconds
from shardkit.operations.forks import process
from shardkit.structures.base.arguments import check_seconds, check_tag

LONGEST_TTL = 86_400.0
SHORTEST_TTL = 0.001
LONGEST_LABEL = 200
MICROSECONDS = 1_000_000


def base_key(kind: str, name: str) -> str:
    """Return the prefix of all keys of a lock: ``lock:{stock}``."""
    return f"{kind}:{{{check_tag(kind, 'name', name)}}}"


def microseconds(
    owner: str,
    field: str,
    seconds: Seconds,
    least: float = SHORTEST_TTL,
    most: float = LONGEST_TTL,
) -> int:
    """Return seconds as whole microseconds; see `check_seconds`."""
    return round(check_seconds(owner, field, seconds, least, most) * MICROSECONDS)


class _Identity:
    """The identity of this process; renewed in a forked child."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.id = secrets.token_hex(8)
        self.host = socket.gethostname()


_identity = _Identity()
os.register_at_fork(after_in_child=_identity.renew)
_numbers = count(1)
_tasks: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class _Thread(threading.local):
    """The running thread's number; a later thread may have the same `threading.get_ident`."""

    def __init__(self) -> None:
        self.number = next(_numbers)


_thread = _Thread()


def running() -> tuple[int, int]:
    """Return what identifies the running thread or task: its process and its number."""
    try:
        task = current_task()
    except RuntimeError:
        task = None
    number = _thread.number if task is None else _tasks.setdefault(task, next(_numbers))
    return process.pid, number


def running_id() -> str:
    """Return text that identifies the running thread or task across processes."""
    return f"{_identity.id}-{running()[1]:x}"


def default_label() -> str:
    """Return the caller's label for inspections: host, process and thread."""
    return f"{_identity.host}:{process.pid}:{threading.current_thread().name}"


@lru_cache(maxsize=1024)
def encode_label(label: str) -> str:
    """Return a label as it is stored: without spaces, shortened."""
    return quote(label[:LONGEST_LABEL], safe=":/@.,_-+") or "-"


def decode_label(stored: str) -> str:
    """Return a label as it was given."""
    return "" if stored == "-" else unquote(stored)
