"""Packing commands as RESP, many at once if they are uniform, and joining neighbours. No I/O.

::

    GET a      columns   GET | a          b"*2␍␊$3␍␊GET␍␊$1␍␊a␍␊"
    GET bc                   | bc         b"*2␍␊$3␍␊GET␍␊$2␍␊bc␍␊"
    GET d                    | d          b"*2␍␊$3␍␊GET␍␊$1␍␊d␍␊"

Bulk commands of one name and one number of arguments are packed column by column: one `map` encodes
each column, and one join makes the chunk. That takes 80 nanoseconds for a GET, where hiredis takes
300 (measured, CPython 3.11). All others go through hiredis one by one.

Uniform neighbours may become one command::

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

import reprlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, compress, filterfalse, islice, pairwise
from operator import add, itemgetter, ne, sub
from typing import Any, TypeAlias

import hiredis

from shardkit.errors import InvalidArgumentError
from shardkit.network.connections.framing import EXEC, MULTI
from shardkit.operations.arguments import PRINTABLE, require_printable
from shardkit.operations.commands import Argument, Reply
from shardkit.routing.placement import slots_of

CHUNK_BYTES = 256 * 1024
CHUNK_REQUESTS = 1000
CHUNK_JOINED = 2000  # commands joined into one, which a server executes in 0.4 to 0.7 milliseconds
MIN_BY_COLUMN = 32  # fewer values are packed at once
MIN_UNIFORM = 4  # fewer commands are packed one by one, which costs less
_MAX_COLUMNS = 16  # with more arguments, columns save little

Arguments: TypeAlias = tuple[Argument, ...]
_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command

_LENGTHS = [b"\r\n$%d\r\n" % length for length in range(1024)]


@dataclass(slots=True)
class Chunk:
    """Packed requests, and how many replies they will have."""

    data: bytes
    replies: int


def pack_command(args: tuple[Any, ...]) -> bytes:
    """Pack one command whose arguments have the right types; others raise what hiredis raises."""
    for argument in args:  # less time than all at once takes
        if type(argument) not in PRINTABLE:
            require_printable(args)
            break
    return _pack(args)


def pack(args: Sequence[Argument]) -> bytes:
    """Pack one command as RESP.

    Raises:
        InvalidArgumentError: an argument is neither text, bytes nor a number.
    """
    try:
        return pack_command(tuple(args))
    except (TypeError, UnicodeEncodeError):
        given: Sequence[Any] = args
        if any(isinstance(argument, bytearray | memoryview) for argument in given):
            return pack([bytes(a) if isinstance(a, bytearray | memoryview) else a for a in given])
        wrong = next(filterfalse(_can_be_sent, given))
        raise InvalidArgumentError(
            f"{args[0]!r}: argument {reprlib.repr(wrong)} is a {type(wrong).__name__} that cannot "
            "be sent",
            "give text, bytes or a number",
        ) from None


def _can_be_sent(argument: Any) -> bool:
    try:
        pack_command((argument,))
    except (TypeError, UnicodeEncodeError):
        return False
    return True


def pack_all(commands: Sequence[Arguments]) -> list[Chunk]:
    """Pack commands with one reply each into chunks; raises what `pack` does."""
    if len(commands) == 1:
        return [Chunk(pack(commands[0]), 1)]
    uniform = UniformCommands.of(commands) if len(commands) >= MIN_UNIFORM else None
    if uniform is not None:
        return uniform.chunks()
    try:
        return join(list(map(pack_command, commands)))
    except (TypeError, UnicodeEncodeError):
        return join([pack(args) for args in commands])


def join(packed: Sequence[bytes], counts: Sequence[int] | None = None) -> list[Chunk]:
    """Join packed requests into chunks; ``counts`` are their numbers of replies (None for one)."""
    sizes = list(map(len, packed))
    if len(sizes) <= CHUNK_REQUESTS and sum(sizes) <= CHUNK_BYTES:
        return [Chunk(b"".join(packed), len(sizes) if counts is None else sum(counts))]
    return [
        Chunk(b"".join(packed[a:b]), b - a if counts is None else sum(counts[a:b]))
        for a, b in _cuts(sizes, CHUNK_REQUESTS)
    ]


def _cuts(sizes: Sequence[int], requests: int) -> list[tuple[int, int]]:
    total = sum(sizes)
    if len(sizes) <= requests and total <= CHUNK_BYTES:
        return [(0, len(sizes))]
    # Even chunks: a small one at the end would be an exchange for itself.
    most = min(CHUNK_BYTES, total // -(-total // CHUNK_BYTES) + max(sizes))
    ends = list(accumulate(sizes))
    cuts = [0]
    while cuts[-1] < len(sizes):
        start = cuts[-1]
        end = (ends[start - 1] if start else 0) + most
        fitting = bisect_right(ends, end, start, min(start + requests, len(sizes)))
        cuts.append(max(start + 1, fitting))
    return list(pairwise(cuts))


@dataclass(slots=True)
class UniformCommands:
    """Commands of one name and one number of arguments; a column has one argument of all."""

    name: str
    columns: Sequence[Sequence[bytes]]
    _lengths: list[list[int]] = field(default_factory=list)

    @property
    def lengths(self) -> list[list[int]]:
        """The lengths of the arguments, by column; computed once, as that takes a while."""
        if not self._lengths:
            self._lengths = [list(map(len, column)) for column in self.columns]
        return self._lengths

    @classmethod
    def of(cls, commands: Sequence[Arguments]) -> UniformCommands | None:
        """Return the commands by column; None if they are not uniform, or cannot be sent."""
        first = commands[0]
        width, name = len(first), first[0]
        if not 2 <= width <= _MAX_COLUMNS or type(name) is not str:
            return None
        if list(map(len, commands)).count(width) < len(commands):
            return None
        flat = list(chain.from_iterable(commands))
        if flat[::width].count(name) < len(commands):
            return None
        return cls.of_columns(name, [flat[n::width] for n in range(1, width)])

    @classmethod
    def of_columns(cls, name: str, values: Sequence[Sequence[Any]]) -> UniformCommands | None:
        """Return commands that are given by column; None if they cannot be sent so."""
        columns = []
        for column in values:
            encoded = _encoded(column)
            if encoded is None:
                return None
            columns.append(encoded)
        return cls(name, columns)

    def chunks(self, joined: str = "", shared: int = 0) -> list[Chunk]:
        """Pack the commands into chunks.

        Each chunk is one ``joined`` command if that is given; then the first ``shared`` arguments,
        which are the same in all commands, are sent once.
        """
        columns = self.columns[shared:]
        count = len(columns[0])
        if joined and count < MIN_BY_COLUMN:
            first = [column[0] for column in self.columns[:shared]]
            values = (
                columns[0] if len(columns) == 1 else chain.from_iterable(zip(*columns, strict=True))
            )
            data = pack_command((joined, *first, *values))
            if len(data) <= CHUNK_BYTES:
                return [Chunk(data, count)]
        lengths = self.lengths[shared:]
        name = (joined or self.name).encode()
        head = b"\r\n*%d\r\n$%d\r\n%b" % (1 + len(columns), len(name), name)
        cuts = self._cuts(lengths, joined)
        if not joined:
            return [
                Chunk(b"".join(_interleaved(head, columns, lengths, a, b))[2:], b - a)
                for a, b in cuts
            ]
        first = [name, *(column[0] for column in self.columns[:shared])]
        said = b"".join(b"\r\n$%d\r\n%b" % (len(value), value) for value in first)
        return [
            Chunk(
                b"*%d" % (len(first) + (b - a) * len(columns))
                + said
                + b"".join(_interleaved(b"", columns, lengths, a, b)),
                b - a,
            )
            for a, b in cuts
        ]

    def _cuts(
        self, lengths: Sequence[list[int]], joined: str, starts: Sequence[int] = ()
    ) -> list[tuple[int, int]]:
        """Return where chunks start and end; with ``starts``, only there."""
        # A length's own digits are taken for twelve bytes with what surrounds them: enough for all.
        fixed = 12 * len(lengths) + (0 if joined else 20 + len(self.name))
        count = len(lengths[0])
        requests = CHUNK_REQUESTS if not joined else count if starts else CHUNK_JOINED
        if count <= requests and sum(map(sum, lengths)) + fixed * count <= CHUNK_BYTES:
            return [(0, count)]
        sizes = lengths[0]
        for more in lengths[1:]:
            sizes = list(map(add, sizes, more))
        if starts:
            ends, cuts = [0, *accumulate(size + fixed for size in sizes)], [0]
            for a, b in pairwise(starts):
                if b - cuts[-1] > requests or ends[b] - ends[cuts[-1]] > CHUNK_BYTES:
                    cuts += [a] if a > cuts[-1] else []
            return list(pairwise([*cuts, count]))
        return _cuts([size + fixed for size in sizes], requests)

    def in_parts(
        self,
        starts: Sequence[int],
        selects: Sequence[bytes],
        joined: str = "",
        shared: int = 0,
        wrapped: bool = False,
    ) -> tuple[list[Chunk], list[int]] | None:
        """Pack commands for several databases; return chunks, and the replies up to each one's end.

        ``starts`` is where each database's commands start, and the end of all. If ``wrapped``, each
        database's are a transaction; if ``joined``, one command, see `chunks`. Return None if one
        of these is too large.
        """
        if joined and starts[-1] > CHUNK_JOINED < max(map(sub, starts[1:], starts)):
            return None
        begin, end, added = (MULTI, EXEC, 3) if wrapped else (b"", b"", 1)
        columns, lengths = self.columns[shared:], self.lengths[shared:]
        first = [column[0] for column in self.columns[:shared]]
        words = [(joined or self.name).encode(), *first]
        head = b"".join([b"\r\n$%d\r\n%b" % (len(word), word) for word in words])
        row = b"" if joined else b"\r\n*%d%b" % (1 + len(columns), head)
        stride, width = bool(row) + 2 * len(columns), len(columns)
        between, chunks, part = b"\r\n" + end + begin, [], 0
        # Whoever sends a chunk may be cancelled before the next one: no transaction may be open.
        for a, b in self._cuts(lengths, joined, starts if wrapped or joined else ()):
            pieces = _interleaved(row, columns, lengths, a, b)
            last = bisect_left(starts, b, part)
            own = zip(pairwise(starts[part : last + 1]), selects[part:last], strict=True)
            for (start, stop), select in own:
                at = stride * (start - a)
                if row:
                    pieces[at] = between + select[:-2] + row
                else:
                    count = len(words) + width * (stop - start)
                    pieces[at] = b"%b%b*%d%b%b" % (between, select, count, head, pieces[at])
            pieces[0] = begin + pieces[0][len(between) :]
            pieces[-1] += end
            data = b"".join(pieces)
            if joined and last - part == 1 and len(data) > CHUNK_BYTES:
                return None
            replies = (last - part) * (added + 1) if joined else b - a + (last - part) * added
            chunks.append(Chunk(data, replies))
            part = last
        if joined:
            return chunks, list(range(added + 1, (added + 1) * len(starts), added + 1))
        return chunks, list(map(add, starts[1:], range(added, added * len(starts), added)))

    def largest(self, starts: Sequence[int]) -> int:
        """Return about how many bytes the commands of the largest part have."""
        total = sum(map(sum, self.lengths))
        if total <= CHUNK_BYTES:
            return total
        return max(sum(sum(sizes[a:b]) for sizes in self.lengths) for a, b in pairwise(starts))


def _interleaved(
    head: bytes, columns: Sequence[Sequence[bytes]], lengths: Sequence[list[int]], a: int, b: int
) -> list[bytes]:
    """Return rows ``a`` to ``b`` of the columns, each value with its length, each row with a head.

    Each piece but values begins with the end of the previous one.
    """
    first = 1 if head else 0
    stride = first + 2 * len(columns)
    pieces: list[bytes] = [head] * (stride * (b - a) + 1)
    for n, (column, sizes) in enumerate(zip(columns, lengths, strict=True)):
        pieces[first + 2 * n : -1 : stride] = _prefixes(sizes[a:b])
        pieces[first + 2 * n + 1 : -1 : stride] = column[a:b]
    pieces[-1] = b"\r\n"
    return pieces


def _prefixes(lengths: list[int]) -> list[bytes]:
    try:
        return list(map(_LENGTHS.__getitem__, lengths))
    except IndexError:
        return [b"\r\n$%d\r\n" % length for length in lengths]


def _encoded(values: Sequence[Any]) -> Sequence[bytes] | None:
    """Return values as they are sent; None if that is left to hiredis.

    Raises:
        InvalidArgumentError: an integer has too many digits, at which hiredis would crash.
    """
    kinds = set(map(type, values))
    try:
        if kinds == {bytes}:
            return values
        if kinds == {str}:
            return list(map(str.encode, values))
        if kinds == {int}:
            return list(map(b"%d".__mod__, values))
    except UnicodeEncodeError:  # lone surrogates
        pass
    except ValueError as error:
        raise InvalidArgumentError(f"an integer cannot be sent: {error}", "give text") from None
    return None


# By name and number of arguments: the joined command, and how many arguments all must share.
_JOINED = {
    ("GET", 2): ("MGET", 0),
    ("SET", 3): ("MSET", 0),
    ("HGET", 3): ("HMGET", 1),
    **{(name, 2): (name, 0) for name in ("DEL", "EXISTS", "TOUCH", "UNLINK")},
}
_NAME, _KEY = itemgetter(0), itemgetter(1)
_MIN_JOINED = 12  # neighbours; or two, if there is nothing else


JoinedRun: TypeAlias = int
"""For how many commands of the batch there is one reply; negative if each has its own."""


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
            runs.append(done - start)
        chunks, joined_runs = _join_run(commands[start:stop])
        packed += chunks
        runs += joined_runs
        done = stop
    if not done:  # nothing to join
        return pack_all(commands), [-len(commands)]
    if done < len(commands):
        packed += pack_all(commands[done:])
        runs.append(done - len(commands))
    return join([each.data for each in packed], [each.replies for each in packed]), runs


def _joinable(commands: Sequence[Arguments], in_slots: bool) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run that becomes one command.

    Nothing is joined where runs are short on average, because finding them would cost more.
    """
    names, sizes = list(map(_NAME, commands)), list(map(len, commands))
    columns: list[Sequence[Any]] = [names, sizes]
    if _too_short(_bounds(*columns)) or 1 in sizes:  # nonsense, for the server to refuse
        return
    keys: list[Any] = list(map(_KEY, commands))
    if "HGET" in names:  # 1 and 1.0 are equal, but not the same key
        columns.append(
            [(type(k), k) if n == "HGET" else n for n, k in zip(names, keys, strict=True)]
        )
    if in_slots:
        if not set(map(type, keys)) <= {str, bytes, int}:
            return
        columns.append(slots_of(keys))
    bounds = _bounds(*columns)
    if _too_short(bounds):
        return
    for a, b in pairwise(bounds):
        known = type(names[a]) is str and (names[a], sizes[a]) in _JOINED
        if known and b - a >= (_MIN_JOINED if len(bounds) > 2 else 2):
            yield a, b


def _bounds(*columns: Sequence[Any]) -> list[int]:
    """Return where a value in any column differs from the one before; and both ends."""
    size = len(columns[0])
    cuts: set[int] = set()
    for column in columns:
        cuts.update(compress(range(1, size), map(ne, column, islice(column, 1, None))))
    return [0, *sorted(cuts), size]


def _too_short(bounds: Sequence[int]) -> bool:
    """Whether runs are short on average; not, if there is but one."""
    return len(bounds) - 1 > max(1, bounds[-1] // _MIN_JOINED)


def _join_run(commands: Sequence[Arguments]) -> tuple[list[Chunk], list[JoinedRun]]:
    """Pack a run as one command; or several, where it is too large for a chunk."""
    name, shared = _JOINED[str(commands[0][0]), len(commands[0])]
    uniform = UniformCommands.of(commands)
    if uniform is not None:
        return _join(name, shared, uniform)
    values = chain.from_iterable(row[1 + shared :] for row in commands)
    data = pack((name, *commands[0][1 : 1 + shared], *values))
    if len(data) <= CHUNK_BYTES and len(commands) <= CHUNK_JOINED:
        return [Chunk(data, 1)], [len(commands)]
    return pack_all(commands), [-len(commands)]


def split(replies: Sequence[Reply], runs: Sequence[JoinedRun]) -> list[Reply]:
    """Return the replies to the batch, given the replies to what was sent."""
    if set(map(type, replies)) == {list} and min(runs) > 0:  # MGET's or HMGET's
        return list(chain.from_iterable(replies))
    out: list[Reply] = []
    left = iter(replies)
    for size in runs:
        if size < 0:
            out.extend(islice(left, -size))
            continue
        reply = next(left)
        if isinstance(reply, list):  # MGET's or HMGET's
            out.extend(reply)
        elif isinstance(reply, int):  # a count
            out.append(reply)
            out.extend([0] * (size - 1))
        else:  # an error, or MSET's OK
            out.extend([reply] * size)
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
    runs = [chunk.replies for chunk in chunks]
    return [Chunk(chunk.data, 1) for chunk in chunks], runs
