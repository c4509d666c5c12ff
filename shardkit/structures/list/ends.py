"""The ends of a list in parts, which locate every value.

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

from shardkit.structures.base.damage import damage, stored_integer

MOST_PARTS = 2**50
FIELDS = ("first", "last", "left", "right", "part_size")
UNFINISHED = b"0"  # the part size while a client changes many parts


class Ends(NamedTuple):
    """The ends of a list."""

    first: int  # the number of the first part
    last: int
    left: int  # how many values the first part holds
    right: int
    part_size: int  # 0 if nothing was ever pushed

    @classmethod
    def parse(cls, component: str, key: str, reply: Sequence[bytes | None]) -> Ends:
        """Parse the reply to an HMGET of FIELDS."""
        if not any(reply):
            return cls(0, 0, 0, 0, 0)
        size = stored_integer(component, key, "part_size", reply[4], 1)
        first = stored_integer(component, key, "first", reply[0], -MOST_PARTS, MOST_PARTS)
        last = stored_integer(component, key, "last", reply[1], first, MOST_PARTS)
        least = int(first < last)
        left = stored_integer(component, key, "left", reply[2], least, size)
        right = stored_integer(component, key, "right", reply[3], least, size)
        if not least and left != right:
            raise damage(component, key, f"left={left} right={right}", "the same number twice")
        return cls(first, last, left, right, size)

    @property
    def length(self) -> int:
        """The number of values."""
        if self.first == self.last:
            return self.left
        return self.left + self.right + (self.last - self.first - 1) * self.part_size

    def find(self, index: int) -> tuple[int, int] | None:
        """Return the part of an index and the place in it; None if there is no such index."""
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            return None
        if index < self.left:
            return self.first, index
        beyond, place = divmod(index - self.left, self.part_size)
        return self.first + 1 + beyond, place
