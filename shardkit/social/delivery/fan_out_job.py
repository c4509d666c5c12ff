"""Jobs: what has to be done for all followers of an account, one pass after another.

A job is what a task of a queue carries, and a value: each pass makes the next job of it. It says
how far it has come in each part of the relations, by the last follower's version and id, so that
nothing is passed over and nothing comes twice, whoever follows or leaves meanwhile.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from shardkit.social.base.keys import KINDS, LIST, USER, RelationKind

POST: Final = "post"
DELETE: Final = "delete"
MARK: Final = "mark"
FILL: Final = "fill"

# Of a part: None before it has begun, the last (version, member), or 0 at its end.
Place: TypeAlias = "tuple[int, str] | list[Any] | int | None"


class FanOutJob(NamedTuple):
    """Something for all who follow an account; JSON can hold it.

    Attributes:
        what: post, delete, mark or fill.
        author: the account.
        subject: the status, of a post or delete.
        time: when the status was posted.
        version: of a mark or fill, the version of the change.
        pending: what is crossed off in the end.
        turn: how many tasks it has had.
        places: how far each part has come: of the users' relations, then of the lists'.
    """

    what: str
    author: int
    subject: int
    time: int
    version: str
    pending: str
    turn: int
    places: tuple[Any, ...]

    @classmethod
    def begin(
        cls,
        what: str,
        author: int,
        parts: int,
        pending: str,
        *,
        subject: int = 0,
        time: int = 0,
        version: str = "",
    ) -> FanOutJob:
        """Return a job that has not begun, for followers in so many parts."""
        places = (None,) * (len(KINDS) * parts)
        return cls(what, author, subject, time, version, pending, 0, places)

    @property
    def task(self) -> str:
        """The id of the task that goes on with it: the same whoever asks for it."""
        return f"{self.pending}:{self.what}:{self.version}:{self.turn}"

    @property
    def open(self) -> list[int]:
        """The places that have not come to their end."""
        return [n for n, place in enumerate(self.places) if place != 0]

    def kind_and_part(self, n: int) -> tuple[RelationKind, int]:
        """Return what a place is of."""
        parts = len(self.places) // len(KINDS)
        return (USER if n < parts else LIST), n % parts

    def next_task(self) -> FanOutJob:
        """Return the job as its next task has it."""
        return self._replace(turn=self.turn + 1)


class FollowerPage(NamedTuple):
    """Those who follow, of one kind, of one part, as a pass has read them.

    Attributes:
        kind: what they are.
        part: the part of their relations.
        rows: they, as (member, version).
    """

    kind: RelationKind
    part: int
    rows: list[tuple[bytes, int]]
