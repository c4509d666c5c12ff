"""Which request of a batch goes to which shard. Pure: the components are looked up beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from shardkit.commands import Batch, Command, Home, Key, Locate, Shard, To
from shardkit.config.component import Component
from shardkit.routing.placement import slot_of

Components: TypeAlias = Mapping[str, Component]


class Group(NamedTuple):
    """The positions of the requests that go to one shard; ``block`` for one that may block."""

    shard: Shard
    positions: list[int]
    block: float | None = None


def components_of(targets: Iterable[To]) -> set[str]:
    """Return the components that are named."""
    return {to if type(to) is str else to.component for to in targets}  # type: ignore[union-attr]


def plan(batch: Batch, todo: Iterable[int], components: Components) -> list[Group]:
    """Group the requests at the positions ``todo`` by shard; one that may block stays alone."""
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
