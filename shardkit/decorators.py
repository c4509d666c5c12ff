"""Decorators that hand a function its connection.

::

    @kit.redis_connection("unique")                    # the component's unsharded entry
    def expected_visitors(conn, day): ...

    @kit.sharded_connection("unique", shards=16)       # the shard of the first argument
    def count_visit(conn, session_id): ...

    @kit.sharded_connection("timelines", key="user")   # the shard of the argument `user`
    async def post(conn, text, user): ...              # an async function gets an awaiting client

The connection is a redis-py client, found anew for every call: a look-up and a glance at the
clock. A generator finds it when it is first advanced. In a method it comes right after ``self`` or
``cls``: a function whose first parameter has one of these names is taken for a method.

The wrapped function's signature, type and metadata are its own without the connection.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

import redis
import redis.asyncio as aioredis

from shardkit.commands import Key
from shardkit.errors import RoutingError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

KeyOf: TypeAlias = str | Callable[..., Key] | None


class Connections(Protocol):
    """What decorators ask for connections: a kit's client plane, or the default kit's."""

    def connection(self, component: str) -> Any:
        """Return the client of a component's unsharded entry."""

    def shard_connection(self, component: str, shards: int | None, key: Key) -> Any:
        """Return the client of the shard of a key."""

    def aconnection(self, component: str) -> Awaitable[Any]:
        """Return the awaiting client of a component's unsharded entry."""

    def ashard_connection(self, component: str, shards: int | None, key: Key) -> Awaitable[Any]:
        """Return the awaiting client of the shard of a key."""


class Decorator(Protocol):
    """Removes a function's connection parameter; mypy and pyright see which one."""

    @overload
    def __call__(self, function: Callable[Concatenate[redis.Redis, P], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[aioredis.Redis, P], R], /
    ) -> Callable[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[redis.RedisCluster, P], R], /
    ) -> Callable[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[aioredis.RedisCluster, P], R], /
    ) -> Callable[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, redis.Redis, P], R], /
    ) -> Callable[Concatenate[S, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, aioredis.Redis, P], R], /
    ) -> Callable[Concatenate[S, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, redis.RedisCluster, P], R], /
    ) -> Callable[Concatenate[S, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[S, aioredis.RedisCluster, P], R], /
    ) -> Callable[Concatenate[S, P], R]: ...


def redis_connection(connections: Connections, component: str) -> Decorator:
    """Return a decorator that hands over the connection of a component's unsharded entry.

    Args:
        connections: the client plane.
        component: the component's name.

    Raises (the decorated function, when it is called):
        MissingEntryError: the component has no unsharded entry; names the key.
        ConfigError: where it lives cannot be read.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        return _wrap(
            function,
            lambda args, kwargs: connections.connection(component),
            lambda args, kwargs: connections.aconnection(component),
        )

    return decorate


def sharded_connection(
    connections: Connections,
    component: str,
    shards: int | None = None,
    key: KeyOf = None,
) -> Decorator:
    """Return a decorator that hands over the connection of the shard of a key.

    Args:
        connections: the client plane.
        component: the component's name.
        shards: how many shards it has, checked at every call; None for as many as it has.
        key: what is routed by: None for the first argument of the call, the name of a parameter,
            or a function of the call's arguments (without connection) that returns the key.

    Raises (the decorated function, when it is called):
        ShardCountError: the component has another number of shards.
        MissingEntryError: an entry is missing, or the component is not sharded.
        InvalidKeyError: the key is neither text, bytes nor an integer.
        ConfigError: where the component lives cannot be read.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        key_of = _key_of(function, key)
        find, afind = connections.shard_connection, connections.ashard_connection
        return _wrap(
            function,
            lambda args, kwargs: find(component, shards, key_of(args, kwargs)),
            lambda args, kwargs: afind(component, shards, key_of(args, kwargs)),
        )

    return decorate


Find: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def _wrap(function: Callable[..., Any], find: Find, afind: Find) -> Callable[..., Any]:
    """Wrap a function in one of its own kind that finds the connection first."""
    parameters = list(inspect.signature(function).parameters.values())
    before = _before(function)
    if len(parameters) <= before:
        raise RoutingError(
            f"{function.__qualname__} takes no connection",
            "give it a first parameter (after self) for it",
        )
    if inspect.isasyncgenfunction(function):
        wrapper = _async_generator(function, afind, before)
    elif inspect.iscoroutinefunction(function):
        wrapper = _coroutine(function, afind, before)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(function, find, before)
    elif before:
        wrapper = _method(function, find)
    else:
        wrapper = _function(function, find)
    functools.update_wrapper(wrapper, function)
    taken = parameters.pop(before)
    signature = inspect.signature(function).replace(parameters=parameters)
    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__annotations__ = {
        name: kind for name, kind in function.__annotations__.items() if name != taken.name
    }
    return wrapper


def _before(function: Callable[..., Any]) -> int:
    """Return how many arguments come before the connection: 1 in a method, else 0."""
    first = next(iter(inspect.signature(function).parameters), "")
    return int(first in ("self", "cls"))


def _function(function: Callable[..., Any], find: Find) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(find(args, kwargs), *args, **kwargs)

    return wrapper


def _method(function: Callable[..., Any], find: Find) -> Callable[..., Any]:
    def wrapper(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(self, find(args, kwargs), *args, **kwargs)

    return wrapper


def _generator(function: Callable[..., Any], find: Find, before: int) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        connection = find(args[before:], kwargs)
        return (yield from function(*args[:before], connection, *args[before:], **kwargs))

    return wrapper


def _coroutine(function: Callable[..., Any], afind: Find, before: int) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        connection = await afind(args[before:], kwargs)
        return await function(*args[:before], connection, *args[before:], **kwargs)

    return wrapper


def _async_generator(function: Callable[..., Any], afind: Find, before: int) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        connection = await afind(args[before:], kwargs)
        inner = function(*args[:before], connection, *args[before:], **kwargs)
        try:
            value = await anext(inner)
            while True:  # what `yield from` does for a plain generator
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


def _key_of(function: Callable[..., Any], key: KeyOf) -> Find:
    """Return the function that finds the routing key among a call's arguments."""
    if callable(key):
        return lambda args, kwargs: key(*args, **kwargs)
    parameters = list(inspect.signature(function).parameters.values())[_before(function) + 1 :]
    named = [p for p in parameters if p.name == key] if key is not None else parameters[:1]
    if not named or (key is None and named[0].kind is inspect.Parameter.VAR_KEYWORD):
        wanted = f"parameter {key!r}" if key is not None else "parameter to route by"
        raise RoutingError(
            f"{function.__qualname__} has no {wanted}",
            "say key= the name of a parameter, or a function of the call's arguments",
        )
    parameter = named[0]
    name, default = parameter.name, parameter.default
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        position = len(parameters)  # never given by position
    else:
        position = parameters.index(parameter)

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > position:
            return args[position]
        value = kwargs.get(name, default)
        if value is inspect.Parameter.empty:
            raise TypeError(
                f"{function.__qualname__}() missing the argument {name!r}, which decides its shard"
            )
        return value

    return find
