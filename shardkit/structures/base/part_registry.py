"""The parts that a structure has, where members are ids and any id is allowed.

::

    location:parts     SET   {0, 1, 133}        the ranges of parts that were ever written to

Id ``n`` is in part ``n // part_size``, however large. A visit to all parts needs to know which
exist. A process registers a *range*, some consecutive parts, before it first writes to it, unless
it has seen it registered. A crash can leave a range too many, never one too few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, To
from shardkit.operations.operation import Operation
from shardkit.structures.base.damage import damage

HIGHEST = 2**63 - 1
LONGEST_NUMBER = 4300  # digits; Python reads no longer ones


class PartRegistry:
    """The registered ranges of one structure, shared by all its faces."""

    def __init__(self, to: To, name: str, parts_per_range: int = 1, highest: int = HIGHEST) -> None:
        self.name = name
        self.key = f"{name}:parts"
        self.parts_per_range = parts_per_range
        self._highest = highest  # part
        self.to = to
        self._seen: set[int] = set()

    def add(self, parts: Iterable[int], due: int = 0) -> Operation[None]:
        """Register the ranges of parts before a write; ``due`` is the structure's expiry.

        Cost: one exchange; none if this process has seen them registered.
        """
        if new := self.unseen(parts):
            yield self.adding(new, due)
            self._seen |= new

    def unseen(self, parts: Iterable[int]) -> set[int]:
        """Return the ranges of parts that this process has not seen registered."""
        return self.ranges(parts) - self._seen

    def note(self, ranges: Iterable[int]) -> None:
        """Note that ranges are registered."""
        self._seen.update(ranges)

    def ranges(self, parts: Iterable[int]) -> set[int]:
        """Return the ranges of parts."""
        return {part // self.parts_per_range for part in parts}

    def adding(self, ranges: Iterable[int], due: int = 0) -> list[Command]:
        """Return the commands that register ranges."""
        sent: list[tuple[Argument, ...]] = [("SADD", self.key, *sorted(ranges))]
        if due:
            sent.append(("PEXPIREAT", self.key, due))
        return [Command(self.to, self.key, args, idempotent=True) for args in sent]

    def read(self) -> Operation[list[int]]:
        """Return the registered ranges, in order. Cost: one exchange."""
        [members] = yield [Command(self.to, self.key, ("SMEMBERS", self.key))]
        for member in members:
            if not self._is_range(member):
                found = f"a member={shown(member)}"
                raise damage(self.to, self.key, found, "the number of a range of parts")
        ranges = sorted(map(int, members))
        self._seen |= set(ranges)
        return ranges

    def unregistered(self, parts: Iterable[int]) -> Operation[list[int]]:
        """Return which of some parts are not registered. Cost: one exchange."""
        ranges = set((yield from self.read()))
        return [part for part in parts if part // self.parts_per_range not in ranges]

    def _is_range(self, member: bytes) -> bool:
        if not member.isdigit() or len(member) > LONGEST_NUMBER:
            return False
        return int(member) * self.parts_per_range <= self._highest

    def repair(self) -> Operation[None]:
        """Remove everything but ranges from the stored set. Cost: two exchanges, or three."""
        [kind] = yield [Command(self.to, self.key, ("TYPE", self.key))]
        removal: tuple[Argument, ...] = ("UNLINK", self.key)
        if kind == b"set":
            [members] = yield [Command(self.to, self.key, ("SMEMBERS", self.key))]
            wrong = [member for member in members if not self._is_range(member)]
            removal = ("SREM", self.key, *wrong) if wrong else ("EXISTS", self.key)
        yield [Command(self.to, self.key, removal, idempotent=True)]
        self.reset()

    def parts(self, ranges: Iterable[int]) -> Iterator[int]:
        """Return the parts of ranges, in order."""
        for number in ranges:
            start = number * self.parts_per_range
            yield from range(start, min(start + self.parts_per_range, self._highest + 1))

    def reset(self) -> None:
        """Drop cached state after the structure is deleted."""
        self._seen.clear()
