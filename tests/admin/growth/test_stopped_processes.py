"""A process is stopped before a command, and wakes when another operator has taken over.

Each step is a place in the code that sends a command to a server. ``make kills`` tries all of them,
the tests a few.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import currentframe
from typing import Any

import pytest
from faces import PATIENCE, eventually, seed
from growth_helpers import PATIENT, Fleet, follow, replication, still_there
from redis.connection import AbstractConnection
from redis.utils import str_if_bytes

import shardkit
from shardkit.admin.growth import (
    abort_move,
    fail_over,
    moves,
    resume_move,
    reverse_move,
)
from shardkit.errors import ConfigError, GrowthError, ShardKitError

ALL = "KILLS" in os.environ or os.environ.get("CASES") == "all"
Step = tuple[str, int, Any]


def step_of(connection: Any) -> Step | None:
    """Where in the code a command is sent, and to which server; None if not by an operator."""
    if threading.current_thread() is not threading.main_thread():
        return None
    frame: Any = currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if "/shardkit/admin/" in name:
            return name, frame.f_lineno, connection.port
        frame = frame.f_back
    return None


@contextmanager
def stopped_at(
    is_it: Callable[[list[Step], str], bool], meanwhile: Callable[[], object]
) -> Iterator[list[Step]]:
    """Have a process stop before its first command at a step; give the steps that it takes.

    ``is_it`` tells the step by those until then, and what is about to be sent.
    """
    send, steps, stopped = AbstractConnection.send_packed_command, [], False

    def asleep(connection: Any, command: Any, *args: Any, **options: Any) -> Any:
        nonlocal stopped
        step = step_of(connection)
        if step is not None and not stopped:
            if step not in steps:
                steps.append(step)
            data = command if isinstance(command, bytes | str) else b"".join(command)
            if is_it(steps, str_if_bytes(data)):
                stopped = True
                meanwhile()
        return send(connection, command, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AbstractConnection, "send_packed_command", asleep)
        yield steps


def take_over(fleet: Fleet, of_shards: bool, how: str) -> None:
    fleet.config.delete("config:growth:lease")
    name = "users:1" if of_shards else fleet.name(0)
    try:
        if how == "abort":
            with suppress(GrowthError):  # decided
                abort_move(fleet.config, name)
                return
        resume_move(fleet.config, name, hold=PATIENT)
    except ConfigError:  # it has not begun
        fleet.move(of_shards, hold=PATIENT)
    if how == "reverse":
        reverse_move(fleet.config, name, hold=PATIENT)


def anew(fleet: Fleet, replicas: tuple[int, ...] = ()) -> None:
    """Empty all servers, and describe a few keys on the first."""
    for server in fleet.servers:
        with server.client() as client:
            client.replicaof("NO", "ONE")
            client.flushall()
    fleet.config.flushall()
    for each in replicas:
        follow(fleet.servers[each], fleet.servers[0])
    fleet.push(0, replicas)
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users").mset({f"k{n}": n for n in range(50)})


def check(fleet: Fleet, step: Any, written: str) -> None:
    """What was written when the other operator was done is there, and clients write."""
    for move in moves(fleet.config):
        if move.phase not in ("done", "aborted"):
            resume_move(fleet.config, move.name, hold=PATIENT)
    assert still_there(fleet), step
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        for key in (f"new{n}" for n in range(9)):
            assert router[key].get(key) == written.encode(), step
            router[key].incr(key)


def every_step(
    fleet: Fleet, replicas: tuple[int, ...], work: Callable[[], object], other: Callable[[], object]
) -> None:
    anew(fleet, replicas)
    with stopped_at(lambda steps, sent: False, other) as every:
        work()
    numbers = range(1, len(every) + 1)
    for number in numbers if ALL else sorted(random.Random(seed()).sample(numbers, 2)):
        anew(fleet, replicas)

        def meanwhile(number: int = number) -> None:
            try:
                other()
            except ShardKitError as error:
                pytest.fail(f"nobody can take over at {number, steps[-1]}: {error}")
            with shardkit.connect(fleet.url) as kit:
                kit.key_sharded("users").mset({f"new{n}": number for n in range(9)})

        at_number = lambda steps, sent, number=number: len(steps) == number  # noqa: E731
        with stopped_at(at_number, meanwhile) as steps, suppress(ShardKitError):
            work()
        check(fleet, (number, steps[-1]), str(number))


@pytest.mark.long(4)
@pytest.mark.timeout((900 if ALL else 120) * PATIENCE)
@pytest.mark.parametrize("how", ["reverse", "abort", "resume"])
@pytest.mark.parametrize("of_shards", [True, False], ids=["shards", "server"])
def test_a_mover_that_wakes_at_any_step_changes_nothing(
    fleet: Fleet, of_shards: bool, how: str
) -> None:
    def work() -> None:
        fleet.move(of_shards, hold=PATIENT)

    every_step(fleet, (), work, lambda: take_over(fleet, of_shards, how))


@pytest.mark.timeout((900 if ALL else 120) * PATIENCE)
@pytest.mark.parametrize("back", [True, False], ids=["there and back", "there"])
def test_a_failover_that_wakes_at_any_step_changes_nothing(fleet: Fleet, back: bool) -> None:
    def work() -> None:
        fail_over(fleet.config, "users:0", fleet.name(1), hold=PATIENT)

    def other() -> None:
        fleet.config.delete("config:growth:lease")
        fail_over(fleet.config, "users:0", fleet.name(2), hold=PATIENT)
        if back:
            linked = lambda: replication(fleet.servers[0]).get("master_link_status")  # noqa: E731
            assert eventually(lambda: linked() == "up", 30)
            fail_over(fleet.config, "users:0", fleet.name(0), hold=PATIENT)

    every_step(fleet, (1, 2), work, other)


def test_a_failover_whose_new_master_others_have_replaced_ends(
    fleet: Fleet, lower: Callable[..., None]
) -> None:
    lower(answer_timeout=0.5)
    anew(fleet, (1, 2))

    def other() -> None:
        fleet.config.delete("config:growth:lease")
        fail_over(fleet.config, "users:0", fleet.name(2), hold=PATIENT)
        fleet.servers[1].resume()

    paused = False

    def has_ordered(steps: list[Step], sent: str) -> bool:
        nonlocal paused
        if "FAILOVER\r\n" in sent and "TIMEOUT" in sent:
            fleet.servers[1].pause()  # so that this takes longer
            paused = True
        return "GETACK" in sent and paused

    with (
        stopped_at(has_ordered, other),
        pytest.raises(GrowthError, match="another process may have replaced both"),
    ):
        fail_over(fleet.config, "users:0", fleet.name(1), hold=1.5)
