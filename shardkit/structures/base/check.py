"""Find damage in stored data without changing anything.

A structure's ``check()`` reads all of it, a page at a time, and yields what differs from what was
written. Other clients may write in the meantime, so suspicious data is read a second time, and
counts if it is the same again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeAlias

from shardkit.errors import DamagedDataError, ShardFailure
from shardkit.operations.arguments import shown
from shardkit.operations.commands import (
    Command,
    Locate,
    Partial,
    Replies,
    Reply,
    To,
    damage_in,
    raise_failures,
)
from shardkit.operations.operation import Cursor, Operation, Page, Step, Stream
from shardkit.structures.base.damage import damage
from shardkit.structures.base.writes import PartRegistry

# How many keys a check reads in one exchange.
KEYS_CHECKED = 64
# A part with more entries is read in pieces, so that no command holds its server for long.
ENTRIES_AT_ONCE = 5_000

P = ParamSpec("P")

REBUILD = "rebuild()"
_LENGTHS = {"SET": "SCARD", "HASH": "HLEN", "ZSET": "ZCARD", "LIST": "LLEN", "STRING": "STRLEN"}
_SCANS = {"SET": "SSCAN", "HASH": "HSCAN", "ZSET": "ZSCAN"}
_WHOLE: dict[str, tuple[Any, ...]] = {
    "SET": ("SMEMBERS",),
    "HASH": ("HGETALL",),
    "ZSET": ("ZRANGE", 0, -1, "WITHSCORES"),
}


class Damage(NamedTuple):
    """A difference between stored data and what was written.

    Attributes:
        component: where it is.
        shard: the shard, as text.
        key: the key.
        found: the stored data.
        expected: what it should be.
        repair: the call that repairs it; empty if stored data cannot.
        loses: the data that the repair loses; empty for none.
    """

    component: str
    shard: str
    key: str
    found: str
    expected: str
    repair: str = ""
    loses: str = ""

    def __str__(self) -> str:
        return f"{self.shard}: {self.key} is damaged: {self.found}, not {self.expected}"


class Suspicion(NamedTuple):
    """Damage before it is confirmed and its shard is known."""

    error: DamagedDataError
    repair: str = ""
    loses: str = ""


Suspicions = list[Suspicion]
# A part of a stream of damage; returns what it yielded.
Report: TypeAlias = Generator[Step | Page[Damage], Any, Page[Damage]]


def confirmed(
    check: Callable[P, Operation[Suspicions]], *args: P.args, **options: P.kwargs
) -> Report:
    """Run a check, and again if it returned anything; yield, and return, what it returned twice."""
    suspicions = yield from check(*args, **options)
    if suspicions:
        again = {str(suspicion.error) for suspicion in (yield from check(*args, **options))}
        suspicions = [suspicion for suspicion in suspicions if str(suspicion.error) in again]
    if not suspicions:
        return Page()
    places = yield Locate([(s.error.place, s.error.key) for s in suspicions])
    page = Page(
        Damage(
            error.component or shard.component,
            error.shard or str(shard),
            error.key,
            error.found,
            error.expected,
            repair,
            loses,
        )
        for (error, repair, loses), (shard, _) in zip(suspicions, places, strict=True)
    )
    yield page
    return page


def suspected(steps: Operation[Any], repair: str = "", loses: str = "") -> Operation[Suspicions]:
    """Run steps; return the damage that they raise."""
    try:
        yield from steps
    except DamagedDataError as error:
        return [Suspicion(error, repair, loses)]
    return []


def raised_twice(
    steps: Callable[..., Operation[Any]], *args: Any, repair: str = "", loses: str = ""
) -> Report:
    """Run steps; yield, and return, the damage that they raise, also when they are run again."""
    return confirmed(lambda: suspected(steps(*args), repair, loses))


def check_reads(*reads: Callable[[], Operation[Any]]) -> Stream[Damage]:
    """Yield the first damage that each of some calls' own reads raises twice."""
    for read in reads:
        yield from raised_twice(read)


def script_damage(to: To, texts: Iterable[bytes], repair: str = "") -> Suspicions:
    """Return the damage that a script has found, by reading as the calls' scripts do."""
    damages = (json.loads(text.partition(b" ")[2]) for text in texts)
    return [Suspicion(damage(to, *fields), repair) for fields in damages]


def read_or_note(
    commands: Sequence[Command], notes: Suspicions, repair: str = "", loses: str = ""
) -> Operation[list[Reply]]:
    """Send reads; return the replies, None for a key of another type, which is noted."""
    replies = yield Partial(commands)
    read: list[Reply] = []
    for reply in replies:
        if isinstance(reply, ShardFailure):
            error = damage_in(reply)
            if error is None:
                raise_failures(Replies([reply]), own=False)
            else:
                notes.append(Suspicion(error, repair, loses))
            reply = None
        read.append(reply)
    return read


def lengths(
    to: To,
    kind: str,
    keys: Iterable[str | bytes],
    notes: Suspicions,
    repair: str = "",
    loses: str = "",
) -> Operation[list[int | None]]:
    """Return keys' lengths: 0 for a missing key, None for one of another type, which is noted."""
    name = _LENGTHS[kind]
    commands = [Command(to, key, (name, key)) for key in keys]
    return (yield from read_or_note(commands, notes, repair, loses))


def wrong_lengths(
    to: To, keys: Sequence[str], full: int, repair: str = "", loses: str = "", type_repair: str = ""
) -> Operation[Suspicions]:
    """Return which STRINGs have another length than their only one. Cost: one exchange."""
    notes: Suspicions = []
    names = ("STRLEN", "EXISTS")
    commands = [Command(to, key, (name, key)) for name in names for key in keys]
    replies = yield from read_or_note(commands, notes, type_repair or repair, "what the key holds")
    for key, length, exists in zip(keys, replies, replies[len(keys) :], strict=False):
        if exists and length not in (None, full):
            error = damage(to, key, f"{length} bytes", f"{full} bytes")
            notes.append(Suspicion(error, repair, loses))
    return notes


def contents(
    to: To,
    kind: str,
    keys: Sequence[str | bytes],
    notes: Suspicions,
    repair: str = "",
    loses: str = "",
) -> Operation[list[list[tuple[bytes, Any]]]]:
    """Return each key's members with their values or scores; None for those of a SET.

    Cost: two exchanges; more for keys with more than 5,000 members.
    """
    pairs: list[list[tuple[bytes, Any]]] = [[] for _ in keys]
    sizes = yield from lengths(to, kind, keys, notes, repair, loses)
    short = [n for n, size in enumerate(sizes) if size is not None and 0 < size <= ENTRIES_AT_ONCE]
    name, *args = _WHOLE[kind]
    replies = yield from read_or_note(
        [Command(to, keys[n], (name, keys[n], *args)) for n in short], []
    )
    for n, reply in zip(short, replies, strict=True):
        pairs[n] = _pairs(kind, reply or ())
    for n, size in enumerate(sizes):
        if size is not None and size > ENTRIES_AT_ONCE:
            cursor = Cursor(to, keys[n])
            while (flat := (yield from cursor.read(_SCANS[kind], 1000))) is not None:
                pairs[n] += _pairs(kind, flat)
            pairs[n] = list(dict(pairs[n]).items())  # SCAN may return some twice
    return pairs


def _pairs(kind: str, flat: Sequence[bytes]) -> list[tuple[bytes, Any]]:
    if kind == "SET":
        return [(member, None) for member in flat]
    values: Iterable[Any] = flat[1::2]
    return list(zip(flat[::2], map(float, values) if kind == "ZSET" else values, strict=True))


# Raises DamagedDataError for a member or its value that cannot be read.
Validate = Callable[[bytes, Any], object]


def first_wrong(
    to: To, key: str, entries: Iterable[tuple[bytes, Any]], validate: Validate
) -> Iterator[Suspicion]:
    """Yield the first entry of a key that cannot be read."""
    for entry in entries:
        try:
            validate(*entry)
        except DamagedDataError as error:
            yield Suspicion(damage(to, key, error.found, error.expected))
            return
        except Exception as error:  # a codec is the application's
            yield Suspicion(damage(to, key, f"{shown(entry[0])}: {error}", "what was stored"))
            return


def _existing(registry: PartRegistry, parts: Iterable[int]) -> Operation[list[int]]:
    """Return which of some parts exist, but are not registered."""
    unknown = yield from registry.unregistered(parts)
    keys = [f"{registry.name}:{part}" for part in unknown]
    replies = yield [Command(registry.to, key, ("EXISTS", key)) for key in keys]
    return [part for part, exists in zip(unknown, replies, strict=True) if exists]


def check_registered(registry: PartRegistry, parts: Iterable[int]) -> Operation[Suspicions]:
    """Check that none of some parts exists unregistered. Cost: two exchanges."""
    existing = yield from _existing(registry, parts)
    if not existing:
        return []
    expected = f"the range of {registry.name}:{existing[0]}"
    error = damage(registry.to, registry.key, "nothing", expected)
    return [Suspicion(error, f"{REBUILD} registers the first parts that exist")]


def register_existing(registry: PartRegistry, parts: Iterable[int], due: int) -> Operation[None]:
    """Register the existing ones of some parts."""
    existing = yield from _existing(registry, parts)
    if existing:
        registry.reset()
        yield from registry.add(existing, due)
