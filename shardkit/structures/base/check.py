"""Looking for damage in what is stored, without changing anything.

``check()`` of a structure reads all of it, a slice at a time, and gives out what cannot be as it
was written::

    for damage in ids.check():
        print(damage.shard, damage.key, damage.found, damage.expected, damage.repair, damage.loses)

Others may write meanwhile: what looks wrong is read a second time, and counts if it looks the same
again. A key of another type, a number out of range, or a member in a part that is not its own are
no surprise of concurrency; a count that a write has just changed is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from shardkit.errors import DamagedDataError, ShardFailure
from shardkit.operations.arguments import shown
from shardkit.operations.commands import (
    Command,
    Key,
    Locate,
    Partial,
    Replies,
    Reply,
    To,
    damage_in,
    raise_failures,
)
from shardkit.operations.operation import Operation, Page
from shardkit.structures.base.damage import damage
from shardkit.structures.base.part_registry import PartRegistry

# How many keys a check reads in one exchange.
KEYS_CHECKED = 64
# A part with more entries is read in pieces, so that no command holds its server for long.
ENTRIES_AT_ONCE = 5_000

REBUILD = "rebuild()"
_LENGTHS = {"SET": "SCARD", "HASH": "HLEN", "ZSET": "ZCARD", "LIST": "LLEN", "STRING": "STRLEN"}
_SCANS = {"SET": "SSCAN", "HASH": "HSCAN", "ZSET": "ZSCAN"}
_WHOLE: dict[str, tuple[Any, ...]] = {
    "SET": ("SMEMBERS",),
    "HASH": ("HGETALL",),
    "ZSET": ("ZRANGE", 0, -1, "WITHSCORES"),
}


class Damage(NamedTuple):
    """Something stored that is not what was written.

    Attributes:
        component: where it is.
        shard: the shard, as text.
        key: the key.
        found: what is there.
        expected: what should be.
        repair: what repairs it; empty if nothing that is stored can.
        loses: what the repair gives up; empty if nothing.
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
    """Damage, before it is known on which shard, and to last."""

    error: DamagedDataError
    repair: str = ""
    loses: str = ""


Suspicions = list[Suspicion]


def confirmed(check: Callable[[], Operation[Suspicions]]) -> Operation[Page[Damage]]:
    """Check something, and once more if anything was found; return what was found twice."""
    found = yield from check()
    if found:
        again = {str(suspicion.error) for suspicion in (yield from check())}
        found = [suspicion for suspicion in found if str(suspicion.error) in again]
    if not found:
        return Page()
    places = yield Locate([(each.error.place, each.error.key) for each in found])
    return Page(
        Damage(
            error.component or shard.component,
            error.shard or str(shard),
            error.key,
            error.found,
            error.expected,
            repair,
            loses,
        )
        for (error, repair, loses), (shard, _) in zip(found, places, strict=True)
    )


def suspected(steps: Operation[Any], repair: str = "", loses: str = "") -> Operation[Suspicions]:
    """Run steps; return the damage that they raise, if they do."""
    try:
        yield from steps
    except DamagedDataError as error:
        return [Suspicion(error, repair, loses)]
    return []


def read_or_note(
    commands: Sequence[Command], notes: Suspicions, repair: str = "", loses: str = ""
) -> Operation[list[Reply]]:
    """Send commands that read; return the replies, None for a key of another type, which is noted.

    Raises:
        ShardErrors: a shard failed otherwise.
    """
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
    """Return how long keys are: 0 for none, None for those of another type, which are noted."""
    name = _LENGTHS[kind]
    commands = [Command(to, key, (name, key)) for key in keys]
    return (yield from read_or_note(commands, notes, repair, loses))


def contents(
    to: To,
    kind: str,
    keys: Sequence[str | bytes],
    notes: Suspicions,
    repair: str = "",
    loses: str = "",
) -> Operation[list[list[tuple[bytes, Any]]]]:
    """Return what some keys hold: members, and with each its value or score; None in a SET.

    Args:
        to: where they are.
        kind: SET, HASH or ZSET.
        keys: the keys.
        notes: takes those of another type.
        repair: what repairs these.
        loses: what that loses.

    Cost: two exchanges; more for keys with more than 5,000 members.
    """
    found: list[list[tuple[bytes, Any]]] = [[] for _ in keys]
    sizes = yield from lengths(to, kind, keys, notes, repair, loses)
    few = [n for n, size in enumerate(sizes) if size is not None and 0 < size <= ENTRIES_AT_ONCE]
    name, *args = _WHOLE[kind]
    replies = yield from read_or_note(
        [Command(to, keys[n], (name, keys[n], *args)) for n in few], []
    )
    for n, reply in zip(few, replies, strict=True):
        found[n] = _pairs(kind, reply or ())
    for n, size in enumerate(sizes):
        cursor: Key = 0
        while size is not None and size > ENTRIES_AT_ONCE and cursor != b"0":
            scan = (_SCANS[kind], keys[n], cursor, "COUNT", 1000)
            [(cursor, some)] = yield [Command(to, keys[n], scan)]
            found[n] += _pairs(kind, some)
        if size is not None and size > ENTRIES_AT_ONCE:
            found[n] = list(dict(found[n]).items())  # SCAN may give some twice
    return found


def _pairs(kind: str, flat: Sequence[bytes]) -> list[tuple[bytes, Any]]:
    if kind == "SET":
        return [(member, None) for member in flat]
    values: Iterable[Any] = flat[1::2]
    return list(zip(flat[::2], map(float, values) if kind == "ZSET" else values, strict=True))


# Takes a member and its value, and raises DamagedDataError if they were not written so.
Look = Callable[[bytes, Any], object]


def first_wrong(
    to: To, key: str, entries: Iterable[tuple[bytes, Any]], look: Look
) -> Iterator[Suspicion]:
    """Give out the first entry of a key that cannot be read."""
    for entry in entries:
        try:
            look(*entry)
        except DamagedDataError as error:
            yield Suspicion(damage(to, key, error.found, error.expected))
            return
        except Exception as error:  # a codec is the application's
            yield Suspicion(damage(to, key, f"{shown(entry[0])}: {error}", "what was stored"))
            return


def _existing(
    registry: PartRegistry, parts: Sequence[int], keys: Sequence[str]
) -> Operation[list[int]]:
    found = yield [Command(registry.to, key, ("EXISTS", key)) for key in keys]
    return [part for part, exists in zip(parts, found, strict=True) if exists]


def check_registered(
    registry: PartRegistry, parts: Sequence[int], keys: Sequence[str]
) -> Operation[Suspicions]:
    """Check that parts which are not registered do not exist. Cost: one exchange."""
    there = yield from _existing(registry, parts, keys)
    if not there:
        return []
    key = keys[list(parts).index(there[0])]
    error = damage(registry.to, registry.key, "nothing", f"the range of {key}")
    return [Suspicion(error, f"{REBUILD} registers the first parts that exist")]


def register_existing(
    registry: PartRegistry, parts: Sequence[int], keys: Sequence[str], due: int
) -> Operation[None]:
    """Register those of some parts that exist."""
    there = yield from _existing(registry, parts, keys)
    if there:
        registry.reset()
        yield from registry.add(there, due)
