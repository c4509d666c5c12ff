"""Groups the requests of a batch by shard. Pure."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from shardkit.config.component import Component
from shardkit.errors import CrossShardError, RoutingError
from shardkit.network.links.resp import Arguments
from shardkit.operations.commands import (
    Batch,
    Columns,
    Command,
    Home,
    Key,
    Locate,
    Shard,
    ShardOf,
    To,
    Transaction,
)
from shardkit.routing.command_keys import key_positions
from shardkit.routing.placement import slot_of

Components: TypeAlias = Mapping[str, Component]


_TO_OF = itemgetter(0)  # of a Command; many times faster than its name
# Where a Command's fields are among those of many, one after the other.
_FIELDS = len(Command._fields)
_TO, _KEY, _ARGS, _SCRIPT, _BLOCK = map(
    Command._fields.index, ("to", "key", "args", "script", "block")
)
_TARGET, _TARGET_KEY = itemgetter(0), itemgetter(1)
_MIN_AT_ONCE = 8  # a shorter batch is grouped one by one
SHORT = 4  # commands of a batch that is sent to one server without the dispatcher
# Scripts of parameters, whose second key no other command uses: it may be on any server.
_PARAMETERS = "structures/base/"


class BlockingGroup(NamedTuple):
    """Blocking requests that have one exchange alone."""

    shard: Shard
    positions: list[int]
    block: float


class Groups(NamedTuple):
    """The requests of a batch by shard."""

    by_shard: dict[str, dict[int | None, list[int]]]  # positions, by component and number
    alone: Sequence[BlockingGroup] = ()  # those that block
    rows: Sequence[Arguments] | None = None  # name and arguments of all commands, if that is all

    @property
    def shards(self) -> set[Shard]:
        """The shards concerned."""
        shards = {Shard(name, number) for name, own in self.by_shard.items() for number in own}
        return shards | {group.shard for group in self.alone}


def components_of(targets: Iterable[To]) -> set[str]:
    """Return the components that are named."""
    return {to if isinstance(to, str) else to.component for to in targets}


def components_in(batch: Batch, todo: Sequence[int]) -> set[str]:
    """Return the components of the requests at the positions ``todo``."""
    if type(batch) is Columns:
        return components_of((batch.to,))
    if len(todo) == len(batch):
        return components_of(set(map(_TO_OF, batch)))
    return components_of(batch[position].to for position in todo)


def group_by_shard(batch: Batch, todo: Sequence[int], components: Components) -> Groups:
    """Group the requests at the positions ``todo`` by shard.

    Blocking ones stay alone, but those for one shard that follow each other stay together.
    """
    if len(todo) == len(batch):
        if type(batch) is Columns:
            rows = None if batch.name else batch.rows
            return _group_all(batch.to, batch.keys, components, rows, batch.placed)
        plain = _keys_and_rows(batch) if len(batch) >= _MIN_AT_ONCE else None
        if plain is not None:
            return _group_all(batch[0].to, plain[0], components, plain[1])
    groups: dict[str, dict[int | None, list[int]]] = {}
    alone: list[BlockingGroup] = []
    for position in todo:
        request = batch[position]
        to = request.to
        if isinstance(to, str):  # the usual case, without a function call
            component = components[to]
            where = (to, component.place(request.key) if component.shards else None)
        elif type(to) is Shard:
            where = to
        else:
            where = place(to, request.key, components)
        if type(request) is Command and request.block is not None:
            if alone and alone[-1].shard == where and position - 1 in alone[-1].positions:
                alone[-1].positions.append(position)
            else:
                alone.append(BlockingGroup(Shard(*where), [position], request.block))
            continue
        name, number = where
        try:
            groups[name][number].append(position)
        except KeyError:
            groups.setdefault(name, {})[number] = [position]
    return Groups(groups, alone)


def require_together(batch: Batch, component: Component) -> None:
    """Refuse scripts whose keys live on several shards, as their common tag is not obeyed."""
    if type(batch) is Columns:
        return
    for request in batch:
        commands = request.commands if isinstance(request, Transaction) else (request,)
        for command in commands:
            if command.script is not None and separated(command, component):
                raise CrossShardError(
                    f"component {component.name!r}: its placement {component.placement!r} ignores "
                    f"hash tags, so {command.name} has keys on several shards",
                    "keep this structure in a component whose placement obeys tags, such as crc32",
                )


def was_split_lately(component: Component) -> bool:
    """Whether keys may have been located before a split."""
    return time.monotonic() < component.split_until


def cross_shard_error(name: str, shards: Iterable[Shard]) -> CrossShardError:
    """Return the error for a command whose keys live on several shards."""
    return CrossShardError(
        f"{name}: the keys live on different shards ({', '.join(map(str, shards))})",
        "use a common {tag} in the names of keys that belong together",
    )


def separated(request: Command | Transaction, component: Component) -> list[Shard]:
    """Return the shards of a request's keys if they live apart; otherwise nothing."""
    if request.to not in (component.name, Home(component.name)):
        return []
    commands = request.commands if isinstance(request, Transaction) else (request,)
    keys: list[Any] = [request.key]
    for command in commands:
        if command.script is None:
            with suppress(RoutingError):  # a module's command
                keys += [command.args[n] for n in key_positions(command.args)]
        elif not command.name.startswith(_PARAMETERS):
            keys += command.args[3 : 3 + int(command.args[2]) - command.script.unplaced]
    homes = locate(Locate([(request.to, key) for key in keys]), {component.name: component})
    return [shard for shard, _ in dict.fromkeys(homes)] if len(set(homes)) > 1 else []


def _keys_and_rows(batch: Batch) -> tuple[Sequence[Key], Sequence[Arguments] | None] | None:
    """Return the keys of non-blocking commands with one target; and their rows, without scripts."""
    to, size = batch[0].to, len(batch)
    # Counting in a list takes half of the time that gathering in a set does.
    if list(map(type, batch)).count(Command) < size:
        return None
    flat: list[Any] = list(chain.from_iterable(batch))  # a third of the time of six attributes
    if flat[_BLOCK::_FIELDS].count(None) < size or flat[_TO::_FIELDS].count(to) < size:
        return None
    plain = flat[_SCRIPT::_FIELDS].count(None) == size
    return flat[_KEY::_FIELDS], flat[_ARGS::_FIELDS] if plain else None


def _group_all(
    to: To,
    keys: Sequence[Key],
    components: Components,
    rows: Sequence[Arguments] | None,
    placed: tuple[object, Sequence[int | None]] | None = None,
) -> Groups:
    if not keys:
        return Groups({})
    if type(to) is Home and components[to.component].entry is None:
        to = to.component
    component = components[to] if isinstance(to, str) else None
    if component is None or not component.shards:
        shard = place(to, keys[0], components)
        return Groups({shard.component: {shard.number: list(range(len(keys)))}}, (), rows)
    by_number: defaultdict[int | None, list[int]] = defaultdict(list)
    version, numbers = placed or (None, ())
    if version is not component:
        numbers = component.place_all(keys)
    for position, number in enumerate(numbers):
        by_number[number].append(position)
    return Groups({component.name: by_number}, (), rows)


def place(to: To, key: Key, components: Components) -> Shard:
    """Return the shard that a request goes to."""
    if type(to) is Shard:
        return to
    if isinstance(to, str):
        return components[to].shard_of(key)
    component = components[to.component]
    if isinstance(to, ShardOf) and component.shards:
        component.require_shards(to.shards)
        return Shard(to.component, to.number)
    if component.entry is not None:
        return Shard(component.name)
    return component.shard_of(key)


def place_short(
    batch: Batch, component_of: Callable[[str], Component | None]
) -> tuple[Component, int | None] | None:
    """Return the component and the number of the only shard of a few non-blocking commands.

    None for any other batch, and for a component that must be read first, or looked at.
    """
    size, placed = len(batch), None
    component: Component | None
    keys: Sequence[Key]
    if size == 1 and type(command := batch[0]) is Command:
        to, key, _, _, _, block = command
        if block is not None:
            return None
        if isinstance(to, str):  # as mostly
            component = component_of(to)
            if component is None or component.splits_tags:
                return None
            if component.split_until and was_split_lately(component):
                return None
            return component, component.number_of(key)
        keys = (key,)
    elif type(batch) is Columns and 0 < size <= SHORT:
        to, keys, placed = batch.to, batch.keys, batch.placed
    elif type(batch) is list and 0 < size <= SHORT and set(map(type, batch)) == {Command}:
        to, keys = batch[0].to, [command.key for command in batch]
        if any(command.to != to or command.block is not None for command in batch):
            return None
    else:
        return None
    component = component_of(to if isinstance(to, str) else to.component)
    if component is None or component.splits_tags or was_split_lately(component):
        return None
    if placed is not None and placed[0] is component:
        numbers = placed[1]
    else:
        numbers = [place(to, key, {component.name: component}).number for key in keys]
    return None if len(set(numbers)) > 1 else (component, numbers[0])


def locate(request: Locate, components: Components) -> list[tuple[Shard, int | None]]:
    """Return where each key lives."""
    targets = request.targets
    if len(targets) >= _MIN_AT_ONCE:
        (to, *others) = set(map(_TARGET, targets))
        if isinstance(to, str) and not others:
            component = components[to]
            shards = component.all_shards()
            if component.shards and not any(component.entry_of(s).is_cluster for s in shards):
                places: list[tuple[Shard, int | None]] = [(shard, None) for shard in shards]
                numbers = component.place_all(list(map(_TARGET_KEY, targets)))
                return [places[number] for number in numbers]
    located: list[tuple[Shard, Any]] = []
    for to, key in targets:
        shard = place(to, key, components)
        entry = components[shard.component].entry_of(shard)
        where = entry.address if request.by_address else None
        located.append((shard, slot_of(key) if entry.is_cluster else where))
    return located
