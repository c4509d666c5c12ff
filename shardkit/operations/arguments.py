"""Checks what callers give to public methods, by the annotations of their parameters.

::

    def page(self, limit: int = 100, cursor: tuple[Key, Score] | None = None)

    scores.page(cursor=("anna", "x"))
      └─► InvalidArgumentError: scores: cursor=('anna', 'x'): give a tuple (int, str or bytes; a
          number) or None

Every `operation` and `stream` checks its arguments before it runs, and so does every other public
method of a structure, of the kit's catalogue, and of a class passed to `check_calls`. Only the kind
of a mapping or iterable is checked here; values and ranges are checked where they are encoded. A
check is compiled once for a method; an argument of the usual type costs one look-up of its class.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dates
import inspect
import json
import math
import os
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeAlias, TypeGuard, TypeVar, Union, overload

from shardkit.callbacks import makes
from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.interruptions import reraise_handlers

P = ParamSpec("P")
T = TypeVar("T")

Seconds: TypeAlias = float | dates.timedelta
"""A length of time: a number of seconds, or a timedelta."""

# Iterable, but one value.
SINGLE = (str, bytes, bytearray, memoryview)

LONGEST_WAIT = 10 * 365 * 86_400.0  # seconds

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_MOST_BITS = 14_000  # Python prints no number of more than 4,300 digits; hiredis crashes at one

# From what begins it on: a URL's ? or #, a setting's name, a short option of redis-cli or mysql.
_SECRET = re.compile(
    r"""(?isx) ( \?[^\s=?]*= | :/(?:(?!:/)[^\#])*\# | (?:^|\s)-[ap]=?\s?
    | \b(?:\w*password|passwd|pwd|pass|\w*secret|\w*token)["']?\s*(?:=|:\s)\s* ) .+"""
)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


@overload
def in_seconds(time: Seconds) -> float: ...
@overload
def in_seconds(time: Seconds | None) -> float | None: ...
def in_seconds(time: Seconds | None) -> float | None:
    """Return a length of time in seconds; whatever is no timedelta unchanged."""
    return time.total_seconds() if isinstance(time, dates.timedelta) else time


def without_secrets(text: str) -> str:
    """Return a text without what may be a password: an address's, a setting's, an option's."""
    before, colon, rest = text.partition(":")
    _, at, after = rest.rpartition("@")
    return _SECRET.sub(r"\1***", f"{before}{colon}***{at}{after}" if at else text)


def shown(value: object) -> str:
    """Return a value as messages show it: shortened in the middle when it is long."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"of {value.bit_length()} bits"
    try:
        if type(value) is str:
            return _short.repr(without_secrets(value))
        return without_secrets(_short.repr(value))
    except ValueError:  # there is such a number in it
        return type(value).__name__


@dataclasses.dataclass(frozen=True)
class Kind:
    """The values that an annotation accepts."""

    accepts: Callable[[Any], bool]
    wanted: str  # for messages
    classes: frozenset[type] = frozenset()  # whose values need no call of ``accepts``
    integers: bool = False  # whether integers of 64 bits need none either


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text that UTF-8 can hold; a member of an Enum may print another."""
    if not isinstance(value, str) or (value.__class__ is not str and f"{value}" != value):
        return False
    if value.isascii():
        return True
    try:
        str.encode(value)
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _is_integer(value: object) -> bool:
    if value.__class__ is int:
        return value.bit_length() <= _MOST_BITS
    return (
        isinstance(value, int) and value.__class__ is not bool and f"{value}" == int.__repr__(value)
    )


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says; raise ValueError where it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold; a truth value or NaN is none."""
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and value.__class__ is not bool and value.bit_length() < 1024


def check_integer(owner: str, field: str, value: int, lowest: int, highest: int) -> None:
    """Check that an argument is an integer within bounds."""
    if not _is_integer(value) or not lowest <= value <= highest:
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(value)}", f"give an integer, {lowest:,} to {highest:,}"
        )


def check_seconds(
    owner: str, field: str, value: Seconds, least: float = 0, most: float = LONGEST_WAIT
) -> float:
    """Return an argument in seconds, checked."""
    return check_number(owner, field, in_seconds(value), least, most, "seconds")


def check_number(
    owner: str, field: str, value: object, least: float, most: float, what: str = "a number"
) -> float:
    """Return an argument that is a number within bounds, checked."""
    if not is_number(value) or not least <= value <= most:
        highest = f"{most:,.0f}" if 1e6 < most < 1e16 else f"{most:,g}"
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(value)}", f"give {what}, {least:g} to {highest}"
        )
    return float(value)


_SIMPLE: dict[Any, Kind] = {
    str: Kind(is_text, "text"),
    bytes: Kind(lambda v: isinstance(v, SINGLE[1:]), "bytes"),
    int: Kind(_is_integer, "an integer", integers=True),
    float: Kind(is_number, "a number", integers=True),
    bool: Kind(lambda v: isinstance(v, int) and v in (0, 1), "True or False", frozenset({bool})),
    None: Kind(lambda v: v is None, "None", frozenset({types.NoneType})),
    types.NoneType: Kind(lambda v: v is None, "None", frozenset({types.NoneType})),
    dates.date: Kind(lambda v: isinstance(v, dates.date), "a date"),
    dates.datetime: Kind(lambda v: isinstance(v, dates.datetime), "a datetime"),
    dates.timedelta: Kind(lambda v: isinstance(v, dates.timedelta), "a timedelta"),
}

_PATH = Kind(  # perhaps not UTF-8
    lambda v: isinstance(v, str | os.PathLike) and v != "" and b"\0" not in os.fsencode(v),
    "text or a Path without NUL",
)
_PATHS = {Path, os.PathLike}
_KEYS = {int, str, bytes}
# A member of an enumeration is encoded as its value.
_ENCODED = Kind(lambda v: isinstance(v, str) or (isinstance(v, int) and is_number(v)), "an integer")


@cache
def kind_of(annotation: Any, elements: bool = False) -> Kind | None:
    """Return what an annotation accepts, its elements too if asked; None if it accepts anything."""
    if annotation is Any:
        return None
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if isinstance(annotation, TypeVar):
        bound = annotation.__bound__
        return kind_of(bound) if bound is not None and not isinstance(bound, str) else None
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return _any_of(args, elements)
    if origin is Literal:
        return Kind(
            lambda v: isinstance(v, SINGLE) and v in args, "one of " + ", ".join(map(repr, args))
        )
    if origin is tuple:
        return _tuple(args, elements)
    base = origin or annotation
    if base is collections.abc.Callable:
        if args and args[-1] is not Any and typing.get_origin(args[-1]) is None:
            return Kind(lambda v: callable(v) and not makes(v), "a plain function")
        return Kind(callable, "a function")  # may return an iterator, or anything
    if elements and args and isinstance(base, type) and issubclass(base, Iterable):
        return _each_of(base, args)
    if base is collections.abc.Mapping:
        return Kind(lambda v: isinstance(v, Mapping), "a mapping")
    if base in (collections.abc.Iterable, collections.abc.Collection, collections.abc.Sequence):
        return Kind(
            lambda v: isinstance(v, base) and not isinstance(v, SINGLE), "a list", frozenset({list})
        )
    if base in _PATHS:
        return _PATH
    if not isinstance(base, type) or getattr(base, "_is_protocol", False) or base is object:
        return None
    return _instance(base)


def _any_of(annotations: tuple[Any, ...], elements: bool = False) -> Kind | None:
    if any((typing.get_origin(one) or one) in _PATHS for one in annotations):
        annotations = tuple(one for one in annotations if one is not str)
    kinds = [kind_of(one, elements) for one in annotations]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    classes = frozenset().union(*(kind.classes for kind in known))
    if set(annotations) >= _KEYS:  # what encodes keys refuses lone surrogates
        classes |= set(annotations) & {str, bytes, float}
        known.sort(key=lambda kind: kind.wanted != _SIMPLE[int].wanted)
        known.append(_ENCODED)
    wanted = list(dict.fromkeys(kind.wanted for kind in known))
    if "a number" in wanted and "an integer" in wanted:
        wanted.remove("an integer")
    several = ", ".join(wanted[:-1]) + " or " + wanted[-1] if len(wanted) > 1 else wanted[0]

    def accepts(value: object) -> bool:
        for kind in known:  # noqa: SIM110 - half the time of any() with a generator
            if kind.accepts(value):
                return True
        return False

    return Kind(accepts, several, classes, any(kind.integers for kind in known))


def _each_of(base: Any, annotations: tuple[Any, ...]) -> Kind:
    whole, kinds = kind_of(base), [kind_of(one, True) for one in annotations]
    assert whole is not None, base

    def accepts(value: Any) -> bool:
        if not whole.accepts(value):
            return False
        rows = value.items() if len(kinds) == 2 else zip(value)
        pairs = (pair for row in rows for pair in zip(kinds, row, strict=True))
        return all(kind is None or kind.accepts(v) for kind, v in pairs)

    parts = " to ".join(kind.wanted if kind else "a value" for kind in kinds)
    return Kind(accepts, f"{whole.wanted} of {parts}")


def _tuple(annotations: tuple[Any, ...], elements: bool) -> Kind:
    if len(annotations) == 2 and annotations[1] is ...:
        element = kind_of(annotations[0], elements)
        return Kind(
            lambda v: isinstance(v, tuple) and (element is None or all(map(element.accepts, v))),
            f"a tuple, each of it {element.wanted}" if element else "a tuple",
        )
    kinds = [kind_of(one, elements) for one in annotations]

    def accepts(value: object) -> bool:
        return (
            isinstance(value, tuple | list)
            and len(value) == len(kinds)
            and all(kind is None or kind.accepts(v) for kind, v in zip(kinds, value, strict=True))
        )

    parts = "; ".join(kind.wanted if kind else "a value" for kind in kinds)
    return Kind(accepts, f"a tuple ({parts})")


def _instance(base: type) -> Kind:
    """Return a kind of instances; those of named tuples are checked field by field."""
    article = "an" if base.__name__[0] in "AEIOU" else "a"
    wanted = f"{article} {base.__name__}"
    if not (issubclass(base, tuple) and hasattr(base, "_fields")):
        return Kind(lambda v: isinstance(v, base), wanted)
    hints = annotations_of(base)
    fields = [(n, kind) for n, name in enumerate(base._fields) if (kind := kind_of(hints[name]))]
    return Kind(
        lambda v: isinstance(v, base) and all(kind.accepts(v[n]) for n, kind in fields),
        f"{wanted} as it was returned",
    )


def annotations_of(function: Any) -> dict[str, Any]:
    """Return the evaluated annotations of a function or class, as far as their names exist."""
    try:
        return typing.get_type_hints(function)
    except NameError:
        known = {}
        module = inspect.getmodule(function)
        for name, text in function.__annotations__.items():
            try:
                known[name] = eval(text, vars(module)) if isinstance(text, str) else text
            except NameError:  # imported for type checkers only
                continue
        return known


def argument_check(
    function: Callable[..., Any], elements: bool = False
) -> Callable[[Any, Any, Any], None]:
    """Return a function that checks the owner, ``args`` and ``kwargs`` of a method's call.

    With ``elements``, the function is no method, and what its arguments contain is checked, too.
    """
    hints = annotations_of(function)
    positional: list[tuple[frozenset[type], Kind | None, str]] = []
    named: dict[str, Kind] = {}
    rest: Kind | None = None
    rest_name = ""
    parameters = list(inspect.signature(function).parameters.values())[not elements :]
    for parameter in parameters:
        annotation = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_KEYWORD:
            if typing.get_origin(annotation) is typing.Unpack:
                options = typing.get_args(annotation)[0]
                for name, option in annotations_of(typing.get_origin(options) or options).items():
                    if wanted_kind := kind_of(option, elements):
                        named[name] = wanted_kind
            continue
        kind = kind_of(annotation, elements)
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest, rest_name = kind, parameter.name
            continue
        if kind is not None and parameter.default is None and not kind.accepts(None):
            kind = _any_of((annotation, None))
        if kind is not None:
            named[parameter.name] = kind
        if parameter.kind is not parameter.KEYWORD_ONLY:
            classes = kind.classes if kind else frozenset[type]()
            positional.append((classes, kind, parameter.name))

    def check(owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value, (classes, kind, name) in zip(args, positional):  # noqa: B905 - saying it takes long
            class_ = value.__class__
            if class_ in classes or kind is None:
                continue
            if class_ is int and kind.integers and _LOWEST <= value <= _HIGHEST:
                continue
            if not _accepts(kind, value):
                raise refused(owner, name, value, kind)
        if rest is not None:
            for value in args[len(positional) :]:
                if value.__class__ not in rest.classes and not _accepts(rest, value):
                    raise refused(owner, rest_name, value, rest)
        for name, value in kwargs.items() if kwargs else ():
            given = named.get(name)
            if given is None or value.__class__ in given.classes or _accepts(given, value):
                continue
            raise refused(owner, name, value, given)

    return check


def _accepts(kind: Kind, value: object) -> bool:
    try:
        return kind.accepts(value)
    except Exception as error:  # of the value's own methods
        reraise_handlers(error)
        return False


def refused(owner: Any, name: str, value: object, kind: Kind) -> InvalidArgumentError:
    """Return the error for an argument."""
    named = getattr(owner, "name", None)
    is_secret = name == "password" or (name == "token" and isinstance(value, str))
    text = "***" if is_secret else shown(value)
    if not isinstance(named, str):
        named = getattr(owner, "__qualname__", type(owner).__name__).removesuffix(".__init__")
    return InvalidArgumentError(f"{named}: {name}={text}", f"give {kind.wanted}")


def _printed(value: Any) -> Any:
    if type(value) is int:  # hiredis refuses its subclasses
        return str(value)
    if isinstance(value, bytearray | memoryview):  # of one with gaps, hiredis sends these
        return bytes(value)
    return float.__repr__(value) if isinstance(value, float) else value


def printable(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a command's arguments with numbers as text, and views as bytes; but not its name.

    hiredis crashes if Python does not write one: it has too many digits, its class raises, or the
    handler of a signal does meanwhile.

    Raises:
        InvalidArgumentError: an integer has too many digits.
    """
    try:
        return (*args[:1], *map(_printed, args[1:]))
    except ValueError as error:
        reraise_handlers(error)
        raise InvalidArgumentError(
            f"an integer cannot be sent: {error}", "give its digits as text"
        ) from None


def refusal(error: InvalidArgumentError, call: Callable[[], object]) -> Exception:
    """Return the error for a refused argument: the method's own if that names the value.

    The method's error says more, such as the range. ``call`` runs the method up to its first batch,
    before which methods only check their arguments.
    """
    value = error.message.partition("=")[2]
    try:
        call()
    except (InvalidArgumentError, InvalidKeyError) as own:
        return own if value in own.message else error
    except Exception:
        return error
    return error


def accepts(annotation: Any, value: object) -> bool:
    """Return whether a value is what an annotation says, with all that it contains."""
    kind = kind_of(annotation, elements=True)
    return kind is None or _accepts(kind, value)


def rows_of(
    owner: str, name: str, rows: Iterable[Any], what: str, least: int, most: int
) -> Iterator[Any]:
    """Yield the rows of an argument, each checked to be a tuple or list of a valid length.

    ``what`` describes a row in messages: ``(field, value)``.
    """
    for row in rows:
        if not isinstance(row, tuple | list) or not least <= len(row) <= most:
            raise InvalidArgumentError(f"{owner}: {shown(row)} in {name}", f"give tuples {what}")
        yield row


def check_calls(owner: type, *also: str, makes_only: bool = False) -> None:
    """Have the public methods of a class, and those in ``also``, check their arguments.

    Operations check theirs themselves. Methods that only make objects, ``makes_only``, are called
    for their own error.
    """
    for name, method in list(vars(owner).items()):
        if isinstance(method, types.FunctionType) and (name[0] != "_" or name in also):
            setattr(owner, name, checked(method, makes_only or name == "__init__"))


def check_public(names: dict[str, Any]) -> None:
    """Have what a package lists in ``__all__`` check its arguments, and what these contain.

    These are functions and constructors, but not those of results, which are dataclasses.
    """
    for name in names["__all__"]:
        value = names[name]
        if isinstance(value, types.FunctionType):
            names[name] = checked_function(value)
        elif "__init__" in getattr(value, "__dict__", ()) and not dataclasses.is_dataclass(value):
            value.__init__ = checked_function(value.__init__)


def checked_function(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function check its arguments, and what these contain; it reads iterators first."""
    check = cache(lambda: argument_check(function, elements=True))  # when all modules are loaded

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        # What can be read once is read here, for the check and for the function.
        args = tuple(list(v) if isinstance(v, Iterator) else v for v in args)
        kwargs |= {name: list(v) for name, v in kwargs.items() if isinstance(v, Iterator)}
        check()(function, args, kwargs)
        return function(*args, **kwargs)

    return call


def checked(function: Callable[P, T], makes_only: bool = False) -> Callable[P, T]:
    """Have a method check its arguments; see `check_calls`."""
    check = cache(lambda: argument_check(function))  # when all modules are loaded

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            check()(args[0], args[1:], kwargs)
        except InvalidArgumentError as error:
            if makes_only:
                raise refusal(error, lambda: function(*args, **kwargs)) from None
            raise
        return function(*args, **kwargs)

    return call
