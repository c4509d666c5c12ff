"""Counters of relations that stay exact, although relations live on other servers.

An account's followers live in many parts, its counter in the account's HASH. Adding one to it after
each follow goes wrong when a process dies in between, or when a step is repeated; setting it to a
count made elsewhere goes wrong when two such writes arrive out of order. So each part reports how
many it has *now*, with a version that grows with each change of the part, and the account stores
both and adds the difference::

    followers  16        the sum of the counts of all parts
    :f3        1763738292123456 5
    :f11       1763738295000001 11

A count that arrives late or twice has no newer version and changes nothing. A lost count is
corrected by the next one of its part, or by a recount. This is a last-writer-wins register for each
part (M. Shapiro and others, "Conflict-free replicated data types", 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, script_call
from shardkit.operations.lua import script
from shardkit.social.base.keys import FOLLOWING, LIST, USER, KeyLayout, RelationKind
from shardkit.structures.base.arguments import check_integer

_FIELDS = {USER.incoming: ":f", FOLLOWING: ":g", LIST.incoming: ":l"}


class CounterState(NamedTuple):
    """A counter after a part's count was recorded.

    Attributes:
        total: its value.
        mode: how the account's posts reach readers.
        version: the version of the mode.
        changed: whether this count changed the mode.
    """

    total: int
    mode: str
    version: str
    changed: bool


class Counters:
    """Builds the commands that count.

    Args:
        layout: the network's keys.
        fan_out_limit: above this many followers, posts are fetched instead of pushed; 0: never.
    """

    def __init__(self, layout: KeyLayout, fan_out_limit: int) -> None:
        self._layout = layout
        self._high = fan_out_limit
        # Lower than the limit, so that one follower who comes and goes does not switch the mode.
        self._low = fan_out_limit - fan_out_limit // 5

    def record(
        self, kind: RelationKind, counter: str, id_: int, part: int, version: int, count: int
    ) -> Command:
        """Return the command that records a part's count with an account.

        Args:
            kind: the account's kind.
            counter: ``followers``, ``following`` or ``listed``.
            id_: the account.
            part: the part of the relations.
            version: the version of the count.
            count: the number of relations in the part.
        """
        layout = self._layout
        arguments = (
            counter,
            f"{_FIELDS[counter]}{part}",
            version,
            count,
            0 if counter == FOLLOWING else self._high,
            self._low,
            mode_change_note(id_),
        )
        keys = [layout.owned(kind.account, id_), layout.near("pending", id_)]
        call = script("social/relations/count")
        return script_call(layout.users, call, keys, arguments, idempotent=True)

    def recount(
        self, kind: RelationKind, counter: str, id_: int, counts: Sequence[tuple[int, int]]
    ) -> Command:
        """Return the command that sets a counter to the sum of all parts' counts.

        Args:
            kind: the account's kind.
            counter: ``followers``, ``following`` or ``listed``.
            id_: the account.
            counts: of each part, the version and the number of relations.
        """
        layout = self._layout
        numbers = (number for pair in counts for number in pair)
        arguments: list[Argument] = [counter, _FIELDS[counter], *numbers]
        call = script("social/relations/recount")
        key = layout.owned(kind.account, id_)
        return script_call(layout.users, call, [key], arguments, idempotent=True)

    @staticmethod
    def state_of(reply: list[object] | None) -> CounterState | None:
        """Return the counter in a reply; None if there is no such account."""
        if reply is None:
            return None
        total, mode, version, changed = reply
        assert isinstance(total, int)
        assert isinstance(mode, bytes)
        assert isinstance(version, bytes)
        return CounterState(total, mode.decode(), version.decode(), changed == 1)


def field_of(counter: str) -> str:
    """Return the beginning of the fields that hold what the parts have counted."""
    return _FIELDS[counter]


def mode_change_note(uid: int) -> str:
    """Return the note of an account that changes between pushing and fetching."""
    return f"cross:{uid}"


def check_fan_out_limit(owner: str, fan_out_limit: int) -> None:
    """Check the number of followers above which posts are fetched.

    Raises:
        InvalidArgumentError: it is neither 0 nor 5 or more.
    """
    check_integer(owner, "fan_out_limit", fan_out_limit, 0, 2**53)
    if 0 < fan_out_limit < 5:
        raise InvalidArgumentError(
            f"{owner}: fan_out_limit={shown(fan_out_limit)}", "give 5 or more, or 0 to push always"
        )
