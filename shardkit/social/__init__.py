"""A social network over shards: users, statuses, followers and timelines."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.social.models import (
        BlockResult as BlockResult,
    )
    from shardkit.social.models import (
        FollowResult as FollowResult,
    )
    from shardkit.social.models import (
        MuteResult as MuteResult,
    )
    from shardkit.social.models import (
        ReconcileResult as ReconcileResult,
    )
    from shardkit.social.models import (
        Relation as Relation,
    )
    from shardkit.social.models import (
        RelationPage as RelationPage,
    )
    from shardkit.social.models import (
        Status as Status,
    )
    from shardkit.social.models import (
        TimelineCursor as TimelineCursor,
    )
    from shardkit.social.models import (
        TimelinePage as TimelinePage,
    )
    from shardkit.social.models import (
        User as User,
    )
    from shardkit.social.models import (
        UserList as UserList,
    )
    from shardkit.social.network import SocialNetwork as SocialNetwork
    from shardkit.social.sql_stores import (
        PostgreSQLStatusStore as PostgreSQLStatusStore,
    )
    from shardkit.social.sql_stores import (
        SQLiteStatusStore as SQLiteStatusStore,
    )
    from shardkit.social.status_cache import (
        CachedStatuses as CachedStatuses,
    )
    from shardkit.social.status_cache import (
        StatusCursor as StatusCursor,
    )
    from shardkit.social.status_cache import (
        StatusStore as StatusStore,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
