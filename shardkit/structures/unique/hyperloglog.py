"""HyperLogLogs as servers store them: 16,384 registers, 12 KB at most. Pure.

::

    ┌──────┬──────────┬────────┬───────────────┬──────────────────────────────────────┐
    │ HYLL │ encoding │ unused │ count, cached │ registers of 6 bits each (dense), or │
    │ 4    │ 1        │ 3      │ 8 bytes       │ runs of equal ones (sparse)          │
    └──────┴──────────┴────────┴───────────────┴──────────────────────────────────────┘

A visitor's hash selects a register by 14 bits. The register holds the maximum of how many zeros the
other bits begin with, plus one. The maximum of two days' registers is the HyperLogLog of both days.
It is counted here as servers have counted since Redis 4.0: by the estimator of Otmar Ertl ("New
cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from shardkit.operations.arguments import shown
from shardkit.operations.commands import To
from shardkit.structures.base.damage import damage

REGISTERS = 16_384
_HEADER = 16
_HIGHEST = 51  # what a register can hold: 64 - 14 bits, plus one
_MOST = 2**64  # values that are hashed differ in no more ways
_ALPHA = 0.5 / math.log(2)


def registers(stored: bytes, to: To = "", key: str = "") -> bytes:
    """Return the 16,384 registers of a stored HyperLogLog, a byte each."""
    if stored[:4] == b"HYLL" and len(stored) >= _HEADER:
        body = stored[_HEADER:]
        dense = stored[4] == 0 and len(body) == REGISTERS * 6 // 8
        values = bytes(_dense(body)) if dense else _sparse(body)
        if len(values) == REGISTERS and max(values) <= _HIGHEST:
            return values
    raise damage(to, key, shown(stored), "a HyperLogLog", "find what wrote to it, or delete it")


def estimate(values: bytes) -> int:
    """Return how many different values were added, from the registers."""
    histogram = Counter(values)
    z = REGISTERS * _tau(1 - histogram[_HIGHEST] / REGISTERS)
    for value in range(_HIGHEST - 1, 0, -1):
        z = (z + histogram[value]) / 2
    z += REGISTERS * _sigma(histogram[0] / REGISTERS)
    if not z:  # no register has room left
        return _MOST
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
    values = bytearray()
    at = 0
    while at < len(body):
        code = body[at]
        if code & 0x80:
            values += bytes([(code >> 2 & 31) + 1]) * ((code & 3) + 1)
        elif code & 0x40:
            at += 1
            values += bytes(((code & 63) << 8 | int.from_bytes(body[at : at + 1])) + 1)
        else:
            values += bytes((code & 63) + 1)
        at += 1
    return bytes(values)


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
