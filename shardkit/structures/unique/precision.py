"""The stored part of a visitor: six precisions, their parameters, and their odds of a mistake.

docs/unique.md says what each stores. ``60-bit`` and ``64-bit`` ids are a session's first
hexadecimal digits as an integer, ``compact`` ones a BLAKE2b, modulo parts * 2**32: the part, and a
signed member of 32 bits. It hashes, because it has no bits to spare: six bits of a version 4 UUID
are constant, versions 1 and 7 begin with the time. ``exact``, ``compact`` and ``hyperloglog`` take
any text as a session. Only a UUID is stored as 16 bytes: text of 16 bytes and more gets a zero byte
appended, so two sessions are never stored alike.

**The plan of a day**: a part is as full as is safe when as many visitors come as expected: five
standard deviations of chance below its limit, 410 of 512, so that one part in two million outgrows
its compact form. The number of parts is rounded up by at most an eighth, to a unit times a power of
two (5, 10, 20, … for parts of 512). So the number of one day's parts divides another's, and days
can be compared part by part (`count_days`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import To
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.damage import damage


def expected_after(visitors: int) -> int:
    """Return how many visitors to expect after a day: half as many again.

    Rounded up to a power of two, so that days of similar size can be combined.
    """
    return 1 << max(0, (visitors * 3 + 1) // 2 - 1).bit_length()


def average_fill(part_size: int) -> float:
    """Return how many members a part has on average when as many come as expected.

    Chance varies a part's size by its square root: n + 5 * sqrt(n) = part_size. Small ones are half
    full.
    """
    return max(part_size / 2, ((math.sqrt(25 + 4 * part_size) - 5) / 2) ** 2)


def parts_for(expected: int, part_size: int) -> int:
    """Return how many parts a day with ``expected`` visitors has.

    One, or a unit times a power of two. The unit is odd, below 16, and depends on the part size
    alone.
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


Session: TypeAlias = str | bytes | int | UUID
# A session as a precision stores it, and as it is shown when it is listed or located.
Visitor: TypeAlias = int | bytes
VisitorId: TypeAlias = int | str

PRECISIONS: Final = ("exact", "60-bit", "64-bit", "compact", "hyperloglog", "bitmap")
SIXTY_BIT: Final = "60-bit"
WHOLE_BITS: Final = "64-bit"
MAX_VISITORS: Final = 2**40
MAX_DIGITS: Final = 15
MAX_PARTS: Final = 2**32
MAX_USERS: Final = 2**32  # what SETBIT reaches, and half a gigabyte
MAX_SESSION_BYTES: Final = 1024
MEMBER_BITS: Final = 32

_FIRST_DAY = 1_000_000
# The parameters of each precision, with their defaults.
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "exact": {"part_size": 128, "first_day": _FIRST_DAY, "partition": "crc32"},
    "60-bit": {
        "part_size": 512,
        "first_day": _FIRST_DAY,
        "partition": "crc32",
        "digits": MAX_DIGITS,
    },
    "64-bit": {"part_size": 512, "first_day": _FIRST_DAY, "partition": "crc32"},
    "compact": {"part_size": 512, "first_day": _FIRST_DAY},
    "hyperloglog": {},
    # 16,368 bytes: with a string's header that just fits what jemalloc allocates for 16 KB.
    "bitmap": {"part_size": 130_944},
}
_NOT_HEX = re.compile(r"[^0-9a-f]")
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)


class Odds(NamedTuple):
    """The odds that two visitors count as one.

    Attributes:
        bits: the random bits of an id; infinity if two ids are never the same.
        missed: the average number of uncounted visitors of a day.
        some: the share of days with at least one uncounted visitor.
    """

    bits: float
    missed: float
    some: float


class CounterSettings:
    """The parameters of a counter, checked; None where the precision has no such parameter."""

    def __init__(
        self,
        owner: str,
        precision: str = SIXTY_BIT,
        part_size: int | None = None,
        first_day: int | None = None,
        digits: int | None = None,
        partition: str | None = None,
    ) -> None:
        if not isinstance(precision, str) or precision not in PRECISIONS:
            raise InvalidArgumentError(
                f"{owner}: precision={shown(precision)}", f"choose {', '.join(PRECISIONS)}"
            )
        self.owner = owner
        self.precision = precision
        defaults = _DEFAULTS[precision]
        self.usual_size = int(defaults.get("part_size", 0))  # what the servers' own limits allow

        def choose(name: str, value: Any, *bounds: int) -> Any:
            if value is not None and name not in defaults:
                options = f"it has {', '.join(defaults)}" if defaults else "it has none"
                raise self.refusal(f"has no {name}", f"leave it out; {options}")
            chosen: Any = defaults.get(name) if value is None else value
            if bounds and name in defaults:
                lowest, highest = bounds
                check_integer(owner, name, chosen, lowest, highest)
            return chosen

        largest = 2**20 if precision == "bitmap" else 2**63 - 1
        self.part_size: int | None = choose("part_size", part_size, 1, largest)
        self.first_day: int | None = choose("first_day", first_day, 0, MAX_VISITORS)
        self.digits: int | None = choose("digits", digits, 1, MAX_DIGITS)
        self.partition: str | None = choose("partition", partition)
        if self.part_size and self.first_day is not None:
            parts = parts_for(expected_after(self.first_day), self.part_size)
            if parts > MAX_PARTS:
                raise InvalidArgumentError(
                    f"{owner}: first_day={self.first_day} in parts of {self.part_size} is more "
                    "than 2**32 parts",
                    "give about how many visitors there will be",
                )
        encoders: Mapping[str, Callable[[Session], Visitor]] = {
            "60-bit": lambda session: self._first_digits(session, self.digits or MAX_DIGITS),
            "64-bit": lambda session: (self._first_digits(session, 16) + 2**63) % 2**64 - 2**63,
            "bitmap": self._user_number,
            # 128 bits, of which a day stores as many as it has room for.
            "compact": lambda session: int.from_bytes(
                blake2b(self.session_bytes(session), digest_size=16).digest()
            ),
        }
        # From a session to its stored form; raises InvalidArgumentError if it does not fit.
        self.encode = encoders.get(precision, self.session_bytes)

    def refusal(self, problem: str, remedy: str) -> InvalidArgumentError:
        """Return the error for a feature that the precision lacks."""
        return InvalidArgumentError(f"{self.owner}: precision={self.precision!r} {problem}", remedy)

    def session_bytes(self, session: Session) -> bytes:
        """Return the bytes that are stored of a session: never the same for two sessions."""
        if isinstance(session, UUID):
            return session.bytes
        try:
            text = session.decode() if isinstance(session, bytes) else session
            if isinstance(text, str):
                if _UUID.fullmatch(text):
                    return bytes.fromhex(text.replace("-", ""))
                raw = text.encode()
                if 0 < len(raw) <= MAX_SESSION_BYTES:
                    return raw if len(raw) < 16 else raw + b"\0"
        except UnicodeError:
            pass
        raise InvalidArgumentError(
            f"{self.owner}: session {shown(session)} is not text of 1 to {MAX_SESSION_BYTES:,} "
            f"bytes for precision={self.precision!r}",
            "give a UUID or text, and for longer or other bytes their hexadecimal digest",
        )

    def _first_digits(self, session: Session, digits: int) -> int:
        if isinstance(session, UUID):
            return int(session.hex[:digits], 16)
        text = session.decode("latin-1") if isinstance(session, bytes) else session
        if isinstance(text, str):
            spelled = text.replace("-", "").lower()
            if len(spelled) >= digits and not _NOT_HEX.search(spelled):
                return int(spelled[:digits], 16)
        raise InvalidArgumentError(
            f"{self.owner}: session {shown(session)} is not {digits} or more hexadecimal digits "
            f"for precision={self.precision!r}",
            "give a UUID or a hexadecimal digest, or choose a precision that takes any text",
        )

    def _user_number(self, session: Session) -> int:
        text = session.decode("latin-1") if isinstance(session, bytes) else session
        if isinstance(text, str) and _NUMBER.fullmatch(text):
            text = int(text)
        if isinstance(text, int) and not isinstance(text, bool) and 0 <= text < MAX_USERS:
            return int(text)
        raise InvalidArgumentError(
            f"{self.owner}: {shown(session)} is not a number from 0 to {MAX_USERS - 1:,} for "
            "precision='bitmap'",
            "give users' numbers, counted up from 0, or use another precision for sessions",
        )

    def odds(self, visitors: int, *, uuid4: bool = False) -> Odds:
        """Return the odds of a day with ``visitors`` visitors; see `UniqueVisitors.odds`."""
        check_integer(self.owner, "visitors", visitors, 0, MAX_VISITORS)
        if self.precision == "hyperloglog":
            raise self.refusal("estimates every count", "it has a standard error of 0.81%")
        if self.digits is not None:
            constant = 4 if uuid4 and self.digits > 12 else 0
            return odds(visitors, 4 * self.digits - constant)
        if self.precision == WHOLE_BITS:
            return odds(visitors, 60 if uuid4 else 64)
        if self.precision == "compact" and self.part_size is not None:
            parts = parts_for(expected_after(visitors), self.part_size)
            return odds(visitors, MEMBER_BITS + math.log2(parts))
        return Odds(math.inf, 0.0, 0.0)


def visitor_id(visitor: Visitor) -> VisitorId:
    """Return a visitor as it is shown: a number, or the session's text, a UUID with hyphens."""
    if isinstance(visitor, int):
        return visitor
    if len(visitor) == 16:
        return str(UUID(bytes=visitor))
    return (visitor if len(visitor) < 16 else visitor[:-1]).decode()


def odds(visitors: int, bits: float) -> Odds:
    """Return how many visitors out of ``visitors`` share an id of ``bits`` random bits."""
    missed = visitors**2 * 2.0 ** -(bits + 1)
    return Odds(bits, missed, -math.expm1(-missed))


REGISTERS = 16_384
_HEADER = 16
_HIGHEST = 51  # what a register can hold: 64 - 14 bits, plus one
_MOST = 2**64  # values that are hashed differ in no more ways
_ALPHA = 0.5 / math.log(2)


def registers(stored: bytes, to: To = "", key: str = "") -> bytes:
    """Return the 16,384 registers of a stored HyperLogLog, a byte each.

    ::

        ┌──────┬──────────┬────────┬───────────────┬──────────────────────────────────────┐
        │ HYLL │ encoding │ unused │ count, cached │ registers of 6 bits each (dense), or │
        │ 4    │ 1        │ 3      │ 8 bytes       │ runs of equal ones (sparse)          │
        └──────┴──────────┴────────┴───────────────┴──────────────────────────────────────┘

    A visitor's hash selects one by 14 bits; it holds the maximum of how many zeros the other bits
    begin with, plus one. The maximum of two days' registers is the HyperLogLog of both days.
    """
    if stored[:4] == b"HYLL" and len(stored) >= _HEADER:
        body = stored[_HEADER:]
        dense = stored[4] == 0 and len(body) == REGISTERS * 6 // 8
        values = bytes(_dense(body)) if dense else _sparse(body)
        if len(values) == REGISTERS and max(values) <= _HIGHEST:
            return values
    raise damage(to, key, shown(stored), "a HyperLogLog", "find what wrote to it, or delete it")


def estimate(values: bytes) -> int:
    """Return how many different values were added, from the registers, as servers do.

    By algorithm 6 of Otmar Ertl, "New cardinality estimation algorithms for HyperLogLog sketches",
    2017.
    """
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
