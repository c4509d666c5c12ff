"""What a push of a shard map would change: entries, and how many keys would move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import redis
from redis.exceptions import ConnectionError  # noqa: A004 - redis-py's own

from shardkit.config.component import Component
from shardkit.config.diff import ComponentChange, diff, sample_keys, with_counts
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import components_at, read_component, read_components, read_epoch
from shardkit.errors import ConfigError, ConfigServerError
from shardkit.network.server_queries import ServerErrors
from shardkit.network.survey import data_keys, has_keys, query_entries, reason
from shardkit.operations.commands import Key, Shard


@dataclass(frozen=True)
class Difference:
    """What a push of a map would change."""

    changes: Sequence[ComponentChange]
    sample: Mapping[str, Sequence[Key]]  # whose placement was compared, by component
    real: frozenset[str]  # components whose sample comes from their servers
    left: Sequence[str]  # components that the push does not touch
    epoch: int  # before the push
    current: Mapping[str, Component]

    @property
    def is_empty(self) -> bool:
        """Whether the push would change nothing."""
        return all(change.kind == "unchanged" for change in self.changes)


def compare(client: redis.Redis, shard_map: ShardMap, prune: bool, size: int) -> Difference:
    """Find what a push would change."""
    wanted = shard_map.components
    epoch = read_epoch(client)
    current, broken = _current(client, wanted)
    left = sorted(current.keys() - wanted.keys())
    if not prune:
        current = {name: current[name] for name in current.keys() & wanted.keys()}
    moving = [c.component for c in diff(current, wanted, []) if c.kind == "changed" and c.replaced]
    real = {name: keys for name in moving if (keys := _real_keys(current[name], size))}
    sample = {name: real.get(name) or sample_keys(size) for name in moving}
    changes = diff(current, wanted, {**dict.fromkeys(wanted, ()), **sample})
    changes = with_counts(changes, current)
    for n, change in enumerate(changes):
        if change.component in broken:
            after = change.shards_after, change.placement_after
            changes[n] = ComponentChange(
                change.component, "changed", (), -1, after[0], "", after[1]
            )
    return Difference(changes, sample, frozenset(real), [] if prune else left, epoch, current)


def between(client: redis.Redis, since: int, until: int, size: int) -> Difference:
    """Find what changed between two pushes; keys that moved are counted of a synthetic sample."""
    before, after = components_at(client, since), components_at(client, until)
    changes = diff(before, after, sample_keys(size))
    moved = [change.component for change in changes if change.replaced]
    sample = dict.fromkeys(moved, sample_keys(size))
    return Difference(changes, sample, frozenset(), [], since, before)


def holds_data(shard_map: ShardMap) -> Callable[[Component], bool]:
    """Return the function by which `shardkit.config.store.push` checks if a component holds data.

    It queries the component's current servers. For a component that stays these are its shards, or
    its entry if it has none, because only their keys would be placed by another rule. For one to be
    removed, a database that another component of the map uses as well does not count: its keys
    cannot be told apart, and most likely are the other's.
    """
    used = {e.address for c in shard_map.components.values() for _, e in c.entries()}

    def holds(component: Component) -> bool:
        entries = _entries(component)
        if component.name in shard_map.components and component.shards:
            entries = {shard: e for shard, e in entries.items() if shard.number is not None}
        if component.name not in shard_map.components:
            entries = {shard: e for shard, e in entries.items() if e.address not in used}
        answers = query_entries(entries, lambda shard, client: has_keys(client))
        if any(answer is True for answer in answers.values()):
            return True
        for shard, answer in answers.items():
            if isinstance(answer, ServerErrors):
                server = entries[shard].address
                raise ConnectionError(f"{shard} ({server}): {reason(answer)}") from answer
            if isinstance(answer, Exception):
                raise answer
        return False

    return holds


def _current(
    client: redis.Redis, wanted: Mapping[str, Component]
) -> tuple[dict[str, Component], dict[str, ConfigError]]:
    """Read all components; if any is broken, read the wanted ones one by one."""
    try:
        return read_components(client, wanted), {}
    except ConfigServerError:
        raise
    except ConfigError:
        pass
    found: dict[str, Component] = {}
    broken: dict[str, ConfigError] = {}
    for name, like in wanted.items():
        try:
            component = read_component(client, name, like)
        except ConfigServerError:
            raise
        except ConfigError as error:
            broken[name] = error
        else:
            found |= {} if component is None else {name: component}
    return found, broken


def _entries(component: Component) -> dict[Shard, Entry]:
    """Return a component's entries, one for each database."""
    found: dict[Entry, Shard] = {}
    for shard, entry in component.entries():
        found.setdefault(entry, shard)
    return {shard: entry for entry, shard in found.items()}


def _real_keys(component: Component, size: int) -> list[Key]:
    """Return keys of a component, equally many from each database; none if it is unreachable."""
    entries = _entries(component)
    if component.shards:
        entries = {shard: e for shard, e in entries.items() if shard.number is not None}
    share = -(-size // len(entries))
    answers = query_entries(entries, lambda shard, client: list(islice(data_keys(client), share)))
    lists = [answer for answer in answers.values() if isinstance(answer, list)]
    return [key for keys in lists for key in keys]
