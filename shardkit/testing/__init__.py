"""For users' own tests: a pytest plugin, a shard map's servers in memory, and the simulator.

Exports are imported on first use, because every pytest run loads the plugin.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardkit.simulation import (
        CLIENTS,
        EVERYTHING,
        NETWORK,
        Client,
        EndlessRun,
        Model,
        NotLinearizable,
        Protocol,
        RecordedCall,
        Register,
        SimulationFailure,
        SimulationReport,
        check_linearizable,
        replay,
        simulate,
    )
    from shardkit.testing.memory import MemoryServers

__all__ = [
    "CLIENTS",
    "EVERYTHING",
    "NETWORK",
    "Client",
    "EndlessRun",
    "MemoryServers",
    "Model",
    "NotLinearizable",
    "Protocol",
    "RecordedCall",
    "Register",
    "SimulationFailure",
    "SimulationReport",
    "check_linearizable",
    "replay",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    owner = "shardkit.testing.memory" if name == "MemoryServers" else "shardkit.simulation"
    return getattr(import_module(owner), name)
