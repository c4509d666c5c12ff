"""Decorators that pass a connection to a function; see docs/routing.md.

The connection is a redis-py client, looked up at every call; for a generator, when it starts. An
async function gets an awaiting client. In a method, the connection comes after ``self`` or ``cls``:
a function whose first parameter has one of these names counts as a method.

Decorators can be stacked; the one closest to ``def`` passes the first connection. If that is a
``sharded_connection``, it needs ``key="name"``, because the first argument of its calls is the
connection of the decorator above.

The wrapper has the function's signature, type and metadata, without the connection.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

import redis
import redis.asyncio as aioredis

from shardkit.config.problem import shown
from shardkit.config.read_from import ReadFrom
from shardkit.errors import InvalidArgumentError, RoutingError
from shardkit.events import FunctionCalled, emit, handlers
from shardkit.kit.lookup import CallSite, Plane
from shardkit.operations.arguments import Seconds
from shardkit.operations.commands import Key

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C", redis.Redis, aioredis.Redis, redis.RedisCluster, aioredis.RedisCluster)

KeyOf: TypeAlias = str | Callable[..., Key] | None
Find: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Returns the connection for a call's arguments."""
Finder: TypeAlias = Callable[[Callable[..., Any], Callable[..., Any]], Find]
"""Makes a `Find` for a function, of a plane's method that returns clients."""


class Decorator(Protocol):
    """Removes a function's connection parameter, in a way that mypy and pyright understand."""

    @overload
    def __call__(self, function: Callable[Concatenate[C, P], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, C, P], R], /
    ) -> Callable[Concatenate[S, P], R]: ...


def redis_connection(
    connections: Plane,
    component: str,
    max_age: Seconds | None = None,
    read_from: str | ReadFrom | None = None,
) -> Decorator:
    """Return a decorator that passes the connection of a component's unsharded entry.

    Args:
        max_age: the age, in seconds, from which a call makes the entry be read again, in the
            background. None for about one second, which is also the maximum.
        read_from: where single commands that only read go: ``replica``, ``prefer_replica``,
            ``nearest``, ``zone``, ``zone_replica``, or a `shardkit.network.replicas.ReadFrom`; None
            for what the entries say, else the master. All other commands, pipelines and scripts go
            to the master.

    Raises (the decorated function, when it is called):
        MissingEntryError: the component has no unsharded entry; names the key.
        ConfigError: the entry cannot be read.
    """
    _check_component(component, "redis_connection")
    site = CallSite(component, read_from=read_from, max_age=max_age, unsharded=True)

    def finder(function: Callable[..., Any], client: Callable[..., Any]) -> Find:
        called = _full_name(function)

        def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if handlers:
                emit(FunctionCalled(called))
            return client(site)

        return find

    return _decorator(connections, finder)


def sharded_connection(
    connections: Plane,
    component: str,
    shards: int | None = None,
    key: KeyOf = None,
    max_age: Seconds | None = None,
    placement: str | None = None,
    read_from: str | ReadFrom | None = None,
) -> Decorator:
    """Return a decorator that passes the connection of the shard of a key.

    Args:
        shards: the number of shards it must have, checked at every call; None for any number.
        key: the key to route by: None for the call's first argument, the name of a parameter, or a
            function of the call's arguments (without self and connection) that returns the key.
        placement: how keys must be placed on ``shards``; None for the stored placement, or
            ``crc32`` if the entries were written by hand, without ``config:shards:<component>``.

    Without ``shards``, a component that has only an unsharded entry is one shard.

    Raises (the decorated function, when it is called):
        ShardCountError: the component has another number of shards.
        InvalidArgumentError: the component has another placement.
        MissingEntryError: an entry is missing; names its key.
        InvalidKeyError: the key is not text, bytes or an integer.
        ConfigError: the component's entries cannot be read.
    """
    _check_component(component, "sharded_connection")
    site = CallSite(component, shards, placement, read_from, max_age)

    def finder(function: Callable[..., Any], client: Callable[..., Any]) -> Find:
        position, name, other = _key_of(function, key)
        called = _full_name(function)

        def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if handlers:
                emit(FunctionCalled(called))
            if len(args) > position:
                return client(site, args[position])
            return client(site, kwargs[name] if name in kwargs else other(args, kwargs))

        return find

    return _decorator(connections, finder)


def _check_component(component: object, decorator: str) -> None:
    """Refuse a component's name that is not text, such as the decorated function."""
    if not isinstance(component, str):
        name = getattr(component, "__name__", "")
        what = f"function {name}" if callable(component) and name else shown("", component)
        raise InvalidArgumentError(
            f"@{decorator} got {what} instead of a component's name",
            f'write @{decorator}("<component>")',
        )


def _decorator(connections: Plane, finder: Finder) -> Decorator:
    def decorate(function: Callable[..., Any]) -> Any:
        if isinstance(function, staticmethod | classmethod):
            return type(function)(decorate(function.__func__))
        return _wrap(function, connections, finder)

    return decorate


def _wrap(function: Callable[..., Any], connections: Plane, finder: Finder) -> Callable[..., Any]:
    """Wrap a function in one of the same kind, which looks the connection up first."""
    signature = inspect.signature(function)
    parameters, before = _parameters(function)
    kind = _called(function)
    if inspect.isasyncgenfunction(kind):
        wrapper = _async_generator(function, finder(function, connections.aclient), before)
    elif inspect.iscoroutinefunction(kind):
        wrapper = _async_function(function, finder(function, connections.aclient), before)
    elif inspect.isgeneratorfunction(kind):
        wrapper = _generator(function, finder(function, connections.client), before)
    else:
        wrapper = (_method if before else _function)(function, finder(function, connections.client))
    functools.update_wrapper(wrapper, function)
    parameter = parameters[before]
    if parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[before]
    wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters
    )
    wrapper.__annotations__ = {
        name: hint
        for name, hint in getattr(function, "__annotations__", {}).items()
        if name != parameter.name
    }
    return wrapper


_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def _parameters(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], int]:
    """Return a function's parameters, and the connection's index: 1 in a method, otherwise 0."""
    parameters = list(inspect.signature(function).parameters.values())
    before = int(bool(parameters) and parameters[0].name in ("self", "cls"))
    if len(parameters) <= before or parameters[before].kind not in _BY_POSITION:
        raise RoutingError(
            f"{_name(function)} has no parameter for a connection",
            "add a first parameter (after self) for the connection",
        )
    return parameters, before


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _full_name(function: Callable[..., Any]) -> str:
    inner = _called(function)
    return f"{getattr(inner, '__module__', '')}.{_name(inner)}"


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a partial or a callable object calls."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__name__"):
        function = function.__call__  # type: ignore[operator]
    return function


def _function(function: Callable[..., Any], find: Find) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(find(args, kwargs), *args, **kwargs)

    return wrapper


def _method(function: Callable[..., Any], find: Find) -> Callable[..., Any]:
    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(self, find(args, kwargs), *args, **kwargs)

    return wrapper


def _async_function(function: Callable[..., Any], afind: Find, before: int) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        connection = afind(args[before:], kwargs)
        if type(connection) is CoroutineType:  # redis-py's clients are Awaitable, too
            connection = await connection
        return await function(*args[:before], connection, *args[before:], **kwargs)

    return wrapper


def _generator(function: Callable[..., Any], find: Find, before: int) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        connection = find(args[before:], kwargs)
        return (yield from function(*args[:before], connection, *args[before:], **kwargs))

    return wrapper


def _async_generator(function: Callable[..., Any], afind: Find, before: int) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        connection = afind(args[before:], kwargs)
        if type(connection) is CoroutineType:
            connection = await connection
        inner = function(*args[:before], connection, *args[before:], **kwargs)
        try:
            value = await anext(inner)
            while True:  # as `yield from` does in a plain generator
                try:
                    sent = yield value
                except GeneratorExit:
                    raise
                except BaseException as error:
                    value = await inner.athrow(error)
                else:
                    value = await inner.asend(sent)
        except StopAsyncIteration:
            return
        finally:
            await inner.aclose()

    return wrapper


_NEVER = sys.maxsize  # the position of an argument that cannot be given by position
_NO_NAME = ""  # the name of an argument that cannot be given by name


def _key_of(function: Callable[..., Any], key: KeyOf) -> tuple[int, str, Find]:
    """Return the routing key's position and name, and a function for calls with neither.

    The function takes the call's arguments, and returns the key or raises TypeError.
    """
    if callable(key):
        return _NEVER, _NO_NAME, lambda args, kwargs: key(*args, **kwargs)
    parameters, before = _parameters(function)
    parameters = parameters[before + 1 :]
    variable = inspect.Parameter.VAR_KEYWORD
    named = [p for p in parameters if p.kind is not variable and key in (None, p.name)]
    if named:
        name, default = named[0].name, named[0].default
        by_position = named[0].kind in _BY_POSITION
        position = parameters.index(named[0]) if by_position else _NEVER
    elif key is not None and parameters and parameters[-1].kind is variable:
        name, default, position = key, inspect.Parameter.empty, _NEVER
    else:
        wanted = f"parameter {key!r}" if key is not None else "parameter to route by"
        raise RoutingError(
            f"{_name(function)} has no {wanted}",
            "set key= to the name of a parameter, or a function of the call's arguments",
        )

    def without(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if default is inspect.Parameter.empty:
            raise TypeError(
                f"{_name(function)}() missing 1 required argument: {name!r}, which decides its "
                "shard"
            )
        return default

    return position, name, without
