"""Simulation: every protocol under every schedule, one seed at a time. For your own code too.

One schedule is one run of some clients against servers in the process, in virtual time: a seed
decides which client runs, what arrives, what is lost and which process dies. `shardkit.testing`
exports the public names; docs/simulation.md is the guide.
"""

from shardkit.testing.simulation.linearizability import (
    UNKNOWN,
    Model,
    NotLinearizable,
    RecordedCall,
    Register,
    check_linearizable,
)
from shardkit.testing.simulation.protocol import (
    Client,
    Protocol,
    SimulationFailure,
    SimulationReport,
    replay,
    simulate,
)
from shardkit.testing.simulation.world import CLIENTS, EVERYTHING, NETWORK, EndlessRun

__all__ = [
    "CLIENTS",
    "EVERYTHING",
    "NETWORK",
    "UNKNOWN",
    "Client",
    "EndlessRun",
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
