"""A social network over shards: users, statuses, followers and timelines."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.social.models import (
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
    from shardkit.social.network import SocialNetwork
    from shardkit.social.sql_stores import PostgreSQLStatusStore, SQLiteStatusStore
    from shardkit.social.status_cache import CachedStatuses, StatusCursor, StatusStore
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.social.models": (
                "BlockResult FollowResult MuteResult ReconcileResult Relation RelationPage "
                "Status TimelineCursor TimelinePage User UserList"
            ),
            "shardkit.social.sql_stores": "PostgreSQLStatusStore SQLiteStatusStore",
            "shardkit.social.status_cache": "CachedStatuses StatusCursor StatusStore",
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
