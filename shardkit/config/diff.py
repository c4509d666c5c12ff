"""What a push would change: compares the stored components with those of a shard map. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from shardkit.config.component import Component, entry_key, shards_key
from shardkit.config.entry import Entry
from shardkit.config.problem import mask
from shardkit.errors import counted
from shardkit.operations.commands import Key

SAMPLE_SIZE = 10_000

Kind: TypeAlias = Literal["added", "changed", "removed", "unchanged"]
Sample: TypeAlias = Sequence[Key] | Mapping[str, Sequence[Key]]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of one entry that a push changes.

    Attributes:
        key: the entry's key, ``config:redis:unique:7``.
        field: the field; empty where the whole entry comes or goes.
        before: its value as JSON, secrets masked; None if it was not set. For a whole entry, the
            entry's address.
        after: the same, after the push.
    """

    key: str
    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class ComponentChange:
    """What a push does, or did, to one component.

    Attributes:
        component: its name.
        kind: whether the push adds, changes or removes it, or leaves it as it is.
        fields: the fields of its entries that change.
        shards_before, shards_after: how many shards it has; 0 if it is not sharded, -1 if what is
            stored cannot be read.
        placement_before, placement_after: its placement; empty if it is not sharded.
        moved, sampled: how many keys the push assigns to another shard, and of how many.
        epoch: the epoch that a push gave it; 0 if it has none, and in a diff.
    """

    component: str
    kind: Kind
    fields: tuple[FieldChange, ...] = ()
    shards_before: int = 0
    shards_after: int = 0
    placement_before: str = ""
    placement_after: str = ""
    moved: int = 0
    sampled: int = 0
    epoch: int = 0

    @property
    def replaced(self) -> bool:
        """Whether the placement or the number of shards changes."""
        before = self.shards_before, self.placement_before
        return before != (self.shards_after, self.placement_after)


def with_counts(
    changes: Iterable[ComponentChange], current: Mapping[str, Component]
) -> list[ComponentChange]:
    """Add to the changes of a push the counts that it stores for entries written by hand."""
    counted_changes = []
    for change in changes:
        before = current.get(change.component)
        if before is not None and before.by_hand is not None and change.shards_after:
            text = f"{counted(change.shards_after, 'shard')}, {change.placement_after}"
            count = FieldChange(shards_key(change.component), "", None, text)
            change = replace(change, kind="changed", fields=(*change.fields, count))
        counted_changes.append(change)
    return counted_changes


def sample_keys(count: int = SAMPLE_SIZE) -> list[Key]:
    """Return synthetic keys for `diff`: ``sample:0``, ``sample:1`` and so on."""
    return [f"sample:{n}" for n in range(count)]


def diff(
    current: Mapping[str, Component],
    wanted: Mapping[str, Component],
    sample: Sample | None = None,
) -> list[ComponentChange]:
    """Return what has to change to get from the current components to the wanted ones.

    Args:
        current: the components now.
        wanted: the components to end up with.
        sample: keys of which to count how many would move to another shard: one list for all
            components, or a list by component name. The default is 10,000 synthetic keys.

    Returns:
        One change for each component, unchanged ones included, sorted by name.
    """
    default = None if isinstance(sample, Mapping) else sample
    changes = []
    for name in sorted({*current, *wanted}):
        before, after = current.get(name), wanted.get(name)
        change = _change(name, before, after)
        if before is not None and after is not None:
            keys = sample.get(name) if isinstance(sample, Mapping) else default
            if keys is None and not change.replaced:  # making keys takes longer than all the rest
                changes.append(replace(change, sampled=SAMPLE_SIZE))
                continue
            if keys is None:
                keys = default = sample_keys() if default is None else default
            moved = 0
            if change.replaced:
                moved = sum(before.shard_of(key) != after.shard_of(key) for key in keys)
            change = replace(change, moved=moved, sampled=len(keys))
        changes.append(change)
    return changes


def _change(name: str, before: Component | None, after: Component | None) -> ComponentChange:
    kind: Kind = "changed"
    if before is None:
        kind = "added"
    elif after is None:
        kind = "removed"
    elif before.same_as(after):
        kind = "unchanged"
    return ComponentChange(
        name,
        kind,
        () if kind == "unchanged" else tuple(_field_changes(name, before, after)),
        len(before.shards) if before else 0,
        len(after.shards) if after else 0,
        before.placement if before and before.shards else "",
        after.placement if after and after.shards else "",
    )


def _field_changes(
    name: str, before: Component | None, after: Component | None
) -> Iterator[FieldChange]:
    routes = before.routes if before else (), after.routes if after else ()
    if routes[0] != routes[1]:
        texts = [", ".join(each) or None for each in routes]
        yield FieldChange(shards_key(name), "routes", *texts)
    old, new = entries_of(name, before), entries_of(name, after)
    for key in {**old, **new}:
        left = old[key].fields if key in old else {}
        right = new[key].fields if key in new else {}
        if key not in old:
            yield FieldChange(key, "", None, new[key].address)
        elif key not in new:
            yield FieldChange(key, "", old[key].address, None)
        else:
            for field in sorted({*left, *right}):
                if field not in left or field not in right or left[field] != right[field]:
                    yield FieldChange(key, field, _shown(left, field), _shown(right, field))


def _shown(fields: Mapping[str, Any], name: str) -> str | None:
    return json.dumps(mask(name, fields[name]), sort_keys=True) if name in fields else None


def entries_of(name: str, component: Component | None) -> dict[str, Entry]:
    """Return a component's entries by key."""
    if component is None:
        return {}
    entries = {} if component.entry is None else {entry_key(name): component.entry}
    return entries | {entry_key(name, n): entry for n, entry in enumerate(component.shards)}
