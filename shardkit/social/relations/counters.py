"""Counters of relations that are exact whatever happens, although relations live elsewhere.

An account's followers live in many parts, its counter in the account's HASH. Adding one to it
after each follow would go wrong when a process ends in between, or when a step is repeated; setting
it from a count that was made elsewhere goes wrong when two do so in the wrong order. So each part
says how many it has *now*, with a version that grows with each change of that part, and the account
remembers both and takes the difference::

    followers  16        the sum of what is known of all parts
    :f3        1763738292123456 5
    :f11       1763738295000001 11

A count that comes late, or twice, has no later version and changes nothing. A count that got lost
is made good by the next one of its part, or by a recount. That is a register for each part in which
the last writer wins (M. Shapiro and others, "Conflict-free replicated data types", 2011).
"""

from __future__ import annotations

from typing import NamedTuple

from shardkit.errors import InvalidArgumentError
from shardkit.lua import script
from shardkit.operations.commands import Command, script_call
from shardkit.social.base.keys import FOLLOWING, LIST, USER, KeyLayout, RelationKind
from shardkit.structures.base.arguments import shown

_FIELDS = {USER.incoming: ":f", FOLLOWING: ":g", LIST.incoming: ":l"}


class CounterState(NamedTuple):
    """A counter that took something in.

    Attributes:
        total: what it says now.
        mode: how the account's posts reach readers.
        version: the version of the mode.
        changed: whether that has just changed.
    """

    total: int
    mode: str
    version: str
    changed: bool


class Counters:
    """Makes the commands that count.

    Args:
        layout: where the keys are.
        fan_out_limit: with more followers than that, posts are fetched, not pushed; 0: never.
    """

    def __init__(self, layout: KeyLayout, fan_out_limit: int) -> None:
        self._layout = layout
        self._high = fan_out_limit
        # Somewhat lower, so that one follower who comes and goes does not move all the others.
        self._low = fan_out_limit - fan_out_limit // 5

    def take_in(
        self, kind: RelationKind, what: str, id_: int, part: int, version: int, count: int
    ) -> Command:
        """Return the command by which an account takes in the count of a part.

        Args:
            kind: what the account is.
            what: the counter.
            id_: the account.
            part: the part of the relations.
            version: the version of the count.
            count: how many there are.
        """
        layout = self._layout
        readers = what != FOLLOWING
        arguments = (
            what,
            f"{_FIELDS[what]}{part}",
            version,
            count,
            self._high if readers else 0,
            self._low,
            mode_change_note(id_),
        )
        keys = [layout.owned(kind.account, id_), layout.near("pending", id_)]
        call = script("social/relations/count")
        return script_call(layout.users, call, keys, arguments, idempotent=True)

    @staticmethod
    def counted(reply: list[object] | None) -> CounterState | None:
        """Return what a counter answered; None if there is no such account."""
        if reply is None:
            return None
        total, mode, version, changed = reply
        assert isinstance(total, int)
        assert isinstance(mode, bytes)
        assert isinstance(version, bytes)
        return CounterState(total, mode.decode(), version.decode(), changed == 1)

    @staticmethod
    def known_parts(fields: dict[bytes, bytes], what: str) -> set[int]:
        """Return the parts that an account knows counts of."""
        start = _FIELDS[what].encode()
        return {int(name[2:]) for name in fields if name.startswith(start)}


def mode_change_note(uid: int) -> str:
    """Return what is pending while an account changes between pushing and fetching."""
    return f"cross:{uid}"


def check_limits(owner: str, fan_out_limit: int) -> None:
    """Check limits that depend on one another.

    Raises:
        InvalidArgumentError: they do not go together.
    """
    if fan_out_limit and fan_out_limit < 5:
        raise InvalidArgumentError(
            f"{owner}: fan_out_limit={shown(fan_out_limit)}",
            "give 5 or more, or 0 to push always",
        )
