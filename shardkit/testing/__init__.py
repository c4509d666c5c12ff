"""For users' own tests: a pytest plugin, a shard map's servers in memory, and the simulator.

Exports are imported on first use, because every pytest run loads the plugin.
"""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.testing.memory import MemoryServers as MemoryServers
    from shardkit.testing.simulation import (
        CLIENTS as CLIENTS,
        EVERYTHING as EVERYTHING,
        NETWORK as NETWORK,
        Client as Client,
        EndlessRun as EndlessRun,
        Model as Model,
        NotLinearizable as NotLinearizable,
        Protocol as Protocol,
        RecordedCall as RecordedCall,
        Register as Register,
        SimulationFailure as SimulationFailure,
        SimulationReport as SimulationReport,
        check_linearizable as check_linearizable,
        replay as replay,
        simulate as simulate,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
