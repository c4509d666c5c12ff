"""The topology: each component's entries, as they are now.

Entries come from a source, the config server or a YAML shard map, and are cached. A caller gets the
cached component; about once a second one caller reads it again first, while all others go on with
the cached one:

::

    component("unique") ──► cached less than a second ago ─────────────────► cached Component
                     └────► older: one caller reads it (one MGET), others ─► cached Component
                     └────► never read: all wait for the first reader

A changed entry takes effect within about a second; a hot call costs a look-up and reading the
clock. While the source is down, or holds something broken, the last good entries stay in use and
the reason is logged once. The pause between attempts grows to eight seconds; only the caller that
makes one waits for its timeout. For a component that was never read the error is raised, and cached
for a second as well.
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
