"""The kits of integrations that other programs configure: one for each topology and process."""

from __future__ import annotations

import shardkit
from shardkit.kit.kit import ShardKit, default_kit
from shardkit.operations.forks import ForkSafeLock

_kits: dict[str, ShardKit] = {}
_lock = ForkSafeLock()


def kit_of(topology: str | None) -> ShardKit:
    """Return the process's kit for a topology, which it opens at first; of None the default kit."""
    if topology is None:
        return default_kit()
    with _lock:
        if topology not in _kits:
            _kits[topology] = shardkit.connect(topology)
        return _kits[topology]
