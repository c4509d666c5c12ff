"""Members that are numbers, in order: number ``n`` is in part ``n // part_size``.

::

    cities:parts     SET    {0, 45}                the ranges of 64 parts that were written to
    cities:2890      HASH   {80: …, 81: …}         field 370001 is stored as 370001 % 128 = 81

A remainder takes 2 bytes of a listpack in parts of 128, the whole number up to 11. Digits with
leading zeros (``007``) go to the part of their number, but are stored unchanged. Another layout
stores members that are not numbers. If that is a `FixedLayout`, the two share parts; a stored
number shorter than ``part_size`` is always a remainder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from shardkit.operations.commands import Argument, Columns, Command, Reply, raise_failures
from shardkit.operations.operation import Operation
from shardkit.structures.base.parameters import ChangeScope, Metadata
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import LONGEST_NUMBER, PartRegistry, send_to_parts
from shardkit.structures.layouts.base import (
    Build,
    Chunk,
    Done,
    FixedLayout,
    LayoutBase,
    Pairs,
    PartReplies,
    Parts,
    T,
    by_part,
    members_of,
    write_parts,
)
from shardkit.structures.layouts.growing import GrowingLayout

PARTS_PER_RANGE = 64
_DIGITS = [b"%d" % n for n in range(1024)]  # remainders' digits: four times as fast as formatting


Rest: TypeAlias = FixedLayout | GrowingLayout


class NumberedLayout(LayoutBase):
    """Parts by number; the layout ``rest`` stores members that are not numbers."""

    def __init__(self, component: str, name: str, part_size: int, rest: Rest) -> None:
        self.component = component
        self._name = name
        self._size = part_size
        self._digits = len(str(part_size - 1))
        self.rest = rest
        self.registry = self.registry_at(name)
        self._parts: list[int] = []

    def registry_at(self, prefix: str) -> PartRegistry:
        """Return the registry of parts with a prefix."""
        highest = (10**LONGEST_NUMBER - 1) // self._size
        return PartRegistry(self.component, prefix, PARTS_PER_RANGE, highest)

    def follow(self, number: int, total: int) -> None:
        """See `FixedLayout.follow`."""
        assert isinstance(self.rest, FixedLayout)
        self.rest.follow(number, total)
        self._name = self.rest.plan.prefix
        self.registry = self.registry_at(self._name)

    def place(self, member: bytes) -> tuple[int, bytes] | None:
        """Return a number's part and its stored form; None if it is not a number."""
        if not member.isdigit() or len(member) > LONGEST_NUMBER:
            return None
        part, left = divmod(int(member), self._size)
        if member[0] == 48 and len(member) > 1:
            return part, member
        return part, _DIGITS[left] if left < len(_DIGITS) else b"%d" % left

    def member(self, part: int | None, stored: bytes) -> bytes:
        """See `LayoutBase.member`."""
        if part is None or len(stored) > self._digits or not stored.isdigit():
            return stored
        if stored[0] == 48 and len(stored) > 1:
            return stored
        return b"%d" % (part * self._size + int(stored))

    def read_one(self, name: str, member: bytes, *args: Argument) -> Operation[Reply]:
        """See `FixedLayout.read_one`."""
        place = self.place(member)
        if place is None:
            return (yield from self.rest.read_one(name, member, *args))
        key = self.key(place[0])
        sent = (name, key, place[1], *args) if args else (name, key, place[1])
        return (yield [Command(self.component, key, sent)])[0]

    def read(self, members: Pairs[T], build: Build[T]) -> Operation[Done[T]]:
        """See `FixedLayout.read`."""
        numbers, others = self._sorted(members)
        results: Done[T] = []
        if numbers:
            groups = by_part(numbers)
            replies = yield [
                self.at(self.key(part), *build(*group)) for part, group in groups.items()
            ]
            results += ((owned, r) for (_, owned), r in zip(groups.values(), replies, strict=True))
        if others:
            results += yield from self.rest.read(others, build)
        return results

    def write(self, members: Pairs[T], build: Build[T], *, adds: bool = True) -> Operation[Done[T]]:
        """See `FixedLayout.write`."""
        numbers, others = self._sorted(members)
        results: Done[T] = []
        if numbers:
            assert self.meta is not None
            yield from self.meta.wait_for_plan()
            groups = by_part(numbers)
            plan, prefix = 1, self._name
            if isinstance(self.rest, FixedLayout):
                plan, prefix = self.rest.plan.number, self.rest.plan.prefix
            sent = ((f"{prefix}:{part}", *group) for part, group in groups.items())
            parts = {f"{prefix}:{part}": part for part in groups}
            registry = self.registry if adds else None
            results, left, failures = yield from write_parts(
                self.meta, self.component, sent, build, registry, parts, plan
            )
            if left:
                again = [
                    (key, [self.member(parts[key], field) for field in stored], owned)
                    for key, stored, owned in left
                ]
                rest = members_of(again, bare=False)
                results += yield from self.write(rest, build, adds=adds)
            raise_failures(failures)
        if others:
            results += yield from self.rest.write(others, build, adds=adds)
        return results

    def _sorted(
        self, members: Pairs[T]
    ) -> tuple[list[tuple[int, bytes, T]], list[tuple[bytes, T]]]:
        numbers, others = [], []
        for member, owned in members:
            place = self.place(member)
            if place is None:
                others.append((member, owned))
            else:
                numbers.append((*place, owned))
        return numbers, others

    def part_count(self) -> int:
        """See `LayoutBase.part_count`."""
        return self.rest.part_count()

    def key_of(self, member: bytes) -> str:
        """See `FixedLayout.key_of`."""
        place = self.place(member)
        return self.rest.key_of(member) if place is None else self.key(place[0])

    def part_keys(self) -> Iterator[str]:
        """See `FixedLayout.part_keys`."""
        yield from map(self.key, self._parts)
        if not isinstance(self.rest, FixedLayout):
            yield from self.rest.part_keys()

    def data_keys(self) -> Iterable[str]:
        """See `FixedLayout.data_keys`."""
        return (self.registry.key, self.key(0), *self.rest.data_keys())

    def refresh(self) -> Operation[None]:
        """See `FixedLayout.refresh`: reads the registered parts."""
        yield from self.refresh_numbers()
        if not isinstance(self.rest, FixedLayout):
            yield from self.rest.refresh()

    def refresh_numbers(self) -> Operation[None]:
        """Read the registered parts of numbers. Cost: one exchange."""
        registry, rest = self.registry, self.rest
        plan = rest.plan if isinstance(rest, FixedLayout) else None
        parts = registry.parts((yield from registry.read()))
        if plan is not None:
            self._parts = Parts(sorted({*parts, *range(plan.count)}), plan)
        else:
            self._parts = list(parts)

    def holds(self, part: int, stored: bytes) -> bool:
        """Return whether a stored member belongs to a part."""
        if self.place(self.member(part, stored)) == (part, stored):
            return True
        rest = self.rest
        if not isinstance(rest, FixedLayout) or self.place(stored) is not None:
            return False
        return rest.holds(part, stored)

    @property
    def first_parts(self) -> range:
        """The parts of numbers in the first range."""
        return range(self.rest.count if isinstance(self.rest, FixedLayout) else 0, PARTS_PER_RANGE)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """See `FixedLayout.chunks`: the parts of numbers in order, then the others."""
        parts = self._parts
        for start in range(0, len(parts), size):
            page = parts[start : start + size]
            yield Parts(page, parts.plan) if isinstance(parts, Parts) else page
        if not isinstance(self.rest, FixedLayout):
            yield from self.rest.chunks(size)

    def read_parts(self, chunk: Chunk, name: str, *args: Argument) -> Operation[PartReplies]:
        """See `FixedLayout.read_parts`."""
        if not isinstance(chunk[0], int):  # a part of the other layout
            return (yield from self.rest.read_parts(chunk, name, *args))
        prefix = chunk.plan.prefix if isinstance(chunk, Parts) else self._name
        keys = [f"{prefix}:{part}" for part in chunk]
        replies = yield Columns.each(self.component, name, keys, *args)
        return list(zip(chunk, replies, strict=True))

    def send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        """See `FixedLayout.send_to_all`; the registry comes last."""
        assert self.meta is not None
        yield from self.refresh()
        parts = list(self._parts)
        if name == "UNLINK":  # the registry may have lost parts: remove all of the first ones
            parts += yield from self.registry.unregistered(self.first_parts)
        total = 0
        for start in range(0, len(parts), PARTS_AT_ONCE):
            keys = list(map(self.key, parts[start : start + PARTS_AT_ONCE]))
            total += yield from send_to_parts(self.meta, generation, name, keys, *args)
        if not isinstance(self.rest, FixedLayout):
            total += yield from self.rest.send_to_all(generation, name, *args)
        keys = [self.registry.key]
        return total + (yield from send_to_parts(self.meta, generation, name, keys, *args))

    def verify(self, members: int) -> Operation[None]:
        """See `LayoutBase.verify`: of members that are not numbers."""
        return self.rest.verify(members)

    def bind(self, meta: Metadata) -> None:
        """See `LayoutBase.bind`."""
        super().bind(meta)
        meta.leased = True
        self.rest.bind(meta)
        if isinstance(self.rest, FixedLayout):
            meta.follow = self.follow

    def reset(self) -> None:
        """See `LayoutBase.reset`."""
        self.registry.reset()
        self.rest.reset()

    def key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self._name}:{part}"


Layout: TypeAlias = FixedLayout | GrowingLayout | NumberedLayout
