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
