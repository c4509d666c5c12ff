"""Following and unfollowing, by users and by lists.

The preconditions (do both exist, is there room) are checked before anything is written. They may be
outdated by then: users are never deleted, so only the limit on how many an account follows can be
exceeded, by as many calls as run at the same time.
"""

from __future__ import annotations

from shardkit.errors import InvalidArgumentError
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import KeyLayout, RelationKind
from shardkit.social.base.models import FollowResult
from shardkit.social.delivery.resumable_jobs import ResumableJobs
from shardkit.social.relations.relations import NO_CHANGE, RelationChange, Relations
from shardkit.structures.base.damage import stored_integer


class Follows:
    """The rules of following.

    Args:
        layout: the network's keys.
        relations: who follows whom.
        jobs: runs mode changes and backfills.
        limit: the most accounts that one may follow.
    """

    def __init__(
        self, layout: KeyLayout, relations: Relations, jobs: ResumableJobs, limit: int
    ) -> None:
        self._layout = layout
        self._relations = relations
        self._jobs = jobs
        self._limit = limit

    def follow(self, kind: RelationKind, first: int, second: int) -> Operation[FollowResult]:
        """Have an account follow another; see `SocialNetwork.follow`."""
        if first == second:
            raise InvalidArgumentError(
                f"{self._layout.name}: {first} would follow itself", "give two accounts"
            )
        layout = self._layout
        follower, followed = layout.owned(kind.account, first), layout.owned("user", second)
        following, exists = yield [
            layout.at_user(follower, "HGET", follower, "following"),
            layout.at_user(followed, "EXISTS", followed),
        ]
        if following is None or not exists:
            return FollowResult.NO_SUCH_USER
        if stored_integer(layout.users, follower, "following", following) >= self._limit:
            [already] = yield from self._relations.exist(kind, [(first, second)])
            return FollowResult.ALREADY_FOLLOWING if already else FollowResult.LIMIT_REACHED
        change = yield from self._relations.change("follow", kind, first, second)
        if not isinstance(change, RelationChange):
            return FollowResult.ALREADY_FOLLOWING if change == NO_CHANGE else FollowResult.BLOCKED
        counter = yield from self._relations.propagate(kind, first, second, change)
        if counter is not None and counter.changed:
            yield from self._jobs.change_mode(second)
        return FollowResult.FOLLOWED

    def unfollow(self, kind: RelationKind, first: int, second: int) -> Operation[bool]:
        """Have an account no longer follow another; see `SocialNetwork.unfollow`."""
        if first == second:
            return False
        change = yield from self._relations.change("unfollow", kind, first, second)
        if not isinstance(change, RelationChange):
            return False
        counter = yield from self._relations.propagate(kind, first, second, change)
        if counter is not None and counter.changed:
            yield from self._jobs.change_mode(second)
        yield from self._jobs.backfill(kind, first, ())
        return True

    def check(self, kind: RelationKind, first: int, second: int) -> Operation[None]:
        """Make everything agree with the relation between two accounts."""
        counter = yield from self._relations.check(kind, first, second)
        if counter is not None and counter.changed:
            yield from self._jobs.change_mode(second)
        [follows] = yield from self._relations.exist(kind, [(first, second)])
        if not follows:
            yield from self._jobs.backfill(kind, first, ())
