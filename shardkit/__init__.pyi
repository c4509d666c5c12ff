from shardkit.config.entry import Entry as Entry
from shardkit.config.shard_map import ShardMap as ShardMap
from shardkit.errors import (
    BreakerOpenError as BreakerOpenError,
    ClosedError as ClosedError,
    CommandRefused as CommandRefused,
    ConfigError as ConfigError,
    ConfigServerError as ConfigServerError,
    CrossShardError as CrossShardError,
    DamagedDataError as DamagedDataError,
    DeadlineExceeded as DeadlineExceeded,
    InvalidArgumentError as InvalidArgumentError,
    LockLostError as LockLostError,
    LockTimeoutError as LockTimeoutError,
    MissingEntryError as MissingEntryError,
    OperationErrors as OperationErrors,
    OverloadError as OverloadError,
    ShardErrors as ShardErrors,
    ShardFailure as ShardFailure,
    ShardKitError as ShardKitError,
    ShardTimeout as ShardTimeout,
    ShardUnavailable as ShardUnavailable,
)
from shardkit.kit.kit import (
    AsyncShardKit as AsyncShardKit,
    ShardKit as ShardKit,
    aconnect as aconnect,
    cached as cached,
    configure as configure,
    connect as connect,
    default_kit as default_kit,
    redis_connection as redis_connection,
    sharded_connection as sharded_connection,
)
from shardkit.kit.lua_script import (
    LuaScript as LuaScript,
    from_json as from_json,
    to_json as to_json,
)
from shardkit.kit.routers import (
    AsyncIdPairShardedConnection as AsyncIdPairShardedConnection,
    AsyncKeyShardedConnection as AsyncKeyShardedConnection,
    IdPairShardedConnection as IdPairShardedConnection,
    KeyShardedConnection as KeyShardedConnection,
)
from shardkit.structures.base.server_clock import ServerClock as ServerClock

__version__: str
