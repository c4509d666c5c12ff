"""Finds structures with planned parts, and replans them; see `ShardedSet.replan`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shardkit.config.component import Component
from shardkit.errors import StructureError, natural
from shardkit.kit.kit import ShardKit
from shardkit.operations.operation import Operation
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.check import KEYS_CHECKED, contents
from shardkit.structures.base.parameters import Metadata, deciding, meta_key, open_all
from shardkit.structures.layouts.base import FixedLayout
from shardkit.structures.layouts.numbered import Layout, NumberedLayout
from shardkit.structures.layouts.replan import plan_anew

_TYPES = {"set": "SET", "hash": "HASH"}
_SCAN = 10_000


@dataclass(frozen=True)
class PlannedStructure:
    """A set or hash that was created for a number of members.

    Attributes:
        component: where it is.
        structure: its name.
        kind: ``set`` or ``hash``.
        total: how many members it is planned for.
        members: about how many it has; of a hash that keeps numbers in order, the other fields.
        parts: how many parts it is planned in.
        interrupted: whether a plan was begun and is not complete.
    """

    component: str
    structure: str
    kind: str
    total: int
    members: int
    parts: int
    interrupted: bool

    @property
    def has_outgrown(self) -> bool:
        """Whether it has more members than planned, or its next plan is not complete."""
        return self.interrupted or self.members > self.total


def planned_structures(
    kit: ShardKit, component: str, names: Collection[str] = ()
) -> list[PlannedStructure]:
    """Return the planned structures of a component, or those of these names.

    Raises:
        StructureError: there is no structure of a name, or it is not planned.

    Cost: a SCAN of each database unless there are ``names``; 64 parts of each structure are read.
    """
    structures = []
    for name in names or _names(kit, kit.component(component)):
        opened = _Opened(kit, component, name)
        if opened.fixed is not None:
            structures.append(kit.driver.run(opened.described()))
        elif names:
            raise StructureError(
                f"{component}: {name} is not a set or hash that was created with a total",
                "name one that has a total, or leave the names out",
            )
    return structures


def replan(
    kit: ShardKit,
    component: str,
    name: str,
    total: int,
    progress: Callable[[str], object] = lambda step: None,
) -> int:
    """Plan a structure for another number of members; see `ShardedSet.replan`.

    The structure is opened with its stored parameters. ``progress`` is called with each step.
    """
    opened = _Opened(kit, component, name)
    kind = _TYPES.get(opened.meta.parameters.get("kind", ""), "")
    return kit.driver.run(plan_anew(opened.meta, opened.layout, kind, total, progress))


def _names(kit: ShardKit, component: Component) -> list[str]:
    names = set()
    for shard in component.all_shards():
        client: Any = kit.client(component.name, shard.number)
        for key in client.scan_iter(match=meta_key("*"), count=_SCAN, _type="HASH"):
            names.add(key_bytes(key).decode(errors="replace").removesuffix(meta_key("")))
    return sorted(names, key=natural)


class _Opened:
    """A structure, as its stored parameters say."""

    layout: Layout
    fixed: FixedLayout | None = None

    def __init__(self, kit: ShardKit, component: str, name: str) -> None:
        stored = kit.driver.run(_read(Metadata(component, name, {})))
        self.meta = Metadata(component, name, deciding(stored))
        try:
            if stored["kind"] in _TYPES:
                self._read(component, name, stored)
        except (KeyError, ValueError):  # it splits as it fills, or there is no such structure
            return

    def _read(self, component: str, name: str, stored: Mapping[str, str]) -> None:
        size, rule = int(stored["part_size"]), stored["partition"]
        hashed = "crc32" if rule == "digits" else rule
        self.layout = self.fixed = FixedLayout(component, name, hashed, int(stored["total"]), size)
        if rule == "digits":
            self.layout = NumberedLayout(component, name, size, self.fixed)
        self.layout.bind(self.meta)

    def described(self) -> Operation[PlannedStructure]:
        """Return what it is, as estimated from some parts."""
        meta, fixed = self.meta, self.fixed
        assert fixed is not None
        yield from open_all([meta])
        plan, kind = fixed.plan, meta.parameters["kind"]
        sample = range(0, plan.count, -(-plan.count // KEYS_CHECKED))
        keys = [f"{plan.prefix}:{part}" for part in sample]
        contained = yield from contents(fixed.component, _TYPES[kind], keys, [])
        place: Callable[[bytes], object] = lambda member: None  # noqa: E731
        if isinstance(self.layout, NumberedLayout):
            place = self.layout.place
        seen = sum(place(stored) is None for entries in contained for stored, _ in entries)
        return PlannedStructure(
            fixed.component,
            meta.key.removesuffix(meta_key("")),
            kind,
            int(meta.parameters["total"]),
            seen * plan.count // len(sample),
            plan.count,
            bool(meta.planning),
        )


def _read(meta: Metadata) -> Operation[Mapping[str, str]]:
    [flat] = yield [meta.opening(create=False)]
    words = [word.decode(errors="replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))
