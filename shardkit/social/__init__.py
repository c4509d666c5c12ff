"""A social network over shards: users, statuses, followers and timelines."""

from shardkit.social.base.models import (
    BlockResult,
    FollowResult,
    MuteResult,
    ReconcileResult,
    Relation,
    RelationPage,
    Status,
    TimelineCursor,
    TimelinePage,
    User,
    UserList,
)
from shardkit.social.content.cache import CachedStatuses
from shardkit.social.content.postgresql_store import PostgreSQLStatusStore
from shardkit.social.content.sqlite_store import SQLiteStatusStore
from shardkit.social.content.status_store import StatusCursor, StatusStore
from shardkit.social.network import SocialNetwork

__all__ = [
    "BlockResult",
    "CachedStatuses",
    "FollowResult",
    "MuteResult",
    "PostgreSQLStatusStore",
    "ReconcileResult",
    "Relation",
    "RelationPage",
    "SQLiteStatusStore",
    "SocialNetwork",
    "Status",
    "StatusCursor",
    "StatusStore",
    "TimelineCursor",
    "TimelinePage",
    "User",
    "UserList",
]
