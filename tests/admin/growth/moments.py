"""Where tests kill, stop or overtake movers, and what movers have recorded.

Only this file names the functions of movers and the records.

A moment is what a mover is about to do. What it is about to *send* needs no name:
see `arranged.before_sending`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from importlib import import_module
from typing import Any

import pytest
import redis

from shardkit.admin import changes
from shardkit.admin.growth import Move
from shardkit.admin.growth.journal import Lease, lease as lease_of

_SHARDS, _SERVER = "shard_move:ShardMover.", "move:ServerMover."
MOMENTS = {
    # A move of shards, a split.
    "notifications": "shard_move:turn_on_notifications",
    "capture": "shard_move:KeyCapture",
    "copy": "shard_move:DatabaseCopy",
    "copy all": "shard_move:DatabaseCopy.copy_all",
    "finish the copy": "shard_move:DatabaseCopy.finish",
    "libraries": "shard_move:copy_libraries",
    "compare": "mover:compare",
    "caught up": f"{_SHARDS}_caught_up",
    "hold writers": f"{_SHARDS}_hold_and_decide",
    "close": "gate:close_for",
    "last differences": "shard_move:differing",
    "decide": "gate:make_permanent",
    "decided": f"{_SHARDS}_reached",
    "push": f"{_SHARDS}_push",
    "push entries": "shard_move:push_changed",
    "attest": "shard_move:attest",
    "close to readers": "gate:change",
    "readers left": "gate:CopyGate.wait_for_readers",
    "open": "gate:lift",
    "admit writers": f"{_SHARDS}_admit_writers",
    "take over": f"{_SHARDS}_require_takeover",
    "keep or empty": f"{_SHARDS}_keep_or_clear",
    "keep up to date": f"{_SHARDS}_follow",
    "clear": f"{_SHARDS}_clear",
    "empty": "gate:write_under",
    "verify": f"{_SHARDS}verify",
    "let go": f"{_SHARDS}_let_go",  # a mover that is killed does not do it
    # A split with a cluster.
    "cluster: mark": "gate:set_if_marked",
    "cluster: close": "gate:ClusterGate._close_nodes",
    "cluster: writers left": "gate:ClusterGate.wait_for_writers",
    "cluster: decide": "gate:ClusterGate.decide",
    "cluster: admit readers": "gate:ClusterGate.admit_readers",
    "cluster: turn away": "gate:ClusterGate.turn_away",
    "cluster: open": "gate:ClusterGate.open",
    "shards: open": "gate:CopyGate.open",
    # A move of a server, a failover.
    "wait for the copy": "servers:wait_for_copy",
    "take writes alone": "servers:take_writes_alone",
    "hand over": "servers:hand_over",
    "ask for replicas": "servers:ask_for_replicas",
    "server: push": f"{_SERVER}_push",
    "server: push entries": "move:push_relocation",
    "server: wait until left": "journal:wait_until_read",
    "server: certify": f"{_SERVER}_certify",
    "failover: repoint": "failover:repoint",
    "failover: push entries": "failover:push_relocation",
    "failover: ask Sentinels": "failover:_ask_sentinels",
    "failover: set the priority": "failover:_set_priority",
    "failover: look at the master": "failover:_is_master",
}


class Killed(BaseException):
    """The mover was killed."""


def _place(moment: str) -> tuple[Any, str]:
    """Return the module or class, and the name in it."""
    module, _, path = MOMENTS[moment].partition(":")
    *owners, name = path.split(".")
    return reduce(getattr, owners, import_module(f"shardkit.admin.growth.{module}")), name


@contextmanager
def before(moment: str, act: Callable[[], object], *, once: bool = True) -> Iterator[None]:
    """Do something else when a mover has come so far, at first or each time."""
    owner, name = _place(moment)
    go_on, done = getattr(owner, name), False

    def late(*args: object, **options: object) -> object:
        nonlocal done
        if not (done and once):
            done = True
            act()
        return go_on(*args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, late)
        yield


def kill(*args: object, **options: object) -> Any:
    raise Killed


@contextmanager
def killed_at(*moments: str) -> Iterator[None]:
    """Have a mover inside be killed at one of these moments."""
    with pytest.MonkeyPatch.context() as patched:
        for moment in moments:
            patched.setattr(*_place(moment), kill)
        with pytest.raises(Killed):
            yield


@contextmanager
def not_seen_as_decided() -> Iterator[None]:
    """Have a mover look for the decision just before it is there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shardkit.admin.growth.gate.is_permanent", lambda client, move: False)
        yield


@contextmanager
def uncounted_calls() -> Iterator[None]:
    """Have a mover not compare how often commands that may hide changes were called."""
    with pytest.MonkeyPatch.context() as patched:
        name = "shardkit.admin.growth.shard_copy.KeyCapture.require_complete"
        patched.setattr(name, lambda capture: None)
        yield


@contextmanager
def killed_in(phase: str, when: str) -> Iterator[None]:
    """Have a mover be killed before or after it writes that it is in a phase."""

    def write(lease: Lease, move: Any, go_on: Callable[..., None] = Lease.write) -> None:
        if when == "after" or move.phase != phase:
            go_on(lease, move)
        if move.phase == phase:
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lease, "write", write)
        with pytest.raises(Killed):
            yield


@contextmanager
def killed_after_order(word: str) -> Iterator[None]:
    """Have a process be killed when a server has executed an order that a lease guards."""

    def order(
        lease: Lease, client: Any, *command: Any, go_on: Any = Lease.order, **options: Any
    ) -> None:
        go_on(lease, client, *command, **options)
        if command[0] == word:
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lease, "order", order)
        with pytest.raises(Killed):
            yield


def write_record(config: redis.Redis, move: Move) -> None:
    """Write a record, as in an old snapshot of the config server."""
    with lease_of(config) as lease:
        lease.write(move)


def open_changes(config: redis.Redis) -> list[Any]:
    """The changes that are open, of all kinds."""
    return list(changes.open_changes(config))


def end_changes(config: redis.Redis, owner: str) -> None:
    """Have what a process holds end now; it would in ten seconds."""
    for change in open_changes(config):
        if change.until and change.owner.endswith(owner):
            ended = changes.text_of(replace(change, until=1.0))
            config.hset(changes.CHANGES_KEY, change.id, ended)
