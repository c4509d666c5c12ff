"""Check and repair the parts of a layout: see `shardkit.structures.base.check`.

The checks find a key of another type, an unreadable member or value, a member in the wrong part; a
group's state that is lost, out of range or does not match the parts; parts beyond its number; and
unregistered parts of the first range.

The repair moves members to their own part, and writes states from the parts' content. The last
existing part decides how many parts a group has: linear hashing places every member as if parts
after it had never existed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, Partial
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, Stream, pages
from shardkit.structures.base.check import (
    KEYS_CHECKED,
    REBUILD,
    Damage,
    Suspicion,
    Suspicions,
    Validate,
    check_registered,
    confirmed,
    contents,
    first_wrong,
    raised_twice,
    register_existing,
    suspected,
)
from shardkit.structures.base.damage import damage
from shardkit.structures.base.parameters import FIRST_GENERATION
from shardkit.structures.layouts.base import Build, FixedLayout
from shardkit.structures.layouts.growing import KEYS_PROBED, GrowingLayout, address
from shardkit.structures.layouts.numbered import Layout, NumberedLayout

# The most parts to search for in a group whose state may be wrong.
_MOST_SEARCHED = 100_000
_NAMES = re.compile(rb"[0-9a-f]{8}")  # parameters, in groups: `Metadata.fingerprint`
_OTHERS = "what the key holds; what it held before is lost already"
_MOVES = f"{REBUILD} moves members of other parts"

Entries = list[tuple[bytes, Any]]


def check_layout(layout: Layout, kind: str, validate: Validate) -> Stream[Damage]:
    """Check all parts of a layout, of the type ``kind``: HASH, SET or ZSET.

    Cost: three exchanges for 64 parts, or for each group; entries of 64 parts are in memory.
    """
    if isinstance(layout, GrowingLayout):
        for group in range(layout.groups):
            yield from confirmed(_check_group, layout, group, validate)
        return
    if isinstance(layout, NumberedLayout):
        repair = f"{REBUILD} removes all but ranges"
        if (yield from raised_twice(layout.refresh_numbers, repair=repair)):
            return
        yield from confirmed(check_registered, layout.registry, layout.first_parts)
    assert isinstance(layout, FixedLayout | NumberedLayout)
    for chunk in layout.chunks(KEYS_CHECKED):
        if not isinstance(chunk[0], int):
            break
        yield from confirmed(_check_parts, layout, kind, chunk, validate)
    if isinstance(layout, NumberedLayout) and isinstance(layout.rest, GrowingLayout):
        yield from check_layout(layout.rest, kind, validate)


def _check_parts(
    layout: FixedLayout | NumberedLayout, kind: str, parts: Sequence[int], validate: Validate
) -> Operation[Suspicions]:
    """Check parts that are keys of their own."""
    notes: Suspicions = []
    keys = list(map(layout.key, parts))
    held = yield from contents(
        layout.component, kind, keys, notes, f"{REBUILD} removes it", _OTHERS
    )
    for part, key, entries in zip(parts, keys, held, strict=True):
        whole = [(layout.member(part, stored), value) for stored, value in entries]
        notes += first_wrong(layout.component, key, whole, validate)
        if wrong := [stored for stored, _ in entries if not layout.holds(part, stored)]:
            notes.append(_misplaced(layout.component, key, wrong))
    return notes


def _misplaced(component: str, key: str, wrong: Sequence[bytes]) -> Suspicion:
    text = f"{shown(wrong[0])} and {len(wrong) - 1} others of other parts"
    if len(wrong) == 1:
        text = f"{shown(wrong[0])} of another part"
    error = damage(component, key, text, "only its own members")
    return Suspicion(error, _MOVES, "members of which their own part has another value")


# ---- groups


def _check_group(layout: GrowingLayout, group: int, validate: Validate) -> Operation[Suspicions]:
    state, component = layout._keys[group], layout.component
    notes = yield from suspected(layout.refresh_group(group), f"{REBUILD} counts what there is")
    if notes:
        return notes
    [of] = yield [layout.at(state, "HGET", "of")]
    if of is not None and not _NAMES.fullmatch(of):
        error = damage(component, state, f"of={shown(of)}", "a fingerprint of parameters")
        return [Suspicion(error, f"{REBUILD} stores it again")]
    number, held = layout.parts[group], Entries()
    wrong: list[tuple[str, list[bytes]]] = []
    for parts in pages(range(number), KEYS_CHECKED):
        keys = [layout.key(group, part) for part in parts]
        read = yield from contents(
            component, layout._kind, keys, notes, f"{REBUILD} removes it", _OTHERS
        )
        for part, key, entries in zip(parts, keys, read, strict=True):
            notes += first_wrong(component, key, entries, validate)
            strange = [m for m, _ in entries if not _belongs(layout, group, number, part, m)]
            if strange:
                wrong.append((key, strange))
            held += entries
    beyond = [layout.key(group, part) for part in range(number, number + 16)]
    replies = yield [layout.at(key, "EXISTS") for key in beyond]
    for key, exists in zip(beyond, replies, strict=True):
        if exists:
            wanted = f"none, as its group has {number} parts,"
            repair = f"{REBUILD} adds it to the group"
            return [*notes, Suspicion(damage(component, key, "a part", wanted), repair)]
    yield from layout.refresh_group(group)
    if layout.parts[group] != number:  # parts split in between: members were in two places
        return notes
    notes += [_misplaced(component, key, strange) for key, strange in wrong]
    if not wrong and not any(note.loses for note in notes):
        if number <= KEYS_PROBED:
            [(_, stored, members)] = yield [layout.count_command(group)]
        else:
            stored, members = layout._counts[group], len(held)
        if stored != members and not layout._expiring[group]:
            error = damage(component, state, f"count={stored}", f"the {members} members there are")
            lost = "" if stored < members else f"{stored - members} members, lost already"
            notes.append(Suspicion(error, f"{REBUILD} counts what there is", lost))
        else:
            notes += yield from layout.check_beside(group, held)
    return notes


def _belongs(layout: GrowingLayout, group: int, number: int, part: int, member: bytes) -> bool:
    its, q = layout.place(member)
    return its == group and address(q, number) == part


# ---- repair


def rebuild_layout(layout: Layout, kind: str, build: Build[Any]) -> Operation[None]:
    """Put members into their own parts, and write states and indexes again.

    ``build`` builds the command that adds one member where it is missing; see `FixedLayout.write`.

    Cost: that of a check, and an exchange for each member that moves.
    """
    yield from restore_index(layout, kind)
    moved: list[tuple[str, Entries]] = []
    if isinstance(layout, NumberedLayout) and isinstance(layout.rest, GrowingLayout):
        yield from rebuild_layout(layout.rest, kind, build)
    if isinstance(layout, GrowingLayout):
        yield from layout.rebuild_beside()
        for group in range(layout.groups):
            number = layout.parts[group]
            for some in pages(range(number), KEYS_CHECKED):
                keys = [layout.key(group, part) for part in some]
                read = yield from contents(layout.component, kind, keys, [])
                for part, key, entries in zip(some, keys, read, strict=True):
                    rows = [e for e in entries if not _belongs(layout, group, number, part, e[0])]
                    moved += [(key, rows)] if rows else []
    else:
        assert isinstance(layout, FixedLayout | NumberedLayout)
        for chunk in layout.chunks(KEYS_CHECKED):
            if not isinstance(chunk[0], int):
                break
            moved += yield from _out_of_place(layout, kind, chunk)
    for key, rows in moved:
        for row in rows:  # to its own part, unless it is there
            yield from layout.write([row], build)
        for page in pages((member for member, _ in rows), 1000):
            remove = {"SET": "SREM", "HASH": "HDEL", "ZSET": "ZREM"}[kind]
            yield [Command(layout.component, key, (remove, key, *page), idempotent=True)]
    if moved and isinstance(layout, GrowingLayout):
        yield from restore_index(layout, kind)
        yield from layout.rebuild_beside()


def restore_index(layout: Layout, kind: str) -> Operation[None]:
    """Write the index of existing parts again, from the parts that exist.

    Cost: an exchange for 1,000 parts, and for each group.
    """
    if isinstance(layout, NumberedLayout):
        yield from layout.registry.repair()
        yield from layout.refresh_numbers()
        due = 0 if layout.meta is None else max(0, layout.meta.end)
        yield from register_existing(layout.registry, layout.first_parts, due)
        yield from layout.refresh_numbers()
        yield from restore_index(layout.rest, kind)
    elif isinstance(layout, GrowingLayout):
        for group in range(layout.groups):
            yield from _write_state(layout, group, kind)


def _out_of_place(
    layout: FixedLayout | NumberedLayout, kind: str, parts: Sequence[int]
) -> Operation[list[tuple[str, Entries]]]:
    """Remove parts of another type; return the entries that are in the wrong part."""
    keys, notes = list(map(layout.key, parts)), Suspicions()
    held = yield from contents(layout.component, kind, keys, notes)
    yield [
        Command(layout.component, key, ("UNLINK", key), idempotent=True)
        for key in (note.error.key for note in notes)
    ]
    return [
        (key, rows)
        for part, key, entries in zip(parts, keys, held, strict=True)
        if (rows := [entry for entry in entries if not layout.holds(part, entry[0])])
    ]


def _write_state(layout: GrowingLayout, group: int, kind: str) -> Operation[None]:
    """Store a group's numbers of parts and members, as its parts have them."""
    while True:
        number = yield from _last_part(layout, group)
        keys = [layout._keys[group], *(layout.key(group, n) for n in range(number + 1))]
        generation = FIRST_GENERATION if layout.meta is None else layout.meta.generation
        args: Iterable[Argument] = (kind, *layout._write_terms, generation)
        lua = "structures/layouts/rebuild_group"
        [done] = yield [lua_call(layout.component, lua, keys, args, idempotent=True)]
        if done:
            break
    yield from layout.refresh_group(group)


def _last_part(layout: GrowingLayout, group: int) -> Operation[int]:
    """Return how many parts a group must have: up to the last one that exists."""
    state = layout._keys[group]
    [field] = yield Partial([layout.at(state, "HGET", "parts")])
    stored = int(field) if isinstance(field, bytes) and field.isdigit() else 0
    last, start = -1, 0
    while True:
        keys = [layout.key(group, part) for part in range(start, start + KEYS_PROBED)]
        existing: list[int] = []
        [some] = yield [layout.at(keys[0], "EXISTS", *keys[1:])]
        if some:
            replies = yield [layout.at(key, "EXISTS") for key in keys]
            existing = [n for n, exists in enumerate(replies) if exists]
        if existing:
            last = start + existing[-1]
        start += KEYS_PROBED
        if not existing and start >= min(stored, _MOST_SEARCHED):
            return max(layout.initial, last + 1)
