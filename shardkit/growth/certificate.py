"""Whether two servers hold the same: every key, its type, its value and when it expires.

::

    SCAN of one side ─► types, expiry, values of both, 200 keys at a time ─► one digest a key
    SCAN of the other side ─► keys that only it has

Values are compared whatever their encoding and order, so servers of different versions can be
compared. A key that differs is read again, as it may just have been written: what differs for
`SETTLED` seconds differs; unless it is being written all the time, which is counted apart. Large
collections are read in pages.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

SETTLED = 2.0
_PAGE = 200
_MEMBERS = 1000
_MOST_NAMED = 20
_EXPIRY = 1000  # milliseconds by which times to live may differ
_STEP = 0.02
_CHANGING = "is being written"


@dataclass
class ServerComparison:
    """What a comparison of two servers found.

    Attributes:
        keys: how many keys the first has, by database and type: ``{"3 hash": 17}``.
        digest: of all names, types and values of the first; the order does not matter.
        different: up to 20 keys that differ, as ``3 name: how``.
        differing: how many differ.
        changing: how many were being written all the time, so that they could not be compared.
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
    first: Callable[[int], Any],
    second: Callable[[int], Any],
    databases: Sequence[int],
    progress: Callable[[int], object] = lambda keys: None,
    ignored: Collection[bytes] = (),
) -> ServerComparison:
    """Compare databases of two servers.

    Args:
        first: returns a client of the first server, by the database's number.
        second: returns one of the second.
        databases: the numbers.
        progress: is told how many keys have been compared.
        ignored: keys that may differ.

    Cost: five exchanges with each server for 200 keys, more for collections above 1,000 members.
    """
    found = ServerComparison()
    total = 0
    for number in databases:
        one, other = first(number), second(number)
        for keys in _pages(one, ignored):
            mine = _settled(one, other, keys)
            for key, (kind, digest, why) in mine.items():
                if kind == "none":  # it went away meanwhile, on both sides
                    continue
                label = f"{number} {kind}"
                found.keys[label] = found.keys.get(label, 0) + 1
                total ^= int.from_bytes(digest, "big")
                if why == _CHANGING:
                    found.changing += 1
                elif why:
                    _note(found, number, key, why)
            progress(found.total)
        for keys in _pages(other, ignored):
            there = one.exists(*keys)
            if there == len(keys):
                continue
            for key, (kind, _, why) in _settled(other, one, keys).items():
                if why and why != _CHANGING and kind != "none" and not one.exists(key):
                    _note(found, number, key, "is only on the second server")
    found.digest = f"{total:032x}"
    return found


def differing(one: Any, other: Any, keys: Sequence[bytes]) -> list[str]:
    """Return which of some keys differ on two servers, and how."""
    return [
        f"{key.decode(errors='backslashreplace')}: {why}"
        for start in range(0, len(keys), _PAGE)
        for key, (_, _, why) in _settled(one, other, keys[start : start + _PAGE]).items()
        if why
    ]


def unequal(one: Any, other: Any, keys: Sequence[bytes]) -> list[bytes]:
    """Return which of some keys are not the same on two servers just now. Cost: two pages."""
    mine, there = _digests(one, keys), _digests(other, keys)
    return [key for key in keys if _difference(mine[key], there[key])]


def _note(found: ServerComparison, number: int, key: bytes, why: str) -> None:
    found.differing += 1
    if len(found.different) < _MOST_NAMED:
        found.different.append(f"{number} {key.decode(errors='backslashreplace')}: {why}")


def _settled(one: Any, other: Any, keys: Sequence[bytes]) -> dict[bytes, tuple[str, bytes, str]]:
    """Return each key's type and digest on one server, and how the other's differs."""
    end = time.monotonic() + SETTLED
    result: dict[bytes, tuple[str, bytes, str]] = {}
    pending = list(keys)
    while True:
        before, right, after = _digests(one, pending), _digests(other, pending), None
        if any(before[key][:2] != right[key][:2] for key in pending):
            after = _digests(one, pending)
        again = []
        for key in pending:
            left = before[key] if after is None else after[key]
            why = _difference(before[key], right[key])
            if why and after is not None:
                why = why and _difference(left, right[key])
                if why and left[:2] != before[key][:2]:
                    why = _CHANGING
            result[key] = left[0], left[1], why
            if why:
                again.append(key)
        if not again or time.monotonic() > end:
            return result
        pending = again
        time.sleep(_STEP)


def _difference(left: tuple[str, bytes, int], right: tuple[str, bytes, int]) -> str:
    if left[0] != right[0]:
        return f"is a {left[0]} here and a {right[0]} there"
    if left[1] != right[1]:
        return "has another value"
    if (left[2] < 0) != (right[2] < 0) or abs(left[2] - right[2]) > _EXPIRY:
        return "expires at another time"
    return ""


def _pages(client: Any, ignored: Collection[bytes]) -> Iterator[list[bytes]]:
    cursor = 0
    seen: set[bytes] = set()
    while True:
        cursor, keys = client.scan(cursor, count=_PAGE)
        page = [key for key in keys if key not in seen and key not in ignored]
        # SCAN may repeat keys, mostly close to each other.
        seen = set(keys) if len(seen) > 100_000 else seen | set(keys)
        for start in range(0, len(page), _PAGE):
            yield page[start : start + _PAGE]
        if not int(cursor):
            return


_LENGTH = {
    "string": "STRLEN",
    "list": "LLEN",
    "hash": "HLEN",
    "set": "SCARD",
    "zset": "ZCARD",
    "stream": "XLEN",
}


def _digests(client: Any, keys: Sequence[bytes]) -> dict[bytes, tuple[str, bytes, int]]:
    """Return each key's type, digest, and when it expires, in milliseconds; negative for never."""
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
            pipe.pttl(key)
        answers = pipe.execute()
    now = round(1000 * time.monotonic())  # both sides are not read at the same time
    kinds = [kind.decode() if isinstance(kind, bytes) else kind for kind in answers[::2]]
    with client.pipeline(transaction=False) as pipe:
        for key, kind in zip(keys, kinds, strict=True):
            pipe.execute_command(_LENGTH.get(kind, "EXISTS"), key)
        lengths = pipe.execute(raise_on_error=False)
    found = {}
    for key, kind, left, length in zip(keys, kinds, answers[1::2], lengths, strict=True):
        value = b"" if kind == "none" else _value(client, key, kind, length)
        digest = _hash(key, kind.encode(), value)
        found[key] = kind, digest, int(left) if left < 0 else now + int(left)
    return found


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()


def _value(client: Any, key: bytes, kind: str, length: Any) -> bytes:
    """Return a digest of a value that does not depend on encoding and order."""
    if isinstance(length, Exception):  # it has just become another type
        return b"changing"
    ordered = hashlib.blake2b(digest_size=16)
    members = 0
    if kind == "string":
        for start in range(0, max(1, length), 1 << 20):
            ordered.update(client.getrange(key, start, start + (1 << 20) - 1))
        return ordered.digest()
    try:
        if kind == "list":
            for start in range(0, length, _MEMBERS):
                for value in client.lrange(key, start, start + _MEMBERS - 1):
                    ordered.update(_hash(value))
            return ordered.digest()
        if kind == "stream":
            for entry in client.xrange(key):
                ordered.update(repr(entry).encode())
            return ordered.digest()
        if kind == "hash":
            pairs = client.hgetall(key).items() if length <= _MEMBERS else client.hscan_iter(key)
            for field_name, value in set(pairs):
                members ^= int.from_bytes(_hash(field_name, value), "big")
        elif kind == "set":
            values = client.smembers(key) if length <= _MEMBERS else client.sscan_iter(key)
            for value in set(values):
                members ^= int.from_bytes(_hash(value), "big")
        elif kind == "zset":
            scored = (
                client.zrange(key, 0, -1, withscores=True)
                if length <= _MEMBERS
                else client.zscan_iter(key)
            )
            for value, score in set(scored):
                members ^= int.from_bytes(_hash(value, repr(score).encode()), "big")
        else:  # a module's type
            return client.dump(key) or b""
    except redis.ResponseError:  # it has just become another type
        return b"changing"
    return b"%d" % members
