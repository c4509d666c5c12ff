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

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import Seconds, in_seconds, shown
from shardkit.operations.forks import process
from shardkit.structures.base.arguments import check_name

LONGEST_TTL = 86_400.0
SHORTEST_TTL = 0.001
LONGEST_WAIT = 10 * 365 * 86_400.0
LONGEST_LABEL = 200
MICROSECONDS = 1_000_000


def check_plain_name(kind: str, name: str) -> str:
    """Check the name of a lock, which becomes the hash tag of its keys.

    Raises:
        InvalidArgumentError: it is not text, is empty, or contains braces.
    """
    check_name(name)
    if "{" in name or "}" in name:
        raise InvalidArgumentError(
            f"{kind}: name={shown(name)}", "leave out braces: its name is the keys' hash tag"
        )
    return name


def base_key(kind: str, name: str) -> str:
    """Return the prefix of all keys of a lock: ``lock:{stock}``.

    Raises:
        InvalidArgumentError: the name is not valid.
    """
    return f"{kind}:{{{check_plain_name(kind, name)}}}"


def microseconds(
    owner: str,
    field: str,
    seconds: Seconds,
    least: float = SHORTEST_TTL,
    most: float = LONGEST_TTL,
) -> int:
    """Return seconds as whole microseconds.

    Raises:
        InvalidArgumentError: it is not a number, or out of range.
    """
    seconds = in_seconds(seconds)
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not least <= seconds <= most:
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(seconds)}", f"give seconds, {least:g} to {most:,.0f}"
        )
    return round(seconds * MICROSECONDS)


def waiting_time(owner: str, field: str, seconds: Seconds | None) -> float:
    """Return the seconds to wait; the longest wait for None.

    Raises:
        InvalidArgumentError: it is not a number, or out of range.
    """
    if seconds is None:
        return LONGEST_WAIT
    microseconds(owner, field, seconds, 0.0, LONGEST_WAIT)
    return in_seconds(seconds)


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
