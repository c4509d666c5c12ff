"""Users: created with their login in one script, found by id or by login.

A login determines the part of its user, so one script reserves the login and writes the user. No
login is ever left without its user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

from shardkit.operations.commands import script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation, pages
from shardkit.social.base.keys import KeyLayout
from shardkit.social.base.models import (
    USER_FIELDS,
    Extra,
    User,
    check_text,
    flat_extras,
    login_key,
    read_records,
    stored_ids,
    user_of,
)

AT_ONCE = 1000


class Users:
    """A network's users.

    Args:
        layout: the network's keys.
    """

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
        arguments = (layout.record_suffix(part), part, layout.parts, compared, once, *fields)
        call = script_call(layout.users, script("social/create_user"), keys, arguments)
        [uid] = yield [call]
        return None if uid is None else stored_ids(layout.users, keys[0], [uid])[0]

    def get(self, uids: Sequence[int]) -> Operation[list[User | None]]:
        """Return users by id; see `SocialNetwork.get_users`."""
        found: list[User | None] = []
        for page in pages(uids, AT_ONCE):
            found += yield from read_records(self._layout, "user", page, user_of)
        return found

    def id_of(self, login: str) -> Operation[int | None]:
        """Return the id of the user with a login; None if there is none."""
        compared, part = self._login(login)
        key = self._layout.of_part("logins", part)
        [uid] = yield [self._layout.at_user(key, "HGET", key, compared)]
        return None if uid is None else stored_ids(self._layout.users, key, [uid])[0]

    def _login(self, login: str) -> tuple[str, int]:
        compared = login_key(self._layout.name, login)
        return compared, crc32(compared.encode()) % self._layout.parts
