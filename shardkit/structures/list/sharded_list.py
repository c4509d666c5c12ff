r"""A very long LIST in pieces, on the server of its name.

::

    {jobs}:meta      HASH    kind=list part_size=1000 values=str
    {jobs}:ends      HASH    first=-1 last=2 left=2 right=700 part_size=1000
    {jobs}:-1        LIST                    998 │ 999       filled from the right
    {jobs}:0         LIST    0 │ 1 │ 2 │ … │ 998 │ 999       full
    {jobs}:1         LIST    0 │ 1 │ 2 │ … │ 998 │ 999       full
    {jobs}:2         LIST    0 │ 1 │ 2 │ … │ 699             filled from the left
    {jobs}:signal    LIST    "1"                             whoever waits shall look

LPUSH fills the first piece and then opens the one before it, RPUSH the last and then the one after
it; a pop that empties an end piece moves that end inward. So pieces between the ends are full at
any time, whoever pushed, and both the length and the piece of an index are computed, not looked for
(see `shardkit.structures.list.ends`). All keys have the list's ``{tag}``, so they live on one
server, and each operation is one script there. Pieces are not among a script's KEYS, because only
the list itself says which there are.

It is not for memory: a server packs a plain LIST as densely. One million values of 7 characters
take 9.1 bytes each plain; in pieces of 1,000 they take 9.5 on Redis 7.0 and 9.3 on Valkey 9.1, in
pieces of 128 11.5 and 9.7. It is for keys that stay small however long the list grows: to look into
the middle of, to move one by one, to remove at once.

Waiting. ``blpop`` tries to pop; if there is nothing, it blocks on the signal and tries again. A
push onto an empty list puts a token there. Who pops it tries, and if that leaves values, puts it
back for the next one; a pop that leaves none removes it. So there is at most one, and a list with
values has one, or somebody is about to pop. Tokens say "look", nothing else: they are never in the
data, and nobody has to tell them apart::

    producer             {jobs}:signal         waiter 1                    waiter 2
                                               (blocks)                    (blocks)
    rpush a, b, c ─────► 1 ──────────────────► (wakes)
                         1 ◄────────────────── lpop: a, and b, c are left
                         ────────────────────────────────────────────────► (wakes) lpop: b …

A waiter that dies between its token and its pop takes the token with it. So nobody blocks for
longer than a second without trying, and whoever then finds something passes a token on: the others
wait a second longer at most. The time is the kit's clock's. A wait of a second that found nothing
counts in full, so that a clock which is set back does not prolong a timeout.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Generic

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Argument
from shardkit.operations.operation import Deferred, Face, Operation, Stream, operation, stream
from shardkit.structures.base.arguments import check_integer, expiry
from shardkit.structures.base.members import M
from shardkit.structures.list.base import PIECE_SIZE, VALUES_AT_ONCE, ListSteps

VALUES_A_PAGE = 1000


class ShardedList(ListSteps[Face, M], Generic[Face, M]):
    """A LIST in pieces, on one server. Made by ``kit.list``.

    Args:
        driver: what runs its operations.
        component: where it lives: on the shard of its name.
        name: its name. Its keys begin with it if it has a ``{tag}``, else with ``{name}``.
        part_size: how many values a piece takes, 1 to 10,000.
        values: int, str or bytes: what its values come back as.
        clock: tells the time while somebody waits.

    Attributes:
        name: what its keys begin with.
        part_size: as given.

    Raises:
        InvalidArgumentError: an argument is out of range.

    Every operation costs one more exchange the first time, for comparing the parameters. Indexes
    are those of redis: from 0 on the left, from -1 on the right.
    """

    @property
    def deferred(self) -> ShardedList[Deferred, M]:
        """This list with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    # ---- both ends

    @operation
    def lpush(self, *values: Argument) -> Operation[int]:
        """Push values on the left, one after the other; return how many there are then.

        Args:
            values: text, bytes or numbers, as the list's ``values`` says; at most 10,000, which
                are pushed in one step. Of none, nothing is pushed, and nothing created.

        Raises:
            InvalidArgumentError: a value does not fit, or there are too many; none was pushed then.
            ParameterMismatchError: the list exists with other parameters.
            ShardErrors: the server failed, or refused it.

        Cost: one exchange. O(1) a value.
        """
        return (yield from self._push("LPUSH", values))

    @operation
    def rpush(self, *values: Argument) -> Operation[int]:
        """Push values on the right; see `lpush`."""
        return (yield from self._push("RPUSH", values))

    @operation
    def lpush_many(self, values: Iterable[Argument]) -> Operation[int]:
        """Push any number of values on the left, 10,000 an exchange.

        Each 10,000 are pushed in one step, all of them not.

        Args:
            values: any iterable of them, also a generator: it is read as they are sent.

        Returns:
            How many values there are after the last of them.

        Raises:
            InvalidArgumentError: a value does not fit; earlier pages were pushed by then.
            ParameterMismatchError: the list exists with other parameters.
            ShardErrors: the server failed; earlier pages were pushed by then.
        """
        return (yield from self._push_many("LPUSH", values))

    @operation
    def rpush_many(self, values: Iterable[Argument]) -> Operation[int]:
        """Push any number of values on the right; see `lpush_many`."""
        return (yield from self._push_many("RPUSH", values))

    @operation
    def lpop(self) -> Operation[M | None]:
        """Take the first value away and return it; None if there is none.

        A task that is cancelled meanwhile has what it did not get put back. When the connection
        breaks, or the process dies, after the server has popped, the value is lost, as with a plain
        LPOP: where that must not be, use `lmove`.

        Cost: one exchange, O(1).
        """
        values = yield from self._pop("LPOP", 1)
        return self._values.decode(values[0]) if values else None

    @operation
    def rpop(self) -> Operation[M | None]:
        """Take the last value away and return it; see `lpop`."""
        values = yield from self._pop("RPOP", 1)
        return self._values.decode(values[0]) if values else None

    @operation
    def lpop_many(self, count: int) -> Operation[list[M]]:
        """Take up to so many values from the left, in one step: ``LPOP key count``.

        Args:
            count: 0 to 10,000.

        Returns:
            The values, in the order in which single pops would give them.

        Cost: one exchange, O(count).
        """
        check_integer(self.name, "count", count, 0, VALUES_AT_ONCE)
        return self._page((yield from self._pop("LPOP", count)))

    @operation
    def rpop_many(self, count: int) -> Operation[list[M]]:
        """Take up to so many values from the right, the last one first; see `lpop_many`."""
        check_integer(self.name, "count", count, 0, VALUES_AT_ONCE)
        return self._page((yield from self._pop("RPOP", count)))

    @operation
    def blpop(self, timeout: float = 0) -> Operation[M | None]:
        """Take the first value away, and wait for one if there is none.

        Args:
            timeout: for how many seconds at most; 0 for ever.

        Returns:
            The value; None if there was none until then.

        Raises:
            InvalidArgumentError: the timeout is no such number.
            ShardErrors: the server failed. It is not waited for; call again.

        Cost: one exchange if there is a value. While it waits, a connection of its own, and two
        exchanges a second.
        """
        values = yield from self._wait(lambda: self._pop("LPOP", 1, waits=True), timeout)
        return self._values.decode(values[0]) if values else None

    @operation
    def brpop(self, timeout: float = 0) -> Operation[M | None]:
        """Take the last value away, and wait for one if there is none; see `blpop`."""
        values = yield from self._wait(lambda: self._pop("RPOP", 1, waits=True), timeout)
        return self._values.decode(values[0]) if values else None

    @operation
    def lmove(
        self, destination: ShardedList[Any, M], src: str = "LEFT", dest: str = "RIGHT"
    ) -> Operation[M | None]:
        """Pop a value and push it onto another list, in one step.

        So it is always in one of the two, whatever fails: a list of work in progress.

        Args:
            destination: a list on the same server: with the same tag, ``{jobs}:todo`` and
                ``{jobs}:doing``. May be this one.
            src: where it is popped, LEFT or RIGHT.
            dest: where it is pushed.

        Returns:
            The value; None if there is none.

        Raises:
            InvalidArgumentError: a side is none, or the lists hold different kinds of values.
            CrossShardError: the lists live on different servers, or in different slots of a
                cluster.

        Cost: one exchange, O(1).
        """
        values = yield from self._move(destination, src, dest)
        return self._values.decode(values[0]) if values else None

    @operation
    def blmove(
        self,
        destination: ShardedList[Any, M],
        timeout: float = 0,
        src: str = "LEFT",
        dest: str = "RIGHT",
    ) -> Operation[M | None]:
        """Move a value, and wait for one if there is none; see `lmove` and `blpop`."""
        values = yield from self._wait(
            lambda: self._move(destination, src, dest, waits=True), timeout
        )
        return self._values.decode(values[0]) if values else None

    # ---- all of it

    @operation
    def llen(self) -> Operation[int]:
        """Return how many values there are. Cost: one exchange, O(1)."""
        return (yield from self._look()).length

    @operation
    def lindex(self, index: int) -> Operation[M | None]:
        """Return the value at an index; None if there is none.

        Cost: one exchange; one or two more if that end of the list has changed since this object
        last looked. O(part_size), wherever in the list it is.
        """
        self._check_index("index", index)
        return (yield from self._find(index))

    @operation
    def lset(self, index: int, value: Argument) -> Operation[None]:
        """Replace the value at an index.

        Raises:
            InvalidArgumentError: the value does not fit, or there is no such index.

        Cost: as `lindex`.
        """
        self._check_index("index", index)
        length, *found = yield from self._call(
            "structures/list/at", index, self._values.encode(value)
        )
        if not found:
            raise InvalidArgumentError(
                f"{self.name}: there is no index {index} to set", f"it has {length:,} values"
            )

    @operation
    def lrange(self, start: int, stop: int) -> Operation[list[M]]:
        """Return the values from ``start`` to ``stop``, both included, as they are at one moment.

        Args:
            start: the first index. As in redis, what lies beyond an end is cut off.
            stop: the last one.

        Raises:
            InvalidArgumentError: that would be more than 10,000 values; see `items`.

        Cost: one exchange, O(part_size) and the values.
        """
        self._check_index("start", start)
        self._check_index("stop", stop)
        found = yield from self._read("structures/list/range", start, stop, VALUES_AT_ONCE)
        if isinstance(found, int):
            raise InvalidArgumentError(
                f"{self.name}: lrange({start}, {stop}) would give {found:,} values",
                f"ask for at most {VALUES_AT_ONCE:,} at a time, or iterate over items()",
            )
        return [value for piece in found for value in self._page(piece)]

    @stream
    def items(self, *, reverse: bool = False) -> Stream[M]:
        """Iterate over the values, from the left or (reverse) from the right, piece by piece.

        The list may be pushed to and popped from at both ends meanwhile. A value that is there
        throughout comes once, in its place; one that is pushed or popped meanwhile comes once or
        not. What is pushed into pieces that were opened since does not come, so that it ends.

        Args:
            reverse: whether to begin on the right.

        Cost: an exchange for every piece; of small pieces, for every 1,000 values.
        """
        at, end = "", ""
        step = -1 if reverse else 1
        count = max(1, VALUES_A_PAGE // self.part_size)
        while True:
            [at, end, *pieces] = yield from self._read(
                "structures/list/pieces", step, at, end, count
            )
            for values in pieces:
                yield self._page(reversed(values) if reverse else values)
            if (int(end) - int(at)) * step < 0:
                return

    @operation
    def ltrim(self, start: int, stop: int) -> Operation[int]:
        """Keep the values from ``start`` to ``stop``, both included, and remove all others.

        Returns:
            How many are left.

        Cost: one exchange. O(1) for a piece that goes, in one step: some microseconds each.
        """
        self._check_index("start", start)
        self._check_index("stop", stop)
        return int((yield from self._call("structures/list/trim", start, stop)))

    @operation
    def delete(self) -> Operation[bool]:
        """Remove the list with its parameters; return whether there was anything.

        Afterwards it can be created with other parameters.

        Cost: one exchange. O(1) for a piece, all in one step.
        """
        removed = yield from self._call("structures/list/all")
        self.meta.checked = False
        return bool(removed > 0)

    @operation
    def expire(self, seconds: int | timedelta) -> Operation[bool]:
        """Have all of the list expire at one moment; return whether there was anything.

        What is pushed until then expires with it.

        Args:
            seconds: after what time, at least one second.

        Raises:
            InvalidArgumentError: it is no such time.

        Cost: one exchange. O(1) for a piece, all in one step.
        """
        after = expiry(self.name, seconds)
        return bool((yield from self._read("structures/list/all", after)) > 0)


__all__ = ["PIECE_SIZE", "ShardedList"]
