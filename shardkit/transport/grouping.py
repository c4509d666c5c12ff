"""Which request of a batch goes to which shard. Pure: the components are looked up beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from shardkit.config.component import Component
from shardkit.operations.commands import (
    Batch,
    Columns,
    Command,
    Home,
    Key,
    Locate,
    PlainCommands,
    Shard,
    ShardOf,
    To,
)
from shardkit.routing.placement import slot_of
from shardkit.transport.resp import UniformCommands

Components: TypeAlias = Mapping[str, Component]


_TO_OF = itemgetter(0)  # of a Command; many times faster than its name
# Where a Command's fields are among those of many, one after the other.
_FIELDS = len(Command._fields)
_TO, _KEY, _ARGS, _SCRIPT, _BLOCK = map(
    Command._fields.index, ("to", "key", "args", "script", "block")
)
_TARGET, _TARGET_KEY = itemgetter(0), itemgetter(1)
# A shorter batch is grouped one by one; checking whether it is uniform would cost more.
_MIN_UNIFORM = 8
# So many fit into the processor's cache while they are passed over repeatedly.
_SLICE = 2000


class ServerGroup(NamedTuple):
    """The positions of the requests that go to one shard.

    Attributes:
        block: how long the (only) one may block.
        plain: whether all are known to be commands without scripts.
        uniform: the same commands by column, if they are uniform.
    """

    shard: Shard
    positions: Sequence[int]
    block: float | None = None
    plain: bool = False
    uniform: UniformCommands | None = None


def components_of(targets: Iterable[To]) -> set[str]:
    """Return the components that are named."""
    return {to if type(to) is str else to.component for to in targets}  # type: ignore[union-attr]


def components_in(batch: Batch, todo: Sequence[int]) -> set[str]:
    """Return the components of the requests at the positions ``todo``."""
    if isinstance(batch, Columns | PlainCommands):
        return components_of((batch.to,))
    if len(todo) == len(batch):
        return components_of(set(map(_TO_OF, batch)))
    return components_of(batch[position].to for position in todo)


def group_by_shard(batch: Batch, todo: Sequence[int], components: Components) -> list[ServerGroup]:
    """Group the requests at the positions ``todo`` by shard; one that may block stays alone."""
    if type(batch) is Columns and len(todo) == len(batch):
        return _group_columns(batch, components)
    if type(batch) is PlainCommands and len(todo) == len(batch):
        return _group_plain(batch, components)
    if len(todo) == len(batch) >= _MIN_UNIFORM:
        found = _group_uniform(batch, components)
        if found is not None:
            return found
    groups: dict[tuple[str, int | None], list[int]] = {}
    alone: list[ServerGroup] = []
    for position in todo:
        request = batch[position]
        to = request.to
        if type(to) is str:  # the usual case, without a function call
            component = components[to]
            where = (to, component.place(request.key) if component.shards else None)
        elif type(to) is Shard:
            where = to
        else:
            where = place(to, request.key, components)
        if type(request) is Command and request.block is not None:
            alone.append(ServerGroup(Shard(*where), [position], request.block))
            continue
        try:
            groups[where].append(position)
        except KeyError:
            groups[where] = [position]
    return [ServerGroup(Shard(*where), positions) for where, positions in groups.items()] + alone


def _group_uniform(batch: Batch, components: Components) -> list[ServerGroup] | None:
    """Group commands for one component; None if the batch holds anything else."""
    to = batch[0].to
    component = _spread(to, components)
    sharded = ShardedColumns(len(component.shards)) if component is not None else None
    plain = True
    for start in range(0, len(batch), _SLICE):
        part = batch[start : start + _SLICE]
        size = len(part)
        # Counting in a list takes half of the time that gathering in a set does.
        if list(map(type, part)).count(Command) < size:
            return None
        flat: list[Any] = list(chain.from_iterable(part))  # a third of the time of six attributes
        if flat[_BLOCK::_FIELDS].count(None) < size or flat[_TO::_FIELDS].count(to) < size:
            return None
        plain = plain and flat[_SCRIPT::_FIELDS].count(None) == size
        if sharded is not None and component is not None:
            keys = flat[_KEY::_FIELDS]
            uniform = (
                UniformCommands.of(flat[_ARGS::_FIELDS], keys)
                if plain and sharded.is_uniform
                else None
            )
            sharded.add(component, keys, uniform)
    if sharded is None or component is None:
        return [ServerGroup(place(to, batch[0].key, components), range(len(batch)), None, plain)]
    return sharded.groups(component.name, plain)


def _group_columns(batch: Columns, components: Components) -> list[ServerGroup]:
    """Group commands that are given by column."""
    if not batch.keys:
        return []
    component = _spread(batch.to, components)
    if component is None:
        shard = place(batch.to, batch.keys[0], components)
        uniform = UniformCommands.of_columns(batch.name, [batch.keys, *batch.more])
        return [ServerGroup(shard, range(len(batch)), None, True, uniform)]
    sharded = ShardedColumns(len(component.shards))
    for start in range(0, len(batch), _SLICE):
        keys = batch.keys[start : start + _SLICE]
        columns = [keys, *(column[start : start + _SLICE] for column in batch.more)]
        uniform = (
            UniformCommands.of_columns(batch.name, columns, keys) if sharded.is_uniform else None
        )
        sharded.add(component, keys, uniform)
    return sharded.groups(component.name, plain=True)


def _group_plain(batch: PlainCommands, components: Components) -> list[ServerGroup]:
    """Group commands that are given as tuples."""
    if not batch.keys:
        return []
    component = _spread(batch.to, components)
    if component is None:
        shard = place(batch.to, batch.keys[0], components)
        return [ServerGroup(shard, range(len(batch)), None, True)]
    sharded = ShardedColumns(len(component.shards))
    for start in range(0, len(batch), _SLICE):
        keys = batch.keys[start : start + _SLICE]
        rows = batch.rows[start : start + _SLICE]
        uniform = UniformCommands.of(rows, keys) if sharded.is_uniform else None
        sharded.add(component, keys, uniform)
    return sharded.groups(component.name, plain=True)


def _spread(to: To, components: Components) -> Component | None:
    """Return the component over whose shards the keys are spread; None for one place."""
    if type(to) is Home and components[to.component].entry is None:
        to = to.component
    if type(to) is str and components[to].shards:
        return components[to]
    return None


class ShardedColumns:
    """The positions and the columns of uniform commands, by shard, added slice by slice.

    All of a command is processed while its slice is in the processor's cache; what is packed later
    lies close together in memory.
    """

    def __init__(self, shards: int) -> None:
        self._positions: list[list[int]] = [[] for _ in range(shards)]
        self._size = 0
        self._name = ""
        self._columns: list[list[list[bytes]]] = []
        self.is_uniform = True

    def add(
        self, component: Component, keys: Sequence[Key], uniform: UniformCommands | None
    ) -> None:
        """Distribute a slice over the shards.

        Args:
            component: whose shards they are.
            keys: the keys that are placed.
            uniform: the same requests by column, if they are uniform.
        """
        if uniform is not None and uniform.keyed:
            keys = uniform.columns[0]  # encoded already
        numbers = component.place_all(keys)
        start, self._size = self._size, self._size + len(numbers)
        places: list[list[int]] = [[] for _ in self._positions]
        for place, number in enumerate(numbers):
            places[number].append(place)
        self._check_uniform(uniform)
        for number, own in enumerate(places):
            if not own:
                continue
            self._positions[number] += map(start.__add__, own) if start else own
            if self.is_uniform and uniform is not None:
                if len(own) == 1:
                    for table, column in zip(self._columns, uniform.columns, strict=True):
                        table[number].append(column[own[0]])
                    continue
                pick = itemgetter(*own)  # all at once: a third of the time of one by one
                for table, column in zip(self._columns, uniform.columns, strict=True):
                    table[number] += pick(column)

    def _check_uniform(self, uniform: UniformCommands | None) -> None:
        """Check whether a slice is uniform with those before."""
        if uniform is None:
            self.is_uniform = False
        elif not self._columns:
            self._name = uniform.name
            self._columns = [[[] for _ in self._positions] for _ in uniform.columns]
        elif uniform.name != self._name or len(uniform.columns) != len(self._columns):
            self.is_uniform = False

    def groups(self, component: str, plain: bool) -> list[ServerGroup]:
        """Return each shard's."""
        return [
            ServerGroup(Shard(component, number), own, None, plain, self._of(number))
            for number, own in enumerate(self._positions)
            if own
        ]

    def _of(self, shard: int) -> UniformCommands | None:
        if not self.is_uniform:
            return None
        return UniformCommands(self._name, [table[shard] for table in self._columns])


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
    targets = request.targets
    if len(targets) >= _MIN_UNIFORM:
        (to, *others) = set(map(_TARGET, targets))
        if type(to) is str and not others:
            component = components[to]
            shards = component.all_shards()
            if component.shards and not any(component.entry_of(s).is_cluster for s in shards):
                places: list[tuple[Shard, int | None]] = [(shard, None) for shard in shards]
                numbers = component.place_all(list(map(_TARGET_KEY, targets)))
                return [places[number] for number in numbers]
    found = []
    for to, key in targets:
        shard = place(to, key, components)
        entry = components[shard.component].entry_of(shard)
        found.append((shard, slot_of(key) if entry.is_cluster else None))
    return found
