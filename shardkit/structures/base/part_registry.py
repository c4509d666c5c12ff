"""Which parts a structure has, when numbers alone decide the parts and may be any.

A hash of fields ``0, 1, 2, …`` or an array of records by id needs no total: id ``n`` is in part
``n // part_size``, however large. To visit all parts, somebody must know which there are::

    location:parts     SET   {0, 1, 133}        the extents in which something was ever written

An *extent* is so many parts in a row. It is written down before the first write into it, by whoever
does not know yet that it is: so a crash leaves an extent too many, never one too few, and a process
pays for each extent once. For small parts an extent is many, which keeps the set small: a hash of
100 million sequential ids in parts of 128 has 763 extents of 1,024.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardkit.operations.commands import Argument, Command, To
from shardkit.operations.operation import Operation


class Extents:
    """The extents of one structure, shared by all its faces.

    Args:
        to: where the set of them is stored.
        name: the structure's name.
        parts_each: how many parts an extent has.

    Attributes:
        key: the key of the set.
    """

    def __init__(self, to: To, name: str, parts_each: int = 1) -> None:
        self.key = f"{name}:parts"
        self.parts_each = parts_each
        self._to = to
        self._known: set[int] = set()

    def add(self, parts: Iterable[int]) -> Operation[None]:
        """Write down the extents of parts that are going to be written to.

        Cost: none when this process knows them, else one exchange.
        """
        new = {part // self.parts_each for part in parts} - self._known
        if new:
            sent: tuple[Argument, ...] = ("SADD", self.key, *sorted(new))
            yield [Command(self._to, self.key, sent, idempotent=True)]
            self._known |= new

    def read(self) -> Operation[list[int]]:
        """Return the extents that there are, in order. Cost: one exchange."""
        [members] = yield [Command(self._to, self.key, ("SMEMBERS", self.key), idempotent=True)]
        extents = sorted(map(int, members))
        self._known |= set(extents)
        return extents

    def parts(self, extents: Iterable[int]) -> Iterator[int]:
        """Return the parts of extents, in order."""
        for extent in extents:
            yield from range(extent * self.parts_each, (extent + 1) * self.parts_each)

    def forget(self) -> None:
        """Know nothing: the structure was deleted."""
        self._known.clear()
