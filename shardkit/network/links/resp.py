"""Packing commands as RESP, many at once, and joining neighbours. No I/O.

hiredis packs them. A bulk of rows is looked at as a whole first, by the types of its arguments, as
a look at each command would take longer than packing it.

Commands of one name and one number of arguments may become one::

    GET a   GET b   GET c            ─►  MGET a b c
    SET a 1   SET b 2                ─►  MSET a 1 b 2
    HGET h x   HGET h y              ─►  HMGET h x y
    DEL a   DEL b                    ─►  DEL a b          and so EXISTS, TOUCH and UNLINK

A batch takes half of the time. Only a ``coalesced`` batch is joined, because two things change: for
a key of another type MGET answers None, where GET answers WRONGTYPE; and of joined commands that
count keys, the first has the whole count and the others have 0.

They are joined if a shard's whole part of the batch is uniform; on a cluster, a node's, if it is of
one slot. SETs with options are not joined.
"""

from __future__ import annotations

import reprlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, filterfalse, islice, pairwise
from typing import Any, NamedTuple, TypeAlias

import hiredis

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import printable
from shardkit.operations.commands import Argument, Columns, Reply

CHUNK_BYTES = 256 * 1024
CHUNK_REQUESTS = 1000
_TRIED = 32  # commands whose size tells how many are joined
CHUNK_JOINED = 2000  # commands joined into one, which a server executes in 0.4 to 0.7 milliseconds

Arguments: TypeAlias = tuple[Argument, ...]
_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
_PLAIN = frozenset({str, bytes, float})  # what hiredis packs without Python code


class Chunk(NamedTuple):
    """Packed requests, and how many replies they will have."""

    data: bytes
    replies: int


def pack_command(args: tuple[Any, ...]) -> bytes:
    """Pack one command whose arguments have the right types; others raise what hiredis raises."""
    for argument in args:  # less time than all at once takes
        if type(argument) not in _PLAIN:
            return _pack(printable(args))
    return _pack(args)


def pack(args: Sequence[Argument]) -> bytes:
    """Pack one command as RESP.

    Raises:
        InvalidArgumentError: an argument is neither text, bytes nor a number.
    """
    try:
        return pack_command(tuple(args))
    except (TypeError, UnicodeEncodeError):
        wrong: Any = next(filterfalse(_can_be_sent, args))
        raise InvalidArgumentError(
            f"{args[0]!r}: argument {reprlib.repr(wrong)} is a {type(wrong).__name__} that cannot "
            "be sent",
            "give text, bytes or a number",
        ) from None


def _can_be_sent(argument: Any) -> bool:
    try:
        pack_command(("", argument))
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def pack_rows(rows: Sequence[Arguments]) -> list[bytes]:
    """Pack commands, each by itself; raises what `pack` does."""
    plain = set(map(type, chain.from_iterable(rows))) <= _PLAIN
    try:
        return list(map(_pack if plain else pack_command, rows))
    except (TypeError, UnicodeEncodeError):
        return list(map(pack, rows))


def pack_all(commands: Sequence[Arguments]) -> list[Chunk]:
    """Pack commands with one reply each into chunks; raises what `pack` does."""
    return join(pack_rows(commands))


def join(packed: Sequence[bytes], counts: Sequence[int] | None = None) -> list[Chunk]:
    """Join packed requests into chunks; ``counts`` are their numbers of replies (None for one).

    They are even: a small one at the end would be an exchange for itself.
    """
    sizes = list(map(len, packed))
    number, total = len(sizes) if counts is None else sum(counts), sum(sizes)
    if number <= CHUNK_REQUESTS and total <= CHUNK_BYTES:
        return [Chunk(b"".join(packed), number)]
    ends = [0, *accumulate(sizes)]
    replies = range(len(ends)) if counts is None else [0, *accumulate(counts)]
    largest = min(CHUNK_BYTES, total // -(-total // CHUNK_BYTES) + max(sizes))
    most = -(-number // -(-number // CHUNK_REQUESTS))
    chunks, start = [], 0
    while start < len(sizes):
        fitting = (
            bisect_right(ends, ends[start] + largest),
            bisect_right(replies, replies[start] + most),
        )
        end = max(start + 1, min(fitting) - 1)
        chunks.append(Chunk(b"".join(packed[start:end]), replies[end] - replies[start]))
        start = end
    return chunks


# By name and number of arguments: the joined command, and how many arguments all must share.
_JOINED = {
    ("GET", 2): ("MGET", 0),
    ("SET", 3): ("MSET", 0),
    ("HGET", 3): ("HMGET", 1),
    **{(name, 2): (name, 0) for name in ("DEL", "EXISTS", "TOUCH", "UNLINK")},
}


JoinedRun: TypeAlias = int
"""For how many commands of the batch there is one reply; negative if each has its own."""


class Joined(NamedTuple):
    """Uniform commands that can become one, or several of some of them each."""

    name: str  # of the joined command
    shared: Sequence[Argument]  # its first arguments, which all have in common
    values: Sequence[Argument]  # their other arguments, one command after the other
    width: int  # how many of these each command has

    @classmethod
    def of(cls, batch: Columns) -> Joined | None:
        """Return the commands as those of a joined one; None if they cannot be joined."""
        columns: list[Sequence[Argument]] = [batch.keys, *batch.more]
        joined, shared = _JOINED.get((batch.name, 1 + len(columns)), ("", 0))
        if not joined or any(column.count(column[0]) < len(column) for column in columns[:shared]):
            return None
        first, rest = [column[0] for column in columns[:shared]], columns[shared:]
        values = rest[0] if len(rest) == 1 else list(chain.from_iterable(zip(*rest, strict=True)))
        return cls(joined, first, values, len(rest))

    def packed(self, starts: Sequence[int]) -> list[bytes]:
        """Pack the commands from each of the positions to the next as one."""
        name, shared, values, width = self
        ends = [width * start for start in starts]
        return pack_rows([(name, *shared, *values[a:b]) for a, b in pairwise(ends)])

    def chunks(self) -> tuple[list[Chunk], list[JoinedRun]]:
        """Pack the commands into chunks; return also for how many commands each is."""
        count = len(self.values) // self.width
        most = CHUNK_JOINED
        if count > _TRIED:
            [tried] = self.packed([0, _TRIED])
            most = min(most, _TRIED * CHUNK_BYTES // len(tried) or 1)
        even = -(-count // -(-count // most))
        left, chunks, runs = [*pairwise([*range(0, count, even), count])], list[Chunk](), []
        while left:
            start, end = left.pop(0)
            [data] = self.packed([start, end])
            if len(data) > CHUNK_BYTES and end - start > 1:
                middle = (start + end) // 2
                left = [(start, middle), (middle, end), *left]
            else:
                chunks.append(Chunk(data, 1))
                runs.append(end - start)
        return chunks, runs


def columns_of(rows: Sequence[Arguments]) -> Columns | None:
    """Return commands by column; None if their names or numbers of arguments differ."""
    width, name, count = len(rows[0]), rows[0][0], len(rows)
    if width < 2 or type(name) is not str or list(map(len, rows)).count(width) < count:
        return None
    values: list[Any] = list(chain.from_iterable(rows))
    if values[::width].count(name) < count:
        return None
    return Columns("", name, *(values[n::width] for n in range(1, width)))


def split(replies: Sequence[Reply], runs: Sequence[JoinedRun]) -> list[Reply]:
    """Return the replies to the batch, given those to what was sent; none if they cannot be."""
    out: list[Reply] = []
    left = iter(replies)
    for size in runs:
        if size < 0:
            out.extend(islice(left, -size))
            continue
        reply = next(left)
        if isinstance(reply, list):  # MGET's or HMGET's
            if len(reply) != size:
                return []
            out.extend(reply)
        elif isinstance(reply, int):  # a count
            out.append(reply)
            out.extend([0] * (size - 1))
        else:  # an error, or MSET's OK
            out.extend([reply] * size)
    return out
