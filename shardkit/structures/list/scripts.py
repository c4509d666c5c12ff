"""Runs the scripts of one list, and finds where it ends.

A script does nothing unless the list's stored parameters are those of the caller: if somebody
deleted the list, and perhaps created it anew, they are checked again and the script is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardkit.errors import ParameterMismatchError
from shardkit.lua import script
from shardkit.operations.cancellation import UndoableBatch
from shardkit.operations.commands import (
    Argument,
    Command,
    Replies,
    Transaction,
    script_call,
)
from shardkit.operations.operation import Operation
from shardkit.structures.base.parameters import Metadata, open_all
from shardkit.structures.list.ends import FIELDS, Ends

# How often an operation is tried while others keep deleting and creating the list.
ATTEMPTS = 5


class ListScripts:
    """The scripts of one list; shared by all its faces.

    Args:
        component: where the list lives.
        name: what its keys begin with.
        part_size: how many values a part takes.
        meta: its parameters.

    Attributes:
        component, part_size, meta: as given.
        signal: the key that waiting consumers block on.
        keys: those of its parameters, its ends and its signal.
        head: the arguments that every script begins with.
    """

    def __init__(self, component: str, name: str, part_size: int, meta: Metadata) -> None:
        self.meta = meta
        self.signal = f"{name}:signal"
        self.keys = (meta.key, f"{name}:ends", self.signal)
        self.head = (f"{name}:", part_size, meta.parameters["values"])
        self.component = component
        self.part_size = part_size
        self._ends: Ends | None = None  # as last seen

    def command(self, name: str, *args: Argument, idempotent: bool = False) -> Command:
        """Return the command that runs ``lua/<name>.lua``."""
        sent = (*self.head, *args)
        found = script(f"structures/list/{name}")
        return script_call(self.component, found, self.keys, sent, idempotent=idempotent)

    def run(
        self,
        name: str,
        *args: Argument,
        create: bool = False,
        idempotent: bool = False,
        undo: Callable[[Replies], list[Command]] | None = None,
    ) -> Operation[Any]:
        """Run a script.

        Args:
            name: ``lua/<name>.lua``.
            args: its arguments, after those of every script.
            create: whether to create the list if it does not exist.
            idempotent: whether it may be sent twice.
            undo: returns the commands that undo it if the calling task is cancelled.

        Raises:
            ParameterMismatchError: the list exists with other parameters.
        """
        command = self.command(name, *args, idempotent=idempotent)
        batch = [command] if undo is None else UndoableBatch([command], undo)
        for _ in range(ATTEMPTS):
            yield from open_all([self.meta], create=create)
            [reply] = yield batch
            if reply is not None:
                return reply
            self.meta.checked = False
        raise self.unstable()

    def read(self, name: str, *args: Argument) -> Operation[Any]:
        """Run a script that only reads, or may be repeated."""
        return (yield from self.run(name, *args, idempotent=True))

    def ends(self) -> Operation[Ends]:
        """Return where the list ends now. Cost: one exchange."""
        for _ in range(ATTEMPTS):
            yield from open_all([self.meta])
            [reply] = yield [self._ends_query]
            ends = self._update_ends(reply)
            if ends is not None:
                return ends
        yield from self.length()  # says it if the stored part size is damaged
        raise self.unstable()

    def length(self) -> Operation[int]:
        """Return how many values there are, once the ends are known to hold. Cost: one exchange."""
        length, *_ = yield from self.read("at", 2**53 - 1)
        return int(length)

    def value_at(self, index: int) -> Operation[bytes | None]:
        """Return the value at an index.

        It is read from where it would be if the ends had not changed since they were last seen, in
        a transaction that also reads the ends: for the server a fraction of the work of a script.
        """
        ends = self._ends
        if ends is None or ends.find(index) is None:
            ends = yield from self.ends()
        for _ in range(2):
            expected = ends.find(index)
            if expected is None:
                break
            part, place = expected
            key = f"{self.head[0]}{part}"
            value_query = Command(self.component, key, ("LINDEX", key, place))
            sizes = [
                Command(self.component, end, ("LLEN", end))
                for end in (f"{self.head[0]}{ends.first}", f"{self.head[0]}{ends.last}")
            ]
            queries = (self._ends_query, value_query, *sizes)
            [[reply, value, *held]] = yield [Transaction(self.component, key, queries)]
            before, ends = ends, self._update_ends(reply)
            if ends is None:
                break
            if ends.find(index) == expected and value is not None:
                moved = before[:2] != ends[:2]
                if moved or held == [ends.left, ends.right]:
                    return value  # type: ignore[no-any-return]
                break
        _, *found = yield from self.read("at", index)
        return found[0] if found else None

    def unstable(self) -> ParameterMismatchError:
        """Return the error for a list that others keep deleting and creating."""
        return ParameterMismatchError(
            f"{self.meta.key}: it is being deleted and created over and over",
            "find out who else uses the list",
        )

    @property
    def _ends_query(self) -> Command:
        key = self.keys[1]
        return Command(self.component, key, ("HMGET", key, *FIELDS, "values"), idempotent=True)

    def _update_ends(self, reply: Sequence[bytes | None]) -> Ends | None:
        """Remember where the list ends; None if it was created anew with other parameters."""
        *numbers, values = reply
        ends = Ends.parse(self.component, self.keys[1], numbers)
        other = values is not None and values.decode(errors="replace") != self.head[2]
        if other or ends.part_size not in (0, self.part_size):
            self.meta.checked = False
            self._ends = None
            return None
        self._ends = ends
        return ends
