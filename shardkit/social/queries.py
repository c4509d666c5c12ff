"""What a social network shows: users, statuses, pages of timelines, relations, lists.

`shardkit.social.network` adds what changes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardkit.errors import InvalidArgumentError
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.social.base.keys import FOLLOWING, LIST, USER, KeyLayout
from shardkit.social.base.models import (
    Relation,
    Status,
    TimelineCursor,
    TimelinePage,
    User,
    UserList,
)
from shardkit.social.services import Services
from shardkit.structures.base.arguments import check_integer, shown
from shardkit.structures.base.parameters import Metadata, open_all
from shardkit.structures.sorted_set.merged_ranges import range_over

MOST_COUNT = 1000
DEEPEST = 10_000
OLDER_THAN = 60.0


class SocialReader(Structure[Face]):
    """What a social network shows: the first half of `SocialNetwork`.

    Args:
        driver: what runs its operations.
        layout: where its keys are.
        steps: what they are made of.
    """

    def __init__(self, driver: Driver, layout: KeyLayout, steps: Services) -> None:
        super().__init__(driver, layout.users, layout.name)
        self.layout = layout
        self._services = steps
        parameters = {"parts": layout.parts, "relation_shards": layout.relation_shards}
        self.meta = Metadata(layout.home, layout.name, {"kind": "social", **parameters})

    @operation
    def open(self, *, create: bool = False) -> Operation[None]:
        """Compare the parameters with those stored. Other methods do so when they are first called.

        Args:
            create: whether to store them if none are.

        Raises:
            ParameterMismatchError: the network exists with other parameters.

        Cost: one exchange; none once they have been compared.
        """
        yield from self._open(create=create)

    # ---- users and statuses

    @operation
    def get_user(self, uid: int | str) -> Operation[User | None]:
        """Return a user; None if there is none. Cost: one exchange."""
        [user] = yield from self._get_users([uid])
        return user

    @operation
    def get_users(self, uids: Sequence[int | str]) -> Operation[list[User | None]]:
        """Return users in the order of their ids, None for those that are not there.

        Cost: one exchange for 1,000.
        """
        return (yield from self._get_users(uids))

    @operation
    def get_user_by_login(self, login: str) -> Operation[User | None]:
        """Return the user with a login; None if there is none. Cost: two exchanges."""
        yield from self._open()
        uid = yield from self._services.users.id_of(login)
        if uid is None:
            return None
        [user] = yield from self._services.users.get([uid])
        return user

    @operation
    def get_status(self, status: int | str) -> Operation[Status | None]:
        """Return a status; None if there is none. Cost: one exchange."""
        yield from self._open()
        [found] = yield from self._services.statuses.get([self.layout.id("status", status)])
        return found

    @operation
    def get_statuses(self, statuses: Sequence[int | str]) -> Operation[list[Status | None]]:
        """Return statuses in the order of their ids, None for those that are not there.

        Cost: one exchange for 1,000.
        """
        yield from self._open()
        return (
            yield from self._services.statuses.get(
                [self.layout.id("status", each) for each in statuses]
            )
        )

    # ---- timelines

    @operation
    def home(
        self,
        uid: int | str,
        page: int = 1,
        count: int = 30,
        *,
        before: TimelineCursor | None = None,
    ) -> Operation[TimelinePage]:
        """Return a page of a home timeline: what those have posted whom the user follows.

        Args:
            uid: the user.
            page: its number, from 1. A later one costs more: what comes before it is looked at.
            count: how many statuses, 1,000 at most.
            before: the ``cursor`` of the page before, in place of a number: costs the same however
                far back, and repeats nothing when there are new posts.

        Returns:
            Statuses, newest first, as many as were asked for unless the timeline ends. Deleted ones
            and those of muted users are left out.

        Raises:
            InvalidArgumentError: an argument does not fit, such as a page below 1.

        Cost: two exchanges; three if the user follows accounts whose posts are fetched, and one
        more if statuses were left out.
        """
        yield from self._open()
        uid = self.layout.id("uid", uid)
        self._check_page(page, count, before)
        muted = self._services.blocks.muted(uid)
        return (yield from self._services.timelines.home(USER, uid, page, count, before, muted))

    @operation
    def profile(
        self,
        uid: int | str,
        page: int = 1,
        count: int = 30,
        *,
        before: TimelineCursor | None = None,
    ) -> Operation[TimelinePage]:
        """Return a page of what a user has posted; see `home`. Cost: two exchanges."""
        yield from self._open()
        self._check_page(page, count, before)
        uid = self.layout.id("uid", uid)
        return (yield from self._services.timelines.profile(uid, page, count, before))

    @operation
    def list_timeline(
        self,
        list_id: int | str,
        page: int = 1,
        count: int = 30,
        *,
        before: TimelineCursor | None = None,
    ) -> Operation[TimelinePage]:
        """Return a page of a list's timeline; see `home`. Cost: as `home`."""
        yield from self._open()
        self._check_page(page, count, before)
        owner = self.layout.id("list_id", list_id)
        return (yield from self._services.timelines.home(LIST, owner, page, count, before, None))

    # ---- relations and lists

    @operation
    def follows(self, uid: int | str, other: int | str) -> Operation[bool]:
        """Say whether a user follows another. Cost: one exchange."""
        yield from self._open()
        ids = self.layout.id("uid", uid), self.layout.id("other", other)
        [holds] = yield from self._services.relations.holds(USER, [ids])
        return holds

    @operation
    def followers(
        self, uid: int | str, count: int = 100, *, after: Relation | None = None
    ) -> Operation[list[Relation]]:
        """Return those who follow a user, the latest first.

        Args:
            uid: the user.
            count: how many, 10,000 at most.
            after: the last one of the page before.

        Cost: one exchange with all shards of the relations, sometimes two.
        """
        return (yield from self._related(USER.incoming, uid, count, after))

    @operation
    def following(
        self, uid: int | str, count: int = 100, *, after: Relation | None = None
    ) -> Operation[list[Relation]]:
        """Return those whom a user or a list follows, the latest first; see `followers`."""
        return (yield from self._related(FOLLOWING, uid, count, after))

    @operation
    def blocks(self, uid: int | str, other: int | str) -> Operation[bool]:
        """Say whether a user has blocked another. Cost: one exchange."""
        yield from self._open()
        ids = self.layout.id("uid", uid), self.layout.id("other", other)
        return (yield from self._services.blocks.blocks(*ids))

    @operation
    def get_list(self, list_id: int | str) -> Operation[UserList | None]:
        """Return a list; None if there is none. Cost: one exchange."""
        yield from self._open()
        [found] = yield from self._services.lists.get([self.layout.id("list_id", list_id)])
        return found

    @operation
    def lists(self, uid: int | str) -> Operation[list[UserList]]:
        """Return a user's lists, oldest first. Cost: two exchanges."""
        yield from self._open()
        return (yield from self._services.lists.of(self.layout.id("uid", uid)))

    @operation
    def pending(self, older_than: float = OLDER_THAN) -> Operation[list[str]]:
        """Return notes of what was begun so many seconds ago and has not ended.

        Cost: two exchanges, with a script for each part: 1,040 by default.
        """
        yield from self._open()
        return (yield from self._services.repair.all(older_than, take=False))

    # ---- steps that several of them share

    def _open(self, *, create: bool = False) -> Operation[None]:
        if not self.meta.checked:
            yield from open_all([self.meta], create=create)

    def _get_users(self, uids: Sequence[int | str]) -> Operation[list[User | None]]:
        yield from self._open()
        return (yield from self._services.users.get([self.layout.id("uid", uid) for uid in uids]))

    def _related(
        self, what: str, uid: int | str, count: int, after: Relation | None
    ) -> Operation[list[Relation]]:
        yield from self._open()
        check_integer(self.name, "count", count, 1, DEEPEST)
        places = self.layout.places(what, self.layout.id("uid", uid))
        cursor = None if after is None else (after.id, after.version)
        rows = yield from range_over(places, "-inf", "+inf", count, cursor, desc=True)
        return [Relation(int(member), int(version)) for member, version in rows]

    def _check_page(self, page: int, count: int, before: TimelineCursor | None) -> None:
        check_integer(self.name, "count", count, 1, MOST_COUNT)
        check_integer(self.name, "page", page, 1, max(1, DEEPEST // count))
        if before is not None and (page != 1 or not isinstance(before, TimelineCursor)):
            raise InvalidArgumentError(
                f"{self.name}: page={page}, before={shown(before)}",
                "give a page's number, or the cursor of the page before",
            )
