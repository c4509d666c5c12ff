"""Replans a structure with a ``total``, while it is in use: its members get more parts.

A part of the present plan has the members of a few parts of the next one, whose number is a
multiple. So a part is copied alone, and again if it has changed. Writers tell that: a part refuses
a write if it has another expiry than the structure, until the client has read the parameters and
*settles* it (`base.parameters`). A part gets such an expiry, a *mark*, before it is read; if it
still has the mark later, nobody has written to it. The field ``planning`` says how far it is::

    copying     each part is marked and copied; those that lost the mark again, until few have
    frozen      writers that read the parameters wait; all parts get a second mark, so that no write
                that was sent earlier reaches them; parts that had lost the first are copied
    published   the parameters have the next plan; readers use it; writers wait until all do
    clearing    writers use it; a minute later, when no call can still read them, the old parts go

Clients read the parameters again after a second, and after 50 milliseconds while ``planning`` is
set. A write to an old part that was sent before, and arrives late, finds the mark, or no part: then
it creates one, and is undone and repeated when its client reads the parameters.

Whoever plans again takes over from a process that has stopped: copies have the attempt's number in
their names, and marks contain it. If it stopped while writers wait, they go on after five seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from shardkit.callbacks import run
from shardkit.errors import InvalidArgumentError, StructureError, counted
from shardkit.operations.commands import Argument, Command, Partial, Pause
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base.arguments import MOST_MEMBERS, check_integer
from shardkit.structures.base.check import KEYS_CHECKED, contents
from shardkit.structures.base.parameters import LAST_WRITES, LEASE, SHORT_LEASE, Metadata, open_all
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.layouts.base import FixedLayout, Plan
from shardkit.structures.layouts.numbered import Layout, NumberedLayout

GRACE = LAST_WRITES / 1000  # seconds for which readers may still come to old parts
_LAST_PARTS = 64  # parts that are left when writers wait
_PASSES = 20
_MARK = 2**46  # expiries in the year 4199, which belong to no generation
_MEMBERS = 1000  # of a command
_FIELDS = "FIELDS"
_STEP_TEXTS = {
    "copying": "waiting until clients know it",
    "frozen": "holding writers",
    "published": "switching readers",
    "clearing": "waiting a minute before the old parts are removed",
    "": "done",
}


def plan_anew(
    meta: Metadata,
    layout: Layout,
    kind: str,
    total: int,
    progress: Callable[[str], object] = lambda step: None,
) -> Operation[int]:
    """Give a structure parts for ``total`` members; see `ShardedSet.replan`.

    ``kind`` is the parts' type: HASH or SET. ``progress`` is called with each step.
    """
    check_integer(meta.key, "total", total, 1, MOST_MEMBERS)
    yield from open_all([meta])  # other parameters are the next thing to say
    return (yield from _Replan(meta, layout, kind, progress).run(total))


class _Replan:
    def __init__(
        self, meta: Metadata, layout: Layout, kind: str, progress: Callable[[str], object]
    ) -> None:
        fixed = layout.rest if isinstance(layout, NumberedLayout) else layout
        if not isinstance(fixed, FixedLayout) or fixed.rule != "crc32":
            raise InvalidArgumentError(
                f"{meta.key}: the structure has no parts that can be replanned",
                "leave it as it is: parts that split as they fill need no plan",
            )
        self._meta, self._layout, self._fixed, self._kind = meta, layout, fixed, kind
        self._progress = progress
        self._filled: set[int] = set()  # old parts that had members when they were copied
        self._times = kind == "HASH"  # whether the servers can let fields expire

    def run(self, total: int) -> Operation[int]:
        meta = self._meta
        yield from self._open()
        step = meta.planning.partition(" ")[0]
        if step in ("", "copying", "frozen"):
            yield from self._begin(total)
            yield from self._copy()
        if step != "clearing":
            yield Pause(2 * SHORT_LEASE)  # until all readers use the new plan
            yield from self._step("clearing")
        yield Pause(GRACE)
        self._plan = self._fixed.plan  # remove the old parts, which have the second mark
        yield from self._remove(self._noted(3), (self._mark(frozen=True), ""))
        yield from self._remove_given_up()
        yield from self._step("")
        return self._fixed.count

    def _open(self) -> Operation[None]:
        self._meta.checked = False
        yield from open_all([self._meta])
        if not self._meta.checked:
            raise StructureError(
                f"{self._meta.key}: the structure does not exist, or is being deleted",
                "write to it first: that creates it with its total",
            )

    def _step(self, step: str, **fields: Argument) -> Operation[None]:
        run(self._progress, _STEP_TEXTS[step.partition(" ")[0]])
        [done] = yield [self._meta.next_step(step, **fields)]
        if not done:
            raise StructureError(
                f"{self._meta.key}: the structure expires, is being deleted, or another process "
                "plans it",
                "try again, or create its successor with another total if it expires",
            )
        yield from self._open()

    def _begin(self, total: int) -> Operation[None]:
        """Note the next plan, and remove the copies of an attempt that was interrupted."""
        old = self._fixed.plan
        before = self._next if self._meta.planning else None
        factor = -(-self._fixed.planned(1, total).count // old.count)
        if factor < 2:
            raise InvalidArgumentError(
                f"{self._meta.key}: total={total:,} needs no more than its "
                f"{counted(old.count, 'part')}",
                "specify a higher total",
            )
        while (count := self._fixed.planned(1, total).count) % old.count:
            # The least total with as many parts.
            total = -(-factor * old.count * self._fixed.part_size // 2)
            factor += 1
        factor = count // old.count
        number, given_up = old.number + 1, ""
        if before is not None:
            number = before.number + 1
            words = self._meta.planning.split()
            given_up = " ".join(["", *words[5:], f"{before.number}:{words[2]}"])
        now = f"{old.number} {self._meta.parameters['total']}"
        yield from self._step(f"copying {number} {total} {now}{given_up}")
        yield from self._remove_given_up()
        self._plan, self._factor = self._next, factor
        yield Pause(LEASE + SHORT_LEASE)  # until all clients know it

    # ``planning``: the step, the next plan and its total, the present one and its total, and those
    # of attempts that were given up, whose processes may still write copies.

    def _noted(self, at: int) -> Plan:
        number, total = self._meta.planning.split()[at : at + 2]
        return self._fixed.planned(int(number), int(total))

    @property
    def _next(self) -> Plan:
        return self._noted(1)

    def _remove_given_up(self) -> Operation[None]:
        for pair in self._meta.planning.split()[5:]:
            yield from self._remove(self._fixed.planned(*map(int, pair.split(":"))), ())

    def _mark(self, *, frozen: bool) -> int:
        return _MARK + 32 * self._plan.number + (31 if frozen else 15)

    def _copy(self) -> Operation[None]:
        parts = yield from self._parts(self._fixed.plan)
        changed: Collection[int] = parts
        for n in range(_PASSES):
            for done, page in enumerate(pages(changed, KEYS_CHECKED)):
                run(self._progress, f"copying: {done * KEYS_CHECKED:,} of {len(changed):,} parts")
                yield from self._mark_all(page, frozen=False)
                yield from self._copy_parts(page, again=n > 0)
            parts = yield from self._parts(self._fixed.plan)
            changed = yield from self._changed(parts)
            if len(changed) <= _LAST_PARTS:
                break
        yield from self._step("frozen")
        try:
            parts = yield from self._parts(self._fixed.plan)
            ends = yield from self._mark_all(parts, frozen=True)
            missing = {part for part, end in ends.items() if end == -2}
            for page in pages(ends, KEYS_CHECKED):
                yield from self._copy_parts(page, again=True, missing=missing.intersection(page))
            if isinstance(self._layout, NumberedLayout):
                ranges = yield from self._layout.registry.read()
                registry = self._layout.registry_at(self._plan.prefix)
                first = [n * registry.parts_per_range for n in ranges]
                yield from registry.add(first, max(0, self._meta.end))
            total = self._meta.planning.split()[2]
            yield from self._step("published", total=total, plan=self._plan.number)
        except Exception:
            # Writers need not wait for the next attempt.
            yield Partial([self._meta.next_step("copying")])
            raise

    def _parts(self, plan: Plan) -> Operation[list[int]]:
        if not isinstance(self._layout, NumberedLayout):
            return list(range(plan.count))
        registry = self._layout.registry_at(plan.prefix)
        numbers = registry.parts((yield from registry.read()))
        return sorted({*numbers, *range(plan.count)})

    def _keys(self, parts: Iterable[int], plan: Plan | None = None) -> list[str]:
        prefix = (plan or self._fixed.plan).prefix
        return [f"{prefix}:{part}" for part in parts]

    def _mark_all(self, parts: Sequence[int], *, frozen: bool) -> Operation[dict[int, int]]:
        """Mark parts; return those that have changed since they were copied, with their expiry."""
        marking, mark = "structures/base/mark_part", self._mark(frozen=frozen)
        changed: dict[int, int] = {}
        for page in pages(parts, PARTS_AT_ONCE):
            keys = self._keys(page)
            component = self._layout.component
            before = yield [
                lua_call(component, marking, [key], [mark, int(frozen)], idempotent=True)
                for key in keys
            ]
            changed |= self._having_changed(page, before)
        return changed

    def _changed(self, parts: Sequence[int]) -> Operation[dict[int, int]]:
        changed: dict[int, int] = {}
        for page in pages(parts, PARTS_AT_ONCE):
            keys = self._keys(page)
            ends = yield [self._command(key, "PEXPIRETIME") for key in keys]
            changed |= self._having_changed(page, ends)
        return changed

    def _having_changed(self, parts: Sequence[int], ends: Sequence[int]) -> dict[int, int]:
        mark = self._mark(frozen=False)
        return {
            part: end
            for part, end in zip(parts, ends, strict=True)
            if end != mark and (end != -2 or part in self._filled)
        }

    def _copy_parts(
        self, parts: Sequence[int], *, again: bool, missing: Collection[int] = ()
    ) -> Operation[None]:
        """Make the new parts of some old ones hold the members of these.

        Parts that were ``missing`` are empty, whatever a late write has put there since.
        """
        alive = [part for part in parts if part not in missing]
        all_entries = yield from contents(self._layout.component, self._kind, self._keys(alive), [])
        parts, all_entries = [*alive, *missing], [*all_entries, *([] for _ in missing)]
        times = (yield from self._times_of(parts, all_entries)) if self._times else {}
        new: dict[int, dict[bytes, Any]] = {}
        expiring: dict[int, list[tuple[bytes, int]]] = {}
        for part, entries in zip(parts, all_entries, strict=True):
            (self._filled.add if entries else self._filled.discard)(part)
            for stored, value in entries:
                to = part if self._is_number(part, stored) else self._plan.part_of(stored)
                new.setdefault(to, {})[stored] = value
                if (end := times.get((part, stored), -1)) > 0:
                    expiring.setdefault(to, []).append((stored, end))
        lost = (yield from self._lost(parts, new)) if again else {}
        batch: list[Command] = []
        prefix, is_set = self._plan.prefix, self._kind == "SET"
        for to, members in lost.items():
            key, remove = f"{prefix}:{to}", "SREM" if is_set else "HDEL"
            batch += [self._command(key, remove, *page) for page in pages(members, _MEMBERS)]
        for to, own in new.items():
            key = f"{prefix}:{to}"
            for rows in pages(own.items(), _MEMBERS):
                flat = (word for row in rows for word in (row[:1] if is_set else row))
                batch.append(self._command(key, "SADD" if is_set else "HSET", *flat))
            for stored, end in expiring.get(to, ()):
                batch.append(self._command(key, "HPEXPIREAT", end, _FIELDS, 1, stored))
            if self._meta.end != -1:
                batch.append(self._command(key, "PEXPIREAT", self._meta.end))
        if batch:
            yield batch

    def _is_number(self, part: int, stored: bytes) -> bool:
        layout = self._layout
        if not isinstance(layout, NumberedLayout):
            return False
        return layout.place(layout.member(part, stored)) is not None

    def _lost(
        self, parts: Sequence[int], new: dict[int, dict[bytes, Any]]
    ) -> Operation[dict[int, list[bytes]]]:
        """Return which members of new parts their old parts no longer have."""
        count, copied = self._fixed.plan.count, set(parts)
        targets = {part + n * count for part in parts if part < count for n in range(self._factor)}
        targets |= copied
        lost: dict[int, list[bytes]] = {}
        for page in pages(sorted(targets), KEYS_CHECKED):
            keys = self._keys(page, self._plan)
            all_entries = yield from contents(self._layout.component, self._kind, keys, [])
            for to, entries in zip(page, all_entries, strict=True):
                left = [
                    stored
                    for stored, _ in entries
                    if stored not in new.get(to, ())
                    and (to if self._is_number(to, stored) else self._fixed.part_of(stored))
                    in copied
                ]
                if left:
                    lost[to] = left
        return lost

    def _times_of(
        self, parts: Sequence[int], all_entries: Sequence[Sequence[tuple[bytes, Any]]]
    ) -> Operation[dict[tuple[int, bytes], int]]:
        """Return when fields expire, by their old part."""
        queries = [
            (key, part, [stored for stored, _ in page])
            for key, part, entries in zip(self._keys(parts), parts, all_entries, strict=True)
            for page in pages(entries, _MEMBERS)
        ]
        replies = yield Partial(
            [
                self._command(key, "HPEXPIRETIME", _FIELDS, len(fields), *fields)
                for key, _, fields in queries
            ]
        )
        times: dict[tuple[int, bytes], int] = {}
        for (_, part, fields), reply in zip(queries, replies, strict=True):
            if isinstance(reply, Exception):
                if "unknown" not in str(reply).lower():
                    raise reply
                self._times = False  # nor can a field have a time
                return {}
            times |= {
                (part, f): end for f, end in zip(fields, reply or (), strict=False) if end > 0
            }
        return times

    def _remove(self, plan: Plan, script_args: tuple[Argument, ...]) -> Operation[None]:
        """Remove the parts of a plan; with arguments only those that the script removes."""
        component, removing = self._layout.component, "structures/base/settle_part"
        # A copy has its registry only at the end.
        existing = {*(yield from self._parts(plan)), *(yield from self._parts(self._fixed.plan))}
        for page in pages(sorted(existing), PARTS_AT_ONCE):
            keys = self._keys(page, plan)
            yield [
                lua_call(component, removing, [key], script_args, idempotent=True)
                if script_args
                else self._command(key, "UNLINK")
                for key in keys
            ]
        if isinstance(self._layout, NumberedLayout):
            key = self._layout.registry_at(plan.prefix).key
            yield [self._command(key, "UNLINK")]

    def _command(self, key: str, name: str, *args: Argument) -> Command:
        return Command(self._layout.component, key, (name, key, *args), None, True)
