"""Sharding-aware middleware for Redis and Valkey.

``connect`` and ``aconnect`` open a topology; what they return hands out everything else. See the
README for a tour, and ``shardkit.errors`` for the tree of errors.
"""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.config.entry import Entry as Entry
    from shardkit.config.shard_map import ShardMap as ShardMap
    from shardkit.errors import (
        BreakerOpenError as BreakerOpenError,
    )
    from shardkit.errors import (
        ClosedError as ClosedError,
    )
    from shardkit.errors import (
        CommandRefused as CommandRefused,
    )
    from shardkit.errors import (
        ConfigError as ConfigError,
    )
    from shardkit.errors import (
        ConfigServerError as ConfigServerError,
    )
    from shardkit.errors import (
        CrossShardError as CrossShardError,
    )
    from shardkit.errors import (
        DamagedDataError as DamagedDataError,
    )
    from shardkit.errors import (
        DeadlineExceeded as DeadlineExceeded,
    )
    from shardkit.errors import (
        InvalidArgumentError as InvalidArgumentError,
    )
    from shardkit.errors import (
        LockLostError as LockLostError,
    )
    from shardkit.errors import (
        LockTimeoutError as LockTimeoutError,
    )
    from shardkit.errors import (
        MissingEntryError as MissingEntryError,
    )
    from shardkit.errors import (
        OperationErrors as OperationErrors,
    )
    from shardkit.errors import (
        OverloadError as OverloadError,
    )
    from shardkit.errors import (
        ShardErrors as ShardErrors,
    )
    from shardkit.errors import (
        ShardFailure as ShardFailure,
    )
    from shardkit.errors import (
        ShardKitError as ShardKitError,
    )
    from shardkit.errors import (
        ShardTimeout as ShardTimeout,
    )
    from shardkit.errors import (
        ShardUnavailable as ShardUnavailable,
    )
    from shardkit.kit.kit import (
        AsyncShardKit as AsyncShardKit,
    )
    from shardkit.kit.kit import (
        ShardKit as ShardKit,
    )
    from shardkit.kit.kit import (
        aconnect as aconnect,
    )
    from shardkit.kit.kit import (
        configure as configure,
    )
    from shardkit.kit.kit import (
        connect as connect,
    )
    from shardkit.kit.kit import (
        default_kit as default_kit,
    )
    from shardkit.kit.kit import (
        redis_connection as redis_connection,
    )
    from shardkit.kit.kit import (
        sharded_connection as sharded_connection,
    )
    from shardkit.kit.lua_script import (
        LuaScript as LuaScript,
    )
    from shardkit.kit.lua_script import (
        from_json as from_json,
    )
    from shardkit.kit.lua_script import (
        to_json as to_json,
    )
    from shardkit.kit.routers import (
        AsyncIdPairShardedConnection as AsyncIdPairShardedConnection,
    )
    from shardkit.kit.routers import (
        AsyncKeyShardedConnection as AsyncKeyShardedConnection,
    )
    from shardkit.kit.routers import (
        IdPairShardedConnection as IdPairShardedConnection,
    )
    from shardkit.kit.routers import (
        KeyShardedConnection as KeyShardedConnection,
    )
    from shardkit.operations.commands import (
        Coalesced as Coalesced,
    )
    from shardkit.operations.commands import (
        Columns as Columns,
    )
    from shardkit.operations.commands import (
        Script as Script,
    )
    from shardkit.operations.commands import (
        ShardOf as ShardOf,
    )
    from shardkit.structures.base.server_clock import ServerClock as ServerClock
else:
    __getattr__, __dir__ = lazy_names(__name__)

__version__ = "0.1.0"
