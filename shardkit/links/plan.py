"""Which request of a batch goes to which shard. Pure: the components are looked up beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_, itemgetter
from typing import NamedTuple, TypeAlias

from shardkit.commands import Batch, Command, Home, Key, Locate, Shard, ShardOf, To
from shardkit.config.component import Component
from shardkit.links.packing import Alike, Arguments
from shardkit.routing.placement import slot_of

Components: TypeAlias = Mapping[str, Component]


# Of a Command; many times faster than its names.
_TO, _KEY, _ARGS, _SCRIPT, _BLOCK = map(itemgetter, (0, 1, 2, 3, 5))
_FIRST_ARGUMENT = itemgetter(1)
# A shorter batch is grouped one by one; looking whether its requests are alike would cost more.
_ALIKE = 8
# So many are passed over again and again while they are in the processor's cache.
_SLICE = 2000


class Group(NamedTuple):
    """The positions of the requests that go to one shard.

    Attributes:
        block: how long the (only) one may block.
        plain: whether all are known to be commands without scripts.
        alike: the same commands by column, if they are alike.
    """

    shard: Shard
    positions: Sequence[int]
    block: float | None = None
    plain: bool = False
    alike: Alike | None = None


def components_of(targets: Iterable[To]) -> set[str]:
    """Return the components that are named."""
    return {to if type(to) is str else to.component for to in targets}  # type: ignore[union-attr]


def components_in(batch: Batch, todo: Sequence[int]) -> set[str]:
    """Return the components of the requests at the positions ``todo``."""
    if len(todo) == len(batch):
        return components_of(set(map(_TO, batch)))
    return components_of(batch[position].to for position in todo)


def plan(batch: Batch, todo: Sequence[int], components: Components) -> list[Group]:
    """Group the requests at the positions ``todo`` by shard; one that may block stays alone."""
    if len(todo) == len(batch) >= _ALIKE:
        found = _plan_alike(batch, components)
        if found is not None:
            return found
    groups: dict[tuple[str, int | None], list[int]] = {}
    alone: list[Group] = []
    for position in todo:
        request = batch[position]
        to = request.to
        if type(to) is str:  # the usual case, without a function call
            component = components[to]
            where = (to, component.place(request.key) if component.shards else None)
        else:
            where = place(to, request.key, components)
        if type(request) is Command and request.block is not None:
            alone.append(Group(Shard(*where), [position], request.block))
            continue
        try:
            groups[where].append(position)
        except KeyError:
            groups[where] = [position]
    return [Group(Shard(*where), positions) for where, positions in groups.items()] + alone


def _plan_alike(batch: Batch, components: Components) -> list[Group] | None:
    """Group commands for one component; None if the batch holds anything else."""
    to, plain = batch[0].to, True
    for start in range(0, len(batch), _SLICE):
        part = batch[start : start + _SLICE]
        # Counting in a list takes half of the time that gathering in a set does.
        if (
            list(map(type, part)).count(Command) < len(part)
            or list(map(_BLOCK, part)).count(None) < len(part)
            or list(map(_TO, part)).count(to) < len(part)
        ):
            return None
        plain = plain and list(map(_SCRIPT, part)).count(None) == len(part)
    if type(to) is Home and components[to.component].entry is None:
        to = to.component
    if type(to) is not str or not components[to].shards:
        return [Group(place(to, batch[0].key, components), range(len(batch)), None, plain)]
    component = components[to]
    positions: list[list[int]] = [[] for _ in component.shards]
    tables = _Tables(len(positions)) if plain else None
    for start in range(0, len(batch), _SLICE):
        part = batch[start : start + _SLICE]
        keys: Sequence[Key] = list(map(_KEY, part))
        alike = None
        if tables is not None:
            alike = tables.columns_of(list(map(_ARGS, part)))
            if alike is None:
                tables = None
            elif all(map(is_, map(_FIRST_ARGUMENT, map(_ARGS, part)), keys)):
                keys = alike.columns[0]  # encoded already
        numbers = component.place_all(keys)
        for position, number in enumerate(numbers, start):
            positions[number].append(position)
        if tables is not None and alike is not None:
            tables.deal(alike, numbers)
    return [
        Group(Shard(to, number), mine, None, plain, tables.of(number) if tables else None)
        for number, mine in enumerate(positions)
        if mine
    ]


class _Tables:
    """Commands that are alike, by column, dealt out to shards slice by slice.

    Everything that a command consists of is looked at while its slice is in the processor's cache;
    what is packed later lies close together.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._name = ""
        self._columns: list[list[list[bytes]]] = []

    def columns_of(self, commands: Sequence[Arguments]) -> Alike | None:
        """Return a slice by column; None if it is not alike the slices before."""
        found = Alike.of(commands)
        if found is None:
            return None
        if not self._columns:
            self._name = found.name
            self._columns = [[[] for _ in range(self._shards)] for _ in found.columns]
        same = found.name == self._name and len(found.columns) == len(self._columns)
        return found if same else None

    def deal(self, alike: Alike, numbers: Sequence[int]) -> None:
        """Add a slice's values to those of the shards with these numbers."""
        for table, column in zip(self._columns, alike.columns, strict=True):
            add = [values.append for values in table]
            for number, value in zip(numbers, column, strict=True):
                add[number](value)

    def of(self, shard: int) -> Alike:
        """Return a shard's commands."""
        return Alike(self._name, [table[shard] for table in self._columns])


def place(to: To, key: Key, components: Components) -> Shard:
    """Return the shard that a request goes to."""
    if type(to) is Shard:
        return to
    if type(to) is str:
        return components[to].shard_of(key)
    component = components[to.component]  # type: ignore[union-attr]
    if isinstance(to, ShardOf) and component.shards:
        component.require_shards(to.shards)
        return Shard(to.component, to.number)
    if component.entry is not None:
        return Shard(component.name)
    return component.shard_of(key)


def locate(request: Locate, components: Components) -> list[tuple[Shard, int | None]]:
    """Return where each key lives."""
    found = []
    for to, key in request.targets:
        shard = place(to, key, components)
        entry = components[shard.component].entry_of(shard)
        found.append((shard, slot_of(key) if entry.is_cluster else None))
    return found
