"""Keys and their values, for a person who looks: read only, in small pieces."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from shardkit.admin.doctor.scan import Database, databases_of, distinct_shards
from shardkit.errors import InvalidArgumentError, ShardKitError, shortened
from shardkit.kit.kit import ShardKit
from shardkit.network.server_queries import ServerErrors
from shardkit.operations.commands import Command, Partial
from shardkit.structures import codec
from shardkit.structures.base.parameters import meta_key

_PAGE = 200  # keys of one SCAN
_SCANS = 50  # for one answer
_SHOWN = 100  # keys, or members of a value, fewer of large ones
_MOST, _MOST_OF_ALL = 65_536, 4_000_000  # bytes of a string or member that are shown; of members
_LONGEST = 4096  # bytes of a name that can be asked for
_NAMES = 16  # prefixes of a key that may be a structure's name

# The command for a value's size, and what reads some members.
_READERS: Mapping[str, tuple[str, Callable[[Any, bytes, int], Any]]] = {
    "string": ("STRLEN", lambda client, key, _: client.getrange(key, 0, _MOST - 1)),
    "hash": ("HLEN", lambda client, key, many: client.hscan(key, count=many)[1]),
    "list": ("LLEN", lambda client, key, many: client.lrange(key, 0, many - 1)),
    "set": ("SCARD", lambda client, key, many: client.sscan(key, count=many)[1]),
    "zset": ("ZCARD", lambda client, key, many: client.zrange(key, 0, many - 1, withscores=True)),
    "stream": ("XLEN", lambda client, key, many: client.xrange(key, count=many)),
}


def keys_of(kit: ShardKit, component: str, pattern: str, cursor: str) -> dict[str, Any]:
    """Return some of a component's keys, and the cursor of the next ones; empty after the last.

    Shards that cannot be read are skipped; ``failed`` has why. Cost: at most 50 SCANs of 200 keys,
    and three commands for each key that is found.
    """
    databases = _databases(kit, component)
    at, number = _numbers(cursor or "0:0", len(databases))
    rows, failed = list[dict[str, Any]](), dict[str, str]()
    for _ in range(_SCANS):
        database = databases[at]
        try:
            number, keys = database.client.scan(number, match=pattern or "*", count=_PAGE)
            rows += _described(database, at, keys)
        except ServerErrors as error:
            failed[str(database.shard)], number = str(error), 0
        at += number == 0
        if at == len(databases) or len(rows) >= _SHOWN:
            break
    following = "" if at == len(databases) else f"{at}:{number}"
    return {"keys": rows, "cursor": following, "failed": failed}


def value_of(kit: ShardKit, component: str, place: str, key: str) -> dict[str, Any]:
    """Return a key's value, decoded as its structure stores it.

    At most 64 KB of a string, 100 members, or as many as take 4 MB by their average.
    """
    databases = _databases(kit, component)
    at, _ = _numbers(f"{place}:0", len(databases))
    name, client = base64.urlsafe_b64decode(key), cast("Any", databases[at].client)
    rows = _described(databases[at], at, [name])
    if not rows or rows[0]["type"] not in _READERS:
        why = "it is gone, its name is too long, or its type is not shown"
        return {
            "key": shortened(name.decode(errors="backslashreplace")),
            "value": None,
            "note": why,
        }
    length, read = _READERS[rows[0]["type"]]
    fits = _MOST_OF_ALL * client.execute_command(length, name) // (rows[0]["bytes"] or sys.maxsize)
    value = read(client, name, min(_SHOWN, max(1, fits)))
    structure, parameters = _structure_of(kit, component, name)
    form, decode, note = parameters.get("codec", "none"), None, ""
    if form != "none" and name != meta_key(structure).encode():
        try:
            decode, note = codec(form).decode, f"decoded by {form}"
        except ShardKitError:
            note = f"as stored: {form} is a codec of the application"
    return {**rows[0], "structure": structure, "note": note, "value": _decoded(value, decode)}


def _databases(kit: ShardKit, name: str) -> list[Database]:
    component = kit.component(name)
    return [
        db for shard in distinct_shards(component) for db in databases_of(kit, component, shard)
    ]


def _numbers(cursor: str, most: int) -> tuple[int, int]:
    at, _, number = cursor.partition(":")
    if not (at.isdecimal() and number.isdecimal() and int(at) < most):
        raise InvalidArgumentError(f"{cursor[:40]!r} is no place of keys", "begin again")
    return int(at), int(number)


def _described(database: Database, at: int, keys: list[Any]) -> list[dict[str, Any]]:
    pipe: Any = database.client.pipeline(transaction=False)
    for key in keys:
        pipe.type(key).pttl(key).memory_usage(key)
    replies = pipe.execute(raise_on_error=False)
    return [
        {
            "key": shortened(key.decode(errors="backslashreplace")),
            "id": base64.urlsafe_b64encode(key).decode() if len(key) <= _LONGEST else "",
            "place": at,
            "shard": str(database.shard),
            "type": kind.decode(),
            "expires": left / 1000 if isinstance(left, int) and left >= 0 else None,
            "bytes": size if isinstance(size, int) else None,  # None without the right to ask
        }
        for key, kind, left, size in zip(
            keys, replies[::3], replies[1::3], replies[2::3], strict=True
        )
        if isinstance(kind, bytes) and kind != b"none"
    ]


def _structure_of(kit: ShardKit, component: str, key: bytes) -> tuple[str, dict[str, str]]:
    """Return the structure that a key is of, and its parameters; empty for none."""
    ends = [n for n, byte in enumerate(key[:1024]) if byte == ord(":")][-_NAMES:]
    names = [key[:end].decode(errors="replace") for end in reversed(ends)]
    reads = [Command(component, meta_key(name), ("HGETALL", meta_key(name))) for name in names]
    replies: list[Any] = kit.plane.link().send(Partial(reads)) if reads else []
    for name, words in zip(names, replies, strict=True):
        if isinstance(words, list) and words:
            texts = [bytes(word).decode(errors="replace") for word in words]
            return name, dict(zip(texts[::2], texts[1::2], strict=True))
    return "", {}


def _decoded(value: Any, decode: Callable[[bytes], Any] | None) -> Any:
    """Return a value for JSON, a hash's values decoded."""
    if isinstance(value, dict):
        return [[_decoded(name, None), _decoded(item, decode)] for name, item in value.items()]
    if isinstance(value, list | tuple | set):
        return [_decoded(item, None) for item in value]
    if decode is not None:
        with suppress(ShardKitError, ValueError):
            value = decode(value)
    value = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
    return shortened(value, _MOST) if isinstance(value, str) else value
