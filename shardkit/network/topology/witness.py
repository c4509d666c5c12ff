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

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.config.stored import EPOCH_KEY, WITNESS_KEY, epoch_number

if TYPE_CHECKING:
    from shardkit.network.topology.sources import ConfigServer


class EpochWitness:
    """Asks what one shard's server has witnessed, on the first connection to it."""

    def __init__(self, source: ConfigServer, component: str) -> None:
        self._source = source
        self.command = ("ZSCORE", WITNESS_KEY, component)
        self.settled = False

    def doubts(self, reply: Any) -> int:
        """Return the epoch witnessed, if it is later than any read; otherwise, or if refused, 0."""
        text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
        witnessed = int(float(text)) if re.fullmatch(r"[0-9]{1,15}(\.0)?", text, re.ASCII) else 0
        self.settled = witnessed <= self._source.epoch
        return 0 if self.settled else witnessed

    def confirm(self, witnessed: int) -> None:
        """Read the config server again: the push may be younger than the last reading.

        Raises:
            ConfigServerError: it went back.
        """
        with suppress(RedisError, OSError):  # while it is away, the known entries stay in use
            self._judge(witnessed, self._source.fetch([EPOCH_KEY]))

    async def aconfirm(self, witnessed: int) -> None:
        """Read the config server again, awaiting; see `confirm`."""
        with suppress(RedisError, OSError):
            self._judge(witnessed, await self._source.afetch([EPOCH_KEY]))

    def _judge(self, witnessed: int, values: list[Any]) -> None:
        now = epoch_number(values[0])
        if now < witnessed:
            self._source.witnessed = max(self._source.witnessed, witnessed)
            raise self._source.went_back("config:epoch", witnessed, now)
        self.settled = True


def witnesses(components: Iterable[Component]) -> dict[Entry, set[str]]:
    """Return the entries whose databases witness the pushes of components, with their names.

    A cluster is none: its nodes change under one entry.
    """
    found: dict[Entry, set[str]] = {}
    for component in components:
        for _, entry in component.entries():
            if not entry.is_cluster:
                found.setdefault(entry, set()).add(component.name)
    return found


def read_witness(client: Any, names: Collection[str]) -> int:
    """Return the latest epoch that a database has witnessed of some components; 0 if none."""
    scores = client.zmscore(WITNESS_KEY, sorted(names))
    return max((int(score) for score in scores if score is not None), default=0)


def write_witness(client: Any, names: Collection[str], epoch: int) -> None:
    """Have a database witness an epoch of some components; it never goes back."""
    client.zadd(WITNESS_KEY, dict.fromkeys(sorted(names), epoch), gt=True)
