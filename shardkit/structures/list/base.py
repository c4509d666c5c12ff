"""The steps that a list in pieces is made of: see `list.sharded_list` for the idea."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic

from shardkit.errors import CrossShardError, InvalidArgumentError, ParameterMismatchError
from shardkit.lua import script
from shardkit.operations.cancellation import UndoableBatch, undo_on_cancel
from shardkit.operations.commands import (
    Argument,
    Command,
    Locate,
    Replies,
    Transaction,
    script_call,
)
from shardkit.operations.operation import Driver, Face, Operation, Page, pages
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.structures.base.arguments import check_integer, check_name, shown
from shardkit.structures.base.members import M
from shardkit.structures.base.parameters import open_all
from shardkit.structures.base.partitioned import PartitionedStructure
from shardkit.structures.base.server_clock import ServerClock
from shardkit.structures.list.ends import FIELDS, Ends
from shardkit.structures.list.values import Values

PIECE_SIZE = 1000
MOST_PIECE_SIZE = 10_000
VALUES_AT_ONCE = 10_000
MOST_INDEX = 2**53 - 1  # Lua's integers
LONGEST_SLICE = 1.0  # seconds
SHORTEST_SLICE = 0.001
LONGEST_TIMEOUT = 2**31 - 1
# How often an operation is tried while others keep deleting and creating the list.
ATTEMPTS = 5

SIDES = {"LEFT": ("LPOP", "LPUSH"), "RIGHT": ("RPOP", "RPUSH")}


class ListSteps(PartitionedStructure[Face], Generic[Face, M]):
    """A list in pieces without its public operations; its arguments are those of `ShardedList`."""

    kind: ClassVar[str] = "list"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        part_size: int = PIECE_SIZE,
        values: type[M] = str,  # type: ignore[assignment]  # kit.list has the exact overloads
        clock: ServerClock | None = None,
    ) -> None:
        prefix = tagged(name)
        check_integer(prefix, "part_size", part_size, 1, MOST_PIECE_SIZE)
        self._values: Values[M] = Values(values, prefix)
        parameters = {"part_size": part_size, "values": values.__name__}
        super().__init__(undo_on_cancel(driver), component, prefix, parameters)
        self.part_size = part_size
        self._clock = clock or ServerClock()
        self._signal = f"{prefix}:signal"
        self._ends = f"{prefix}:ends"
        self._keys = (self.meta_key, self._ends, self._signal)
        self._head = (f"{prefix}:", part_size)
        self._seen: list[Ends] = []  # the ends as they were last seen; shared by all faces

    @property
    def _asking(self) -> Command:
        return self._at(self._ends, "HMGET", self._ends, *FIELDS, idempotent=True)

    def _look(self) -> Operation[Ends]:
        """Return where the list ends now."""
        for _ in range(ATTEMPTS):
            yield from self._open()
            [reply] = yield [self._asking]
            ends = self._take_in(reply)
            if ends is not None:
                return ends
        raise self._unsteady()

    def _find(self, index: int) -> Operation[M | None]:
        """Return the value at an index.

        It is looked for where it would be if nothing had changed, and in the same step whether that
        is so: for the server that is a fraction of the work of a script.
        """
        ends = next(iter(self._seen), None)
        if ends is None or ends.find(index) is None:
            ends = yield from self._look()
        for _ in range(2):
            expected = ends.find(index)
            if expected is None:
                return None
            at, place = expected
            key = self.part_key(at)
            commands = (self._asking, self._at(key, "LINDEX", key, place))
            [[reply, value]] = yield [Transaction(self.component, key, commands)]
            ends = self._take_in(reply)
            if ends is None:
                break
            if ends.find(index) == expected:
                return None if value is None else self._values.decode(value)
        _, *found = yield from self._read("structures/list/at", index)
        return self._values.decode(found[0]) if found and found[0] is not None else None

    def _take_in(self, reply: Sequence[bytes | None]) -> Ends | None:
        """Remember where the list ends; None if it is another list by now."""
        ends = Ends.read(reply)
        if ends.part_size not in (0, self.part_size):
            self.meta.checked = False
            self._seen.clear()
            return None
        self._seen[:] = [ends]
        return ends

    def _push(self, command: str, values: Iterable[Argument]) -> Operation[int]:
        sent = self._values.encode_all(values)
        if len(sent) > VALUES_AT_ONCE:
            raise InvalidArgumentError(
                f"{self.name}: {command.lower()} of {len(sent):,} values",
                f"give at most {VALUES_AT_ONCE:,}, which are pushed in one step, "
                f"or use {command.lower()}_many",
            )
        if not sent:
            return (yield from self._look()).length
        return int((yield from self._call("structures/list/push", command, *sent, create=True)))

    def _push_many(self, command: str, values: Iterable[Argument]) -> Operation[int]:
        if isinstance(values, str | bytes):
            raise InvalidArgumentError(
                f"{self.name}: {command.lower()}_many({shown(values)}) would push its characters",
                f"give an iterable of values, or use {command.lower()}",
            )
        length = None
        for page in pages(values, VALUES_AT_ONCE):
            length = yield from self._push(command, page)
        return length if length is not None else (yield from self._push(command, ()))

    def _pop(self, command: str, count: int, *, waits: bool = False) -> Operation[list[bytes]]:
        def put_back(replies: Replies) -> list[Command]:
            [values] = replies
            if not isinstance(values, list) or not values:
                return []
            values.reverse()
            return [self._script("structures/list/push", command.replace("POP", "PUSH"), *values)]

        values: list[bytes] = yield from self._call(
            "structures/list/pop", command, count, int(waits), put_back=put_back
        )
        return values

    def _move(
        self, destination: ListSteps[Any, M], src: str, dest: str, *, waits: bool = False
    ) -> Operation[list[bytes]]:
        yield from self._check_destination(destination, src, dest)
        for _ in range(ATTEMPTS):
            yield from open_all([self.meta, destination.meta])
            pop, push = SIDES[src][0], SIDES[dest][1]
            keys = self._keys + destination._keys
            args = (*self._head, *destination._head, pop, push, int(waits))
            [values] = yield [
                script_call(self.component, script("structures/list/move"), keys, args)
            ]
            if values is not None:
                return values  # type: ignore[no-any-return]
            self.meta.checked = destination.meta.checked = False
            yield from destination._open(create=True)
        raise self._unsteady()

    def _wait(
        self, take: Callable[[], Operation[list[bytes]]], timeout: float
    ) -> Operation[list[bytes]]:
        """Take something, again and again until there is something or the time is up."""
        left = self._seconds(timeout)
        values = yield from take()
        if values:
            return values
        ends = left
        if left < math.inf:
            ends += yield from self._clock.seconds(self.component, self.name)
        while left > 0:
            slice_ = max(SHORTEST_SLICE, min(left, LONGEST_SLICE))
            waiting = ("BLPOP", self._signal, f"{slice_:.3f}")
            [token] = yield [Command(self.component, self._signal, waiting, None, True, slice_)]
            values = yield from take()
            if values:
                return values
            if left < math.inf:
                now = yield from self._clock.seconds(self.component, self.name)
                left = min(ends - now, left if token else left - slice_)
        return []

    def _script(self, name: str, *args: Argument, idempotent: bool = False) -> Command:
        sent = (*self._head, *args)
        return script_call(self.component, script(name), self._keys, sent, idempotent=idempotent)

    def _read(self, name: str, *args: Argument) -> Operation[Any]:
        return (yield from self._call(name, *args, idempotent=True))

    def _call(
        self,
        name: str,
        *args: Argument,
        create: bool = False,
        idempotent: bool = False,
        put_back: Callable[[Replies], list[Command]] | None = None,
    ) -> Operation[Any]:
        """Run a script. It does nothing if the parameters are not (or no longer) this list's."""
        command = self._script(name, *args, idempotent=idempotent)
        batch = [command] if put_back is None else UndoableBatch([command], put_back)
        for _ in range(ATTEMPTS):
            yield from self._open(create=create)
            [reply] = yield batch
            if reply is not None:
                return reply
            self.meta.checked = False  # deleted, maybe created anew, since they were compared
        raise self._unsteady()

    def _unsteady(self) -> ParameterMismatchError:
        return ParameterMismatchError(
            f"{self.meta_key}: it is being deleted and created over and over",
            "look who else uses the list",
        )

    def _page(self, values: Iterable[bytes]) -> Page[M]:
        return Page(map(self._values.decode, values))

    def _check_index(self, field: str, index: int) -> None:
        check_integer(self.name, field, index, -MOST_INDEX, MOST_INDEX)

    def _seconds(self, timeout: float) -> float:
        """Return a timeout in seconds, infinite for 0."""
        if (
            not isinstance(timeout, int | float)
            or isinstance(timeout, bool)
            or not 0 <= timeout <= LONGEST_TIMEOUT
        ):
            raise InvalidArgumentError(
                f"{self.name}: timeout={shown(timeout)}", "give seconds, or 0 to wait for ever"
            )
        return float(timeout) or math.inf

    def _check_destination(
        self, destination: ListSteps[Any, M], src: str, dest: str
    ) -> Operation[None]:
        for field, side in (("src", src), ("dest", dest)):
            if side not in SIDES:
                raise InvalidArgumentError(
                    f"{self.name}: {field}={shown(side)}", "give LEFT or RIGHT"
                )
        if not isinstance(destination, ListSteps):
            raise InvalidArgumentError(
                f"{self.name}: {shown(destination)} is no list in pieces",
                "give one as kit.list makes them",
            )
        if destination._values.kind is not self._values.kind:
            raise InvalidArgumentError(
                f"{self.name}: {destination.name!r} holds {destination.parameters['values']}, "
                f"not {self.parameters['values']}",
                "move between lists with the same values=",
            )
        ours, theirs = yield Locate(
            [(self.component, self.meta_key), (destination.component, destination.meta_key)]
        )
        if ours != theirs:
            raise CrossShardError(
                f"{self.name!r} and {destination.name!r} do not live together",
                "give both names one tag: {jobs}:todo and {jobs}:doing",
            )


def tagged(name: str) -> str:
    """Return what the keys of a list begin with: its name, which is made a tag if it has none.

    Raises:
        InvalidArgumentError: it is no name, or cannot be a tag.
    """
    check_name(name)
    if hash_tag(key_bytes(name)) != key_bytes(name):
        return name
    if name.startswith("}"):
        raise InvalidArgumentError(
            f"name={shown(name)} of a list cannot be a tag", "let it begin with another character"
        )
    return f"{{{name}}}"
