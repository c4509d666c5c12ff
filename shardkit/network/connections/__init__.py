"""redis-py's pools and connections, made safe.

redis-py 8 repeats a command up to ten times when no answer comes in time: an INCR sent to a stalled
server was applied twice, and a BLPOP of eight seconds failed after 59. Our connections

- never repeat a command, unless the entry asks for it (``retries``);
- wait for a blocking command as long as it blocks, plus the socket timeout;
- use RESP2, unless the entry says otherwise, so that no push message comes between replies;
- belong to a pool that can drain: connections in use stay usable, and are closed on release.

They use redis-py's documented extension points, ``connection_class`` and ``connection_pool``.
`shardkit.network.connections.redis_private` has everything else that they need of redis-py.
"""

from shardkit.network.connections.connector import Connector

__all__ = ["Connector"]
