"""What is kept of a visitor: five precisions, what each takes for an id, and what it risks.

::

    session "550e8400-e29b-41d4-a716-446655440000"

    exact         55 0e 84 00 e2 9b 41 d4 a7 16 44 66 55 44 00 00      all 16 bytes of a UUID;
                                                                       other text as it is
    60-bit        550e8400e29b41d ──► 383061330139657245               its first 15 digits

    compact       BLAKE2b of the 16 bytes, modulo parts * 2**32:
                  ┌───────────────┬───────────────────────────┐        so many bits as the plan
                  │ part          │ member: 32 bits, signed   │        of the day has parts for
                  └───────────────┴───────────────────────────┘
    hyperloglog   the 16 bytes; of all of them 12 KB are kept
    bitmap        a user's number, one bit of a bitmap

``exact``, ``compact`` and ``hyperloglog`` take any text for a session. A UUID is one session
however it is spelled; any other text is taken as it is. Only a UUID is kept as 16 bytes: text of 16
bytes and more gets a zero byte at its end, so two sessions are never kept alike.

``60-bit`` reads hexadecimal digits as they stand, so they had better be random. ``compact`` hashes,
because it has no bits to spare: a version 4 UUID has six that are always the same (its 13th digit,
and half of its 17th), versions 1 and 7 begin with the time, and a name is not made of random bits
at all. BLAKE2b of 128 bits is the same on every machine, and quick.

How many parts. A day's parts are as full as is safe when as many visitors come as were expected:
five standard deviations of chance below what a part may have, 410 of 512. Then one part in two
million outgrows its compact form. The number is rounded up by an eighth at most, to a unit times a
power of two (5, 10, 20, … for parts of 512), so that the number of one day's parts divides that of
another's, and days can be compared part by part (see `shardkit.structures.unique.set_operations`).

The odds. Two sessions with the same id are counted as one. Among n visitors with ids of b random
bits, n² / 2^(b+1) are missed on average.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from shardkit.errors import InvalidArgumentError
from shardkit.structures.base.arguments import check_integer, shown

Session: TypeAlias = str | bytes | int | UUID
# What a day is given for a visitor, and what it is called when it is listed or located.
Stored: TypeAlias = int | bytes
Id: TypeAlias = int | str

PRECISIONS: Final = ("exact", "60-bit", "compact", "hyperloglog", "bitmap")
SIXTY_BIT: Final = "60-bit"

FIRST_DAY: Final = 1_000_000
MOST_FIRST_DAY: Final = 2**40
MOST_DIGITS: Final = 15
MEMBER_BITS: Final = 32
MOST_PARTS: Final = 2**32
MOST_PART_SIZE: Final = 2**63 - 1
MOST_USERS: Final = 2**32  # what SETBIT reaches, and half a gigabyte
LONGEST_SESSION: Final = 1024  # bytes
# 16,368 bytes: with the header of a string it just fits what jemalloc allocates for 16 KB.
BITS_A_PART: Final = 130_944
MOST_BITS_A_PART: Final = 2**20

# The parameters that each precision has, and what they are unless given.
_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "exact": {"part_size": 128, "first_day": FIRST_DAY, "partition": "crc32"},
    "60-bit": {
        "part_size": 512,
        "first_day": FIRST_DAY,
        "partition": "crc32",
        "digits": MOST_DIGITS,
    },
    "compact": {"part_size": 512, "first_day": FIRST_DAY},
    "hyperloglog": {},
    "bitmap": {"part_size": BITS_A_PART},
}
_NOT_HEX = re.compile(r"[^0-9a-f]")
_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)


class Odds(NamedTuple):
    """How often two visitors are taken for one.

    Attributes:
        bits: how many random bits an id has; infinity where ids are never the same.
        missed: how many visitors of a day are not counted, on average.
        some: on what share of such days at least one is not.
    """

    bits: float
    missed: float
    some: float


class Settings(NamedTuple):
    """The parameters of a counter; None for those that its precision does not have."""

    precision: str
    part_size: int | None = None
    first_day: int | None = None
    digits: int | None = None
    partition: str | None = None


def settings(
    owner: str,
    precision: str,
    part_size: int | None,
    first_day: int | None,
    digits: int | None,
    partition: str | None,
) -> Settings:
    """Return the parameters of a counter; each that is None as its precision has it.

    Raises:
        InvalidArgumentError: there is no such precision, it has no such parameter, or one is out of
            range.
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise InvalidArgumentError(
            f"{owner}: precision={shown(precision)}", f"there are {', '.join(PRECISIONS)}"
        )
    named = {
        "part_size": part_size,
        "first_day": first_day,
        "digits": digits,
        "partition": partition,
    }
    given = {name: value for name, value in named.items() if value is not None}
    usual = _PARAMETERS[precision]
    for name in given.keys() - usual.keys():
        has = f"it has {', '.join(usual)}" if usual else "it has none"
        raise InvalidArgumentError(
            f"{owner}: precision={precision!r} has no {name}", f"leave it out; {has}"
        )
    found = Settings(precision, **{**usual, **given})
    most = MOST_BITS_A_PART if precision == "bitmap" else MOST_PART_SIZE
    for name, lowest, highest in (
        ("digits", 1, MOST_DIGITS),
        ("first_day", 0, MOST_FIRST_DAY),
        ("part_size", 1, most),
    ):
        if name in usual:
            check_integer(owner, name, getattr(found, name), lowest, highest)
    if found.first_day is not None and found.part_size is not None:
        parts = parts_for(planned(found.first_day), found.part_size)
        if parts > MOST_PARTS:
            raise InvalidArgumentError(
                f"{owner}: first_day={found.first_day} in parts of {found.part_size} is more than "
                "2**32 parts",
                "give about how many visitors there will be",
            )
    return found


def usual_part_size(precision: str) -> int:
    """Return how many members a part has unless a counter says otherwise; 0 without parts."""
    return int(_PARAMETERS[precision].get("part_size", 0))


# ---- what is kept of a session


def reader(owner: str, chosen: Settings) -> Callable[[Session], Stored]:
    """Return the function from a session to what a day is given for it.

    The function raises InvalidArgumentError when the session does not fit the precision.
    """
    if chosen.digits is not None:
        digits = chosen.digits
        return lambda session: _first_digits(owner, session, digits)
    if chosen.precision == "bitmap":
        return lambda session: _user_number(owner, session)
    if chosen.precision == "compact":
        return lambda session: hash_of(session_bytes(owner, chosen.precision, session))
    return lambda session: session_bytes(owner, chosen.precision, session)


def called(stored: Stored) -> Id:
    """Return what a visitor is called: a number, or the session as text, a UUID with hyphens."""
    if isinstance(stored, int):
        return stored
    if len(stored) == 16:
        return str(UUID(bytes=stored))
    return (stored if len(stored) < 16 else stored[:-1]).decode()


def session_bytes(owner: str, precision: str, session: Session) -> bytes:
    """Return the bytes that are kept of a session: never the same for two sessions.

    Raises:
        InvalidArgumentError: it is no UUID and no text of 1 to 1,024 bytes.
    """
    if isinstance(session, UUID):
        return session.bytes
    try:
        text = session.decode() if isinstance(session, bytes) else session
        if isinstance(text, str):
            if _UUID.fullmatch(text):
                return bytes.fromhex(text.replace("-", ""))
            raw = text.encode()
            if 0 < len(raw) <= LONGEST_SESSION:
                return raw if len(raw) < 16 else raw + b"\0"
    except UnicodeError:
        pass
    raise InvalidArgumentError(
        f"{owner}: session {shown(session)} is no text of 1 to {LONGEST_SESSION:,} bytes for "
        f"precision={precision!r}",
        "give a UUID or text; of what is longer, or not UTF-8, its hexadecimal digest",
    )


def hash_of(raw: bytes) -> int:
    """Return the 128 bits of which ``compact`` keeps as many as a day has room for."""
    return int.from_bytes(blake2b(raw, digest_size=16).digest())


def _first_digits(owner: str, session: Session, digits: int) -> int:
    if isinstance(session, UUID):
        return int(session.hex[:digits], 16)
    text = session.decode("latin-1") if isinstance(session, bytes) else session
    if isinstance(text, str):
        spelled = text.replace("-", "").lower()
        if len(spelled) >= digits and not _NOT_HEX.search(spelled):
            return int(spelled[:digits], 16)
    raise InvalidArgumentError(
        f"{owner}: session {shown(session)} has not {digits} hexadecimal digits for "
        f"precision={SIXTY_BIT!r}",
        "give a UUID or a hexadecimal digest, or choose a precision that takes any text",
    )


def _user_number(owner: str, session: Session) -> int:
    text = session.decode("latin-1") if isinstance(session, bytes) else session
    if isinstance(text, str) and _NUMBER.fullmatch(text):
        text = int(text)
    if isinstance(text, int) and not isinstance(text, bool) and 0 <= text < MOST_USERS:
        return int(text)
    raise InvalidArgumentError(
        f"{owner}: {shown(session)} is no number from 0 to {MOST_USERS - 1:,} for "
        "precision='bitmap'",
        "give users' numbers, counted up from 0; for sessions choose another precision",
    )


# ---- plans


def planned(before: int) -> int:
    """Return how many visitors to plan for after a day with so many: half as many again.

    Rounded up to a power of two, so that days of about the same size can be combined.
    """
    return 1 << max(0, (before * 3 + 1) // 2 - 1).bit_length()


def fill(part_size: int) -> float:
    """Return how many members a part has on average when as many come as were expected.

    Chance varies a part's size by the square root of it: n + 5 * sqrt(n) = part_size. Of small
    parts half are filled, as in every other set.
    """
    return max(part_size / 2, ((math.sqrt(25 + 4 * part_size) - 5) / 2) ** 2)


def parts_for(expected: int, part_size: int) -> int:
    """Return how many parts a day has that so many visitors are expected on.

    One, or a unit times a power of two. The unit is odd, below 16, and depends on the shard size
    alone: 5 for 512, 13 for 128.
    """
    full = fill(part_size)
    if expected <= full:
        return 1
    mantissa, _ = math.frexp(1 / full)  # from a half to 1
    unit = math.ceil(16 * mantissa)
    while unit % 2 == 0:
        unit //= 2
    return unit << max(0, math.ceil(math.log2(expected / full / unit)))


def expected_for(parts: int, part_size: int) -> int:
    """Return how many visitors were expected, a power of two, when so many parts were planned."""
    expected = 1
    while parts_for(2 * expected, part_size) <= parts:
        expected *= 2
    return expected


# ---- odds


def odds(visitors: int, bits: float) -> Odds:
    """Return how often two of so many visitors get the same id.

    Args:
        visitors: how many there are.
        bits: how many random bits an id has.
    """
    missed = visitors**2 * 2.0 ** -(bits + 1)
    return Odds(bits, missed, -math.expm1(-missed))


def odds_for(owner: str, chosen: Settings, visitors: int, *, uuid4: bool = False) -> Odds:
    """Return the odds of a precision for a day with so many visitors, as planned after such a day.

    Args:
        owner: what asks, for messages.
        chosen: the counter's parameters.
        visitors: how many come.
        uuid4: whether sessions are version 4 UUIDs, of which ``60-bit`` keeps digits that are not
            random.

    Raises:
        InvalidArgumentError: the precision estimates, or the number is none.
    """
    check_integer(owner, "visitors", visitors, 0, MOST_FIRST_DAY)
    if chosen.precision == "hyperloglog":
        raise InvalidArgumentError(
            f"{owner}: precision='hyperloglog' estimates every count",
            "it has a standard error of 0.81%",
        )
    if chosen.digits is not None:
        fixed = 4 if uuid4 and chosen.digits > 12 else 0
        return odds(visitors, 4 * chosen.digits - fixed)
    if chosen.precision == "compact" and chosen.part_size is not None:
        parts = parts_for(planned(visitors), chosen.part_size)
        return odds(visitors, MEMBER_BITS + math.log2(parts))
    return Odds(math.inf, 0.0, 0.0)
