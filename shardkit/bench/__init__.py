"""``shardkit bench``: what structures take and save on one's own machine and servers.

Figures are of one run: bytes are ``used_memory`` of a fresh server less that of the empty one, and
speeds are compared with the plain command's in the same minute.
"""
