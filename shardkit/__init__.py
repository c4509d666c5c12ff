"""Sharding-aware middleware for Redis and Valkey.

``connect`` and ``aconnect`` open a topology; what they return hands out everything else. See the
README for a tour, and ``shardkit.errors`` for the tree of errors.
"""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.config.entry import Entry
    from shardkit.config.shard_map import ShardMap
    from shardkit.errors import (
        ClosedError,
        CommandRefused,
        ConfigError,
        CrossShardError,
        DamagedDataError,
        ShardErrors,
        ShardFailure,
        ShardKitError,
        ShardUnavailable,
    )
    from shardkit.kit.kit import (
        AsyncShardKit,
        ShardKit,
        aconnect,
        configure,
        connect,
        default_kit,
        redis_connection,
        sharded_connection,
    )
    from shardkit.kit.lua_script import LuaScript, from_json, to_json
    from shardkit.kit.routers import (
        AsyncIdPairShardedConnection,
        AsyncKeyShardedConnection,
        IdPairShardedConnection,
        KeyShardedConnection,
    )
    from shardkit.operations.commands import Coalesced, Columns, Script, ShardOf
    from shardkit.structures.base.server_clock import ServerClock
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.config.entry": "Entry",
            "shardkit.config.shard_map": "ShardMap",
            "shardkit.errors": (
                "ClosedError CommandRefused ConfigError CrossShardError DamagedDataError "
                "ShardErrors ShardFailure ShardKitError ShardUnavailable"
            ),
            "shardkit.kit.kit": (
                "AsyncShardKit ShardKit aconnect configure connect default_kit "
                "redis_connection sharded_connection"
            ),
            "shardkit.kit.lua_script": "LuaScript from_json to_json",
            "shardkit.kit.routers": (
                "AsyncIdPairShardedConnection AsyncKeyShardedConnection "
                "IdPairShardedConnection KeyShardedConnection"
            ),
            "shardkit.operations.commands": "Coalesced Columns Script ShardOf",
            "shardkit.structures.base.server_clock": "ServerClock",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "AsyncIdPairShardedConnection",
    "AsyncKeyShardedConnection",
    "AsyncShardKit",
    "ClosedError",
    "Coalesced",
    "Columns",
    "CommandRefused",
    "ConfigError",
    "CrossShardError",
    "DamagedDataError",
    "Entry",
    "IdPairShardedConnection",
    "KeyShardedConnection",
    "LuaScript",
    "Script",
    "ServerClock",
    "ShardErrors",
    "ShardFailure",
    "ShardKit",
    "ShardKitError",
    "ShardMap",
    "ShardOf",
    "ShardUnavailable",
    "aconnect",
    "configure",
    "connect",
    "default_kit",
    "from_json",
    "redis_connection",
    "sharded_connection",
    "to_json",
]
