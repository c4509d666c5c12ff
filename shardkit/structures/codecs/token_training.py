"""Training: find the tokens that make a sample of values smallest.

Each round cuts the sample into the current tokens. Tokens that are often neighbours are a candidate
for a longer token, and each candidate is worth the bits that it saves. The best are kept, more in
every round, until the table is full; the last rounds only drop tokens and adjust costs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from math import log2

from shardkit.errors import InvalidArgumentError
from shardkit.structures.codecs.token_table import (
    LONGEST_CODE,
    LONGEST_TOKEN,
    START,
    TokenMatcher,
    TokenTable,
)

ROUNDS = 8
_FIRST_SHARE, _WHOLE_FROM, _LARGE = 3, 3, 5000
# The cost, in bits, of a letter that is not a token, until its true cost is known.
_MISSING = 24.0
# How much more a place may cost than the furthest one. Encoding tries fewer places and tokens;
# with a table that was trained so, values would be one percent longer.
_MARGIN = 4.0


def train(values: Iterable[bytes], size: int) -> TokenTable:
    """Return a table for values like these.

    Cost: a quarter of a millisecond for a value of 24 bytes, all of it in Python.
    """
    sample = Counter(START + value.decode("latin-1") for value in values)
    if not sample:
        raise InvalidArgumentError("a dictionary trained on no values", "give a sample of them")
    counts = _Training(sample, size).run()
    first = {token: count for token, count in counts.items() if token[0] == START}
    following = {token: count for token, count in counts.items() if token[0] != START}
    first.setdefault(START, 1)
    return TokenTable(code_lengths(first), code_lengths({**following, "": 0}, 8))


def code_lengths(counts: Mapping[str, int], shortest_escape: int = 1) -> dict[str, int]:
    """Return the lengths of a Huffman code."""
    while True:
        lengths = _huffman(counts)
        if max(lengths.values()) <= LONGEST_CODE - 8:
            break
        counts = {token: (count + 1) // 2 for token, count in counts.items()}
    if "" in lengths:
        lengths[""] = max(*lengths.values(), shortest_escape)
    return lengths


def _huffman(counts: Mapping[str, int]) -> dict[str, int]:
    lengths = dict.fromkeys(counts, 0)
    heap = [(count, order, [token]) for order, (token, count) in enumerate(sorted(counts.items()))]
    heapq.heapify(heap)
    order = len(heap)
    while len(heap) > 1:
        one, _, tokens = heapq.heappop(heap)
        other, _, more = heapq.heappop(heap)
        tokens = tokens + more
        for token in tokens:
            lengths[token] += 1
        heapq.heappush(heap, (one + other, order, tokens))
        order += 1
    return {token: max(1, length) for token, length in lengths.items()}


class _Training:
    def __init__(self, sample: Counter[str], size: int) -> None:
        self._sample = sample
        self._size = size
        self._letters = sorted({letter for text in sample for letter in text})
        self._costs = dict.fromkeys(self._letters, 8.0)
        self._halves: dict[str, tuple[str, str]] = {}

    def run(self) -> Counter[str]:
        """Return the tokens of the best table with their counts."""
        for done in range(1, ROUNDS):
            grows = done < ROUNDS - 1
            # The first tokens are the frequent ones, which a part of a large sample shows as well.
            share = _FIRST_SHARE if done < _WHOLE_FROM and len(self._sample) > _LARGE else 1
            ones, pairs = self._count(pairs=grows, share=share)
            room = self._size if not grows else int(self._size * (done / (ROUNDS - 2)) ** 1.5)
            self._choose(ones, pairs, max(1, room))
        return self._count(pairs=False)[0]

    def _count(
        self, *, pairs: bool, share: int = 1
    ) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        """Count tokens, and pairs of neighbours, in every ``share``-th value of the sample."""
        tokenize = TokenMatcher(self._costs, _MISSING, _MARGIN, -_MISSING).tokenize
        ones: Counter[str] = Counter()
        twos: Counter[tuple[str, str]] = Counter()
        for text, times in islice(self._sample.items(), 0, None, share):
            tokens = tokenize(text)
            for token in tokens:
                ones[token] += times
            if pairs:
                for pair in pairwise(tokens):
                    twos[pair] += times
        return ones, twos

    def _choose(self, ones: Counter[str], pairs: Counter[tuple[str, str]], room: int) -> None:
        """Choose the tokens that save most for the next round."""
        total = log2(ones.total())
        self._costs = {token: total - log2(count) for token, count in ones.items()}
        worth: dict[str, tuple[float, str, float]] = {}
        for token, count in ones.items():
            if len(token) > 1 and count > 1:
                cost = self._costs[token]
                without = sum(map(self._cost, self._halves[token]))
                worth[token] = count * (without - cost), token, cost
        for (left, right), count in pairs.items():
            if count > 1 and len(left) + len(right) <= LONGEST_TOKEN:
                token, cost = left + right, total - log2(count)
                saved = count * (self._costs[left] + self._costs[right] - cost)
                if saved > 0 and (token not in worth or saved > worth[token][0]):
                    worth[token] = saved, token, cost
                    self._halves.setdefault(token, (left, right))
        chosen = {letter: self._costs.get(letter, _MISSING) for letter in self._letters}
        best = heapq.nlargest(room, worth.values())
        chosen |= {token: cost for saved, token, cost in best if saved > 0}
        self._costs = chosen

    def _cost(self, token: str) -> float:
        """Return the cost of a token, or else of the two that it was made of."""
        cost = self._costs.get(token)
        if cost is not None:
            return cost
        halves = self._halves.get(token)
        return sum(map(self._cost, halves)) if halves else _MISSING
