"""A very long LIST in parts, on the server of its name.

LPUSH fills the first part and then opens the one before it, RPUSH the last and then the one after
it; a pop that empties an end part moves that end inward. So parts between the ends are full at all
times, and both the length and the part of an index are computed, not searched for (see
`list.scripts`; docs/lists.md shows the keys and what they take). All keys have the list's
``{tag}``, so they live on one server, and each operation is one script there. Parts are not among a
script's KEYS, because only the ends say which exist.

Waiting. ``blpop`` tries to pop; if the list is empty, it blocks on the signal and tries again. A
push onto an empty list puts a token there. The consumer that receives it pops, and puts the token
back for the next one if values are left; a pop that leaves none removes it. So there is at most one
token, and while the list has values, either there is a token or a consumer is about to pop. Tokens
are never among the values. The token is lost if a consumer dies between its token and its pop. So
no consumer blocks for longer than a second without trying, and one that then pops a value passes a
token on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from typing import Any, ClassVar, Generic

from shardkit.errors import (
    CrossShardError,
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    counted,
)
from shardkit.operations.arguments import Seconds, shown
from shardkit.operations.cancellation import completed
from shardkit.operations.commands import Argument, Command, Locate, Reply
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.structures.base.arguments import (
    LONGEST_EXPIRY,
    check_integer,
    check_name,
    check_seconds,
    check_some,
)
from shardkit.structures.base.check import Damage
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.members import M, Place, Values, find
from shardkit.structures.base.parameters import ChangeScope, open_all
from shardkit.structures.base.partitioned import (
    ExpirableStructure,
    check_parameters,
    restore_parameters,
)
from shardkit.structures.base.server_clock import ServerClock
from shardkit.structures.base.writes import unstable
from shardkit.structures.list.scripts import (
    ATTEMPTS,
    ListScripts,
    check_list,
    rebuild_list,
    restore_ends,
)

DEFAULT_PART_SIZE = 1000
MOST_PART_SIZE = 10_000
VALUES_AT_ONCE = 10_000
_MOST_SEARCHED = 100_000  # parts, for a value that cannot be read
VALUES_PER_PAGE = 1000
MOST_INDEX = 2**53 - 1  # Lua's integers
LONGEST_BLOCK, SHORTEST_BLOCK = 1.0, 0.001  # seconds


class ShardedList(ExpirableStructure[Face], Generic[Face, M]):
    """A LIST in parts, on one server. Made by ``kit.list``.

    Indexes count from 0 on the left, from -1 on the right. Values pushed to a list that expires
    expire with it. A change of many parts takes several exchanges and is atomic: other clients
    complete it before they use the list (`list.scripts`). `delete`, `expire` and similar methods
    take one exchange for 1,000 parts.

    Args:
        driver, component: see `shardkit.operations.Structure`; it lives on the shard of its name.
        name: its name. Its keys begin with it if it has a ``{tag}``, else with ``{name}``.
        part_size: how many values a part holds, 1 to 10,000.
        values: int, str or bytes: the type in which its values are returned.
        clock: tells the time during waits.

    Errors and the first call: see `shardkit.structures`.
    """

    deferred: DeferredFace[ShardedList[Deferred, M]]

    kind: ClassVar[str] = "list"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        part_size: int = DEFAULT_PART_SIZE,
        values: type[M] = str,  # type: ignore[assignment]  # kit.list has the exact overloads
        clock: ServerClock | None = None,
    ) -> None:
        prefix = tagged(name)
        check_integer(prefix, "part_size", part_size, 1, MOST_PART_SIZE)
        self._values: Values[M] = Values(values, prefix, self._find)
        parameters = {"part_size": part_size, "values": values.__name__}
        super().__init__(driver, component, prefix, parameters)
        self.part_size = part_size
        self._scripts = ListScripts(component, prefix, part_size, self.meta)
        self.meta.data_keys = lambda: [
            (component, key) for key in (self._scripts.keys[1], self.part_key(0))
        ]
        self._clock = clock or ServerClock()

    # ---- both ends

    @operation
    def lpush(self, *values: Argument) -> Operation[int]:
        """Push values on the left, one after the other, atomically; return the new length.

        ``values`` are text, bytes or numbers, as the list's ``values`` says; 1 to 10,000. Cost: one
        exchange. O(1) per value.
        """
        return (yield from self._push("LPUSH", values))

    @operation
    def rpush(self, *values: Argument) -> Operation[int]:
        """Push values on the right; see `lpush`."""
        return (yield from self._push("RPUSH", values))

    @operation
    def lpush_many(self, values: Iterable[Argument]) -> Operation[int]:
        """Push any number of values on the left, 10,000 per exchange; return the length then.

        Each 10,000 are pushed atomically, all of them are not.
        """
        return (yield from self._push_many("LPUSH", values))

    @operation
    def rpush_many(self, values: Iterable[Argument]) -> Operation[int]:
        """Push any number of values on the right; see `lpush_many`."""
        return (yield from self._push_many("RPUSH", values))

    @operation
    def lpop(self, count: int | None = None) -> Operation[Any]:
        """Remove and return the first value; None if the list is empty.

        If the calling task is cancelled, the popped values are put back. If the connection breaks,
        or the process dies, after the server has popped, the values are lost, as with a plain LPOP:
        to prevent that, use `lmove`.

        Args:
            count: return a list of at most ``count`` values, 0 to 10,000, popped atomically, as
                single pops would return them.

        Cost: one exchange, O(count).
        """
        return (yield from self._pop("LPOP", count))

    @operation
    def rpop(self, count: int | None = None) -> Operation[Any]:
        """Remove and return the last value, or the last values, last first; see `lpop`."""
        return (yield from self._pop("RPOP", count))

    @operation
    def blpop(self, timeout: Seconds | None = 0) -> Operation[M | None]:
        """Remove and return the first value; wait for one if the list is empty.

        Unlike redis-py's, which waits for several lists, it returns the value without the key. If
        the server fails, it does not wait for it to recover: call again.

        Args:
            timeout: in seconds; 0 or None to wait for ever. After it, None is returned.

        Cost: one exchange if there is a value. While it waits, a connection of its own, and two
        exchanges a second.
        """
        return (yield from self._wait(lambda: self._pop_values("LPOP", 1, waits=True), timeout))

    @operation
    def brpop(self, timeout: Seconds | None = 0) -> Operation[M | None]:
        """Remove and return the last value; wait for one if the list is empty; see `blpop`."""
        return (yield from self._wait(lambda: self._pop_values("RPOP", 1, waits=True), timeout))

    @operation
    def lmove(
        self, destination: ShardedList[Any, M], src: str = "LEFT", dest: str = "RIGHT"
    ) -> Operation[M | None]:
        """Pop a value and push it onto another list, atomically; return it, None if there is none.

        The value is always in one of the two, whatever fails: use it for work in progress.

        Args:
            destination: a list of the same values on the same server (else CrossShardError): with
                the same tag, ``{jobs}:todo`` and ``{jobs}:doing``. May be this one.
            src: where it is popped, LEFT or RIGHT.
            dest: where it is pushed.

        Cost: one exchange, O(1).
        """
        values = yield from self._move(destination, src, dest)
        return values[0] if values else None

    @operation
    def blmove(
        self,
        destination: ShardedList[Any, M],
        timeout: Seconds | None = 0,
        src: str = "LEFT",
        dest: str = "RIGHT",
    ) -> Operation[M | None]:
        """Move a value, and wait for one if the list is empty; see `lmove` and `blpop`."""
        return (
            yield from self._wait(lambda: self._move(destination, src, dest, waits=True), timeout)
        )

    @operation
    def llen(self) -> Operation[int]:
        """Return the number of values. Cost: one exchange, O(1)."""
        return (yield from self._scripts.length())

    @operation
    def lindex(self, index: int) -> Operation[M | None]:
        """Return the value at an index; None if there is none.

        Cost: one exchange; one or two more if that end of the list has changed since this object
        last read it. O(part_size), wherever in the list it is.
        """
        self._check_index("index", index)
        value = yield from self._scripts.value_at(index)
        return None if value is None else self._values.decode(value)

    @operation
    def lrange(self, start: int, end: int) -> Operation[list[M]]:
        """Return the values from ``start`` to ``end``, both included, read atomically.

        What lies beyond an end is cut off, as with LRANGE. More than 10,000 values are refused; see
        `items`. Cost: one exchange, O(part_size) and the values.
        """
        self._check_index("start", start)
        self._check_index("end", end)
        values = yield from self._scripts.read("range", start, end, VALUES_AT_ONCE)
        if isinstance(values, int):
            raise InvalidArgumentError(
                f"{self.name}: lrange({start}, {end}) would return {values:,} values",
                f"read at most {VALUES_AT_ONCE:,} at a time, or iterate over items()",
            )
        return [value for part in values for value in self._page(part)]

    @operation
    def lpos(
        self,
        value: Argument,
        rank: int | None = None,
        count: int | None = None,
        maxlen: int | None = None,
    ) -> Operation[Any]:
        """Return the index of a value.

        Args:
            value: the value.
            rank: which occurrence to begin with: 1 is the first, -1 the last.
            count: how many indexes to return, in a list; 0 for all.
            maxlen: how many values to compare at most; 0 for all.

        Returns:
            The index, None if there is none; with ``count`` a list of indexes.

        Other clients can write between two steps. The indexes are those at the last step, so pushes
        and pops at the ends are taken into account. It ends with the parts that existed at the
        start. If other clients insert or remove values in the middle (`linsert`, `lrem`), an index
        may be wrong, or a value missed.

        Cost: an exchange, and an atomic step, for every 20,000 values or 500 parts. O(n).
        """
        first = 1 if rank is None else rank
        self._check_index("rank", first)
        if first == 0:
            raise InvalidArgumentError(
                f"{self.name}: rank=0", "give 1 for the first, -1 for the last"
            )
        wanted = 1 if count is None else count
        check_integer(self.name, "count", wanted, 0, MOST_INDEX)
        compared = maxlen or 0
        check_integer(self.name, "maxlen", compared, 0, MOST_INDEX)
        sent = self._values.encode(value)
        indexes = yield from self._search(sent, first, wanted, compared)
        if count is not None:
            return indexes
        return indexes[0] if indexes else None

    @stream
    def items(self, *, reverse: bool = False) -> Stream[M]:
        """Iterate over the values, from the left or (reverse) from the right, part by part.

        Other clients may push and pop at both ends. A value that stays in the list is returned
        once, in order; one that is pushed or popped in the meantime once or not at all. It ends
        with the parts that existed at the start. `linsert` and `lrem` shift values, so one per part
        may be returned twice or not at all.

        Cost: one exchange per part; if parts are small, per 1,000 values.
        """
        at, end = "", ""
        step = -1 if reverse else 1
        count = max(1, VALUES_PER_PAGE // self.part_size)
        while True:
            [at, end, *parts] = yield from self._scripts.read("parts", step, at, end, count)
            for values in parts:
                yield self._page(reversed(values) if reverse else values)
            if (int(end) - int(at)) * step < 0:
                return

    @operation
    def lset(self, index: int, value: Argument) -> Operation[bool]:
        """Replace the value at an index; return True.

        Raises:
            InvalidArgumentError: the value is invalid, or there is no such index.

        Cost: one exchange, O(part_size).
        """
        self._check_index("index", index)
        length, *replaced = yield from self._scripts.run("at", index, self._values.encode(value))
        if not replaced:
            raise InvalidArgumentError(
                f"{self.name}: index {index} is outside the list of {counted(length, 'value')}",
                f"give {-length} to {length - 1}" if length else "push a value first",
            )
        return True

    @operation
    def linsert(self, where: str, refvalue: Argument, value: Argument) -> Operation[int]:
        """Insert a value before or after the first occurrence of another.

        Args:
            where: BEFORE or AFTER.
            refvalue: the value to search for, from the left.
            value: the new value.

        Returns:
            The new length; -1 if ``refvalue`` was not found, 0 if the list is empty.

        A ``refvalue`` that another client adds behind the search is not found. The step that finds
        it also inserts.

        Cost: an exchange for every 20,000 values or 500 parts, O(n) for the search, and one move
        per part between there and the nearer end, an exchange per 1,000 parts.
        """
        side = where.upper() if isinstance(where, str) else where
        if side not in ("BEFORE", "AFTER"):
            raise InvalidArgumentError(f"{self.name}: where={shown(where)}", "give BEFORE or AFTER")
        sent = self._values.encode(refvalue), self._values.encode(value)
        at, to = "", ""
        while True:
            length, more, *rest = yield from self._scripts.run(
                "insert", side, *sent, at, to, self._scripts.searched, self._scripts.visited
            )
            if more:
                yield from self._scripts.finish()
            if not rest:
                return int(length)
            at, to = rest

    @operation
    def lrem(self, count: int, value: Argument) -> Operation[int]:
        """Remove occurrences of a value; return how many were removed.

        Removes ``count`` at most: from the left, from the right if negative; 0 for all.

        Cost: an exchange for 20,000 values or 500 parts, and for 2,500 removed values. O(n). The
        parts between there and the nearer end are filled from their neighbours: as many exchanges.
        """
        self._check_index("count", count)
        return (yield from self._scripts.remove(count, self._values.encode(value)))

    @operation
    def ltrim(self, start: int, end: int) -> Operation[bool]:
        """Keep the values from ``start`` to ``end``, both included, remove all others; return True.

        Cost: one exchange; one more for 1,000 removed parts. O(1) for each of them.
        """
        self._check_index("start", start)
        self._check_index("end", end)
        yield from self._scripts.run_to_end("trim", start, end, self._scripts.visited)
        return True

    @stream
    def check(self) -> Stream[Damage]:
        """Read everything and yield the damage: of the ends, each part's length and each value.

        Changes nothing. Cost: three exchanges for 64 parts, whose values are in memory.
        """
        yield from check_parameters(self.meta)
        yield from check_list(self._scripts, self._values.decode)

    @operation
    def rebuild(self) -> Operation[int]:
        """Repair the damage that `check` finds, where possible; return the length.

        The ends are stored again from the parts. Values behind a short or lost part move up. A key
        of another type is removed. Do not use the list at the same time.

        Cost: an exchange for 1,000 parts, or for 1,000 keys of the server if the ends are invalid;
        two for each part, if values move.
        """
        yield from restore_parameters(self.meta)
        yield from rebuild_list(self._scripts)
        return (yield from self._scripts.length())

    def _find(self, value: bytes) -> Operation[Place | None]:
        """Find the part that holds a value. Cost: an exchange for every 1,000 parts."""
        ends = yield from self._scripts.ends()
        parts = islice(range(ends.first, ends.last + 1), _MOST_SEARCHED)
        places = ((self.component, self.part_key(part)) for part in parts)
        return (yield from find(places, "LPOS", value, "COUNT", 1))

    def _restore_index(self) -> Operation[None]:
        yield from restore_ends(self._scripts, remove=True)

    def _remove_all(self, lost: bool = False) -> Operation[int]:
        """Remove all keys; return 1 if there were any, else 0."""
        try:
            removed = yield from self._send_to_all(self.meta.present_generation, "UNLINK")
        except ParameterMismatchError:
            self._reset()
            yield from self._open()  # raises it again if others created the list
            ends = self._scripts.keys[1]
            raise damage(self.component, ends, "others", "copies of the parameters") from None
        self._reset()
        return removed

    def _set_due(self, command: str, *args: Argument) -> Operation[bool]:
        """Change when all keys expire; return whether."""
        return (yield from self._send_to_all(self.meta.present_generation, command, *args)) > 0

    def _started_expiry(self) -> Command:
        ends = self._scripts.keys[1]
        return self._at(ends, "HGET", ends, "unfinished")

    def _due_of(self, reply: Reply) -> int | None:
        if reply is None:
            return None
        words = reply.decode(errors="replace").split()  # see ``lua/steps.lua``
        if len(words) < 5 or words[1] != "expire":
            return None
        return int(stored_integer(self.component, self._scripts.keys[1], "due", words[4]))

    def _send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        """Send a command for every key; all expire together, even parts made later."""
        visited, again = self._scripts.visited, name != "UNLINK"
        return int(
            (yield from self._scripts.run_to_end("all", visited, name, *args, idempotent=again))
        )

    def _reset(self) -> None:
        self.meta.checked = False

    def _push(self, command: str, values: Iterable[Argument]) -> Operation[int]:
        sent = list(map(self._values.encode, values))
        if len(sent) > VALUES_AT_ONCE:
            raise InvalidArgumentError(
                f"{self.name}: {command.lower()} of {counted(len(sent), 'value')}",
                f"give at most {VALUES_AT_ONCE:,}, which are pushed in one step, "
                f"or use {command.lower()}_many",
            )
        check_some(self.name, command.lower(), sent, "value")
        return int((yield from self._scripts.run("push", command, *sent, create=True)))

    def _push_many(self, command: str, values: Iterable[Argument]) -> Operation[int]:
        if isinstance(values, str | bytes):
            raise InvalidArgumentError(
                f"{self.name}: {command.lower()}_many({shown(values)}) would push its characters",
                f"give an iterable of values, or use {command.lower()}",
            )
        length = None
        for page in pages(values, VALUES_AT_ONCE):
            length = yield from self._push(command, page)
        return length if length is not None else (yield from self._scripts.length())

    def _pop(self, command: str, count: int | None) -> Operation[Any]:
        if count is None:
            values = yield from self._pop_values(command, 1)
            return values[0] if values else None
        check_integer(self.name, "count", count, 0, VALUES_AT_ONCE)
        if count == 0:
            return [] if (yield from self._scripts.length()) else None
        return (yield from self._pop_values(command, count)) or None

    def _pop_values(self, command: str, count: int, *, waits: bool = False) -> Operation[list[M]]:
        def undo(values: list[bytes]) -> Operation[None]:
            if values:
                push = command.replace("POP", "PUSH")
                yield from self._scripts.run("push", push, *reversed(values))

        pop = self._scripts.run("pop", command, count, int(waits))
        values: list[bytes] = yield from completed(pop, undo)
        try:
            return self._page(values)
        except DamagedDataError:
            yield from undo(values)
            raise

    def _move(
        self, destination: ShardedList[Any, M], src: str, dest: str, *, waits: bool = False
    ) -> Operation[list[M]]:
        yield from self._check_destination(destination, src, dest)
        ours, theirs = self._scripts, destination._scripts
        for _ in range(ATTEMPTS):
            yield from open_all([self.meta, destination.meta])
            args = (*ours.head, *theirs.head, f"{src[0]}POP", f"{dest[0]}PUSH", int(waits))
            [values] = yield [
                lua_call(self.component, "structures/list/move", ours.keys + theirs.keys, args)
            ]
            if values is not None:
                return destination._page(values)
            yield from ours.finish()
            yield from theirs.finish()
            self.meta.checked = destination.meta.checked = False
            yield from destination._open(create=True)
        raise unstable(ours.meta.key)

    def _search(self, value: bytes, rank: int, wanted: int, compared: int) -> Operation[list[int]]:
        """Return the indexes of a value; see `lpos`.

        Places are counted from where part 1 begins, which pushes and pops do not move as long as
        there are two parts. A list that has shrunk to one is searched again, in one step.
        """
        begin = rank, compared, "", ""
        next_rank, left, at, to = begin
        places: list[int] = []
        while True:
            more = wanted and wanted - len(places)
            reply = yield from self._scripts.read(
                "position", value, next_rank, more, left, at, to, self._scripts.searched
            )
            was_started = at != ""
            at, to, next_rank, left, first, in_first, length, indexes = reply
            if was_started and length == in_first:
                next_rank, left, at, to = begin
                places.clear()
                continue
            start = first * self.part_size - in_first
            places += [start + index for index in indexes]
            if (to - at) * (1 if rank > 0 else -1) < 0:
                return [place - start for place in places if 0 <= place - start < length]

    def _wait(
        self, attempt: Callable[[], Operation[list[M]]], timeout: Seconds | None
    ) -> Operation[M | None]:
        """Make attempts until one returns something or the timeout has passed.

        A block that timed out counts in full, so a clock that is set back does not extend it.
        """
        given = 0 if timeout is None else timeout
        left = check_seconds(self.name, "timeout", given, 0, LONGEST_EXPIRY) or inf
        values = yield from attempt()
        deadline, signal = left, self._scripts.signal
        if not values and left < inf:
            deadline += yield from self._clock.seconds(self.component, self.name)
        while not values and left > 0:
            block = max(SHORTEST_BLOCK, min(left, LONGEST_BLOCK))
            args = ("BLPOP", signal, f"{block:.3f}")
            [token] = yield [Command(self.component, signal, args, None, True, block)]
            values = yield from attempt()
            if not values and left < inf:
                now = yield from self._clock.seconds(self.component, self.name)
                left = min(deadline - now, left if token else left - block)
        return values[0] if values else None

    def _page(self, values: Iterable[bytes]) -> Page[M]:
        return Page(map(self._values.decode, values))

    def _check_index(self, field: str, index: int) -> None:
        check_integer(self.name, field, index, -MOST_INDEX, MOST_INDEX)

    def _check_destination(
        self, destination: ShardedList[Any, M], src: str, dest: str
    ) -> Operation[None]:
        for field, side in (("src", src), ("dest", dest)):
            if side not in ("LEFT", "RIGHT"):
                raise InvalidArgumentError(
                    f"{self.name}: {field}={shown(side)}", "give LEFT or RIGHT"
                )
        if not isinstance(destination, ShardedList):
            raise InvalidArgumentError(
                f"{self.name}: {shown(destination)} is not a list of kit.list",
                "give one as kit.list makes them",
            )
        if destination._values.kind is not self._values.kind:
            raise InvalidArgumentError(
                f"{self.name}: {destination.name!r} holds {destination.parameters['values']}, "
                f"not {self.parameters['values']}",
                "move between lists with the same values=",
            )
        source, target = yield Locate(
            [(self.component, self.meta_key), (destination.component, destination.meta_key)]
        )
        if source != target:
            raise CrossShardError(
                f"{self.name!r} and {destination.name!r} do not live together",
                "give both names one tag: {jobs}:todo and {jobs}:doing",
            )


def tagged(name: str) -> str:
    """Return the prefix of a list's keys: its name, made a hash tag if it has none."""
    check_name(name)
    if hash_tag(key_bytes(name)) != key_bytes(name):
        return name
    if name.startswith("}"):
        raise InvalidArgumentError(
            f"name={shown(name)} of a list cannot be a tag", "let it begin with another character"
        )
    return f"{{{name}}}"
