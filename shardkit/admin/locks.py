"""Who holds and who waits for locks, semaphores, read-write locks and elections."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from shardkit.config.component import Component
from shardkit.coordination import Holder
from shardkit.kit.kit import ShardKit

KINDS = ("lock", "semaphore", "rwlock", "election", "quorum")
_KEY = re.compile(rb"(\w+):\{([^{}]+)\}:(?:holders|waiters)")


class LockState(NamedTuple):
    """A client that holds a lock or waits for it.

    Attributes:
        component: where the lock lives.
        kind: one of `KINDS`.
        name: the lock's name.
        state: ``holds`` or ``waits``.
        holder: the client.
    """

    component: str
    kind: str
    name: str
    state: str
    holder: Holder


def lock_states(kit: ShardKit, component: Component) -> list[LockState]:
    """Return the holders and waiters of a component's locks, by kind and name.

    Cost: a SCAN of the component's databases, 1,000 keys at a time, and an exchange for each lock.
    """
    named: set[tuple[str, str]] = set()
    for shard, _ in component.entries():
        client: Any = kit.client(component.name, shard.number)
        for key in client.scan_iter(match="*:{*}:*", count=1000):
            match = _KEY.fullmatch(key.encode() if isinstance(key, str) else key)
            if match and match[1].decode() in KINDS:
                named.add((match[1].decode(), match[2].decode(errors="replace")))
    states: list[LockState] = []
    for kind, name in sorted(named):
        found = kit.lock(name, component=component.name, kind=kind).inspect()
        states += [LockState(component.name, kind, name, "holds", each) for each in found.holders]
        states += [LockState(component.name, kind, name, "waits", each) for each in found.waiters]
    return states
