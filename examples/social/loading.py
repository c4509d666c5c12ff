"""Building a network in bulk: users, who follows whom, and first posts.

Following one by one takes five exchanges and four scripts each time. In a network that is not in
use yet, the result is known beforehand: both halves of each relation are written directly, all
those of one account in one part by one command, and counters are written once instead of counted::

    users      create_user, 1,000 at a time
    relations  ZADD following:{social:3}:17 version id …      of each follower, part by part
               ZADD followers:{social:3}:4113 version id …    of each followed one
               HSET user:{social:u17}:17 following 12 :g3 "version 2" …
    at last    HSET user:{social:u17}:4113 followers 4 :f3 "version 1" …
               SET clock:{social:3} version

The keys, fields, members and order are the same, which a test compares. Accounts with more
followers than ``fan_out_limit`` are then reconciled, so that their followers fetch their posts.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from examples.social.people import login
from shardkit.errors import ShardKitError
from shardkit.kit.kit import ShardKit
from shardkit.operations.commands import Argument, Command, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Blocking, Operation, pages
from shardkit.social.keys import FOLLOWING, USER
from shardkit.social.network import SocialNetwork

AT_ONCE: Final = 1000  # users that are created, and followers that are written, at a time
_COMMANDS: Final = 2000  # of one exchange
_MEMBERS: Final = 1000  # of one command
# What an account knows of each part; see shardkit.social.relations.
_FOLLOWING_OF: Final = ":g"
_FOLLOWERS_OF: Final = ":f"

Told: TypeAlias = Callable[[int], object]


def create_users(
    kit: ShardKit, network: SocialNetwork[Blocking], count: int, told: Told
) -> list[int]:
    """Create users; return their ids.

    Args:
        kit: the network's kit.
        network: the network.
        count: how many.
        told: is told how many there are.

    Raises:
        ShardKitError: the network is not new.

    Cost: one exchange for 1,000.
    """
    create, uids = network.deferred.create_user, []
    for page in pages(range(count), AT_ONCE):
        made = kit.together(*(create(login(n), f"Number {n}") for n in page))
        uids += [uid for uid in made if uid is not None]
        told(len(uids))
    if len(uids) < count:
        raise ShardKitError(f"{network.name} has users: it is not new", "take another name")
    return uids


class BulkFollow:
    """Writes who follows whom, of a network that nobody uses meanwhile and nobody follows in yet.

    Args:
        network: the network.
        uids: all its users.
        limit: with more followers than that, an account's posts are fetched; 0: never.

    Attributes:
        follows: how many relations were written.
        followers: how many follow each user, in the order of ``uids``.
    """

    def __init__(self, network: SocialNetwork[Any], uids: Sequence[int], limit: int) -> None:
        self._layout = network.layout
        self._deferred = network.deferred
        self._uids = uids
        self._limit = limit
        self._parts = network.layout.relation_parts
        self._known = array("I", bytes(4 * self._parts * len(uids)))  # followers by user and part
        self._versions: list[int] = []
        self.follows = 0
        self.followers = array("I", bytes(4 * len(uids)))

    def run(self, following: Iterable[Sequence[int]], told: Told) -> Operation[None]:
        """Write all of it.

        Args:
            following: whom each user follows, user by user; users by their place in ``uids``.
            told: is told how many relations are written.

        Cost: an exchange for 2,000 of: the parts in which a user follows or is followed, for each
        1,000 users; and for the accounts above the limit what `SocialNetwork.reconcile` costs.
        """
        layout = self._layout
        cards = script("social/count_relations")
        clocks = [layout.of_relations("clock", part) for part in range(self._parts)]
        places = [layout.relations(part) for part in range(self._parts)]
        replies = yield [
            script_call(to, cards, [key]) for to, key in zip(places, clocks, strict=True)
        ]
        self._versions = [reply[0] for reply in replies]
        for page in pages(enumerate(following), AT_ONCE):
            for batch in pages(self._page(page), _COMMANDS):
                yield batch
            told(self.follows)
        self._versions = [version + 1 for version in self._versions]
        yield [
            Command(to, key, ("SET", key, version), None, True)
            for to, key, version in zip(places, clocks, self._versions, strict=True)
        ]
        for batch in pages(self._counted(), _COMMANDS):
            yield batch
        if self._limit:
            for n, count in enumerate(self.followers):
                if count > self._limit:
                    yield from self._deferred.reconcile(self._uids[n])

    def _page(self, page: Sequence[tuple[int, Sequence[int]]]) -> Iterator[Command]:
        """Yield the commands for some followers, and count."""
        layout, uids = self._layout, self._uids
        halves: dict[tuple[str, int], dict[int, list[Argument]]] = {
            (what, part): defaultdict(list)
            for what in (FOLLOWING, USER.incoming)
            for part in range(self._parts)
        }
        for n, others in page:
            uid, parts = uids[n], [0] * self._parts
            for other in others:
                second = uids[other]
                part = layout.part(uid, second)
                version = self._versions[part] = self._versions[part] + 1
                halves[FOLLOWING, part][uid] += (version, second)
                halves[USER.incoming, part][second] += (version, uid)
                parts[part] += 1
                self._known[other * self._parts + part] += 1
                self.followers[other] += 1
            self.follows += len(others)
            if others:
                yield self._count(uid, FOLLOWING, _FOLLOWING_OF, parts)
        for (what, part), accounts in halves.items():
            to = layout.relations(part)
            for uid, rows in accounts.items():
                key = layout.relation(what, part, uid)
                for start in range(0, len(rows), 2 * _MEMBERS):
                    added = ("ZADD", key, *rows[start : start + 2 * _MEMBERS])
                    yield Command(to, key, added, None, True)

    def _counted(self) -> Iterator[Command]:
        for n, uid in enumerate(self._uids):
            if self.followers[n]:
                known = self._known[n * self._parts : (n + 1) * self._parts]
                yield self._count(uid, USER.incoming, _FOLLOWERS_OF, known)

    def _count(self, uid: int, what: str, field: str, parts: Sequence[int]) -> Command:
        """Return the command by which an account knows how many there are in each part."""
        key = self._layout.owned(USER.account, uid)
        fields: list[Argument] = ["HSET", key, what, sum(parts)]
        for part, count in enumerate(parts):
            if count:
                fields += (f"{field}{part}", f"{self._versions[part]} {count}")
        return Command(self._layout.users, key, tuple(fields), None, True)
