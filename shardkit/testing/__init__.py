"""For users' own tests: a pytest plugin, and the servers of a shard map in memory.

Exports are imported on first use, because every pytest run loads the plugin.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardkit.testing.memory import MemoryServers

__all__ = ["MemoryServers"]


def __getattr__(name: str) -> Any:
    if name != "MemoryServers":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shardkit.testing.memory import MemoryServers

    return MemoryServers
