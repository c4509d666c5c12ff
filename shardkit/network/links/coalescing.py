"""Coalescing: uniform neighbouring commands become one. No I/O.

::

    GET a   GET b   GET c            ─►  MGET a b c
    SET a 1   SET b 2                ─►  MSET a 1 b 2
    HGET h x   HGET h y              ─►  HMGET h x y
    DEL a   DEL b                    ─►  DEL a b          and so EXISTS, TOUCH and UNLINK

A server looks up and calls a command once and not a thousand times, and says one header: a batch
takes half of the time. Only a `Coalesced` batch is treated so, because two things change: where a
GET finds a key of another type it answers WRONGTYPE, and MGET answers None; and of joined commands
that count keys, the first has the count of all and the others have 0.

Only neighbours are joined, in a shard's part of the batch, so that what stands between them keeps
its place: a GET after a SET of its key sees that. SETs with options stay what they are. On a
cluster, neighbours are joined if their keys share a slot.

Twelve neighbours or more are joined, or any number if there is nothing else: below that, taking
them together costs more in Python than it saves. So a batch of all kinds of commands costs what it
costs without, or little more (10,000 commands, measured: runs of 2 to 8 took 3 to 11% more, of 12
and 16 4% less, of 50 a quarter less).

A run says how the server's replies become those of the batch again.
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

# By name and number of arguments: what they become, and how many of the arguments all share.
_JOINED = {
    ("GET", 2): ("MGET", 0),
    ("SET", 3): ("MSET", 0),
    ("HGET", 3): ("HMGET", 1),
    **{(name, 2): (name, 0) for name in ("DEL", "EXISTS", "TOUCH", "UNLINK")},
}
_NAME, _KEY = itemgetter(0), itemgetter(1)
_NAMES = frozenset(name for name, _ in _JOINED)
# Of one of them: what the joined command says of it.
_VALUES = {
    "MGET": itemgetter(slice(1, 2)),
    "MSET": itemgetter(1, 2),
    "HMGET": itemgetter(slice(2, 3)),
    **dict.fromkeys(("DEL", "EXISTS", "TOUCH", "UNLINK"), itemgetter(slice(1, 2))),
}
# So many or more neighbours are joined; or two, if there is nothing else.
_MIN_JOINED = 12
# So many or more are packed by column.
_MIN_COLUMNS = 128


class JoinedRun(NamedTuple):
    """Replies that follow one another.

    Attributes:
        size: to how many commands of the batch; or of a transaction's, to how many replies.
        joined: whether those became one command, which has one reply.
    """

    size: int
    joined: bool = False


def pack_joined(
    commands: Sequence[Arguments], in_slots: bool
) -> tuple[list[Chunk], list[JoinedRun]]:
    """Pack commands, joined where they can be, into chunks.

    Args:
        commands: their names and arguments.
        in_slots: whether only keys of one slot can be used together.

    Raises:
        InvalidArgumentError: an argument is neither text, bytes nor a number.
    """
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
    """Yield from where to where neighbours become one.

    Steps of Python are taken for each run and not for each command; where runs are short on average
    there are none, as finding them would cost more than it saves.
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
    """Return where, among commands of one name, those end that can become one."""
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
    """Return where values, in any of the columns, differ from those before; and both ends."""
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
    """Return the replies to the commands of the batch, of the replies to what was sent."""
    found: list[Reply] = []
    left = iter(replies)
    for run in runs:
        if not run.joined:
            found.extend(islice(left, run.size))
            continue
        reply = next(left)
        # Of MGET and HMGET each its own; a count is said once; an error, or MSET's OK, for all.
        if isinstance(reply, list):
            found.extend(reply)
        elif isinstance(reply, int):
            found.append(reply)
            found.extend([0] * (run.size - 1))
        else:
            found.extend([reply] * run.size)
    return found


def join_all(uniform: UniformCommands) -> tuple[list[Chunk], list[JoinedRun]] | None:
    """Join uniform commands; None if they cannot be joined."""
    kind = _JOINED.get((uniform.name, 1 + len(uniform.columns)))
    if kind is None or any(len(set(column)) > 1 for column in uniform.columns[: kind[1]]):
        return None
    return _join(*kind, uniform)


def _join(name: str, shared: int, uniform: UniformCommands) -> tuple[list[Chunk], list[JoinedRun]]:
    chunks = uniform.chunks(joined=name, shared=shared)
    runs = [JoinedRun(chunk.replies, joined=True) for chunk in chunks]
    return [Chunk(chunk.data, 1) for chunk in chunks], runs
