"""Copies large values in pieces, as DUMP and RESTORE would hold the servers.

::

    string, list            GETRANGE ─► APPEND, LRANGE ─► RPUSH
    hash, set, sorted set   HSCAN ─► HSET and HPEXPIREAT, SSCAN ─► SADD, ZSCAN ─► ZADD
    stream                  XADD     entries that the target lacks, XDEL those that were deleted
                            XGROUP   groups and consumers
                            XCLAIM   pending entries that are not so at the target, XACK others
                            XSETID   last id, entries added, greatest deleted id

Other types, as vector sets and those of modules, are copied whole: the plan says so.
"""

from __future__ import annotations

import sys
import time
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
_IDLE = 200  # milliseconds by which the times of deliveries may differ
_MANY, _MEMBER = 500, 200  # members, and bytes of each, if a server must not say how large it is


def asking_for_large(keys: Sequence[bytes]) -> Commands:
    """Return the command whose reply `large_values` reads."""
    return [("EVAL_RO", _FIND_LARGE, 0, LARGE, *keys)]  # an EVAL would wait with the writers


def large_values(client: Any, keys: Sequence[bytes], reply: Any = None) -> dict[bytes, int]:
    """Return which values have more than `LARGE` bytes in memory, and how many.

    ``reply`` is that to `asking_for_large`. If the user must not ask that, strings count by
    their length, and others if they have many members.
    """
    if reply is None:
        with suppress(ResponseError):
            [reply] = ask(client, asking_for_large(keys))
    if isinstance(reply, list):
        return {keys[n]: size for n, size in reply}
    kinds = [kind.decode() for kind in ask(client, [("TYPE", key) for key in keys])]
    own = [(key, kind) for key, kind in zip(keys, kinds, strict=True) if kind in IN_PIECES]
    with one_connection(client) as line:  # a type may change in between
        counts = line.ask([(IN_PIECES[kind][0], key) for key, kind in own])
    return {
        key: count if kind == "string" else max(LARGE, _MEMBER * count)
        for (key, kind), count in zip(own, counts, strict=True)
        if isinstance(count, int) and count > (LARGE if kind == "string" else _MANY)
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
    info = _named(ask(source, [("XINFO", "STREAM", key)])[0])
    last, length = info[b"last-generated-id"], info[b"length"]
    page = min(_MEMBERS, max(1, _PIECE * length // size))
    groups, sides = _groups(source, key), (source, target, key)
    there: Mapping[bytes, Any] = {}
    before: Mapping[bytes, Any] = {}
    deleted: list[bytes] = []
    start, is_same = b"-", False
    with suppress(ResponseError):  # it is not there, or of another type
        there = _named(ask(target, [("XINFO", "STREAM", key)])[0])
        before = _groups(target, key)
    added = info.get(b"entries-added", 0) - there.get(b"entries-added", 0)  # since Redis 7.0
    entry, oldest = there.get(b"last-entry"), info[b"first-entry"]
    if b"entries-added" in there and added >= 0:
        copied = there[b"last-generated-id"]
        deletions = [_parts(one[b"max-deleted-entry-id"]) for one in (there, info)]
        known = oldest if oldest and _parts(oldest[0]) <= _parts(copied) else None
        is_same = deletions == sorted(deletions) and (
            not known or _entries(target, key, [known[0]]) == [[known]]
        )
    if is_same:  # else it is another stream by now
        unlike = {name: _unlike(*sides, name, name in before, page) for name in groups}
        gone = set().union(*(lost for *_, lost in unlike.values()))
        early = [id_ for id_ in gone if id_ <= _parts(copied)]
        surplus = there[b"length"] + added - length
        if surplus >= 0 and all(_entries(target, key, [b"%d-%d" % id_ for id_ in early])):
            deleted = _deleted(source, target, key, surplus, page)
            if not entry or entry[0] in deleted or _entries(source, key, [entry[0]]) == [[entry]]:
                start = b"(" + copied
    if start == b"-":
        deleted = []
        yield [("UNLINK", key)]
        # It exists, though it may have neither entries nor groups.
        yield [("XGROUP", "CREATE", key, "", 0, "MKSTREAM"), ("XGROUP", "DESTROY", key, "")]
        before = {}
        unlike = {name: _unlike(*sides, name, False, page) for name in groups}
        gone = set().union(*(lost for *_, lost in unlike.values()))
    changes: list[Arguments] = [("XGROUP", "DESTROY", key, n) for n in before.keys() - groups]
    for name, (at, read) in groups.items():
        more = () if read is None else ("ENTRIESREAD", read)
        if name not in before:
            changes.append(("XGROUP", "CREATE", key, name, at, "MKSTREAM", *more))
            continue
        if before[name] != (at, read):
            changes.append(("XGROUP", "SETID", key, name, at, *more))
        left = _consumers(target, key, name) - _consumers(source, key, name)
        changes += [("XGROUP", "DELCONSUMER", key, name, consumer) for consumer in left]
    yield from pages(changes, _MEMBERS)
    new = sorted(id_ for id_ in gone if start == b"-" or id_ > _parts(start[1:]))
    while True:
        [entries] = ask(source, [("XRANGE", key, start, last, "COUNT", page)])
        until = _parts(entries[-1][0] if len(entries) == page else last)
        early = [id_ for id_ in new if id_ <= until]
        new = new[len(early) :]
        every = {**{id_: [b"", b""] for id_ in early}, **{_parts(id_): f for id_, f in entries}}
        for some in pages(sorted(every), page):
            yield [("XADD", key, b"%d-%d" % id_, *every[id_]) for id_ in some]
        if len(entries) < page:
            break
        start = b"(" + entries[-1][0]
    for name in groups:
        known = _consumers(target, key, name) if name in before else set()
        for names in pages(sorted(_consumers(source, key, name) - known), _MEMBERS):
            yield [("XGROUP", "CREATECONSUMER", key, name, consumer) for consumer in names]
        acknowledged, claimed, _ = unlike[name]
        for ids in pages(acknowledged, _MEMBERS):
            yield [("XACK", key, name, *ids)]
        for messages in pages(claimed, max(1, _CLAIMED // (_CLAIM + len(key) + len(name)))):
            now = round(1000 * time.monotonic())
            yield [
                (
                    *("XCLAIM", key, name, consumer, 0, id_),
                    *("IDLE", now - since, "RETRYCOUNT", count, "FORCE", "JUSTID"),
                )
                for id_, consumer, since, count in messages
            ]
    # XDEL would set the greatest deleted id, which XSETID cannot set to none.
    yield [("XTRIM", key, "MINID", oldest[0]) if oldest else ("XTRIM", key, "MAXLEN", 0)]
    for ids in pages([*deleted, *(b"%d-%d" % id_ for id_ in gone)], _MEMBERS):
        yield [("XDEL", key, *ids)]
    counts: Arguments = ()
    if b"entries-added" in info:
        counts = ("ENTRIESADDED", info[b"entries-added"])
        counts += ("MAXDELETEDID", info[b"max-deleted-entry-id"])
    yield [("XSETID", key, last, *counts)]


def _groups(client: Any, key: bytes) -> dict[bytes, tuple[bytes, int | None]]:
    """Return what each group of a stream has read: its last entry, and how many."""
    groups = map(_named, ask(client, [("XINFO", "GROUPS", key)])[0])
    return {g[b"name"]: (g[b"last-delivered-id"], g.get(b"entries-read")) for g in groups}


def _consumers(client: Any, key: bytes, group: bytes) -> set[bytes]:
    return {_named(one)[b"name"] for one in ask(client, [("XINFO", "CONSUMERS", key, group)])[0]}


def _entries(client: Any, key: bytes, ids: Sequence[bytes]) -> list[Any]:
    """Return each entry, as a list that is empty if it is not there."""
    return ask(client, [("XRANGE", key, id_, id_) for id_ in ids])


def _deleted(source: Any, target: Any, key: bytes, most: int, page: int) -> list[bytes]:
    """Return which entries of a target its source has deleted, at most some."""
    ids: list[bytes] = []
    start = b"-"
    while len(ids) < most:
        [theirs] = ask(target, [("XRANGE", key, start, "+", "COUNT", page)])
        if not theirs:
            break
        end = theirs[-1][0]
        [own] = ask(source, [("XRANGE", key, theirs[0][0], end)])
        left = {id_ for id_, _ in own}
        ids += [id_ for id_, _ in theirs if id_ not in left]
        start = b"(" + end
    return ids


def _unlike(
    source: Any, target: Any, key: bytes, group: bytes, is_there: bool, page: int
) -> tuple[list[bytes], list[Any], set[tuple[int, ...]]]:
    """Return what is pending at a target alone, and what is not pending there as at the source.

    Of the latter, those that were deleted come third: XCLAIM needs them, so they exist for a
    moment. Only the time of deleted ones cannot have changed.
    """
    acknowledged: list[bytes] = []
    claimed: list[Any] = []
    gone: set[tuple[int, ...]] = set()
    start = b"-"
    for messages in chain(pending_entries(source, key, group), [[]]):
        now, end = round(1000 * time.monotonic()), messages[-1][0] if messages else b"+"
        pending = pending_entries(target, key, group, start, end) if is_there else ()
        theirs = {message[0]: message for some in pending for message in some}
        changed = []
        for id_, consumer, idle, count in messages:
            _, *its = theirs.pop(id_, (id_, None, 0, 0))
            is_known = [consumer, count] == its[::2]
            if not is_known or abs(idle - its[1]) > _IDLE:
                changed.append((id_, consumer, now - idle, count, is_known))
        for part in pages(changed, page):
            entries = _entries(source, key, [message[0] for message in part])
            for (*message, is_known), entry in zip(part, entries, strict=True):
                if entry or not is_known:
                    claimed.append(message)
                if not (entry or is_known):
                    gone.add(_parts(message[0]))
        acknowledged += theirs
        start = b"(" + end
    return acknowledged, claimed, gone


def pending_entries(
    client: Any, key: bytes, group: bytes, start: bytes = b"-", end: bytes = b"+"
) -> Iterator[list[Any]]:
    """Yield a group's pending entries in pages: consumer, idle milliseconds, deliveries."""
    while True:
        [page] = ask(client, [("XPENDING", key, group, start, end, _MEMBERS)])
        if page:
            yield page
        if len(page) < _MEMBERS:
            return
        start = b"(" + page[-1][0]


def _named(reply: Any) -> dict[bytes, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _parts(id_: bytes) -> tuple[int, ...]:
    return tuple(map(int, id_.split(b"-")))
