"""What was seen of many keys, added up: exactly, or weighed where only some were looked at.

A key of a structure belongs to it by its name: ``<name>:…``, of the structures that there are the
one with the longest name. Its parts are those that end in ``:`` and digits, whatever is between::

    ids:meta          kind=set …            the structure
    ids:17            a part
    ids:{4}:2         a part
    ids:{4}           beside the parts: its bytes count
    ids:2015:meta     another structure, to which ids:2015:3 belongs
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shardkit.encodings.limits import Excess, KeyEncoding, Limits, check

_PART = re.compile(rb":[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class StoredStructure:
    """A structure as its ``:meta`` describes it.

    Attributes:
        component: where it lives.
        name: its name.
        parameters: what it was created with.
    """

    component: str
    name: str
    parameters: Mapping[str, str] = field(hash=False)

    @property
    def kind(self) -> str:
        """What it is: ``set``, ``hash`` and so on."""
        return self.parameters["kind"]

    @property
    def part_size(self) -> int | None:
        """How many entries a part may have."""
        text = self.parameters.get("part_size", "")
        return int(text) if text.isdigit() else None

    @property
    def form(self) -> str | None:
        """The name of its parts' compact form, as far as its parameters tell."""
        if self.kind == "set":
            return "intset" if self.parameters.get("members") == "int" else "set"
        return _FORMS.get(self.kind)


_FORMS = {"hash": "hash", "sorted-set": "zset", "sorted_set": "zset", "zset": "zset"}


class KeyGroup(NamedTuple):
    """What keys are added up by.

    Attributes:
        component: where they are.
        structure: the name of the structure that they are parts of; None for other keys.
        type: what TYPE says.
        encoding: of other keys: what OBJECT ENCODING says.
    """

    component: str
    structure: str | None
    type: str
    encoding: str = ""


class WorstExcess(NamedTuple):
    """The worst that was seen beyond one limit.

    Attributes:
        excess: the limit, and the most that was found.
        keys: how many keys are beyond it, about.
    """

    excess: Excess
    keys: float


@dataclass
class KeyStatistics:
    """Keys of one group, added up.

    Attributes:
        form: the name of their compact form; None if they have none.
        seen: how many were looked at.
        keys, entries, bytes: how many there are, about, with what; strings have no entries.
        loose: how many of them are not compact, about.
        stale: how many of those would be, if they were written anew.
        formless: how many are on servers that have no compact form for them.
        untold: how many are on servers that do not tell their limits.
        largest: the most entries of one.
        longest: the most bytes of an entry of one that is not compact.
        worst: by setting and its value: the worst beyond that limit.
    """

    form: str | None = None
    seen: int = 0
    keys: float = 0
    entries: float = 0
    bytes: float = 0
    loose: float = 0
    stale: float = 0
    formless: float = 0
    untold: float = 0
    largest: int = 0
    longest: int = 0
    worst: dict[tuple[str, int], WorstExcess] = field(default_factory=dict)

    def add(self, seen: KeyEncoding, weight: float, limits: Limits | None) -> None:
        """Add a key that stands for so many."""
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
            self.untold += weight
        elif limits.entries(form) is None:
            self.formless += weight
        for excess in verdict.excesses:
            self._beyond(excess, weight)

    def beside(self, seen: KeyEncoding, weight: float) -> None:
        """Add the bytes of a key that is none of the parts."""
        self.bytes += weight * (seen.bytes or 0)

    def merge(self, other: KeyStatistics) -> None:
        """Add what another one has added up."""
        self.form = self.form if self.form == "set" else other.form or self.form
        for name in ("seen", "keys", "entries", "bytes", "loose", "stale", "formless", "untold"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)
        self.longest = max(self.longest, other.longest)
        for worst in other.worst.values():
            self._beyond(worst.excess, worst.keys)

    def _beyond(self, excess: Excess, weight: float) -> None:
        at = (excess.setting, excess.limit)
        known = self.worst.get(at, WorstExcess(excess, 0))
        worse = max(known.excess, excess, key=lambda each: each.found)
        self.worst[at] = WorstExcess(worse, known.keys + weight)


class StructureLookup:
    """Finds the structures that keys belong to.

    Args:
        names: the names of a component's structures.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.encode(): name for name in names}

    def owner(self, key: bytes) -> str | None:
        """Return the structure that a key belongs to."""
        end = len(key)
        while self._names and (end := key.rfind(b":", 0, end)) > 0:
            if key[:end] in self._names:
                return self._names[key[:end]]
        return None


def is_part(key: bytes) -> bool:
    """Whether the key of a structure is one of its parts."""
    return bool(_PART.search(key))
