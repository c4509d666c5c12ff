"""Where a social network's keys are: three components, and a tag for all that changes together.

::

    component   tag            keys
    users       {social:u17}   logins:, user:, status:, list:, lists:, muted:, ids:, pending:
    timelines   {social:4113}  home: (of a list: list:), profile:, pull:   of the account 4113
    followers   {social:3}     followers:, following:, listed:, blocked:, clock:, pending:

An id says its part: ``id % parts``. A user's statuses and lists get ids of the user's own part, so
what one script changes lives together, on one server, over many and on a cluster; and whoever has
an id, of a status too, knows where to look. Relations live by the pair of ids, in as many parts as
the component has shards.
"""

from __future__ import annotations

from typing import NamedTuple

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.commands import Command, Home, ShardOf, To
from shardkit.routing.keys import key_bytes, pair_key
from shardkit.routing.placement import DEFAULT, placement
from shardkit.structures.base.arguments import check_integer, check_name, shown

# Ids are ZSET members and travel through Lua: exact as doubles.
LARGEST_ID = 2**53 - 1
MOST_PARTS = 16384


class RelationKind(NamedTuple):
    """What follows accounts: users, or lists of accounts.

    Attributes:
        name: the first word of what is pending about a relation.
        account: what the key of the account's HASH begins with.
        incoming: what the keys of those who follow an account begin with, and the counter's name.
        timeline: what the keys of timelines begin with.
    """

    name: str
    account: str
    incoming: str
    timeline: str


USER = RelationKind("user", "user", "followers", "home")
LIST = RelationKind("list", "list", "listed", "list")
KINDS = {kind.name: kind for kind in (USER, LIST)}
FOLLOWING = "following"


class KeyLayout:
    """The keys of one network.

    Args:
        name: the network's name.
        users: the component of users and statuses.
        timelines: the component of timelines.
        followers: the component of relations.
        parts: in how many parts users and statuses live.
        relation_shards: in how many parts relations live: the shards of their component.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """

    def __init__(
        self,
        name: str,
        users: str,
        timelines: str,
        followers: str,
        parts: int,
        relation_shards: int,
    ) -> None:
        check_name(name)
        if set(name) & set("{}"):
            raise InvalidArgumentError(f"name={shown(name)} of a network", "leave out { and }")
        check_integer(name, "parts", parts, 1, MOST_PARTS)
        check_integer(name, "relation_shards", relation_shards, 1, MOST_PARTS)
        self.name = name
        self.users = users
        self.timelines = timelines
        self.followers = followers
        self.parts = parts
        self.relation_shards = relation_shards
        self.home: To = Home(users)
        self._place = placement(DEFAULT, relation_shards)
        self._relations = [ShardOf(followers, n, relation_shards) for n in range(relation_shards)]

    # ---- users and what belongs to them

    def of_part(self, what: str, part: int) -> str:
        """Return the key of something of a part of the users: ``ids:{social:u17}``."""
        return f"{what}:{{{self.name}:u{part}}}"

    def owned(self, what: str, id_: int) -> str:
        """Return the key of a user, status, list, or something of a user, by its id."""
        return f"{what}:{{{self.name}:u{id_ % self.parts}}}:{id_}"

    def near(self, what: str, id_: int) -> str:
        """Return the key of something of the part in which an id is."""
        return self.of_part(what, id_ % self.parts)

    def at_user(self, key: str, *args: str | bytes | int | float) -> Command:
        """Return a command that only reads, or says the same again, for a key of the users."""
        return Command(self.users, key, args, None, True)

    # ---- timelines

    def timeline(self, kind: RelationKind, owner: int) -> str:
        """Return the key of a user's home timeline, or of a list's."""
        return f"{kind.timeline}:{{{self.name}:{owner}}}"

    def profile(self, uid: int) -> str:
        """Return the key of a profile timeline."""
        return f"profile:{{{self.name}:{uid}}}"

    def pulled(self, owner: int) -> str:
        """Return the key of the accounts whose profiles are merged into a timeline when read."""
        return f"pull:{{{self.name}:{owner}}}"

    def at_timeline(self, key: str, *args: str | bytes | int | float) -> Command:
        """Return a command that only reads, or says the same again, for a key of the timelines."""
        return Command(self.timelines, key, args, None, True)

    def tagged(self, what: str) -> tuple[bytes, bytes]:
        """Return what stands before and behind an owner in the key of a timeline."""
        return f"{what}:{{{self.name}:".encode(), b"}"

    # ---- relations

    def part(self, first: int, second: int) -> int:
        """Return the part in which what holds between two ids lives."""
        return self._place(pair_key(first, second))

    def relations(self, part: int) -> ShardOf:
        """Return where a part of the relations lives."""
        return self._relations[part]

    def relation(self, what: str, part: int, id_: int) -> str:
        """Return the key of an id's relations in a part: ``followers:{social:3}:4113``."""
        return f"{what}:{{{self.name}:{part}}}:{id_}"

    def of_relations(self, what: str, part: int) -> str:
        """Return the key of something of a part of the relations: ``clock:{social:3}``."""
        return f"{what}:{{{self.name}:{part}}}"

    def places(self, what: str, id_: int) -> list[tuple[To, str]]:
        """Return where all of an id's relations of a kind live, part by part."""
        return [(to, self.relation(what, part, id_)) for part, to in enumerate(self._relations)]

    # ---- arguments

    def id(self, field: str, value: object) -> int:
        """Return an id that was given as a number or as its digits.

        Raises:
            InvalidArgumentError: it is none.
        """
        if type(value) is int and 0 < value <= LARGEST_ID:
            return value
        try:
            digits = b"" if isinstance(value, bool) else key_bytes(value)  # type: ignore[arg-type]
        except InvalidKeyError:
            digits = b""
        if digits.isdigit() and len(digits) <= 16 and 0 < int(digits) <= LARGEST_ID:
            return int(digits)
        raise InvalidArgumentError(
            f"{self.name}: {field}={shown(value)}", "give an id as it was returned"
        )
