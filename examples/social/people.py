"""Made-up people: how many accounts each follows, which, and who posts.

Popularity follows Zipf's law, as Mandelbrot has it: the account of rank r gets a share of all
follows that is proportional to ``1 / (r + 10)``. Most are followed by few, some by very many::

    1,000,000 people who follow 10 each     rank 1   rank 1,000   rank 100,000   the last one
    followers expected                      80,000          870              9              1

How many one follows is spread as a log-normal: a few follow ten times as many as most do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

_FLAT: Final = 10  # ranks that are much alike
_SPREAD: Final = 0.8  # of the logarithm of how many one follows
_SYLLABLES: Final = ("ba", "do", "fe", "gi", "ka", "lu", "mo", "ni", "pe", "ra", "si", "to", "vu")
_WORDS: Final = (
    *("rain", "tea", "train", "late", "again", "sun", "bread", "new", "old", "song", "book"),
    *("night", "city", "slow", "good", "morning", "where", "why", "nobody", "everybody", "river"),
    *("cat", "coffee", "today", "yesterday", "tomorrow", "work", "home", "road"),
)


class People:
    """People by number, from 0, the most popular ones first. Pure; the same from the same seed.

    Args:
        count: how many there are, at least 2.
        follows: how many accounts each follows, on average.
        most: how many one may follow.
        seed: of what is left to chance.
    """

    def __init__(self, count: int, follows: float, most: int, seed: int) -> None:
        self.count = count
        self._most = min(most, count - 1)
        self._mean = follows
        self._seed = seed
        self._everybody = range(count)
        self._sums = list(accumulate(1 / (rank + _FLAT) for rank in range(1, count + 1)))

    def following(self) -> Iterator[list[int]]:
        """Yield whom each person follows, person by person; nobody twice, and not oneself."""
        dice = random.Random(f"follows {self._seed}")
        centre = math.log(max(self._mean, 0.01)) - _SPREAD**2 / 2  # so that the mean is the mean
        for n in self._everybody:
            wanted = round(dice.lognormvariate(centre, _SPREAD))
            chosen = dict.fromkeys(self.popular(dice, min(wanted, self._most)))
            chosen.pop(n, None)
            yield list(chosen)

    def popular(self, dice: random.Random, count: int) -> Sequence[int]:
        """Choose people by how popular they are; the same one may come several times."""
        return dice.choices(self._everybody, cum_weights=self._sums, k=count)

    def author(self, dice: random.Random) -> int:
        """Choose who posts: half of all posts come from everybody alike, half from the popular."""
        return self.popular(dice, 1)[0] if dice.random() < 0.5 else dice.randrange(self.count)


def login(n: int) -> str:
    """Return the login of a person."""
    return f"{_SYLLABLES[n % 13]}{_SYLLABLES[n // 13 % 13]}{n}"


def message(dice: random.Random) -> str:
    """Return something to post."""
    return " ".join(dice.choices(_WORDS, k=dice.randint(4, 16)))
