from shardkit.social.models import (
    BlockResult as BlockResult,
    FollowResult as FollowResult,
    MuteResult as MuteResult,
    ReconcileResult as ReconcileResult,
    Relation as Relation,
    RelationPage as RelationPage,
    Status as Status,
    TimelineCursor as TimelineCursor,
    TimelinePage as TimelinePage,
    User as User,
    UserList as UserList,
)
from shardkit.social.network import (
    SocialNetwork as SocialNetwork,
    SocialParameters as SocialParameters,
)
from shardkit.social.sql_stores import (
    PostgreSQLStatusStore as PostgreSQLStatusStore,
    SQLiteStatusStore as SQLiteStatusStore,
)
from shardkit.social.status_cache import (
    CachedStatuses as CachedStatuses,
    StatusCursor as StatusCursor,
    StatusStore as StatusStore,
)
