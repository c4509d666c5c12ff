"""The rule of a copy: where each key goes, and which entries change when it is done.

::

    move of shards   every key of a database ─► one of another server, if free of the same number
    split            a key ─► the shard that the new count and placement say
    into a cluster   a key ─► the node that has its slot

A split also checks that each key tells its place: that it is where its name says. Fences of guards
do not, as they are where guarded keys are: every shard gets the largest token of each, and a
cluster none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from shardkit.admin.growth.gate import Ranges, owners
from shardkit.admin.growth.journal import Move
from shardkit.admin.growth.relocation import (
    Place,
    Same,
    ServerAddress,
    Stored,
    cluster_at,
    entry_at,
    moved,
)
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.coordination.guard import FENCE
from shardkit.errors import GrowthError, counted
from shardkit.operations.commands import Shard
from shardkit.routing.keys import KeyRoutes
from shardkit.routing.placement import DEFAULT, placement_of_all, slots_of

EXAMPLES = 5
_PlaceKeys: TypeAlias = Callable[[Sequence[bytes]], Sequence[int]]
_WAYS_OUT = (
    "give the component a rule that finds the routing key in the name (route:, see "
    "docs/growth.md), use names with a {tag}, or move its shards as they are: shardkit move"
)


class CopyRule:
    """Where keys go: all keys of a database to another server.

    Attributes:
        sources: the databases that are left, each once.
        targets: the databases that take over, each once.
        names: the shard at each target, for messages.
        fences: keys of guards' fences that are to be carried to every target.
    """

    names: Mapping[Place, str]

    def __init__(self, move: Move) -> None:
        self.sources = list(dict.fromkeys(map(Place.parse, move.sources)))
        self.targets = list(dict.fromkeys(map(Place.parse, move.targets)))
        self.names = dict(zip(map(Place.parse, move.targets), move.shards, strict=False))
        self.fences: set[bytes] = set()

    def there(self, source: Place, keys: Sequence[bytes]) -> Mapping[Place, list[bytes]]:
        """Return where keys of a database go."""
        return {self.targets[self.sources.index(source)]: list(keys)}

    def back(self, target: Place, keys: Sequence[bytes]) -> Mapping[Place, list[bytes]]:
        """Return where keys of a target come from."""
        return {self.sources[self.targets.index(target)]: list(keys)}

    def changed(self, components: Mapping[str, Component], same: Same) -> dict[str, Component]:
        """Return the components whose entries change when all keys are at their targets."""
        return moved(components, dict(zip(self.sources, self.targets, strict=True)), same)

    def label(self, place: Place) -> str:
        """Return the name of a place in the certificate: its number, as each side is one server."""
        return str(place.database)


class ByPlacement(CopyRule):
    """Each key goes to the shard that a count and a placement say, or to a cluster's node."""

    def __init__(self, move: Move) -> None:
        super().__init__(move)
        self._component = move.name
        self._before, self._after = move.placements
        self._old = [Place.parse(at) for at in move.sources]
        self._new = [Place.parse(at) for at in move.targets]
        self.names = {
            place: str(Shard(move.name, n if self._after else None))
            for n, place in enumerate(self._new)
        }
        self._routes = tuple(move.routes)
        self._route = KeyRoutes(move.routes)
        self._cluster = move.clusters[1] if move.clusters else ""
        self._is_fence: Callable[[bytes], Any] = (  # a cluster's have a tag
            (lambda key: False) if move.clusters and move.clusters[0] else FENCE.fullmatch
        )
        slots = [move.slots if node else {} for node in move.clusters or ("", "")]
        self._place_old = self._placing(self._before, self._old, slots[0])
        self._place_new = self._placing(self._after, self._new, slots[1])

    def there(self, source: Place, keys: Sequence[bytes]) -> Mapping[Place, list[bytes]]:
        """See `CopyRule`; fences of guards are noted instead."""
        self.fences.update(filter(self._is_fence, keys))
        wrong = self.misplaced(source, keys)
        if wrong:
            raise misplaced_error(self._component, str(source), len(wrong), len(keys), wrong)
        return self._grouped(self._place_new, self._new, keys)

    def back(self, target: Place, keys: Sequence[bytes]) -> Mapping[Place, list[bytes]]:
        """See `CopyRule`."""
        return self._grouped(self._place_old, self._old, keys)

    def label(self, place: Place) -> str:
        """See `CopyRule`."""
        return str(place)

    def misplaced(self, source: Place, keys: Sequence[bytes]) -> list[bytes]:
        """Return which keys of a database are not where their names say."""
        numbers = self._place_old(keys)
        return [
            key
            for key, n in zip(keys, numbers, strict=True)
            if (self._old[n] != source or not self._route.tells(key)) and not self._is_fence(key)
        ]

    def _placing(
        self, placement: str, places: Sequence[Place], slots: Mapping[str, Ranges]
    ) -> _PlaceKeys:
        """Return the function that returns the numbers of keys' places."""
        if slots:
            numbers = owners(slots, places)
            return lambda keys: [numbers[slot] for slot in slots_of(keys)]
        if not placement:
            return lambda keys: [0] * len(keys)
        place = placement_of_all(placement, len(places))
        return lambda keys: place(self._route.of_all(keys))

    def _grouped(
        self, place: _PlaceKeys, places: Sequence[Place], keys: Sequence[bytes]
    ) -> Mapping[Place, list[bytes]]:
        groups: defaultdict[Place, list[bytes]] = defaultdict(list)
        for key, n in zip(keys, place(keys), strict=True):
            if not self._is_fence(key):
                groups[places[n]].append(key)
        return groups

    def changed(self, components: Mapping[str, Component], same: Same) -> dict[str, Component]:
        """See `CopyRule`."""
        component = components.get(self._component)
        if component is None:
            raise GrowthError(f"component {self._component!r} was removed", "push it again")
        like, where = like_of(component)
        shards: tuple[Entry, ...] = ()
        entry = component.entry if self._before and self._after else None
        if self._after:
            shards = tuple(
                entry_at(like, place, entry_key(component.name, n))
                for n, place in enumerate(self._new)
            )
        elif self._cluster:
            entry = cluster_at(like, ServerAddress.parse(self._cluster), where)
        else:
            entry = entry_at(like, self._new[0], where)
        changed = replace(
            component,
            entry=entry,
            shards=shards,
            placement=self._after or DEFAULT,
            routes=self._routes if shards else (),
        )
        return {} if changed.same_as(component) else {component.name: changed}


def like_of(component: Component, shard: Shard | None = None) -> Stored:
    """Return the login of a shard; of the first, whose settings those of a split have."""
    shard = component.all_shards()[0] if shard is None else shard
    return Stored(component.entry_of(shard), entry_key(*shard))


def shard_names(component: str, count: int) -> list[str]:
    """Return what a component's shards are called; without shards, its own name."""
    return [f"{component}:{n}" for n in range(count)] or [component]


def misplaced_error(
    component: str, where: str, wrong: int, seen: int, examples: Sequence[bytes]
) -> GrowthError:
    """Return the error for keys that are not where their names say."""
    named = ", ".join(key.decode(errors="backslashreplace") for key in examples[:EXAMPLES])
    return GrowthError(
        f"{component}: {wrong:,} of {counted(seen, 'key')} at {where} are not where their names "
        f"say, such as {named}, so the new shards of such keys are unknown",
        _WAYS_OUT,
    )


def rule_of(move: Move) -> CopyRule:
    """Return the rule of a move of shards or a split."""
    return ByPlacement(move) if move.placements else CopyRule(move)
