"""Data servers as witnesses of pushes: a client that just started notices an old config server.

::

    config:witness    a sorted set in each database that a component's entries name:
                      the component ─► the config:epoch of the last push that knew it

A push writes it last, so an intact config server is never behind. Each client asks when it first
connects to a shard, together with CLIENT SETNAME. If the server has witnessed a later push
than that of the entries, and the config server is still behind when read again, it was restored
from an old snapshot: the connection is refused before anything is sent over it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from shardkit.config.component import WITNESS_KEY, Component
from shardkit.config.entry import Entry


def witnesses(components: Iterable[Component]) -> dict[Entry, set[str]]:
    """Return the entries whose databases witness the pushes of components, with their names.

    A cluster is none: its nodes change under one entry.
    """
    used_by: dict[Entry, set[str]] = {}
    for component in components:
        for _, entry in component.entries():
            if not entry.is_cluster:
                used_by.setdefault(entry, set()).add(component.name)
    return used_by


def read_witness(client: Any, names: Collection[str]) -> int:
    """Return the latest epoch that a database has witnessed of some components; 0 if none."""
    scores = client.zmscore(WITNESS_KEY, sorted(names))
    return max(map(witnessed_epoch, scores), default=0)


def witnessed_epoch(score: Any) -> int:
    """Return the epoch that a reply with a score means; 0 if it is missing, refused or damaged."""
    with suppress(TypeError, ValueError):
        if 0 <= (epoch := float(score)) < 2**53:
            return int(epoch)
    return 0


def write_witness(client: Any, names: Collection[str], epoch: int) -> None:
    """Have a database witness an epoch of some components; it never goes back."""
    client.zadd(WITNESS_KEY, dict.fromkeys(sorted(names), epoch), gt=True)
