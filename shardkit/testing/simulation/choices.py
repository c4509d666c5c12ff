"""Choices: everything that a simulation decides, drawn from a seed or read from a recording.

``17:2=3,4=1`` is a recording: the seed, and the choices by position that are not 0, the ordinary
course. A schedule that failed is shrunk by setting its choices to 0, in blocks and one by one, as
long as it still fails (delta debugging, A. Zeller, 2002): the fewest faults and switches are left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from shardkit.errors import InvalidArgumentError

T = TypeVar("T")


class Choices:
    """The choices of one run: ``recorded`` ones by position, 0 elsewhere; else drawn from a seed.

    All other randomness of the run comes from the seed too.
    """

    def __init__(self, seed: int, recorded: dict[int, int] | None = None) -> None:
        self.seed = seed
        self.taken: dict[int, int] = {}  # the choices that are not 0, by position
        self.count = 0
        self._recorded = recorded
        self.random = random.Random(seed)

    def draw(self, options: int, chance: float | None = None) -> int:
        """Choose one of ``options`` options; 0 is the ordinary one.

        ``chance`` is the probability of the others together; None to choose all alike.
        """
        position = self.count
        self.count += 1
        if options < 2:
            return 0
        if self._recorded is not None:
            chosen = min(self._recorded.get(position, 0), options - 1)
        elif chance is None:
            chosen = int(self.random.random() * options)
        elif self.random.random() >= chance:
            return 0
        else:
            chosen = 1 + int(self.random.random() * (options - 1))
        if chosen:
            self.taken[position] = chosen
        return chosen

    def weighted(self, weights: Sequence[float]) -> int:
        """Choose an option by weight."""
        position = self.count
        self.count += 1
        if self._recorded is not None:
            chosen = min(self._recorded.get(position, 0), len(weights) - 1)
        else:
            left = self.random.random() * sum(weights)
            chosen = 0
            while chosen < len(weights) - 1 and left >= weights[chosen]:
                left -= weights[chosen]
                chosen += 1
        if chosen:
            self.taken[position] = chosen
        return chosen

    def one_of(self, options: Sequence[T]) -> T:
        """Choose one of some values; the first is the ordinary one."""
        return options[self.draw(len(options))]

    def __str__(self) -> str:
        return to_text(self.seed, self.taken)


def to_text(seed: int, taken: dict[int, int]) -> str:
    """Return a schedule as text, from which it can be replayed."""
    return f"{seed}:" + ",".join(f"{at}={chosen}" for at, chosen in sorted(taken.items()))


def from_text(schedule: str) -> Choices:
    """Return the choices of a schedule.

    Raises:
        InvalidArgumentError: it is no schedule.
    """
    seed, colon, pairs = schedule.strip().partition(":")
    try:
        if not colon:
            return Choices(int(seed))
        recorded = {}
        for pair in filter(None, pairs.split(",")):
            at, _, chosen = pair.partition("=")
            recorded[int(at)] = int(chosen)
        return Choices(int(seed), recorded)
    except ValueError:
        raise InvalidArgumentError(
            f"{schedule!r} is no schedule", 'give a seed, "17", or what a failure printed'
        ) from None


def shrink(
    taken: dict[int, int],
    still_fails: Callable[[dict[int, int]], dict[int, int] | None],
    most_runs: int = 300,
) -> dict[int, int]:
    """Return fewer and smaller choices with which a run still fails, after at most some runs.

    ``still_fails`` runs with choices, and returns those that were made if that fails too.
    """
    runs = 0

    def attempt(candidate: dict[int, int]) -> bool:
        nonlocal taken, runs
        if runs >= most_runs or candidate == taken:
            return False
        runs += 1
        fewer = still_fails(candidate)
        if fewer is None or _cost(fewer) >= _cost(taken):
            return False
        taken = fewer
        return True

    size = len(taken)
    while size and runs < most_runs:
        at, changed = 0, False
        while at < len(taken):
            # From the end: what happens late decides least of what comes after.
            positions = sorted(taken, reverse=True)
            left = set(positions[at : at + size])
            if attempt({p: c for p, c in taken.items() if p not in left}):
                changed = True
            else:
                at += size
        if size == 1 and not changed:
            break
        size = max(1, size // 2) if not (size == 1 and changed) else 1
    for position in sorted(taken, reverse=True):
        for smaller in range(1, min(taken.get(position, 0), 4)):
            if attempt({**taken, position: smaller}):
                break
    return taken


def _cost(taken: dict[int, int]) -> tuple[int, int, int]:
    return len(taken), sum(taken.values()), max(taken, default=0)
