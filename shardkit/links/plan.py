"""Which request of a batch goes to which shard. Pure: the components are looked up beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from shardkit.commands import Batch, Command, Home, Key, Locate, Shard, To
from shardkit.config.component import Component
from shardkit.routing.placement import slot_of

Components: TypeAlias = Mapping[str, Component]


# Of a Command; many times faster than its names.
_TO, _KEY, _BLOCK = itemgetter(0), itemgetter(1), itemgetter(5)
# A shorter batch is grouped one by one; looking whether its requests are alike would cost more.
_ALIKE = 8
# So many are passed over again and again while they are in the processor's cache.
_SLICE = 2000


class Group(NamedTuple):
    """The positions of the requests that go to one shard; ``block`` for one that may block."""

    shard: Shard
    positions: Sequence[int]
    block: float | None = None


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
    found: set[To] = set()
    for start in range(0, len(batch), _SLICE):
        part = batch[start : start + _SLICE]
        if set(map(type, part)) != {Command} or set(map(_BLOCK, part)) != {None}:
            return None
        found.update(map(_TO, part))
        if len(found) > 1:
            return None
    [to] = found
    if type(to) is Home and components[to.component].entry is None:
        to = to.component
    if type(to) is not str or not components[to].shards:
        return [Group(place(to, batch[0].key, components), range(len(batch)))]
    component = components[to]
    positions: list[list[int]] = [[] for _ in component.shards]
    for start in range(0, len(batch), _SLICE):
        numbers = component.place_all(list(map(_KEY, batch[start : start + _SLICE])))
        for position, number in enumerate(numbers, start):
            positions[number].append(position)
    return [Group(Shard(to, number), mine) for number, mine in enumerate(positions) if mine]


def place(to: To, key: Key, components: Components) -> Shard:
    """Return the shard that a request goes to."""
    if type(to) is Shard:
        return to
    name = to.component if isinstance(to, Home) else str(to)
    component = components[name]
    if isinstance(to, Home) and component.entry is not None:
        return Shard(name)
    return component.shard_of(key)


def locate(request: Locate, components: Components) -> list[tuple[Shard, int | None]]:
    """Return where each key lives."""
    found = []
    for to, key in request.targets:
        shard = place(to, key, components)
        entry = components[shard.component].entry_of(shard)
        found.append((shard, slot_of(key) if entry.is_cluster else None))
    return found
