r"""A day's visitors as a HyperLogLog: an estimate from 16,384 registers, 12 KB at most.

::

    unique:2015-05-17    STRING

    ┌──────┬──────────┬────────┬───────────────┬──────────────────────────────────────┐
    │ HYLL │ encoding │ unused │ count, cached │ registers: of 6 bits each (dense), or│
    │ 4    │ 1        │ 3      │ 8 bytes       │ runs of equal ones (sparse)          │
    └──────┴──────────┴────────┴───────────────┴──────────────────────────────────────┘

A hash of a visitor chooses a register by 14 bits, and leaves there how many zeros the others begin
with, plus one, if that is more than was there. Many zeros are rare, so they tell how many different
visitors it takes to see them. The standard error is 1.04 / sqrt(16384) = 0.81%.

The maximum of two days' registers is the HyperLogLog of both days. Where days live together the
server merges them (PFCOUNT of many keys); otherwise their registers are fetched and merged here,
and counted as servers count since Redis 4.0: by the estimator of Otmar Ertl ("New cardinality
estimation algorithms for HyperLogLog sketches", 2017, algorithm 6), so that it makes no difference
where. There is no intersection: the error of each day's estimate is often larger than what days
have in common.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from shardkit.errors import StructureError
from shardkit.operations.commands import Argument, Command, Home, Locate, Transaction
from shardkit.operations.operation import Operation, Stream, pages
from shardkit.structures.unique.day import Day
from shardkit.structures.unique.precision import Id, Stored, called

REGISTERS = 16_384
FETCHED_AT_ONCE = 64  # of 12 KB each
_HEADER = 16
_HIGHEST = 51  # what a register can hold: 64 - 14 bits, plus one
_ALPHA = 0.5 / math.log(2)


class HyperLogLogDay(Day):
    """One key at the component's home; also the count's own key."""

    def add(self, visitors: Sequence[Stored]) -> Operation[int]:
        """Add visitors; return by how many the estimate grew, of one visitor 0 or 1.

        Cost: one exchange.
        """
        adding = self._command("PFADD", *visitors)
        if len(visitors) == 1:
            [changed] = yield [adding]
            return int(changed)
        count = self._command("PFCOUNT")
        [[before, _, after]] = yield [Transaction(self.home, self.key, (count, adding, count))]
        return max(0, int(after) - int(before))

    def held(self) -> Operation[int | None]:
        """Nothing: there is no other data than the count itself."""
        yield from ()
        return None

    def place(self, visitor: Stored) -> tuple[Id, int, str]:
        """See `Day.place`."""
        return called(visitor), 0, self.key

    def ids(self) -> Stream[Id]:
        """None: they are not kept."""
        yield from ()

    def remove(self, name: str, *args: Argument) -> Operation[int]:
        """Nothing beside the count."""
        yield from ()
        return 0

    def _target(self) -> Home:
        return self.home

    def _command(self, name: str, *args: Argument | Stored) -> Command:
        return Command(self.home, self.key, (name, self.key, *args))


def estimate_any(days: Sequence[HyperLogLogDay]) -> Operation[int]:
    """Estimate how many visitors came on any of some days.

    Cost: one exchange where they live together, otherwise one for 64 days; 12 KB a day.
    """
    if not days:
        return 0
    home, keys = days[0].home, [day.key for day in days]
    places = yield Locate([(home, key) for key in keys])
    if len(set(places)) == 1:
        [count] = yield [Command(home, keys[0], ("PFCOUNT", *keys), idempotent=True)]
        return int(count)
    merged = bytes(REGISTERS)
    for page in pages(keys, FETCHED_AT_ONCE):
        replies = yield [Command(home, key, ("GET", key), idempotent=True) for key in page]
        found = [registers(reply, key) for key, reply in zip(page, replies, strict=True) if reply]
        merged = bytes(map(max, merged, *found)) if found else merged
    return estimate(merged)


def registers(stored: bytes, key: str = "") -> bytes:
    """Return the 16,384 registers of a HyperLogLog as its server stores it, a byte each.

    Raises:
        StructureError: it is none.
    """
    if stored[:4] == b"HYLL" and len(stored) >= _HEADER:
        body = stored[_HEADER:]
        dense = stored[4] == 0 and len(body) == REGISTERS * 6 // 8
        found = bytes(_dense(body)) if dense else _sparse(body)
        if len(found) == REGISTERS:
            return found
    raise StructureError(f"{key}: holds no HyperLogLog", "see what wrote to it, or delete it")


def estimate(values: bytes) -> int:
    """Return how many different values have been added, from the registers."""
    histogram = Counter(values)
    z = REGISTERS * _tau(1 - histogram[_HIGHEST] / REGISTERS)
    for value in range(_HIGHEST - 1, 0, -1):
        z = (z + histogram[value]) / 2
    z += REGISTERS * _sigma(histogram[0] / REGISTERS)
    return math.floor(_ALPHA * REGISTERS * REGISTERS / z + 0.5)


def _dense(body: bytes) -> Iterable[int]:
    """Four registers of 6 bits in every 3 bytes, the lowest bits first."""
    for at in range(0, REGISTERS // 4 * 3, 3):
        four = int.from_bytes(body[at : at + 3], "little")
        yield four & 63
        yield four >> 6 & 63
        yield four >> 12 & 63
        yield four >> 18


def _sparse(body: bytes) -> bytes:
    """Runs: 00llllll of zeros, 01llllll llllllll of more zeros, 1vvvvvll of a value."""
    found = bytearray()
    at = 0
    while at < len(body):
        code = body[at]
        if code & 0x80:
            found += bytes([(code >> 2 & 31) + 1]) * ((code & 3) + 1)
        elif code & 0x40:
            at += 1
            found += bytes(((code & 63) << 8 | body[at]) + 1)
        else:
            found += bytes((code & 63) + 1)
        at += 1
    return bytes(found)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x = math.sqrt(x)
        before = z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3
