"""The base of the structures with a layout (HASH, SET and ZSET), and checks of all parts.

The checks find a key of another type, an unreadable member or value, a member in the wrong part; a
group's state that is lost, out of range or does not match the parts; parts beyond its number; and
unregistered parts of the first range. The repair moves members to their own part, and writes states
from the parts' content. The last existing part decides how many parts a group has: linear hashing
places every member as if parts after it had never existed.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import SystemRandom
from typing import Any

from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, Key, Partial
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Cursor, Driver, Face, Operation, Stream, pages, stream
from shardkit.structures.base.arguments import MOST_MEMBERS, check_integer
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
from shardkit.structures.base.damage import damage, whole_or_0
from shardkit.structures.base.members import Members, Place, find
from shardkit.structures.base.parameters import FIRST_GENERATION, ChangeScope
from shardkit.structures.base.partitioned import (
    PARTS_AT_ONCE,
    ExpirableStructure,
    check_parameters,
    restore_parameters,
)
from shardkit.structures.base.writes import is_still
from shardkit.structures.encodings.limits import FORMS, warn_if_not_compact
from shardkit.structures.layouts.base import Build, Chunk, FixedLayout, PartReplies
from shardkit.structures.layouts.growing import KEYS_PROBED, GrowingLayout, address, remove_groups
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
    notes: Suspicions = []
    keys = list(map(layout.key, parts))
    all_entries = yield from contents(
        layout.component, kind, keys, notes, f"{REBUILD} removes it", _OTHERS
    )
    for part, key, entries in zip(parts, keys, all_entries, strict=True):
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
    [fingerprint] = yield [layout.at(state, "HGET", "of")]
    if fingerprint is not None and not _NAMES.fullmatch(fingerprint):
        error = damage(component, state, f"of={shown(fingerprint)}", "a fingerprint of parameters")
        return [Suspicion(error, f"{REBUILD} stores it again")]
    number, group_entries = layout.parts[group], Entries()
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
            group_entries += entries
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
            stored, members = layout._counts[group], len(group_entries)
        if stored != members and not layout._expiring[group]:
            error = damage(component, state, f"count={stored}", f"the {members} members there are")
            lost = "" if stored < members else f"{stored - members} members, lost already"
            notes.append(Suspicion(error, f"{REBUILD} counts what there is", lost))
        else:
            notes += yield from layout.check_beside(group, group_entries)
    return notes


def _belongs(layout: GrowingLayout, group: int, number: int, part: int, member: bytes) -> bool:
    own_group, q = layout.place(member)
    return own_group == group and address(q, number) == part


# ---- repair


def rebuild_layout(layout: Layout, kind: str, build: Build[Any]) -> Operation[None]:
    """Put members into their own parts, and write states and indexes again.

    ``build`` adds one member where it is missing. Cost: that of a check, and an exchange for each
    member that moves.
    """
    yield from restore_index(layout, kind)
    moved: list[tuple[str, Entries]] = []
    if isinstance(layout, NumberedLayout) and isinstance(layout.rest, GrowingLayout):
        yield from rebuild_layout(layout.rest, kind, build)
    if isinstance(layout, GrowingLayout):
        yield from layout.rebuild_beside()
        for group in range(layout.groups):
            number = layout.parts[group]
            for numbers in pages(range(number), KEYS_CHECKED):
                keys = [layout.key(group, part) for part in numbers]
                read = yield from contents(layout.component, kind, keys, [])
                for part, key, entries in zip(numbers, keys, read, strict=True):
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
    """Write the index of existing parts again: an exchange for 1,000 parts, and each group."""
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
    all_entries = yield from contents(layout.component, kind, keys, notes)
    yield [
        Command(layout.component, key, ("UNLINK", key), idempotent=True)
        for key in (note.error.key for note in notes)
    ]
    return [
        (key, rows)
        for part, key, entries in zip(parts, keys, all_entries, strict=True)
        if (rows := [entry for entry in entries if not layout.holds(part, entry[0])])
    ]


def _write_state(layout: GrowingLayout, group: int, kind: str) -> Operation[None]:
    """Store a group's numbers of parts and members, as its parts have them."""
    while True:
        number = yield from _last_part(layout, group)
        keys = [layout._keys[group], *(layout.key(group, n) for n in range(number + 1))]
        generation = FIRST_GENERATION if layout.meta is None else layout.meta.generation
        end, of = layout._write_terms
        args = (kind, end, str(of).partition(":")[0], generation)
        lua = "structures/layouts/rebuild_group"
        [done] = yield [lua_call(layout.component, lua, keys, args, idempotent=True)]
        if done:
            break
    yield from layout.refresh_group(group)


def _last_part(layout: GrowingLayout, group: int) -> Operation[int]:
    """Return how many parts a group must have: up to the last one that exists."""
    state = layout._keys[group]
    [field] = yield Partial([layout.at(state, "HGET", "parts")])
    stored = whole_or_0(field if isinstance(field, bytes) else None)
    last, start = -1, 0
    while True:
        keys = [layout.key(group, part) for part in range(start, start + KEYS_PROBED)]
        existing: list[int] = []
        [is_used] = yield [layout.at(keys[0], "EXISTS", *keys[1:])]
        if is_used:
            replies = yield [layout.at(key, "EXISTS") for key in keys]
            existing = [n for n, exists in enumerate(replies) if exists]
        if existing:
            last = start + existing[-1]
        start += KEYS_PROBED
        if not existing and start >= min(stored, _MOST_SEARCHED):
            return max(layout.initial, last + 1)


# Servers' names for the types of the forms' keys.
_TYPES = {"hash": "HASH", "zset": "ZSET", "set": "SET", "intset": "SET"}
_LENGTHS = {"hash": "HLEN", "set": "SCARD", "intset": "SCARD"}
_HOLDS = {"HASH": "HEXISTS", "ZSET": "ZSCORE", "SET": "SISMEMBER"}


class StructureWithLayout(ExpirableStructure[Face]):
    """A structure in parts whose members are located by a layout."""

    layout: Layout
    _form: str  # the servers' compact form of its parts; see `shardkit.structures.encodings.limits`
    part_size: int
    _members: Members[Any]
    _largest_part: int  # the most members that a part may have

    def __init__(
        self, driver: Driver, component: str, name: str, parameters: Mapping[str, object]
    ) -> None:
        super().__init__(driver, component, name, parameters)
        self.layout.bind(self.meta)
        self.meta.data_keys = lambda: ((component, key) for key in self.layout.data_keys())

    @property
    def _other_keys(self) -> tuple[str, ...]:
        """Its keys besides the parts and the parameters."""
        return ()

    def _open(self, *, create: bool = False) -> Operation[None]:
        """Check the parameters; before the first write, warn of parts too large to be compact."""
        if self.meta.is_checked(create=create):
            return
        yield from super()._open(create=create)
        form, size = self._form, self._largest_part
        if create and size > FORMS[form].usual[0]:
            key = next(iter(self.layout.data_keys()))
            yield from warn_if_not_compact(self.component, key, form, size, self.name)

    def _chunks(self, size: int, count: int | None = None) -> Operation[list[Chunk]]:
        """Return all parts in chunks of at most ``size``, or of about ``count`` members."""
        if count is not None:
            check_integer(self.name, "count", count, 1, MOST_MEMBERS)
            size = min(max(1, count // self.part_size), PARTS_AT_ONCE)
        yield from self._open()
        yield from self.layout.refresh()
        return list(self.layout.chunks(size))

    def _count(self) -> Operation[int]:
        """Return the number of members: of groups, or of parts, if there are others."""
        yield from self._open()
        if isinstance(self.layout, GrowingLayout):
            count = yield from self.layout.count()
            if count is not None:
                return count
        count = 0
        for chunk in (yield from self._chunks(PARTS_AT_ONCE)):
            for _, length in (yield from self.layout.read_parts(chunk, _LENGTHS[self._form])):
                count += length
        return count

    @stream
    def check(self) -> Stream[Damage]:
        """Read everything and yield the damage; change nothing. Other clients may write.

        Cost: three exchanges for 64 parts, or for each group of parts; their content is in memory.
        """
        yield from self._check()

    def _check(self) -> Stream[Damage]:
        yield from check_parameters(self.meta)
        yield from check_layout(self.layout, _TYPES[self._form], self._validate_member)

    def _restore_index(self) -> Operation[None]:
        yield from restore_index(self.layout, _TYPES[self._form])

    def _remove_others(self) -> Operation[int]:
        return (yield from remove_groups(self.component, self.name))

    def _rebuild(self) -> Operation[None]:
        """Move members to their own parts, and write states and indexes again."""
        yield from restore_parameters(self.meta)
        yield from rebuild_layout(self.layout, _TYPES[self._form], self._add_if_absent)

    def _validate_member(self, member: bytes, value: Any) -> None:
        """Raise DamagedDataError if a member or its value cannot be read."""
        self._members.decode(member)

    @abstractmethod
    def _add_if_absent(self, members: list[bytes], values: list[Any]) -> tuple[Argument, ...]:
        """Build the command that adds one member, with its value, unless it is there."""

    def _find(self, member: bytes) -> Operation[Place | None]:
        """Find the part that holds a member. Cost: an exchange for every 1,000 parts."""
        yield from self.layout.refresh()
        places = ((self.component, key) for key in self.layout.part_keys())
        return (yield from find(places, _HOLDS[_TYPES[self._form]], member))

    def _copy(
        self, command: str, key: Key, add: Callable[[list[bytes]], Operation[int]]
    ) -> Operation[int]:
        """Copy a plain key, about 1,000 elements at a time; return how many were new."""
        new = 0
        cursor = Cursor(self.component, key)
        while (flat := (yield from cursor.read(command, 1000))) is not None:
            new += yield from add(flat)
        return new

    def _reset(self) -> None:
        self.meta.checked = False
        self.layout.reset()

    def _send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        total = yield from self.layout.send_to_all(generation, name, *args)
        for key in self._other_keys:  # they do not store their generation
            [exists] = yield [self._at(key, "EXISTS", key)]
            if exists and (yield from is_still(self.meta, generation)):
                total += sum((yield [self._at(key, name, key, *args)]))
        return total


# It has no state that forked processes would share.
_RANDOM = SystemRandom()


def random_members(
    layout: Layout, size: str, command: str, number: int, *args: Argument
) -> Operation[PartReplies]:
    """Draw random members: choose parts by their sizes, then members within each.

    ``size`` is the command for a part's size; ``command`` draws from one part. A negative
    ``number`` draws independently, so that members may repeat.

    Cost: one command per part, an exchange for every 1,000 parts; then an exchange or a few.
    """
    sizes: list[int] = []
    parts: list[Any] = []
    yield from layout.refresh()
    for chunk in layout.chunks(PARTS_AT_ONCE):
        replies = yield from layout.read_parts(chunk, size)
        if len(replies) == len(chunk):  # else parts split in between: start again
            parts += chunk
            sizes += (members for _, members in replies)
        else:
            return (yield from random_members(layout, size, command, number, *args))
    total = sum(sizes)
    if not total:
        return []
    if number < 0:
        drawn = _RANDOM.choices(range(len(parts)), sizes, k=-number)
    else:
        drawn = _RANDOM.sample(range(len(parts)), min(number, total), counts=sizes)
    times: defaultdict[int, int] = defaultdict(int)
    for n in drawn:
        times[n] += 1
    alike: defaultdict[tuple[int, type], list[Any]] = defaultdict(list)
    for n, count in times.items():
        alike[count, type(parts[n])].append(parts[n])
    results: PartReplies = []
    for (count, _), chunk in alike.items():
        sign = -count if number < 0 else count
        results += yield from layout.read_parts(chunk, command, sign, *args)
    return results
