"""Members that are numbers, in order: number ``n`` is in part ``n // part_size``.

::

    cities:parts     SET    {0, 1}                 which parts there are, 64 in a row at a time
    cities:2890      HASH   {80: …, 81: …}         fields 369920 to 370047, in parts of 128

    field 370001  ──►  part 370001 // 128 = 2890, stored as 370001 % 128 = 81

What a part does not know of a member, its number says: so a member is stored as what is left over,
2 bytes of a listpack in parts of 128 where the whole would take up to 11. Digits that are not how a
number is written (``007``) are in the part of their number, but stored as they are, and so remain a
member of their own.

Members that are no numbers are left to another layout. A `Fixed` one shares its parts with the
numbers; what is in a part tells the two apart, as what is stored in short is always a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shardkit.operations.commands import Argument, Columns, Command, Reply
from shardkit.operations.operation import Operation
from shardkit.structures.base.part_registry import Extents
from shardkit.structures.base.parted import PARTS_AT_ONCE
from shardkit.structures.layouts.base import Build, Chunk, Layout, T
from shardkit.structures.layouts.fixed import Fixed

PARTS_IN_AN_EXTENT = 64
LONGEST_NUMBER = 4300  # digits; Python reads no longer ones


class Numbered(Layout):
    """Parts that numbers decide; what is no number is left to another layout.

    Args:
        component: where they live.
        name: the prefix of their keys.
        part_size: how many numbers share a part.
        rest: the layout of other members.
    """

    def __init__(self, component: str, name: str, part_size: int, rest: Layout) -> None:
        self._component = component
        self._name = name
        self._size = part_size
        self._digits = len(str(part_size - 1))
        self._rest = rest
        self._extents = Extents(component, name, PARTS_IN_AN_EXTENT)
        self._parts: list[int] = []

    def place(self, member: bytes) -> tuple[int, bytes] | None:
        """Return a number's part and how it is stored there; None for what is no number."""
        if not member.isdigit() or len(member) > LONGEST_NUMBER:
            return None
        part, left = divmod(int(member), self._size)
        return part, member if member[0] == 48 and len(member) > 1 else b"%d" % left

    def member(self, part: int | None, stored: bytes) -> bytes:
        """See `Layout.member`."""
        if part is None or len(stored) > self._digits or not stored.isdigit():
            return stored
        if stored[0] == 48 and len(stored) > 1:
            return stored
        return b"%d" % (part * self._size + int(stored))

    def one(self, name: str, member: bytes, *args: Argument) -> Operation[Reply]:
        """See `Layout.one`."""
        place = self.place(member)
        if place is None:
            return (yield from self._rest.one(name, member, *args))
        key = f"{self._name}:{place[0]}"
        [reply] = yield [Command(self._component, key, (name, key, place[1], *args), None, True)]
        return reply

    def read(
        self, members: Iterable[tuple[bytes, T]], build: Build[T]
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """See `Layout.read`."""
        numbers, others = self._sorted(members)
        results = yield from self._send(numbers, build, idempotent=True)
        if others:
            results += yield from self._rest.read(others, build)
        return results

    def write(
        self, members: Iterable[tuple[bytes, T]], build: Build[T], *, adds: bool = True
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """See `Layout.write`."""
        numbers, others = self._sorted(members)
        if adds and numbers:
            yield from self._extents.add(place[0] for place, _ in numbers)
        results = yield from self._send(numbers, build, idempotent=False)
        if others:
            results += yield from self._rest.write(others, build, adds=adds)
        return results

    def _sorted(
        self, members: Iterable[tuple[bytes, T]]
    ) -> tuple[list[tuple[tuple[int, bytes], T]], list[tuple[bytes, T]]]:
        numbers, others = [], []
        for member, owned in members:
            place = self.place(member)
            if place is None:
                others.append((member, owned))
            else:
                numbers.append((place, owned))
        return numbers, others

    def _send(
        self, numbers: list[tuple[tuple[int, bytes], T]], build: Build[T], *, idempotent: bool
    ) -> Operation[list[tuple[list[T], Reply]]]:
        if not numbers:
            return []
        groups: dict[int, tuple[list[bytes], list[T]]] = {}
        for (part, stored), owned in numbers:
            group = groups.setdefault(part, ([], []))
            group[0].append(stored)
            group[1].append(owned)
        replies = yield [
            self._command(part, idempotent, *build(*group)) for part, group in groups.items()
        ]
        return [(owned, r) for (_, owned), r in zip(groups.values(), replies, strict=True)]

    def look(self) -> Operation[None]:
        """See `Layout.look`: reads which parts there are."""
        parts = self._extents.parts((yield from self._extents.read()))
        if isinstance(self._rest, Fixed):
            self._parts = sorted({*parts, *range(self._rest.count)})
        else:
            self._parts = list(parts)
            yield from self._rest.look()

    def chunks(self, size: int) -> Iterator[Chunk]:
        """See `Layout.chunks`: the parts of numbers in order, then the others."""
        for start in range(0, len(self._parts), size):
            yield _Numbers(self._parts[start : start + size])
        if not isinstance(self._rest, Fixed):
            yield from self._rest.chunks(size)

    def ask(
        self, chunk: Chunk, name: str, *args: Argument
    ) -> Operation[list[tuple[int | None, Reply]]]:
        """See `Layout.ask`."""
        if not isinstance(chunk, _Numbers):
            return (yield from self._rest.ask(chunk, name, *args))
        keys = list(map(self._key, chunk))
        replies = yield Columns.each(self._component, name, keys, *args, idempotent=True)
        return list(zip(chunk, replies, strict=True))

    def to_all(self, name: str, *args: Argument) -> Operation[int]:
        """See `Layout.to_all`; what says which parts there are comes last."""
        yield from self.look()
        total = 0
        for start in range(0, len(self._parts), PARTS_AT_ONCE):
            keys = list(map(self._key, self._parts[start : start + PARTS_AT_ONCE]))
            total += sum((yield Columns.each(self._component, name, keys, *args)))
        if not isinstance(self._rest, Fixed):
            total += yield from self._rest.to_all(name, *args)
        key = self._extents.key
        return total + sum((yield [Command(self._component, key, (name, key, *args))]))

    def forget(self) -> None:
        """See `Layout.forget`."""
        self._extents.forget()
        self._rest.forget()

    def _command(self, part: int, idempotent: bool, name: Any, *args: Argument) -> Command:
        key = self._key(part)
        return Command(self._component, key, (name, key, *args), None, idempotent)

    def _key(self, part: int) -> str:
        return f"{self._name}:{part}"


class _Numbers(list[int]):
    """A chunk of the numbered parts."""
