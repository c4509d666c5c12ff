"""What operators do with a fleet, in Python: who is connected, what is big, commands everywhere.

Each takes components and queries all their servers in parallel, as `shardkit` commands do. See
docs/operations.md.
"""

from shardkit.admin.check import CheckFinding, CheckReport, check
from shardkit.admin.client_list import ClientProcess, connected_clients
from shardkit.admin.execute import execute
from shardkit.admin.keys import BigKey, biggest_keys

__all__ = [
    "BigKey",
    "CheckFinding",
    "CheckReport",
    "ClientProcess",
    "biggest_keys",
    "check",
    "connected_clients",
    "execute",
]
