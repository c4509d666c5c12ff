"""The topology: each component's entries, as they are now.

Entries come from a source, the config server or a YAML shard map, and are kept. Whoever asks for a
component gets what is kept; about once a second one of those who ask reads it again first, while
all others go on with what is known:

::

    component("unique") ──► known, younger than a second ──────────────────► kept Component
                     └────► older: one caller reads it (one MGET), others ─► kept Component
                     └────► never seen: all wait for the one who reads it

A changed entry is live within about a second, and a hot call costs a look-up and a glance at the
clock. When the source is away, or holds something broken, the last good entries stay in use and the
reason is logged once. While it is away, the pause between attempts grows to eight seconds; whoever
makes one waits for the source's time-out, all others do not. A component that was never seen cannot
be served: the reason is raised, and known for a second as an entry would be.
"""

from shardkit.topology.cache import INTERVAL, LONGEST_PAUSE, Topology
from shardkit.topology.sources import ConfigServer, FixedMap, MapFile, Reading, Source, Values

__all__ = [
    "INTERVAL",
    "LONGEST_PAUSE",
    "ConfigServer",
    "FixedMap",
    "MapFile",
    "Reading",
    "Source",
    "Topology",
    "Values",
]
