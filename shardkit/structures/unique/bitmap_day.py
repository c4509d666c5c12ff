r"""A day's users as bitmaps: a bit for every user's number, in parts.

::

    unique:2015-05-17:parts    SET     {0, 1, 7}    which parts there are
    unique:2015-05-17:0        STRING  16,368 bytes: users 0 to 130,943
    unique:2015-05-17:1        STRING  users 130,944 to 261,887
      ⋮
    user 130,951 came:
    ┌───────────┬─────────────────┐
    │ part 1    │ bit 7 of 130,944│         part = user // part_size, bit = user % part_size
    └───────────┴─────────────────┘

A part has all its bits from its first user on, its last bit being set (to 0) first: a string that
grows bit by bit is given up to twice the bytes that it needs. 16,368 bytes and not 16,384, because
with its header a string then just fits into what jemalloc allocates for 16 KB.

For numbers counted up from 0, as the ids of registered users are. A day takes an eighth of a byte
for every number up to the highest, whoever came; so where fewer than one in forty come, the sets of
``compact`` are smaller. Nothing is ever taken for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shardkit.lua import script
from shardkit.operations.commands import Argument, Command, script_call
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base.part_registry import PartRegistry
from shardkit.structures.unique.day import IDS_A_SCRIPT, IdsByKey, PartedDay
from shardkit.structures.unique.precision import Id, Stored

_BITS_OF = [[bit for bit in range(8) if byte >> (7 - bit) & 1] for byte in range(256)]


class BitmapDay(PartedDay):
    """A bit for every user, in parts.

    Args:
        component, key: see `shardkit.structures.unique.day.Day`.
        part_size: how many bits a part has.
    """

    sizing = "BITCOUNT"

    def __init__(self, component: str, key: str, part_size: int) -> None:
        super().__init__(component, key)
        self.part_size = part_size
        self._registry = PartRegistry(component, key)

    @property
    def beside(self) -> str:
        """The key that says which parts there are."""
        return self._registry.key

    def kept(self, visitor: Stored) -> tuple[int, Argument]:
        """Return a user's part, and the position of the bit in it."""
        return divmod(int(visitor), self.part_size)

    def place(self, visitor: Stored) -> tuple[Id, int, str]:
        """See `Day.place`."""
        part, _ = self.kept(visitor)
        return int(visitor), part, self.part_key(part)

    def opened(self, parts: Iterable[int]) -> Operation[None]:
        """Write down which parts there will be."""
        return self._registry.add(parts)

    def parts_there(self) -> Operation[Sequence[int] | None]:
        """Return the parts in which a bit was ever set."""
        return (yield from self._registry.read()) or None

    def adding(self, ids: IdsByKey) -> Iterable[Command]:
        """Return calls of a script that sets bits of a part."""
        return self._setting(ids)

    def counting(self, ids: IdsByKey) -> Iterable[Command]:
        """Return calls of a script that sets bits of a part and counts them."""
        return self._setting(ids, self.key)

    def _setting(self, ids: IdsByKey, *counter: str) -> Iterable[Command]:
        for key, sent in ids.items():
            for page in pages(sent, IDS_A_SCRIPT):
                given = (self.part_size, *page)
                keys = (key, *counter)
                yield script_call(
                    self.component, script("structures/unique/set_and_count"), keys, given
                )

    def reading(self, part: int) -> Command:
        """Return the command that reads a part's bits."""
        return self._read("GET", part)

    def listed(self, part: int, reply: Any) -> Iterable[Id]:
        """Return the users whose bits are set."""
        first = part * self.part_size
        for at, byte in enumerate(reply or b""):
            for bit in _BITS_OF[byte]:
                yield first + 8 * at + bit

    def remove(self, name: str, *args: Argument) -> Operation[int]:
        """Send a command to every part; see `PartedDay.remove`."""
        removed = yield from super().remove(name, *args)
        if name == "UNLINK":
            self._registry.reset()
        return removed
