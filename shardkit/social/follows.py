"""Following and no longer following, by users and by lists.

What is asked first (are both there, is there room) is asked before anything is written; the answer
can be out of date by then, which for users is harmless, as they stay. The limit on how many an
account follows can be passed by as many calls as run at the same time.
"""

from __future__ import annotations

from shardkit.errors import InvalidArgumentError
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import KeyLayout, RelationKind
from shardkit.social.delivery.background import BackgroundJobs
from shardkit.social.relations.relations import RelationChange, Relations


class Follows:
    """The steps of following.

    Args:
        layout: where the keys are.
        relations: who follows whom.
        work: what goes on afterwards.
        limit: how many an account may follow.
    """

    def __init__(
        self, layout: KeyLayout, relations: Relations, background: BackgroundJobs, limit: int
    ) -> None:
        self._layout = layout
        self._relations = relations
        self._background = background
        self._limit = limit

    def follow(self, kind: RelationKind, first: int, second: int) -> Operation[bool | None]:
        """Have an account follow another; see `SocialNetwork.follow`."""
        if first == second:
            raise InvalidArgumentError(
                f"{self._layout.name}: {first} would follow itself", "give two accounts"
            )
        layout = self._layout
        follower, followed = layout.owned(kind.account, first), layout.owned("user", second)
        replies = yield [
            layout.at_user(follower, "HGET", follower, "following"),
            layout.at_user(followed, "EXISTS", followed),
        ]
        if replies[0] is None or not replies[1] or int(replies[0]) >= self._limit:
            return False
        change = yield from self._relations.change("follow", kind, first, second)
        if not isinstance(change, RelationChange):
            return None if change == 0 else False
        yield from self._finish(kind, first, second, change)
        return True

    def unfollow(self, kind: RelationKind, first: int, second: int) -> Operation[bool | None]:
        """Have an account no longer follow another; see `SocialNetwork.unfollow`."""
        if first == second:
            return None
        change = yield from self._relations.change("unfollow", kind, first, second)
        if not isinstance(change, RelationChange):
            return None
        yield from self._finish(kind, first, second, change)
        yield from self._background.backfill(kind, first, ())
        return True

    def check(self, kind: RelationKind, first: int, second: int) -> Operation[None]:
        """Have everything agree with what holds between two accounts."""
        change = yield from self._relations.look(kind, first, second)
        yield from self._finish(kind, first, second, change)

    def _finish(
        self, kind: RelationKind, first: int, second: int, change: RelationChange
    ) -> Operation[None]:
        counted = yield from self._relations.finish(kind, first, second, change)
        if counted is not None and counted.changed:
            yield from self._background.start_mode_change(second)
