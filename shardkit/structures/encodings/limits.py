"""The compact encodings of keys, the limits that prevent them, and the settings that help.

A server stores a small HASH, SET or ZSET as one block of bytes, its entries one after the other,
and a large one as a table of pointers. The block takes a fraction of the memory, and is searched
from its beginning. Two limits decide, and both must hold: the number of entries, and the bytes of
the longest one, fields as well as values (`FORMS`). Before Redis 7.0 the settings use ``ziplist``
for ``listpack``; messages use the server's own names.

A LIST is a chain of packed nodes at any length, so it is always compact. A HASH, SET or ZSET that
was converted once stays so, even if it shrinks, until it is rewritten.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from shardkit import log_records
from shardkit.errors import InvalidArgumentError, ShardFailure, ShardUnavailable
from shardkit.operations.arguments import check_integer
from shardkit.operations.commands import (
    Columns,
    Command,
    Key,
    Partial,
    Replies,
    Reply,
    To,
    raise_failures,
)
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import key_bytes

logger = logging.getLogger("shardkit")

_warned = log_records.Once()

LIMITS_PATTERN: Final = "*-max-*"  # one pattern: servers before Redis 7.0 take no second one


@dataclass(frozen=True, slots=True)
class Form:
    """A compact form that servers have for a type."""

    name: str  # ``hash``, ``zset``, ``intset`` (a SET of integers), ``set`` (of text) or ``list``
    type: str  # the reply to TYPE
    entry: str  # the word for an entry
    compact: frozenset[str]  # replies to OBJECT ENCODING when it is compact
    entries: tuple[str, ...]  # settings of the number of entries, the newest name first
    longest: tuple[str, ...] = ()  # settings of an entry's bytes
    usual: tuple[int, ...] = (512,)  # the default limits


def _listpack(name: str, type_: str, entry: str, entries: int, *, old: bool = True) -> Form:
    names = ("listpack", "ziplist") if old else ("listpack",)
    return Form(
        name,
        type_,
        entry,
        frozenset({"listpack", "listpackex", "ziplist", "zipmap"}),
        tuple(f"{type_}-max-{packed}-entries" for packed in names),
        tuple(f"{type_}-max-{packed}-value" for packed in names),
        (entries, 64),
    )


# By their names. A SET of few integers is a listpack when text was among them: compact as well.
FORMS: Final[Mapping[str, Form]] = {
    "hash": _listpack("hash", "hash", "field", 512),
    "zset": _listpack("zset", "zset", "member", 128),
    "intset": Form(
        "intset", "set", "member", frozenset({"intset", "listpack"}), ("set-max-intset-entries",)
    ),
    "set": _listpack("set", "set", "member", 128, old=False),
    "list": Form("list", "list", "element", frozenset({"listpack", "quicklist", "ziplist"}), ()),
}


class Limit(NamedTuple):
    """A setting as one server names it, and its value."""

    setting: str
    value: int


class Limits:
    """The limits of one server: ``settings`` is the reply to CONFIG GET, or a superset."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        known = {name for form in FORMS.values() for name in (*form.entries, *form.longest)}
        self.settings = {name: int(settings[name]) for name in sorted(known & settings.keys())}

    def entries(self, form: Form) -> Limit | None:
        """Return the limit of entries; None if the server has no such form."""
        return self._first(form.entries)

    def longest(self, form: Form) -> Limit | None:
        """Return the limit of bytes of an entry; None if there is none."""
        return self._first(form.longest)

    def _first(self, names: Iterable[str]) -> Limit | None:
        limits = (Limit(name, self.settings[name]) for name in names if name in self.settings)
        return next(limits, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limits) and other.settings == self.settings

    def __hash__(self) -> int:
        return hash(tuple(self.settings.items()))

    def __repr__(self) -> str:
        return f"Limits({self.settings})"


def recommend(
    form: str, part_size: int, longest: int | None = None, limits: Limits | None = None
) -> dict[str, int]:
    """Return the settings with which parts stay compact: never lower ones than there are.

    Empty if there is nothing to set: for lists, and for text in sets on a server that has no
    compact form for it.

    Args:
        form: the name of a form.
        part_size: how many entries a part may have.
        longest: the bytes of the longest field, member or value; None if unknown.
        limits: the server's limits, for their names and values; None for a new server's defaults.
    """
    check_integer("recommend", "part_size", part_size, 0, 2**63)
    check_integer("recommend", "longest", longest or 0, 0, 2**63)
    if form not in FORMS:
        raise InvalidArgumentError(f"type={form!r} has no compact form", f"use one of {[*FORMS]}")
    wanted = FORMS[form]
    if limits is None:
        usual = zip((wanted.entries, wanted.longest), wanted.usual, strict=False)
        limits = Limits({names[0]: str(value) for names, value in usual if names})
    settings: dict[str, int] = {}
    for limit, needed in ((limits.entries(wanted), part_size), (limits.longest(wanted), longest)):
        if limit is not None and needed is not None:
            settings[limit.setting] = max(limit.value, needed)
    return settings


class Excess(NamedTuple):
    """A limit that a key exceeds.

    Attributes:
        setting, limit: the setting, as the server names it, and its value.
        found: the number of entries, or the bytes of the longest entry.
        entry: what an entry is called: ``field``.
        of_bytes: whether it is a limit of bytes.
    """

    setting: str
    limit: int
    found: int
    entry: str
    of_bytes: bool

    def __str__(self) -> str:
        if self.of_bytes:
            return f"{self.setting} is {self.limit:,}: a {self.entry} has {self.found:,} bytes"
        return f"{self.setting} is {self.limit:,}: there are {self.found:,} {self.entry}s"


@dataclass(frozen=True, slots=True)
class KeyEncoding:
    """A key as its server stores it.

    Attributes:
        key, type, encoding: the key, its TYPE and its OBJECT ENCODING.
        length: the number of entries, or the bytes of a string.
        bytes: its memory including the key (MEMORY USAGE, which estimates large keys from a few
            entries); None if that is not permitted.
        longest: the bytes of its longest entry, of up to 5,000 that are read if it is not compact;
            None if none were read.
        integers: for a set, whether all entries that were read are integers of 64 bits.
    """

    key: bytes
    type: str
    encoding: str
    length: int
    bytes: int | None = None
    longest: int | None = None
    integers: bool = False

    @property
    def form(self) -> Form | None:
        """The compact form that it could have; None for strings and others."""
        if self.type == "set":
            return FORMS["intset" if self.integers or self.encoding == "intset" else "set"]
        return FORMS.get(self.type)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a key is compact, and why not.

    Attributes:
        compact: whether it is compact.
        excesses: the limits that it exceeds. If it exceeds none, the server has no compact form for
            it, the limits are unknown, or it exceeded them once.
        stale: whether it would be compact if it were rewritten.
    """

    compact: bool
    excesses: tuple[Excess, ...] = ()
    stale: bool = False


def check(seen: KeyEncoding, limits: Limits | None) -> Verdict:
    """Check whether a key is compact, and which of its server's limits (if known) it exceeds."""
    form = seen.form
    if form is None or seen.encoding in form.compact:
        return Verdict(True)
    excesses = beyond(form, seen.length, seen.longest, limits)
    known = limits is not None and limits.entries(form) is not None
    return Verdict(False, excesses, stale=known and not excesses)


def beyond(
    form: Form, length: int, longest: int | None, limits: Limits | None
) -> tuple[Excess, ...]:
    """Return the limits that a number of entries, and the longest of them, exceed."""
    if limits is None:
        return ()
    excesses = []
    for limit, value, of_bytes in (
        (limits.entries(form), length, False),
        (limits.longest(form), longest, True),
    ):
        if limit is not None and value is not None and value > limit.value:
            entry = "field or value" if of_bytes and form.name == "hash" else form.entry
            excesses.append(Excess(limit.setting, limit.value, value, entry, of_bytes))
    return tuple(excesses)


def limits_at(to: To, key: Key) -> Operation[Limits | None]:
    """Return the limits of the server where a key lives; None if it does not show them.

    ``to`` is the key's component, or a shard. Cost: one exchange.
    """
    asking = Command(to, key, ("CONFIG", "GET", LIMITS_PATTERN), idempotent=True)
    [reply] = yield Partial([asking])  # CONFIG may not be permitted
    return read_limits(reply)


def read_limits(reply: Reply) -> Limits | None:
    """Return the limits in a reply to CONFIG GET; None if there are none."""
    if isinstance(reply, ShardFailure) or not isinstance(reply, list | dict):
        return None
    flat = [word for pair in reply.items() for word in pair] if isinstance(reply, dict) else reply
    words = [word.decode() if isinstance(word, bytes) else str(word) for word in flat]
    limits = Limits(dict(zip(words[::2], words[1::2], strict=True)))
    return limits if limits.settings else None


def warn_if_not_compact(to: To, key: Key, form: str, part_size: int, name: str) -> Operation[None]:
    """Log a warning if parts of the planned size are not compact on the server of a key.

    There is none if the server does not show its limits, or has no compact form. Cost: one
    exchange.
    """
    wanted, limits = FORMS[form], (yield from limits_at(to, key))
    for excess in beyond(wanted, part_size, None, limits):
        if not _warned.first(name, str(to), excess, part_size):
            continue
        logger.warning(
            "%s: parts of up to %d %ss are not compact: the server's %s is %d; "
            "raise it, or use a smaller part_size",
            name,
            part_size,
            wanted.entry,
            excess.setting,
            excess.limit,
            extra=log_records.fields("parts-not-compact", structure=name, setting=excess.setting),
        )


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
        encoding, memory, length = replies[n : n + 3]
        if not isinstance(encoding, bytes) or not isinstance(length, int):
            continue  # deleted in between, or of another type now
        memory = memory if isinstance(memory, int) else None
        results.append(KeyEncoding(key_bytes(key), kind, encoding.decode(), length, memory))
    loose = [
        n for n, seen in enumerate(results) if seen.type in _SCANS and not check(seen, None).compact
    ]
    for page in pages(loose, _SCANNED_AT_ONCE):
        measured = yield from _with_entries(to, [results[n] for n in page])
        for n, seen in zip(page, measured, strict=True):
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
            integers=seen.type == "set"  # all canonical, and within 64 bits
            and all(
                _INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63
                for text in entries[seen.key]
            ),
        )
        for seen in keys
    ]
