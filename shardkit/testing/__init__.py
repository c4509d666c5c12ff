"""For users' own tests: a pytest plugin, a shard map's servers in memory, and the simulator.

Exports are imported on first use, because every pytest run loads the plugin.
"""

from shardkit.lazy_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
