"""What a structure in parts asks of its layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from shardkit.operations.commands import Argument, Reply
from shardkit.operations.operation import Operation

T = TypeVar("T")
M = TypeVar("M")

# Some parts, to be visited in one exchange. What is in it is the layout's business.
Chunk: TypeAlias = Sequence[Any]
# The command for a part, without its key: from what it is for, as the part stores it, and with it.
Build: TypeAlias = Callable[[list[bytes], list[T]], tuple[Argument, ...]]


class Layout(ABC):
    """Where members live, and how to read and write them there."""

    @abstractmethod
    def one(self, name: str, member: bytes, *args: Argument) -> Operation[Reply]:
        """Send a command that reads one member: ``name key member args…``.

        Cost: one exchange, in nearly every case.
        """

    @abstractmethod
    def read(
        self, members: Iterable[tuple[bytes, T]], build: Build[T]
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """Send a command that reads to every part that members are in.

        Args:
            members: each with whatever belongs to it; some thousands.
            build: makes the command of a part.

        Returns:
            For each part what belonged to its members, and the reply; in no order.

        Cost: one exchange, in nearly every case; one command a part.
        """

    @abstractmethod
    def write(
        self, members: Iterable[tuple[bytes, T]], build: Build[T], *, adds: bool = True
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """Send a command that writes to every part that members are in; see `read`.

        Args:
            members: each with whatever belongs to it; some thousands.
            build: makes the command of a part.
            adds: whether there may be more members afterwards.
        """

    @abstractmethod
    def look(self) -> Operation[None]:
        """Learn which parts there are now, for `chunks`. Cost: one exchange at most."""

    @abstractmethod
    def chunks(self, size: int) -> Iterator[Chunk]:
        """Cut all parts into chunks of at most ``size``, in a fixed order."""

    @abstractmethod
    def ask(
        self, chunk: Chunk, name: str, *args: Argument
    ) -> Operation[list[tuple[int | None, Reply]]]:
        """Send a command that reads, ``name key args…``, to every part of a chunk.

        Parts may be split meanwhile: then the replies are those of all parts that the members of
        the chunk are in afterwards, each member once.

        Returns:
            For each part its number, where members are stored in short by it (see `member`), and
            the reply.

        Cost: one exchange, in nearly every case.
        """

    @abstractmethod
    def to_all(self, name: str, *args: Argument) -> Operation[int]:
        """Send a command, ``name key args…``, to all parts and what belongs to them.

        Returns:
            The sum of the replies.

        Cost: one command a part, an exchange for every 1,000.
        """

    def member(self, part: int | None, stored: bytes) -> bytes:
        """Return a member from how a part stores it."""
        return stored

    def forget(self) -> None:
        """Know nothing: the structure was deleted."""
        return


def grouped(
    members: Iterable[tuple[M, T]], part_of: Callable[[M], int]
) -> dict[int, tuple[list[M], list[T]]]:
    """Return members, and what belongs to each, by part."""
    groups: dict[int, tuple[list[M], list[T]]] = {}
    for member, owned in members:
        part = part_of(member)
        group = groups.get(part)
        if group is None:
            groups[part] = ([member], [owned])
        else:
            group[0].append(member)
            group[1].append(owned)
    return groups
