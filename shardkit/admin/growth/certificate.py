"""Compares two servers: every key, its type, its value and its expiry.

::

    SCAN of one side ─► TYPE, PTTL of some keys ─► their values, in one exchange ─► one digest a key
                        on both sides                     large values in pages
    SCAN of the other side ─► keys that only it has

Expiries of hash fields, consumer groups and pending entries count. Encodings, the order of members
and the count that PFCOUNT keeps in a HyperLogLog do not, nor do shardkit's own keys. A key that
differs is read again until it has not changed for `SETTLED` seconds, as what follows its changes
may be behind. One that changes all the time is counted separately.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import redis

from shardkit.admin.growth.exchange import (
    Slices,
    accepted,
    ask,
    ask_all,
    at_work,
    check_share,
    one_connection,
    pages,
)
from shardkit.admin.growth.pieces import has_expiring_fields, large_values, pending_entries
from shardkit.admin.growth.shard_copy import TOLD
from shardkit.errors import GrowthError, counted
from shardkit.network.connections.redis_private import reply_callbacks

D = TypeVar("D")
Where: TypeAlias = Callable[[D, Sequence[bytes]], Mapping[D, Sequence[bytes]]]

_Found: TypeAlias = tuple[str, bytes, str]
"""A key's type, its digest, and how it differs on the other side; empty if it does not."""

SETTLED = 2.0
_LATE = 10_000  # keys that differ, and are read again together
_PAGE = 200
_SLICE = 30_000  # bytes of values in one exchange, about
_MEMBER = 100  # bytes of a slice that a member of a collection stands for
_MEMBERS = 500  # of a collection, in the exchange with other values
_BYTES = 1 << 14  # of a string, in the exchange with other values
_MOST_BYTES = 1 << 18  # of a string, in an exchange of its own
_MOST_NAMED = 20
_EXPIRY = 1000  # milliseconds by which times to live may differ
_STEP = 0.02
_EXPIRING = 0.05  # seconds in which two servers drop what expires
_LARGE = 3_000_000  # bytes in memory that take 20 ms to DUMP
_FOOTER = 10  # bytes of a DUMP: its version and a checksum
_CHANGING = "is being written"


@dataclass
class ServerComparison:
    """The result of a comparison of two servers.

    Attributes:
        keys: how many keys the first has, by database and type: ``{"3 hash": 17}``.
        digest: of all databases, names, types and values of the first, in any order.
        different: up to 20 keys that differ, as ``3 name: how``.
        differing: how many differ.
        changing: how many changed all the time or unnoticed, and could not be compared.
    """

    keys: dict[str, int] = field(default_factory=dict)
    digest: str = "0" * 32
    different: list[str] = field(default_factory=list)
    differing: int = 0
    changing: int = 0

    @property
    def same(self) -> bool:
        """Whether both hold the same."""
        return not self.differing

    @property
    def total(self) -> int:
        """How many keys there are."""
        return sum(self.keys.values())


def compare(
    first: Callable[[D], Any],
    second: Callable[[D], Any],
    databases: Iterable[D],
    progress: Callable[[int], object] = lambda keys: None,
    share: float = 1.0,
    *,
    others: Iterable[D] | None = None,
    there: Where[D] = lambda number, keys: {number: keys},
    back: Where[D] = lambda number, keys: {number: keys},
    label: Callable[[D], str] = str,
    untold: Callable[[D, list[bytes]], object] = lambda number, keys: None,
) -> ServerComparison:
    """Compare databases of two servers, or of two sides.

    Args:
        first: returns a client of the first server, by the database.
        second: the same of the second server.
        databases: the databases.
        others: the databases of the second, if they are others.
        there: returns where the second has some keys of a database of the first.
        back: returns where the first has some keys of a database of the second.
        label: returns what a database is called in the result.
        untold: is called with keys that differ, if their changes are not all told: they must be
            copied again.
        progress: is called with the number of keys compared so far.
        share: the share of the time in which this works; it pauses for the rest.

    Cost: two exchanges with each server for up to 32 keys of 30 KB together, more for collections
    above 500 members and strings above 16 KB, two more for streams, one more for each hash if
    fields expire.
    """
    share = check_share("compare", share)
    result = ServerComparison()
    slices = Slices(_SLICE)
    total = 0
    databases = list(databases)

    def count(number: D, differences: Mapping[bytes, _Found]) -> None:
        nonlocal total
        name = label(number)
        for key, (kind, digest, why) in differences.items():
            if kind == "none":  # it is gone on both sides
                continue
            kinds = f"{name} {kind}"
            result.keys[kinds] = result.keys.get(kinds, 0) + 1
            total ^= int.from_bytes(_hash(name.encode(), digest), "big")
            if why == _CHANGING:
                result.changing += 1
            elif why:
                _note(result, name, key, why)

    def settle() -> None:
        """Read keys that differ again, all at the same time."""
        settled = _settled(
            [
                (first(number), second(at), keys, partial(untold, number))
                for (number, at), keys in late.items()
            ]
        )
        for (number, _), differences in zip(late, settled, strict=True):
            count(number, differences)
        late.clear()

    late: defaultdict[tuple[D, D], list[bytes]] = defaultdict(list)
    for number in databases:
        one = first(number)
        for at, keys in _grouped(number, one, there):
            other = second(at)
            for part in slices.of(keys):
                with at_work(share):
                    looked = _looked(one, other, part, slices)
                late[number, at] += [key for key in part if looked[key][2]]
                count(number, {key: state for key, state in looked.items() if not state[2]})
            if sum(map(len, late.values())) > _LATE:
                settle()
            progress(result.total)
    settle()
    for number in databases if others is None else others:
        other, name = second(number), label(number)
        for at, keys in _grouped(number, other, back):
            one = first(at)
            if all(ask(one, [("EXISTS", key) for key in keys])):  # a cluster's have other slots
                continue
            [settled] = _settled([(other, one, keys, partial(untold, at))])
            for key, (kind, _, why) in settled.items():
                if why and why != _CHANGING and kind != "none" and not one.exists(key):
                    _note(result, name, key, "is only on the second server")
    result.digest = f"{total:032x}"
    return result


def differing(one: Any, other: Any, keys: Sequence[bytes], until: float = math.inf) -> list[str]:
    """Return which of some keys differ on two servers to which nobody writes, and how.

    Only large values, and those that their servers DUMP in different ways, are compared in detail;
    of streams all but the entries, which never change.

    Raises:
        GrowthError: some must be compared in detail although it is later than ``until``, so that
            clients write again.
    """
    lines: list[str] = []
    slices = Slices(_SLICE)
    for part in slices.of(keys):
        sizes = large_values(one, part)
        streams = {key for key in sizes if _is_same_stream(one, other, key)}
        large = {key for key, size in sizes.items() if size > _LARGE} | streams
        dumped = [key for key in part if key not in large]
        asked = [("PTTL", key) for key in part], [("DUMP", key) for key in dumped]
        answers = ask_all([(one, asked), (other, asked)])
        packs = [dict(zip(dumped, replies[len(part) :], strict=True)) for replies in answers]
        slices.note(len(part), sum(len(value or b"") for value in packs[0].values()))
        rest = []
        for n, key in enumerate(part):
            packed, there = ((pack.get(key) or b"")[:-_FOOTER] for pack in packs)
            is_same = key in streams or (packed == there and key not in large)
            left, its = (("", b"", replies[n]) for replies in answers)
            if _difference(left, its) or not (is_same or _is_same_stream(one, other, key)):
                rest.append(key)
        if rest and time.monotonic() > until:
            raise GrowthError(
                f"{counted(len(rest), 'key')} could not be compared while writers were held",
                "allow more time: --hold",
            )
        [differences] = _settled([(one, other, rest, lambda keys: None)], _EXPIRING)
        lines += [
            f"{key.decode(errors='backslashreplace')}: {why}"
            for key, (_, _, why) in differences.items()
            if why
        ]
    return lines


def _is_same_stream(one: Any, other: Any, key: bytes) -> bool:
    sides = []
    for client in (one, other):
        with one_connection(client) as line:
            asked = ("TYPE", key), ("XLEN", key), ("XRANGE", key, "-", "+", "COUNT", 1)
            kind, *states = line.ask(asked)
        sides.append(
            repr((*states, _value(client, key, "stream", []))) if kind == b"stream" else ""
        )
    return sides[0] == sides[1] != ""


def unequal(one: Any, other: Any, keys: Sequence[bytes]) -> list[bytes]:
    """Return which of some keys are not the same on two servers just now. Cost: two pages."""
    mine, there = _digests((one, other), keys)
    return [key for key in keys if _difference(mine[key], there[key])]


def _note(result: ServerComparison, name: str, key: bytes, why: str) -> None:
    result.differing += 1
    if len(result.different) < _MOST_NAMED:
        result.different.append(f"{name} {key.decode(errors='backslashreplace')}: {why}")


def _settled(
    groups: Sequence[tuple[Any, Any, Sequence[bytes], Callable[[list[bytes]], object]]],
    settled: float = SETTLED,
) -> list[dict[bytes, _Found]]:
    """Return what `_looked` finds of the keys of each group once they are the same, or in time.

    The function of a group is called with keys that must be copied again (see `compare`). A key of
    the first side that still changes after twice `settled` is `_CHANGING`.
    """
    began, now = None, time.monotonic()
    results: list[dict[bytes, _Found]] = [{} for _ in groups]
    pending = [dict.fromkeys(keys, now) for _, _, keys, _ in groups]  # and when each changed last
    while True:
        for n, (one, other, _, untold) in enumerate(groups):
            changed, result = pending[n], results[n]
            keys = list(changed)
            for start in range(0, len(keys), _PAGE):
                looked = _looked(one, other, keys[start : start + _PAGE])
                now = time.monotonic()
                new = [key for key, state in looked.items() if result.get(key, ())[:2] != state[:2]]
                changed |= dict.fromkeys(new, now)
                untold([key for key in new if looked[key][2] and looked[key][0] not in TOLD])
                for key, state in looked.items():
                    if not state[2] or now - changed[key] > settled:
                        del changed[key]
                result |= looked
        began = now if began is None else began  # the first look can take long
        if not any(pending) or now - began > 2 * settled:
            break
        time.sleep(_STEP)
    for changed, result in zip(pending, results, strict=True):
        result |= {key: (*result[key][:2], _CHANGING) for key in changed}
    return results


def _looked(
    one: Any, other: Any, keys: Sequence[bytes], slices: Slices | None = None
) -> dict[bytes, _Found]:
    """Return each key's type and digest on one server, and how the other's differs just now."""
    before, right = _digests((one, other), keys, slices)
    after = before
    if any(before[key][:2] != right[key][:2] for key in keys):
        [after] = _digests((one,), keys)
    looked = {}
    for key in keys:
        why = _difference(before[key], right[key]) and _difference(after[key], right[key])
        looked[key] = after[key][0], after[key][1], why
    return looked


def _difference(left: tuple[str, bytes, int], right: tuple[str, bytes, int]) -> str:
    if left[0] != right[0]:
        return f"is a {left[0]} here and a {right[0]} there"
    if left[1] != right[1]:
        return "has another value"
    if (left[2] < 0) != (right[2] < 0) or abs(left[2] - right[2]) > _EXPIRY:
        return "expires at another time"
    return ""


def _grouped(number: D, client: Any, where: Where[D]) -> Iterator[tuple[D, Sequence[bytes]]]:
    """Yield the keys of a database by the place that the other side has them at, in pages."""
    waiting: defaultdict[D, list[bytes]] = defaultdict(list)
    for page in pages(client, _PAGE):
        for at, keys in where(number, page).items():
            waiting[at] += keys
            if len(waiting[at]) >= _PAGE:
                yield at, waiting.pop(at)
    yield from waiting.items()


# The command that reads a value of each type, or its part that fits into a shared exchange.
_FIRST: dict[str, tuple[Any, ...]] = {
    "string": ("GETRANGE", 0, _BYTES - 1),
    "list": ("LRANGE", 0, _MEMBERS - 1),
    "hash": ("HSCAN", 0, "COUNT", 2 * _MEMBERS),
    "set": ("SSCAN", 0, "COUNT", 2 * _MEMBERS),
    "zset": ("ZSCAN", 0, "COUNT", 2 * _MEMBERS),
    "stream": ("XRANGE", "-", "+", "COUNT", _MEMBERS),
    "vectorset": ("VCARD",),
    "none": ("EXISTS",),
}
_PARSED = frozenset({"hash", "set", "zset"})  # into values of redis-py's
_CHANGED = b"changing"
_COUNT = re.compile(rb"\A(HYLL[\0\1]\0{3}).{8}", re.DOTALL)  # PFCOUNT's, in a HyperLogLog


def _digests(
    clients: Sequence[Any], keys: Sequence[bytes], slices: Slices | None = None
) -> list[dict[bytes, tuple[str, bytes, int]]]:
    """Return each key's type, digest, and when it expires, of each client's database.

    The time is in milliseconds, and negative for never. Cost: two exchanges with all servers at
    once, and more for values that are large.
    """
    with ExitStack() as stack:
        lines = [stack.enter_context(one_connection(client)) for client in clients]
        for line in lines:
            line.post([("TYPE", key) for key in keys], [("PTTL", key) for key in keys])
        # The two sides are read at different times.
        answered = [(accepted(line.replies()), round(1000 * time.monotonic())) for line in lines]
        kinds = [[kind.decode() for kind in answers[: len(keys)]] for answers, _ in answered]
        for line, own in zip(lines, kinds, strict=True):
            firsts = [_FIRST.get(kind, ("DUMP",)) for kind in own]  # a module's type is dumped
            line.post(
                [(name, key, *args) for key, (name, *args) in zip(keys, firsts, strict=True)],
                [("INFO", "keyspace")] if "hash" in own else [],
            )
        values = [line.replies() for line in lines]
    for own, replies in zip(kinds, values, strict=True):
        for n, kind in enumerate(own):
            if kind == "string" and isinstance(replies[n], bytes):
                replies[n] = _COUNT.sub(rb"\1" + bytes(8), replies[n])
    if slices is not None:
        slices.note(len(keys), sum(map(_size, values[0])))
    digests: list[dict[bytes, tuple[str, bytes, int]]] = []
    for client, own, replies, (answers, now) in zip(clients, kinds, values, answered, strict=True):
        parse = reply_callbacks(client)
        expiring = "hash" in own and has_expiring_fields(parse["INFO"](replies.pop()))
        result = {}
        for n, (key, kind, left) in enumerate(zip(keys, own, answers[len(keys) :], strict=True)):
            value = replies[n]
            is_whole = isinstance(value, bytes) and len(value) < _BYTES
            if digests and kind == kinds[0][n] == "string" and is_whole and value == values[0][n]:
                digest = digests[0][key][1]
            else:
                if kind in _PARSED and not isinstance(value, Exception):
                    value = parse[_FIRST[kind][0]](value)
                whole = b"" if kind == "none" else _value(client, key, kind, value, expiring)
                digest = _hash(key, kind.encode(), whole)
            result[key] = kind, digest, left if left < 0 else now + left
        digests.append(result)
    return digests


def _size(value: Any) -> int:
    """Return the approximate bytes of a value that `_FIRST` has read."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], list):
        value = value[1]  # a cursor and members
    return _MEMBER * len(value) if isinstance(value, list) else 0


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()


def _value(client: Any, key: bytes, kind: str, first: Any, expiring: bool = False) -> bytes:
    """Return a digest of a value, whatever its encoding and order; `first` is from `_FIRST`."""
    try:
        if isinstance(first, Exception):
            raise first
        if kind in ("hash", "set", "zset"):
            members = 0
            # Of millions of members, digests take less memory, and garbage collection no time.
            for part in {_hash(*pair) for pair in _members(client, key, kind, expiring, *first)}:
                members ^= int.from_bytes(part, "big")
            return b"%d" % members
        ordered = hashlib.blake2b(digest_size=16)
        if kind == "string":
            ordered.update(first)
            if len(first) == _BYTES:
                for start in range(_BYTES, client.strlen(key), _MOST_BYTES):
                    ordered.update(client.getrange(key, start, start + _MOST_BYTES - 1))
        elif kind == "list":
            for value in _values(client, key, first):
                ordered.update(_hash(value))
        elif kind == "stream":
            for part in (*_entries(client, key, first), *_groups(client, key)):
                ordered.update(repr(part).encode())
        elif kind == "vectorset":
            return b"%d" % _elements(client, key, first)
        else:
            return first or b""
        return ordered.digest()
    except redis.ResponseError:  # it has just changed its type
        return _CHANGED


def _members(
    client: Any, key: bytes, kind: str, expiring: bool, cursor: Any, first: Any
) -> Iterator[tuple[bytes, ...]]:
    """Yield the members of a hash, set or sorted set, some of them twice."""
    while True:
        if kind == "set":
            yield from ((member,) for member in first)
        elif kind == "hash" and expiring and first:
            asked = ("HPEXPIRETIME", key, "FIELDS", len(first), *first)
            for item, at in zip(first.items(), client.execute_command(*asked), strict=True):
                yield item if at < 0 else (*item, b"%d" % at)
        elif kind == "hash":
            yield from first.items()
        else:
            yield from ((member, repr(score).encode()) for member, score in first)
        if not int(cursor):
            return
        scan = {"set": client.sscan, "hash": client.hscan, "zset": client.zscan}[kind]
        cursor, first = scan(key, cursor, count=_MEMBERS)


def _elements(client: Any, key: bytes, count: int) -> int:
    """Return a digest of a vector set's elements in any order: vectors and attributes, no links."""
    digest = 0
    [names] = ask(client, [("VRANDMEMBER", key, count)])
    for start in range(0, len(names), _MEMBERS):
        page = names[start : start + _MEMBERS]
        vectors = [("VEMB", key, name, "RAW") for name in page]
        replies = ask(client, vectors, [("VGETATTR", key, name) for name in page])
        for element in zip(page, replies, replies[len(page) :], strict=False):
            digest ^= int.from_bytes(_hash(repr(element).encode()), "big")
    return digest


def _values(client: Any, key: bytes, first: list[bytes]) -> Iterator[bytes]:
    start = 0
    while True:
        yield from first
        if len(first) < _MEMBERS:
            return
        start += _MEMBERS
        first = client.lrange(key, start, start + _MEMBERS - 1)


def _entries(client: Any, key: bytes, page: list[Any]) -> Iterator[Any]:
    """Yield the entries of a stream, in pages."""
    yield page
    while len(page) == _MEMBERS:
        [page] = ask(client, [("XRANGE", key, b"(" + page[-1][0], "+", "COUNT", _MEMBERS)])
        yield page


def _groups(client: Any, key: bytes) -> Iterator[Any]:
    """Yield a stream's last id, and its groups with their pending entries.

    Delivery times and counts may differ: a replica is not told of entries that are read again.
    """
    yield client.xinfo_stream(key)["last-generated-id"]
    for group in client.xinfo_groups(key):
        yield group["name"], group["last-delivered-id"]
        for page in pending_entries(client, key, group["name"]):
            yield from (message[:2] for message in page)
