"""A social network over shards: users, statuses, followers and timelines."""

from shardkit.social.base.models import Relation, Status, TimelinePage, User, UserList
from shardkit.social.content.cache import CachedStatuses
from shardkit.social.content.sqlite_store import SQLiteStatusStore, StatusStore
from shardkit.social.network import SocialNetwork

__all__ = [
    "CachedStatuses",
    "Relation",
    "SQLiteStatusStore",
    "SocialNetwork",
    "Status",
    "StatusStore",
    "TimelinePage",
    "User",
    "UserList",
]
