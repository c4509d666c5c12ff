"""redis-py's pools and connections, made safe.

redis-py 8 repeats a command up to ten times when the answer does not come in time: an INCR sent to
a server that stood still for some seconds was applied twice, and a BLPOP of eight seconds failed
after 59. So the connections that we build

- never repeat a command by themselves (an entry may ask for it: ``retries``);
- wait for a blocking command as long as it blocks, and the socket timeout on top;
- speak RESP2, unless the entry says otherwise, so that no push message comes between replies;
- belong to a pool that can drain: it goes on serving whoever holds it, and closes each connection
  as it comes back.

They use redis-py's documented extension points, ``connection_class`` and ``connection_pool``; what
more they need of redis-py is in `shardkit.network.connections.redis_private`.
"""

from shardkit.network.connections.connection import (
    INCOMPLETE,
    READ_BYTES,
    ReplyParser,
    extended_timeout,
    is_reusable,
    read_replies_of,
    round_trip,
    timeout_for,
)
from shardkit.network.connections.connector import Connector

__all__ = [
    "INCOMPLETE",
    "READ_BYTES",
    "Connector",
    "ReplyParser",
    "extended_timeout",
    "is_reusable",
    "read_replies_of",
    "round_trip",
    "timeout_for",
]
