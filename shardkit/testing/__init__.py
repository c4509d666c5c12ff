"""For users' own tests: a pytest plugin, and the servers of a shard map in memory.

Nothing is imported here: every pytest run loads the plugin.
"""
