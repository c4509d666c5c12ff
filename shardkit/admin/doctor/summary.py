"""Totals of many keys: exact, or estimated from a sample.

A key belongs to the structure whose name it begins with, ``<name>:…``, and of several to the one
with the longest name. A structure's parts are the keys that end in ``:`` and digits, ``ids:17`` or
``ids:{4}:2``; of others, such as ``ids:{4}``, only the bytes count.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shardkit.structures.encodings.limits import Excess, KeyEncoding, Limits, check

_LONGEST = 1024  # bytes of the names of structures that are looked for
_PART = re.compile(rb":[0-9]+\Z")
_ENDS = (b":top", b":bottom")
_SUMS = ("seen", "keys", "entries", "bytes", "loose", "stale", "without_form", "unknown_limits")


@dataclass(frozen=True, slots=True)
class StoredStructure:
    """A structure, and the parameters in its ``:meta`` key."""

    component: str
    name: str
    parameters: Mapping[str, str] = field(hash=False)

    @property
    def kind(self) -> str:
        """Its kind: ``set``, ``hash`` and so on."""
        return self.parameters["kind"]

    @property
    def part_size(self) -> int | None:
        """How many entries a part may have."""
        text = self.parameters.get("part_size", "")
        return int(text) if text.isdigit() else None

    @property
    def form(self) -> str | None:
        """The name of its parts' compact form, if its parameters determine it."""
        if self.kind == "set":
            return "intset" if self.parameters.get("members") == "int" else "set"
        return _FORMS.get(self.kind)


_FORMS = {"hash": "hash", "sorted-set": "zset", "sorted_set": "zset", "zset": "zset"}


class KeyGroup(NamedTuple):
    """Keys that are summed up together: a structure's, or others of one type and encoding."""

    component: str
    structure: str | None
    type: str
    encoding: str = ""


class WorstExcess(NamedTuple):
    """The largest excess over one limit, and about how many keys exceed it."""

    excess: Excess
    keys: float


@dataclass
class KeyStatistics:
    """Totals of one group of keys. All but `seen`, `largest` and `longest` may be estimates.

    Attributes:
        form: the name of their compact form; None if they have none.
        seen: how many keys were scanned.
        keys, entries, bytes: how many there are; strings have no entries.
        loose: how many keys are not compact.
        stale: how many of those would be compact if they were rewritten.
        without_form, unknown_limits: how many are on servers that have no compact form for them,
            or do not show their limits.
        largest: the largest number of entries of a key.
        longest: the longest entry, in bytes, of a key that is not compact.
        worst: the largest excess over each limit, by setting and its value.
        worst_ends: the same of the keys that hold a sorted set's first and last members.
    """

    form: str | None = None
    seen: int = 0
    keys: float = 0
    entries: float = 0
    bytes: float = 0
    loose: float = 0
    stale: float = 0
    without_form: float = 0
    unknown_limits: float = 0
    largest: int = 0
    longest: int = 0
    worst: dict[tuple[str, int], WorstExcess] = field(default_factory=dict)
    worst_ends: dict[tuple[str, int], WorstExcess] = field(default_factory=dict)

    def add(self, seen: KeyEncoding, weight: float, limits: Limits | None) -> None:
        """Add a key that represents ``weight`` keys."""
        self.seen += 1
        self.keys += weight
        self.entries += weight * seen.length * (seen.type != "string")
        self.bytes += weight * (seen.bytes or 0)
        self.largest = max(self.largest, seen.length)
        form = seen.form
        if form is None:
            return
        self.form = self.form if self.form == "set" else form.name
        verdict = check(seen, limits)
        if verdict.compact:
            return
        self.loose += weight
        self.longest = max(self.longest, seen.longest or 0)
        self.stale += weight * verdict.stale
        if limits is None:
            self.unknown_limits += weight
        elif limits.entries(form) is None:
            self.without_form += weight
        for excess in verdict.excesses:
            _beyond(self.worst, excess, weight)

    def add_beside(self, seen: KeyEncoding, weight: float, limits: Limits | None) -> None:
        """Add a key of a structure that is not one of its parts: its bytes, and its limits."""
        self.bytes += weight * (seen.bytes or 0)
        if seen.key.endswith(_ENDS):
            for excess in check(seen, limits).excesses:
                _beyond(self.worst_ends, excess, weight)

    def merge(self, other: KeyStatistics) -> None:
        """Add other totals."""
        self.form = self.form if self.form == "set" else other.form or self.form
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)
        self.longest = max(self.longest, other.longest)
        for mine, others in ((self.worst, other.worst), (self.worst_ends, other.worst_ends)):
            for worst in others.values():
                _beyond(mine, worst.excess, worst.keys)


def _beyond(worst: dict[tuple[str, int], WorstExcess], excess: Excess, weight: float) -> None:
    at = (excess.setting, excess.limit)
    known = worst.get(at, WorstExcess(excess, 0))
    worse = max(known.excess, excess, key=lambda each: each.found)
    worst[at] = WorstExcess(worse, known.keys + weight)


def structure_of(key: bytes, names: Collection[bytes]) -> str | None:
    """Return the structure, of those with these names, that a key belongs to; None for none."""
    end = min(len(key), _LONGEST)  # time grows with its square
    while names and (end := key.rfind(b":", 0, end)) > 0:
        if key[:end] in names:
            return key[:end].decode()
    return None


def is_part(key: bytes) -> bool:
    """Whether a structure's key is one of its parts."""
    return bool(_PART.search(key))
