"""How a mailbox, a chat or a channel of files is waited for, without polling.

::

    attempt ── nothing there: the script registers "<channel> <waiter>" ── wait ── attempt
                                          │                                 ▲
        send ── the script takes one waiter off, and publishes on its channel

All who wait in a process, for whatever mailboxes of a server, share one connection; see
`shardkit.network.links.wakeups`. What they wait for is stored, so a wake-up is only a hint: a
caller that receives none looks again after ten seconds, and at once if that connection is lost.
Where nobody can be woken, because the user has no right to the channel, waiters poll.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import TypeVar

from shardkit.errors import DamagedDataError, ShardErrors
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

LOOKS_AGAIN = 10.0
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
    """Attempt something until it gives what is true, or the time is over.

    Args:
        component: where it lives.
        key: decides the shard.
        waiters: the key of those who wait, on the same shard.
        attempt: its steps. Takes the text to register as waiting if nothing is there, or nothing;
            returns what was found, and the seconds until it is worth looking again.
        timeout: the most seconds; 0 for one attempt.
        monotonic: returns local seconds that never go back.

    Returns:
        What the last attempt found.
    """
    found, again = yield from attempt("")
    if found or timeout <= 0:
        return found
    until = monotonic() + timeout
    waiter, channel, pause = secrets.token_hex(8), "", _FIRST_PAUSE
    try:
        channel = yield Subscribe(component, key)
        while True:
            waiting = f"{channel} {waiter}" if channel else ""
            found, again = yield from attempt(waiting)
            if found:
                return found
            left = until - monotonic()
            abandon = _forget(component, waiters, waiting)
            if left <= 0:
                yield [abandon]
                return found
            longest = min(left, again, LOOKS_AGAIN if channel else pause)
            pause = min(_LONGEST_PAUSE, 1.5 * pause)
            yield AwaitWakeup(component, key, waiter, max(0.001, longest), abandon)
            channel = yield Subscribe(component, key, True, abandon)
    except (ShardErrors, DamagedDataError):
        yield Abandon(_forget(component, waiters, f"{channel} {waiter}"))
        raise


def seconds_until(microseconds: Argument) -> float:
    """Return what a script said to be left, in seconds; infinity for nothing."""
    return float(microseconds) / 1e6 if microseconds else math.inf


def _forget(component: str, waiters: str, waiting: str) -> Command:
    call = script("messaging/forget_waiter")
    return script_call(component, call, [waiters], [waiting], idempotent=True)
