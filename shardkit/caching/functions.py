"""The decorator of cached functions; see docs/cached.md."""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial
from keyword import iskeyword
from string import Formatter
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    Required,
    Self,
    TypedDict,
    TypeVar,
    overload,
)
from urllib.parse import quote_from_bytes
from uuid import UUID

from shardkit.caching.near import (
    LONGEST_AGE,
    SHORTEST_AGE,
    TAGS,
    VALUES,
    NearCopies,
    NearCopy,
    near_copies,
)
from shardkit.caching.values import CachedValues, computing
from shardkit.errors import (
    InvalidArgumentError,
    InvalidKeyError,
    ShardErrors,
    ShardKitError,
    StructureError,
)
from shardkit.operations.arguments import Seconds, check_calls, parse_json, shown
from shardkit.operations.deadlines import within
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import LONGEST_EXPIRY, check_integer, check_seconds
from shardkit.structures.codecs.compression import Compressed
from shardkit.structures.codecs.named import codec as codec_of
from shardkit.structures.codecs.plain import Codec

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
N_co = TypeVar("N_co", covariant=True)

_VALUE, _NONE, _ERROR = b"v", b"n", b"e"  # what a stored value begins with
_SHORTEST = 0.001  # seconds
_SEVERAL = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_DESCRIPTORS: tuple[Any, ...] = (classmethod, staticmethod)
_SCALARS = (str, int, float, Decimal, UUID, date, Enum)


class _Cached(Protocol[P, T_co, N_co]):
    """What a decorated function can do, whose calls return values or coroutines for them."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Return the value; one caller of all computes a missing one. One exchange, or three."""

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Compute the value now, store and return it. Cost: two exchanges."""

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> N_co:
        """Remove the value of these arguments; one being computed is not stored. One exchange."""

    def invalidate_tag(self, *tags: str) -> N_co:
        """Invalidate all values with one of these tags, of all functions. One exchange."""

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key on the server; no exchange."""

    @property
    def __wrapped__(self) -> Callable[P, T_co]:
        """The function itself, which always computes."""

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: _Cached[Concatenate[Any, Q], T_co, N_co], instance: object, owner: Any = None
    ) -> _Cached[Q, T_co, N_co]: ...


class CachedFunction(_Cached[P, T_co, None], Protocol[P, T_co]):
    """A cached function: called like the function that it decorates."""


class AsyncCachedFunction(
    _Cached[P, Coroutine[Any, Any, T_co], Coroutine[Any, Any, None]], Protocol[P, T_co]
):
    """The same of an ``async def`` function, all but ``key`` awaited; see `CachedFunction`."""


class CachingOptions(TypedDict, total=False):
    """The arguments of ``kit.cached``, which documents them."""

    ttl: Required[Seconds]
    key: Required[str]
    tags: Iterable[str]
    stale: Seconds
    codec: Codec[Any] | str | None
    cache_none: bool
    exceptions: type[Exception] | tuple[type[Exception], ...]
    fallback: bool
    near: int
    max_age: Seconds


class Caching:
    """What ``kit.cached(…)`` returns: decorates functions, and invalidates their tags.

    Args:
        opened: returns the kit of a call, from its arguments.
        component, **options: see `shardkit.ShardKit.cached`.
    """

    def __init__(
        self,
        opened: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        component: str,
        *,
        ttl: Seconds,
        key: str,
        tags: Iterable[str] = (),
        stale: Seconds = 0,
        codec: Codec[Any] | str | None = "json",
        cache_none: bool = True,
        exceptions: type[Exception] | tuple[type[Exception], ...] = (),
        fallback: bool = False,
        near: int = 0,
        max_age: Seconds = 1.0,
    ) -> None:
        if not isinstance(component, str):
            raise InvalidArgumentError(
                f"@cached got {shown(component)} instead of a component's name",
                'write @cached("<component>", …)',
            )
        owner = f"@cached({component!r})"
        given = codec_of(codec)
        if isinstance(given, Compressed):
            raise InvalidArgumentError(
                f"{owner}: codec={codec!r} needs a trained dictionary", "give gzip, lz4 or bz2"
            )
        kinds = exceptions if isinstance(exceptions, tuple) else (exceptions,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise InvalidArgumentError(
                    f"{owner}: exceptions has {shown(kind)}", "give classes of exceptions"
                )
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise InvalidArgumentError(f"{owner}: tags={shown(tags)}", "give a tuple of texts")
        check_integer(owner, "near", near, 0, 2**40)
        self.opened = opened
        self.owner = owner
        self.component, self.key, self.tags = component, key, tuple(tags)
        self.ttl = check_seconds(owner, "ttl", ttl, _SHORTEST, LONGEST_EXPIRY / 2)
        self.stale = check_seconds(owner, "stale", stale, 0, LONGEST_EXPIRY / 2)
        self.max_age = check_seconds(owner, "max_age", max_age, SHORTEST_AGE, LONGEST_AGE)
        self.codec, self.near = given, near
        self.cache_none, self.fallback, self.exceptions = cache_none, fallback, kinds

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine is a T, too
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncCachedFunction[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> CachedFunction[P, T]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Decorate a function that has the key's and the tags' parameters, and is no generator."""
        kind = type(function)
        function = getattr(function, "__func__", function) if kind in _DESCRIPTORS else function
        call = _Function(self, function).wrapped()
        in_class = _name(function).split(".")[-2:-1] not in ([], ["<locals>"])
        if not in_class or inspect.ismethod(function):
            return call
        method: Any = functools.update_wrapper(_CachedMethod(call), call)
        method.kind = kind
        return method

    def invalidate_tag(self, *tags: str) -> Any:
        """Invalidate all values with one of these tags; of an async kit it is awaited."""
        return self.values(self.opened((), {}), None)[0].remove_tags(_tag_keys(tags))

    def values(self, kit: Any, awaits: bool | None) -> tuple[Any, Any]:
        """Return the values on a face of a kit, and what renews leases."""
        driver, renewals = kit.face_of(awaits)
        near = None
        if self.near:
            near = near_copies(kit, self.component, self.near, self.max_age, (VALUES, TAGS))
        values: Any = CachedValues(driver, self.component, self.key, self.ttl, self.stale, near)
        return values, renewals


check_calls(Caching, "__init__")


class _Function:
    def __init__(self, options: Caching, function: Callable[..., Any]) -> None:
        self.options = options
        self.function = function
        self.owner = f"{options.owner} of {_name(function)}"
        try:
            self.signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{self.owner}: it is no function with known parameters",
                "write a def that calls it",
            ) from None
        called = function, type(function).__call__  # an object's own
        self.awaits = any(map(inspect.iscoroutinefunction, called))
        kinds = inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(kind(command) for kind in kinds for command in called):
            raise InvalidArgumentError(f"{self.owner}: it is a generator", "return a list instead")
        made = partial(_KeyTemplate, self.owner, self.signature)
        self.key = made("key", options.key, VALUES)
        self.tags = [made("tags", tag, TAGS) for tag in options.tags]
        self.key.make.__qualname__ = _name(function)  # in errors
        self._by_name = {_path(kind): kind for kind in options.exceptions}
        # A kit, its near copies, and what `Caching.values` returns for it.
        self._used: tuple[Any, Mapping[str, NearCopy], Any, Any] = (None, {}, None, None)

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return what `Caching.values` does, of the kit as it is now."""
        kit = self.options.opened(args, kwargs)
        used = self._used
        if used[0] is not kit:
            values, renewals = self.options.values(kit, self.awaits)
            copies = values.near.copies if values.near else {}
            used = self._used = kit, copies, values, renewals
        return used[2:]

    def steps(self, key: str, args: Any, kwargs: Any, anew: bool) -> Generator[Any, Any, Any]:
        """Take the value or compute it; yields calls."""
        values, renewals = self.values(args, kwargs)
        tags = [tag.make(*args, **kwargs) for tag in self.tags]
        near: NearCopies | None = values.near
        note = near and near.note(key, map(key_bytes, (key, *tags)))
        compute = partial(self.function, *args, **kwargs)
        try:
            stored, lease, fresh = yield partial(values.take, key, tags, anew)
        except ShardErrors:
            if not self.options.fallback:
                raise
            return (yield compute)
        if lease is None:
            try:
                value = self.load(stored)
            except StructureError:  # damaged, or of another codec
                _, lease, _ = yield partial(values.take, key, tags, True)
            else:
                if near and note:
                    near.keep(note, value, len(key) + len(stored), fresh)
                return value
        renewals.add(lease)
        data, began, outer = None, time.monotonic(), computing.get()
        computing.set((*outer, lease))  # calls inside that would wait for this value raise
        try:
            try:
                value = yield compute
            finally:
                computing.set(outer)  # no reset: an event loop's end closes steps in any context
        except Exception as error:
            data = self.dump_error(error)
            raise
        except GeneratorExit:  # the event loop has ended: the lease expires
            lease.released = True
            raise
        else:
            data = self.dump(value)
            return value if data is None else self.load(data)
        finally:
            if not lease.released:
                lease.released = True
                with within(None), suppress(ShardKitError):
                    yield partial(values.end, lease, data, time.monotonic() - began)

    def dump(self, value: Any) -> bytes | None:
        """Return a value as it is stored; None if it is not."""
        if value is None:
            return _NONE if self.options.cache_none else None
        try:
            return _VALUE + self.options.codec.encode(value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{self.owner}: it returned what cannot be stored: {error.message}", error.remedy
            ) from None

    def dump_error(self, error: Exception) -> bytes | None:
        """Return an exception as it is stored; None if it is not."""
        kinds = (kind for kind in type(error).__mro__ if kind in self.options.exceptions)
        if (kind := next(kinds, None)) is None:
            return None
        try:
            kind(*error.args)  # as `load` does
            return _ERROR + json.dumps([_path(kind), error.args]).encode()
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"{self.owner}: the arguments of {shown(error)} cannot be stored",
                "raise it with texts and numbers only",
            ) from error

    def load(self, stored: bytes) -> Any:
        """Return a stored value, or raise the exception."""
        kind, content = stored[:1], stored[1:]
        if kind == _NONE:
            return None
        if kind == _ERROR:
            try:
                name, args = parse_json(content)
                outcome = self._by_name[name](*args)
            except (ValueError, TypeError, KeyError):
                raise StructureError(f"{self.owner}: no exception", "call its refresh") from None
            raise outcome
        return self.options.codec.decode(content)

    def wrapped(self) -> Any:
        def key(*args: Any, **kwargs: Any) -> str:
            bound = self.signature.bind_partial(*args, **kwargs)  # raises
            bound.apply_defaults()
            for name in self.key.unused:
                bound.arguments.setdefault(name, None)
            return self.key.make(*bound.args, **bound.kwargs)

        def invalidate(*args: Any, **kwargs: Any) -> Any:
            values, _ = self.values(args, kwargs)
            if "kit" not in self.signature.parameters:
                kwargs.pop("kit", None)
            return values.remove([key(*args, **kwargs)])

        def invalidate_tag(*tags: str, kit: Any = None) -> Any:
            return self.values((kit,), {})[0].remove_tags(_tag_keys(tags))

        call: Any = functools.wraps(self.function)(self.caller())
        call.refresh, call.key = self.caller(anew=True), key
        call.invalidate, call.invalidate_tag = invalidate, invalidate_tag
        return call

    def caller(self, *, anew: bool = False) -> Callable[..., Any]:
        make_key, max_age, opened = self.key.make, self.options.max_age, self.options.opened

        def call(*args: Any, **kwargs: Any) -> Any:
            key = make_key(*args, **kwargs)
            used = self._used
            copy = None if anew else used[1].get(key)
            if copy is not None and copy.usable(max_age) and used[0] is opened(args, kwargs):
                return copy.value
            return run_steps(self.steps(key, args, kwargs, anew), errors=BaseException)

        async def acall(*args: Any, **kwargs: Any) -> Any:
            key = make_key(*args, **kwargs)
            used = self._used
            copy = None if anew else used[1].get(key)
            if copy is not None and copy.usable(max_age) and used[0] is opened(args, kwargs):
                return copy.value
            return await arun_steps(self.steps(key, args, kwargs, anew), errors=BaseException)

        return acall if self.awaits else call


class _CachedMethod(partial[Any]):
    """A cached function in a class; bound, it has its first argument, and so has what it can do."""

    kind: type = staticmethod

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        first = owner if self.kind is classmethod else instance
        if first is None or self.kind is staticmethod:
            return self if self.args else self.func
        return _CachedMethod(self.func, first)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.func, name)
        takes = name in ("refresh", "invalidate", "key", "__wrapped__")
        return partial(attribute, *self.args) if takes else attribute

    def __reduce__(self) -> Any:  # by name, as methods are
        return (getattr, (*self.args, self.__name__)) if self.args else self.__qualname__


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _tag_keys(tags: Iterable[str]) -> list[str]:
    for tag in tags:
        if not isinstance(tag, str):
            raise InvalidArgumentError(f"invalidate_tag: tag {shown(tag)}", "give a text")
    return [f"{TAGS}{_quoted(tag)}}}" for tag in tags]  # as `_KeyTemplate` makes them


# ---- keys


class _KeyTemplate:
    """Makes a key of a call's arguments: ``user:{user_id}``, ``cart:{user.id}:{page}``.

    Attributes:
        make: a function with the parameters of the decorated one, so that Python itself refuses
            other arguments; returns the key.
        unused: the parameters that the key does not have.
    """

    def __init__(
        self, owner: str, signature: inspect.Signature, field: str, text: str, prefix: str
    ) -> None:
        # In a key: 1:2 and 3 make no other key than 1 and 2:3. A tag is named by its whole text.
        self._separator = ":" if field == "key" else ""
        self.owner = f"{owner}: {field}={shown(text)}"
        names = [p.name for p in signature.parameters.values() if p.kind not in _SEVERAL]
        try:
            pieces = list(Formatter().parse(text))
            key_bytes(text)
        except (ValueError, TypeError, InvalidKeyError) as error:
            raise self._refused(f"is no template: {error}", 'write it like "user:{id}"') from None
        as_text = "_".join(("_text", *signature.parameters))  # no parameter has this name
        parts, used = [repr(prefix)], set()
        for before, name, form, conversion in pieces:
            parts.append(repr(_quoted(before)))
            if name is None:
                continue
            first, *path = name.split(".")
            if first not in names or not all(p.isidentifier() and not iskeyword(p) for p in path):
                known = ", ".join(names) or "none"
                raise self._refused(f"names {name!r}", f"name a parameter: {known}")
            if form or conversion:
                raise self._refused("has a format", "write the plain name: {" + name + "}")
            used.add(first)
            parts.append(f"{as_text}({name})")
        if field == "key" and signature.parameters and not used:
            raise self._refused("names no argument", 'write it like "user:{id}"')
        self.unused = {*names} - used
        own, defaults = [], {p.name: p.default for p in signature.parameters.values()}
        for p in signature.parameters.values():
            default = p.default if p.default is p.empty else p.name
            own.append(p.replace(annotation=p.empty, default=default))
        source = f"lambda {str(inspect.Signature(own))[1:-1]}: {' + '.join(parts)} + '}}'"
        make = eval(source, {as_text: self._text})
        make.__defaults__ = tuple(map(defaults.get, make.__defaults__ or ()))
        make.__kwdefaults__ = {name: defaults[name] for name in make.__kwdefaults__ or ()}
        self.make: Callable[..., str] = make

    def _refused(self, what: str, remedy: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self.owner} {what}", remedy)

    def _text(self, value: Any) -> str:
        if value is None:
            return "%" if self._separator else "None"
        if isinstance(value, bytes):
            return quote_from_bytes(value, "")
        if isinstance(value, _SCALARS):
            try:
                text = str(value)
            except ValueError:  # more than 4,300 digits
                pass
            else:
                return text if text.isalnum() else _quoted(text, self._separator)
        raise self._refused(
            f"would contain {shown(value)}",
            "name a text, a number, or an attribute that is one: {user.id}",
        )


def _quoted(text: str, more: str = "") -> str:
    """Return text without what parts or ends a key's hash tag."""
    for sign in "%{}" + more:
        if sign in text:
            text = text.replace(sign, f"%{ord(sign):02X}")
    return text
