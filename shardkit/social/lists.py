"""Lists: a user's selections of accounts, each with a timeline of their posts.

A list resembles a user: its id comes from the same sequence, it follows accounts, and their posts
are written to its timeline. It lives in the part of its owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import REMEMBERED, KeyLayout
from shardkit.social.base.models import UserList, check_text, list_of, read_records, stored_ids

LONGEST_NAME = 200


class Lists:
    """A network's lists.

    Args:
        layout: the network's keys.
        limit: the most lists that a user may have.
    """

    def __init__(self, layout: KeyLayout, limit: int) -> None:
        self._layout = layout
        self._limit = limit

    def create(self, uid: int, name: str, idempotency_key: str | None) -> Operation[int | None]:
        """Create a list; None if there is no such user, or the limit is reached."""
        layout = self._layout
        if not check_text(layout.name, "name", name) or len(name) > LONGEST_NAME:
            raise InvalidArgumentError(
                f"{layout.name}: a list's name of {len(name):,} characters",
                f"give 1 to {LONGEST_NAME}",
            )
        part = uid % layout.parts
        keys = [layout.owned("user", uid), layout.near("ids", uid), layout.owned("lists", uid)]
        keys += layout.once("list", uid, idempotency_key)
        suffix = layout.record_suffix(part)
        arguments = (suffix, part, layout.parts, self._limit, uid, name, REMEMBERED)
        call = script_call(layout.users, script("social/create_list"), keys, arguments)
        [created] = yield [call]
        return int(created) if created else None

    def get(self, lists: Sequence[int]) -> Operation[list[UserList | None]]:
        """Return lists by id."""
        return (yield from read_records(self._layout, "list", lists, list_of))

    def of(self, uid: int) -> Operation[list[UserList]]:
        """Return a user's lists, oldest first. Cost: two exchanges."""
        key = self._layout.owned("lists", uid)
        [ids] = yield [self._layout.at_user(key, "ZRANGE", key, 0, -1)]
        found = yield from self.get(stored_ids(self._layout.users, key, ids))
        return [each for each in found if each is not None]
