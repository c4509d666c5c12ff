"""The kinds of replies that are read into parts: of a server that sends another, none is used."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import redis

from shardkit.network.connections.redis_private import reply_callbacks
from shardkit.operations.reply_kinds import KINDS, PAGES

# The numbers that commands and the dashboard read, of INFO and of CLIENT LIST.
_NUMBERS = re.compile(
    "used_(memory|memory_dataset|cpu_sys|cpu_user)|max(clients|memory)|(blocked|connected)_clients|"
    "connected_slaves|cluster_enabled|loading|(instantaneous_ops_per|uptime_in)_sec(onds)?|"
    "total_(commands_processed|net_(in|out)put_bytes)|mem_clients_normal|aof_enabled|"
    "(rdb_bgsave|aof_rewrite)_in_progress|rdb_(last_save_time|changes_since_last_save)|"
    "(master|slave|slave_read)_repl_offset|master_(link_down_since_seconds|sync_.*)|"
    "id|age|idle|keys|expires"
)


_READ = (*PAGES, "INFO", "CLIENT LIST", "TIME", "ROLE", "CONFIG GET")  # by redis-py, into parts


def check_replies(client: Any, *, reports: bool = False) -> None:
    """Have replies of another kind than redis-py's methods read be errors of the server.

    With ``reports``, also the numbers that operators' commands read, and frequent commands.
    """
    for name in KINDS if reports else _READ:
        parse = reply_callbacks(client).get(name)
        if isinstance(parse, partial) and parse.func is _checked:
            parse = parse.args[1]
        client.set_response_callback(name, partial(_checked, name, parse, reports))


def require_kind(command: str, reply: object) -> None:
    """Raise redis-py's InvalidResponse for a command's reply of another kind."""
    if command in KINDS and not KINDS[command](reply):
        raise _unusable(command, reply)


def _unusable(command: str, reply: object) -> redis.InvalidResponse:
    return redis.InvalidResponse(f"the reply to {command} cannot be used: {reply!r:.60}")


def _checked(
    command: str, parse: Callable[..., Any] | None, reports: bool, reply: Any, **options: Any
) -> Any:
    require_kind(command, reply)
    try:
        parsed = reply if parse is None else parse(reply, **options)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise _unusable(command, reply) from None
    if reports and command in ("INFO", "CLIENT LIST"):
        rows = parsed if isinstance(parsed, list) else [parsed, *parsed.values()]
        for name, value in (item for row in rows if isinstance(row, dict) for item in row.items()):
            if _NUMBERS.fullmatch(name) and not _is_number(value):
                raise redis.InvalidResponse(f"{command} says {name}={str(value)!r:.60}")
    return parsed


def _is_number(value: object) -> bool:
    if isinstance(value, str):  # in CLIENT LIST
        return re.fullmatch("-?[0-9]{1,19}", value, re.ASCII) is not None
    return isinstance(value, int | float) and abs(value) < 2**64
