"""For users' own tests: a pytest plugin, a shard map's servers in memory, and the simulator.

Exports are imported on first use, because every pytest run loads the plugin.
"""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.testing.memory import MemoryServers as MemoryServers
    from shardkit.testing.simulation import (
        CLIENTS as CLIENTS,
    )
    from shardkit.testing.simulation import (
        EVERYTHING as EVERYTHING,
    )
    from shardkit.testing.simulation import (
        NETWORK as NETWORK,
    )
    from shardkit.testing.simulation import (
        Client as Client,
    )
    from shardkit.testing.simulation import (
        EndlessRun as EndlessRun,
    )
    from shardkit.testing.simulation import (
        Model as Model,
    )
    from shardkit.testing.simulation import (
        NotLinearizable as NotLinearizable,
    )
    from shardkit.testing.simulation import (
        Protocol as Protocol,
    )
    from shardkit.testing.simulation import (
        RecordedCall as RecordedCall,
    )
    from shardkit.testing.simulation import (
        Register as Register,
    )
    from shardkit.testing.simulation import (
        SimulationFailure as SimulationFailure,
    )
    from shardkit.testing.simulation import (
        SimulationReport as SimulationReport,
    )
    from shardkit.testing.simulation import (
        check_linearizable as check_linearizable,
    )
    from shardkit.testing.simulation import (
        replay as replay,
    )
    from shardkit.testing.simulation import (
        simulate as simulate,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
