"""Values of a few dozen bytes as tokens of a shared table: about a quarter of their JSON.

zstd needs some nine bytes to encode one match, whatever its dictionary. This coder is for values
too short for that: a value is cut into tokens, substrings that were frequent in a sample, which are
written in a Huffman code::

    ["Calverton Park","MO","US"]                        28 bytes of JSON

    ["Cal     │ ver          │ ton Park         │ ","MO","US"]     four tokens of the table
    001011111 │ 100111111110 │ 1111111001100000 │ 01110001101      their codes

    2F CF F7 F3 03 8D                                   48 bits; ones fill the last byte up

Dynamic programming finds the tokens with the fewest bits, or hardly more. The start of a value
counts as a letter. The tokens that begin with it, and only they, can come first, so they have a
code of their own, which saves 7% on short records.

The table, as it is stored (zlib of)::

    ┌───┬──────────────────────┬───────────────────┬────────────────┬───────────────┬───────────┐
    │ 1 │ how many codes of 1, │ the same for the  │ shared: bytes  │ added: bytes  │ texts of  │
    │   │ 2, … 32 bits, first  │ following tokens  │ as before, one │ more, one     │ what is   │
    │   │ tokens; 32 x 4 bytes │ 32 x 4 bytes      │ byte a token   │ byte a token  │ added     │
    └───┴──────────────────────┴───────────────────┴────────────────┴───────────────┴───────────┘

Tokens are in the order of their codes, which therefore need not be stored, and by text among codes
of one length, so that most begin like the one before. The last code, all ones, is an escape: a byte
that is not a token follows, in eight bits. Fewer ones than that at the end are padding.

Training finds the tokens that make a sample of values smallest. Each round cuts the sample into the
current tokens. Tokens that are often neighbours are a candidate for a longer token, worth the bits
that it saves. The best are kept, more in every round, until the table is full.

Sources: the table is trained in rounds like that of FSST (Boncz, Neumann, Leis: Fast Random Access
String Compression, VLDB 2020), parsed and priced in bits as in the unigram model of SentencePiece;
canonical codes as in DEFLATE, padding as in HPACK (RFC 7541).
"""

from __future__ import annotations

import heapq
import struct
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from math import log2
from os.path import commonprefix
from typing import TypeAlias

from shardkit.errors import InvalidArgumentError, StructureError
from shardkit.structures.codecs.plain import GROWTH, inflated, most_inflated, too_large

# Values are held as text, one letter per byte, with one more letter for the start.
START = "\u0100"
LONGEST_CODE = 32
LONGEST_TOKEN = 64
# How many letters of a text are looked up at once; and where longer tokens begin so.
_WINDOW, _FAR = 4, 8
_ONES = (1 << LONGEST_CODE) - 1
_HEAD = struct.Struct(f">{2 * LONGEST_CODE}I")
_VERSION = b"\x01"
_ESCAPE = ""  # the token before a single byte
_NEVER = 1e300
_MOST_WINDOWS = 1 << 16
_MOST_TOKENS = 1 << 16  # of a table with fewer bytes; a token takes 300 in a process
_SAFE = 2_000  # tokens, which never make too much
_AT_ONCE = 256  # bytes that are one number: each token shifts all of it
# Values repeat: cache at most this many, of at most this many bytes. About 5 MB.
_REMEMBERED, _SHORT = 1 << 14, 64

# What can come next: tokens with their costs, the lengths of longer ones, the longest first; and
# whether there are some that are longer than `_FAR` letters.
_Way: TypeAlias = tuple[list[tuple[int, float]], list[int], bool]


class TokenMatcher:
    """Cuts texts into the tokens with the lowest total cost."""

    def __init__(
        self, costs: Mapping[str, float], missing: float, margin: float = 1.0, less: float = 1.0
    ) -> None:
        self._costs = costs
        self._missing = missing
        self._margin = margin
        self._less = less
        # What tokens begin with, with its way once that is known.
        self._starts: dict[str, _Way | None] = {}
        # By their first letters the lengths of tokens that are longer than these.
        self._longer: dict[str, set[int]] = {}
        for token in costs:
            for length in range(1, _WINDOW + 1):
                self._starts[token[:length]] = None
            if len(token) > _WINDOW:
                size = _FAR if len(token) > _FAR else _WINDOW
                self._longer.setdefault(token[:size], set()).add(len(token))
        far = [start for start in self._longer if len(start) == _FAR]
        self._has_far = {start[:_WINDOW] for start in far}
        self._far_ways = {start: self._way(start) for start in far}
        self._ways: dict[str, _Way] = {}  # by the next letters

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens, and letters that are not tokens, with nearly the lowest total cost.

        It skips places that cost clearly more to reach than the furthest one known, and tokens that
        cost hardly less than a longer one: half of the time, and values are 0.5% longer.
        """
        size = len(text)
        best = [0.0] + [_NEVER] * size
        starts = [0] * (size + 1)
        ways, far_ways, price = self._ways, self._far_ways, self._costs.get
        margin, less = self._margin, self._less
        reached, limit = 0, _NEVER
        for at in range(size):
            so_far = best[at]
            if so_far >= limit and at < reached:
                continue
            window = text[at : at + _WINDOW]
            way = ways.get(window)
            if way is None:
                way = self._learn(window)
            costs, lengths, has_far = way
            if has_far:
                costs, lengths, _ = far_ways.get(text[at : at + _FAR], way)
            most = _NEVER
            for length in lengths:
                end = at + length
                longer = price(text[at:end]) if end <= size else None
                if longer is not None and longer <= most:
                    most = longer - less
                    longer += so_far
                    if longer < best[end]:
                        best[end] = longer
                        starts[end] = at
                        if end >= reached:
                            reached, limit = end, longer + margin
            for length, cost in costs:
                if cost <= most:
                    cost += so_far
                    end = at + length
                    if cost < best[end]:
                        best[end] = cost
                        starts[end] = at
                        if end >= reached:
                            reached, limit = end, cost + margin
        tokens = []
        while size:
            tokens.append(text[starts[size] : size])
            size = starts[size]
        tokens.reverse()
        return tokens

    def _learn(self, window: str) -> _Way:
        """Note the way of a window: that of the longest start of it that tokens begin with."""
        start = window
        while len(start) > 1 and start not in self._starts:
            start = start[:-1]
        way = self._starts.get(start)
        if way is None:
            way = self._starts[start] = self._way(start)
        if len(self._ways) >= _MOST_WINDOWS:
            self._ways.clear()
        self._ways[window] = way
        return way

    def _way(self, start: str) -> _Way:
        steps: list[tuple[int, float]] = []
        most = _NEVER
        for length in range(len(start), 0, -1):
            cost = self._costs.get(start[:length], self._missing if length == 1 else _NEVER)
            if cost <= most and cost < _NEVER:
                steps.append((length, float(cost)))
                most = cost - self._less
        lengths = sorted(self._longer.get(start, ()), reverse=True)
        return steps, lengths, start in self._has_far


class TokenTable:
    """A table, for packing values and unpacking them. Pure."""

    def __init__(
        self, first: Mapping[str, int], following: Mapping[str, int], growth: int = GROWTH
    ) -> None:
        self._growth = growth
        self._first = _Code(first)
        self._following = _Code(following)
        self._digits = _Digits(self._first.digits | self._following.digits)
        escape = following[_ESCAPE] + 8
        self._matcher = TokenMatcher({**first, **following}, escape)
        self._pack_again = lru_cache(_REMEMBERED)(self._pack)

    def pack(self, value: bytes) -> bytes | None:
        """Return the codes of a value's tokens; None if they are too few to be read."""
        if len(value) <= _SHORT:
            return self._pack_again(value)
        packed = self._pack(value)
        return packed if len(value) <= most_inflated(len(packed), self._growth) else None

    def _pack(self, value: bytes) -> bytes:
        tokens = self._matcher.tokenize(START + value.decode("latin-1"))
        digits = "".join(map(self._digits.__getitem__, tokens))
        digits += "1" * (-len(digits) % 8)
        return int(digits, 2).to_bytes(len(digits) // 8)

    def unpack(self, packed: bytes) -> bytes:
        """Return the value."""
        left = bits = window = 0
        tokens: list[str] = []
        starts, lengths, texts = self._first.ladder
        for at in range(0, len(packed), _AT_ONCE):
            piece = packed[at : at + _AT_ONCE]
            bits = (bits >> LONGEST_CODE & ((1 << left) - 1)) << 8 * len(piece)
            bits = (bits | int.from_bytes(piece)) << LONGEST_CODE | _ONES
            left += 8 * len(piece)
            reserve = LONGEST_CODE + 8 if at + _AT_ONCE < len(packed) else 0  # to go on with
            while left > reserve:
                window = (bits >> left) & _ONES
                index = bisect_right(starts, window) - 1
                length = lengths[index]
                text = texts[index]
                if length > left:
                    break
                left -= length
                if text:
                    tokens.append(text)
                else:
                    left -= 8
                    if left < 0:
                        break
                    tokens.append(chr((bits >> (left + LONGEST_CODE)) & 0xFF))
                starts, lengths, texts = self._following.ladder
        if not tokens or left >= 8 or left < 0 or (left and window != _ONES):
            raise ValueError("no codes of tokens")
        if len(tokens) > _SAFE:
            most = most_inflated(len(packed), self._growth)
            if sum(map(len, tokens)) - 1 > most:
                raise too_large(most)
        return "".join(tokens)[1:].encode("latin-1")

    def dump(self) -> bytes:
        """Return the table as it is stored."""
        shared, added, texts = bytearray(), bytearray(), []
        before = ""
        for token in (*self._first.tokens, *self._following.tokens):
            token = token.removeprefix(START)
            same = len(commonprefix([before, token]))  # noqa: RUF071 - of letters
            shared.append(same)
            added.append(len(token) - same)
            texts.append(token[same:])
            before = token
        head = _HEAD.pack(*self._first.histogram, *self._following.histogram)
        text = "".join(texts).encode("latin-1")
        return zlib.compress(_VERSION + head + bytes(shared) + bytes(added) + text, 9)

    @classmethod
    def load(cls, stored: bytes, growth: int = GROWTH) -> TokenTable:
        """Return a table from its stored form; its values have ``growth`` times their bytes."""
        most = max(len(stored), _MOST_TOKENS)
        try:
            raw = inflated(zlib.decompressobj(), stored)
            if raw[:1] != _VERSION:
                raise ValueError(raw[:1])
            histogram = _HEAD.unpack_from(raw, 1)
            if sum(histogram) > most:
                raise ValueError("more tokens than so few bytes hold")
            lengths = [
                [bits for bits, count in enumerate(part, 1) for _ in range(count)]
                for part in (histogram[:LONGEST_CODE], histogram[LONGEST_CODE:])
            ]
            count = sum(map(len, lengths))
            body = raw[1 + _HEAD.size :]
            texts = body[2 * count :].decode("latin-1")
            tokens: list[str] = []
            at, before = 0, ""
            for same, more in zip(body[:count], body[count : 2 * count], strict=True):
                if same + more > LONGEST_TOKEN:
                    raise ValueError("a longer token than any that is learned")
                before = before[:same] + texts[at : at + more]
                at += more
                tokens.append(before)
            firsts = [START + token for token in tokens[: len(lengths[0])]]
            following = tokens[len(lengths[0]) :]
            return cls(
                dict(zip(firsts, lengths[0], strict=True)),
                dict(zip(following, lengths[1], strict=True)),
                growth,
            )
        except (zlib.error, struct.error, ValueError, LookupError, StructureError):
            raise StructureError(
                "the stored table of tokens is damaged, or of a later version of shardkit",
                "restore it from a backup, or use the version that wrote it",
            ) from None


class _Digits(dict[str, str]):
    """The codes of tokens in binary digits, and of letters that are none, once they occur."""

    def __missing__(self, letter: str) -> str:
        digits = self[letter] = f"{self[_ESCAPE]}{ord(letter):08b}"
        return digits


class _Code:
    """A canonical prefix code: tokens in the order of their codes, the escape last."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        self.tokens = sorted(lengths, key=lambda token: (lengths[token], not token, token))
        bits = [lengths[token] for token in self.tokens]
        starts = list(accumulate((1 << (LONGEST_CODE - size) for size in bits), initial=0))
        if starts.pop() > _ONES + 1:
            raise ValueError("more codes than there is room for")
        if _ESCAPE in lengths:  # all ones, whatever room there is before it
            starts[-1] = _ONES + 1 - (1 << (LONGEST_CODE - bits[-1]))
        self.digits = {
            token: f"{start:0{LONGEST_CODE}b}"[:size]
            for token, start, size in zip(self.tokens, starts, bits, strict=True)
        }
        self.histogram = [bits.count(size) for size in range(1, LONGEST_CODE + 1)]
        self.ladder: tuple[Sequence[int], Sequence[int], Sequence[str]] = (
            starts,
            bits,
            self.tokens,
        )


ROUNDS = 8
_FIRST_SHARE, _WHOLE_FROM, _LARGE = 3, 3, 5000
# The cost, in bits, of a letter that is not a token, until its true cost is known.
_MISSING = 24.0
# How much more a place may cost than the furthest one. Encoding tries fewer places and tokens;
# with a table that was trained so, values would be one percent longer.
_MARGIN = 4.0


def train(values: Iterable[bytes], size: int) -> TokenTable:
    """Return a table for values like these: a quarter of a millisecond for one of 24 bytes."""
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
