"""The kinds of replies that are read into parts: of a server that sends another, none is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

import redis

from shardkit.network.connections.redis_private import reply_callbacks

# The numbers that commands and the dashboard read, of INFO and of CLIENT LIST.
_NUMBERS = re.compile(
    "used_(memory|memory_dataset|cpu_sys|cpu_user)|max(clients|memory)|(blocked|connected)_clients|"
    "connected_slaves|cluster_enabled|loading|(instantaneous_ops_per|uptime_in)_sec(onds)?|"
    "total_(commands_processed|net_(in|out)put_bytes)|mem_clients_normal|aof_enabled|"
    "(rdb_bgsave|aof_rewrite)_in_progress|rdb_(last_save_time|changes_since_last_save)|"
    "(master|slave|slave_read)_repl_offset|master_(link_down_since_seconds|sync_.*)|"
    "id|age|idle|keys|expires"
)


def _is_text(reply: object) -> bool:
    return reply is None or isinstance(reply, bytes | str)


def _is_list(reply: object) -> bool:
    return isinstance(reply, list | dict | set)


def _are_texts(reply: object) -> TypeGuard[list[bytes | str | None]]:
    """Return whether a reply is a list of texts; None is one that is not there."""
    return isinstance(reply, list) and all(map(_is_text, reply))


def _are_pairs(reply: object) -> bool:
    if isinstance(reply, dict):
        reply = [text for pair in reply.items() for text in pair]
    return _are_texts(reply) and len(reply) % 2 == 0 and None not in reply


def _are_ranked(reply: object) -> bool:
    """Return whether a reply is a list of texts, or in RESP3 of pairs of a text and a number."""
    return isinstance(reply, list) and all(
        isinstance(each, bytes | str)
        or (isinstance(each, list) and len(each) == 2 and isinstance(each[1], float | int))
        for each in reply
    )


def _is_count(reply: object) -> bool:
    return isinstance(reply, int)


def _is_page(reply: object) -> bool:
    return isinstance(reply, list) and len(reply) == 2 and _is_text(reply[0]) and _is_list(reply[1])


_PAGES = ("SCAN", "HSCAN", "SSCAN", "ZSCAN")
_SHAPES: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("INFO", "CLIENT LIST", "TYPE"), lambda reply: isinstance(reply, bytes | str)),
    **dict.fromkeys(("GET", "HGET"), _is_text),
    **dict.fromkeys(("MGET", "HMGET", "KEYS", "LRANGE", "TIME"), _are_texts),
    **dict.fromkeys(("CONFIG GET", "HGETALL"), _are_pairs),
    **dict.fromkeys(("ZRANGE", "ZREVRANGE"), _are_ranked),
    **dict.fromkeys(("ROLE", "SLOWLOG GET"), _is_list),
    **dict.fromkeys(_PAGES, _is_page),
    **dict.fromkeys(("DBSIZE", "PTTL", "TTL", "HLEN", "LLEN", "SCARD", "ZCARD"), _is_count),
    **dict.fromkeys(("STRLEN", "EXISTS"), _is_count),
    "MEMORY USAGE": lambda reply: reply is None or _is_count(reply),
}
_READ = (*_PAGES, "INFO", "CLIENT LIST", "TIME", "ROLE", "CONFIG GET")  # by redis-py, into parts


def check_replies(client: Any, *, reports: bool = False) -> None:
    """Have replies of another kind than redis-py's methods read be errors of the server.

    With ``reports``, also the numbers that operators' commands read, and frequent commands.
    """
    for name in _SHAPES if reports else _READ:
        parse = reply_callbacks(client).get(name)
        if isinstance(parse, partial) and parse.func is _checked:
            parse = parse.args[1]
        client.set_response_callback(name, partial(_checked, name, parse, reports))


def _checked(
    command: str, parse: Callable[..., Any] | None, reports: bool, reply: Any, **options: Any
) -> Any:
    try:
        if not _SHAPES[command](reply):
            raise TypeError
        parsed = reply if parse is None else parse(reply, **options)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        text = f"the reply to {command} cannot be used: {reply!r:.60}"
        raise redis.InvalidResponse(text) from None
    if reports and command in ("INFO", "CLIENT LIST"):
        rows = parsed if isinstance(parsed, list) else [parsed, *parsed.values()]
        for name, value in (each for row in rows if isinstance(row, dict) for each in row.items()):
            if _NUMBERS.fullmatch(name) and not _is_number(value):
                raise redis.InvalidResponse(f"{command} says {name}={str(value)!r:.60}")
    return parsed


def _is_number(value: object) -> bool:
    if isinstance(value, str):  # in CLIENT LIST
        return re.fullmatch("-?[0-9]{1,19}", value, re.ASCII) is not None
    return isinstance(value, int | float) and abs(value) < 2**64
