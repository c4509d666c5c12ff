"""A social network in plain Python, and how the real one is compared with it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from faces import Face

from shardkit.operations import Batch, Replies
from shardkit.operations.drivers import BlockingDriver
from shardkit.social import BlockResult, FollowResult, MuteResult
from shardkit.social.keys import USER as USER  # no other way names the keys of timelines

PLACES = {"many": 16, "few": 4, "one": 3}
ACTIONS = "post delete follow unfollow block unblock mute unmute list off"
LIMITS: dict[str, Any] = {"parts": 4, "fan_out_limit": 5, "pass_size": 3}


def opened(face: Face, component: str = "many", **parameters: Any) -> Any:
    """A network with few parts, small passes and a low limit, so that little data meets all."""
    shards = PLACES.get(component, 4)
    return face.kit.social(
        component=component, **{"relation_parts": shards, **LIMITS, **parameters}
    )


@dataclass
class Model:
    """A network as it should be, after each operation has ended.

    Attributes:
        users: their ids.
        lists: their ids.
        follows: (who, whom), for users and lists.
        blocks: likewise.
        mutes: likewise.
        posts: the author of each status.
    """

    users: list[int] = field(default_factory=list)
    lists: list[int] = field(default_factory=list)
    follows: set[tuple[int, int]] = field(default_factory=set)
    blocks: set[tuple[int, int]] = field(default_factory=set)
    mutes: set[tuple[int, int]] = field(default_factory=set)
    posts: dict[int, int] = field(default_factory=dict)

    def follow(self, first: int, second: int) -> FollowResult:
        if {(first, second), (second, first)} & self.blocks:
            return FollowResult.BLOCKED
        if (first, second) in self.follows:
            return FollowResult.ALREADY_FOLLOWING
        self.follows.add((first, second))
        return FollowResult.FOLLOWED

    def unfollow(self, first: int, second: int) -> bool:
        if (first, second) not in self.follows:
            return False
        self.follows.remove((first, second))
        return True

    def block(self, first: int, second: int) -> BlockResult:
        self.follows -= {(first, second), (second, first)}
        if (first, second) in self.blocks:
            return BlockResult.ALREADY_BLOCKED
        self.blocks.add((first, second))
        return BlockResult.BLOCKED

    def mute(self, first: int, second: int) -> MuteResult:
        if (first, second) in self.mutes:
            return MuteResult.ALREADY_MUTED
        self.mutes.add((first, second))
        return MuteResult.MUTED

    def delete(self, uid: int, status: int) -> bool:
        if self.posts.get(status) != uid:
            return False
        del self.posts[status]
        return True


def act(face: Face, network: Any, model: Model, dice: random.Random) -> None:
    """Do something at random in both, and compare what it says."""
    run = face.run
    first, second = dice.sample(model.users, 2)
    what = dice.choices(ACTIONS.split(), [8, 3, 10, 6, 1, 1, 1, 1, 4, 2])[0]
    if what == "post":
        status = run(network.post(first, f"by {first}", n=dice.randrange(100)))
        assert status not in model.posts
        model.posts[status] = first
    elif what == "delete" and model.posts:
        status = dice.choice(list(model.posts))
        author = dice.choice([first, model.posts[status]])
        assert run(network.delete_status(author, status)) is model.delete(author, status)
    elif what == "follow":
        assert run(network.follow(first, second)) is model.follow(first, second)
    elif what == "unfollow":
        assert run(network.unfollow(first, second)) is model.unfollow(first, second)
    elif what == "block":
        assert run(network.block(first, second)) is model.block(first, second)
    elif what == "unblock":
        expected = (first, second) in model.blocks
        model.blocks.discard((first, second))
        assert run(network.unblock(first, second)) is expected
    elif what == "mute":
        assert run(network.mute(first, second)) is model.mute(first, second)
    elif what == "unmute":
        expected = (first, second) in model.mutes
        model.mutes.discard((first, second))
        assert run(network.unmute(first, second)) is expected
    elif what == "list":
        each = dice.choice(model.lists)
        assert run(network.follow_into_list(each, second)) is model.follow(each, second)
    elif what == "off":
        each = dice.choice(model.lists)
        assert run(network.unfollow_from_list(each, second)) is model.unfollow(each, second)


def seen(face: Face, network: Any, users: Sequence[int], lists: Sequence[int]) -> Model:
    """What relations and statuses say: from these all else must follow."""
    model, new = Model(list(users), list(lists)), network.deferred
    owners = [*users, *lists]
    for owner, relations in zip(owners, _all(face, new.following, owners), strict=True):
        model.follows |= {(owner, relation.id) for relation in relations}
    for uid, page in zip(users, _all(face, new.profile, users, limit=1000), strict=True):
        model.posts |= {status.id: uid for status in page}
    return model


def _all(face: Face, call: Any, ids: Sequence[int], **arguments: Any) -> list[Any]:
    """What a deferred call gives for each id."""
    values: list[Any] = face.run(face.kit.together(*(call(each, **arguments) for each in ids)))
    return values


def compare(face: Face, network: Any, model: Model, *, pages: bool = True) -> None:
    """Everything that the network shows is what the model has."""
    new, users = network.deferred, model.users
    assert face.run(network.pending(0)) == []
    statuses = dict(
        zip(model.posts, face.run(network.get_statuses(list(model.posts))), strict=True)
    )
    assert None not in statuses.values()
    order = sorted(statuses, key=lambda id_: (statuses[id_].posted, str(id_)), reverse=True)
    for uid, user, followers, following, profile, home in zip(
        users,
        face.run(network.get_users(users)),
        _all(face, new.followers, users),
        _all(face, new.following, users),
        _all(face, new.profile, users, limit=1000),
        _all(face, new.home, users, limit=1000),
        strict=True,
    ):
        follows = {b for a, b in model.follows if a == uid}
        readers = {a for a, b in model.follows if b == uid and a in set(users)}
        posts = [status for status in order if model.posts[status] == uid]
        assert (user.followers, user.following) == (len(readers), len(follows))
        assert user.posts == len(posts)
        assert {relation.id for relation in followers} == readers
        assert {relation.id for relation in following} == follows
        assert [status.id for status in profile] == posts
        muted = {b for a, b in model.mutes if a == uid}
        visible = [status for status in order if model.posts[status] in follows - muted]
        assert [status.id for status in home] == visible
        if pages:
            paged(face, network, uid, visible)
    timelines = _all(face, new.list_timeline, model.lists, limit=1000)
    for each, timeline in zip(model.lists, timelines, strict=True):
        follows = {b for a, b in model.follows if a == each}
        assert face.run(network.get_list(each)).following == len(follows)
        visible = [status for status in order if model.posts[status] in follows]
        assert [status.id for status in timeline] == visible


def paged(face: Face, network: Any, uid: int, visible: Sequence[int]) -> None:
    """Pages by number and by cursor show all of it, and nothing twice; no page is short."""
    for number in range(1, len(visible) // 7 + 2):
        page = face.run(network.home(uid, number, 7))
        assert [status.id for status in page] == visible[(number - 1) * 7 : number * 7]
    cursor, found = None, []
    while True:
        page = face.run(network.home(uid, limit=7, cursor=cursor))
        found += [status.id for status in page]
        if page.cursor is None:
            break
        assert len(page) == 7
        cursor = page.cursor
    assert found == visible


class Crash(Exception):
    """The process ends here."""


class StoppingLink:
    """A link that does something else before an exchange.

    Args:
        link: what carries batches.
        turn: the number of the exchange, from 0.
        instead: is given its batch.
        often: whether to do it before all later exchanges, too.
    """

    def __init__(
        self, link: Any, turn: int, instead: Callable[[Batch], object], *, often: bool = False
    ) -> None:
        self._link = link
        self._left = turn
        self._instead = instead
        self._often = often
        self.locate = link.locate
        self.pause = link.pause

    @property
    def stopped(self) -> bool:
        return self._left < 0

    def send(self, batch: Batch) -> Replies:
        if self._left == 0 or (self._often and self._left < 0):
            self._instead(batch)
        self._left -= 1
        replies: Replies = self._link.send(batch)
        return replies


def stopping(
    network: Any, turn: int, instead: Callable[[Batch], object], *, often: bool = False
) -> Any:
    """The same network, which does something else before an exchange."""
    other = copy.copy(network)
    other._driver = BlockingDriver(StoppingLink(network._driver.link, turn, instead, often=often))
    return other


def stopped(network: Any) -> bool:
    """Whether such a network has come to that exchange."""
    return bool(network._driver.link.stopped)


def cut(network: Any, last: int, every: int = 0) -> Any:
    """The same network, whose process ends at an exchange.

    Args:
        network: over a blocking kit.
        last: the number of the exchange.
        every: which of its commands still arrive: every second, third, …; 0 for none.
    """

    def end(batch: Batch) -> None:
        if every:
            network._driver.link.send(batch[::every])
        raise Crash

    return stopping(network, last, end)


def populate(
    face: Face, network: Any, users: int = 8, lists: int = 2, followers: Sequence[int] = ()
) -> Model:
    """Users and lists; some of them, by their places, follow the first one."""
    new = network.deferred
    together = face.kit.together
    users_ = [new.create_user(f"user {n}", f"User {n}") for n in range(users)]
    model = Model(face.run(together(*users_)))
    lists_ = [new.create_list(model.users[n], f"list {n}") for n in range(lists)]
    model.lists = face.run(together(*lists_))
    for place in followers:
        face.run(network.follow(model.users[place], model.users[0]))
    return model


# How many follow the account, the most that ever did (above 5 its posts are fetched, from below 4
# on pushed again), and what is done at last.
SITUATIONS: dict[str, tuple[int, int]] = {
    "few": (3, 3),
    "at the limit": (5, 5),
    "many": (7, 7),
    "nearly few again": (4, 7),
}


def prepared(face: Face, network: Any, followers: int, most: int) -> Model:
    """An account with so many followers, one of them a list, and posts; two followed by each."""
    model = populate(face, network, users=most + 2)
    author, new, together = model.users[0], network.deferred, face.kit.together
    for uid in model.users[:2]:
        model.posts[network.post(uid, "before")] = uid
    network.follow_into_list(model.lists[0], author)
    together(*(new.follow(uid, author) for uid in model.users[1:most]))
    together(*(new.unfollow(uid, author) for uid in model.users[followers:most]))
    network.follow(author, model.users[1])
    network.post(author, "then")
    assert network.get_user(author).followers == followers - 1
    return model


class Snapshot:
    """What a server holds, to go back to.

    Args:
        client: a client of the server.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        keys = client.keys()
        with client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key)
            self._dumps = dict(zip(keys, pipe.execute(), strict=True))

    def restore(self) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            pipe.flushdb()
            for key, dump in self._dumps.items():
                pipe.restore(key, 0, dump)
            pipe.execute()


def drain(face: Face, queues: Any, network: Any) -> list[Any]:
    """Do all tasks that wait, as a worker would; return them."""
    tasks = []
    while (task := face.run(queues.take("social", timeout=0))) is not None:
        face.run(network.callbacks[task.name](*task.args))
        face.run(queues.acknowledge(task))
        tasks.append(task)
    return tasks
