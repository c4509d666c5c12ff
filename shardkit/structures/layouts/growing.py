"""Parts that split as they fill, so that the number of members need not be planned.

A member belongs to one group forever. All keys of a group share its hash tag, so a group lives on
one server; it grows on its own, by linear hashing::

    ids:{4}          HASH   parts=3 count=170      the state of one group
    ids:{4}:0        SET    {…}    q mod 4 = 0
    ids:{4}:1        SET    {…}    q mod 2 = 1     not yet split
    ids:{4}:2        SET    {…}    q mod 4 = 2     came from 0, by the last split

    h = the first 4 bytes of the member's SHA-1          group = h mod groups
    q = h div groups                                     L: 2^L <= parts < 2^(L+1)
    part = q mod 2^(L+1), less 2^L if there is no such part

Before a script adds members, it splits parts in order until they average at most ``max_load``
members. Part ``p`` keeps about half of its members, the others move to the new part ``p + 2^L``.
Parts not yet split hold twice as many members as split ones, so ``max_load`` is half of a part's
size, with a margin of six standard deviations: no part outgrows its size. SHA-1 is the fastest hash
in a server's Lua. A write that needs no split is a script that only compares the group's state,
writes and counts; the longer one that splits is sent when a split is due or the state has changed.

A caller uses the number of parts that it last read. A script compares it first; if it has changed,
the script only returns the new one. A read fetches the number after the read commands, on the same
connection. The caller then repeats the affected commands. The number of parts only grows, so if it
is the same after a read, any member that the read did not return did not exist.

Tags spread the groups evenly over any 2^n shards by CRC-32: the tag of group ``g`` is the first
number whose CRC-32 modulo the number of groups is ``g``.

W. Litwin, *Linear hashing: a new tool for file and table addressing*, 1980.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from hashlib import sha1
from importlib import import_module
from itertools import chain, count, islice
from math import ceil, floor, sqrt
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    ShardFailure,
)
from shardkit.operations.commands import Argument, Command, Partial, Replies, Reply, raise_failures
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.check import Suspicions
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.parameters import ChangeScope, Metadata
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import ATTEMPTS, open_again, unstable
from shardkit.structures.layouts.base import (
    PAGE,
    BareMembers,
    Build,
    ByPart,
    Chunk,
    Done,
    LayoutBase,
    Pairs,
    PartReplies,
    T,
    by_part,
)

GROUPS = 64
KEYS_PER_EXCHANGE = 100_000
# Results of a write script: it created the group; the group belongs to another structure, or is not
# settled.
CREATED, OTHERS = 2, -1
# Results of the script for all keys: there is no such group; it has another expiry now.
ABSENT, CHANGED = 2, 3
MOST_GROUPS = 4096
SPLITS_PER_SCRIPT = 16
_WRITE_UNSPLIT = "structures/layouts/write_unsplit"
_REPLACE = "structures/layouts/replace_growing"
_MANY = 1024  # more members than a script writes: its reply is _MANY * count + changed
# Commands that reply with the number of members added or removed.
_COUNTED = ("SADD", "SREM", "HSET", "HSETNX", "HDEL")
# Members that one script writes, so that it does not block its server for long.
MEMBERS_PER_SCRIPT = 500
_PARTS_PROBED = 16  # after the last one, before a group is removed
KEYS_PROBED = 1000
# Where fields expire, a group's count is too high: recount when it has grown by this factor.
_RECOUNT = 1.1
MOST_PARTS, MOST_COUNT = 2**24, 2**52  # of a group
_TRIAL_PAGE = 1000
MOST_UNPLANNED = 2**16  # members that writers add at the same time before parts split


def _quickest_sha1() -> Any:
    """Return CPython's own SHA-1 if possible: OpenSSL's takes twice as long for a member."""
    try:
        return import_module("_sha1").sha1
    except (ImportError, AttributeError):
        pass
    try:
        sha1()
    except ValueError:  # usedforsecurity=False takes half as long again
        return partial(sha1, usedforsecurity=False)
    return sha1


_sha1 = _quickest_sha1()


class GrowingLayout(LayoutBase):
    """Groups whose parts split as they fill; ``total`` members to start with need no split."""

    def __init__(
        self,
        component: str,
        name: str,
        kind: str,
        part_size: int,
        groups: int = GROUPS,
        total: int = 1,
    ) -> None:
        self.component = component
        self.name = name
        self.groups = groups
        self._part_size = part_size
        self._bits = groups.bit_length() - 1
        self._load = max_load(part_size)
        self.initial = max(1, ceil(total / groups / self._load))  # parts of a new group
        self._kind = kind
        self._due = -1  # of groups without parameters
        self._keys = state_keys(name, groups)
        self._parts_queries = [self.at(key, "HGET", "parts") for key in self._keys]
        self.parts = [self.initial] * groups  # of each group, as last read
        self._counts = [0] * groups
        self._expiring = [False] * groups
        self._recounted = [0] * groups
        self._to_come = 0.0
        self._is_trial = False

    def bind(self, meta: Metadata) -> None:
        """See `LayoutBase.bind`."""
        super().bind(meta)
        meta.named = True

    def read_one(self, name: str, member: bytes, *args: Argument) -> Operation[Reply]:
        """See `FixedLayout.read_one`."""
        group, q = self.place(member)
        component = self.component
        while True:
            parts = self.parts[group]
            key = f"{self._keys[group]}:{address(q, parts)}"
            command = Command(component, key, (name, key, member, *args))
            reply, now = yield [command, self._parts_queries[group]]
            if self._update_parts(group, now) == parts:
                if now is None:
                    yield from self._check_new([group])
                return reply

    def read(self, members: Pairs[T], build: Build[T]) -> Operation[Done[T]]:
        """See `FixedLayout.read`."""
        results: Done[T] = []
        waiting = self._by_group(members)
        while waiting:
            plans = [
                (group, self.parts[group], _by_part(placed, self.parts[group]))
                for group, placed in waiting.items()
            ]
            batch: list[Command] = []
            for group, _, parts in plans:
                batch += [
                    self.at(self.key(group, part), *build(stored, owned))
                    for part, (stored, owned) in parts.items()
                ]
                batch.append(self._parts_queries[group])
            replies = iter((yield batch))
            new = []
            for group, number, parts in plans:
                read = [(owned, next(replies)) for _, owned in parts.values()]
                now = next(replies)
                if self._update_parts(group, now) == number:
                    results += read
                    del waiting[group]
                if now is None:
                    new.append(group)
            yield from self._check_new(new)
        return results

    def write(self, members: Pairs[T], build: Build[T], *, adds: bool = True) -> Operation[Done[T]]:
        """See `FixedLayout.write`."""
        results: Done[T] = []
        waiting: list[Any] = members if isinstance(members, list) else list(members)
        kind = BareMembers if isinstance(members, BareMembers) else list
        unsure = set[int]()  # groups that need the longer script
        while waiting:
            plans: list[WritePlan] = []
            commands = Partial()
            for plan in (yield from self._planned(waiting, adds=adds)):
                # Now, while its members are in the processor's cache.
                plans.append(plan)
                commands.append(
                    self._write_command(plan, build, adds=adds, unsure=plan.group in unsure)
                )
            replies = yield commands
            waiting = kind()
            created: dict[int, tuple[WritePlan, list[Any]]] = {}
            others: dict[int, tuple[int, int]] = {}
            for plan, reply in zip(plans, replies, strict=True):
                if isinstance(reply, ShardFailure):
                    continue
                if isinstance(reply, int):
                    if reply < 0:
                        unsure.add(plan.group)
                        waiting += plan.pairs()
                    else:
                        number, changed = divmod(reply, _MANY)
                        self._update_state(plan.group, plan.parts, number)
                        owned = [write for _, write in plan.writes.values()]
                        results.append(([*chain.from_iterable(owned)], changed))
                    continue
                done, *state = reply
                if done == OTHERS:
                    others[plan.group] = state[0], state[2]
                    waiting += plan.pairs()
                    continue
                self._update_state(plan.group, *state[:3])
                if done == CREATED:
                    created[plan.group] = plan, state[3:]
                elif done:
                    results += plan.results(state[3:])
                else:
                    waiting += plan.pairs()
            if created or others:
                new = {group: values[-1] for group, (_, values) in created.items()}
                absent = yield from self._settle(new, others, replies)
                for group, (plan, values) in created.items():
                    if group in absent:  # another client deleted the structure since
                        waiting += plan.pairs()
                    else:
                        results += plan.results(values[:-1])
            raise_failures(replies)
        return results

    def _settle(
        self,
        created: Mapping[int, int],
        others: Mapping[int, tuple[int, int]],
        written: Replies | None = None,
    ) -> Operation[set[int]]:
        """Give groups the structure's expiry (`base.writes`); return those that do not exist.

        ``created`` has the expiry of the groups that a write created. ``others`` has the number of
        parts and the expiry of groups with another expiry, or of other parameters: the latter are
        removed.
        """
        meta = self.meta
        if meta is None:
            return set()
        absent = set[int]()
        for group, (parts, _) in others.items():
            self.parts[group] = parts
        waiting = {**created, **{group: expiry for group, (_, expiry) in others.items()}}
        for _ in range(ATTEMPTS):
            try:
                yield from open_again(meta, (), written, known=not others)
            except ParameterMismatchError:
                yield from self._to_all(created, meta.generation, "UNLINK", of=meta.fingerprint)
                raise
            again: dict[int, int] = {}
            yield from self._to_all(
                list(waiting),
                meta.generation,
                *meta.expiry,
                of=meta.fingerprint,
                seen=waiting,
                again=again,
                absent=absent,
            )
            if not again:
                break
            waiting = again
        else:
            raise unstable(meta.key)
        for group in absent:
            self._reset_group(group)
        return absent

    def _planned(
        self, pairs: Sequence[tuple[bytes, T]], *, adds: bool
    ) -> Operation[Iterator[WritePlan]]:
        """Return the scripts that write some members, each with its plan."""
        hashes = _hashes(pairs)
        sizes = Counter(map((self.groups - 1).__and__, hashes))
        if adds:
            yield from self._recount(sizes)
        wanted = {group: self._wanted(group, new if adds else 0) for group, new in sizes.items()}
        # By the group and the bits of q that choose a part in the largest group.
        bits = self._bits
        low = (1 << bits + max(wanted.values()).bit_length()) - 1
        together: defaultdict[int, list[Any]] = defaultdict(list)
        for key, pair in zip(map(low.__and__, hashes), pairs, strict=True):
            together[key].append(pair)
        groups: dict[int, dict[int, list[Any]]] = {group: {} for group in sizes}
        bare = isinstance(pairs, BareMembers)
        for key, members in together.items():
            group = key & (self.groups - 1)
            part = address(key >> bits, wanted[group])
            parts = groups[group]
            parts[part] = parts[part] + members if part in parts else members
        return chain.from_iterable(
            self._plans(group, wanted[group], parts, bare=bare) for group, parts in groups.items()
        )

    def _wanted(self, group: int, new: int) -> int:
        """Return how many parts a group needs for ``new`` more members."""
        number = self.parts[group]
        if not new:
            return number
        expected = self._counts[group] + new + self._to_come / self.groups
        return max(number, ceil(expected / self._load))

    def _plans(
        self, group: int, wanted: int, parts: Mapping[int, list[Any]], *, bare: bool
    ) -> Iterator[WritePlan]:
        """Cut the writes to a group into scripts, after the splits that they need.

        Members of one part stay together, so that a command adds as many as possible.
        """
        number = self.parts[group]
        while wanted - number > SPLITS_PER_SCRIPT:
            yield WritePlan(group, number, number + SPLITS_PER_SCRIPT, {})
            number += SPLITS_PER_SCRIPT
        writes: dict[int, tuple[list[bytes], list[Any]]] = {}
        room = MEMBERS_PER_SCRIPT
        for part, pairs in parts.items():
            for start in range(0, len(pairs), MEMBERS_PER_SCRIPT):
                page = pairs
                if len(pairs) > MEMBERS_PER_SCRIPT:
                    page = pairs[start : start + MEMBERS_PER_SCRIPT]
                if len(page) > room:
                    yield WritePlan(group, number, wanted, writes)
                    number, writes, room = wanted, {}, MEMBERS_PER_SCRIPT
                if bare:
                    writes[part] = page, []
                else:
                    writes[part] = [member for member, _ in page], [owned for _, owned in page]
                room -= len(page)
        yield WritePlan(group, number, wanted, writes)

    def _write_command(
        self, plan: WritePlan, build: Build[T], *, adds: bool, unsure: bool
    ) -> Command:
        group = plan.group
        commands = [build(stored, owned) for stored, owned in plan.writes.values()]
        args: list[Argument]
        known = self._counts[group] > 0 and plan.wanted == plan.parts and not unsure
        if known and commands[0][0] in _COUNTED:
            room = floor(plan.parts * self._load) - sum(
                len(members) for members, _ in plan.writes.values()
            )
            end, of = self._write_terms
            args = [plan.parts, of, *((end, max(0, room)) if adds else ("", 2**52))]
            for command in commands:
                args += [len(command), *command]
            keys = [self._keys[group], *(self.key(group, part) for part in plan.writes)]
            return lua_call(self.component, _WRITE_UNSPLIT, keys, args)
        parts = [*plan.writes, *plan.splits()]
        keys = [self._keys[group], *(self.key(group, part) for part in parts)]
        args = [
            *(self._kind, plan.parts, plan.wanted, self.groups, self.initial, *self._write_terms),
            len(plan.writes),
        ]
        for name, *arguments in commands:
            args += [name, len(arguments), *arguments]
        return lua_call(self.component, "structures/layouts/write_growing", keys, args)

    @property
    def _write_terms(self) -> tuple[Argument, Argument]:
        """When the structure expires (-1: never); its fingerprint, if coded with the generation."""
        if self.meta is None:
            return self._due, ""
        life = f":{self.meta.generation}" if self.meta.coded else ""
        return self.meta.end, self.meta.fingerprint + life

    def key_of(self, member: bytes) -> str:
        """See `FixedLayout.key_of`."""
        group, q = self.place(member)
        return self.key(group, address(q, self.parts[group]))

    def part_keys(self) -> Iterator[str]:
        """See `FixedLayout.part_keys`."""
        return (self.key(g, part) for g, parts in enumerate(self.parts) for part in range(parts))

    def part_count(self) -> int:
        """See `LayoutBase.part_count`."""
        return sum(self.parts)

    def data_keys(self) -> Iterable[str]:
        """See `FixedLayout.data_keys`: the states of all groups."""
        return self._keys

    def refresh(self) -> Operation[None]:
        """See `FixedLayout.refresh`: read how many parts each group has.

        Cost: one exchange; one more while some groups are empty.
        """
        yield from self._check_new((yield from self._read_states(range(self.groups))))

    def refresh_group(self, group: int) -> Operation[None]:
        """Read how many parts and members a group has; see `refresh`."""
        yield from self._check_new((yield from self._read_states([group])))

    def check_beside(self, group: int, members: Pairs[Any]) -> Operation[Suspicions]:
        """Check a group's keys besides its state and parts against its members ``held``."""
        yield from ()
        return []

    def rebuild_beside(self) -> Operation[None]:
        """Rebuild the groups' keys besides their states and parts."""
        yield from ()

    def _check_new(self, new: Sequence[int]) -> Operation[None]:
        """Check that groups without a state have no parts. Cost: one exchange, none for none."""
        parts_each = max(1, KEYS_PROBED // max(1, len(new)))
        firsts = [(g, part) for g in new for part in range(min(max(self.initial, 16), parts_each))]
        if firsts:
            replies = yield [self.at(self.key(*first), "EXISTS") for first in firsts]
            existing = {
                group: part for (group, part), exists in zip(firsts, replies, strict=True) if exists
            }
            # Their states may have been written since.
            for group in (yield from self._read_states(list(existing))):
                raise self._damage(group, "no state", f"that of {self.key(group, existing[group])}")

    def _read_states(self, groups: Sequence[int]) -> Operation[list[int]]:
        """Read the states of groups; return the groups without one."""
        new = []
        if groups:
            fields = ("parts", "count", "expiring")
            replies = yield [self.at(self._keys[group], "HMGET", *fields) for group in groups]
            for group, (parts, number, expiring) in zip(groups, replies, strict=True):
                count = 0
                if parts is None and number is None:
                    new.append(group)
                else:
                    args = (self.component, self._keys[group], "count", number, 0, MOST_COUNT)
                    count, parts = stored_integer(*args), parts or b""
                number = self._update_parts(group, parts)
                self._update_state(group, number, count, bool(expiring))
        return new

    def verify(self, members: int) -> Operation[None]:
        """See `LayoutBase.verify`: compare with the counts, and if they differ, group by group."""
        if members != sum(self._counts):
            yield from self._verify_groups(range(self.groups))

    def _verify_groups(self, groups: Iterable[int]) -> Operation[None]:
        # Members may have been added and removed in between: a script counts a group in one step.
        small = [group for group in groups if self.parts[group] <= PARTS_AT_ONCE]
        replies = yield [self.count_command(group) for group in small]
        for group, (parts, number, members) in zip(small, replies, strict=True):
            if parts in (0, self.parts[group]) and number != members and not self._expiring[group]:
                raise self._damage(group, f"{members} members", f"{number}, as its state has it,")

    def count_command(self, group: int) -> Command:
        """Return the command that counts a group's members; see ``lua/count_group.lua``."""
        keys = [self._keys[group], *(self.key(group, n) for n in range(self.parts[group]))]
        lua = "structures/layouts/count_group"
        return lua_call(self.component, lua, keys, [self._kind], idempotent=True)

    def _damage(self, group: int, actual: str, expected: str) -> DamagedDataError:
        return damage(self.component, self._keys[group], actual, expected)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """See `FixedLayout.chunks`: group by group."""
        return chunks_of(list(self.parts), size)

    def read_parts(
        self, chunk: Sequence[GroupPart], name: str, *args: Argument
    ) -> Operation[PartReplies]:
        """See `FixedLayout.read_parts`."""
        [replies] = yield from read_parts_together([self], chunk, name, *args)
        return [(None, reply) for reply in replies]

    def send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        """See `FixedLayout.send_to_all`; each group changes as one.

        Cost: one script per group; an exchange for every 100,000 parts.
        """
        yield from self.refresh()
        if name == "UNLINK":  # parts beyond a group's number would be left behind
            beyond = [
                [self.key(group, number + n) for n in range(_PARTS_PROBED)]
                for group, number in enumerate(self.parts)
            ]
            replies = yield [self.at(keys[0], "EXISTS", *keys[1:]) for keys in beyond]
            for group, more in enumerate(replies):
                if more:
                    actual, there = f"parts={self.parts[group]}", beyond[group][0]
                    raise self._damage(group, actual, f"more, as {there} says")
        return (yield from self._to_all(range(self.groups), generation.number, name, *args))

    def _to_all(
        self,
        groups: Iterable[int],
        generation: int,
        name: str,
        *args: Argument,
        of: str = "",
        seen: Mapping[int, int] | None = None,
        again: dict[int, int] | None = None,
        absent: set[int] | None = None,
    ) -> Operation[int]:
        """Send UNLINK, PERSIST or PEXPIREAT to all keys of groups; return the sum of the replies.

        Groups that were settled in another generation stay unchanged, as do those with another
        fingerprint than ``of`` (any if empty). ``seen`` has the expiry that unsettled groups had
        when last read: with it, groups of other parameters are removed, ``again`` gets the groups
        with another expiry, and ``absent`` those that do not exist.
        """
        changed = 0
        waiting = list(groups)
        while waiting:
            repeated = []
            for page in pages(waiting, max(1, KEYS_PER_EXCHANGE // max(self.parts))):
                replies = yield [
                    lua_call(
                        self.component,
                        "structures/layouts/all_growing",
                        self._all_keys(group),
                        (
                            *(self.initial, self.parts[group], of, generation),
                            *("" if seen is None else seen[group], name, *args),
                        ),
                        idempotent=True,
                    )
                    for group in page
                ]
                for group, (done, parts, reply) in zip(page, replies, strict=True):
                    self.parts[group] = parts
                    if done == CHANGED and again is not None:
                        again[group] = reply
                        continue
                    changed += reply
                    if not done:
                        repeated.append(group)
                    elif done == ABSENT and absent is not None:
                        absent.add(group)
            waiting = repeated
        return changed

    def _all_keys(self, group: int) -> list[str]:
        """Return the keys of a group, its state first."""
        return [self._keys[group], *(self.key(group, n) for n in range(self.parts[group]))]

    def count(self) -> Operation[int | None]:
        """Return the number of members; None if fields expire. Cost: one exchange."""
        yield from self.refresh()
        return None if any(self._expiring) else sum(self._counts)

    def sibling(self, name: str, due: int) -> GrowingLayout:
        """Return a layout alike on the same servers, which expires at ``due``, in milliseconds."""
        size = self._part_size
        layout = GrowingLayout(self.component, name, self._kind, size, self.groups)
        layout._due = due
        return layout

    def replace_by(self, other: GrowingLayout) -> Operation[int]:
        """Replace groups by those of a `sibling`, each atomically; return the number of members.

        Cost: one exchange, in nearly every case.
        """
        yield from self.refresh()
        waiting = list(range(self.groups))
        while waiting:
            commands = []
            for group in waiting:
                parts_here, parts_there = self.parts[group], other.parts[group]
                keys = [self._keys[group], other._keys[group]]
                keys += [self.key(group, part) for part in range(max(parts_here, parts_there))]
                keys += [other.key(group, part) for part in range(parts_there)]
                args = (parts_here, parts_there, self.initial, *self._write_terms)
                commands.append(lua_call(self.component, _REPLACE, keys, args))
            replies = yield commands
            created, others = dict[int, int](), dict[int, tuple[int, int]]()
            for group, (done, parts, number, *due) in zip(waiting, replies, strict=True):
                if done == OTHERS:
                    others[group] = parts, due[0]
                else:
                    self._update_state(group, parts, number)
                    if done == CREATED:
                        created[group] = due[0]
            waiting = [g for g, (done, *_) in zip(waiting, replies, strict=True) if done < 1]
            if created or others:
                yield from self._settle(created, others)
        other.reset()
        return sum(self._counts)

    def reset(self) -> None:
        """See `LayoutBase.reset`."""
        for group in range(self.groups):
            self._reset_group(group)

    def _reset_group(self, group: int) -> None:
        self.parts[group] = self.initial
        self._counts[group] = self._recounted[group] = 0
        self._expiring[group] = False

    def place(self, member: bytes) -> tuple[int, int]:
        """Return a member's group, and the number that decides its part there."""
        h = int.from_bytes(_sha1(member).digest()[:4], "big")
        return h & (self.groups - 1), h >> self._bits

    def key(self, group: int, part: int) -> str:
        """Return the key of a part."""
        return f"{self._keys[group]}:{part}"

    def _by_group(self, members: Pairs[T]) -> dict[int, list[_Placed[T]]]:
        pairs = members if isinstance(members, list) else list(members)
        hashes = _hashes(pairs)
        groups: list[list[_Placed[T]]] = [[] for _ in range(self.groups)]
        mask, bits = self.groups - 1, self._bits
        for h, (member, owned) in zip(hashes, pairs, strict=True):
            groups[h & mask].append((member, h >> bits, owned))
        return {group: members for group, members in enumerate(groups) if members}

    def pages(
        self, members: Iterable[Any], total: int | None = None, *, bare: bool = False
    ) -> Iterator[list[Any]]:
        """See `LayoutBase.pages`. Parts are made for all coming members, so that they split once.

        Each page shows how many of the members are new; the first one is small, so that few members
        move.
        """
        previous, sent, share = None, 0, 0.0
        self._is_trial = (total or 0) > PAGE and not any(self._counts)
        try:
            for page in super().pages(members, bare=bare):
                self._is_trial = False
                sent += len(page)
                self._to_come = share * max(0, (total or 0) - sent)
                yield page
                count = sum(self._counts)
                if previous is not None:
                    share = min(1.0, max(0.0, (count - previous) / len(page)))
                previous = count
        finally:
            self._to_come, self._is_trial = 0.0, False

    def _page_size(self) -> int:
        return _TRIAL_PAGE if self._is_trial else super()._page_size()

    def _recount(self, groups: Iterable[int]) -> Operation[None]:
        """Recount groups whose fields expire, before they split for members long gone.

        Of others, those that have outgrown their parts, more likely due to a damaged count.
        """
        outgrown = [g for g in groups if self._counts[g] > 2 * self.parts[g] * self._load]
        if outgrown:
            yield from self._verify_groups(outgrown)
        due = [
            group
            for group in groups
            if self._expiring[group]
            and self._counts[group] >= self.parts[group] * self._load
            and self._counts[group] > self._recounted[group] * _RECOUNT
        ]
        for group in due:
            total = 0
            parts = self.parts[group]
            for start in range(0, parts, PARTS_AT_ONCE):
                page = range(start, min(start + PARTS_AT_ONCE, parts))
                total += sum((yield [self.at(self.key(group, part), "HLEN") for part in page]))
            yield [self.at(self._keys[group], "HSET", "count", total)]
            self._counts[group] = self._recounted[group] = total

    def _update_parts(self, group: int, parts: bytes | None) -> int:
        number = self.parts[group]
        if parts != b"%d" % number:
            args = (self.component, self._keys[group], "parts", parts, 1, MOST_PARTS)
            number = stored_integer(*args, missing=self.initial)
        self.parts[group] = number
        return number

    def _update_state(
        self, group: int, parts: int, number: int, expiring: int | None = None
    ) -> None:
        # Parts split before members are added, but concurrent writers do not see each other.
        if number > ceil(parts * self._load) + MOST_UNPLANNED:
            most = f"about {ceil(parts * self._load)} members at most in {parts} parts"
            raise self._damage(group, f"count={number}", most)
        self.parts[group] = parts
        self._counts[group] = number
        if expiring is not None:  # else unchanged
            self._expiring[group] = bool(expiring)


# A member, the number that decides its part within its group, and its owned value.
_Placed: TypeAlias = tuple[bytes, int, T]


class WritePlan(NamedTuple):
    """One script: split a group's parts up to a number, then write to some of them."""

    group: int
    parts: int  # as last read
    wanted: int
    writes: dict[int, tuple[list[bytes], list[Any]]]  # by part, members and their owned values

    def pairs(self) -> list[Any]:
        """The members, each with its owned value, or bare."""
        result: list[Any] = []
        for members, owned in self.writes.values():
            result += zip(members, owned, strict=True) if owned else members
        return result

    def results(self, replies: Sequence[Reply]) -> Iterator[tuple[list[Any], Reply]]:
        """The owned values of each write, and its reply."""
        return zip((owned for _, owned in self.writes.values()), replies, strict=True)

    def splits(self) -> Iterator[int]:
        """For each split the part that splits, and the new one."""
        for new in range(self.parts, self.wanted):
            yield _split_from(new)
            yield new


class GroupPart(NamedTuple):
    """A part of a group, when the group had ``number`` parts."""

    group: int
    number: int
    part: int


def chunks_of(numbers: Sequence[int], size: int) -> Iterator[list[GroupPart]]:
    """Cut the parts of all groups into chunks; ``numbers`` has each group's number of parts."""
    every = (
        GroupPart(group, number, part)
        for group, number in enumerate(numbers)
        for part in range(number)
    )
    while chunk := list(islice(every, size)):
        yield chunk


def read_parts_together(
    layouts: Sequence[GrowingLayout], chunk: Sequence[GroupPart], name: str, *args: Argument
) -> Operation[list[list[Reply]]]:
    """Send a reading command to the same chunk of several layouts; return the replies, by layout.

    They have the same groups, each with at least as many parts as the chunk was made for.
    """
    results: list[list[Reply]] = [[] for _ in layouts]
    groups: dict[int, list[GroupPart]] = {}
    for part in chunk:
        groups.setdefault(part.group, []).append(part)
    waiting = [(n, group) for group in groups for n in range(len(layouts))]
    while waiting:
        batch: list[Command] = []
        plans = []
        for n, group in waiting:
            layout, parts = layouts[n], groups[group]
            number = layout.parts[group]
            within = parts_after_splits(parts[0].number, number, {part.part for part in parts})
            plans.append((n, group, number, len(within)))
            batch += [layout.at(layout.key(group, part), name, *args) for part in within]
            batch.append(layout._parts_queries[group])
        replies = iter((yield batch))
        waiting = []
        for n, group, number, length in plans:
            page = list(islice(replies, length))
            if layouts[n]._update_parts(group, next(replies)) == number:
                results[n] += page
            else:
                waiting.append((n, group))
    return results


def address(q: int, parts: int) -> int:
    """Return the part, out of ``parts``, of a member with the position ``q``."""
    mask = (1 << parts.bit_length()) - 1
    part = q & mask
    return part if part < parts else part & (mask >> 1)


def _split_from(new: int) -> int:
    """Return the part that splits into part ``new``."""
    return new & ((1 << (new.bit_length() - 1)) - 1)


def parts_after_splits(before: int, now: int, parts: set[int]) -> list[int]:
    """Return which of ``now`` parts hold the members of some parts out of ``before``."""
    within = set(parts)
    for new in range(before, now):
        if _split_from(new) in within:
            within.add(new)
    return sorted(part for part in within if part < now)


def _hashes(pairs: Sequence[tuple[bytes, Any]]) -> Sequence[int]:
    """Return the first 32 bits of the SHA-1 of each member."""
    hashes = array("I")
    if isinstance(pairs, BareMembers):
        hashes.frombytes(b"".join([_sha1(member).digest() for member in pairs]))
    else:
        hashes.frombytes(b"".join([_sha1(member).digest() for member, _ in pairs]))
    hashes = hashes[:: _sha1().digest_size // hashes.itemsize]
    if sys.byteorder == "little":
        hashes.byteswap()
    return hashes


def _by_part(placed: Iterable[_Placed[T]], parts: int) -> ByPart[T]:
    """Return members, and their owned values, by part; see `address`."""
    mask = (1 << parts.bit_length()) - 1
    half = mask >> 1
    return by_part(
        (part if (part := q & mask) < parts else part & half, member, owned)
        for member, q, owned in placed
    )


def max_load(part_size: int) -> float:
    """Return how many members parts may average, so that none outgrows its size.

    A part that has not split holds up to twice that; six standard deviations are kept free.
    """
    return max(1.0, (sqrt(9 + part_size) - 3) ** 2 / 2)


def check_groups(owner: str, groups: int) -> None:
    """Check a number of groups."""
    check_integer(owner, "parts", groups, 1, MOST_GROUPS)
    if groups & (groups - 1):
        raise InvalidArgumentError(f"{owner}: parts={groups}", "give a power of two")


@lru_cache(128)
def state_keys(name: str, groups: int) -> list[str]:
    """Return the key of each group's state."""
    return [f"{name}:{{{tag}}}" for tag in tags(groups)]


def remove_groups(component: str, name: str) -> Operation[int]:
    """Remove all groups of a structure, whatever their number; return how many keys there were.

    Cost: an EXISTS for each of some 8,000 keys, 1,000 in an exchange; for each existing group an
    exchange for 1,000 parts.
    """
    powers = (2**n for n in range(MOST_GROUPS.bit_length()))
    states = dict.fromkeys(key for groups in powers for key in state_keys(name, groups))
    removed = 0
    for page in pages(states, KEYS_PROBED):
        replies = yield [Command(component, k, ("EXISTS", k)) for k in page]
        for state in (key for key, exists in zip(page, replies, strict=True) if exists):
            unlinked, start = 1, 0
            while unlinked:  # parts are side by side, unless they are empty
                keys = [f"{state}:{part}" for part in range(start, start + KEYS_PROBED)]
                unlink = ("UNLINK", *keys)
                [unlinked] = yield [Command(component, state, unlink, idempotent=True)]
                removed, start = removed + unlinked, start + KEYS_PROBED
            beside = ("UNLINK", f"{state}:top", f"{state}:bottom", state)
            removed += sum((yield [Command(component, state, beside, idempotent=True)]))
    return removed


def tags(groups: int) -> tuple[int, ...]:
    """Return the tag of each group: numbers that CRC-32 spreads evenly."""
    by_group: dict[int, int] = {}
    numbers = count()
    while len(by_group) < groups:
        number = next(numbers)
        by_group.setdefault(crc32(b"%d" % number) % groups, number)
    return tuple(by_group[group] for group in range(groups))
