"""A social network: users, statuses, home, profile and list timelines, over any number of servers.

docs/social.md shows its use, and lists its keys. This class checks arguments, writes users, lists,
blocks and mutes, and calls what the other files have: statuses (`status_cache`), timelines,
relations with exact counters, deliveries of posts, repair, and a check.

A login determines the part of its user, so one script reserves the login and writes the user: none
is ever without its user. A list resembles a user: its id comes from the same sequence, it follows
accounts, and their posts are written to its timeline.

A block lives with the relations of the pair, so one script records it and ends both relations, and
a blocked user cannot follow. Muting affects reading only: the posts of a muted account stay in the
home timeline, and its pages leave them out. So unmuting brings them back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar
from zlib import crc32

from shardkit.errors import (
    CrossShardError,
    DamagedDataError,
    InvalidArgumentError,
    NewerFormatError,
    ShardErrors,
    counted,
)
from shardkit.operations.arguments import Seconds, in_seconds, shown
from shardkit.operations.commands import Command, Locate, raise_failures
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.queues.task_queues import TaskQueues
from shardkit.social.check import NetworkCheck
from shardkit.social.delivery import Delivery, FanOut
from shardkit.social.keys import FOLLOWING, IDEMPOTENCY_TTL, KINDS, LIST, USER, KeyLayout
from shardkit.social.models import (
    USER_FIELDS,
    BlockResult,
    Extra,
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
    check_text,
    flat_extras,
    list_of,
    login_key,
    read_records,
    stored_ids,
    user_of,
)
from shardkit.social.relations import Relations, relation_note
from shardkit.social.repair import PendingRepair
from shardkit.social.status_cache import READ_AT_ONCE, WEEK, CachedStatuses, Statuses, StatusStore
from shardkit.social.timelines import Timelines, newest_rows
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.check import Damage
from shardkit.structures.base.parameters import Metadata, open_all, opened
from shardkit.structures.base.partitioned import check_parameters, restore_parameters

P = ParamSpec("P")
T = TypeVar("T")

PARTS = 1024
RELATION_SHARDS = 16
HOME_LIMIT = 1000
PROFILE_LIMIT = 20_000
FOLLOWING_LIMIT = 1000
PASS_SIZE = 1000
FAN_OUT_LIMIT = 10_000
MOST_STATUSES = 1000  # of one page
DEEPEST = 10_000  # entries that a page by number may skip, or a page of relations may have
OLDER_THAN = 60.0
LONGEST_LIST_NAME = 200


def _opening(
    steps: Callable[Concatenate[Any, P], Operation[T]], *, create: bool
) -> operation[P, T]:
    @wraps(steps)
    def method(self: SocialNetwork[Any], /, *args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        return opened(steps(self, *args, **kwargs), partial(self._open, create=create))

    return operation(method)


# Operations that compare the parameters with those stored, or store them, before anything is sent.
_reads = partial(_opening, create=False)
_writes = partial(_opening, create=True)


class SocialParameters(TypedDict, total=False):
    """The parameters of `SocialNetwork`, except its name and components."""

    parts: int
    relation_parts: int
    home_limit: int
    profile_limit: int
    following_limit: int
    pass_size: int
    fan_out_limit: int
    queues: TaskQueues[Any] | None
    queue: str | None
    store: StatusStore | None
    status_ttl: int | timedelta
    status_limit: int | None


class SocialNetwork(Structure[Face]):
    """A social network. Made by ``kit.social``.

    Args:
        name: the network's name, part of every key.
        users: the component for users and their statuses.
        timelines: the component for timelines, by key.
        followers: the component for relations, by pair of ids.
        parts: the number of parts that users are divided into; far more than the servers that
            there will ever be.
        relation_parts: the number of parts that relations are divided into; if their component is
            sharded, its number of shards.
        home_limit: entries that a home or list timeline keeps.
        profile_limit: entries that a profile timeline keeps.
        following_limit: the most accounts that one may follow, users that one may mute, and lists
            that a user may have.
        pass_size: followers that one pass of a fan-out reads.
        fan_out_limit: above this many followers, readers fetch an account's posts instead of
            having them pushed; 0 to push always.
        queues: where passes after the first are queued as tasks; without it, calls do all passes
            themselves.
        queue: the queue's name; by default the network's.
        store: stores all statuses on disk, so that Redis holds the recent ones only; see
            `shardkit.social.StatusStore`. Without it, Redis holds all of them.
        status_ttl: with a store, the seconds after which Redis drops a status.
        status_limit: with a store, the most statuses that Redis holds; by default any number.

    Raises:
        InvalidArgumentError: an argument is out of range.

    Calls raise ParameterMismatchError if the network was created with other parameters.
    """

    deferred: DeferredFace[SocialNetwork[Deferred]]

    def __init__(
        self,
        driver: Driver,
        name: str = "social",
        *,
        users: str = "users",
        timelines: str = "timelines",
        followers: str = "followers",
        parts: int = PARTS,
        relation_parts: int = RELATION_SHARDS,
        home_limit: int = HOME_LIMIT,
        profile_limit: int = PROFILE_LIMIT,
        following_limit: int = FOLLOWING_LIMIT,
        pass_size: int = PASS_SIZE,
        fan_out_limit: int = FAN_OUT_LIMIT,
        queues: TaskQueues[Any] | None = None,
        queue: str | None = None,
        store: StatusStore | None = None,
        status_ttl: int | timedelta = WEEK,
        status_limit: int | None = None,
    ) -> None:
        layout = KeyLayout(name, users, timelines, followers, parts, relation_parts)
        check_integer(name, "home_limit", home_limit, 1, DEEPEST)
        check_integer(name, "profile_limit", profile_limit, home_limit, 10**6)
        check_integer(name, "following_limit", following_limit, 1, 10**5)
        check_integer(name, "pass_size", pass_size, 1, DEEPEST)
        super().__init__(driver, users, name)
        self.layout = layout
        parameters = {"kind": "social", "parts": parts, "relation_shards": relation_parts}
        self.meta = Metadata(layout.home, name, parameters)
        self.meta.leased = True
        counts = [layout.of_part("ids", part) for part in range(parts)]
        self.meta.data_keys = lambda: [(users, key) for key in counts]
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
        # The services keep no state, so all faces share them.
        self._following_limit = following_limit
        self._statuses = Statuses(layout, cache)
        self._timelines = Timelines(layout, self._statuses, home_limit, profile_limit)
        self._relations = Relations(layout, self._timelines, fan_out_limit)
        fan_out = FanOut(layout, self._statuses, self._timelines, self._relations, pass_size)
        self._delivery = Delivery(
            layout,
            self._statuses,
            self._timelines,
            self._relations,
            fan_out,
            queues,
            queue or name,
            following_limit,
        )
        self._repair = PendingRepair(layout, self._relations, self._delivery)
        self._check = NetworkCheck(layout, self._statuses, profile_limit)

    @property
    def callbacks(self) -> dict[str, Callable[..., Any]]:
        """The functions that a worker of this network's queue needs, by task name."""
        # Bound to this face: functions on a blocking kit, coroutine functions on an async one.
        face: Any = self
        return {
            f"{self.name}.resume_fan_out": face.resume_fan_out,
            f"{self.name}.backfill": face.backfill,
            f"{self.name}.repair": face.repair,
        }

    @operation
    def open(self, *, create: bool = False) -> Operation[None]:
        """Compare the parameters with those stored; ``create`` stores them if none are.

        Every other method does so on its first call. Cost: one exchange; none once they have been
        compared.
        """
        yield from self._open(create=create)

    # ---- users

    @_writes
    def create_user(
        self, /, login: str, name: str, *, idempotency_key: str | None = None, **extras: Extra
    ) -> Operation[int | None]:
        """Create a user.

        Args:
            login: unique; compared without regard to case, in any script.
            name: the displayed name.
            idempotency_key: text that identifies this call, such as a UUID. If a call failed and
                may have created the user, another call with the same key returns the user's id.
            extras: further fields, text or numbers.

        Returns:
            The user's id; None if the login is taken, unless by a call with the same key.

        Raises:
            InvalidArgumentError: an argument is out of range, or an extra has the name of a field
                that the network sets.

        Cost: one exchange, one script.
        """
        layout = self.layout
        compared, part = self._login(login)
        check_text(self.name, "name", name)
        fields = ["login", login, "name", name, *flat_extras(self.name, extras, USER_FIELDS)]
        keys = [layout.of_part("logins", part), layout.of_part("ids", part)]
        once = layout.check_idempotency_key(idempotency_key)
        arguments = (*layout.new_record(part), compared, once, *fields)
        [uid] = yield [lua_call(layout.users, "social/create_user", keys, arguments)]
        return None if uid is None else stored_ids(layout.users, keys[0], [uid])[0]

    @_reads
    def get_user(self, uid: int | str) -> Operation[User | None]:
        """Return a user; None if there is none. Cost: one exchange."""
        [user] = yield from read_records(self.layout, "user", self._ids(uid=uid), user_of)
        return user

    @_reads
    def get_users(self, uids: Sequence[int | str]) -> Operation[list[User | None]]:
        """Return users in the order of their ids, None for unknown ids.

        Cost: one exchange for each 1,000.
        """
        users: list[User | None] = []
        for page in pages([self.layout.id("uid", uid) for uid in uids], READ_AT_ONCE):
            users += yield from read_records(self.layout, "user", page, user_of)
        return users

    @_reads
    def get_user_by_login(self, login: str) -> Operation[User | None]:
        """Return the user with a login; None if there is none. Cost: two exchanges."""
        layout = self.layout
        compared, part = self._login(login)
        key = layout.of_part("logins", part)
        [uid] = yield [layout.at_user(key, "HGET", key, compared)]
        if uid is None:
            return None
        ids = stored_ids(layout.users, key, [uid])
        [user] = yield from read_records(layout, "user", ids, user_of)
        return user

    # ---- statuses

    @_writes
    def post(
        self,
        /,
        uid: int | str,
        message: str,
        *,
        idempotency_key: str | None = None,
        **extras: Extra,
    ) -> Operation[int | None]:
        """Post a status: store it, count it, and write it to the followers' timelines.

        Args:
            uid: the author.
            idempotency_key: text that identifies this call, such as a UUID. For a day, another call
                of the same user with the same key posts nothing more. It finishes what the first
                call left half done, and returns its status's id.
            extras: further fields, text or numbers.

        Returns:
            The status's id; None if there is no such user.

        Raises:
            InvalidArgumentError: an argument is out of range, or an extra has the name of a field
                that the network sets. Nothing was written.
            ShardErrors: a shard failed. If the status was stored by then, ``ids`` of the error has
                its id, and `repair` delivers it. Without ``ids`` it may have been stored: call
                again only with the same ``idempotency_key``.

        Cost: five exchanges for up to ``pass_size`` followers; further passes are tasks. Three for
        an account whose posts are fetched.
        """
        author = self.layout.id("uid", uid)
        return (yield from self._delivery.post(author, message, extras, idempotency_key))

    @_writes
    def delete_status(self, uid: int | str, status: int | str) -> Operation[bool]:
        """Delete a status of a user; False if it is another's, deleted already, or does not exist.

        Cost: as `post`.
        """
        return (yield from self._delivery.delete(*self._ids(uid=uid, status=status)))

    @_reads
    def get_status(self, status: int | str) -> Operation[Status | None]:
        """Return a status; None if there is none. Cost: one exchange."""
        [result] = yield from self._statuses.get(self._ids(status=status))
        return result

    @_reads
    def get_statuses(self, statuses: Sequence[int | str]) -> Operation[list[Status | None]]:
        """Return statuses in the order of their ids, None for unknown ids.

        Cost: one exchange for each 1,000.
        """
        ids = [self.layout.id("status", id_) for id_ in statuses]
        return (yield from self._statuses.get(ids))

    # ---- timelines

    @_reads
    def home(
        self,
        uid: int | str,
        page: int = 1,
        limit: int = 30,
        *,
        cursor: TimelineCursor | None = None,
    ) -> Operation[TimelinePage]:
        """Return a page of a home timeline: the posts of the accounts that the user follows.

        Args:
            page: the page's number, from 1. Later pages cost more: they read all entries before.
            limit: the most statuses to return, up to 1,000.
            cursor: the previous page's ``cursor``, instead of a number. Then every page costs the
                same, and new posts do not shift the pages.

        Returns:
            Statuses, newest first, ``limit`` of them unless the timeline ends. Deleted statuses and
            those of muted users are left out.

        Cost: two exchanges; three if the user follows accounts whose posts are fetched, and one
        more if statuses were left out.
        """
        uid = self.layout.id("uid", uid)
        self._check_page(page, limit, cursor)
        key = self.layout.owned("muted", uid)
        muted = self.layout.at_user(key, "SMEMBERS", key)
        return (yield from self._timelines.home(USER, uid, page, limit, cursor, muted))

    @_reads
    def profile(
        self,
        uid: int | str,
        page: int = 1,
        limit: int = 30,
        *,
        cursor: TimelineCursor | None = None,
    ) -> Operation[TimelinePage]:
        """Return a page of a user's own posts; see `home`. Cost: two exchanges."""
        self._check_page(page, limit, cursor)
        uid = self.layout.id("uid", uid)
        return (yield from self._timelines.profile(uid, page, limit, cursor))

    @_reads
    def list_timeline(
        self,
        list_id: int | str,
        page: int = 1,
        limit: int = 30,
        *,
        cursor: TimelineCursor | None = None,
    ) -> Operation[TimelinePage]:
        """Return a page of a list's timeline; see `home`. Cost: as `home`."""
        self._check_page(page, limit, cursor)
        owner = self.layout.id("list_id", list_id)
        return (yield from self._timelines.home(LIST, owner, page, limit, cursor, None))

    # ---- following

    @_writes
    def follow(self, uid: int | str, other: int | str) -> Operation[FollowResult]:
        """Have a user follow another, whose newest posts enter the home timeline.

        Returns:
            The result, true if the user did not follow before. Concurrent calls may exceed
            ``following_limit`` by their number.

        Raises:
            InvalidArgumentError: both are the same user.
            ShardErrors: a shard failed; `repair` finishes a half-done change.

        Cost: five exchanges.
        """
        return (yield from self._delivery.follow(USER, *self._ids(uid=uid, other=other)))

    @_writes
    def unfollow(self, uid: int | str, other: int | str) -> Operation[bool]:
        """Have a user no longer follow another; return False if the user did not follow.

        The other's posts leave the home timeline.

        Cost: seven exchanges. A home timeline with fewer entries than its limit is then filled from
        the profiles of followed users: four exchanges for each 50, after the first 50 as tasks.
        """
        return (yield from self._delivery.unfollow(USER, *self._ids(uid=uid, other=other)))

    @_reads
    def follows(self, uid: int | str, other: int | str) -> Operation[bool]:
        """Return whether a user follows another. Cost: one exchange."""
        first, second = self._ids(uid=uid, other=other)
        [follows] = yield from self._relations.exist(USER, [(first, second)])
        return follows

    @_reads
    def followers(
        self, uid: int | str, limit: int = 100, *, cursor: Relation | None = None
    ) -> Operation[RelationPage]:
        """Return a page of a user's followers, latest first, at most 10,000.

        ``cursor`` is the previous page's. Cost: one exchange with all shards of the relations,
        sometimes two.
        """
        return (yield from self._related(USER.incoming, uid, limit, cursor))

    @_reads
    def following(
        self, uid: int | str, limit: int = 100, *, cursor: Relation | None = None
    ) -> Operation[RelationPage]:
        """Return a page of the users that a user or a list follows; see `followers`."""
        return (yield from self._related(FOLLOWING, uid, limit, cursor))

    # ---- blocks and mutes

    @_writes
    def block(self, uid: int | str, other: int | str) -> Operation[BlockResult]:
        """Block a user: neither of the two follows the other any more, nor can.

        Raises:
            InvalidArgumentError: both are the same user.

        Cost: two exchanges, and five for each of the two that followed the other.
        """
        uid, other = self._ids(uid=uid, other=other)
        if not (yield from self._exist(uid, other)):
            return BlockResult.NO_SUCH_USER
        layout = self.layout
        part = layout.part(uid, other)
        keys = [
            layout.of_relations("clock", part),
            layout.of_relations("pending", part),
            layout.relation("blocked", part, uid),
            layout.relation(FOLLOWING, part, uid),
            layout.relation(USER.incoming, part, uid),
            layout.relation(FOLLOWING, part, other),
            layout.relation(USER.incoming, part, other),
        ]
        sent = (uid, other, relation_note(USER, uid, other), relation_note(USER, other, uid))
        to = layout.relations(part)
        [[new, followed, was_followed]] = yield [lua_call(to, "social/block", keys, sent)]
        if followed:
            yield from self._delivery.check(USER, uid, other)
        if was_followed:
            yield from self._delivery.check(USER, other, uid)
        return BlockResult.BLOCKED if new else BlockResult.ALREADY_BLOCKED

    @_writes
    def unblock(self, uid: int | str, other: int | str) -> Operation[bool]:
        """Remove a block; return whether there was one. Cost: one exchange."""
        [removed] = yield [self._at_block("ZREM", *self._ids(uid=uid, other=other))]
        return bool(removed)

    @_reads
    def blocks(self, uid: int | str, other: int | str) -> Operation[bool]:
        """Return whether a user has blocked another. Cost: one exchange."""
        [version] = yield [self._at_block("ZSCORE", *self._ids(uid=uid, other=other))]
        return version is not None

    @_writes
    def mute(self, uid: int | str, other: int | str) -> Operation[MuteResult]:
        """Leave another user's posts out of the pages of a user's home timeline.

        Raises:
            InvalidArgumentError: both are the same user.

        Cost: three exchanges.
        """
        uid, other = self._ids(uid=uid, other=other)
        if not (yield from self._exist(uid, other)):
            return MuteResult.NO_SUCH_USER
        layout, key = self.layout, self.layout.owned("muted", uid)
        size, muted = yield [
            layout.at_user(key, "SCARD", key),
            layout.at_user(key, "SISMEMBER", key, other),
        ]
        if size >= self._following_limit and not muted:
            return MuteResult.LIMIT_REACHED
        [added] = yield [Command(layout.users, key, ("SADD", key, other))]
        return MuteResult.MUTED if added else MuteResult.ALREADY_MUTED

    @_writes
    def unmute(self, uid: int | str, other: int | str) -> Operation[bool]:
        """Show a user's posts again; return whether they were muted. Cost: one exchange."""
        uid, other = self._ids(uid=uid, other=other)
        key = self.layout.owned("muted", uid)
        [removed] = yield [Command(self.layout.users, key, ("SREM", key, other))]
        return bool(removed)

    # ---- lists

    @_writes
    def create_list(
        self, uid: int | str, name: str, *, idempotency_key: str | None = None
    ) -> Operation[int | None]:
        """Create a list of a user, and return its id.

        Another call within a day with the same ``idempotency_key``, text that identifies the call,
        creates nothing more, and returns the id.

        Returns:
            The list's id; None if there is no such user, or it has ``following_limit`` lists.

        Cost: one exchange.
        """
        uid, layout = self.layout.id("uid", uid), self.layout
        if not check_text(self.name, "name", name) or len(name) > LONGEST_LIST_NAME:
            raise InvalidArgumentError(
                f"{self.name}: a list's name of {counted(len(name), 'character')}",
                f"give 1 to {LONGEST_LIST_NAME}",
            )
        keys = [layout.owned("user", uid), layout.near("ids", uid), layout.owned("lists", uid)]
        keys += layout.once("list", uid, idempotency_key)
        limit = self._following_limit
        arguments = (*layout.new_record(uid), limit, uid, name, IDEMPOTENCY_TTL)
        [list_id] = yield [lua_call(layout.users, "social/create_list", keys, arguments)]
        return int(list_id) if list_id else None

    @_reads
    def get_list(self, list_id: int | str) -> Operation[UserList | None]:
        """Return a list; None if there is none. Cost: one exchange."""
        ids = self._ids(list_id=list_id)
        [result] = yield from read_records(self.layout, "list", ids, list_of)
        return result

    @_reads
    def lists(self, uid: int | str) -> Operation[list[UserList]]:
        """Return a user's lists, oldest first. Cost: two exchanges."""
        layout = self.layout
        key = layout.owned("lists", layout.id("uid", uid))
        [texts] = yield [layout.at_user(key, "ZRANGE", key, 0, -1)]
        ids = stored_ids(layout.users, key, texts)
        lists = yield from read_records(layout, "list", ids, list_of)
        return [row for row in lists if row is not None]

    @_writes
    def follow_into_list(self, list_id: int | str, uid: int | str) -> Operation[FollowResult]:
        """Put a user on a list, whose timeline gets the newest posts; see `follow`."""
        return (yield from self._delivery.follow(LIST, *self._ids(list_id=list_id, uid=uid)))

    @_writes
    def unfollow_from_list(self, list_id: int | str, uid: int | str) -> Operation[bool]:
        """Remove a user from a list; see `unfollow`."""
        return (yield from self._delivery.unfollow(LIST, *self._ids(list_id=list_id, uid=uid)))

    # ---- tasks and repair

    @_writes
    def resume_fan_out(self, *job: Any) -> Operation[None]:
        """Do the next passes of a job, given its fields; tasks on the queue call this.

        Cost: three exchanges a pass.

        Raises:
            NewerFormatError: a later release queued this, in a form that this one cannot read.
        """
        yield from self._delivery.resume(job)

    @_writes
    def backfill(
        self, kind: str, owner: int, places: Sequence[Any] = (), *further: Any
    ) -> Operation[None]:
        """Fill a timeline of a ``user`` or ``list`` from further profiles; tasks call this.

        ``places`` is the progress so far; empty to begin. ``further`` is ignored; later releases
        may add arguments. Cost: four exchanges.

        Raises:
            NewerFormatError: a later release queued this, in a form that this one cannot read.
        """
        if kind not in KINDS or len(places) not in (0, self.layout.relation_parts):
            raise NewerFormatError(
                f"{self.name}: backfill of {kind!r} from {counted(len(places), 'part')} was queued "
                "by a later release",
                "upgrade this program",
            )
        owner = self.layout.id("owner", owner)
        yield from self._delivery.backfill(KINDS[kind], owner, places)

    @_reads
    def pending(self, older_than: Seconds = OLDER_THAN) -> Operation[list[str]]:
        """Return the notes of unfinished changes that began at least ``older_than`` seconds ago.

        Cost: two exchanges, with a script for each part: 1,040 by default.
        """
        older_than = in_seconds(older_than)
        notes, replies = yield from self._repair.notes(older_than, claim=False)
        raise_failures(replies)
        return [note.text for note in notes]

    @_writes
    def repair(self, older_than: Seconds = OLDER_THAN) -> Operation[int]:
        """Finish changes that a dead process or a failed shard left half done; return their number.

        Call it from time to time, from one process or several. Changes that began less than
        ``older_than`` seconds ago are left alone. Cost: as `pending`, and the cost of each change.

        Raises:
            DamagedDataError, ShardErrors: changes that need neither these servers nor this data
                were finished.
        """
        older_than = in_seconds(older_than)
        notes, replies = yield from self._repair.notes(older_than, claim=True)
        finished, failed = 0, None
        for note in notes:
            try:
                finished += yield from self._repair.finish(note)
            except (ShardErrors, DamagedDataError) as error:
                failed = error
        if failed is not None:
            raise failed
        raise_failures(replies)
        return finished

    @_writes
    def reconcile(self, uid: int | str) -> Operation[ReconcileResult | None]:
        """Make a user's counters and home timeline agree with the relations and the profile.

        For damage without a note for `repair`, such as data that a server lost. The network may be
        in use. Posts are counted in the profile if they are fewer than ``profile_limit``.

        Returns:
            The corrections; None if there is no such user.

        Cost: about twenty exchanges, four more for each 50 followed users, and six for each
        account whose posts were missing or superfluous.
        """
        uid = self.layout.id("uid", uid)
        return (yield from self._repair.account(USER, uid))

    @_writes
    def reconcile_list(self, list_id: int | str) -> Operation[ReconcileResult | None]:
        """Make a list's counter and timeline agree with its relations; see `reconcile`."""
        list_id = self.layout.id("list_id", list_id)
        return (yield from self._repair.account(LIST, list_id))

    @stream
    def check(self) -> Stream[Damage]:
        """Read the whole network, and return its damage; changes nothing.

        Checks parameters, logins and users, lists, counters against relations, both halves of each
        relation, profiles and home timelines. Unfinished changes that `repair` finishes are not
        damage, nor are missing or superfluous entries of timelines.

        Cost: about five exchanges for 64 parts, ten and three for each part of the relations for
        each user or list, one for 1,000 relations or entries.
        """
        self.meta.data_ruled_out = False
        yield from check_parameters(self.meta)
        yield from self._check.all()

    @operation
    def rebuild(self) -> Operation[int]:
        """Store lost parameters, and `reconcile` every user and list that can be read.

        Returns:
            The number of corrected accounts.

        Cost: as `reconcile` of each.
        """
        yield from restore_parameters(self.meta)
        corrected = 0
        for part in range(self.layout.parts):
            for kind, id_ in (yield from self._check.accounts(part)):
                try:
                    result = yield from self._repair.account(kind, id_)
                except DamagedDataError:
                    continue
                corrected += result is not None and any(result)
        return corrected

    def _open(self, *, create: bool = False) -> Operation[None]:
        if not self.meta.is_checked(create=create):
            if create:  # refuse a wrong count, and placements that would part a user's keys
                keys = [f"{n}:{{{self.name}}}" for n in range(32)]
                for to in (self.layout.users, self.layout.timelines, self.layout.relations(0)):
                    if len({shard for shard, _ in (yield Locate([(to, key) for key in keys]))}) > 1:
                        raise CrossShardError(
                            f"{self.name}: the placement of component {to!r} ignores hash tags",
                            "keep it in a component whose placement obeys tags, such as crc32",
                        )
            yield from open_all([self.meta], create=create)

    def _ids(self, **ids: int | str) -> list[int]:
        return [self.layout.id(field, value) for field, value in ids.items()]

    def _login(self, login: str) -> tuple[str, int]:
        """Return a login as it is compared, and the part of its user."""
        compared = login_key(self.name, login)
        return compared, crc32(compared.encode()) % self.layout.parts

    def _exist(self, uid: int, other: int) -> Operation[bool]:
        if uid == other:
            raise InvalidArgumentError(
                f"{self.name}: {uid} would block or mute itself", "give two users"
            )
        keys = [self.layout.owned("user", user) for user in (uid, other)]
        exist = yield [self.layout.at_user(key, "EXISTS", key) for key in keys]
        return all(exist)

    def _at_block(self, name: str, uid: int, other: int) -> Command:
        part = self.layout.part(uid, other)
        key = self.layout.relation("blocked", part, uid)
        return Command(self.layout.relations(part), key, (name, key, other))

    def _related(
        self, relation: str, uid: int | str, limit: int, cursor: Relation | None
    ) -> Operation[RelationPage]:
        check_integer(self.name, "limit", limit, 1, DEEPEST)
        places = self.layout.places(relation, self.layout.id("uid", uid))
        rows = yield from newest_rows(places, limit, cursor)
        page = RelationPage(Relation(int(other), int(version)) for other, version in rows)
        page.cursor = page[-1] if len(page) == limit else None
        return page

    def _check_page(self, page: int, limit: int, cursor: TimelineCursor | None) -> None:
        check_integer(self.name, "limit", limit, 1, MOST_STATUSES)
        check_integer(self.name, "page", page, 1, max(1, DEEPEST // limit))
        if cursor is not None and (page != 1 or not isinstance(cursor, TimelineCursor)):
            raise InvalidArgumentError(
                f"{self.name}: page={page}, cursor={shown(cursor)}",
                "give a page's number, or the previous page's cursor",
            )
