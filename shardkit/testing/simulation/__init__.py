"""Simulation: every protocol under every schedule, one seed at a time. For your own code too.

One schedule is one run of some clients against servers in the process, in virtual time: a seed
decides which client runs, what arrives, what is lost and which process dies. `shardkit.testing`
exports the public names; docs/simulation.md is the guide.
"""

from shardkit.testing.simulation.linearizability import (
    UNKNOWN as UNKNOWN,
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
