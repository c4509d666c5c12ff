"""The keys of a social network (docs/social.md), and one hash tag for what changes together.

An id encodes its part: ``id % parts``. A user's statuses and lists get ids of the user's part. So
any id leads to its key, and everything that one script changes is on one server, even on a cluster.
Relations are placed by the pair of ids, in as many parts as the component has shards.
"""

from __future__ import annotations

from typing import NamedTuple

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command, Home, ShardOf, To
from shardkit.routing.keys import key_bytes, pair_key
from shardkit.routing.placement import DEFAULT, placement
from shardkit.structures.base.arguments import check_integer, check_name

# Ids are ZSET members and pass through Lua: exact as doubles.
LARGEST_ID = 2**53 - 1
MOST_PARTS = 16384
LONGEST_IDEMPOTENCY_KEY = 200
# How long an idempotency key is stored, in milliseconds.
IDEMPOTENCY_TTL = 24 * 3600 * 1000


class RelationKind(NamedTuple):
    """The kinds of followers: users, or lists of accounts."""

    name: str  # the first word of the notes about its relations
    account: str  # the prefix of the keys of accounts
    incoming: str  # the prefix of the keys of an account's followers, and their counter's name
    timeline: str  # the prefix of the keys of timelines


USER = RelationKind("user", "user", "followers", "home")
LIST = RelationKind("list", "list", "listed", "list")
KINDS = {kind.name: kind for kind in (USER, LIST)}
FOLLOWING = "following"


class KeyLayout:
    """The keys of one network; for the arguments see `SocialNetwork`."""

    def __init__(
        self,
        name: str,
        users: str,
        timelines: str,
        followers: str,
        parts: int,
        relation_parts: int,
    ) -> None:
        check_name(name)
        if set(name) & set("{}"):
            raise InvalidArgumentError(f"name={shown(name)} of a network", "leave out { and }")
        check_integer(name, "parts", parts, 1, MOST_PARTS)
        check_integer(name, "relation_parts", relation_parts, 1, MOST_PARTS)
        self.name = name
        self.users = users
        self.timelines = timelines
        self.parts = parts
        self.relation_parts = relation_parts
        self.home: To = Home(users)
        self._place = placement(DEFAULT, relation_parts)
        self._relations = [ShardOf(followers, n, relation_parts) for n in range(relation_parts)]

    # ---- users and their records

    def of_part(self, prefix: str, part: int) -> str:
        """Return a key of a part of the users: ``ids:{social:u17}``."""
        return f"{prefix}:{{{self.name}:u{part}}}"

    def near(self, prefix: str, id_: int) -> str:
        """Return a key of the part that an id belongs to."""
        return self.of_part(prefix, id_ % self.parts)

    def owned(self, prefix: str, id_: int) -> str:
        """Return a key of a user, status or list: ``muted:{social:u17}:4113``."""
        return f"{prefix}:{{{self.name}:u{id_ % self.parts}}}:{id_}"

    def new_record(self, uid: int) -> tuple[str, int, int]:
        """Return the text between a record's kind and id, its part, and the number of parts."""
        part = uid % self.parts
        return f"{self.of_part('', part)}:", part, self.parts

    def once(self, action: str, uid: int, idempotency_key: str | None) -> list[str]:
        """Return the key of what a ``post`` or ``list`` call created, if it is to be stored."""
        key = self.check_idempotency_key(idempotency_key)
        return [f"{self.owned('once', uid)}:{action}:{key}"] if key else []

    def check_idempotency_key(self, idempotency_key: str | None) -> str:
        """Return an idempotency key, empty for None."""
        if idempotency_key is None:
            return ""
        try:
            length = isinstance(idempotency_key, str) and len(key_bytes(idempotency_key))
        except InvalidKeyError:
            length = 0
        if not length or length > LONGEST_IDEMPOTENCY_KEY:
            raise InvalidArgumentError(
                f"{self.name}: idempotency_key={shown(idempotency_key)}",
                f"give text of 1 to {LONGEST_IDEMPOTENCY_KEY} bytes, such as a UUID",
            )
        return idempotency_key

    def at_user(self, key: str, *args: str | bytes | int | float) -> Command:
        """Return an idempotent command for a key of the users."""
        return Command(self.users, key, args, None, True)

    # ---- timelines

    def timeline(self, kind: RelationKind, owner: int) -> str:
        """Return the key of a user's home timeline, or of a list's."""
        return f"{kind.timeline}:{{{self.name}:{owner}}}"

    def profile(self, uid: int) -> str:
        """Return the key of a profile timeline."""
        return f"profile:{{{self.name}:{uid}}}"

    def pulled(self, owner: int) -> str:
        """Return the key of the accounts whose profiles are merged into a timeline on reading."""
        return f"pull:{{{self.name}:{owner}}}"

    def at_timeline(self, key: str, *args: str | bytes | int | float) -> Command:
        """Return an idempotent command for a key of the timelines."""
        return Command(self.timelines, key, args, None, True)

    # ---- relations

    def part(self, first: int, second: int) -> int:
        """Return the part that holds the relations between two ids."""
        return self._place(pair_key(first, second))

    def relations(self, part: int) -> ShardOf:
        """Return the shard of a part of the relations."""
        return self._relations[part]

    def relation(self, prefix: str, part: int, id_: int) -> str:
        """Return the key of an id's relations in a part: ``followers:{social:3}:4113``."""
        return f"{prefix}:{{{self.name}:{part}}}:{id_}"

    def of_relations(self, prefix: str, part: int) -> str:
        """Return a key of a part of the relations: ``clock:{social:3}``."""
        return f"{prefix}:{{{self.name}:{part}}}"

    def places(self, prefix: str, id_: int) -> list[tuple[To, str]]:
        """Return the shard and key of an id's relations, part by part."""
        relations = enumerate(self._relations)
        return [(to, self.relation(prefix, part, id_)) for part, to in relations]

    def id(self, field: str, value: object) -> int:
        """Return an id given as a number or as digits."""
        if type(value) is int and 0 < value <= LARGEST_ID:
            return value
        try:
            digits = b"" if isinstance(value, bool) else key_bytes(value)  # type: ignore[arg-type]
        except InvalidKeyError:
            digits = b""
        if is_id(digits):
            return int(digits)
        raise InvalidArgumentError(
            f"{self.name}: {field}={shown(value)}", "give an id as it was returned"
        )


def is_id(text: bytes) -> bool:
    """Return whether a text is an id."""
    return text.isdigit() and len(text) <= 16 and 0 < int(text) <= LARGEST_ID
