"""Short reads of scripts on in-memory servers, without a command's steps.

Half of what scripts call are reads of one value. A command of fakeredis makes objects for its keys,
calls a function by its signature, looks for what has changed and converts the reply, which takes
several times as long as to look the value up. What is not plain gets that way all the same: keys
and fields that may have expired, values of another type, wrong numbers of arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fakeredis._command_args_parsing import Float
from fakeredis.model import Hash, ZSet

OTHERWISE: Final = object()
"""What a read returns that a command has to do."""
# The indexes of elements that are given as scripts write them.
_POSITIONS: Final = {b"%d" % n: n for n in range(-100, 1001)}
ShortRead: TypeAlias = Callable[[Any, list[bytes]], Any]
"""Given the database and the arguments, returns what a script gets; a list is to be a table."""


def _value(db: Any, args: list[bytes], count: int, kind: type[Any]) -> Any:
    """Return what a command's only key holds; None if nothing."""
    if len(args) != count:
        return OTHERWISE
    item = db._dict.get(args[0])
    if item is None:
        return None
    value = item.value
    return OTHERWISE if db.expired(item) or type(value) is not kind else value


def _fields(db: Any, args: list[bytes], count: int) -> Any:
    """Return the fields of a hash; None if there is none."""
    value = _value(db, args, count, Hash)
    if type(value) is not Hash:
        return value
    return OTHERWISE if value._expiry_heap else value._values


def _exists(db: Any, args: list[bytes]) -> Any:
    if len(args) != 1:
        return OTHERWISE
    item = db._dict.get(args[0])
    if item is None:
        return 0
    return OTHERWISE if db.expired(item) else 1


def _get(db: Any, args: list[bytes]) -> Any:
    value = _value(db, args, 1, bytes)
    return False if value is None else value


def _hget(db: Any, args: list[bytes]) -> Any:
    fields = _fields(db, args, 2)
    if fields is OTHERWISE:
        return fields
    return fields.get(args[1], False) if fields else False


def _hmget(db: Any, args: list[bytes]) -> Any:
    fields = _fields(db, args, max(2, len(args)))
    if fields is OTHERWISE:
        return fields
    return [fields.get(field, False) if fields else False for field in args[1:]]


def _hexists(db: Any, args: list[bytes]) -> Any:
    fields = _fields(db, args, 2)
    return fields if fields is OTHERWISE else int(bool(fields) and args[1] in fields)


def _hlen(db: Any, args: list[bytes]) -> Any:
    fields = _fields(db, args, 1)
    return fields if fields is OTHERWISE else len(fields or ())


def _llen(db: Any, args: list[bytes]) -> Any:
    value = _value(db, args, 1, list)
    return value if value is OTHERWISE else len(value or ())


def _zcard(db: Any, args: list[bytes]) -> Any:
    value = _value(db, args, 1, ZSet)
    return value if value is OTHERWISE else len(value or ())


def _zscore(db: Any, args: list[bytes]) -> Any:
    value = _value(db, args, 2, ZSet)
    if value is OTHERWISE:
        return value
    score = None if value is None else value.get(args[1])
    return False if score is None else Float.encode(score, humanfriendly=False)


def _zrange(db: Any, args: list[bytes]) -> Any:
    count = len(args)
    if count == 4 and args[3].upper() != b"WITHSCORES":
        return OTHERWISE
    value = _value(db, args, 3 if count < 4 else 4, ZSet)
    if value is OTHERWISE:
        return value
    first, last = _POSITIONS.get(args[1]), _POSITIONS.get(args[2])
    if first is None or last is None:
        return OTHERWISE
    if value is None:
        return []
    size = len(value)
    start, end = first if first >= 0 else max(0, first + size), last if last >= 0 else last + size
    items = value.islice_score(start, max(start, end + 1))
    if count == 3:
        return [member for _, member in items]
    return [
        each
        for score, member in items
        for each in (member, Float.encode(score, humanfriendly=False))
    ]


def _time(db: Any, args: list[bytes]) -> Any:
    if args:
        return OTHERWISE
    seconds, micros = divmod(round(time.time() * 1_000_000), 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


SHORT_READS: Final[dict[str, ShortRead]] = {
    "exists": _exists,
    "get": _get,
    "hexists": _hexists,
    "hget": _hget,
    "hlen": _hlen,
    "hmget": _hmget,
    "llen": _llen,
    "time": _time,
    "zcard": _zcard,
    "zrange": _zrange,
    "zscore": _zscore,
}
"""The reads, by the names of their commands."""
