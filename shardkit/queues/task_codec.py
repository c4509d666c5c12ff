"""The stored form of a task: JSON, which programs in other languages can write too.

::

    ["9f86d081884c7d65", "email", "send_receipt", [7, "ann@example.org"], {"at": 1767312000.5}]
      id                  queue    what to call    its arguments            when it was queued

A program that pushes onto a queue's LIST without shardkit may leave out the id and the queue.

Later releases may add elements after the fourth, and fields to the fifth, a mapping; this release
ignores those. A change that must not be ignored is marked there with ``{"format": 2}``, or the task
is a mapping with such a field; this release leaves such a task to other workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardkit.errors import InvalidArgumentError, NewerFormatError, counted
from shardkit.operations.arguments import Seconds, is_number, parse_json, shown
from shardkit.structures.codecs.named import encode_json

FORMAT = 1
LONGEST_ID = 200
LONGEST_TASK = 512 * 1024 * 1024 // 64  # 8 MB: a task is a message, not a file


class Task(NamedTuple):
    """A task that was taken.

    Attributes:
        queue: the queue that it was taken from.
        name: the function to call.
        args: its arguments: text, numbers, booleans, None, lists and dictionaries.
        attempts: how often it was taken, including this time. If more than 1, it may have run
            before, at least in part.
        claim: the random id of this claim.
    """

    id: str
    queue: str
    name: str
    args: tuple[Any, ...]
    attempts: int
    claim: str = ""


class NewTask(NamedTuple):
    """A task for `TaskQueues.enqueue_many`.

    Attributes:
        name: the function to call.
        delay: the seconds until it is due; 0 or less for at once.
        id: its id; None for a random one.
    """

    name: str
    args: Sequence[Any] = ()
    delay: Seconds = 0
    id: str | None = None


class DeadTask(NamedTuple):
    """A dead letter.

    Attributes:
        id: its id, for `TaskQueues.revive`.
        name: the function to call; None if it is not a task.
        attempts: how often it was taken.
        reason: why it is dead.
        at: when it died, in seconds since 1970, by the server's clock.
        stored: its stored form.
        traceback: where its function raised, as Python prints it; empty if that is unknown.
    """

    id: str
    queue: str
    name: str | None
    args: tuple[Any, ...]
    attempts: int
    reason: str
    at: float
    stored: bytes
    traceback: str = ""


def encode_task(owner: str, id_: str, queue: str, name: str, args: Sequence[Any]) -> bytes:
    """Return the stored form of a task; refuse a part that is not valid, or no JSON."""
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
    sent = encode_json(f"{owner}: task {shown(name)}", [id_, queue, name, list(args)])
    if len(sent) > LONGEST_TASK:
        raise InvalidArgumentError(
            f"{owner}: task {shown(name)} takes {counted(len(sent), 'byte')}, more than "
            f"{LONGEST_TASK:,}",
            "store the data elsewhere, and pass its key",
        )
    return sent


def decode_task(stored: bytes) -> tuple[str, tuple[Any, ...]]:
    """Return the name and the arguments of a stored task.

    Raises:
        ValueError: it is not a task; the message says why.
        NewerFormatError: a later release wrote it.
    """
    try:
        task = parse_json(stored)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    options = task[4] if isinstance(task, list) and len(task) > 4 else task
    version = options.get("format", FORMAT) if isinstance(options, dict) else FORMAT
    if isinstance(version, int) and version > FORMAT:
        raise NewerFormatError(
            f"a task has format {version}, this release reads {FORMAT}", "upgrade this program"
        )
    if not isinstance(task, list) or len(task) in (0, 1, 3):
        raise ValueError("neither [id, queue, name, args] nor [name, args]")
    name, args = task if len(task) == 2 else task[2:4]
    if not isinstance(name, str) or not name:
        raise ValueError(f"its name is {shown(name)}, which is not text")
    if not isinstance(args, list):
        raise ValueError(f"its arguments are {shown(args)}, which is not a list")
    return name, tuple(args)


def queued_at(stored: bytes) -> float | None:
    """Return when a task was queued, in seconds since 1970; None if that is unknown."""
    try:
        at = parse_json(stored)[4]["at"]
    except (ValueError, LookupError, TypeError):
        return None
    return float(at) if is_number(at) and math.isfinite(at) else None
