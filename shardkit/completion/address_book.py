"""The names of a group's members, completed by a range of their bytes.

Members with equal scores are ordered by their bytes. Those that begin with ``El`` range from ``El``
to ``El`` and a byte FF, which no UTF-8 text has: one read in O(log n), even from a replica. With
``fold`` a member is the folded name, a NUL, and the name itself. A group that is too large for one
server is split into ``parts``, by a hash of the name. One exchange reads the first ``limit``
members of every part, and the first of all are among them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from zlib import crc32

from shardkit.completion.contacts import check_text, key_id, stored_name
from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Home
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_name
from shardkit.structures.base.check import (
    KEYS_CHECKED,
    REBUILD,
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    contents,
)
from shardkit.structures.base.damage import damage
from shardkit.structures.base.parameters import Metadata, open_all, send_opened
from shardkit.structures.base.partitioned import (
    check_parameters,
    open_to_delete,
    restore_parameters,
)

MAX_PARTS: Final = 1024
MAX_LIMIT: Final = 1000
BATCH_SIZE: Final = 10_000
_NAMES_PER_COMMAND: Final = 1000
_AFTER_UTF8: Final = b"\xff"
_UNREADABLE: Final = "that is not a name"
_ELSEWHERE: Final = "of another part"


class AddressBook(Structure[Face]):
    """The members of groups, completed by prefix. Made by ``kit.address_book``.

    Args:
        component: the component of its keys; the key of a group, or part, decides its shard.
        parts: the number of parts of each group. Stored beside the data.
        fold: returns the form in which names are compared, such as `shardkit.completion.fold`. It
            must be the same each time. The function's ``__name__`` is stored.

    Names are text, not empty, without NUL. They are returned unchanged, in the order of the bytes
    of their compared form. Errors: see `shardkit.structures`. The first write costs one more
    exchange, to compare the parameters; three in a new book, to look for members without
    parameters.
    """

    deferred: DeferredFace[AddressBook[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "members",
        parts: int = 1,
        fold: Callable[[str], str] | None = None,
    ) -> None:
        check_name(name)
        check_integer(name, "parts", parts, 1, MAX_PARTS)
        self.parts = parts
        self.fold = fold
        stored = {
            "kind": "address-book",
            "parts": parts,
            "fold": getattr(fold, "__name__", "function") if fold else "",
        }
        # Not members:meta, which would be the key of a group called meta.
        self._meta = Metadata(Home(component), f"{{{name}}}", stored)
        self._meta.leased = True
        # The keys of the first used group: other groups are unknown.
        self._sought: list[str] = []
        self._meta.data_keys = lambda: [(component, key) for key in self._sought]
        super().__init__(driver, component, name)

    @operation
    def join(self, group: str | int, name: str) -> Operation[bool]:
        """Add a member; return whether it is new. Cost: one exchange, O(log n)."""
        return (yield from self._change(group, [name], add=True)) > 0

    @operation
    def join_many(self, group: str | int, names: Iterable[str]) -> Operation[int]:
        """Add members; return how many are new. Cost: one exchange for every 10,000 names."""
        return (yield from self._change(group, names, add=True))

    @operation
    def leave(self, group: str | int, name: str) -> Operation[bool]:
        """Remove a member, by its exact name; return whether it existed. Cost: one exchange."""
        return (yield from self._change(group, [name], add=False)) > 0

    @operation
    def leave_many(self, group: str | int, names: Iterable[str]) -> Operation[int]:
        """Remove members; return how many existed. Cost: one exchange for every 10,000."""
        return (yield from self._change(group, names, add=False))

    @operation
    def complete(
        self, group: str | int, prefix: str = "", limit: int = 10, *, cursor: str | None = None
    ) -> Operation[list[str]]:
        """Return the first members whose name begins with a prefix, in the order of compared bytes.

        Args:
            prefix: empty for the first of all members.
            limit: the most names to return, up to 1,000.
            cursor: the previous page's last name, even if it is no longer a member: only names that
                follow it are returned.

        Cost: one exchange with the shards of all parts; O(log n) and ``limit`` names a part. If
        that were more than 10,000 names, it reads fewer of each, in as many exchanges as needed.
        """
        check_integer(self.name, "limit", limit, 1, MAX_LIMIT)
        begin, end = self._bounds(prefix)
        if cursor is not None:
            after = b"(" + self._member(cursor)  # which comes later than to include the same
            begin = max(begin, after, key=lambda bound: (bound[1:], bound is after))
        keys = self._keys(group)
        members: list[bytes] = []
        most = min(limit, self._max_per_part)
        while True:
            page, begin = yield from self._read(keys, begin, end, most)
            members += page
            if not begin or len(members) >= limit:
                return [self._name(keys, member) for member in members[:limit]]

    @operation
    def count(self, group: str | int, prefix: str = "") -> Operation[int]:
        """Return the number of members that begin with a prefix; without one, of all members.

        Cost: one exchange, O(log n) a part.
        """
        begin, end = self._bounds(prefix)
        counts = yield from send_opened(
            self._meta,
            [
                self._at(key, "ZLEXCOUNT", key, begin, end)
                if prefix
                else self._at(key, "ZCARD", key)
                for key in self._keys(group)
            ],
        )
        return sum(counts)

    @operation
    def contains(self, group: str | int, name: str) -> Operation[bool]:
        """Return whether there is a member with exactly this name. Cost: one exchange."""
        member = self._member(name)
        key = self._keys(group)[self._part(member)]
        reading = self._at(key, "ZSCORE", key, member)
        [score] = yield from send_opened(self._meta, [reading])
        return score is not None

    @stream
    def names(self, group: str | int, prefix: str = "") -> Stream[str]:
        """Iterate over the members whose name begins with a prefix, in order.

        All names that are members during the whole call are returned once; names that are added or
        removed during the call may be missing.

        Cost: one exchange for 1,000 names of a part, or 10,000 of all.
        """
        begin, end = self._bounds(prefix)
        keys = self._keys(group)
        most = min(1000, self._max_per_part)
        while begin:
            members, begin = yield from self._read(keys, begin, end, most)
            yield Page(self._name(keys, member) for member in members)

    @operation
    def remove_group(self, group: str | int) -> Operation[bool]:
        """Remove a group with all its members; return whether it existed. Cost: one exchange."""
        keys = self._keys(group)
        self._seek(group)
        yield from open_to_delete(self._meta)
        removed = yield [self._at(key, "UNLINK", key) for key in keys]
        return any(removed)

    @stream
    def check(self, group: str | int) -> Stream[Damage]:
        """Read a group, and return its damage; changes nothing.

        Checks the book's parameters and the types of parts. Finds names that cannot be read, are in
        another part than their own, or out of order.

        Cost: two exchanges for 64 parts, whose names are in memory; more for large ones.
        """
        self._seek(group)
        self._meta.data_ruled_out = False
        yield from check_parameters(self._meta)
        for page in pages(enumerate(self._keys(group)), KEYS_CHECKED):
            yield from confirmed(self._check_parts, page)

    @operation
    def rebuild(self, group: str | int) -> Operation[int]:
        """Store lost parameters, and put a group's names in order and into their own parts.

        Leaves names that cannot be read; returns the number of moved ones. Cost: as `check`, and
        two exchanges for 1,000 moved names.
        """
        self._seek(group)
        yield from restore_parameters(self._meta)
        keys, moved = self._keys(group), 0
        for part, key in enumerate(keys):
            [entries] = yield from contents(self.component, "ZSET", [key], [])
            wrong = [m for m, score in entries if score or self._fault(part, m) == _ELSEWHERE]
            for page in pages(wrong, _NAMES_PER_COMMAND):
                yield [self._at(k, "ZADD", k, 0, m) for m in page for k in (keys[self._part(m)],)]
                strangers = [member for member in page if self._part(member) != part]
                if strangers:
                    yield [self._at(key, "ZREM", key, *strangers)]
            moved += len(wrong)
        return moved

    def _check_parts(self, parts: Sequence[tuple[int, str]]) -> Operation[Suspicions]:
        notes: Suspicions = []
        keys = [key for _, key in parts]
        read = yield from contents(self.component, "ZSET", keys, notes, "remove_group(group)")
        for (part, key), entries in zip(parts, read, strict=True):
            faults: dict[str, bytes] = {}
            for member, score in entries:
                fault = self._fault(part, member) or ("of a score" if score else "")
                faults.setdefault(fault, member)
            faults.pop("", None)
            for fault, member in faults.items():
                error = damage(self.component, key, f"{shown(member)} {fault}", "names of its own")
                repair = "" if fault == _UNREADABLE else f"{REBUILD} moves what is not its own"
                notes.append(Suspicion(error, repair))
        return notes

    def _fault(self, part: int, member: bytes) -> str:
        """Return the fault of a stored member; empty for a valid one."""
        try:
            same = self._member(self._name([self.name], member)) == member
        except (DamagedDataError, InvalidArgumentError):
            same = False
        return _UNREADABLE if not same else "" if self._part(member) == part else _ELSEWHERE

    def _seek(self, group: str | int) -> None:
        """Look for members in a group's keys, in parts or not, if the parameters are missing."""
        key = f"{self.name}:{key_id(self.name, 'group', group)}"
        self._sought[:] = [key, *(f"{key}:{part}" for part in range(max(self.parts, 16)))]

    @property
    def _max_per_part(self) -> int:
        """The most names of each part that one exchange reads."""
        return max(10, BATCH_SIZE // self.parts)

    def _read(
        self, keys: list[str], begin: bytes, end: bytes, most: int
    ) -> Operation[tuple[list[bytes], bytes]]:
        """Return at least the first ``each`` members of a range, in order, and the next bound.

        The bound is empty at the end of the range; then there may be fewer members.
        """
        replies = yield from send_opened(
            self._meta,
            [self._at(key, "ZRANGE", key, begin, end, "BYLEX", "LIMIT", 0, most) for key in keys],
        )
        # A part that returned ``each`` may have more members behind its last one.
        last = min((reply[-1] for reply in replies if len(reply) == most), default=None)
        members = sorted(member for reply in replies for member in reply)
        if last is None:
            return members, b""
        return members[: bisect_right(members, last)], b"(" + last

    def _change(self, group: str | int, names: Iterable[str], *, add: bool) -> Operation[int]:
        changed, keys = 0, self._keys(group)
        for batch in pages(names, BATCH_SIZE):
            by_key: dict[str, list[bytes]] = {}
            for name in batch:
                member = self._member(name)
                by_key.setdefault(keys[self._part(member)], []).append(member)
            self._seek(group)
            yield from open_all([self._meta], create=add)
            replies = yield [
                self._at(key, "ZADD", key, *(word for member in page for word in (0, member)))
                if add
                else self._at(key, "ZREM", key, *page)
                for key, members in by_key.items()
                for page in pages(members, _NAMES_PER_COMMAND)
            ]
            changed += sum(replies)
        return changed

    def _keys(self, group: str | int) -> list[str]:
        key = f"{self.name}:{key_id(self.name, 'group', group)}"
        return [key] if self.parts == 1 else [f"{key}:{part}" for part in range(self.parts)]

    def _part(self, member: bytes) -> int:
        return crc32(member) % self.parts

    def _bounds(self, prefix: str) -> tuple[bytes, bytes]:
        compared = self._compared("prefix", prefix, empty=True)
        return b"[" + compared, b"(" + compared + _AFTER_UTF8

    def _member(self, name: str) -> bytes:
        compared = self._compared("name", name)
        return compared + b"\0" + name.encode() if self.fold else compared

    def _name(self, keys: Sequence[str], member: bytes) -> str:
        name = member.partition(b"\0")[2] if self.fold else member
        return stored_name(self.component, keys[crc32(member) % len(keys)], "name", name)

    def _compared(self, noun: str, text: str, *, empty: bool = False) -> bytes:
        check_text(self.name, noun, text, empty=empty)
        if self.fold is None:
            return text.encode()
        return check_text(self.name, f"the folded {noun}", self.fold(text), empty=True).encode()
