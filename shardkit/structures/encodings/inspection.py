"""Inspects keys: how they are stored, how many entries they have, and their memory.

Read-only; entries are read only of keys that are not compact. Cheap enough for thousands of keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from shardkit.errors import ShardFailure, ShardUnavailable
from shardkit.operations.commands import Columns, Command, Key, Partial, Replies, To, raise_failures
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import key_bytes
from shardkit.structures.encodings.limits import KeyEncoding, check

KEYS_AT_ONCE: Final = 250  # three commands each
# How many entries of a key that is not compact are read to find the longest one.
_ENTRIES_READ: Final = 5_000
_PAGE: Final = 1_000
_SCANNED_AT_ONCE: Final = 10

_LENGTHS: Final = {
    "string": "STRLEN",
    "hash": "HLEN",
    "set": "SCARD",
    "zset": "ZCARD",
    "list": "LLEN",
    "stream": "XLEN",
}


class _EntryScan(NamedTuple):
    """The command that pages through a type's entries."""

    command: str
    width: int  # values that it returns for each entry
    texts: int  # how many of them have a limit; a score has none


_SCANS: Final = {
    "hash": _EntryScan("HSCAN", 2, 2),
    "set": _EntryScan("SSCAN", 1, 1),
    "zset": _EntryScan("ZSCAN", 2, 1),
}
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def inspect_keys(to: To, keys: Iterable[Key]) -> Operation[list[KeyEncoding]]:
    """Return how keys of a component, or of a shard, are stored; missing ones are left out.

    Cost: two exchanges for every 250 keys, and for a key that is not compact one for each 1,000 of
    its entries, of which at most 5,000 are read.
    """
    encodings: list[KeyEncoding] = []
    for page in pages(keys, KEYS_AT_ONCE):
        encodings += yield from _inspect_page(to, page)
    return encodings


def _inspect_page(to: To, keys: Sequence[Key]) -> Operation[list[KeyEncoding]]:
    types = yield Columns(to, "TYPE", keys)
    kinds = {key: t.decode() for key, t in zip(keys, types, strict=True) if t != b"none"}
    batch = Partial()
    for key, kind in kinds.items():
        batch.append(Command(to, key, ("OBJECT", "ENCODING", key)))
        batch.append(Command(to, key, ("MEMORY", "USAGE", key)))
        length = (_LENGTHS.get(kind, "EXISTS"), key)
        batch.append(Command(to, key, length))
    if not batch:
        return []
    replies = yield batch
    raise_failures(Replies(reply for reply in replies if isinstance(reply, ShardUnavailable)))
    results: list[KeyEncoding] = []
    for (key, kind), n in zip(kinds.items(), range(0, len(replies), 3), strict=True):
        encoding, taken, length = replies[n : n + 3]
        if not isinstance(encoding, bytes) or not isinstance(length, int):
            continue  # deleted in between, or of another type now
        taken = taken if isinstance(taken, int) else None
        results.append(KeyEncoding(key_bytes(key), kind, encoding.decode(), length, taken))
    loose = [
        n for n, seen in enumerate(results) if seen.type in _SCANS and not check(seen, None).compact
    ]
    for some in pages(loose, _SCANNED_AT_ONCE):
        measured = yield from _with_entries(to, [results[n] for n in some])
        for n, seen in zip(some, measured, strict=True):
            results[n] = seen
    return results


def _with_entries(to: To, keys: Sequence[KeyEncoding]) -> Operation[list[KeyEncoding]]:
    """Return keys with the properties of the entries that are read."""
    entries: dict[bytes, list[bytes]] = {seen.key: [] for seen in keys}
    types = {seen.key: seen.type for seen in keys}
    cursors = dict.fromkeys(entries, b"0")
    while cursors:
        replies = yield Partial(
            Command(to, key, (_SCANS[types[key]].command, key, cursor, "COUNT", _PAGE))
            for key, cursor in cursors.items()
        )
        again = {}
        for key, reply in zip(cursors, replies, strict=True):
            if isinstance(reply, ShardFailure):
                continue  # not permitted, or of another type now
            scan = _SCANS[types[key]]
            cursor, texts = reply
            entries[key] += (text for n, text in enumerate(texts) if n % scan.width < scan.texts)
            if cursor != b"0" and len(entries[key]) < _ENTRIES_READ:
                again[key] = cursor
        cursors = again
    return [
        replace(
            seen,
            longest=max(map(len, entries[seen.key]), default=None),
            integers=seen.type == "set" and all(map(_is_integer, entries[seen.key])),
        )
        for seen in keys
    ]


def _is_integer(text: bytes) -> bool:
    """Whether a server stores a member as an integer: canonical, and within 64 bits."""
    return bool(_INTEGER.fullmatch(text)) and -(2**63) <= int(text) < 2**63
