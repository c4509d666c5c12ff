"""``shardkit bench memory``: the memory and speed of structures, on your own machine and servers.

All figures come from one run: bytes are the growth of ``used_memory`` on an empty server, and
speeds are compared with those of plain commands, measured at the same time.
"""
