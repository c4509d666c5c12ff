"""Coalescing: uniform neighbouring commands become one. No I/O.

::

    GET a   GET b   GET c            ─►  MGET a b c
    SET a 1   SET b 2                ─►  MSET a 1 b 2
    HGET h x   HGET h y              ─►  HMGET h x y
    DEL a   DEL b                    ─►  DEL a b          and so EXISTS, TOUCH and UNLINK

A batch takes half of the time. Only a `Coalesced` batch is joined, because two things change: for a
key of another type MGET answers None, where GET answers WRONGTYPE; and of joined commands that
count keys, the first has the whole count and the others have 0.

Only neighbours in a shard's part of the batch are joined, so the order stays. SETs with options are
not joined. On a cluster, the keys must share a slot. Fewer than twelve neighbours are joined only
if there is nothing else, because joining them costs more in Python than it saves (10,000 commands,
measured: runs of 2 to 8 took 3 to 11% longer, of 12 and 16 4% less, of 50 a quarter less).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, islice, pairwise
from operator import itemgetter, ne
from typing import Any, NamedTuple

from shardkit.network.links.resp import (
    CHUNK_BYTES,
    Arguments,
    Chunk,
    UniformCommands,
    join,
    pack,
    pack_all,
)
from shardkit.operations.commands import Reply
from shardkit.routing.placement import slots_of

# By name and number of arguments: the joined command, and how many arguments all must share.
_JOINED = {
    ("GET", 2): ("MGET", 0),
    ("SET", 3): ("MSET", 0),
    ("HGET", 3): ("HMGET", 1),
    **{(name, 2): (name, 0) for name in ("DEL", "EXISTS", "TOUCH", "UNLINK")},
}
_NAME, _KEY = itemgetter(0), itemgetter(1)
_NAMES = frozenset(name for name, _ in _JOINED)
# By joined command: the arguments of each original that it takes.
_VALUES = {
    "MGET": itemgetter(slice(1, 2)),
    "MSET": itemgetter(1, 2),
    "HMGET": itemgetter(slice(2, 3)),
    **dict.fromkeys(("DEL", "EXISTS", "TOUCH", "UNLINK"), itemgetter(slice(1, 2))),
}
_MIN_JOINED = 12  # neighbours; or two, if there is nothing else
_MIN_COLUMNS = 128  # neighbours to be packed by column


class JoinedRun(NamedTuple):
    """A run of ``size`` replies of the batch; one reply of the server if they were joined."""

    size: int
    joined: bool = False


def pack_joined(
    commands: Sequence[Arguments], in_slots: bool
) -> tuple[list[Chunk], list[JoinedRun]]:
    """Pack commands into chunks, joined where possible; ``in_slots`` if keys must share a slot."""
    uniform = UniformCommands.of(commands) if len(commands) > 1 and not in_slots else None
    joined = None if uniform is None else join_all(uniform)
    if joined is not None:
        return joined
    packed: list[Chunk] = []
    runs: list[JoinedRun] = []
    done = 0
    for start, stop in _joinable(commands, in_slots):
        if done < start:
            packed += pack_all(commands[done:start])
            runs.append(JoinedRun(start - done))
        chunks, joined_runs = _join_run(commands[start:stop])
        packed += chunks
        runs += joined_runs
        done = stop
    if not done:  # nothing to join
        return pack_all(commands), [JoinedRun(len(commands))]
    if done < len(commands):
        packed += pack_all(commands[done:])
        runs.append(JoinedRun(len(commands) - done))
    return join([each.data for each in packed], [each.replies for each in packed]), runs


def _joinable(commands: Sequence[Arguments], in_slots: bool) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run that becomes one command.

    Nothing is joined where runs are short on average, because finding them would cost more.
    """
    names = list(map(_NAME, commands))
    bounds = _bounds(names)
    if _too_short(bounds):
        return
    for start, stop in pairwise(bounds):
        name = names[start]
        if type(name) is not str or name not in _NAMES:
            continue
        if stop - start < (_MIN_JOINED if len(bounds) > 2 else 2):
            continue
        within = _bounds_within(name, commands[start:stop], in_slots)
        if _too_short(within):
            continue
        for a, b in pairwise(within):
            known = (name, len(commands[start + a])) in _JOINED
            if known and b - a >= (_MIN_JOINED if len(within) > 2 else 2):
                yield start + a, start + b


def _bounds_within(name: str, commands: Sequence[Arguments], in_slots: bool) -> list[int]:
    """Return the bounds of joinable runs among commands of one name."""
    sizes = list(map(len, commands))
    uniform = sizes.count(sizes[0]) == len(sizes)
    if uniform and name != "HGET" and not in_slots:
        return [0, len(commands)]
    if 1 in sizes:  # nonsense, for the server to refuse
        return []
    columns: list[Sequence[Any]] = [] if uniform else [sizes]
    keys: list[Any] = list(map(_KEY, commands))
    kinds = set(map(type, keys))
    if name == "HGET":
        if len(kinds) > 1:  # 1 and 1.0 are equal, but not the same key
            return []
        columns.append(keys)
    if in_slots:
        if not kinds <= {str, bytes, int}:
            return []
        columns.append(slots_of(keys))
    return _bounds(*columns)


def _bounds(*columns: Sequence[Any]) -> list[int]:
    """Return where a value in any column differs from the one before; and both ends."""
    size = len(columns[0])
    cuts: set[int] = set()
    for column in columns:
        cuts.update(compress(range(1, size), map(ne, column, islice(column, 1, None))))
    return [0, *sorted(cuts), size]


def _too_short(bounds: Sequence[int]) -> bool:
    """Whether runs are short on average; not, if there is but one."""
    return not bounds or len(bounds) - 1 > max(1, bounds[-1] // _MIN_JOINED)


def _join_run(commands: Sequence[Arguments]) -> tuple[list[Chunk], list[JoinedRun]]:
    """Pack a run as one command; or several, where it is too large for a chunk."""
    name, shared = _JOINED[str(commands[0][0]), len(commands[0])]
    if len(commands) < _MIN_COLUMNS:
        values = chain.from_iterable(map(_VALUES[name], commands))
        data = pack((name, *commands[0][1 : 1 + shared], *values))
        if len(data) <= CHUNK_BYTES:
            return [Chunk(data, 1)], [JoinedRun(len(commands), joined=True)]
    uniform = UniformCommands.of(commands)
    if uniform is not None:
        return _join(name, shared, uniform)
    return pack_all(commands), [JoinedRun(len(commands))]


def split(replies: Iterable[Reply], runs: Sequence[JoinedRun]) -> list[Reply]:
    """Return the replies to the batch, given the replies to what was sent."""
    out: list[Reply] = []
    left = iter(replies)
    for run in runs:
        if not run.joined:
            out.extend(islice(left, run.size))
            continue
        reply = next(left)
        if isinstance(reply, list):  # MGET's or HMGET's
            out.extend(reply)
        elif isinstance(reply, int):  # a count
            out.append(reply)
            out.extend([0] * (run.size - 1))
        else:  # an error, or MSET's OK
            out.extend([reply] * run.size)
    return out


def join_all(uniform: UniformCommands) -> tuple[list[Chunk], list[JoinedRun]] | None:
    """Join uniform commands; None if they cannot be joined."""
    kind = joined_kind(uniform)
    return None if kind is None else _join(*kind, uniform)


def joined_kind(uniform: UniformCommands) -> tuple[str, int] | None:
    """Return what uniform commands become, and how many arguments they share; None if nothing."""
    kind = _JOINED.get((uniform.name, 1 + len(uniform.columns)))
    if kind is None or any(len(set(column)) > 1 for column in uniform.columns[: kind[1]]):
        return None
    return kind


def _join(name: str, shared: int, uniform: UniformCommands) -> tuple[list[Chunk], list[JoinedRun]]:
    chunks = uniform.chunks(joined=name, shared=shared)
    runs = [JoinedRun(chunk.replies, joined=True) for chunk in chunks]
    return [Chunk(chunk.data, 1) for chunk in chunks], runs
