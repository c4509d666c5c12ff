"""What the network hands out: users, statuses, lists, pages; and how they are stored in a HASH.

Times are stored as whole microseconds since 1970: exact in a double, and 9 bytes in a listpack
where seconds with a fraction would take 18. What is handed out is in seconds.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.commands import Argument
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import shown

MICRO = 1_000_000
LONGEST_LOGIN = 200
LONGEST_VALUE = 1_000_000
MOST_EXTRAS = 100

USER_FIELDS = frozenset({"id", "login", "name", "followers", "following", "listed", "posts"}) | {
    "signup"
}
STATUS_FIELDS = frozenset({"id", "uid", "login", "message", "posted"})
# In the order in which social_create_status writes them, and a listpack keeps them.
_STATUS_ORDER = [b"id", b"uid", b"login", b"posted", b"message"]

Extra: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Attributes:
        id: the user's id.
        login: the name to log in with, as it was given.
        name: the name to show.
        followers: how many follow the user.
        following: how many the user follows.
        posts: how many statuses there are of the user.
        signup: when the user was created, in seconds since 1970.
        extras: what else was given, as text.
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
        extras: what else was given, as text.
    """

    id: int
    uid: int
    login: str
    message: str
    posted: float
    extras: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserList:
    """A list of accounts, kept by a user.

    Attributes:
        id: the list's id.
        owner: the id of the user whose it is.
        name: its name.
        following: how many accounts are on it.
        created: when it was created, in seconds since 1970.
    """

    id: int
    owner: int
    name: str
    following: int
    created: float


class TimelineCursor(NamedTuple):
    """A place in a timeline: what comes behind it is older.

    Attributes:
        time: in microseconds since 1970.
        id: the status.
    """

    time: int
    id: int


class TimelinePage(list[Status]):
    """Statuses, newest first.

    Attributes:
        cursor: where the next page begins; None if there is none.
    """

    cursor: TimelineCursor | None = None


class Relation(NamedTuple):
    """One of those who follow an account, or are followed by it.

    Attributes:
        id: the other one.
        version: when that began, in microseconds since 1970; also what pages go on behind.
    """

    id: int
    version: int


def login_key(owner: str, login: str) -> str:
    """Return a login as logins are compared: without regard to case, in any script.

    Raises:
        InvalidArgumentError: it cannot be a login.
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
    """Return a text that was given.

    Raises:
        InvalidArgumentError: it is no text, or too long.
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
        InvalidArgumentError: one would override a field of the network's own, or does not fit.
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
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidArgumentError(
                f"{owner}: extra {name}={shown(value)}", "give text or a number"
            )
        flat += [_text(owner, "extra", name), check_text(owner, name, str(value))]
    return flat


def fields_of(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the fields of a HASH, those that the network keeps for itself left out."""
    words = [word.decode() for word in flat]
    return {
        name: value for name, value in zip(words[::2], words[1::2], strict=True) if name[:1] != ":"
    }


def user_of(flat: Sequence[bytes]) -> User | None:
    """Return the user that HGETALL gave; None if there is none."""
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
    rest = dict(fields)
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
    """Return the status that HGETALL gave; None if there is none."""
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
    """Return the list that HGETALL gave; None if there is none."""
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
