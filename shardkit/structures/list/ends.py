"""Where a list in parts ends, which also says which part a value is in.

::

    {jobs}:ends     first=-1  last=2  left=2  right=3  part_size=4

    part            -1          0               1               2
                 [ · · a b ] [ c d e f ] [ g h i j ] [ k l m · ]
    index              0 1     2 3 4 5     6 7 8 9     10 11 12

Parts between the ends are full, so index 7 is 7 - 2 = 5 values after the first part: in part
-1 + 1 + 5 // 4 = 1, at place 5 % 4 = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FIELDS = ("first", "last", "left", "right", "part_size")


class Ends(NamedTuple):
    """The ends of a list.

    Attributes:
        first, last: the numbers of the end parts; equal in a list of one part, or of none.
        left, right: how many values they hold.
        part_size: how many values a part takes; 0 if nothing was ever pushed.
    """

    first: int
    last: int
    left: int
    right: int
    part_size: int

    @classmethod
    def parse(cls, reply: Sequence[bytes | None]) -> Ends:
        """Parse the reply to an HMGET of FIELDS."""
        return cls(*(int(field or 0) for field in reply))

    @property
    def length(self) -> int:
        """The number of values."""
        if self.first == self.last:
            return self.left
        return self.left + self.right + (self.last - self.first - 1) * self.part_size

    def find(self, index: int) -> tuple[int, int] | None:
        """Return the part of an index, and the place in it; None if there is no such index."""
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            return None
        if index < self.left:
            return self.first, index
        beyond, place = divmod(index - self.left, self.part_size)
        return self.first + 1 + beyond, place
