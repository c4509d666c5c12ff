"""The plan of a day: its expected visitors, and its number of parts. Pure.

A part is as full as is safe when as many visitors come as expected: five standard deviations of
chance below its limit, 410 of 512, so that one part in two million outgrows its compact form.

The number of parts is rounded up by at most an eighth, to a unit times a power of two (5, 10, 20, …
for parts of 512). So the number of one day's parts divides another's, and days can be compared part
by part (see `shardkit.structures.unique.set_operations`).
"""

from __future__ import annotations

import math


def expected_after(visitors: int) -> int:
    """Return how many visitors to expect after a day: half as many again.

    Rounded up to a power of two, so that days of similar size can be combined.
    """
    return 1 << max(0, (visitors * 3 + 1) // 2 - 1).bit_length()


def average_fill(part_size: int) -> float:
    """Return how many members a part has on average when as many come as expected.

    Chance varies a part's size by its square root: n + 5 * sqrt(n) = part_size. Small parts are
    half full, as in every other set.
    """
    return max(part_size / 2, ((math.sqrt(25 + 4 * part_size) - 5) / 2) ** 2)


def parts_for(expected: int, part_size: int) -> int:
    """Return how many parts a day with ``expected`` visitors has.

    One, or a unit times a power of two. The unit is odd, below 16, and depends on the part size
    alone: 5 for 512, 13 for 128.
    """
    average = average_fill(part_size)
    if expected <= average:
        return 1
    mantissa, _ = math.frexp(1 / average)  # from a half to 1
    unit = math.ceil(16 * mantissa)
    while unit % 2 == 0:
        unit //= 2
    return unit << max(0, math.ceil(math.log2(expected / average / unit)))


def expected_for(parts: int, part_size: int) -> int:
    """Return the largest power of two of visitors that `parts_for` plans ``parts`` parts for."""
    expected = 1
    while parts_for(2 * expected, part_size) <= parts:
        expected *= 2
    return expected
