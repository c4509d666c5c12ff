"""The base of the structures with a layout: HASH, SET and ZSET."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import Any

from shardkit.operations.commands import Argument, Key
from shardkit.operations.operation import Driver, Face, Operation, Stream, stream
from shardkit.structures.base.arguments import MOST_MEMBERS, check_integer
from shardkit.structures.base.check import Damage
from shardkit.structures.base.members import Place, find
from shardkit.structures.base.parameters import ChangeScope
from shardkit.structures.base.partitioned import (
    PARTS_AT_ONCE,
    ExpirableStructure,
    check_parameters,
    restore_parameters,
)
from shardkit.structures.base.writes import is_still
from shardkit.structures.encodings.limits import FORMS, warn_if_not_compact
from shardkit.structures.layouts.base import Chunk, PartReplies
from shardkit.structures.layouts.check import check_layout, rebuild_layout, restore_index
from shardkit.structures.layouts.growing import GrowingLayout, remove_groups
from shardkit.structures.layouts.numbered import Layout

# Servers' names for the types of the forms' keys.
_TYPES = {"hash": "HASH", "zset": "ZSET", "set": "SET", "intset": "SET"}
_LENGTHS = {"hash": "HLEN", "set": "SCARD", "intset": "SCARD"}
_HOLDS = {"HASH": "HEXISTS", "ZSET": "ZSCORE", "SET": "SISMEMBER"}


class StructureWithLayout(ExpirableStructure[Face]):
    """A structure in parts whose members are located by a layout."""

    layout: Layout
    _form: str  # the servers' compact form of its parts; see `shardkit.structures.encodings.limits`
    part_size: int
    _largest_part: int  # the most members that a part may have

    def __init__(
        self, driver: Driver, component: str, name: str, parameters: Mapping[str, object]
    ) -> None:
        super().__init__(driver, component, name, parameters)
        self.layout.bind(self.meta)
        self.meta.data_keys = lambda: ((component, key) for key in self.layout.data_keys())

    @property
    def _other_keys(self) -> tuple[str, ...]:
        """Its keys besides the parts and the parameters."""
        return ()

    def _open(self, *, create: bool = False) -> Operation[None]:
        """Check the parameters; before the first write, warn of parts too large to be compact."""
        if self.meta.is_checked(create=create):
            return
        yield from super()._open(create=create)
        form, size = self._form, self._largest_part
        if create and size > FORMS[form].usual[0]:
            key = next(iter(self.layout.data_keys()))
            yield from warn_if_not_compact(self.component, key, form, size, self.name)

    def _chunks(self, size: int, count: int | None = None) -> Operation[list[Chunk]]:
        """Return all parts in chunks of at most ``size``, or of about ``count`` members."""
        if count is not None:
            check_integer(self.name, "count", count, 1, MOST_MEMBERS)
            size = min(max(1, count // self.part_size), PARTS_AT_ONCE)
        yield from self._open()
        yield from self.layout.refresh()
        return list(self.layout.chunks(size))

    def _count(self) -> Operation[int]:
        """Return the number of members: of groups, or of parts, if there are others."""
        yield from self._open()
        if isinstance(self.layout, GrowingLayout):
            count = yield from self.layout.count()
            if count is not None:
                return count
        count = 0
        for chunk in (yield from self._chunks(PARTS_AT_ONCE)):
            for _, held in (yield from self.layout.read_parts(chunk, _LENGTHS[self._form])):
                count += held
        return count

    @stream
    def check(self) -> Stream[Damage]:
        """Read everything and yield the damage; change nothing.

        Other clients may write in the meantime. See `shardkit.structures.base.check`.

        Cost: three exchanges for 64 parts, or for each group of parts; their content is in memory.
        """
        yield from self._check()

    def _check(self) -> Stream[Damage]:
        yield from check_parameters(self.meta)
        yield from check_layout(self.layout, _TYPES[self._form], self._validate_member)

    def _restore_index(self) -> Operation[None]:
        yield from restore_index(self.layout, _TYPES[self._form])

    def _remove_others(self) -> Operation[int]:
        return (yield from remove_groups(self.component, self.name))

    def _rebuild(self) -> Operation[None]:
        """Move members to their own parts, and write states and indexes again."""
        yield from restore_parameters(self.meta)
        yield from rebuild_layout(self.layout, _TYPES[self._form], self._add_if_absent)

    @abstractmethod
    def _validate_member(self, member: bytes, value: Any) -> None:
        """Raise DamagedDataError if a member or its value cannot be read."""

    @abstractmethod
    def _add_if_absent(self, members: list[bytes], values: list[Any]) -> tuple[Argument, ...]:
        """Build the command that adds one member, with its value, unless it is there."""

    def _find(self, member: bytes) -> Operation[Place | None]:
        """Find the part that holds a member. Cost: an exchange for every 1,000 parts."""
        yield from self.layout.refresh()
        places = ((self.component, key) for key in self.layout.part_keys())
        return (yield from find(places, _HOLDS[_TYPES[self._form]], member))

    def _copy(
        self, command: str, key: Key, add: Callable[[list[bytes]], Operation[int]]
    ) -> Operation[int]:
        """Copy a plain key, about 1,000 elements at a time; return how many were new."""
        new = 0
        cursor: bytes | int = 0
        while cursor != b"0":
            scan = self._at(key, command, key, cursor, "COUNT", 1000)
            [(cursor, flat)] = yield [scan]
            new += yield from add(flat)
        return new

    def _reset(self) -> None:
        self.meta.checked = False
        self.layout.reset()

    def _send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        total = yield from self.layout.send_to_all(generation, name, *args)
        for key in self._other_keys:  # they do not store their generation
            [exists] = yield [self._at(key, "EXISTS", key)]
            if exists and (yield from is_still(self.meta, generation)):
                total += sum((yield [self._at(key, name, key, *args)]))
        return total


# It has no state that forked processes would share.
_RANDOM = SystemRandom()


def random_members(
    layout: Layout, size: str, command: str, number: int, *args: Argument
) -> Operation[PartReplies]:
    """Draw random members: choose parts by their sizes, then members within each.

    ``size`` is the command for a part's size, such as SCARD; ``command`` draws from one part, such
    as SRANDMEMBER. A negative ``number`` draws independently, so that members may repeat. Returns
    parts, as `FixedLayout.read_parts`, with the reply of the command.

    Cost: one command per part, an exchange for every 1,000 parts; then an exchange or a few.
    """
    sizes: list[int] = []
    parts: list[Any] = []
    yield from layout.refresh()
    for chunk in layout.chunks(PARTS_AT_ONCE):
        replies = yield from layout.read_parts(chunk, size)
        if len(replies) == len(chunk):  # else parts split in between: start again
            parts += chunk
            sizes += (members for _, members in replies)
        else:
            return (yield from random_members(layout, size, command, number, *args))
    total = sum(sizes)
    if not total:
        return []
    if number < 0:
        drawn = _RANDOM.choices(range(len(parts)), sizes, k=-number)
    else:
        drawn = _RANDOM.sample(range(len(parts)), min(number, total), counts=sizes)
    times: defaultdict[int, int] = defaultdict(int)
    for n in drawn:
        times[n] += 1
    alike: defaultdict[tuple[int, type], list[Any]] = defaultdict(list)
    for n, count in times.items():
        alike[count, type(parts[n])].append(parts[n])
    results: PartReplies = []
    for (count, _), chunk in alike.items():
        sign = -count if number < 0 else count
        results += yield from layout.read_parts(chunk, command, sign, *args)
    return results
