"""Draw random members of a structure in parts, each with the same probability."""

from __future__ import annotations

from collections import defaultdict
from random import SystemRandom
from typing import Any

from shardkit.operations.commands import Argument, Reply
from shardkit.operations.operation import Operation
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.layouts.base import Layout

# It has no state that forked processes would share.
_RANDOM = SystemRandom()


def random_members(
    layout: Layout, size: str, command: str, number: int, *args: Argument
) -> Operation[list[tuple[int | None, Reply]]]:
    """Draw random members: choose parts by their sizes, then members within each.

    ``size`` is the command for a part's size, such as SCARD; ``command`` draws from one part, such
    as SRANDMEMBER. A negative ``number`` draws independently, so that members may repeat.

    Returns:
        Parts, as `Layout.read_parts`, with the reply of the command.

    Cost: one command per part, an exchange for every 1,000 parts; then an exchange or a few.
    """
    sizes: list[int] = []
    parts: list[Any] = []
    yield from layout.refresh()
    for chunk in layout.chunks(PARTS_AT_ONCE):
        replies = yield from layout.read_parts(chunk, size)
        if len(replies) == len(chunk):  # else parts split in between: start again
            parts += chunk
            sizes += (members for _, members in replies)
        else:
            return (yield from random_members(layout, size, command, number, *args))
    total = sum(sizes)
    if not total:
        return []
    if number < 0:
        drawn = _RANDOM.choices(range(len(parts)), sizes, k=-number)
    else:
        drawn = _RANDOM.sample(range(len(parts)), min(number, total), counts=sizes)
    times: defaultdict[int, int] = defaultdict(int)
    for n in drawn:
        times[n] += 1
    alike: defaultdict[tuple[int, type], list[Any]] = defaultdict(list)
    for n, count in times.items():
        alike[count, type(parts[n])].append(parts[n])
    results: list[tuple[int | None, Reply]] = []
    for (count, _), chunk in alike.items():
        sign = -count if number < 0 else count
        results += yield from layout.read_parts(chunk, command, sign, *args)
    return results
