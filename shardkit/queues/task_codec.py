"""A task as it is stored: JSON, one form everywhere, which programs in other languages can write.

::

    ["9f86d081884c7d65", "email", "send_receipt", [7, "ann@example.org"]]
      id                  queue    what to call    its arguments

Who pushes onto a queue's LIST without shardkit may leave out the id and the queue::

    RPUSH queues:{email} '["send_receipt", [7, "ann@example.org"]]'
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardkit.errors import InvalidArgumentError
from shardkit.structures.base.arguments import shown

LONGEST_ID = 200
LONGEST_TASK = 512 * 1024 * 1024 // 64  # 8 MB: a task is a message, not a file


class Task(NamedTuple):
    """A task that was taken.

    Attributes:
        id: its id.
        queue: the queue that it was taken from.
        name: what to call.
        args: what to call it with, as JSON has it: text, numbers, booleans, None, lists and
            dictionaries.
        attempts: how often it was taken, this time included. More than 1: it may have been done
            before, wholly or in part.
    """

    id: str
    queue: str
    name: str
    args: tuple[Any, ...]
    attempts: int


class NewTask(NamedTuple):
    """A task for `TaskQueues.enqueue_many`.

    Attributes:
        name: what to call.
        args: what to call it with.
        delay: in how many seconds it is due; 0 or less for at once.
        id: its id; None for a random one.
    """

    name: str
    args: Sequence[Any] = ()
    delay: float = 0
    id: str | None = None


class DeadTask(NamedTuple):
    """A dead letter.

    Attributes:
        id: its id, for `TaskQueues.revive`.
        queue: the queue that it is of.
        name: what it was to call; None where what was pushed is no task.
        args: its arguments.
        attempts: how often it was taken.
        reason: why it is dead.
        at: since when, in seconds since 1970, by the server's clock.
        stored: all of it, as it is stored.
    """

    id: str
    queue: str
    name: str | None
    args: tuple[Any, ...]
    attempts: int
    reason: str
    at: float
    stored: bytes


def encode_task(owner: str, id_: str, queue: str, name: str, args: Sequence[Any]) -> bytes:
    """Return a task as it is stored.

    Raises:
        InvalidArgumentError: something does not fit. What JSON cannot say, such as a connection, is
            no argument of a task.
    """
    if not isinstance(id_, str) or not 0 < len(id_) <= LONGEST_ID:
        raise InvalidArgumentError(
            f"{owner}: id={shown(id_)} of a task", f"give text of 1 to {LONGEST_ID} characters"
        )
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"{owner}: name={shown(name)} of a task", "give the name of a callback"
        )
    if not isinstance(args, list | tuple):
        raise InvalidArgumentError(
            f"{owner}: args={shown(args)} of task {shown(name)}", "give a list or tuple"
        )
    try:
        text = json.dumps(
            [id_, queue, name, list(args)],
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
        )
        sent = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{owner}: task {shown(name)} cannot be said in JSON: {error}",
            "give text, finite numbers, booleans, None, lists and dictionaries; of anything else "
            "its id",
        ) from None
    if len(sent) > LONGEST_TASK:
        raise InvalidArgumentError(
            f"{owner}: task {shown(name)} takes {len(sent):,} bytes",
            f"at most {LONGEST_TASK:,}: store what it is about elsewhere, and give its key",
        )
    return sent


def decode_task(stored: bytes) -> tuple[str, tuple[Any, ...]]:
    """Return the name and the arguments of a stored task.

    Raises:
        ValueError: it is none; says why.
    """
    try:
        found = json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, list) or len(found) not in (2, 4):
        raise ValueError("no [id, queue, name, args] and no [name, args]")
    name, args = found[-2:]
    if not isinstance(name, str) or not name:
        raise ValueError(f"its name is {shown(name)}, which is no text")
    if not isinstance(args, list):
        raise ValueError(f"its arguments are {shown(args)}, which is no list")
    return name, tuple(args)
