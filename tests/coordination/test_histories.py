"""Random histories of processes that are killed and stopped, checked against what was promised.

Each process notes what it does in a file of its own, by a clock that all share: when it asked, when
it got a hold and until when it could rely on it, when it gave it back. So a hold covers an interval
in which the process was told that it holds. However processes are killed or stopped, these
intervals overlap only as far as the kind of lock allows, tokens increase from one hold to the next,
and guarded writes come in the order of their tokens.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from coordination_helpers import forked, with_jumping_clocks
from faces import drawn, holder

import shardkit
from shardkit import ShardKit, ShardMap

FAULTS = drawn(12, 24)
# By how many seconds the server's clock is ahead. Tokens are kept for eight days: more in all
# than these jumps.
JUMPS = (-259_200, -3600, -1, 0, 0, 1, 3600, 259_200)
TTL = 0.25
# How many may hold it at a time; readers and the writer are of one lock.
LIMITS = {"lock": 1, "unfair": 1, "semaphore": 2, "read": None, "write": 1}
GUARDED = ("lock", "unfair")

WORK = """
import random
from shardkit.errors import StaleTokenError

def work(number):
    file = os.open(f"{argument}/{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    def note(*event):
        os.write(file, (json.dumps([time.monotonic(), *event]) + chr(10)).encode())
    try:
        hold_at_random(note, number)
    except BaseException as error:
        note("failed", repr(error))

def hold_at_random(note, number):
    chance = random.Random(number)
    options = {"component": "one", "ttl": 0.25, "renew": chance.random() < 0.5}
    shelf = kit.read_write_lock("shelf", **options)
    things = {
        "lock": kit.lock("lock", **options),
        "unfair": kit.lock("unfair", fair=False, **options),
        "semaphore": kit.semaphore("semaphore", limit=2, **options),
        "read": shelf.read,
        "write": shelf.write,
    }
    while True:
        name = chance.choice(list(things))
        wait = chance.choice([0, 0.02, 10])
        note("ask", name)
        hold = things[name].acquire(blocking_timeout=wait)
        if hold is None:
            note("none", name, wait)
            continue
        note("got", name, hold.token, time.monotonic() + hold.remaining)
        if name in ("lock", "unfair"):
            try:
                hold.guard("many").execute(("RPUSH", f"tokens:{name}", hold.token))
            except StaleTokenError:
                note("stale", name)
        time.sleep(chance.choice([0, 0, 0.003]))
        note("leave", name)
        note("left", name, things[name].release(hold))
"""


@dataclass(frozen=True)
class Held:
    """A hold: when it was asked for and had, until when it was sure, and its token."""

    name: str
    asked: float
    start: float
    end: float
    token: int


def holds_of(events: Iterable[list[Any]]) -> list[Held]:
    """What one process held. Until it gives it back, if the server says that it still had it."""
    found: list[Held] = []
    asked = left = 0.0
    for at, what, *rest in events:
        if what == "ask":
            asked = at
        elif what == "got":
            found.append(Held(rest[0], asked, at, rest[2], rest[1]))
        elif what == "leave":
            left = at
            found[-1] = replace(found[-1], end=min(found[-1].end, left))
        elif what == "left" and rest[1]:
            found[-1] = replace(found[-1], end=left)
    return found


def histories(where: Path) -> list[list[list[Any]]]:
    """The events of each process, as far as they are written."""
    return [
        [json.loads(text) for text in path.read_text().splitlines() if text.endswith("]")]
        for path in where.iterdir()
    ]


def by_thing(events: Iterable[Iterable[list[Any]]]) -> list[list[Held]]:
    """What was held of each thing; of a read-write lock, both sides together."""
    holds = [held for some in events for held in holds_of(some)]
    things = (["lock"], ["unfair"], ["semaphore"], ["read", "write"])
    return [[held for held in holds if held.name in names] for names in things]


def broken(holds: list[Held], clock: str = "steady") -> str:
    """What holds of one lock contradict; nothing if they do not.

    Where the server's clock jumps, holds end before their holders know, but tokens increase.
    """
    inside: list[Held] = []
    for held in sorted(holds, key=lambda each: each.start):
        inside = [each for each in inside if each.end > held.start]
        if held.end <= held.start or clock == "jumping":
            continue
        inside.append(held)
        names = [each.name for each in inside]
        limit = LIMITS[held.name]
        if ("write" in names and len(names) > 1) or (limit is not None and len(names) > limit):
            return f"held at the same time: {inside}"
    if len({held.token for held in holds}) < len(holds):
        return "a token twice"
    latest, had = 0, sorted(holds, key=lambda each: each.start)
    for held in sorted(holds, key=lambda each: each.asked):
        while had and had[0].start < held.asked:
            latest = max(latest, had.pop(0).token)
        if held.token <= latest:
            return f"{held} after token {latest}"
    return ""


A = Held("lock", 0.0, 1.0, 3.0, 7)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (Held("lock", 2.5, 3.0, 4.0, 8), ""),
        (Held("lock", 0.5, 2.0, 4.0, 8), "at the same time"),
        (Held("lock", 2.5, 3.0, 4.0, 7), "twice"),
        (Held("lock", 2.5, 3.0, 4.0, 6), "after token 7"),
    ],
)
def test_a_history_that_breaks_a_promise_is_found(second: Held, says: str) -> None:
    assert (says in broken([A, second])) if says else broken([A, second]) == ""
    shared = [replace(each, name="read") for each in (A, replace(second, token=8))]
    assert broken(shared) == ""
    assert bool(broken([shared[0], replace(shared[1], name="write")])) is (second.start < A.end)


def test_killed_and_stopped_processes_never_hold_more_than_may(
    kit: ShardKit, shard_map: ShardMap, tmp_path: Path
) -> None:
    chance, numbers = Random(16), count()
    running: list[int] = []
    stopped: list[int] = []
    with forked(WORK, shard_map, str(tmp_path)) as fork:
        running.extend(fork(next(numbers)) for _ in range(5))
        for _ in range(FAULTS):
            threading.Event().wait(chance.uniform(0.02, 0.1))
            pid = running.pop(chance.randrange(len(running)))
            if chance.random() < 0.5:
                os.kill(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
            if len(stopped) < 4:
                running.append(fork(next(numbers)))
            else:  # stopped for several faults: longer than what it held lasted
                os.kill(stopped[0], signal.SIGCONT)
                running.append(stopped.pop(0))
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        threading.Event().wait(TTL)  # what the dead held is free
        while min(map(len, by_thing(histories(tmp_path)))) <= 10:  # a busy machine does less
            threading.Event().wait(TTL)
    check_the_end(kit, histories(tmp_path))


def test_where_the_clock_jumps_tokens_increase_and_nothing_is_held_for_ever(
    tmp_path: Path,
) -> None:
    chance, numbers = Random(17), count()
    notes = tmp_path / "notes"
    notes.mkdir()
    with (
        with_jumping_clocks(tmp_path) as (shard_map, set_clock),
        shardkit.connect(shard_map) as kit,
    ):
        with forked(WORK, shard_map, str(notes)) as fork:
            running = [fork(next(numbers)) for _ in range(4)]
            for _ in range(FAULTS):
                threading.Event().wait(chance.uniform(0.02, 0.1))
                set_clock(chance.choice(JUMPS))
                if chance.random() < 0.3:
                    os.kill(running.pop(0), signal.SIGKILL)
                    running.append(fork(next(numbers)))
            while min(map(len, by_thing(histories(notes)))) <= 10:
                threading.Event().wait(TTL)
        check_the_end(kit, histories(notes), "jumping")


def check_the_end(kit: ShardKit, events: list[list[list[Any]]], clock: str = "steady") -> None:
    """Check what came of it all: nothing is held for ever, nothing contradicts itself."""
    shelf = kit.read_write_lock("shelf", component="one")
    for thing in (
        *(kit.lock("lock", component="one"), kit.lock("unfair", component="one", fair=False)),
        *(kit.semaphore("semaphore", component="one", limit=2), shelf.write),
    ):
        hold = thing.acquire(blocking_timeout=10)  # nobody holds it for ever
        assert hold is not None
        assert thing.release(hold)
    unwanted = [each for some in events for each in some if each[1] in ("failed", "none")]
    assert [each for each in unwanted if each[1] == "failed" or each[3] == 10] == []
    for own in by_thing(events):
        assert len(own) > 10
        assert broken(own, clock) == ""
    for name in GUARDED:
        key = f"tokens:{name}"
        written = [int(token) for token in holder(kit, "many", key).lrange(key, 0, -1)]
        assert len(written) > 10
        assert written == sorted(written)
