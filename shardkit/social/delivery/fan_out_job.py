"""Jobs: what has to be done for all followers of an account, one pass after another.

A job is a value that a task of a queue carries; each pass makes the next job of it. It stores its
progress in each part of the relations, as the last follower's version and id, so that nobody is
skipped or visited twice, whoever follows or leaves meanwhile.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from shardkit.operations.commands import To
from shardkit.social.base.keys import KINDS, RelationKind

POST: Final = "post"
DELETE: Final = "delete"
MARK: Final = "mark"
FILL: Final = "fill"
ACTIONS: Final = (POST, DELETE, MARK, FILL)

# The position in a part: None before it has begun, the last (version, member), or DONE.
DONE: Final = 0
_KINDS: Final = tuple(KINDS.values())


class FanOutJob(NamedTuple):
    """Something to do for all followers of an account; JSON can represent it.

    Attributes:
        action: post, delete, mark or fill.
        author: the account.
        subject: the status, of a post or delete.
        time: when the status was posted.
        version: of a mark or fill, the version of the mode change.
        note: the note to remove at the end.
        turn: the number of tasks so far.
        positions: the progress in each part: of users' relations, then of lists'.
    """

    action: str
    author: int
    subject: int
    time: int
    version: str
    note: str
    turn: int
    positions: tuple[Any, ...]

    @classmethod
    def begin(
        cls,
        action: str,
        author: int,
        parts: int,
        note: str,
        *,
        subject: int = 0,
        time: int = 0,
        version: str = "",
    ) -> FanOutJob:
        """Return a job that has not begun, for followers in so many parts."""
        positions = (None,) * (len(_KINDS) * parts)
        return cls(action, author, subject, time, version, note, 0, positions)

    @property
    def task(self) -> str:
        """The id of the task that continues it: the same, whichever process queues it."""
        return f"{self.note}:{self.action}:{self.version}:{self.turn}"

    @property
    def open(self) -> list[int]:
        """The indexes of positions that are not done."""
        return [n for n, position in enumerate(self.positions) if position != DONE]

    def kind(self, n: int) -> RelationKind:
        """Return the kind of the followers whose progress position ``n`` tracks."""
        return _KINDS[n * len(_KINDS) // len(self.positions)]


class FollowerPage(NamedTuple):
    """Followers of one kind in one part, as a pass has read them.

    Attributes:
        kind: their kind.
        to: the shard of the part.
        key: the key of the account's followers there.
        rows: their ids and versions.
    """

    kind: RelationKind
    to: To
    key: str
    rows: list[tuple[bytes, int]]
