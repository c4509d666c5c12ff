"""Cancels every public async method at each of its awaits, and looks at what is left behind.

After each cancelled call ``check()`` must name nothing, and each key must be as before the call, or
as after one that was not cancelled, apart from `STEPS` and `LEFT`. Keys are compared by type and
length: ids and times differ.

``python tests/damage/cancellations.py`` tries all subjects of `damages`, or those that are named.
"""

from __future__ import annotations

import asyncio
import sys
import time
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from itertools import count
from typing import Any

from damages import SUBJECTS, Driver, Waited, in_processes
from subjects import MAP

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers

MOST_TURNS = 200

# Calls of several exchanges: what they left undone is done by the same call, or by `repair`.
STEPS = {"delete", "rebuild", "clean", "repair", "import_from", "remove", "keep", "reconcile"}
STEPS |= {"publish_parts"}
STEPS |= {"expire", "pexpire", "expireat", "pexpireat"}
# Files that have no publisher once the lease has ended: `check()` names them.
UNFINISHED = {"publish", "publish_directory"}
# What is left behind on purpose, by subject: what is undone leaves a released hold or lease,
# attempts of 0, or the number of a request; an interrupted journal is carried out by others.
LEFT = {
    "set": (b"ids:storing:",),  # ends by itself after a day
    "changed list": (b"{jobs}:",),  # the change that the call continued
    "daily totals": (b"daily:adding:",),  # ends by itself after an hour
    "unique 60-bit": (b":gather:",),  # ends by itself after ten minutes
    "network": (b"pending:",),
    "mailboxes": (b":state", b":leased"),
    "files": (b":files", b":claims", b":todo", b":leased", b":garbage"),
    "queue": (b":attempts", b":claims", b":taken"),
    "lock": (b"lock:{stock}",),
    "election": (b"election:{cleaner}",),
    "transfers": (b"transfers:",),
    "logs": (b":sent:",),
    "counters": (b":sent:",),
    "statistics": (b":sent:",),
}

_LENGTHS = """
local length = {string = 'STRLEN', list = 'LLEN', set = 'SCARD', zset = 'ZCARD', hash = 'HLEN'}
local held = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
    local kind = redis.call('TYPE', key)['ok']
    if length[kind] then
        held[#held + 1] = {key, kind, redis.call(length[kind], key)}
    end
end
return held
"""


class Recorded(Waited):
    """A structure after each of whose calls the state is kept."""

    client: Any = None
    states: list[dict[bytes, tuple[str, int]]]

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        return Recorded(found.structure, self._runner) if isinstance(found, Waited) else found

    def call(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return super().call(call, *args, **options)
        finally:
            Recorded.states.append(lengths(Recorded.client))


class Cancelled(Waited):
    """A structure whose awaits are counted over all its calls; at one of them it is cancelled."""

    turns = count()
    at = 0
    late = False

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, Waited):
            return Cancelled(found.structure, self._runner)
        return found

    def call(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def cancelled() -> Any:
            result = call(*args, **options)
            if hasattr(result, "__aiter__"):
                return await _with_cancellation(_collect(result))
            if hasattr(result, "__await__"):
                return await _with_cancellation(result)
            return result

        return self._runner.run(cancelled())


async def _collect(stream: Any) -> list[Any]:
    return [value async for value in stream]


@types.coroutine
def _with_cancellation(call: Awaitable[Any]) -> Generator[Any, Any, Any]:
    task, steps = asyncio.current_task(), call.__await__()
    assert task is not None
    resume = partial(next, steps)
    while True:
        try:
            future = resume()
        except StopIteration as done:
            return done.value
        if next(Cancelled.turns) == Cancelled.at:
            if Cancelled.late and future is not None:
                future.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        try:
            resume = partial(steps.send, (yield future))
        except BaseException as error:
            resume = partial(steps.throw, error)


def lengths(client: Any) -> dict[bytes, tuple[str, int]]:
    """Return the type and length of all that is stored."""
    return {key: (kind.decode(), length) for key, kind, length in client.eval(_LENGTHS, 0)}


def left_behind(driver: Driver, name: str, called: str, call: Callable[[Any], Any]) -> list[str]:
    """Cancel a call everywhere; return what is wrong after some."""
    subject = SUBJECTS[name]
    stored = driver.prepare(name)
    Recorded.client, Recorded.states = driver.client, [lengths(driver.client)]
    driver.left = 10**6
    call(Recorded(subject.open(driver.awaiting), driver.runner))
    states, found = Recorded.states, []
    for late in (False, True):
        for turn in range(MOST_TURNS):
            driver.restore(stored)
            driver.left = 10**6
            Cancelled.turns, Cancelled.at, Cancelled.late = count(), turn, late
            structure = Cancelled(subject.open(driver.awaiting), driver.runner)
            try:
                call(structure)
            except asyncio.CancelledError:
                pass
            except Exception as error:
                found.append(f"{turn} {late}: {type(error).__name__}: {error}"[:160])
                continue
            if next(Cancelled.turns) <= turn:
                break  # it has no further await
            now = lengths(driver.client)
            if called not in STEPS:
                if names := called not in UNFINISHED and driver.named(name):
                    found.append(f"{turn} {late}: check() names {sorted(names)[:3]}")
                odd = {
                    key: now.get(key)
                    for key in set().union(now, *states)
                    if now.get(key) not in [state.get(key) for state in states]
                    and not any(part in key for part in LEFT.get(name.removeprefix("used "), ()))
                }
                if not odd:
                    continue
                found.append(f"{turn} {late}: {str(dict(list(odd.items())[:4]))[:160]}")
    return found


def cancel(name: str) -> Counter[str]:
    """Cancel all calls of a subject; print what was left behind; return how often, by call."""
    subject, wrong = SUBJECTS[name], Counter[str]()
    servers, began = LocalServers(ShardMap.parse(MAP), ports="free"), time.monotonic()
    with servers, shardkit.connect(servers.shard_map) as kit, asyncio.Runner() as runner:
        driver = Driver(kit, servers.shard_map, runner)
        calls = {**subject.reads, **subject.writes}
        for called, call in calls.items():
            found = left_behind(driver, name, called, call)
            wrong[called] = len(found)
            for text in found[:3]:
                print(f"{name} | {called} | {text}", flush=True)
        print(f"{name}: {len(calls)} calls, {time.monotonic() - began:.0f} s", flush=True)
        runner.run(driver.awaiting.aclose())
    return wrong


def main(*given: str) -> int:
    """Try all subjects, or those that are named; return 1 if anything was left behind."""
    names = [each for each in SUBJECTS if each in given] or list(SUBJECTS)
    counts = in_processes(cancel, [(name,) for name in names])
    return int(any(map(Counter.total, counts.values())))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
