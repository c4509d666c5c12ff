"""A social network: users, statuses, home, profile and list timelines, over any number of servers.

::

    network = kit.social(component="social", relation_shards=16)
    ada = network.create_user("ada", "Ada Lovelace")
    alan = network.create_user("alan", "Alan Turing")
    network.follow(ada, alan)
    network.post(alan, "Hello")
    network.home(ada)                   # [Status(message='Hello', login='alan', …)]

What each file is for:

================ ================================================================================
`reading`        what it shows: the first half of this class
`layout`         where keys live, and what ids say
`records`        what is handed out, and how it is stored
`users`          logins and users: one script
`statuses`       statuses: one script to create, one to delete
`relations`      who follows whom: one script, and what follows from it
`counters`       counters that are exact whatever happens
`timelines`      writing to many timelines, reading pages
`fan_out`    jobs for all followers, in passes
`modes`          pushing to few, fetching from accounts with very many followers
`background`           tasks on a queue
`reconcile`      mending what a crash left
================ ================================================================================

After Redis in Action, chapter 8 and section 10.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardkit.operations.operation import Deferred, Driver, Face, Operation, operation
from shardkit.queues.task_queues import TaskQueues
from shardkit.social.base.keys import LIST, USER, KeyLayout
from shardkit.social.base.models import Extra
from shardkit.social.content.cache import WEEK, CachedStatuses
from shardkit.social.content.sqlite_store import StatusStore
from shardkit.social.queries import DEEPEST, OLDER_THAN, SocialReader
from shardkit.social.relations.counters import check_limits
from shardkit.social.repair import ReconcileResult
from shardkit.social.services import Services
from shardkit.structures.base.arguments import check_integer

PARTS = 1024
RELATION_SHARDS = 16
HOME_LIMIT = 1000
PROFILE_LIMIT = 20_000
FOLLOWING_LIMIT = 1000
PASS_SIZE = 1000
FAN_OUT_LIMIT = 10_000


class SocialNetwork(SocialReader[Face]):
    """A social network. Made by ``kit.social``.

    Args:
        driver: what runs its operations.
        name: its name, part of every key.
        users: the component of users and their statuses.
        timelines: the component of timelines, by key.
        followers: the component of relations, by pair of ids.
        parts: in how many parts users live; far more than they will ever have servers.
        relation_shards: how many shards the component of relations has; over one server, or a
            cluster, into how many parts relations are divided.
        home_limit: how many entries a home or list timeline keeps.
        profile_limit: how many a profile timeline keeps.
        following_limit: how many an account may follow, a user may mute, and lists a user may have.
        pass_size: how many followers a pass of syndication reads.
        fan_out_limit: with more followers than this, an account's posts are fetched by readers,
            not pushed to them; 0 to push always.
        queues: where passes after the first go as tasks; without, calls do all passes themselves.
        queue: the queue's name; by default the network's.
        store: where all statuses are kept on disk, so that Redis has the recent ones only; see
            `shardkit.social.content.sqlite_store`. Without, Redis has them all.
        status_ttl: with a store, after how many seconds Redis forgets a status.
        status_limit: with a store, how many statuses Redis has at most; without, any number.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """

    def __init__(
        self,
        driver: Driver,
        name: str = "social",
        *,
        users: str = "users",
        timelines: str = "timelines",
        followers: str = "followers",
        parts: int = PARTS,
        relation_shards: int = RELATION_SHARDS,
        home_limit: int = HOME_LIMIT,
        profile_limit: int = PROFILE_LIMIT,
        following_limit: int = FOLLOWING_LIMIT,
        pass_size: int = PASS_SIZE,
        fan_out_limit: int = FAN_OUT_LIMIT,
        queues: TaskQueues[Any] | None = None,
        queue: str | None = None,
        store: StatusStore | None = None,
        status_ttl: int = WEEK,
        status_limit: int | None = None,
    ) -> None:
        layout = KeyLayout(name, users, timelines, followers, parts, relation_shards)
        check_integer(name, "home_limit", home_limit, 1, DEEPEST)
        check_integer(name, "profile_limit", profile_limit, home_limit, 10**6)
        check_integer(name, "following_limit", following_limit, 1, 10**5)
        check_integer(name, "pass_size", pass_size, 1, DEEPEST)
        check_integer(name, "fan_out_limit", fan_out_limit, 0, 2**53)
        check_limits(name, fan_out_limit)
        cache = None
        if store is not None:
            cache = CachedStatuses(
                store,
                users,
                lambda status: layout.owned("status", status),
                ttl=status_ttl,
                limit=status_limit,
                index=f"recent:{{{name}}}",
            )
        steps = Services(
            layout,
            home_limit=home_limit,
            profile_limit=profile_limit,
            following_limit=following_limit,
            pass_size=pass_size,
            fan_out_limit=fan_out_limit,
            queues=queues,
            queue=queue or name,
            cache=cache,
        )
        super().__init__(driver, layout, steps)

    @property
    def deferred(self) -> SocialNetwork[Deferred]:
        """This with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @property
    def callbacks(self) -> dict[str, Callable[..., Any]]:
        """What a worker of its queue has to call, by name."""
        faced: Any = self  # whose methods are functions or coroutine functions, as its face has it
        background = self._services.background
        return {
            background.resume_name: faced.resume_fan_out,
            background.backfill_name: faced.backfill,
            f"{self.name}.repair": faced.repair,
        }

    # ---- users

    @operation
    def create_user(self, /, login: str, name: str, **extras: Extra) -> Operation[int | None]:
        """Create a user.

        Args:
            login: compared without regard to case, in any script.
            name: the name to show.
            extras: further fields, text or numbers.

        Returns:
            The id; None if the login is taken.

        Raises:
            InvalidArgumentError: an argument does not fit, or an extra would override a field of
                the network's own.

        Cost: one exchange, one script.
        """
        yield from self._open(create=True)
        return (yield from self._services.users.create(login, name, extras))

    # ---- statuses

    @operation
    def post(self, /, uid: int | str, message: str, **extras: Extra) -> Operation[int | None]:
        """Post a status: write it, count it, and bring it to the followers' timelines.

        Args:
            uid: the author.
            message: the text.
            extras: further fields, text or numbers.

        Returns:
            The status's id; None if there is no such user.

        Raises:
            InvalidArgumentError: an argument does not fit, or an extra would override a field of
                the network's own. Nothing was written.
            ShardErrors: a shard failed; if the status was written by then, `repair` brings it to
                its readers.

        Cost: five exchanges for up to ``pass_size`` followers; more passes are tasks. Three for an
        account whose posts are fetched.
        """
        yield from self._open(create=True)
        return (yield from self._services.posts.post(self.layout.id("uid", uid), message, extras))

    @operation
    def delete_status(self, uid: int | str, status: int | str) -> Operation[bool | None]:
        """Delete a status.

        Returns:
            True; None if it does not exist, is another user's, or was deleted already.

        Cost: five exchanges for up to ``pass_size`` followers; more passes are tasks.
        """
        yield from self._open(create=True)
        ids = self.layout.id("uid", uid), self.layout.id("status", status)
        return (yield from self._services.posts.delete(*ids))

    # ---- relations

    @operation
    def follow(self, uid: int | str, other: int | str) -> Operation[bool | None]:
        """Have a user follow another, whose newest posts come into the home timeline.

        Returns:
            True; None if that was so already; False if it is refused: one of the users does not
            exist, one has blocked the other, or ``following_limit`` is reached (which calls that
            run at the same time may exceed by their number).

        Raises:
            InvalidArgumentError: they are the same user.
            ShardErrors: a shard failed; what was half done by then, `repair` ends.

        Cost: five exchanges.
        """
        yield from self._open(create=True)
        ids = self.layout.id("uid", uid), self.layout.id("other", other)
        return (yield from self._services.follows.follow(USER, *ids))

    @operation
    def unfollow(self, uid: int | str, other: int | str) -> Operation[bool | None]:
        """Have a user no longer follow another, whose posts leave the home timeline.

        Returns:
            True; None if the user did not follow.

        Cost: seven exchanges. If the home timeline has less than three quarters of what it may
        have, four more for each 50 followed users, who refill it; after the first 50 as tasks.
        """
        yield from self._open(create=True)
        ids = self.layout.id("uid", uid), self.layout.id("other", other)
        return (yield from self._services.follows.unfollow(USER, *ids))

    @operation
    def block(self, uid: int | str, other: int | str) -> Operation[bool | None]:
        """Block a user: neither follows the other any more, nor can.

        Returns:
            True; None if that was so already; False if one of them does not exist.

        Raises:
            InvalidArgumentError: they are the same user.

        Cost: two exchanges, and for each of the two who followed the other five.
        """
        yield from self._open(create=True)
        ids = self.layout.id("uid", uid), self.layout.id("other", other)
        return (yield from self._services.blocks.block(*ids))

    @operation
    def unblock(self, uid: int | str, other: int | str) -> Operation[bool | None]:
        """Take a block back; True, or None if there was none. Cost: one exchange."""
        yield from self._open(create=True)
        ids = self.layout.id("uid", uid), self.layout.id("other", other)
        return (yield from self._services.blocks.unblock(*ids))

    @operation
    def mute(self, uid: int | str, other: int | str) -> Operation[bool | None]:
        """Leave a user's posts out of pages of one's home timeline.

        Returns:
            True; None if that was so already; False if one of them does not exist, or
            ``following_limit`` are muted already.

        Cost: three exchanges.
        """
        yield from self._open(create=True)
        ids = self.layout.id("uid", uid), self.layout.id("other", other)
        return (yield from self._services.blocks.mute(*ids))

    @operation
    def unmute(self, uid: int | str, other: int | str) -> Operation[bool | None]:
        """Take that back; True, or None if there was nothing. Cost: one exchange."""
        yield from self._open(create=True)
        ids = self.layout.id("uid", uid), self.layout.id("other", other)
        return (yield from self._services.blocks.unmute(*ids))

    # ---- lists

    @operation
    def create_list(self, uid: int | str, name: str) -> Operation[int | None]:
        """Create a list of a user.

        Returns:
            Its id; None if there is no such user, or it has ``following_limit`` lists.

        Cost: one exchange.
        """
        yield from self._open(create=True)
        return (yield from self._services.lists.create(self.layout.id("uid", uid), name))

    @operation
    def follow_into_list(self, list_id: int | str, uid: int | str) -> Operation[bool | None]:
        """Put a user on a list, whose newest posts come into its timeline; see `follow`."""
        yield from self._open(create=True)
        ids = self.layout.id("list_id", list_id), self.layout.id("uid", uid)
        return (yield from self._services.follows.follow(LIST, *ids))

    @operation
    def unfollow_from_list(self, list_id: int | str, uid: int | str) -> Operation[bool | None]:
        """Take a user off a list; see `unfollow`."""
        yield from self._open(create=True)
        ids = self.layout.id("list_id", list_id), self.layout.id("uid", uid)
        return (yield from self._services.follows.unfollow(LIST, *ids))

    # ---- what goes on, and what mends

    @operation
    def resume_fan_out(self, *job: Any) -> Operation[None]:
        """Do the next passes of a job: what its tasks call. Cost: three exchanges a pass."""
        yield from self._open(create=True)
        yield from self._services.background.resume_fan_out(job)

    @operation
    def backfill(self, kind: str, owner: int, places: Sequence[Any] = ()) -> Operation[None]:
        """Go on with refilling a timeline: what its tasks call.

        Args:
            kind: ``user`` or ``list``.
            owner: whose timeline.
            places: how far it has come; begins without.

        Cost: four exchanges.
        """
        yield from self._open(create=True)
        yield from self._services.background.backfill_task(
            kind, self.layout.id("owner", owner), places
        )

    @operation
    def repair(self, older_than: float = OLDER_THAN) -> Operation[int]:
        """End what was begun some time ago and has not ended: a process died, or a shard failed.

        To be called from time to time, by one process or several.

        Args:
            older_than: what began less than so many seconds ago is left alone.

        Returns:
            How many posts, deletions, relations and changes were dealt with.

        Cost: as `pending`, and what each of them costs.
        """
        yield from self._open(create=True)
        notes = yield from self._services.repair.all(older_than, take=True)
        for note in notes:
            yield from self._services.repair.one(note)
        return len(notes)

    @operation
    def reconcile(self, uid: int | str) -> Operation[ReconcileResult | None]:
        """Have what is kept of a user agree with its relations: counters and home timeline.

        For what no note tells of, such as data that a server has lost. Others may go on meanwhile.

        Returns:
            What was changed; None if there is no such user.

        Cost: some sixteen exchanges, four more for each 50 followed users, and six for each account
        whose posts were missing or too many.
        """
        yield from self._open(create=True)
        return (yield from self._services.reconcile.account(USER, self.layout.id("uid", uid)))

    @operation
    def reconcile_list(self, list_id: int | str) -> Operation[ReconcileResult | None]:
        """The same of a list; see `reconcile`."""
        yield from self._open(create=True)
        return (
            yield from self._services.reconcile.account(LIST, self.layout.id("list_id", list_id))
        )
