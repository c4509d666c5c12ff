"""For users' own tests: a pytest plugin, a shard map's servers in memory, and the simulator.

Exports are imported on first use, because every pytest run loads the plugin.
"""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.testing.kits import MemoryServers as MemoryServers
    from shardkit.testing.simulation.linearizability import (
        Model as Model,
        NotLinearizable as NotLinearizable,
        RecordedCall as RecordedCall,
        Register as Register,
        check_linearizable as check_linearizable,
    )
    from shardkit.testing.simulation.protocol import (
        Client as Client,
        Protocol as Protocol,
        SimulationFailure as SimulationFailure,
        SimulationReport as SimulationReport,
        replay as replay,
        simulate as simulate,
    )
    from shardkit.testing.simulation.world import (
        CLIENTS as CLIENTS,
        EVERYTHING as EVERYTHING,
        NETWORK as NETWORK,
        EndlessRun as EndlessRun,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
