"""Operations: methods written once as pure steps, run blocking, awaiting, or composed.

A step generator yields batches and is sent their replies, without I/O of its own::

    class Members(Structure[Face]):
        @operation
        def add(self, member: str) -> Operation[bool]:
            [added] = yield [self._at(member, "SADD", self.name, member)]
            return bool(added)

The result of a call depends on the face of the structure: a blocking kit's returns the value, an
async kit's a coroutine, and ``structure.deferred`` the steps, not yet started, for ``yield from``
and ``together``.

A `stream` is an operation with many values: between its batches it yields pages of them. Its calls
return an iterator, an async iterator, or the steps.

Overloads of ``__get__`` give mypy and pyright the exact types of each face. At run time a method
has the name, docstring and signature of its steps, with the return type of its face.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from types import MethodType, NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.operations.arguments import argument_check, check_calls, check_integer, refusal
from shardkit.operations.commands import (
    Abandon,
    Argument,
    AwaitWakeup,
    Batch,
    Call,
    Command,
    Key,
    Locate,
    Pause,
    Subscribe,
    To,
    is_separated,
)

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Step: TypeAlias = Batch | Locate | Pause | Subscribe | AwaitWakeup | Abandon | Call
Operation: TypeAlias = Generator[Step, Any, T]


def relocated(steps: Callable[P, Operation[T]]) -> Callable[P, Operation[T]]:
    """Have steps that use keys together where they live begin again if a split separates these.

    What they have done by then must be repeatable.
    """

    @functools.wraps(steps)
    def again(*args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        for _ in range(2):  # splits of one call
            try:
                return (yield from steps(*args, **kwargs))
            except ShardErrors as errors:
                if not all(map(is_separated, errors.exceptions)):
                    raise
        return (yield from steps(*args, **kwargs))

    return again


class Page(list[T]):
    """Values that a stream yields, in order."""


Stream: TypeAlias = Generator[Step | Page[T], Any, None]


class Cursor:
    """A cursor, which starts again when the key has moved to another database.

    So what is there all the time comes at least once. Reads begin at ``at``, and set the next.
    """

    def __init__(self, to: To, key: Key) -> None:
        self._to, self._key = to, key
        self._places: Any = None
        self.at: Any = 0

    def more(self) -> Operation[bool]:
        """Return whether there is more to read."""
        location = Locate([(self._to, self._key)], by_address=True)
        before, self._places = self._places, (yield location)
        if before not in (None, self._places):
            self.at = 0
        return bool(self.at != b"0")

    def read(self, name: str, count: int) -> Operation[list[bytes] | None]:
        """Return about ``count`` elements by HSCAN, SSCAN or ZSCAN; None at the end."""
        if not (yield from self.more()):
            return None
        scan = (name, self._key, self.at, "COUNT", count)
        [(self.at, elements)] = yield [Command(self._to, self._key, scan)]
        return elements  # type: ignore[no-any-return]


class Blocking:
    """The face of a kit that blocks."""


class Awaiting:
    """The face of an async kit."""


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


# Attributes of structures that other parts of the package use, and no user.
_PARTS = frozenset(
    {
        *("abandon_call", "extend_call", "extend_hold", "monotonic", "release_call"),
        *("new_attempt", "callbacks", "kind", "layout", "meta", "meta_key", "open"),
        *("parameters", "move_due", "unknown_delay"),
    }
)


class DeferredFace(Protocol[T_co]):
    """The type of `Structure.deferred`: ``deferred: DeferredFace[Guestbook[Deferred]]``."""

    def __get__(self, obj: Any, owner: Any = None) -> T_co:
        """Return the structure with that face."""


class Structure(Generic[Face]):
    """The base of everything that has operations. Threads may share it, and so may tasks.

    Its calls raise InvalidArgumentError for an argument of the wrong type or out of range, before
    anything is sent, ShardErrors if a server failed, and ClosedError once the kit is closed.

    Args:
        driver: what runs its steps; decides the face.
        component: where its keys live.
        name: the key prefix of its data.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_calls(cls)

    def __init__(self, driver: Driver, component: str, name: str) -> None:
        self._driver = driver
        self.component = component
        self.name = name

    def _at(self, key: Key, *args: Argument, idempotent: bool = False) -> Command:
        """Return a command for the shard on which ``key`` lives."""
        return Command(self.component, key, args, None, idempotent)

    @property
    def deferred(self) -> Any:
        """The same object, but its calls return operations, to combine with ``kit.together``."""
        deferred = copy.copy(self)
        deferred._driver = _Defer()
        return deferred

    def __dir__(self) -> Iterable[str]:
        """Name what users need: completion in a shell leaves out a structure's own parts."""
        return [name for name in super().__dir__() if name not in _PARTS and name[:1] != "_"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, component={self.component!r})"


class _Method:
    """What `operation` and `stream` share: a function for each kind of driver."""

    _entry_point: str  # the driver's method that runs the steps

    def __init__(self, steps: Callable[..., Any]) -> None:
        self.steps = steps
        self._functions: dict[type, Any] = {}
        functools.update_wrapper(self, steps)  # type: ignore[arg-type]  # it is called when bound

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        """Bind to a structure, or return a function for a structure of any face."""
        kind = NoneType if obj is None else type(obj._driver)
        try:
            function = self._functions[kind]
        except KeyError:
            function = self._functions[kind] = self._function_for(kind)
        return function if obj is None else MethodType(function, obj)

    def _function_for(self, driver: type) -> Any:
        """Return a function that runs the steps, with the name, text and signature of the method.

        For asyncio, that of the awaiting face is a coroutine function.
        """
        steps = self.steps
        check, runner = argument_check(steps), attrgetter(self._entry_point)

        def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                check(self, args, kwargs)
            except InvalidArgumentError as error:
                raise refusal(error, lambda: next(steps(self, *args, **kwargs))) from None
            return runner(self._driver)(steps(self, *args, **kwargs))

        public: Any = functools.update_wrapper(call, steps)
        signature = inspect.signature(steps)
        awaits = inspect.iscoroutinefunction(getattr(driver, "run", None))
        if driver is not _Defer:
            returns = self._returned(signature.return_annotation, awaits)
            signature = signature.replace(return_annotation=returns)
        public.__signature__ = signature
        public.__annotations__ = {**steps.__annotations__, "return": signature.return_annotation}
        public.steps = steps
        if awaits and self._entry_point == "run":
            if sys.version_info >= (3, 12):
                inspect.markcoroutinefunction(public)
            else:  # what asyncio.iscoroutinefunction looks for
                public._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
        return public

    @staticmethod
    def _returned(annotation: Any, awaits: bool) -> Any:
        """Return the annotation of a call's result, given that of the steps."""
        if not isinstance(annotation, str):  # without ``from __future__ import annotations``
            return get_args(annotation)[-1] if get_args(annotation) else annotation
        match = re.fullmatch(
            r"(?:\w+\.)*(Operation|Stream|Generator)\[(.*?)(?:, Any, None)?\]",
            annotation,
            re.DOTALL,
        )
        if match is None:
            return annotation
        if match[1] == "Operation":
            return match[2]
        return f"{'AsyncIterator' if awaits else 'Iterator'}[{match[2]}]"


class operation(_Method, Generic[P, T]):  # noqa: N801 - a decorator
    """Make a method of a step generator; see the module's text.

    Attributes:
        steps: the generator function itself, for an override that builds on what it overrides:
            ``yield from Base.method.steps(self, …)``.
    """

    _entry_point = "run"

    if TYPE_CHECKING:
        steps: Callable[Concatenate[Any, P], Operation[T]]

        def __init__(self, steps: Callable[Concatenate[Any, P], Operation[T]]) -> None: ...
        @overload
        def __get__(self, obj: None, owner: Any = ...) -> operation[P, T]: ...
        @overload
        def __get__(self, obj: Structure[Blocking], owner: Any = ...) -> Callable[P, T]: ...
        @overload
        def __get__(
            self, obj: Structure[Awaiting], owner: Any = ...
        ) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(
            self, obj: Structure[Deferred], owner: Any = ...
        ) -> Callable[P, Operation[T]]: ...
        def __get__(self, obj: Any, owner: Any = None) -> Any: ...


class stream(_Method, Generic[P, T]):  # noqa: N801 - a decorator
    """Make a method of a step generator that also yields pages; ``steps``: see `operation`."""

    _entry_point = "iterate"

    if TYPE_CHECKING:
        steps: Callable[Concatenate[Any, P], Stream[T]]

        def __init__(self, steps: Callable[Concatenate[Any, P], Stream[T]]) -> None: ...
        @overload
        def __get__(self, obj: None, owner: Any = ...) -> stream[P, T]: ...
        @overload
        def __get__(
            self, obj: Structure[Blocking], owner: Any = ...
        ) -> Callable[P, Iterator[T]]: ...
        @overload
        def __get__(
            self, obj: Structure[Awaiting], owner: Any = ...
        ) -> Callable[P, AsyncIterator[T]]: ...
        @overload
        def __get__(self, obj: Structure[Deferred], owner: Any = ...) -> Callable[P, Stream[T]]: ...
        def __get__(self, obj: Any, owner: Any = None) -> Any: ...


def pages(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cut values into lists of at most ``size``: the batches of a bulk operation."""
    try:
        iterator = iter(values)
    except TypeError:
        raise InvalidArgumentError(
            f"{type(values).__name__} where several values are expected", "pass a list of them"
        ) from None
    check_integer("pages", "size", size, 1, 2**31)
    while page := list(islice(iterator, size)):
        yield page
