"""For users' own tests: a pytest plugin, a shard map's servers in memory, and the simulator.

Exports are imported on first use, because every pytest run loads the plugin.
"""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.testing.memory import MemoryServers
    from shardkit.testing.simulation import (
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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.testing.simulation": (
                "CLIENTS EVERYTHING NETWORK Client EndlessRun Model NotLinearizable Protocol "
                "RecordedCall Register SimulationFailure SimulationReport check_linearizable "
                "replay simulate"
            ),
            "shardkit.testing.memory": "MemoryServers",
        },
    )

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
