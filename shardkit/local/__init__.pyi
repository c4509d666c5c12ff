from shardkit.local.cluster import LocalCluster as LocalCluster
from shardkit.local.sentinel import LocalSentinel as LocalSentinel
from shardkit.local.server import (
    LocalServer as LocalServer,
    Setting as Setting,
    find_server as find_server,
)
from shardkit.local.servers import (
    LocalServers as LocalServers,
    Ports as Ports,
    Progress as Progress,
)
