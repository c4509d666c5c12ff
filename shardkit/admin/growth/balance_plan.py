"""Finds the moves that balance servers with the fewest bytes moved. No I/O.

::

    a: 50 + 20   b: 15 + 5   c: new      mean 30; within a tolerance of 0.2: 24 to 36
    50 alone is too much for any server:  as near as possible, and `fits` is False
    a: 20 + 20   b: 30   c: new          20 from a to c: 20 bytes move

The search takes the fullest server and tries each of its databases in each other place, then the
next server, until all fit. It drops every branch that moves as many bytes as the best plan so far.
All shards of one database move together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

_WORK = 1_000_000  # steps of the search, times units; then the best plan so far is taken
_DEEPEST = 300  # moves of one plan


@dataclass(frozen=True)
class Unit:
    """The shards of one database."""

    server: int
    weight: float  # what is balanced: bytes, keys or operations
    size: float  # bytes
    movable: bool = True


@dataclass
class Placement:
    """The places of units, by their indices."""

    moves: list[tuple[int, int]] = field(default_factory=list)  # units, and servers
    off: float = math.inf  # by how much all servers together miss the tolerance
    exact: bool = False  # whether no plan within the tolerance moves fewer bytes
    size: float = math.inf

    @property
    def fits(self) -> bool:
        """Whether all servers are within the tolerance."""
        return self.off == 0


def place(
    units: Sequence[Unit], room: Sequence[float], free: Sequence[int], tolerance: float
) -> Placement:
    """Return the moves after which all servers have about the same, with the fewest bytes moved.

    Each server has `room` for so many bytes more, and so many `free` databases.
    """
    search = _Search(units, room, free, tolerance)
    search.descend(0.0, [])
    best = search.best
    best.exact = best.fits and search.is_whole
    if best.fits or len(best.moves) < _DEEPEST:
        return best
    moved = dict(best.moves)
    left, still_free = list(room), list(free)
    for n, server in best.moves:
        left[server] -= units[n].size
        still_free[server] -= 1
    rest = place(
        [
            replace(unit, server=moved.get(n, unit.server), movable=unit.movable and n not in moved)
            for n, unit in enumerate(units)
        ],
        left,
        still_free,
        tolerance,
    )
    return Placement(best.moves + rest.moves, rest.off, size=best.size + rest.size)


class _Search:
    def __init__(
        self, units: Sequence[Unit], room: Sequence[float], free: Sequence[int], tolerance: float
    ) -> None:
        self._units = units
        self._room = list(room)
        self._left = list(free)
        self._loads = [0.0] * len(room)
        for unit in units:
            self._loads[unit.server] += unit.weight
        mean = sum(self._loads) / len(room)
        self._least, self._most = mean * (1 - tolerance), mean * (1 + tolerance)
        self._free = {n for n, unit in enumerate(units) if unit.movable and unit.weight > 0}
        self._excluded: set[tuple[int, int]] = set()
        # The fewest bytes that a move has for what it relieves a server of.
        self._ratio = min((units[n].size / units[n].weight for n in self._free), default=0.0)
        self._steps = max(500, _WORK // max(1, len(units)))
        self.is_whole = True
        self.best = Placement()

    def descend(self, size: float, moves: list[tuple[int, int]]) -> None:
        slack = 1e-9 * self._most
        over = sum(max(0.0, load - self._most - slack) for load in self._loads)
        under = sum(max(0.0, self._least - load - slack) for load in self._loads)
        if (over + under, size) < (self.best.off, self.best.size):
            self.best = Placement(list(moves), over + under, size=size)
        if over + under == 0:
            return
        self._steps -= 1
        if self._steps <= 0 or len(moves) == _DEEPEST:
            self.is_whole = False
            return
        if self.best.fits and size + self._ratio * max(over, under) >= self.best.size:
            return
        for n, server in self._choices():
            unit = self._units[n]
            self._move(n, unit.server, server)
            self.descend(size + unit.size, [*moves, (n, server)])
            self._move(n, server, unit.server)

    def _choices(self) -> Iterator[tuple[int, int]]:
        """Yield moves, one of which every plan from here has: from or to the worst server.

        What was tried is excluded from the branches that follow.
        """
        fullest = max(range(len(self._loads)), key=self._loads.__getitem__)
        emptiest = min(range(len(self._loads)), key=self._loads.__getitem__)
        kept: set[int] = set()
        excluded: set[tuple[int, int]] = set()
        if self._loads[fullest] > self._most:
            excess = self._loads[fullest] - self._most
            for n in self._by_weight(excess, lambda unit: unit.server == fullest):
                seen = set()
                for server in sorted(range(len(self._loads)), key=self._loads.__getitem__):
                    is_new = not self._loads[server]
                    like = self._room[server], self._left[server]
                    if self._is_possible(n, server) and not (is_new and like in seen):
                        if is_new:
                            seen.add(like)  # another one like it is no other choice
                        yield n, server
                kept.add(n)
                self._free.discard(n)
        else:
            deficit = self._least - self._loads[emptiest]
            for n in self._by_weight(deficit, lambda unit: unit.server != emptiest):
                if self._is_possible(n, emptiest):
                    yield n, emptiest
                    excluded.add((n, emptiest))
                    self._excluded.add((n, emptiest))
        self._free |= kept
        self._excluded -= excluded

    def _by_weight(self, wanted: float, concerns: Callable[[Unit], bool]) -> list[int]:
        """Return the free units that are concerned, first those that weigh about what is wanted."""
        chosen = [n for n in self._free if concerns(self._units[n])]
        return sorted(chosen, key=lambda n: (abs(self._units[n].weight - wanted), n))

    def _is_possible(self, n: int, server: int) -> bool:
        unit = self._units[n]
        return (
            server != unit.server
            and (n, server) not in self._excluded
            and self._left[server] > 0
            and unit.size <= self._room[server]
        )

    def _move(self, n: int, source: int, target: int) -> None:
        """Move a unit, or undo that: each moves once."""
        unit = self._units[n]
        self._loads[source] -= unit.weight
        self._loads[target] += unit.weight
        if target == unit.server:  # undone
            self._left[source] += 1
            self._room[source] += unit.size
            self._free.add(n)
        else:
            self._left[target] -= 1
            self._room[target] -= unit.size
            self._free.discard(n)
