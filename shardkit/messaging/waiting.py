"""Waiting for a mailbox, a chat or a channel of files without polling.

::

    attempt ── nothing there: the script registers "<channel> <waiter>" ── wait ── attempt
                                          │                                 ▲
        send ── the script removes one waiter, and publishes on its channel

All waiters of a process on one server share a connection; see `shardkit.network.links.wakeups`.
Messages are stored, so a wake-up is only a hint: a caller that receives none tries again after ten
seconds, and immediately if the connection is lost. Waiters poll if their user has no permission for
the channel.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TypeVar

from shardkit.errors import DamagedDataError, ShardErrors
from shardkit.operations.cancellation import Interrupted
from shardkit.operations.commands import (
    Abandon,
    Argument,
    AwaitWakeup,
    Command,
    Subscribe,
    script_call,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation

T = TypeVar("T")

RETRY_AFTER = 10.0
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1


def wait_for(
    component: str,
    key: str,
    waiters: str,
    attempt: Callable[[str], Operation[tuple[T, float]]],
    timeout: float,
    monotonic: Callable[[], float],
) -> Operation[T]:
    """Repeat an attempt until its result is true or the timeout ends; return the last result.

    Args:
        component: the component.
        key: decides the shard.
        waiters: the key of the registered waiters, on the same shard.
        attempt: returns steps; its argument is the text to register as waiting if there is nothing,
            or empty. The steps return the result, and the seconds until the next attempt makes
            sense.
        timeout: in seconds; 0 for one attempt.
        monotonic: returns local seconds that never go back.
    """
    result, again = yield from attempt("")
    if result or timeout <= 0:
        return result
    until = monotonic() + timeout
    waiter, channel, pause = secrets.token_hex(8), "", _FIRST_PAUSE
    try:
        channel = yield Subscribe(component, key)
        while True:
            waiting = f"{channel} {waiter}" if channel else ""
            result, again = yield from attempt(waiting)
            if result:
                return result
            left = until - monotonic()
            if left <= 0:
                yield [_forget(component, waiters, waiting)]
                return result
            longest = min(left, again, RETRY_AFTER if channel else pause)
            pause = min(_LONGEST_PAUSE, 1.5 * pause)
            yield AwaitWakeup(component, key, waiter, max(0.001, longest))
            channel = yield Subscribe(component, key)
    except (ShardErrors, DamagedDataError, Interrupted):
        yield Abandon(_forget(component, waiters, f"{channel} {waiter}"))
        raise


def seconds_until(microseconds: Argument) -> float:
    """Return a time that a script replied, in seconds; infinity for an empty one."""
    return float(microseconds) / 1e6 if microseconds else math.inf


def _forget(component: str, waiters: str, waiting: str) -> Command:
    call = script("messaging/forget_waiter")
    return script_call(component, call, [waiters], [waiting], idempotent=True)
