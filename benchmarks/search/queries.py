"""What is asked: queries of several kinds, drawn from the corpus with a fixed seed.

Their words are of letters a to z only, at least three of them, and no stop words, so that all
engines mean the same by them. Stemming is off everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from search.corpus import Passage
from shardkit.search.text import ENGLISH

_WORD = re.compile(r"\w+")
_PLAIN = re.compile(r"[a-z]{3,}", re.ASCII)
_PAIR = re.compile(r"(?<![\w'])([a-z]{3,}) ([a-z]{3,})(?![\w'])", re.ASCII)


class Query(NamedTuple):
    """What is asked.

    Attributes:
        kind: a key of `drawn`'s result.
        words: all of them are wanted, except in ``either`` (one is enough) and ``without`` (the
            second one is unwanted).
    """

    kind: str
    words: tuple[str, ...]


def drawn(corpus: Sequence[Passage], count: int, seed: int = 20) -> dict[str, list[Query]]:
    """Return so many queries of each kind."""
    random = Random(seed)
    holds = [_words(passage) for passage in corpus]
    df = Counter(word for words in holds for word in words)
    known = {w for w, n in df.items() if n >= 5 and _PLAIN.fullmatch(w) and w not in ENGLISH}
    frequent = sorted(w for w in known if df[w] >= len(corpus) // 20)
    rare = sorted(w for w in known if df[w] <= 50)
    common = {w for w in known if df[w] >= 100}
    pairs = [
        found
        for passage in corpus
        for found in _PAIR.findall(passage.text.lower())
        if common.issuperset(found)
    ]

    def together(many: int) -> tuple[str, ...]:
        """Draw words of one passage."""
        while True:
            there = sorted(common & holds[random.randrange(len(holds))])
            if len(there) >= many:
                return tuple(random.sample(there, many))

    draws = {
        "frequent word": lambda: (random.choice(frequent),),
        "rare word": lambda: (random.choice(rare),),
        "two words": lambda: together(2),
        "three words": lambda: together(3),
        "either": lambda: together(2),
        "without": lambda: together(2),
        "phrase": lambda: random.choice(pairs),
        "prefix": lambda: (random.choice(sorted(common))[:4],),
    }
    return {kind: [Query(kind, draw()) for _ in range(count)] for kind, draw in draws.items()}


def _words(passage: Passage) -> set[str]:
    return set(_WORD.findall(f"{passage.title} {passage.text}".lower()))
