"""A social network over shards: users, statuses, followers and timelines."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.social.base.models": (
                "BlockResult FollowResult MuteResult ReconcileResult Relation RelationPage "
                "Status TimelineCursor TimelinePage User UserList"
            ),
            "shardkit.social.content.cache": "CachedStatuses",
            "shardkit.social.content.postgresql_store": "PostgreSQLStatusStore",
            "shardkit.social.content.sqlite_store": "SQLiteStatusStore",
            "shardkit.social.content.status_store": "StatusCursor StatusStore",
            "shardkit.social.network": "SocialNetwork",
        },
    )

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
