"""Where reads may go: an entry's ``read_from`` and ``max_lag``, and the ``read_from=`` of a call.

``replica`` is an error if no replica is usable, ``prefer_replica`` falls back to the master,
``nearest`` is the one that answers fastest. ``zone`` prefers a replica in the client's zone, then
the master if it is there; ``zone_replica`` any replica to the master: the two availability-zone
affinities of Valkey GLIDE.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardkit.config.problem import mask
from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import is_number, shown

MODES: Final = ("master", "replica", "prefer_replica", "nearest", "zone", "zone_replica")
MAX_LAG: Final = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Which servers reads may go to, and how old their data may be.

    Attributes:
        mode: ``master``, ``replica``, ``prefer_replica``, ``nearest``, ``zone``, ``zone_replica``.
        max_lag: seconds that a replica may be behind; None for any time, even without its master.
            With None, a later read may show an earlier state.
        read_your_writes: whether reads avoid a replica until it has everything that this process
            wrote to the shard with ``read_from``.
        spread: whether commands of clients go to replicas in turn. A later read may then show an
            earlier state. Otherwise a process, or a session, stays with one replica of a shard.

    Raises:
        InvalidArgumentError: the mode is unknown, or ``max_lag`` is no number above 0.
    """

    mode: str
    max_lag: float | None = MAX_LAG
    read_your_writes: bool = True
    spread: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgumentError(
                f"read_from={shown(mask('host', self.mode))} is unknown",
                f"give one of {', '.join(MODES)}",
            )
        lag = self.max_lag
        if lag is not None and not (is_number(lag) and lag > 0):
            raise InvalidArgumentError(f"max_lag={shown(lag)}", "give seconds above 0, or None")

    @property
    def by_zone(self) -> bool:
        """Whether zones decide."""
        return self.mode.startswith("zone")


def as_read_from(given: object) -> ReadFrom:
    """Return an argument ``read_from=``, a mode or a `ReadFrom`, as a `ReadFrom`."""
    if isinstance(given, ReadFrom):
        return given
    return ReadFrom(given if isinstance(given, str) else shown(given))


class _ReplicaReads:
    """Whether any reads may go to replicas, or to shards that are being moved.

    Links check ``any`` first: weak references to such components and clients.
    """

    def __init__(self) -> None:
        self.any: set[object] = set()

    def note(self, reader: object) -> None:
        """Note a component or client whose reads may go to other servers than its writes."""
        self.any.add(weakref.ref(reader, self.any.discard))


in_use = _ReplicaReads()


def read_from_of(fields: Mapping[str, Any]) -> ReadFrom | None:
    """Return where an entry's reads may go; None for the master."""
    mode = fields.get("read_from", "master")
    if mode == "master":
        return None
    return ReadFrom(mode, fields.get("max_lag", MAX_LAG))
