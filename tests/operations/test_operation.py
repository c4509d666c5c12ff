"""The descriptors: what a call gives on each face, and that methods stay methods."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Required, TypedDict, Unpack

import pytest
from operation_helpers import (
    AwaitingDriver,
    AwaitingScriptedLink,
    BlockingDriver,
    ScriptedLink,
    say,
)

from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.operations import Face, Operation, Page, Stream, Structure, operation, stream

if TYPE_CHECKING:
    from decimal import Decimal


class Things(Structure[Face]):
    @operation
    def first(self, n: int, *, word: str = "GET") -> Operation[Any]:
        """Return the first."""
        [reply] = yield [say(word, n)]
        return reply

    @operation
    def both(self, *numbers: int) -> Operation[list[Any]]:
        found = []
        for n in numbers:
            found += [(yield from self.deferred.first(n))]
        return found

    @stream
    def all(self, count: int) -> Stream[int]:
        """Iterate."""
        for n in range(count):
            yield Page((yield [say("GET", n), say("GET", -n)]))

    @operation
    def plain(self) -> Operation[str]:
        return self.name
        yield


def blocking() -> Any:
    return Things(BlockingDriver(ScriptedLink()), "c", "things")


def awaiting() -> Any:
    return Things(AwaitingDriver(AwaitingScriptedLink()), "c", "things")


async def test_each_face_gives_its_own_kind_of_value() -> None:
    assert blocking().first(7) == 7
    coroutine = awaiting().first(7)
    assert inspect.iscoroutine(coroutine)
    assert await coroutine == 7
    steps = blocking().deferred.first(7)
    assert inspect.isgenerator(steps)
    assert next(steps) == [say("GET", 7)]


async def test_streams_are_iterators_of_their_face() -> None:
    numbers = blocking().all(3)
    assert isinstance(numbers, Iterator)
    assert list(numbers) == [0, 0, 1, -1, 2, -2]
    awaited = awaiting().all(2)
    assert isinstance(awaited, AsyncIterator)
    assert [n async for n in awaited] == [0, 0, 1, -1]
    assert inspect.isgenerator(blocking().deferred.all(1))


def test_methods_keep_their_names_documentation_and_arguments() -> None:
    things = blocking()
    assert things.first.__name__ == "first"
    assert things.first.__doc__ == "Return the first."
    assert things.all.__name__ == "all"
    assert Things.first.__doc__ == "Return the first."
    assert Things.all.__doc__ == "Iterate."
    assert things.first(n=3, word="GET") == 3
    with pytest.raises(TypeError, match="first"):
        things.first()
    with pytest.raises(TypeError, match=r"takes 2 positional arguments but 3 were given"):
        things.first(1, "GET")
    with pytest.raises(ShardErrors, match=r"1 shard failed \(1\)"):
        things.first(1, word="FAIL")


def help_of(what: object) -> str:
    """What `help` shows; Python 3.14 quotes no annotations."""
    return pydoc.render_doc(what, renderer=pydoc.plaintext).replace("'", "")


def test_methods_show_their_signature_and_text_on_every_face() -> None:
    for things in (blocking(), awaiting()):
        assert str(inspect.signature(things.first)) == "(n: 'int', *, word: 'str' = 'GET') -> 'Any'"
        assert things.first.__module__ == __name__
        assert things.first.__qualname__ == "Things.first"
        shown = help_of(things.first)
        assert "first(n: int, *, word: str = GET) -> Any" in shown
        assert "Return the first." in shown
        assert inspect.getsource(things.first).lstrip().startswith("@operation")
    deferred = blocking().deferred
    assert inspect.signature(deferred.first).return_annotation == "Operation[Any]"
    assert inspect.signature(deferred.all).return_annotation == "Stream[int]"
    assert inspect.signature(blocking().all).return_annotation == "Iterator[int]"
    assert str(inspect.signature(awaiting().all)) == "(count: 'int') -> 'AsyncIterator[int]'"


def test_only_awaiting_operations_are_coroutine_functions() -> None:
    # Before 3.12 only asyncio's own can be told of functions that are none of `async def`.
    awaits = (inspect if sys.version_info >= (3, 12) else asyncio).iscoroutinefunction
    assert awaits(awaiting().first)
    assert not awaits(awaiting().all)
    assert not awaits(blocking().first)
    assert not awaits(awaiting().deferred.first)
    assert not awaits(Things.first)


async def test_an_override_takes_the_steps_of_what_it_overrides() -> None:
    class More(Things[Face]):
        @operation
        def first(self, n: int, *, word: str = "GET") -> Operation[Any]:
            return 1 + (yield from Things.first.steps(self, n * 10, word=word))

    blocks: Any = More(BlockingDriver(ScriptedLink()), "c", "more")
    awaits: Any = More(AwaitingDriver(AwaitingScriptedLink()), "c", "more")
    assert blocks.first(1) == await awaits.first(1) == 11
    assert blocks.both(1, 2) == [11, 21]


def test_arguments_are_checked_though_some_names_are_imported_for_type_checkers_only() -> None:
    class Lengths(Structure[Face]):
        @operation
        def put(self, word: str, length: Decimal, limit: int | None = None) -> Operation[Any]:
            [reply] = yield [say(word, length)]
            return reply

    lengths: Any = Lengths(BlockingDriver(ScriptedLink()), "c", "lengths")
    assert lengths.put("SET", 1) == 1
    with pytest.raises(InvalidArgumentError, match=r"lengths: word=5; give"):
        lengths.put(5, 1)
    with pytest.raises(InvalidArgumentError, match="lengths: limit='9'; give"):
        lengths.put("SET", 1, limit="9")
    assert lengths.put("SET", 1, limit=None) == 1


class Odd:
    """What cannot be compared."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError


class Options(TypedDict, total=False):
    limit: Required[int]
    order: NotRequired[Literal["up", "down"]]
    extra: Any
    is_new: bool


def test_arguments_that_are_options_are_checked_one_by_one() -> None:
    class Ordered(Structure[Face]):
        @operation
        def get(self, word: str = None, **options: Unpack[Options]) -> Operation[Any]:  # type: ignore[assignment]  # noqa: RUF013 - as some write it
            [reply] = yield [say("GET", word, *options.values())]
            return reply

    ordered: Any = Ordered(BlockingDriver(ScriptedLink()), "c", "ordered")
    extra = object()
    assert ordered.get("k", limit=1, order="up", extra=str(extra)) == str(extra)
    assert ordered.get(None, limit=2) == 2
    with pytest.raises(InvalidArgumentError, match=r"ordered: word=5; give text or None"):
        ordered.get(5, limit=1)
    with pytest.raises(InvalidArgumentError, match=r"ordered: limit='1'; give an integer"):
        ordered.get(limit="1")
    with pytest.raises(InvalidArgumentError, match=r"ordered: order='left'; give one of 'up', 'd"):
        ordered.get(limit=1, order="left")
    with pytest.raises(InvalidArgumentError, match=r"ordered: is_new=.*; give True or False"):
        ordered.get(limit=1, is_new=Odd())  # what cannot be compared is neither


def test_what_a_method_returns_is_shown_as_its_steps_say_it() -> None:
    Alias = Operation[int]  # noqa: N806 - a type

    class Shown(Structure[Face]):
        @operation
        def named(self) -> Alias:
            return 1
            yield

        @stream
        def long(self) -> Generator[Any, Any, None]:
            yield Page([1])

    def returned(method: Any) -> object:
        return inspect.signature(method).return_annotation

    blocks: Any = Shown(BlockingDriver(ScriptedLink()), "c", "shown")
    awaits: Any = Shown(AwaitingDriver(AwaitingScriptedLink()), "c", "shown")
    assert returned(blocks.named) == returned(awaits.named) == "Alias"
    assert blocks.named() == 1
    assert returned(blocks.long) == "Iterator[Any]"
    assert returned(awaits.long) == "AsyncIterator[Any]"
