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
Parts not yet split hold twice as many members as split ones, so ``max_load`` is half of what a part
may hold, with a margin of six standard deviations: no part outgrows its size. Parts of at most 512
hold 196 members on average, parts of at most 128 hold 37. SHA-1 is the fastest hash in a server's
Lua. A write that needs no split is sent as a script that only compares the group's state, writes
and counts: 5 to 7 microseconds of the server's time for a member added alone, of which the SADD or
HSET takes 1. The script that splits is sent where something is to be split, or is not as expected.

A caller uses the number of parts it last saw. A script compares it first, and if it has changed
only returns the new one; a read fetches it behind the read commands, on the same connection. The
caller then repeats what was affected. The number of parts only grows, so if it is still the same
after a read, whatever the read did not find did not exist.

Tags spread the groups evenly over any 2^n shards by CRC-32: the tag of group ``g`` is the first
number whose CRC-32 modulo the number of groups is ``g``.

W. Litwin, *Linear hashing: a new tool for file and table addressing*, 1980.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
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
from shardkit.operations.arguments import shown
from shardkit.operations.commands import (
    Argument,
    Command,
    Partial,
    Replies,
    Reply,
    raise_failures,
    script_call,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.check import Suspicions
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.parameters import ANY_LIFE, Life, Metadata
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import ATTEMPTS, open_again, unstable
from shardkit.structures.layouts.base import PAGE, BareMembers, Build, Chunk, Layout, T

GROUPS = 64
KEYS_PER_EXCHANGE = 100_000
# What a script says that wrote to a group: that it created it; that it belongs to others, or is to
# be settled.
# What the script for all keys says: that there is no such group; that it expires otherwise by now.
CREATED, OTHERS = 2, -1
ABSENT, CHANGED = 2, 3
MOST_GROUPS = 4096
SPLITS_PER_SCRIPT = 16
_WRITE_UNSPLIT = "structures/layouts/write_unsplit"
_MANY = 1024  # more members than a script writes: its reply is a multiple of this, and how many
# Commands whose replies say how many members were added or removed.
_COUNTED = ("SADD", "SREM", "HSET", "HSETNX", "HDEL")
# Members that one script writes, so that it does not block its server for long.
MEMBERS_PER_SCRIPT = 500
_PARTS_LOOKED_FOR = 16  # behind the last one, before a group is removed
KEYS_LOOKED_FOR = 1000
# Where fields expire, a group's count is too high: recount when it has grown by this factor.
_RECOUNT = 1.1
MOST_PARTS = 2**24  # of a group
_TRIAL_PAGE = 1000
MOST_UNPLANNED = 2**16  # members that writers add at the same time before parts split


def _quickest_sha1() -> Any:
    """Return CPython's own SHA-1 where there is one: OpenSSL's takes twice as long for a member."""
    try:
        return import_module("_sha1").sha1
    except (ImportError, AttributeError):
        pass
    try:
        sha1()
    except ValueError:  # saying that nothing depends on its security takes half as long again
        return partial(sha1, usedforsecurity=False)
    return sha1


_sha1 = _quickest_sha1()


class GrowingLayout(Layout):
    """Groups whose parts split as they fill.

    Args:
        component: where they live.
        name: the prefix of their keys.
        kind: HASH, SET or ZSET: what a part is.
        part_size: how many members a part may have.
        groups: how many groups; a power of two.
        total: about how many members to start with, so that the first ones split nothing.

    Attributes:
        component, name, groups: as given.
        initial: how many parts a group starts with.
        parts: how many each group had when last seen.
    """

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
        self.initial = max(1, ceil(total / groups / self._load))
        self._kind = kind
        self._keys = state_keys(name, groups)
        self._parts_queries = [self._read(key, "HGET", "parts") for key in self._keys]
        self.parts = [self.initial] * groups
        self._counts = [0] * groups
        self._expiring = [False] * groups
        self._recounted = [0] * groups
        self._to_come = 0.0
        self._is_trial = False

    def bind(self, meta: Metadata) -> None:
        """See `Layout.bind`."""
        super().bind(meta)
        meta.named = True

    def read_one(self, name: str, member: bytes, *args: Argument) -> Operation[Reply]:
        """See `Layout.read_one`."""
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

    def read(
        self, members: Iterable[tuple[bytes, T]], build: Build[T]
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """See `Layout.read`."""
        results: list[tuple[list[T], Reply]] = []
        waiting = self._by_group(members)
        while waiting:
            plans = [
                (group, self.parts[group], _by_part(placed, self.parts[group]))
                for group, placed in waiting.items()
            ]
            batch: list[Command] = []
            for group, _, parts in plans:
                batch += [
                    self._read(self.key(group, part), *build(stored, owned))
                    for part, (stored, owned) in parts.items()
                ]
                batch.append(self._parts_queries[group])
            replies = iter((yield batch))
            new = []
            for group, number, parts in plans:
                found = [(owned, next(replies)) for _, owned in parts.values()]
                now = next(replies)
                if self._update_parts(group, now) == number:
                    results += found
                    del waiting[group]
                if now is None:
                    new.append(group)
            yield from self._check_new(new)
        return results

    def write(
        self,
        members: Iterable[tuple[bytes, T]],
        build: Build[T],
        *,
        adds: bool = True,
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """See `Layout.write`."""
        results: list[tuple[list[T], Reply]] = []
        waiting: list[Any] = members if isinstance(members, list) else list(members)
        kind = BareMembers if isinstance(members, BareMembers) else list
        unsure = set[int]()  # groups of which only the whole script can say what they are
        while waiting:
            plans: list[WritePlan] = []
            commands = Partial()
            for plan in (yield from self._planned(waiting, adds=adds)):
                # At once, while its members are in the processor's cache.
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
                        owned = [each for _, each in plan.writes.values()]
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
                new = {group: found[-1] for group, (_, found) in created.items()}
                gone = yield from self._settle(new, others, replies)
                for group, (plan, found) in created.items():
                    if group in gone:  # somebody has deleted the structure since
                        waiting += plan.pairs()
                    else:
                        results += plan.results(found[:-1])
            raise_failures(replies)
        return results

    def _settle(
        self,
        created: Mapping[int, int],
        others: Mapping[int, tuple[int, int]],
        written: Replies | None = None,
    ) -> Operation[set[int]]:
        """Let groups live as long as the structure does; see `shardkit.structures.base.writes`.

        Args:
            created: the groups that a write created, and when they expire.
            others: those that expire otherwise than the structure, or are of other parameters,
                which are removed: how many parts they have, and when they expire.
            written: the replies to the write.

        Returns:
            The groups that do not exist.

        Raises:
            ParameterMismatchError: the structure was deleted, and created with other parameters.
        """
        meta = self.meta
        if meta is None:
            return set()
        gone = set[int]()
        for group, (parts, _) in others.items():
            self.parts[group] = parts
        waiting = {**created, **{group: expiry for group, (_, expiry) in others.items()}}
        for _ in range(ATTEMPTS):
            try:
                yield from open_again(meta, (), written)
            except ParameterMismatchError:
                yield from self._to_all(created, meta.life, "UNLINK", of=meta.fingerprint)
                raise
            again: dict[int, int] = {}
            yield from self._to_all(
                list(waiting),
                meta.life,
                *meta.expiry,
                of=meta.fingerprint,
                seen=waiting,
                again=again,
                gone=gone,
            )
            if not again:
                break
            waiting = again
        else:
            raise unstable(meta.key)
        for group in gone:
            self._reset_group(group)
        return gone

    def _planned(
        self, pairs: Sequence[tuple[bytes, T]], *, adds: bool
    ) -> Operation[Iterator[WritePlan]]:
        """Return the scripts that write some members, each with what belongs to it."""
        hashes = _hashes(pairs)
        sizes = Counter(map((self.groups - 1).__and__, hashes))
        if adds:
            yield from self._recount(sizes)
        wanted = {group: self._wanted(group, new if adds else 0) for group, new in sizes.items()}
        # By the group, and as many bits of the other number as any of them needs for its parts.
        bits = self._bits
        low = (1 << bits + max(wanted.values()).bit_length()) - 1
        together: defaultdict[int, list[Any]] = defaultdict(list)
        for key, pair in zip(map(low.__and__, hashes), pairs, strict=True):
            together[key].append(pair)
        groups: dict[int, dict[int, list[Any]]] = {group: {} for group in sizes}
        bare = isinstance(pairs, BareMembers)
        for key, some in together.items():
            group = key & (self.groups - 1)
            part = address(key >> bits, wanted[group])
            parts = groups[group]
            parts[part] = parts[part] + some if part in parts else some
        return chain.from_iterable(
            self._plans(group, wanted[group], parts, bare=bare) for group, parts in groups.items()
        )

    def _wanted(self, group: int, new: int) -> int:
        """Return how many parts a group needs for so many more members."""
        number = self.parts[group]
        if not new:
            return number
        expected = self._counts[group] + new + self._to_come / self.groups
        return max(number, ceil(expected / self._load))

    def _plans(
        self, group: int, wanted: int, parts: Mapping[int, list[Any]], *, bare: bool
    ) -> Iterator[WritePlan]:
        """Cut the writes to a group into scripts, after the splits that they need.

        Members of one part go together, so that a command adds as many of them as it can.
        """
        number = self.parts[group]
        while wanted - number > SPLITS_PER_SCRIPT:
            yield WritePlan(group, number, number + SPLITS_PER_SCRIPT, {})
            number += SPLITS_PER_SCRIPT
        writes: dict[int, tuple[list[bytes], list[Any]]] = {}
        room = MEMBERS_PER_SCRIPT
        for part, pairs in parts.items():
            for start in range(0, len(pairs), MEMBERS_PER_SCRIPT):
                some = pairs
                if len(pairs) > MEMBERS_PER_SCRIPT:
                    some = pairs[start : start + MEMBERS_PER_SCRIPT]
                if len(some) > room:
                    yield WritePlan(group, number, wanted, writes)
                    number, writes, room = wanted, {}, MEMBERS_PER_SCRIPT
                if bare:
                    writes[part] = some, []
                else:
                    writes[part] = [member for member, _ in some], [owned for _, owned in some]
                room -= len(some)
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
                len(some) for some, _ in plan.writes.values()
            )
            end, of = self._life
            args = [plan.parts, of, *((end, max(0, room)) if adds else ("", 2**52))]
            for command in commands:
                args += [len(command), *command]
            keys = [self._keys[group], *(self.key(group, part) for part in plan.writes)]
            return script_call(self.component, script(_WRITE_UNSPLIT), keys, args)
        parts = [*plan.writes, *plan.splits()]
        keys = [self._keys[group], *(self.key(group, part) for part in parts)]
        args = [
            *(self._kind, plan.parts, plan.wanted, self.groups, self.initial, *self._life),
            len(plan.writes),
        ]
        for name, *arguments in commands:
            args += [name, len(arguments), *arguments]
        return script_call(self.component, script("structures/layouts/write_growing"), keys, args)

    @property
    def _life(self) -> tuple[Argument, Argument]:
        """When the structure expires (-1: never), and what names its parameters."""
        return (-1, "") if self.meta is None else (self.meta.end, self.meta.fingerprint)

    def part_count(self) -> int:
        """See `Layout.part_count`."""
        return sum(self.parts)

    def data_keys(self) -> Iterable[str]:
        """See `Layout.data_keys`: the states of all groups."""
        return self._keys

    def refresh(self) -> Operation[None]:
        """See `Layout.refresh`: reads how many parts each group has.

        Cost: one exchange; one more while some groups are empty.

        Raises:
            DamagedDataError: a group's state is damaged, or lost.
        """
        yield from self._check_new((yield from self._read_states(range(self.groups))))

    def refresh_group(self, group: int) -> Operation[None]:
        """Read how many parts and members a group has; see `refresh`."""
        yield from self._check_new((yield from self._read_states([group])))

    def check_beside(self, group: int, held: Sequence[tuple[bytes, Any]]) -> Operation[Suspicions]:
        """Check what a group has beside its state and its parts.

        Args:
            group: the group.
            held: its members, with their values or scores.
        """
        yield from ()
        return []

    def rebuild_beside(self) -> Operation[None]:
        """Rebuild what groups have beside their states and parts."""
        yield from ()

    def _check_new(self, new: Sequence[int]) -> Operation[None]:
        """Check that groups without a state have no parts. Cost: one exchange, none for none."""
        each = max(1, KEYS_LOOKED_FOR // max(1, len(new)))
        firsts = [(g, part) for g in new for part in range(min(max(self.initial, 16), each))]
        if firsts:
            found = yield [self._read(self.key(*first), "EXISTS") for first in firsts]
            there = {
                group: part for (group, part), exists in zip(firsts, found, strict=True) if exists
            }
            # They may have been written since.
            for group in (yield from self._read_states(list(there))):
                raise self._damage(group, "no state", f"that of {self.key(group, there[group])}")

    def _read_states(self, groups: Sequence[int]) -> Operation[list[int]]:
        """Read the states of groups; return the groups that have none."""
        new = []
        if groups:
            fields = ("parts", "count", "expiring")
            replies = yield [self._read(self._keys[group], "HMGET", *fields) for group in groups]
            for group, (parts, number, expiring) in zip(groups, replies, strict=True):
                if parts is None and number is None:
                    new.append(group)
                else:
                    count = stored_integer(self.component, self._keys[group], "count", number)
                    self._update_parts(group, parts or b"")
                    self._update_state(group, self.parts[group], count, bool(expiring))
                    continue
                self._update_state(group, self.initial, 0, bool(expiring))
        return new

    def verify(self, found: int) -> Operation[None]:
        """See `Layout.verify`: compares with the counts, and if need be group by group."""
        if found == sum(self._counts):
            return
        # Members may have come and gone meanwhile: a group is counted in one step.
        small = [g for g in range(self.groups) if self.parts[g] <= PARTS_AT_ONCE]
        replies = yield [self.count_command(group) for group in small]
        for group, (parts, number, members) in zip(small, replies, strict=True):
            if parts in (0, self.parts[group]) and number != members and not self._expiring[group]:
                raise self._damage(group, f"{members} members", f"{number}, as its state has it,")

    def count_command(self, group: int, *, store: bool = False) -> Command:
        """Return the command that counts a group's members; see ``lua/count_group.lua``."""
        keys = [self._keys[group], *(self.key(group, n) for n in range(self.parts[group]))]
        args = (self._kind, int(store))
        return script_call(
            self.component, script("structures/layouts/count_group"), keys, args, idempotent=True
        )

    def _damage(self, group: int, found: str, expected: str) -> DamagedDataError:
        return damage(self.component, self._keys[group], found, expected)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """See `Layout.chunks`: group by group."""
        return chunks_of(list(self.parts), size)

    def read_parts(
        self, chunk: Sequence[GroupPart], name: str, *args: Argument
    ) -> Operation[list[tuple[int | None, Reply]]]:
        """See `Layout.read_parts`."""
        [replies] = yield from read_parts_together([self], chunk, name, *args)
        return [(None, reply) for reply in replies]

    def send_to_all(self, life: Life, name: str, *args: Argument) -> Operation[int]:
        """See `Layout.send_to_all`; each group changes as one.

        Cost: one script per group, of one to two microseconds a part; an exchange for every
        100,000 parts.
        """
        yield from self.refresh()
        if name == "UNLINK":
            yield from self._look_beyond()
        return (yield from self._to_all(range(self.groups), life.number, name, *args))

    def filled(self) -> set[int]:
        """Return the groups that have members, as far as this process has seen."""
        return {group for group, count in enumerate(self._counts) if count}

    def expire_groups(self, groups: Iterable[int], seconds: int) -> Operation[None]:
        """Let some groups expire. Cost: as `send_to_all`, for these."""
        yield from self._to_all(groups, ANY_LIFE, "EXPIRE", seconds)

    def _look_beyond(self) -> Operation[None]:
        """Check that groups have no more parts than they say, as these would be left behind.

        Cost: one exchange.
        """
        beyond = [
            [self.key(group, number + n) for n in range(_PARTS_LOOKED_FOR)]
            for group, number in enumerate(self.parts)
        ]
        found = yield [self._read(keys[0], "EXISTS", *keys[1:]) for keys in beyond]
        for group, more in enumerate(found):
            if more:
                number = self.parts[group]
                raise self._damage(group, f"parts={number}", f"more, as {beyond[group][0]} says")

    def _to_all(
        self,
        groups: Iterable[int],
        life: int,
        name: str,
        *args: Argument,
        of: str = "",
        seen: Mapping[int, int] | None = None,
        again: dict[int, int] | None = None,
        gone: set[int] | None = None,
    ) -> Operation[int]:
        """Send a command to all keys of groups; return the sum of the replies.

        Args:
            groups: the groups.
            life: the life of the structure that they are of: those that were settled in another one
                are left as they are.
            name: see `send_to_all`.
            args: likewise.
            of: the fingerprint of the parameters whose groups these are; of any if it is empty.
            seen: when each expires, as last seen, if that is to be settled: then groups of other
                parameters are removed.
            again: gets those that expire otherwise by now.
            gone: gets those that do not exist.
        """
        changed = 0
        waiting = list(groups)
        lua = script("structures/layouts/all_growing")
        while waiting:
            repeated = []
            for some in pages(waiting, max(1, KEYS_PER_EXCHANGE // max(self.parts))):
                replies = yield [
                    script_call(
                        self.component,
                        lua,
                        self._all_keys(group),
                        (
                            *(self.initial, self.parts[group], of, life),
                            *("" if seen is None else seen[group], name, *args),
                        ),
                        idempotent=True,
                    )
                    for group in some
                ]
                for group, (done, parts, reply) in zip(some, replies, strict=True):
                    self.parts[group] = parts
                    if done == CHANGED and again is not None:
                        again[group] = reply
                        continue
                    changed += reply
                    if not done:
                        repeated.append(group)
                    elif done == ABSENT and gone is not None:
                        gone.add(group)
            waiting = repeated
        return changed

    def _all_keys(self, group: int) -> list[str]:
        """Return the keys of a group, its state first."""
        return [self._keys[group], *(self.key(group, n) for n in range(self.parts[group]))]

    def count(self) -> Operation[int | None]:
        """Return the number of members; None if fields expire, which no counter follows.

        Cost: one exchange.
        """
        yield from self.refresh()
        return None if any(self._expiring) else sum(self._counts)

    def sibling(self, name: str) -> GrowingLayout:
        """Return a layout with the same parameters whose groups live on the same servers."""
        size = self._part_size
        return GrowingLayout(self.component, name, self._kind, size, self.groups)

    def replace_by(self, other: GrowingLayout) -> Operation[int]:
        """Replace this layout's groups by those of another, each group atomically.

        Args:
            other: made by `sibling`; empty afterwards.

        Returns:
            The number of members afterwards.

        Cost: one exchange, in nearly every case.
        """
        yield from self.refresh()
        waiting = list(range(self.groups))
        while waiting:
            replies = yield [self._replace_command(group, other) for group in waiting]
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

    def _replace_command(self, group: int, other: GrowingLayout) -> Command:
        ours, theirs = self.parts[group], other.parts[group]
        keys = [self._keys[group], other._keys[group]]
        keys += [self.key(group, part) for part in range(max(ours, theirs))]
        keys += [other.key(group, part) for part in range(theirs)]
        args = (ours, theirs, self.initial, *self._life)
        return script_call(self.component, script("structures/layouts/replace_growing"), keys, args)

    def reset(self) -> None:
        """See `Layout.reset`."""
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

    @property
    def first_key(self) -> str:
        """The key of the first part."""
        return self.key(0, 0)

    def key(self, group: int, part: int) -> str:
        """Return the key of a part."""
        return f"{self._keys[group]}:{part}"

    def _by_group(self, members: Iterable[tuple[bytes, T]]) -> dict[int, list[_Placed[T]]]:
        pairs = members if isinstance(members, list) else list(members)
        hashes = _hashes(pairs)
        groups: list[list[_Placed[T]]] = [[] for _ in range(self.groups)]
        mask, bits = self.groups - 1, self._bits
        for h, (member, owned) in zip(hashes, pairs, strict=True):
            groups[h & mask].append((member, h >> bits, owned))
        return {group: some for group, some in enumerate(groups) if some}

    def pages(
        self, members: Iterable[Any], total: int | None = None, *, bare: bool = False
    ) -> Iterator[list[Any]]:
        """See `Layout.pages`. Parts are made for all that is to come, not split again and again.

        How much of it will be new is seen from the page before; the first one is small, so that few
        members move when parts are made for the rest.
        """
        known, sent, share = None, 0, 0.0
        self._is_trial = (total or 0) > PAGE and not any(self._counts)
        try:
            for page in super().pages(members, bare=bare):
                self._is_trial = False
                sent += len(page)
                self._to_come = share * max(0, (total or 0) - sent)
                yield page
                count = sum(self._counts)
                if known is not None:
                    share = min(1.0, max(0.0, (count - known) / len(page)))
                known = count
        finally:
            self._to_come, self._is_trial = 0.0, False

    def _page_size(self) -> int:
        return _TRIAL_PAGE if self._is_trial else super()._page_size()

    def _recount(self, groups: Iterable[int]) -> Operation[None]:
        """Recount groups whose fields expire, before they split for members long gone."""
        due = [
            group
            for group in groups
            if self._expiring[group]
            and self._counts[group] >= self.parts[group] * self._load
            and self._counts[group] > self._recounted[group] * _RECOUNT
        ]
        for group in due:
            held = 0
            parts = self.parts[group]
            for start in range(0, parts, PARTS_AT_ONCE):
                some = range(start, min(start + PARTS_AT_ONCE, parts))
                held += sum((yield [self._read(self.key(group, part), "HLEN") for part in some]))
            key = self._keys[group]
            yield [Command(self.component, key, ("HSET", key, "count", held))]
            self._counts[group] = self._recounted[group] = held

    def _read(self, key: str, name: object, *args: Argument) -> Command:
        return Command(self.component, key, (name, key, *args))  # type: ignore[arg-type]

    def _update_parts(self, group: int, parts: bytes | None) -> int:
        if parts is None:
            number = self.initial
        else:
            number = int(parts) if parts.isdigit() and len(parts) <= 8 else 0
            if not 0 < number <= MOST_PARTS:
                raise self._damage(group, f"parts={shown(parts)}", f"1 to {MOST_PARTS} parts")
        self.parts[group] = number
        return number

    def _update_state(
        self, group: int, parts: int, number: int, expiring: int | None = None
    ) -> None:
        # Parts split before members are added, but writers at the same time do not know each other.
        if number > ceil(parts * self._load) + MOST_UNPLANNED:
            most = f"about {ceil(parts * self._load)} members at most in {parts} parts"
            raise self._damage(group, f"count={number}", most)
        self.parts[group] = parts
        self._counts[group] = number
        if expiring is not None:  # else it is as last seen
            self._expiring[group] = bool(expiring)


# A member, the number that decides its part within its group, and what belongs to it.
_Placed: TypeAlias = tuple[bytes, int, T]


class WritePlan(NamedTuple):
    """What one script does: split a group's parts up to a number, then write to some of them.

    Attributes:
        group: the group.
        parts: how many parts it had when last seen.
        wanted: how many it needs.
        writes: by part, members and what belongs to each; nothing to bare ones.
    """

    group: int
    parts: int
    wanted: int
    writes: dict[int, tuple[list[bytes], list[Any]]]

    def pairs(self) -> list[Any]:
        """The members, each with what belongs to it, or bare."""
        found: list[Any] = []
        for members, owned in self.writes.values():
            found += zip(members, owned, strict=True) if owned else members
        return found

    def results(self, replies: Sequence[Reply]) -> Iterator[tuple[list[Any], Reply]]:
        """What belonged to the members of each write, and its reply."""
        owned = (belonging for _, belonging in self.writes.values())
        return zip(owned, replies, strict=True)

    def splits(self) -> Iterator[int]:
        """For each split the part that is split, and the new one."""
        for new in range(self.parts, self.wanted):
            yield _split_from(new)
            yield new


class GroupPart(NamedTuple):
    """A part of a group, as of when the group had ``number`` parts."""

    group: int
    number: int
    part: int


def chunks_of(numbers: Sequence[int], size: int) -> Iterator[list[GroupPart]]:
    """Cut the parts of all groups into chunks; ``numbers`` says how many each group has."""
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
    """Send a command that reads to the same chunk of several layouts; see `Layout.read_parts`.

    Args:
        layouts: layouts with the same groups, each with at least as many parts as the chunk says.
        chunk: some parts.
        name: the command's name.
        args: what follows the key.

    Returns:
        The replies, by layout.

    Cost: one exchange, in nearly every case.
    """
    found: list[list[Reply]] = [[] for _ in layouts]
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
            batch += [layout._read(layout.key(group, part), name, *args) for part in within]
            batch.append(layout._parts_queries[group])
        replies = iter((yield batch))
        waiting = []
        for n, group, number, length in plans:
            some = list(islice(replies, length))
            if layouts[n]._update_parts(group, next(replies)) == number:
                found[n] += some
            else:
                waiting.append((n, group))
    return found


def address(q: int, parts: int) -> int:
    """Return the part, out of ``parts``, of a member with the position ``q``."""
    mask = (1 << parts.bit_length()) - 1
    part = q & mask
    return part if part < parts else part & (mask >> 1)


def _split_from(new: int) -> int:
    """Return the part that is split to make part ``new``."""
    return new & ((1 << (new.bit_length() - 1)) - 1)


def parts_after_splits(before: int, now: int, parts: set[int]) -> list[int]:
    """Return which of ``now`` parts hold what some parts held when there were ``before``."""
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


def _by_part(placed: Iterable[_Placed[T]], parts: int) -> dict[int, tuple[list[bytes], list[T]]]:
    """Return members, and what belongs to each, by part; see `address`."""
    mask = (1 << parts.bit_length()) - 1
    half = mask >> 1
    found: dict[int, tuple[list[bytes], list[T]]] = {}
    for member, q, owned in placed:
        part = q & mask
        if part >= parts:
            part &= half
        some = found.get(part)
        if some is None:
            found[part] = [member], [owned]
        else:
            some[0].append(member)
            some[1].append(owned)
    return found


def max_load(part_size: int) -> float:
    """Return how many members parts may average, so that none outgrows its size.

    A part not yet split holds up to twice the average. Members fall to parts at random, so their
    number has its square root as standard deviation; six of these are kept free.
    """
    return max(1.0, (sqrt(9 + part_size) - 3) ** 2 / 2)


def check_groups(owner: str, groups: int) -> None:
    """Check a number of groups.

    Raises:
        InvalidArgumentError: it is no power of two, or too large.
    """
    check_integer(owner, "groups", groups, 1, MOST_GROUPS)
    if groups & (groups - 1):
        raise InvalidArgumentError(f"{owner}: groups={groups}", "give a power of two")


@cache
def state_keys(name: str, groups: int) -> list[str]:
    """Return the key of each group's state."""
    return [f"{name}:{{{tag}}}" for tag in tags(groups)]


def remove_groups(component: str, name: str) -> Operation[int]:
    """Remove all groups of a structure, whatever their number; return how many keys there were.

    Cost: an EXISTS for each of some 8,000 keys, 1,000 in an exchange; for each group that there is
    an exchange for 1,000 parts.
    """
    powers = (2**n for n in range(MOST_GROUPS.bit_length()))
    states = dict.fromkeys(key for groups in powers for key in state_keys(name, groups))
    removed = 0
    for some in pages(states, KEYS_LOOKED_FOR):
        found = yield [Command(component, k, ("EXISTS", k)) for k in some]
        for state in (key for key, exists in zip(some, found, strict=True) if exists):
            gone, start = 1, 0
            while gone:  # parts are side by side, unless they are empty
                keys = [f"{state}:{part}" for part in range(start, start + KEYS_LOOKED_FOR)]
                unlink = ("UNLINK", *keys)
                [gone] = yield [Command(component, state, unlink, idempotent=True)]
                removed, start = removed + gone, start + KEYS_LOOKED_FOR
            beside = ("UNLINK", f"{state}:top", f"{state}:bottom", state)
            removed += sum((yield [Command(component, state, beside, idempotent=True)]))
    return removed


def tags(groups: int) -> tuple[int, ...]:
    """Return the tag of each group: numbers that CRC-32 spreads evenly."""
    found: dict[int, int] = {}
    numbers = count()
    while len(found) < groups:
        number = next(numbers)
        found.setdefault(crc32(b"%d" % number) % groups, number)
    return tuple(found[group] for group in range(groups))
