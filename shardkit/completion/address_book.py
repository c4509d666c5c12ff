r"""The names of a group's members, completed by a range of their bytes.

::

    members:elves        ZSET   Arwen → 0   Celeborn → 0   Elrond → 0 …     all scores 0
    {members}:meta       HASH   kind=address-book parts=1 fold=

Members of equal scores are in order of their bytes, and those that begin with ``El`` are the ones
from ``El`` on, up to and without ``El`` and a byte FF, which no UTF-8 text has::

    ZRANGE members:elves [El (El\xff BYLEX LIMIT 0 10

That is one read, in O(log n), that changes nothing and so works on a replica; any UTF-8 name can be
had, as the order of UTF-8's bytes is that of the code points.

With ``fold``, what decides is the folded name, and the name itself comes behind it::

    members:elves        ZSET   "arwen\0Arwen" → 0   "éowyn\0Éowyn" → 0 …

A group that is too large for one server is kept in ``parts``, by a hash of the name. Each part's
first ``limit`` are asked for at the same time, and the first of all are among them::

    members:elves:0      ZSET   Arwen  Galadriel …       on shard 3
    members:elves:1      ZSET   Celeborn  Elrond …       on shard 0
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final
from zlib import crc32

from shardkit.completion.names import checked, checked_id
from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Home
from shardkit.operations.operation import (
    Deferred,
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
from shardkit.structures.base.arguments import check_integer, check_name, shown
from shardkit.structures.base.parameters import Metadata, open_all

MAX_PARTS: Final = 1024
MOST: Final = 1000
BATCH_SIZE: Final = 10_000
_PER_COMMAND: Final = 1000
_BEYOND: Final = b"\xff"


class AddressBook(Structure[Face]):
    """The members of groups, completed by prefix. Made by ``kit.address_book``.

    Args:
        driver: what runs its operations.
        component: where its keys live; the key of a group, or part, decides its shard.
        name: the prefix of its keys.
        parts: in how many parts each group is kept. Stored beside the data.
        fold: what is compared instead of the name, such as `shardkit.completion.names.fold`; it
            must give the same for the same name for ever. Its ``__name__`` is stored.

    Attributes:
        parts, fold: as given.

    Raises:
        InvalidArgumentError: an argument is out of range.

    Names are text, not empty, without NUL; they come back as they were given, in the order of the
    bytes of what is compared. Every operation costs one more exchange the first time, for
    comparing the parameters.
    """

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
        if fold is not None and not callable(fold):
            raise InvalidArgumentError(f"{name}: fold={shown(fold)}", "give a function")
        self.parts = parts
        self.fold = fold
        stored = {
            "kind": "address-book",
            "parts": parts,
            "fold": getattr(fold, "__name__", "function") if fold else "",
        }
        # Not members:meta, which would be the key of a group called meta.
        self._meta = Metadata(Home(component), f"{{{name}}}", stored)
        super().__init__(driver, component, name)

    @property
    def deferred(self) -> AddressBook[Deferred]:
        """This one with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def join(self, group: str | int, name: str) -> Operation[bool]:
        """Add a member; return whether it is new.

        Raises:
            InvalidArgumentError: the name is no text, is empty or holds a NUL.
            ParameterMismatchError: the book was made with other parameters.

        Cost: one exchange, O(log n).
        """
        return (yield from self._add(group, [name])) > 0

    @operation
    def join_many(self, group: str | int, names: Iterable[str]) -> Operation[int]:
        """Add members; return how many are new.

        Raises:
            InvalidArgumentError: a name is none; nothing of its 10,000 was added.
            ParameterMismatchError: the book was made with other parameters.

        Cost: one exchange for every 10,000 names.
        """
        added = 0
        for page in pages(names, BATCH_SIZE):
            added += yield from self._add(group, page)
        return added

    @operation
    def leave(self, group: str | int, name: str) -> Operation[bool]:
        """Remove a member, by its exact name; return whether it was there. Cost: one exchange."""
        return (yield from self._remove(group, [name])) > 0

    @operation
    def leave_many(self, group: str | int, names: Iterable[str]) -> Operation[int]:
        """Remove members; return how many were there. Cost: one exchange for every 10,000."""
        removed = 0
        for page in pages(names, BATCH_SIZE):
            removed += yield from self._remove(group, page)
        return removed

    @operation
    def complete(
        self, group: str | int, prefix: str = "", limit: int = 10, *, after: str | None = None
    ) -> Operation[list[str]]:
        """Return the first members whose name begins with a prefix.

        Args:
            group: whose.
            prefix: empty for the first members of all.
            limit: how many at most; up to 1,000.
            after: only those that come after this name: the last of the page before.

        Returns:
            names as they were given, in the order of the bytes of what is compared.

        Raises:
            InvalidArgumentError: an argument is no text, holds a NUL, or is out of range.
            ParameterMismatchError: the book was made with other parameters.

        Cost: one exchange with the shards of all parts; O(log n) and ``limit`` names a part. Where
        that would be more than 10,000 names, it reads fewer of each, and again as often as needed.
        """
        check_integer(self.name, "limit", limit, 1, MOST)
        begin, end = self._bounds(prefix)
        if after is not None:
            begin = max(begin, b"(" + self._member(after), key=_position)
        keys = self._keys(group)
        yield from open_all([self._meta])
        found: list[bytes] = []
        each = min(limit, self._most_each)
        while True:
            page, begin = yield from self._read(keys, begin, end, each)
            found += page
            if not begin or len(found) >= limit:
                return [self._name(member) for member in found[:limit]]

    @operation
    def count(self, group: str | int, prefix: str = "") -> Operation[int]:
        """Return how many members begin with a prefix; without one, how many there are.

        Cost: one exchange, O(log n) a part.
        """
        begin, end = self._bounds(prefix)
        keys = self._keys(group)
        yield from open_all([self._meta])
        counts = yield [
            self._at(key, "ZLEXCOUNT", key, begin, end, idempotent=True)
            if prefix
            else self._at(key, "ZCARD", key, idempotent=True)
            for key in keys
        ]
        return sum(counts)

    @operation
    def contains(self, group: str | int, name: str) -> Operation[bool]:
        """Return whether a name is a member's, exactly. Cost: one exchange."""
        member = self._member(name)
        key = self._keys(group)[self._part(member)]
        yield from open_all([self._meta])
        [score] = yield [self._at(key, "ZSCORE", key, member, idempotent=True)]
        return score is not None

    @stream
    def names(self, group: str | int, prefix: str = "") -> Stream[str]:
        """Iterate over the members whose name begins with a prefix, in order.

        Who joins or leaves meanwhile may or may not be among them; everyone else is, once.

        Cost: one exchange for 1,000 names of a part, or 10,000 of all.
        """
        begin, end = self._bounds(prefix)
        keys = self._keys(group)
        yield from open_all([self._meta])
        each = min(1000, self._most_each)
        while begin:
            found, begin = yield from self._read(keys, begin, end, each)
            yield Page(self._name(member) for member in found)

    @operation
    def delete(self, group: str | int) -> Operation[bool]:
        """Remove a group with all its members; return whether there was one.

        Cost: one exchange.
        """
        keys = self._keys(group)
        yield from open_all([self._meta])
        removed = yield [self._at(key, "UNLINK", key) for key in keys]
        return any(removed)

    @property
    def _most_each(self) -> int:
        """How many names of each part one exchange may read."""
        return max(10, BATCH_SIZE // self.parts)

    def _read(
        self, keys: list[str], begin: bytes, end: bytes, each: int
    ) -> Operation[tuple[list[bytes], bytes]]:
        """Read the first members of a range, in order, and where the next ones begin.

        There are ``each`` of them at least, unless the range ends; then nothing begins.
        """
        replies = yield [
            self._at(key, "ZRANGE", key, begin, end, "BYLEX", "LIMIT", 0, each, idempotent=True)
            for key in keys
        ]
        # Beyond the last member of a part that may have more, not all members are known.
        known = min((reply[-1] for reply in replies if len(reply) == each), default=None)
        found = sorted(member for reply in replies for member in reply)
        if known is None:
            return found, b""
        return found[: bisect_right(found, known)], b"(" + known

    def _add(self, group: str | int, names: list[str]) -> Operation[int]:
        dealt = self._deal(group, names)
        yield from open_all([self._meta], create=True)
        replies = yield [
            self._at(key, "ZADD", key, *(word for member in page for word in (0, member)))
            for key, members in dealt
            for page in pages(members, _PER_COMMAND)
        ]
        return sum(replies)

    def _remove(self, group: str | int, names: list[str]) -> Operation[int]:
        dealt = self._deal(group, names)
        yield from open_all([self._meta])
        replies = yield [
            self._at(key, "ZREM", key, *page)
            for key, members in dealt
            for page in pages(members, _PER_COMMAND)
        ]
        return sum(replies)

    def _deal(self, group: str | int, names: list[str]) -> list[tuple[str, list[bytes]]]:
        """Return, for each part that is concerned, its key and members."""
        dealt: dict[int, list[bytes]] = {}
        for name in names:
            member = self._member(name)
            dealt.setdefault(self._part(member), []).append(member)
        keys = self._keys(group)
        return [(keys[part], members) for part, members in dealt.items()]

    def _keys(self, group: str | int) -> list[str]:
        key = f"{self.name}:{checked_id(self.name, 'group', group)}"
        return [key] if self.parts == 1 else [f"{key}:{part}" for part in range(self.parts)]

    def _part(self, member: bytes) -> int:
        return crc32(member) % self.parts

    def _bounds(self, prefix: str) -> tuple[bytes, bytes]:
        compared = self._compared("prefix", prefix, empty=True)
        return b"[" + compared, b"(" + compared + _BEYOND

    def _member(self, name: str) -> bytes:
        compared = self._compared("name", name)
        return compared + b"\0" + name.encode() if self.fold else compared

    def _name(self, member: bytes) -> str:
        return (member.partition(b"\0")[2] if self.fold else member).decode()

    def _compared(self, noun: str, text: str, *, empty: bool = False) -> bytes:
        checked(self.name, noun, text, empty=empty)
        if self.fold is None:
            return text.encode()
        return checked(self.name, f"the folded {noun}", self.fold(text), empty=True).encode()


def _position(bound: bytes) -> tuple[bytes, bool]:
    """Return what bounds are compared by: an exclusive one is further on."""
    return bound[1:], bound[:1] == b"("
