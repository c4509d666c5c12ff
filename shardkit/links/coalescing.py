"""Coalescing: neighbouring commands that are alike become one. No I/O.

::

    GET a   GET b   GET c            ─►  MGET a b c
    SET a 1   SET b 2                ─►  MSET a 1 b 2
    HGET h x   HGET h y              ─►  HMGET h x y

A server looks up and calls a command once and not a thousand times, and says one header: a batch
takes half of the time. Only a `Coalesced` batch is treated so, because one thing changes: where a
GET finds a key of another type it answers WRONGTYPE, and MGET answers None.

Only neighbours are joined, in a shard's part of the batch, so that what stands between them keeps
its place: a GET after a SET of its key sees that. SETs with options stay what they are. On a
cluster, neighbours are joined if their keys share a slot.

A run says how the server's replies become those of the batch again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice, pairwise
from typing import Any, NamedTuple, TypeAlias

from shardkit.commands import Key, Reply
from shardkit.links.packing import CHUNK_BYTES, Alike, Arguments, Chunk, join, pack, pack_all
from shardkit.routing.placement import slot_of

# By name and number of arguments: what they become, and how many of the arguments all share.
_JOINED = {("GET", 2): ("MGET", 0), ("SET", 3): ("MSET", 0), ("HGET", 3): ("HMGET", 1)}
_NAMES = frozenset(name for name, _ in _JOINED)
_Kind: TypeAlias = tuple[str, int, tuple[type, Key] | None, int | None] | None
# So many or more are packed by column.
_FEW = 8


class Run(NamedTuple):
    """Replies that follow one another.

    Attributes:
        size: to how many commands of the batch; or of a transaction's, to how many replies.
        joined: whether those became one command, which has one reply.
    """

    size: int
    joined: bool = False


def pack_joined(commands: Sequence[Arguments], in_slots: bool) -> tuple[list[Chunk], list[Run]]:
    """Pack commands, joined where they can be, into chunks.

    Args:
        commands: their names and arguments.
        in_slots: whether only keys of one slot can be used together.

    Raises:
        InvalidArgumentError: an argument is neither text, bytes nor a number.
    """
    alike = Alike.of(commands) if len(commands) > 1 and not in_slots else None
    joined = None if alike is None else join_all(alike)
    if joined is not None:
        return joined
    kinds = [_kind(args, in_slots) for args in commands]
    if not any(a is not None and a == b for a, b in pairwise(kinds)):
        return pack_all(commands), [Run(len(commands))]
    packed: list[Chunk] = []
    runs: list[Run] = []
    start = 0
    for kind, group in groupby(kinds):
        stop = start + len(list(group))
        run, start = commands[start:stop], stop
        if kind is not None and 1 < len(run) < _FEW:
            data = _joined(kind[0], kind[1], run)
            if len(data) <= CHUNK_BYTES:
                packed.append(Chunk(data, 1))
                runs.append(Run(len(run), joined=True))
                continue
        alike = Alike.of(run) if kind is not None and len(run) > 1 else None
        if kind is not None and alike is not None:
            chunks, joined_runs = _join(kind[0], kind[1], alike)
            packed += chunks
            runs += joined_runs
        else:
            packed += [Chunk(pack(args), 1) for args in run]
            runs.append(Run(len(run)))
    return join([each.data for each in packed]), runs


def _joined(name: str, shared: int, commands: Sequence[Arguments]) -> bytes:
    """Pack a few commands as one."""
    values = (value for args in commands for value in args[1 + shared :])
    return pack((name, *commands[0][1 : 1 + shared], *values))


def split(replies: Iterable[Reply], runs: Sequence[Run]) -> list[Reply]:
    """Return the replies to the commands of the batch, of the replies to what was sent."""
    found: list[Reply] = []
    left = iter(replies)
    for run in runs:
        if not run.joined:
            found.extend(islice(left, run.size))
            continue
        reply = next(left)
        # Of MGET and HMGET each its own; an error, or the OK of MSET, is everybody's.
        found.extend(reply if isinstance(reply, list) else [reply] * run.size)
    return found


def _kind(args: Arguments, in_slots: bool) -> _Kind:
    """Return what a command is joined with: all of the same kind; None for nothing."""
    name = args[0]
    if type(name) is not str or name not in _NAMES:
        return None
    joined = _JOINED.get((name, len(args)))
    if joined is None:
        return None
    key: Any = args[1]
    if in_slots and not isinstance(key, str | bytes | int):
        return None
    slot = slot_of(key) if in_slots else None
    # With its type: 1 and 1.0 are equal, but not the same key.
    return (*joined, (type(key), key) if joined[1] else None, slot)


def join_all(alike: Alike) -> tuple[list[Chunk], list[Run]] | None:
    """Join commands that are alike; None if they cannot be."""
    kind = _JOINED.get((alike.name, 1 + len(alike.columns)))
    if kind is None or any(len(set(column)) > 1 for column in alike.columns[: kind[1]]):
        return None
    return _join(*kind, alike)


def _join(name: str, shared: int, alike: Alike) -> tuple[list[Chunk], list[Run]]:
    chunks = alike.chunks(joined=name, shared=shared)
    runs = [Run(chunk.replies, joined=True) for chunk in chunks]
    return [Chunk(chunk.data, 1) for chunk in chunks], runs
