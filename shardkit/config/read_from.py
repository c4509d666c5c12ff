"""Where reads may go: an entry's ``read_from`` and ``max_lag``, and the ``read_from=`` of a call.

======================== =====================================================================
``master``               the master, as without it
``replica``              replicas only; an error if none can be used
``prefer_replica``       a replica, or the master if none can be used
``nearest``              the quickest to answer of the replicas and the master
``zone``                 a replica in the client's zone, the master if it is there, others
======================== =====================================================================

The last is the affinity to availability zones of Valkey GLIDE.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardkit.errors import InvalidArgumentError

MODES: Final = ("master", "replica", "prefer_replica", "nearest", "zone")
MAX_LAG: Final = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Which servers reads may go to, and how old what they say may be.

    Attributes:
        mode: ``master``, ``replica``, ``prefer_replica``, ``nearest`` or ``zone``.
        max_lag: seconds that a replica may be behind; None for any time, also without its master,
            and then clients may see earlier states after later ones, too.
        read_your_writes: whether a replica is left alone until it has all that this process wrote
            to the shard with ``read_from``.
        spread: whether commands of clients go to replicas in turn. A later read may then show an
            earlier state. Otherwise a process, or a session, stays with one replica of a shard.

    Raises:
        InvalidArgumentError: the mode is none, or ``max_lag`` no time.
    """

    mode: str
    max_lag: float | None = MAX_LAG
    read_your_writes: bool = True
    spread: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgumentError(
                f"read_from={self.mode!r:.80} names no servers", f"give one of {', '.join(MODES)}"
            )
        lag = self.max_lag
        is_time = isinstance(lag, int | float) and not isinstance(lag, bool) and lag > 0
        if lag is not None and not is_time:
            raise InvalidArgumentError(
                f"max_lag={lag!r:.80} is no time", "give seconds above 0, or None"
            )


def as_read_from(given: object) -> ReadFrom:
    """Return what an argument ``read_from=`` says: a mode, or a `ReadFrom`."""
    if isinstance(given, ReadFrom):
        return given
    return ReadFrom(given if isinstance(given, str) else repr(given))


class _ReplicaReads:
    """Whether any reads may go another way than writes; links ask before anything else.

    To replicas, that is, or to shards that are being moved.

    Attributes:
        any: the components and clients of which that is so, as long as somebody has them.
    """

    def __init__(self) -> None:
        self.any: set[object] = set()

    def note(self, apart: object) -> None:
        """Note that reads of a component or by a client may go another way."""
        self.any.add(weakref.ref(apart, self.any.discard))


in_use = _ReplicaReads()


def read_from_of(fields: Mapping[str, Any]) -> ReadFrom | None:
    """Return what an entry's fields say of reads; None if they go to the master."""
    mode = fields.get("read_from", "master")
    if mode == "master":
        return None
    return ReadFrom(mode, fields.get("max_lag", MAX_LAG))
