"""Copies large values in pieces, as DUMP and RESTORE would hold the servers.

::

    string, list            GETRANGE ─► APPEND, LRANGE ─► RPUSH
    hash, set, sorted set   HSCAN ─► HSET and HPEXPIREAT, SSCAN ─► SADD, ZSCAN ─► ZADD
    stream                  XADD     entries; only new ones if the target has all others
                            XGROUP   groups and consumers, all again
                            XCLAIM   pending entries
                            XSETID   last id, entries added, greatest deleted id

Other types, as vector sets and those of modules, are copied whole: the plan says so.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from redis.exceptions import ResponseError

from shardkit.admin.growth.exchange import Commands, ask, one_connection
from shardkit.network.links.resp import Arguments
from shardkit.operations.operation import pages

# A type's command for its size, and those that read and write a page of it.
IN_PIECES = {
    "string": ("STRLEN", "GETRANGE", "APPEND"),
    "list": ("LLEN", "LRANGE", "RPUSH"),
    "hash": ("HLEN", "HSCAN", "HSET"),
    "set": ("SCARD", "SSCAN", "SADD"),
    "zset": ("ZCARD", "ZSCAN", "ZADD"),
    "stream": ("XLEN", "XRANGE", "XADD"),
}
LARGE = 500_000  # bytes in memory of values that are copied in pieces
_FIND_LARGE = """
local large = {}
local least = tonumber(ARGV[1])
for n = 2, #ARGV do
    local size = redis.call('MEMORY', 'USAGE', ARGV[n])
    if size and size > least then large[#large + 1] = {n - 2, size} end
end
return large"""
_PIECE, _MEMBERS = 100_000, 1000  # bytes and members at a time
_CLAIMED, _CLAIM = 15_000, 100  # bytes of XCLAIM at a time, 26 microseconds for each of about 100
_MANY, _MEMBER = 500, 200  # members, and bytes of each, if a server must not say how large it is


def asking_for_large(keys: Sequence[bytes], least: int = LARGE) -> Commands:
    """Return the command whose reply `large_values` reads."""
    return [("EVAL_RO", _FIND_LARGE, 0, least, *keys)]  # an EVAL would wait with the writers


def large_values(
    client: Any, keys: Sequence[bytes], reply: Any = None, least: int = LARGE
) -> dict[bytes, int]:
    """Return which values have more than some bytes in memory, and how many.

    ``reply`` is that to `asking_for_large`. If the user must not ask that, strings count by
    their length, and others if they have many members.
    """
    if reply is None:
        with suppress(ResponseError):
            [reply] = ask(client, asking_for_large(keys, least))
    if isinstance(reply, list):
        return {keys[n]: size for n, size in reply}
    kinds = [kind.decode() for kind in ask(client, [("TYPE", key) for key in keys])]
    own = [(key, kind) for key, kind in zip(keys, kinds, strict=True) if kind in IN_PIECES]
    with one_connection(client) as line:  # a type may change in between
        counts = line.ask([(IN_PIECES[kind][0], key) for key, kind in own])
    return {
        key: count if kind == "string" else max(least, _MEMBER * count)
        for (key, kind), count in zip(own, counts, strict=True)
        if isinstance(count, int) and count > (least if kind == "string" else _MANY)
    }


def has_expiring_fields(keyspace: Mapping[str, Any]) -> bool:
    """Whether fields of hashes expire, by the numbers of Valkey and Redis."""
    return any(
        db.get("keys_with_volatile_items") or db.get("subexpiry") for db in keyspace.values()
    )


def pieces(source: Any, target: Any, key: bytes, kind: str, size: int) -> Iterator[Commands]:
    """Yield the commands that write a value of about some bytes to a target, in pieces.

    When one is asked for, the last but one has been executed.
    """
    if kind == "stream":
        yield from _stream(source, target, key, size)
        return
    length, read, write = IN_PIECES[kind]
    [count] = ask(source, [(length, key)])
    page = max(1, _PIECE * count // size)
    if kind != "string":
        page = min(page, _MEMBERS)
    expiring = kind == "hash" and has_expiring_fields(source.info("keyspace"))
    yield [("UNLINK", key)]
    cursor = b"0"
    for start in range(0, sys.maxsize, page):
        if kind in ("string", "list"):
            [reply] = ask(source, [(read, key, start, start + page - 1)])
            members = reply if isinstance(reply, list) else [reply] if reply else []
            is_last = not members
        else:
            [[cursor, members]] = ask(source, [(read, key, cursor, "COUNT", page)])
            if kind == "zset":  # scores come last
                members = list(chain(*zip(members[1::2], members[::2], strict=True)))
            is_last = cursor == b"0"
        if members:
            ends = _ends_of(source, key, members[::2]) if expiring else ()
            yield [(write, key, *members), *ends]
        if is_last:
            return


def _ends_of(source: Any, key: bytes, fields: Sequence[bytes]) -> Iterator[Arguments]:
    """Yield the commands that have fields of a hash expire."""
    [times] = ask(source, [("HPEXPIRETIME", key, "FIELDS", len(fields), *fields)])
    by_time: defaultdict[int, list[bytes]] = defaultdict(list)
    for name, at in zip(fields, times or (), strict=False):  # none if it has just gone
        by_time[at].append(name)
    for at, names in by_time.items():
        if at > 0:
            yield ("HPEXPIREAT", key, at, "FIELDS", len(names), *names)


def _stream(source: Any, target: Any, key: bytes, size: int) -> Iterator[Commands]:
    [reply] = ask(source, [("XINFO", "STREAM", key)])
    info = _named(reply)
    groups = [_named(group) for group in ask(source, [("XINFO", "GROUPS", key)])[0]]
    names = [group[b"name"] for group in groups]
    last, length = info[b"last-generated-id"], info[b"length"]
    page = min(_MEMBERS, max(1, _PIECE * length // size))
    # Pending entries that were deleted: XCLAIM needs them, so they exist for a moment.
    gone = sorted(
        {
            _parts(id_)
            for name in names
            for pending in _pending(source, key, name, page)
            for id_, entry in zip(
                [message[0] for message in pending],
                ask(source, [("XRANGE", key, message[0], message[0]) for message in pending]),
                strict=True,
            )
            if not entry
        }
    )
    there: Mapping[bytes, Any] = {}
    with suppress(ResponseError):  # it is not there, or of another type
        there = _named(ask(target, [("XINFO", "STREAM", key)])[0])
    start = b"-"
    added = info.get(b"entries-added", 0) - there.get(b"entries-added", 0)  # since Redis 7.0
    if b"entries-added" in there and added >= 0 and not gone:
        oldest = info[b"first-entry"]
        yield [("XTRIM", key, "MINID", oldest[0]) if oldest else ("XTRIM", key, "MAXLEN", 0)]
        yield [("EXISTS", key)]
        # If none was deleted in between, it has all up to its last one.
        if ask(target, [("XLEN", key)]) == [length - added]:
            start = b"(" + there[b"last-generated-id"]
            before = ask(target, [("XINFO", "GROUPS", key)])[0]
            yield [("XGROUP", "DESTROY", key, _named(group)[b"name"]) for group in before]
    if start == b"-":
        yield [("UNLINK", key)]
    created: list[Arguments] = []
    for group in groups:
        read = group.get(b"entries-read")
        more = () if read is None else ("ENTRIESREAD", read)
        at = group[b"last-delivered-id"]
        created.append(("XGROUP", "CREATE", key, group[b"name"], at, "MKSTREAM", *more))
    yield created
    early = list(gone)
    while True:
        [entries] = ask(source, [("XRANGE", key, start, last, "COUNT", page)])
        until = _parts(entries[-1][0] if len(entries) == page else last)
        kept = [id_ for id_ in early if id_ <= until]
        early = early[len(kept) :]
        every = {**{id_: [b"", b""] for id_ in kept}, **{_parts(id_): f for id_, f in entries}}
        for some in pages(sorted(every), page):
            yield [("XADD", key, b"%d-%d" % id_, *every[id_]) for id_ in some]
        if len(entries) < page:
            break
        start = b"(" + entries[-1][0]
    for name in names:
        consumers = ask(source, [("XINFO", "CONSUMERS", key, name)])[0]
        for some in pages(consumers, _MEMBERS // 2):
            yield [("XGROUP", "CREATECONSUMER", key, name, _named(one)[b"name"]) for one in some]
        for pending in _pending(source, key, name, _CLAIMED // (_CLAIM + len(key) + len(name))):
            yield [
                (
                    *("XCLAIM", key, name, consumer, 0, id_),
                    *("IDLE", idle, "RETRYCOUNT", count, "FORCE", "JUSTID"),
                )
                for id_, consumer, idle, count in pending
            ]
    for n in range(0, len(gone), _MEMBERS):
        yield [("XDEL", key, *(b"%d-%d" % id_ for id_ in gone[n : n + _MEMBERS]))]
    counts: Arguments = ()
    if b"entries-added" in info:
        counts = ("ENTRIESADDED", info[b"entries-added"])
        counts += ("MAXDELETEDID", info[b"max-deleted-entry-id"])
    yield [("XSETID", key, last, *counts)]


def _pending(source: Any, key: bytes, group: bytes, most: int) -> Iterator[list[Any]]:
    """Yield the pending entries of a group, up to ``most`` at a time."""
    start, most = b"-", max(1, most)
    while True:
        [page] = ask(source, [("XPENDING", key, group, start, "+", most)])
        if page:
            yield page
        if len(page) < most:
            return
        start = b"(" + page[-1][0]


def _named(reply: Any) -> dict[bytes, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _parts(id_: bytes) -> tuple[int, ...]:
    return tuple(map(int, id_.split(b"-")))
