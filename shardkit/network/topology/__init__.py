"""The topology: each component's entries, as they are now.

Entries come from a source, the config server or a YAML shard map, and are cached. A caller gets the
cached component; when that is older than a second, a thread of the topology's own reads it again:

::

    component("unique") ──► cached ──────────────────────────────────────► cached Component
                     │         └─ older than a second: a thread reads it (one MGET)
                     └────► never read: all wait for the first reader

A changed entry takes effect within about a second. If the source is down or has broken entries, the
last good entries stay in use, the reason is logged once, and the pause between attempts grows to
eight seconds. For a component that was never read, the error is raised, and cached for a second. A
shard map is read by the caller, because that needs no server.
"""

from shardkit.network.topology.cache import (
    INTERVAL as INTERVAL,
    LONGEST_PAUSE as LONGEST_PAUSE,
    Topology as Topology,
)
from shardkit.network.topology.sources import (
    ConfigServer as ConfigServer,
    FixedMap as FixedMap,
    MapFile as MapFile,
    Reading as Reading,
    Source as Source,
    Values as Values,
)
