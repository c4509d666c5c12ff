"""Which arguments of a command are keys: what a pipeline over many shards routes by.

::

    ("GET", "user:7")                                    -> (1,)
    ("BITOP", "AND", "both", "monday", "tuesday")        -> (2, 3, 4)
    ("ZINTER", 2, "a", "b", "WITHSCORES")                -> (2, 3)
    ("XREAD", "COUNT", 9, "STREAMS", "s", "t", 0, 0)     -> (4, 5)
    ("OBJECT ENCODING", "user:7")                        -> (1,)    as redis-py spells it
    ("OBJECT", "ENCODING", "user:7")                     -> (2,)
    ("PING",)                                            -> ()      no key: no shard to choose

The rules are data: ``command_keys.json`` beside this file has, for each command, the least number
of words it is sent with and a rule. tools/command_keys.py writes it from what servers say of
their own commands, and from a short list of those they cannot describe. The parts of a rule:

=========== ====================================================================================
``2``       argument 2 (the name is argument 0, a sub-command 1, as the server counts)
``1:-1``    arguments 1 to the last; ``1:-2`` to the last but one; ``1:-1:2`` every second
``#1``      argument 1 says how many keys follow it; ``#1:2`` a value follows each key;
            ``#2?`` there may be none (scripts)
``store:2`` the key after the last STORE or STOREDIST among the options from argument 2
``streams`` XREAD: the first half of what follows STREAMS
``migrate`` MIGRATE: argument 3, or if it is empty what follows KEYS
``stralgo`` STRALGO: two arguments after KEYS
=========== ====================================================================================

A pattern is no key: what SORT's BY and GET or SCAN's MATCH name is not found here. A key is what
decides the shard, so the channel of SPUBLISH counts as one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from shardkit.errors import RoutingError
from shardkit.operations.commands import Argument

Positions: TypeAlias = tuple[int, ...]
_Args: TypeAlias = Sequence[Argument]
_Finder: TypeAlias = Callable[[_Args], Positions]


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is known of a command in one spelling.

    Attributes:
        name: in capitals, with its sub-command.
        least: how many elements the command has at least.
        keys: the positions of its keys, or the function that finds them.
        joined: how many words its first element has more than one.
    """

    name: str
    least: int
    keys: Positions | _Finder
    joined: int = 0


_spelled: dict[Argument, _Rule] = {}
"""Rules by a command's first element as callers spell it, where that alone decides."""

_SPELLINGS = 4096
"""More than this many spellings are not remembered."""


def key_positions(args: Sequence[Argument]) -> tuple[int, ...]:
    """Return which elements of a command are keys.

    Args:
        args: a command as redis-py's ``execute_command`` takes it. The name may be text or
            bytes in any case, a sub-command joined to it by a space or separate.

    Returns:
        Indices into ``args``, in ascending order; empty for a command without keys.
        Cost: below 0.1 microseconds where the keys have fixed places, 0.2 for MGET and MSET, up
        to 1 where options are looked through, 2 where a sub-command is given separately.

    Raises:
        RoutingError: the command is not known, or lacks arguments without which its keys
            cannot be told.
    """
    rule = (_spelled.get(args[0]) if args else None) or _rule(args)
    if len(args) < rule.least:
        raise _too_few(rule, args)
    keys = rule.keys
    return keys if type(keys) is tuple else keys(args)  # type: ignore[operator]


def blocking_seconds(args: Sequence[Argument]) -> float | None:
    """Return how long the server may wait before it answers a command.

    Args:
        args: a command, as for `key_positions`.

    Returns:
        Seconds; 0.0 means for ever, None that the command does not wait.
        Cost: 0.1 microseconds for a command that does not wait.

    Raises:
        RoutingError: the command is not known, or its time-out is missing or no number.
    """
    rule = (_spelled.get(args[0]) if args else None) or _rule(args)
    timeout = _TIMEOUTS.get(rule.name)
    if timeout is None:
        return None
    if len(args) < rule.least:
        raise _too_few(rule, args)
    find, unit = timeout
    at = find if isinstance(find, int) else find(args)
    return None if at is None else _seconds(rule.name, args[at]) * unit


def has_plain_form(name: object, length: int) -> bool:
    """Whether commands of a name have their only key behind it, and neither wait nor are special.

    Args:
        name: the name, as it is sent.
        length: of how many elements the command is, its name included.
    """
    if type(name) is not str:
        return False
    try:
        rule = _spelled.get(name) or _rule((name,))
    except RoutingError:
        return False
    return (
        rule.keys == (1,)
        and length >= rule.least
        and not rule.joined
        and rule.name not in _TIMEOUTS
    )


def command_name(args: Sequence[Argument]) -> str:
    """Return a command's name in capitals, with its sub-command: ``"MGET"``, ``"XGROUP CREATE"``.

    Raises:
        RoutingError: the command is not known.
    """
    return ((_spelled.get(args[0]) if args else None) or _rule(args)).name


# Looking a command up


@cache
def _table() -> dict[str, tuple[int, str]]:
    """Read the data: each command's least number of words, and its rule."""
    source = files("shardkit.routing").joinpath("command_keys.json").read_text("utf-8")
    commands: dict[str, tuple[int, str]] = json.loads(source)["commands"]
    return commands


@cache
def _containers() -> frozenset[str]:
    """The first words of all commands of two."""
    return frozenset(name.partition(" ")[0] for name in _table() if " " in name)


def _rule(args: _Args) -> _Rule:
    """Find the rule of a command that is not remembered."""
    words = _word(args[0]).split() if args else []
    if not words:
        raise RoutingError("a command without a name", "its first element is a word such as 'GET'")
    first, joined = words[0], len(words) - 1
    second = words[1] if joined else _word(args[1]) if len(args) > 1 else ""
    name = _full_name(first, second)
    least, text = _table()[name]
    if joined > name.count(" ") and text:
        raise RoutingError(f"{name} in one string with its arguments", "give them one by one")
    rule = _Rule(name, max(1, least - joined), _compile(name, text, joined), joined)
    if (joined or first not in _containers()) and len(_spelled) < _SPELLINGS:
        _spelled[args[0]] = rule
    return rule


def _full_name(first: str, second: str) -> str:
    """The name under which the table has a command, given its first two words."""
    table = _table()
    if first in _containers():
        full = f"{first} {second}"
        if full in table:
            return full
        if first not in table:
            known = [name.partition(" ")[2] for name in table if name.startswith(first + " ")]
            raise RoutingError(
                f"{first} with{' an unknown' if second else 'out a'} sub-command",
                f"it has {', '.join(known)}",
            )
    # COMMAND is also a command by itself; of DEBUG's many sub-commands only those with keys count
    if first in table:
        return first
    raise RoutingError(
        f"no command is known as {first[:40]!r}",
        "check its spelling; what only a module or a newer server has goes through the client of "
        "one shard",
    )


def _word(arg: Argument) -> str:
    """An argument as a word of the protocol: text in capitals; nothing for what is no word."""
    if isinstance(arg, bytes):
        arg = arg.decode("ascii", "replace")
    return arg.upper() if isinstance(arg, str) and arg.isascii() else ""


def _too_few(rule: _Rule, args: _Args) -> RoutingError:
    words = rule.name.count(" ") + 1 - rule.joined
    given, needed = max(0, len(args) - words), rule.least - words
    return RoutingError(
        f"{rule.name} with {given} argument{'' if given == 1 else 's'}",
        f"it needs {needed} or more",
    )


# Rules


def _compile(name: str, rule: str, joined: int) -> Positions | _Finder:
    """Turn a rule's text into positions, or into the function that finds them.

    Args:
        name: the command, for messages.
        rule: as in the table above.
        joined: how many places to the left everything is, because words are joined to the first.
    """
    parts = rule.split()
    if all(part.isdigit() for part in parts):
        return tuple(int(part) - joined for part in parts)
    finders = [_finder(name, part, joined) for part in parts]
    if len(finders) == 1:
        return finders[0]
    return lambda args: tuple(at for find in finders for at in find(args))


def _finder(name: str, part: str, joined: int) -> _Finder:
    kind, *numbers = part.split(":")
    if part.isdigit():
        return lambda _: (int(part) - joined,)
    if kind.startswith("#"):
        at = int(kind.strip("#?")) - joined
        return _numbered(name, at, int(numbers[0]) if numbers else 1, kind.endswith("?"))
    if kind == "store":
        return _stored(name, int(numbers[0]) - joined)
    if kind in _SPECIAL:
        return _SPECIAL[kind]
    last, *step = map(int, numbers)
    return _range(name, int(kind) - joined, last, step[0] if step else 1)


def _range(name: str, first: int, last: int, step: int) -> _Finder:
    if step == 1:
        return lambda args: tuple(range(first, len(args) + last + 1))

    def find(args: _Args) -> Positions:
        end = len(args) + last + 1
        if (end - first) % step:
            raise RoutingError(
                f"{name} with an incomplete last group of arguments",
                f"each key is one of {step} arguments",
            )
        return tuple(range(first, end, step))

    return find


def _numbered(name: str, at: int, step: int, none: bool) -> _Finder:
    def find(args: _Args) -> Positions:
        count, first = _count(args[at]), at + 1
        if count is None or not (count or none):
            raise RoutingError(
                f"{name} with a number of keys that is no {'' if none else 'positive '}integer",
                f"argument {at} is how many keys follow",
            )
        if count * step > len(args) - first:
            raise RoutingError(
                f"{name} with fewer keys than it says",
                f"argument {at} is how many keys follow",
            )
        return tuple(range(first, first + count * step, step))

    return find


def _count(arg: Argument) -> int | None:
    """A number of keys as the server reads it; None for what it does not."""
    if isinstance(arg, int):
        return arg if arg >= 0 else None
    digits = _word(arg)
    return int(digits) if digits.isdigit() and len(digits) < 10 else None


def _stored(name: str, start: int) -> _Finder:
    """Options of SORT and GEORADIUS, where only the last place to store counts."""
    followed = {"BY": 1, "GET": 1, "LIMIT": 2, "COUNT": 1, "STORE": 1, "STOREDIST": 1}

    def find(args: _Args) -> Positions:
        found, at = 0, start
        while at < len(args):
            word = _word(args[at])
            if word in ("STORE", "STOREDIST"):
                found = at + 1
            at += 1 + followed.get(word, 0)
        if found >= len(args):
            raise RoutingError(f"{name} ends with STORE", "give the key to store at")
        return (found,) if found else ()

    return find


def _stream_options(args: _Args) -> tuple[int, int | None]:
    """Where XREAD's and XREADGROUP's STREAMS and the time of BLOCK are.

    The words are read as the server reads them, since a group or a stream may be called STREAMS.
    """
    followed = {"BLOCK": 1, "CLAIM": 1, "COUNT": 1, "GROUP": 2, "MAXCOUNT": 1, "MAXSIZE": 1}
    block, at = None, 1
    while at < len(args):
        word = _word(args[at])
        if word == "STREAMS":
            return at, block
        if word == "BLOCK":
            block = at + 1
        elif word not in followed and word != "NOACK":
            break
        at += 1 + followed.get(word, 0)
    raise RoutingError(
        f"{_word(args[0])} without STREAMS where its options end",
        "give options first, then STREAMS, the keys and as many ids",
    )


def _streams(args: _Args) -> Positions:
    first = _stream_options(args)[0] + 1
    count, odd = divmod(len(args) - first, 2)
    if odd or not count:
        raise RoutingError(
            f"{_word(args[0])} with unequal numbers of keys and ids",
            "after STREAMS come the keys, then one id for each",
        )
    return tuple(range(first, first + count))


def _migrate(args: _Args) -> Positions:
    followed = {"AUTH": 1, "AUTH2": 2}
    at = 6
    while at < len(args):
        word = _word(args[at])
        if word == "KEYS":
            if args[3] not in ("", b"") or at + 1 == len(args):
                raise RoutingError(
                    "MIGRATE with KEYS", "give keys after it, and an empty key as argument 3"
                )
            return tuple(range(at + 1, len(args)))
        at += 1 + followed.get(word, 0)
    return (3,)


def _stralgo(args: _Args) -> Positions:
    for at in range(2, len(args) - 2):
        if _word(args[at]) == "KEYS":
            return at + 1, at + 2
        if _word(args[at]) == "STRINGS":
            break
    return ()


_SPECIAL: dict[str, _Finder] = {"migrate": _migrate, "stralgo": _stralgo, "streams": _streams}


# Time-outs


def _series_block(args: _Args) -> int | None:
    """Where the time of TS.READ's BLOCK is."""
    return next((at + 1 for at in range(3, len(args) - 1) if _word(args[at]) == "BLOCK"), None)


def _stream_block(args: _Args) -> int | None:
    return _stream_options(args)[1]


_TIMEOUTS: dict[str, tuple[int | Callable[[_Args], int | None], float]] = {
    "BLMOVE": (5, 1),
    "BLMOVEM": (5, 1),
    "BLMPOP": (1, 1),
    "BLPOP": (-1, 1),
    "BRPOP": (-1, 1),
    "BRPOPLPUSH": (3, 1),
    "BZMPOP": (1, 1),
    "BZPOPMAX": (-1, 1),
    "BZPOPMIN": (-1, 1),
    "TS.READ": (_series_block, 0.001),
    "WAIT": (2, 0.001),
    "WAITAOF": (3, 0.001),
    "XREAD": (_stream_block, 0.001),
    "XREADGROUP": (_stream_block, 0.001),
}
"""Where each command that waits has its time, and how many seconds its unit is."""


def _seconds(name: str, arg: Argument) -> float:
    try:
        value = float(arg)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise RoutingError(
            f"{name} with a time-out that is no time", "give 0 or more; 0 is for ever"
        )
    return value
