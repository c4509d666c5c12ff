"""Embedded servers: real server processes for development and tests.

They listen on 127.0.0.1 only, and always end with the process that started them.
"""

from shardkit.local.cluster import LocalCluster
from shardkit.local.sentinel import LocalSentinel
from shardkit.local.server import LocalServer, Setting, find_server
from shardkit.local.servers import LocalServers, Ports, Progress

__all__ = [
    "LocalCluster",
    "LocalSentinel",
    "LocalServer",
    "LocalServers",
    "Ports",
    "Progress",
    "Setting",
    "find_server",
]
