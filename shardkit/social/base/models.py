"""What the network returns: users, statuses, lists, pages, results; and their form in a HASH.

Times are stored as whole microseconds since 1970: exact in a double, and 9 bytes in a listpack
where seconds with a fraction would take 18. Returned times are in seconds.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.arguments import accepts, shown
from shardkit.operations.commands import Argument, To
from shardkit.operations.operation import Operation
from shardkit.routing.keys import key_bytes
from shardkit.social.base.keys import LARGEST_ID, KeyLayout
from shardkit.structures.base.damage import damage

MICRO = 1_000_000
LONGEST_LOGIN = 200
LONGEST_VALUE = 1_000_000
MOST_EXTRAS = 100

USER_FIELDS = frozenset({"id", "login", "name", "followers", "following", "listed", "posts"}) | {
    "signup"
}
STATUS_FIELDS = frozenset({"id", "uid", "login", "message", "posted"})
# The order in which create_status.lua writes them; a listpack keeps it.
# Fields to come begin with a colon, as no extra can; who does not know them drops them.
_STATUS_ORDER = [b"id", b"uid", b"login", b"posted", b"message"]

Extra: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Attributes:
        id: the user's id.
        login: the login, as it was given.
        name: the name to show.
        followers: the number of users who follow this one.
        following: the number of users whom this one follows.
        posts: the number of the user's statuses.
        signup: when the user was created, in seconds since 1970.
        extras: further fields, as text.
    """

    id: int
    login: str
    name: str
    followers: int
    following: int
    posts: int
    signup: float
    extras: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """A status.

    Attributes:
        id: the status's id.
        uid: its author's id.
        login: its author's login.
        message: the text.
        posted: when it was posted, in seconds since 1970.
        extras: further fields, as text.
    """

    id: int
    uid: int
    login: str
    message: str
    posted: float
    extras: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserList:
    """A user's list of accounts.

    Attributes:
        id: the list's id.
        owner: the id of the user who owns it.
        name: its name.
        following: the number of accounts on it.
        created: when it was created, in seconds since 1970.
    """

    id: int
    owner: int
    name: str
    following: int
    created: float


class TimelineCursor(NamedTuple):
    """A position in a timeline; older entries follow it.

    Attributes:
        time: in microseconds since 1970.
        id: the status.
    """

    time: int
    id: int


class TimelinePage(list[Status]):
    """Statuses, newest first.

    Attributes:
        cursor: where the next page begins; None at the end of the timeline.
    """

    cursor: TimelineCursor | None = None


class Relation(NamedTuple):
    """One that follows an account, or is followed by it.

    Attributes:
        id: the other account.
        version: when the relation began, in microseconds since 1970.
    """

    id: int
    version: int


class RelationPage(list[Relation]):
    """Relations, latest first.

    Attributes:
        cursor: where the next page begins; None at the end.
    """

    cursor: Relation | None = None


class FollowResult(Enum):
    """What came of a call of ``follow``. True if the relation began now."""

    FOLLOWED = "followed"
    ALREADY_FOLLOWING = "already following"
    NO_SUCH_USER = "no such user"
    BLOCKED = "one has blocked the other"
    LIMIT_REACHED = "following_limit is reached"

    def __bool__(self) -> bool:
        return self is FollowResult.FOLLOWED


class BlockResult(Enum):
    """What came of a call of ``block``. True if the block is new."""

    BLOCKED = "blocked"
    ALREADY_BLOCKED = "already blocked"
    NO_SUCH_USER = "no such user"

    def __bool__(self) -> bool:
        return self is BlockResult.BLOCKED


class MuteResult(Enum):
    """What came of a call of ``mute``. True if the mute is new."""

    MUTED = "muted"
    ALREADY_MUTED = "already muted"
    NO_SUCH_USER = "no such user"
    LIMIT_REACHED = "following_limit is reached"

    def __bool__(self) -> bool:
        return self is MuteResult.MUTED


class ReconcileResult(NamedTuple):
    """What did not agree, and was corrected.

    Attributes:
        followers: the change of the counter.
        following: likewise.
        entries: entries of the timeline whose statuses no longer exist.
        accounts: accounts whose posts were missing from the timeline, or superfluous.
        listed: the change of the counter of lists that follow the user.
        posts: the change of the counter of the user's posts.
    """

    followers: int
    following: int
    entries: int
    accounts: int
    listed: int = 0
    posts: int = 0


T = TypeVar("T", User, Status, UserList)


def login_key(owner: str, login: str) -> str:
    """Return the form in which a login is compared: without regard to case, in any script.

    Raises:
        InvalidArgumentError: it is not a valid login.
    """
    if not isinstance(login, str) or not 1 <= len(login) <= LONGEST_LOGIN or login != login.strip():
        raise InvalidArgumentError(
            f"{owner}: login={shown(login)}",
            f"give text of 1 to {LONGEST_LOGIN} characters without space around it",
        )
    _text(owner, "login", login)
    # Caseless matching as the Unicode Standard defines it (section 3.13).
    folded = unicodedata.normalize("NFD", login).casefold()
    return unicodedata.normalize("NFC", folded)


def check_text(owner: str, name: str, value: str) -> str:
    """Return a text argument.

    Raises:
        InvalidArgumentError: it is not text, or too long.
    """
    if not isinstance(value, str) or len(value) > LONGEST_VALUE:
        raise InvalidArgumentError(
            f"{owner}: {name}={shown(value)}", f"give text of at most {LONGEST_VALUE:,} characters"
        )
    return _text(owner, name, value)


def _text(owner: str, name: str, value: str) -> str:
    try:
        key_bytes(value)
    except InvalidKeyError:
        raise InvalidArgumentError(
            f"{owner}: {name}={shown(value)} cannot be encoded as UTF-8", "remove lone surrogates"
        ) from None
    return value


def flat_extras(owner: str, extras: Mapping[str, Extra], core: Iterable[str]) -> list[Argument]:
    """Return extras as field, value, ….

    Raises:
        InvalidArgumentError: one has the name of a field that the network sets, or is not text or
            a number.
    """
    if len(extras) > MOST_EXTRAS:
        raise InvalidArgumentError(
            f"{owner}: {len(extras):,} extras", f"give at most {MOST_EXTRAS}"
        )
    flat: list[Argument] = []
    for name, value in extras.items():
        if name in core or not name or name.startswith(":"):
            raise InvalidArgumentError(
                f"{owner}: extra field {shown(name)}: the network sets that itself",
                "give it another name",
            )
        if not accepts(Extra, value):
            raise InvalidArgumentError(
                f"{owner}: extra {name}={shown(value)}", "give text or a number"
            )
        flat += [_text(owner, "extra", name), check_text(owner, name, str(value))]
    return flat


def fields_of(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the fields of a HASH without the internal ones, which begin with a colon."""
    words = [word.decode() for word in flat]
    return {
        name: value for name, value in zip(words[::2], words[1::2], strict=True) if name[:1] != ":"
    }


def is_id(text: bytes) -> bool:
    """Return whether a text is an id."""
    return text.isdigit() and len(text) <= 16 and 0 < int(text) <= LARGEST_ID


def stored_ids(to: To, key: str, texts: Iterable[bytes]) -> list[int]:
    """Return ids that are stored under a key.

    Raises:
        DamagedDataError: one is none.
    """
    ids = []
    for text in texts:
        if not is_id(text):
            raise damage(to, key, shown(text), "ids")
        ids.append(int(text))
    return ids


def read_record(
    to: To, key: str, parse: Callable[[Sequence[bytes]], T | None], flat: Sequence[bytes]
) -> T | None:
    """Return a record in a reply of HGETALL; None if it is empty.

    Args:
        to: where its key lives.
        key: its key, which ends in its id.
        parse: reads its fields.
        flat: the reply.

    Raises:
        DamagedDataError: a field is missing or cannot be, or it is another one's record.
    """
    try:
        found = parse(flat)
    except KeyError as error:
        raise damage(to, key, f"no field {error}", "a record with all its fields") from None
    except ValueError as error:
        raise damage(to, key, f"a field that cannot be read ({error})", "a record") from None
    if found is not None and str(found.id) != key.rpartition(":")[2]:
        raise damage(to, key, f"the record of {found.id}", "a record with the id of its key")
    return found


def read_records(
    layout: KeyLayout, prefix: str, ids: Sequence[int], parse: Callable[[Sequence[bytes]], T | None]
) -> Operation[list[T | None]]:
    """Return records by id, None for unknown ids; see `read_record`. Cost: one exchange."""
    keys = [layout.owned(prefix, id_) for id_ in ids]
    replies = (yield [layout.at_user(key, "HGETALL", key) for key in keys]) if keys else ()
    return [
        read_record(layout.users, key, parse, flat) for key, flat in zip(keys, replies, strict=True)
    ]


def user_of(flat: Sequence[bytes]) -> User | None:
    """Return the user in a reply of HGETALL; None if it is empty."""
    if not flat:
        return None
    fields = fields_of(flat)
    return User(
        int(fields["id"]),
        fields["login"],
        fields["name"],
        int(fields["followers"]),
        int(fields["following"]),
        int(fields["posts"]),
        int(fields["signup"]) / MICRO,
        {name: value for name, value in fields.items() if name not in USER_FIELDS},
    )


def status_of(fields: Mapping[str, str] | None) -> Status | None:
    """Return the status with these fields; None if there are none."""
    if not fields:
        return None
    rest = {name: value for name, value in fields.items() if name[:1] != ":"}
    pop = rest.pop
    return Status(
        int(pop("id")),
        int(pop("uid")),
        pop("login"),
        pop("message"),
        int(pop("posted")) / MICRO,
        rest,
    )


def status_of_reply(flat: Sequence[bytes]) -> Status | None:
    """Return the status in a reply of HGETALL; None if it is empty."""
    if flat[:10:2] != _STATUS_ORDER:
        return status_of(fields_of(flat))
    return Status(
        int(flat[1]),
        int(flat[3]),
        flat[5].decode(),
        flat[9].decode(),
        int(flat[7]) / MICRO,
        fields_of(flat[10:]) if len(flat) > 10 else {},
    )


def list_of(flat: Sequence[bytes]) -> UserList | None:
    """Return the list in a reply of HGETALL; None if it is empty."""
    if not flat:
        return None
    fields = fields_of(flat)
    return UserList(
        int(fields["id"]),
        int(fields["owner"]),
        fields["name"],
        int(fields["following"]),
        int(fields["created"]) / MICRO,
    )
