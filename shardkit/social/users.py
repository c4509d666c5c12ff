"""Users, and their lists of accounts.

A login determines the part of its user, so one script reserves the login and writes the user. No
login is ever without its user.

A list resembles a user: its id comes from the same sequence, it follows accounts, and their posts
are written to its timeline. It lives in the part of its owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

from shardkit.errors import InvalidArgumentError, counted
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.social.keys import IDEMPOTENCY_TTL, KeyLayout
from shardkit.social.models import (
    USER_FIELDS,
    Extra,
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

AT_ONCE = 1000
LONGEST_NAME = 200  # of a list


class Users:
    """A network's users."""

    def __init__(self, layout: KeyLayout) -> None:
        self._layout = layout

    def create(
        self, login: str, name: str, extras: Mapping[str, Extra], idempotency_key: str | None
    ) -> Operation[int | None]:
        """Create a user; see `SocialNetwork.create_user`."""
        layout = self._layout
        compared, part = self._login(login)
        check_text(layout.name, "name", name)
        fields = ["login", login, "name", name, *flat_extras(layout.name, extras, USER_FIELDS)]
        keys = [layout.of_part("logins", part), layout.of_part("ids", part)]
        once = layout.check_idempotency_key(idempotency_key)
        arguments = (*layout.new_record(part), compared, once, *fields)
        [uid] = yield [lua_call(layout.users, "social/create_user", keys, arguments)]
        return None if uid is None else stored_ids(layout.users, keys[0], [uid])[0]

    def get(self, uids: Sequence[int]) -> Operation[list[User | None]]:
        """Return users by id; see `SocialNetwork.get_users`."""
        users: list[User | None] = []
        for page in pages(uids, AT_ONCE):
            users += yield from read_records(self._layout, "user", page, user_of)
        return users

    def id_of(self, login: str) -> Operation[int | None]:
        """Return the id of the user with a login; None if there is none."""
        compared, part = self._login(login)
        key = self._layout.of_part("logins", part)
        [uid] = yield [self._layout.at_user(key, "HGET", key, compared)]
        return None if uid is None else stored_ids(self._layout.users, key, [uid])[0]

    def _login(self, login: str) -> tuple[str, int]:
        compared = login_key(self._layout.name, login)
        return compared, crc32(compared.encode()) % self._layout.parts


class Lists:
    """A network's lists, at most ``limit`` for each user."""

    def __init__(self, layout: KeyLayout, limit: int) -> None:
        self._layout = layout
        self._limit = limit

    def create(self, uid: int, name: str, idempotency_key: str | None) -> Operation[int | None]:
        """Create a list; see `SocialNetwork.create_list`."""
        layout = self._layout
        if not check_text(layout.name, "name", name) or len(name) > LONGEST_NAME:
            raise InvalidArgumentError(
                f"{layout.name}: a list's name of {counted(len(name), 'character')}",
                f"give 1 to {LONGEST_NAME}",
            )
        keys = [layout.owned("user", uid), layout.near("ids", uid), layout.owned("lists", uid)]
        keys += layout.once("list", uid, idempotency_key)
        arguments = (*layout.new_record(uid), self._limit, uid, name, IDEMPOTENCY_TTL)
        [list_id] = yield [lua_call(layout.users, "social/create_list", keys, arguments)]
        return int(list_id) if list_id else None

    def get(self, lists: Sequence[int]) -> Operation[list[UserList | None]]:
        """Return lists by id."""
        return (yield from read_records(self._layout, "list", lists, list_of))

    def of(self, uid: int) -> Operation[list[UserList]]:
        """Return a user's lists, oldest first."""
        key = self._layout.owned("lists", uid)
        [ids] = yield [self._layout.at_user(key, "ZRANGE", key, 0, -1)]
        lists = yield from self.get(stored_ids(self._layout.users, key, ids))
        return [each for each in lists if each is not None]
