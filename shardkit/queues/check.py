"""Checks a queue: see `shardkit.structures.base.check`."""

from __future__ import annotations

from functools import partial
from typing import Any

from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command, Key
from shardkit.operations.operation import Operation, Stream
from shardkit.queues.commands import QueueKeys
from shardkit.structures.base.check import Damage, Suspicion, Suspicions, confirmed, read_or_note
from shardkit.structures.base.damage import damage

_AT_ONCE = 1000
_LONGEST_SEARCH = 10_000  # of an LPOS; a longer LIST is not searched
_RESTORES = "restore(queue) requeues it"


def check_queue(component: str, keys: QueueKeys) -> Stream[Damage]:
    """Check a queue while others use it."""
    typed = yield from confirmed(partial(_check_types, component, keys))
    yield typed
    if typed:
        return
    cursor: Key = 0
    while cursor != b"0":
        scan = ("HSCAN", keys.tasks, cursor, "COUNT", _AT_ONCE)
        [(cursor, flat)] = yield [Command(component, keys.tasks, scan)]
        yield (yield from confirmed(partial(_check_nowhere, component, keys, flat[::2])))
    for key in (keys.delayed, keys.taken, keys.dead):
        cursor = 0
        while cursor != b"0":
            scan = ("ZSCAN", key, cursor, "COUNT", _AT_ONCE)
            [(cursor, flat)] = yield [Command(component, key, scan)]
            yield (yield from confirmed(partial(_check_tasks, component, keys, key, flat[::2])))


def _check_types(component: str, keys: QueueKeys) -> Operation[Suspicions]:
    notes: Suspicions = []
    names = ("LLEN", "ZCARD", "ZCARD", "HLEN", "HLEN", "ZCARD", "HLEN", "LLEN", "HLEN", "HLEN")
    reads = [
        Command(component, key, (name, key)) for name, key in zip(names, keys.all, strict=True)
    ]
    yield from read_or_note(reads, notes, "delete the key", "what it holds")
    return notes


def _check_nowhere(component: str, keys: QueueKeys, ids: list[bytes]) -> Operation[Suspicions]:
    """Check that each task is waiting, delayed, leased or dead, or was removed since."""
    reads: list[Command] = []
    for id_ in ids:
        sent: list[tuple[Any, ...]] = [("ZSCORE", p, id_) for p in (keys.taken, keys.delayed)]
        sent += [("ZSCORE", keys.dead, id_), ("HEXISTS", keys.tasks, id_)]
        sent.append(("LPOS", keys.waiting, id_, "MAXLEN", _LONGEST_SEARCH))
        reads += [Command(component, args[1], args) for args in sent]
    replies = iter((yield [*reads, Command(component, keys.waiting, ("LLEN", keys.waiting))]))
    rows = [(id_, *(next(replies) for _ in range(5))) for id_ in ids]
    if next(replies) > _LONGEST_SEARCH:
        return []
    lost = [
        id_
        for id_, taken, delayed, dead, exists, waits in rows
        if exists and (taken, delayed, dead, waits) == (None,) * 4
    ]
    expected = "one that waits, is delayed, taken or dead"
    return [
        Suspicion(damage(component, keys.tasks, f"task {shown(id_)}, nowhere", expected), _RESTORES)
        for id_ in lost
    ]


def _check_tasks(
    component: str, keys: QueueKeys, key: str, ids: list[bytes]
) -> Operation[Suspicions]:
    """Check that each id in a ZSET has a task."""
    if not ids:
        return []
    [tasks] = yield [Command(component, keys.tasks, ("HMGET", keys.tasks, *ids))]
    [scores] = yield [Command(component, key, ("ZMSCORE", key, *ids))]
    return [
        Suspicion(damage(component, key, f"{shown(id_)} without a task", "tasks"))
        for id_, task, score in zip(ids, tasks, scores, strict=True)
        if task is None and score is not None
    ]
