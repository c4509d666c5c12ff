"""Where a list in pieces ends, and so which piece a value is in.

::

    {jobs}:ends     first=-1  last=2  left=2  right=3  part_size=4

    piece           -1          0               1               2
                 [ · · a b ] [ c d e f ] [ g h i j ] [ k l m · ]
    index              0 1     2 3 4 5     6 7 8 9     10 11 12

Pieces between the ends are full, so index 7 is 7 - 2 = 5 behind the first piece: in piece
-1 + 1 + 5 // 4 = 1, the value 5 % 4 = 1 of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FIELDS = ("first", "last", "left", "right", "part_size")


class Ends(NamedTuple):
    """The ends of a list.

    Attributes:
        first, last: the ids of the end pieces; the same in a list of one piece, or of none.
        left, right: how many values these hold.
        part_size: how many a piece takes; 0 if nothing was ever pushed.
    """

    first: int
    last: int
    left: int
    right: int
    part_size: int

    @classmethod
    def read(cls, reply: Sequence[bytes | None]) -> Ends:
        """Read what HMGET says of FIELDS."""
        return cls(*(int(field or 0) for field in reply))

    @property
    def length(self) -> int:
        """How many values there are."""
        if self.first == self.last:
            return self.left
        return self.left + self.right + (self.last - self.first - 1) * self.part_size

    def find(self, index: int) -> tuple[int, int] | None:
        """Return the piece that a value is in, and which one there; None if there is none."""
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            return None
        if index < self.left:
            return self.first, index
        beyond, place = divmod(index - self.left, self.part_size)
        return self.first + 1 + beyond, place
