"""Embedded servers: real server processes for development and tests.

They listen on 127.0.0.1 only, and end with the process that started them, however that ends.

::

    LocalServer        one server                     start, stop, pause, kill, restart
    LocalCluster       a cluster of some masters, with replicas if asked for
    LocalSentinel      a master and replicas, watched by Sentinels
    LocalServers       whatever a shard map describes
"""

from shardkit.local.binary import find_server
from shardkit.local.cluster import LocalCluster
from shardkit.local.config_file import Setting
from shardkit.local.sentinel import LocalSentinel
from shardkit.local.server import LocalServer
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
