"""Intersections, unions and differences of sharded sets, some hundred parts at a time.

Sets with the same parameters have the same members in corresponding parts. With a fixed number of
parts, part 7 of one set corresponds to part 7 of another: where these live on one server, it
combines them; elsewhere their members are fetched. Where parts split as they fill, a part of the
set that was split least corresponds to the parts that the same part was split into in the others. A
stored result is built beside the set and replaces it group by group.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

from shardkit.operations.commands import Command, Locate, Transaction
from shardkit.operations.operation import Operation, pages
from shardkit.structures.layouts.base import Chunk, FixedLayout
from shardkit.structures.layouts.growing import GrowingLayout, chunks_of, read_parts_together

# How many parts of every operand are in memory at a time.
PARTS_COMBINED = 256
MEMBERS_AT_ONCE = 10_000
# Seconds after which the incomplete result of a process that died expires.
_UNFINISHED = 24 * 3600

_ALGEBRA: dict[str, Callable[[set[bytes], set[bytes]], set[bytes]]] = {
    "SINTER": operator.and_,
    "SUNION": operator.or_,
    "SDIFF": operator.sub,
}


def chunks(layouts: Sequence[FixedLayout | GrowingLayout]) -> Operation[list[Chunk]]:
    """Return the corresponding parts of sets in chunks. Cost: at most one exchange per set."""
    growing = _growing(layouts)
    for layout in growing:
        yield from layout.refresh()
    return list(_corresponding(growing) if growing else layouts[0].chunks(PARTS_COMBINED))


def combine(
    verb: str, layouts: Sequence[FixedLayout | GrowingLayout], chunk: Chunk, seen: list[int]
) -> Operation[list[bytes]]:
    """Return the members of a combined chunk; ``seen`` counts what was read, for `verify`."""
    fixed = _fixed(layouts)
    if not fixed:
        return list((yield from _combined_growing(verb, _growing(layouts), chunk, seen)))
    together = yield from _live_together(fixed, chunk)
    replies = iter((yield _fetch(verb, fixed, chunk, together)))
    members: list[bytes] = []
    for there in together:
        members += next(replies) if there else _combine(verb, _next(replies, len(fixed)))
    return members


def verify(layouts: Sequence[FixedLayout | GrowingLayout], seen: Sequence[int]) -> Operation[None]:
    """Compare what was read of each set with its count; see `LayoutBase.verify`."""
    for layout, found in zip(layouts, seen, strict=True):
        yield from layout.verify(found)


def store(
    verb: str, target: FixedLayout | GrowingLayout, sources: Sequence[FixedLayout | GrowingLayout]
) -> Operation[int]:
    """Replace a set by the combination of others, of one kind of layout; return its size."""
    if isinstance(target, FixedLayout):
        return (yield from _store_fixed(verb, target, _fixed(sources)))
    return (yield from _store_growing(verb, target, _growing(sources)))


def _fixed(layouts: Iterable[FixedLayout | GrowingLayout]) -> list[FixedLayout]:
    return [layout for layout in layouts if isinstance(layout, FixedLayout)]


def _growing(layouts: Iterable[FixedLayout | GrowingLayout]) -> list[GrowingLayout]:
    return [layout for layout in layouts if isinstance(layout, GrowingLayout)]


# ---- where the number of parts is fixed


def _store_fixed(verb: str, target: FixedLayout, sources: Sequence[FixedLayout]) -> Operation[int]:
    stored = 0
    for parts in target.chunks(PARTS_COMBINED):
        together = yield from _live_together((target, *sources), parts)
        apart = [part for part, there in zip(parts, together, strict=True) if not there]
        fetched = iter((yield _fetch(verb, sources, apart, [False] * len(apart))) if apart else ())
        batch: list[Command | Transaction] = []
        for part, there in zip(parts, together, strict=True):
            if there:
                keys = [source.key(part) for source in sources]
                batch.append(target.command(part, f"{verb}STORE", *keys))
            else:
                members = _combine(verb, _next(fetched, len(sources)))
                batch.append(_replace(target, part, members))
        replies = yield batch
        stored += sum(r if isinstance(r, int) else sum(r[1:]) for r in replies)
    return stored


def _replace(target: FixedLayout, part: int, members: Iterable[bytes]) -> Transaction:
    commands = [target.command(part, "DEL")]
    commands += [target.command(part, "SADD", *page) for page in pages(members, MEMBERS_AT_ONCE)]
    return Transaction(commands[0].to, target.key(part), tuple(commands))


def _live_together(layouts: Sequence[FixedLayout], parts: Sequence[int]) -> Operation[list[bool]]:
    """Return for each part whether all sets' keys of it can be used in one command."""
    commands = [layout.command(part, "") for part in parts for layout in layouts]
    places = yield Locate([(command.to, command.key) for command in commands])
    width = len(layouts)
    return [len(set(places[n * width : (n + 1) * width])) == 1 for n in range(len(parts))]


def _fetch(
    verb: str, layouts: Sequence[FixedLayout], parts: Sequence[int], together: Sequence[bool]
) -> list[Command]:
    """Return the commands that combine parts on their server, or fetch those that are apart."""
    batch = []
    for part, there in zip(parts, together, strict=True):
        if there:
            first, *rest = layouts
            keys = [other.key(part) for other in rest]
            batch.append(first.command(part, verb, *keys))
        else:
            batch += [layout.command(part, "SMEMBERS") for layout in layouts]
    return batch


# ---- where parts split as they fill


def _corresponding(layouts: Sequence[GrowingLayout]) -> Iterator[Any]:
    """Return chunks of the parts of the set that has fewest, group by group."""
    numbers = [min(parts) for parts in zip(*(layout.parts for layout in layouts), strict=True)]
    return chunks_of(numbers, PARTS_COMBINED)


def _combined_growing(
    verb: str, layouts: Sequence[GrowingLayout], chunk: Any, seen: list[int]
) -> Operation[set[bytes]]:
    replies = yield from read_parts_together(layouts, chunk, "SMEMBERS")
    for n, parts in enumerate(replies):
        seen[n] += sum(map(len, parts))
    return _combine(verb, ([m for part in parts for m in part] for parts in replies))


def _store_growing(
    verb: str, target: GrowingLayout, sources: Sequence[GrowingLayout]
) -> Operation[int]:
    counter = f"{target.name}:storing"
    number, _, ends = yield [
        Command(target.component, counter, ("INCR", counter)),
        Command(target.component, counter, ("EXPIRE", counter, 2 * _UNFINISHED)),
        Command(target.component, counter, ("PEXPIRETIME", counter)),
    ]
    result = target.sibling(f"{counter}:{number}", ends - 1000 * _UNFINISHED)
    for layout in sources:
        yield from layout.refresh()
    seen = [0] * len(sources)
    for chunk in _corresponding(sources):
        members = yield from _combined_growing(verb, sources, chunk, seen)
        for page in pages(members, MEMBERS_AT_ONCE):
            sent = [(member, None) for member in page]
            yield from result.write(sent, lambda some, _: ("SADD", *some))
    yield from verify(sources, seen)
    return (yield from target.replace_by(result))


def _combine(verb: str, operands: Iterable[Iterable[bytes]]) -> set[bytes]:
    return reduce(_ALGEBRA[verb], map(set, operands))


def _next(replies: Iterator[Any], count: int) -> list[Any]:
    return [next(replies) for _ in range(count)]
