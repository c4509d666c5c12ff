"""What is stored of a sorted set in parts, looked at from outside."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from shardkit import ShardKit
from shardkit.structures.sorted_set.groups import ScoredGroups


def full_range(client: Any, key: Any) -> list[tuple[bytes, float]]:
    rows: list[tuple[bytes, float]] = client.zrange(key, 0, -1, withscores=True)
    return rows


def stored(kit: ShardKit, component: str, name: str) -> dict[str, dict[str, Any]]:
    """By group: its state, its top and bottom, and what its parts hold together, in order."""
    found = kit.component(component)
    numbers: list[int | None] = [*range(len(found.shards))] or [None]
    groups: dict[str, dict[str, Any]] = defaultdict(lambda: {"rows": [], "parts": 0})
    for client in {id(c): c for c in (kit.client(component, n) for n in numbers)}.values():
        for key in map(bytes.decode, client.scan_iter(f"{name}:{{*}}*")):
            group, _, what = key.removeprefix(f"{name}:").partition("}")
            what = what.removeprefix(":")
            if not what:
                groups[group]["state"] = client.hgetall(key)
            elif what in ("top", "bottom"):
                groups[group][what] = full_range(client, key)
            else:
                groups[group]["parts"] += 1
                groups[group]["rows"] += full_range(client, key)
    for group in groups.values():
        group["rows"].sort(key=lambda row: (row[1], row[0]))
    return groups


def check_bounds(kit: ShardKit, component: str, sorted_set: Any) -> None:
    """Check that every group has its best members at hand, enough of them, and not too many."""
    layout: ScoredGroups = sorted_set.layout
    for group in stored(kit, component, sorted_set.name).values():
        rows = group["rows"]
        assert int(group["state"].get(b"count", 0)) == len(rows)
        top, bottom = group.get("top", []), group.get("bottom", [])
        for bound in (top, bottom):
            assert min(layout.bound_size, len(rows)) <= len(bound) <= 2 * layout.bound_size
        assert top == (rows[-len(top) :] if top else [])
        assert bottom == rows[: len(bottom)]
