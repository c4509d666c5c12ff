"""Simulation: every protocol under every schedule, one seed at a time. For your own code too.

One schedule is one run of some clients against servers in the process, in virtual time: a seed
decides who goes on, what arrives, what is lost and who is killed. `shardkit.testing` exports what
users need; docs/simulation.md teaches it.
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
