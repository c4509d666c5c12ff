"""Results of a network: users, statuses, lists, pages; and how a HASH stores them.

Times are stored as whole microseconds since 1970: exact in a double, and 9 bytes in a listpack
where seconds with a fraction would take 18. Returned times are in seconds.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar

from shardkit.errors import InvalidArgumentError, InvalidKeyError, counted
from shardkit.operations.arguments import accepts, shown
from shardkit.operations.commands import Argument, To
from shardkit.operations.operation import Operation
from shardkit.routing.keys import key_bytes
from shardkit.social.keys import KeyLayout, is_id
from shardkit.structures.base.damage import MOST_STORED, damage

MICRO = 1_000_000
_WHOLE = re.compile("0|[1-9][0-9]{0,15}")
LONGEST_LOGIN = 200
LONGEST_VALUE = 1_000_000
MOST_EXTRAS = 100

USER_FIELDS = frozenset({"id", "login", "name", "followers", "following", "listed", "posts"}) | {
    "signup"
}
STATUS_FIELDS = frozenset({"id", "uid", "login", "message", "posted"})
# The order in which create_status.lua writes them; a listpack preserves it.
# Fields of later releases begin with a colon, as no extra can; this release ignores them.
_STATUS_ORDER = [b"id", b"uid", b"login", b"posted", b"message"]

Extra: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Attributes:
        name: the displayed name.
        followers, following, posts: how many there are.
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
        uid, login: those of the author.
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
        owner: the owner's id.
        following: the number of accounts on the list.
        created: when the list was created, in seconds since 1970.
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
    """An account that follows another, or is followed.

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


class _ChangeResult(Enum):
    """The result of a change; its first value is true, for a change that was made."""

    def __bool__(self) -> bool:
        return self is next(iter(type(self)))


class FollowResult(_ChangeResult):
    """The result of ``follow``. True if the call created the relation."""

    FOLLOWED = "followed"
    ALREADY_FOLLOWING = "already following"
    NO_SUCH_USER = "no such user"
    BLOCKED = "one user has blocked the other"
    LIMIT_REACHED = "following_limit is reached"


class BlockResult(_ChangeResult):
    """The result of ``block``. True if the block is new."""

    BLOCKED = "blocked"
    ALREADY_BLOCKED = "already blocked"
    NO_SUCH_USER = "no such user"


class MuteResult(_ChangeResult):
    """The result of ``mute``. True if the mute is new."""

    MUTED = "muted"
    ALREADY_MUTED = "already muted"
    NO_SUCH_USER = "no such user"
    LIMIT_REACHED = "following_limit is reached"


class ReconcileResult(NamedTuple):
    """The corrections of ``reconcile``.

    Attributes:
        followers: the change of the counter of followers.
        following: the change of the counter of followed accounts.
        entries: removed timeline entries, whose statuses no longer exist.
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
    """Return the form in which logins are compared: without regard to case, in any script."""
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
    """Return a text argument."""
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
    """Return extras as field, value, …."""
    if len(extras) > MOST_EXTRAS:
        raise InvalidArgumentError(
            f"{owner}: {counted(len(extras), 'extra')}", f"give at most {MOST_EXTRAS}"
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


def stored_ids(to: To, key: str, texts: Iterable[bytes]) -> list[int]:
    """Return ids that are stored under a key."""
    ids = []
    for text in texts:
        if not is_id(text):
            raise damage(to, key, shown(text), "ids")
        ids.append(int(text))
    return ids


def read_record(
    to: To, key: str, parse: Callable[[Sequence[bytes]], T | None], flat: Sequence[bytes]
) -> T | None:
    """Return the record in a reply of HGETALL; None if the reply is empty."""
    try:
        record = parse(flat)
    except KeyError as error:
        raise damage(to, key, f"no field {error}", "a record with all its fields") from None
    except ValueError as error:
        raise damage(to, key, f"a field that cannot be read ({error})", "a record") from None
    if record is not None and str(record.id) != key.rpartition(":")[2]:
        raise damage(to, key, f"the record of {record.id}", "a record with the id of its key")
    return record


def read_records(
    layout: KeyLayout, prefix: str, ids: Sequence[int], parse: Callable[[Sequence[bytes]], T | None]
) -> Operation[list[T | None]]:
    """Return records by id, None for unknown ids; see `read_record`. Cost: one exchange."""
    keys = [layout.owned(prefix, id_) for id_ in ids]
    replies = (yield [layout.at_user(key, "HGETALL", key) for key in keys]) if keys else ()
    return [
        read_record(layout.users, key, parse, flat) for key, flat in zip(keys, replies, strict=True)
    ]


def _whole(text: str) -> int:
    """Return an id, a count or microseconds, as scripts write them."""
    if _WHOLE.fullmatch(text) and int(text) <= MOST_STORED:
        return int(text)
    raise ValueError(shown(text))


def _login(text: str) -> str:
    if 1 <= len(text) <= LONGEST_LOGIN:
        return text
    raise ValueError(f"login={shown(text)}")


def user_of(flat: Sequence[bytes]) -> User | None:
    """Return the user in a reply of HGETALL; None if the reply is empty."""
    if not flat:
        return None
    fields = fields_of(flat)
    return User(
        _whole(fields["id"]),
        _login(fields["login"]),
        fields["name"],
        _whole(fields["followers"]),
        _whole(fields["following"]),
        _whole(fields["posts"]),
        _whole(fields["signup"]) / MICRO,
        {name: value for name, value in fields.items() if name not in USER_FIELDS},
    )


def status_of(fields: Mapping[str, str] | None) -> Status | None:
    """Return the status with these fields; None if there are none."""
    if not fields:
        return None
    rest = {name: value for name, value in fields.items() if name[:1] != ":"}
    id_, uid, login, message, posted = map(rest.pop, ("id", "uid", "login", "message", "posted"))
    return Status(_whole(id_), _whole(uid), _login(login), message, _whole(posted) / MICRO, rest)


def status_of_reply(flat: Sequence[bytes]) -> Status | None:
    """Return the status in a reply of HGETALL; None if the reply is empty."""
    if flat[:10:2] != _STATUS_ORDER:
        return status_of(fields_of(flat))
    return Status(
        _whole(flat[1].decode()),
        _whole(flat[3].decode()),
        _login(flat[5].decode()),
        flat[9].decode(),
        _whole(flat[7].decode()) / MICRO,
        fields_of(flat[10:]) if len(flat) > 10 else {},
    )


def list_of(flat: Sequence[bytes]) -> UserList | None:
    """Return the list in a reply of HGETALL; None if the reply is empty."""
    if not flat:
        return None
    fields = fields_of(flat)
    return UserList(
        _whole(fields["id"]),
        _whole(fields["owner"]),
        fields["name"],
        _whole(fields["following"]),
        _whole(fields["created"]) / MICRO,
    )
