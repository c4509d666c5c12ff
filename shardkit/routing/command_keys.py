"""Find the keys among a command's arguments, so that a pipeline over many shards can route it.

``command_keys.json``, next to this file, has the minimum number of words of each command, and a
rule. tools/command_keys.py generates it from servers' own descriptions (COMMAND), and from a short
list of commands that these cannot describe. The parts of a rule:

=========== ====================================================================================
``2``       argument 2, as servers count (the name is argument 0, a sub-command argument 1)
``1:-1``    arguments 1 to the last; ``1:-2`` to the last but one; ``1:-1:2`` every second
``#1``      argument 1 is the number of keys that follow; ``#1:2`` a value follows each key;
            ``#2?`` the number may be 0 (scripts)
``store:2`` the key after the last STORE or STOREDIST in the options, which start at argument 2
``streams`` XREAD: the first half of the arguments after STREAMS
``migrate`` MIGRATE: argument 3 or, if that is empty, the arguments after KEYS
``stralgo`` STRALGO: two arguments after KEYS
=========== ====================================================================================

``reads`` lists the commands that change nothing, which replicas may answer. Patterns, as in SORT's
BY and GET or SCAN's MATCH, are not keys. SPUBLISH's channel is a key: it decides the shard.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from shardkit.errors import RoutingError, counted
from shardkit.operations.commands import Argument

Positions: TypeAlias = tuple[int, ...]
_Args: TypeAlias = Sequence[Argument]
_Finder: TypeAlias = Callable[[_Args], Positions]


@dataclass(frozen=True, slots=True)
class _Rule:
    """The rule of a command in one spelling."""

    name: str  # in capitals, with its sub-command
    least: int  # the minimum number of elements
    keys: Positions | _Finder
    joined: int = 0  # the number of spaces in its first element: 1 for "OBJECT ENCODING"


_spelled: dict[Argument, _Rule] = {}
"""Rules by a command's first element as callers spell it, if it needs no second one."""

_SPELLINGS = 4096  # cached at most


def key_positions(args: Sequence[Argument]) -> tuple[int, ...]:
    """Return the positions of a command's keys, ascending; none for a command without keys.

    ``args`` are as for redis-py's ``execute_command``. The name may be text or bytes in any case; a
    sub-command follows after a space or separately. Cost: below 0.1 microseconds if the keys have
    fixed positions, 0.2 for MGET and MSET, up to 1 if options are searched, 2 if a sub-command is
    given separately.

    Raises:
        RoutingError: the command is unknown, or lacks arguments that decide its keys.
    """
    try:
        rule = (_spelled.get(args[0]) if args else None) or _rule(args)
    except TypeError:  # the name cannot be hashed
        raise _without_name() from None
    if len(args) < rule.least:
        raise _missing_arguments(rule, args)
    keys = rule.keys
    return keys if type(keys) is tuple else keys(args)  # type: ignore[operator]


def blocking_seconds(args: Sequence[Argument]) -> float | None:
    """Return for how many seconds the server may wait before it answers a command.

    0.0 means for ever, None that the command does not block. Cost: 0.1 microseconds then.

    Raises:
        RoutingError: the command is unknown, or its timeout is missing or not a number.
    """
    rule = (_spelled.get(args[0]) if args else None) or _rule(args)
    timeout = _TIMEOUTS.get(rule.name)
    if timeout is None:
        return None
    if len(args) < rule.least:
        raise _missing_arguments(rule, args)
    find, unit = timeout
    at = find if isinstance(find, int) else find(args)
    if at is None:
        return None
    try:
        value = float(args[at])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise RoutingError(f"{rule.name} with an invalid timeout", "give seconds, or 0 for ever")
    return value * unit


def has_plain_form(name: object, length: int) -> bool:
    """Return whether a command's only key is its first argument, and it does not block.

    ``length`` is its number of elements, the name included.
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


def reads_only(args: Sequence[Argument]) -> bool:
    """Return whether a command changes nothing and does not block, so that a replica may answer it.

    False for scripts, for commands with cursors, which belong to one server, and for unknown ones.
    """
    try:
        rule = (_spelled.get(args[0]) if args else None) or _rule(args)
        return rule.name in _data()[1] and blocking_seconds(args) is None
    except RoutingError:
        return False


def reads_by_name(name: str) -> bool:
    """Return whether commands of a name change nothing; see `reads_only`."""
    return name.upper() in _data()[1]


def command_name(args: Sequence[Argument]) -> str:
    """Return a command's name in capitals, with its sub-command: ``"MGET"``, ``"XGROUP CREATE"``.

    Raises:
        RoutingError: the command is unknown.
    """
    try:
        return ((_spelled.get(args[0]) if args else None) or _rule(args)).name
    except TypeError:  # the name cannot be hashed
        raise _without_name() from None


# Rules by command


def least_words(name: str) -> int:
    """Return the fewest words of a command, its name in capitals; 1 for an unknown one."""
    rule = _data()[0].get(name)
    return rule[0] if rule else 1


@cache
def _data() -> tuple[dict[str, tuple[int, str]], frozenset[str]]:
    """Return each command's minimum number of words and rule, and the commands that read."""
    text = files("shardkit.routing").joinpath("command_keys.json").read_text("utf-8")
    data = json.loads(text)
    return data["commands"], frozenset(data["reads"])


@cache
def containers() -> frozenset[str]:
    """Return the first words of all commands that have sub-commands."""
    return frozenset(name.partition(" ")[0] for name in _data()[0] if " " in name)


def _rule(args: _Args) -> _Rule:
    words = _word(args[0]).split() if args else []
    if not words:
        raise _without_name()
    first, joined = words[0], len(words) - 1
    second = words[1] if joined else _word(args[1]) if len(args) > 1 else ""
    name = _full_name(first, second)
    least, text = _data()[0][name]
    if joined > name.count(" ") and text:
        raise RoutingError(f"{name} in one string with its arguments", "give them one by one")
    rule = _Rule(name, max(1, least - joined), _compile(name, text, joined), joined)
    if (joined or first not in containers()) and len(_spelled) < _SPELLINGS:
        _spelled[args[0]] = rule
    return rule


def _without_name() -> RoutingError:
    return RoutingError("a command without a name", "give a word such as 'GET' first")


def _full_name(first: str, second: str) -> str:
    """Return the name of a command in the table, given its first two words."""
    table = _data()[0]
    if first in containers():
        full = f"{first} {second}"
        if full in table:
            return full
        if first not in table:
            known = [name.partition(" ")[2] for name in table if name.startswith(first + " ")]
            raise RoutingError(
                f"{first} with{' an unknown' if second else 'out a'} sub-command",
                f"use one of {', '.join(known)}",
            )
    # COMMAND is also a command by itself; the table has only those sub-commands of DEBUG with keys
    if first in table:
        return first
    raise RoutingError(
        f"command {first[:40]!r} is unknown",
        "check its spelling, or use a shard's own client for commands of modules and newer servers",
    )


def _word(arg: Argument) -> str:
    """Return an argument as a word of a command: ASCII text in capitals; empty for all others."""
    if isinstance(arg, bytes):
        arg = arg.decode("ascii", "replace")
    return arg.upper() if isinstance(arg, str) and arg.isascii() else ""


def _missing_arguments(rule: _Rule, args: _Args) -> RoutingError:
    words = rule.name.count(" ") + 1 - rule.joined
    given, needed = max(0, len(args) - words), rule.least - words
    return RoutingError(f"{rule.name} with {counted(given, 'argument')}", f"give at least {needed}")


# Rules


def _compile(name: str, rule: str, joined: int) -> Positions | _Finder:
    """Turn a rule into positions, or into the function that finds them.

    Positions are shifted to the left by ``joined``, as the first element has more words.
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
                f"give groups of {step}, one for each key",
            )
        return tuple(range(first, end, step))

    return find


def _numbered(name: str, at: int, step: int, none: bool) -> _Finder:
    remedy = f"give the number of keys as argument {at}"

    def find(args: _Args) -> Positions:
        given, first = args[at], at + 1
        digits = _word(given)
        if isinstance(given, int):
            count = given
        else:
            count = int(digits) if digits.isdigit() and len(digits) < 10 else -1
        if count < (0 if none else 1):
            kind = "integer" if none else "positive integer"
            raise RoutingError(f"{name} with a number of keys that is no {kind}", remedy)
        if count * step > len(args) - first:
            raise RoutingError(f"{name} with fewer keys than it says", remedy)
        return tuple(range(first, first + count * step, step))

    return find


def _options(args: _Args, at: int, followed: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """Yield the options' positions and words; ``followed`` tells how many arguments they have."""
    while at < len(args):
        word = _word(args[at])
        yield at, word
        at += 1 + followed.get(word, 0)


def _stored(name: str, start: int) -> _Finder:
    """Find the key after the last STORE among the options of SORT and GEORADIUS."""
    followed = {"BY": 1, "GET": 1, "LIMIT": 2, "COUNT": 1, "STORE": 1, "STOREDIST": 1}

    def find(args: _Args) -> Positions:
        target = 0
        for at, word in _options(args, start, followed):
            if word in ("STORE", "STOREDIST"):
                target = at + 1
        if target >= len(args):
            raise RoutingError(f"{name} ends with STORE", "give the key to store the result at")
        return (target,) if target else ()

    return find


def _stream_options(args: _Args) -> tuple[int, int | None]:
    """Return the positions of STREAMS, and of BLOCK's timeout, in XREAD and XREADGROUP.

    Servers read the options one by one, too: a group or a stream may be called STREAMS.
    """
    followed = {"BLOCK": 1, "CLAIM": 1, "COUNT": 1, "GROUP": 2, "MAXCOUNT": 1, "MAXSIZE": 1}
    block = None
    for at, word in _options(args, 1, followed):
        if word == "STREAMS":
            return at, block
        if word == "BLOCK":
            block = at + 1
        elif word not in followed and word != "NOACK":
            break
    raise RoutingError(
        f"{_word(args[0])} without STREAMS where its options end",
        "give the options first, then STREAMS, the keys, and an id for each",
    )


def _streams(args: _Args) -> Positions:
    first = _stream_options(args)[0] + 1
    count, odd = divmod(len(args) - first, 2)
    if odd or not count:
        raise RoutingError(
            f"{_word(args[0])} with unequal numbers of keys and ids",
            "give the keys after STREAMS, then an id for each",
        )
    return tuple(range(first, first + count))


def _migrate(args: _Args) -> Positions:
    for at, word in _options(args, 6, {"AUTH": 1, "AUTH2": 2}):
        if word == "KEYS":
            if args[3] not in ("", b"") or at + 1 == len(args):
                raise RoutingError(
                    "MIGRATE with KEYS", "give keys after it, and an empty key as argument 3"
                )
            return tuple(range(at + 1, len(args)))
    return (3,)


def _stralgo(args: _Args) -> Positions:
    for at in range(2, len(args) - 2):
        if _word(args[at]) == "KEYS":
            return at + 1, at + 2
        if _word(args[at]) == "STRINGS":
            break
    return ()


_SPECIAL: dict[str, _Finder] = {"migrate": _migrate, "stralgo": _stralgo, "streams": _streams}


# Timeouts


def _series_block(args: _Args) -> int | None:
    """Return the position of the timeout of TS.READ's BLOCK."""
    return next((at + 1 for at in range(3, len(args) - 1) if _word(args[at]) == "BLOCK"), None)


def _stream_block(args: _Args) -> int | None:
    return _stream_options(args)[1]


_TIMEOUTS: dict[str, tuple[int | Callable[[_Args], int | None], float]] = {
    **dict.fromkeys(("BLMOVE", "BLMOVEM"), (5, 1)),
    **dict.fromkeys(("BLMPOP", "BZMPOP"), (1, 1)),
    **dict.fromkeys(("BLPOP", "BRPOP", "BZPOPMAX", "BZPOPMIN"), (-1, 1)),
    "BRPOPLPUSH": (3, 1),
    "TS.READ": (_series_block, 0.001),
    "WAIT": (2, 0.001),
    "WAITAOF": (3, 0.001),
    "XREAD": (_stream_block, 0.001),
    "XREADGROUP": (_stream_block, 0.001),
}
"""The position of each blocking command's timeout, and its unit in seconds."""
