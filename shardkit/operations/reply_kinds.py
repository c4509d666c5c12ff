"""The kinds of replies that commands promise, and which reply is to blame for an error. Pure."""

from __future__ import annotations

import re
import struct
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from errno import EOVERFLOW
from itertools import chain
from typing import Any, TypeGuard

from redis.exceptions import RedisError

from shardkit import callbacks
from shardkit.errors import ShardFailure, ShardKitError, UnexpectedReply
from shardkit.operations.commands import Batch, Columns, Command, Reply, Transaction
from shardkit.routing.placement import SLOTS

# What reading a reply of another kind raises.
READING_ERRORS = ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error


def _is_text(reply: object) -> bool:
    return reply is None or isinstance(reply, bytes | str)


def _is_list(reply: object) -> bool:
    return isinstance(reply, list | dict | set)


def are_texts(reply: object) -> TypeGuard[list[bytes | str | None]]:
    """Return whether a reply is a list of texts; None is one that is not there."""
    return isinstance(reply, list) and all(map(_is_text, reply))


def _is_report(reply: object) -> bool:
    if isinstance(reply, bytes):
        reply = reply[:1000].decode(errors="replace")
    return isinstance(reply, str) and re.match("\\s*($|#|[^\n]*:)", reply) is not None


def _are_pairs(reply: object) -> bool:
    if isinstance(reply, dict):
        reply = [text for pair in reply.items() for text in pair]
    return are_texts(reply) and len(reply) % 2 == 0 and None not in reply


def _are_ranked(reply: object) -> bool:
    """Return whether a reply is a list of texts, or in RESP3 of pairs of a text and a number."""
    return isinstance(reply, list) and all(
        isinstance(element, bytes | str)
        or (isinstance(element, list) and len(element) == 2 and isinstance(element[1], float | int))
        for element in reply
    )


def _is_count(reply: object) -> bool:
    return isinstance(reply, int)


def _is_page(reply: object) -> bool:
    return isinstance(reply, list) and len(reply) == 2 and _is_text(reply[0]) and _is_list(reply[1])


def _are_slots(reply: Any) -> bool:
    """Return whether a reply tells of ranges of slots with the addresses of their nodes."""
    try:
        return isinstance(reply, list) and all(
            0 <= first <= last < SLOTS
            and nodes
            and all(type(at) is list and _is_text(at[0]) and 0 <= at[1] < 65536 for at in nodes)
            for first, last, *nodes in reply
        )
    except READING_ERRORS:
        return False


def _is_message(reply: object) -> bool:
    """Return whether a reply is what a subscriber receives; None if nothing came in time."""
    if not isinstance(reply, list):
        return _is_text(reply)  # of PING
    kind = reply[0] if reply else None
    if kind in (b"pong", "pong"):
        return len(reply) > 1
    texts = 3 if kind in (b"pmessage", "pmessage") else 2
    return kind is not None and len(reply) > texts and all(map(_is_text, reply[:texts]))


PAGES = ("SCAN", "HSCAN", "SSCAN", "ZSCAN")
_COUNTS = re.compile(
    "APPEND|BITCOUNT|DBSIZE|DEL|(DECR|INCR)(BY)?|EXISTS|P?EXPIRE(AT|TIME)?|HDEL|HEXISTS|HINCRBY|HLEN|"
    "HSET(NX)?|HSTRLEN|[LR]PUSH|LLEN|LREM|PERSIST|PFADD|PFCOUNT|P?TTL|SADD|SCARD|SISMEMBER|SREM|"
    "SETRANGE|STRLEN|UNLINK|WAIT|ZCARD|ZCOUNT|ZLEXCOUNT|ZREM|ZREMRANGEBY(LEX|RANK|SCORE)"
)
KINDS: Mapping[str, Callable[[object], bool]] = {
    "CLIENT LIST": lambda reply: isinstance(reply, bytes | str),
    "TYPE": lambda reply: isinstance(reply, bytes | str) and reply.isascii(),
    "INFO": _is_report,
    **dict.fromkeys(("GET", "GETRANGE", "HGET", "DUMP", "LINDEX"), _is_text),
    **dict.fromkeys(("MGET", "HKEYS", "HMGET", "KEYS", "LRANGE"), are_texts),
    "TIME": lambda v: are_texts(v) and len(v) == 2 and all(part and part.isdigit() for part in v),
    **dict.fromkeys(("CONFIG GET", "HGETALL"), _are_pairs),
    **dict.fromkeys(("ZRANGE", "ZREVRANGE"), _are_ranked),
    **dict.fromkeys(("ROLE", "SLOWLOG GET", "SMEMBERS", "XRANGE", "COMMAND", "MODULE"), _is_list),
    "CLUSTER SLOTS": _are_slots,
    "SUBSCRIBE": _is_message,
    **dict.fromkeys(PAGES, _is_page),
    **dict.fromkeys(("DBSIZE", "PTTL", "TTL", "HLEN", "LLEN", "SCARD", "ZCARD"), _is_count),
    **dict.fromkeys(("STRLEN", "EXISTS", "UNLINK"), _is_count),
    "MEMORY USAGE": lambda reply: reply is None or _is_count(reply),
}
# Of these, the kind is all that a command promises, with the number of texts.
_TOLD = {"GET", "HGET", "HGETALL", "HKEYS", "LINDEX", "LRANGE"}
_ARGUMENTS_BEFORE = {"HMGET": 2, "MGET": 1}  # those of which no text comes


def _is_right(request: Command | Transaction, reply: Reply) -> bool | None:
    """Return whether a reply is what a command promises; None if that cannot be told."""
    if isinstance(reply, ShardFailure):
        return True
    if isinstance(request, Transaction):  # `_each` divides the others
        return False
    if request.script is not None:
        return None
    name = str(request.args[0]).upper()
    if _COUNTS.fullmatch(name):
        return _is_count(reply)
    if name in KINDS and not KINDS[name](reply):
        return False
    if name in _ARGUMENTS_BEFORE:
        return len(reply) == len(request.args) - _ARGUMENTS_BEFORE[name]
    return True if name in _TOLD else None


def _each(batch: Batch, replies: Sequence[Reply]) -> Iterator[tuple[Command | Transaction, Reply]]:
    for request, reply in zip(batch, replies, strict=True):
        commands = request.commands if isinstance(request, Transaction) else ()
        if commands and isinstance(reply, list) and len(reply) == len(commands):
            yield from _each(commands, reply)
        else:
            yield request, reply


def require_right(batch: Sequence[Command | Transaction], replies: Sequence[Reply]) -> None:
    """Raise TypeError, in steps, for a reply that is surely not what its command promises."""
    for request, reply in _each(batch, replies):
        if _is_right(request, reply) is False:
            raise TypeError(f"{type(reply).__name__} for {request.name}")


def misread(error: BaseException, exchanges: Iterable[tuple[Any, Any]]) -> UnexpectedReply | None:
    """Return what is wrong if an error was raised over a reply; None if all are right.

    Where that cannot be told, as of scripts, the reply that is least like the others is to blame.
    """
    if not is_over_reply(error):
        return None
    pairs = chain.from_iterable(
        _each(batch, replies)
        for batch, replies in exchanges
        if isinstance(batch, list | Columns) and isinstance(replies, list)
    )
    every = [(_is_right(*pair), *pair) for pair in pairs]
    wrong = [case for case in every if case[0] is False] or [case for case in every if not case[0]]
    if not wrong:
        return None
    shapes = Counter(_shape(reply) for _, _, reply in every)
    _, request, reply = min(wrong, key=lambda case: shapes[_shape(case[2])])
    unexpected = UnexpectedReply(
        f"the reply to {request.name} cannot be used ({type(error).__name__}): {reply!r:.60}",
        "see by `shardkit status` what answers there, and report it if that is Redis or Valkey",
        command=request.name,
        key=request.key if isinstance(request.key, bytes) else str(request.key),
        error=error,
        maybe_executed=True,
    )
    unexpected.place = request.to
    return unexpected


def is_over_reply(error: BaseException) -> TypeGuard[Exception]:
    """Return whether our own code or redis-py's, or what that called, failed to read a reply."""
    is_time = isinstance(error, OSError) and error.errno == EOVERFLOW  # that is too large
    if isinstance(error, ShardKitError | RedisError) or not (
        isinstance(error, READING_ERRORS) or is_time
    ):
        return False
    modules = (
        str(frame.f_globals.get("__name__", ""))
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    others = [name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names]
    last = others[-1] if others else ""
    return last.partition(".")[0] in ("redis", "shardkit") and last != callbacks.__name__


def _shape(reply: Any) -> object:
    return type(reply), isinstance(reply, list) and len(reply)
