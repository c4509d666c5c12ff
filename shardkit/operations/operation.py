"""Operations: methods written once as pure steps, run blocking, awaiting, or composed.

A step generator yields batches and is sent their replies; it does no I/O of its own::

    class Members(Structure[Face]):
        @operation
        def add(self, member: str) -> Operation[bool]:
            [added] = yield [self._at(member, "SADD", self.name, member)]
            return bool(added)

What a call of the method gives depends on the face that the structure was made with:

=========== =========================== ====================================================
face        ``members.add("a")``        made by
=========== =========================== ====================================================
Blocking    the value                   a kit that blocks
Awaiting    a coroutine                 an async kit
Deferred    the steps, not yet started  ``structure.deferred``; for ``yield from`` and ``together``
=========== =========================== ====================================================

A `stream` is an operation that gives many values: between its batches it yields pages of them, and
it is an iterator, an async iterator, or the steps.

The descriptors look at the face's driver once, when the structure is made; the types follow the
face by overloads of ``__get__``, so that mypy and pyright know each face exactly.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from shardkit.operations.commands import (
    Argument,
    Batch,
    Call,
    Command,
    Key,
    Locate,
    Pause,
    Replies,
    Shard,
)

P = ParamSpec("P")
T = TypeVar("T")

Step: TypeAlias = Batch | Locate | Pause | Call
Operation: TypeAlias = Generator[Step, Any, T]


class Page(list[T]):
    """Values that a stream gives out, in order."""


Stream: TypeAlias = Generator[Step | Page[T], Any, None]


class Blocking(Protocol):
    """A link that blocks until the replies are there."""

    def send(self, batch: Batch, /) -> Replies:
        """Carry a batch."""
        raise NotImplementedError

    def locate(self, request: Locate, /) -> list[tuple[Shard, int | None]]:
        """Say where keys live."""
        raise NotImplementedError

    def pause(self, seconds: float, /) -> None:
        """Wait."""


class Awaiting(Protocol):
    """A link whose replies are awaited."""

    async def send(self, batch: Batch, /) -> Replies:
        """Carry a batch."""
        raise NotImplementedError

    async def locate(self, request: Locate, /) -> list[tuple[Shard, int | None]]:
        """Say where keys live."""
        raise NotImplementedError

    async def pause(self, seconds: float, /) -> None:
        """Wait."""


class Deferred:
    """The face that runs nothing: calls return their steps."""


Face = TypeVar("Face", bound="Blocking | Awaiting | Deferred", covariant=True)


class Driver(Protocol):
    """What runs steps for one face."""

    def run(self, steps: Operation[T]) -> Any:
        """Run an operation."""

    def iterate(self, steps: Stream[T]) -> Any:
        """Run a stream."""


class _Defer:
    @staticmethod
    def run(steps: Operation[T]) -> Operation[T]:
        return steps

    @staticmethod
    def iterate(steps: Stream[T]) -> Stream[T]:
        return steps


class Structure(Generic[Face]):
    """The base of everything that has operations.

    Args:
        driver: what runs its steps; decides the face.
        component: where its keys live.
        name: the key prefix of its data.
    """

    def __init__(self, driver: Driver, component: str, name: str) -> None:
        self._driver = driver
        self.component = component
        self.name = name

    def _at(self, key: Key, *args: Argument, idempotent: bool = False) -> Command:
        """Return a command for the shard on which ``key`` lives."""
        return Command(self.component, key, args, None, idempotent)

    def _deferred(self) -> Self:
        """Return this structure with the face that returns steps."""
        deferred = copy.copy(self)
        deferred._driver = _Defer()
        return deferred

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, component={self.component!r})"


class operation(Generic[P, T]):  # noqa: N801 - a decorator
    """Make a method of a step generator; see the module's text.

    Attributes:
        steps: the generator function itself, for an override that builds on what it overrides:
            ``yield from Base.method.steps(self, …)``.
    """

    def __init__(self, steps: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self.steps = steps
        self.__doc__ = steps.__doc__
        self.__name__ = steps.__name__
        self.__wrapped__ = steps

    @overload
    def __get__(self, obj: None, owner: Any = ...) -> operation[P, T]: ...
    @overload
    def __get__(self, obj: Structure[Blocking], owner: Any = ...) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, obj: Structure[Awaiting], owner: Any = ...
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, obj: Structure[Deferred], owner: Any = ...) -> Callable[P, Operation[T]]: ...
    def __get__(self, obj: Any, owner: Any = None) -> Any:
        """Bind to a structure: a function that runs the steps as the face wants."""
        if obj is None:
            return self
        steps, run = self.steps, obj._driver.run

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run(steps(obj, *args, **kwargs))

        call.__name__ = self.__name__
        call.__doc__ = self.__doc__
        return call


class stream(Generic[P, T]):  # noqa: N801 - a decorator
    """Make a method of a step generator that also yields pages; see the module's text.

    Attributes:
        steps: the generator function itself.
    """

    def __init__(self, steps: Callable[Concatenate[Any, P], Stream[T]]) -> None:
        self.steps = steps
        self.__doc__ = steps.__doc__
        self.__name__ = steps.__name__
        self.__wrapped__ = steps

    @overload
    def __get__(self, obj: None, owner: Any = ...) -> stream[P, T]: ...
    @overload
    def __get__(self, obj: Structure[Blocking], owner: Any = ...) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(
        self, obj: Structure[Awaiting], owner: Any = ...
    ) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, obj: Structure[Deferred], owner: Any = ...) -> Callable[P, Stream[T]]: ...
    def __get__(self, obj: Any, owner: Any = None) -> Any:
        """Bind to a structure: a function that returns an iterator as the face wants."""
        if obj is None:
            return self
        steps, iterate = self.steps, obj._driver.iterate

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return iterate(steps(obj, *args, **kwargs))

        call.__name__ = self.__name__
        call.__doc__ = self.__doc__
        return call


def pages(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut values into lists of at most ``size``: the batches of a bulk operation."""
    page: list[T] = []
    for value in values:
        page.append(value)
        if len(page) >= size:
            yield page
            page = []
    if page:
        yield page
