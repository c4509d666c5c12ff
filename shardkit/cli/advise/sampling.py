"""Samples keys and what is in them: read-only, in small commands with pauses in between.

SCAN returns keys in the order of their hashes, so the first thousands are a fair sample.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoPermissionError
from redis.utils import str_if_bytes

from shardkit.admin.conversion.forms import KeyFamily, Pattern, families
from shardkit.admin.doctor.scan import Database
from shardkit.admin.growth.exchange import at_work
from shardkit.network.survey import CONFIG_KEYS
from shardkit.structures.base.members import glob_filter

_SHARE = 0.2  # of the time; the rest are pauses
_SCAN = 100  # keys of one SCAN
_KEYS = 32  # keys of one exchange about them
_NAMES = 1_000_000  # names of a database that are looked at
_VALUE = 16_384  # bytes of the longest value that is read
_SMALL = 4_096  # bytes of a HASH that is read as a whole
_MEMBERS = 5_000  # members of a large key
_LARGE = 1_000  # members that make a key a large one
_PROBED = 40  # numbers whose neighbours are looked for,
_NEIGHBOURS = 16  # ids tried of the 128 around each
_AROUND = 128
_WITH_ENTRY, _OBJECT = 40, 16  # bytes of a key that MEMORY STATS and MEMORY USAGE both count
_LEAST_KEYS = 100  # keys: of fewer, a table takes much by each
_LENGTHS = {
    "string": "STRLEN",
    "hash": "HLEN",
    "set": "SCARD",
    "zset": "ZCARD",
    "list": "LLEN",
    "stream": "XLEN",
}

Progress = Callable[[int], object]


@dataclass
class SampledKey:
    """A key of the sample."""

    name: bytes
    type: str
    memory: float
    length: int
    due: int  # when it expires, in milliseconds since 1970; -1 if it does not
    weight: float  # how many keys it stands for
    value: Any = None  # of a string or a small HASH; None if it was not read


@dataclass
class SampledFamily:
    """A family, with its sampled keys."""

    family: KeyFamily
    keys: list[SampledKey]
    members: list[tuple[bytes, Any]] = field(default_factory=list)  # of its largest key
    density: float = 1.0  # how many of the numbers around its numbers exist

    @property
    def pattern(self) -> Pattern | None:
        """Its pattern; None for a single key."""
        return self.family.pattern

    @property
    def count(self) -> int:
        """How many keys it has, about."""
        return round(sum(key.weight for key in self.keys)) or 1

    @property
    def memory(self) -> int:
        """The bytes that it takes, about."""
        return round(sum(key.weight * key.memory for key in self.keys))

    @property
    def entries(self) -> int:
        """How many fields, members or bytes its keys have, about."""
        return round(sum(key.weight * key.length for key in self.keys))

    @property
    def expires(self) -> bool:
        """Whether some of its keys expire."""
        return any(key.due >= 0 for key in self.keys)

    @property
    def large(self) -> bool:
        """Whether its keys have many members each."""
        return self.entries / self.count >= _LARGE

    @property
    def numbers(self) -> list[int]:
        """The sampled numbers, in order, if its fields are numbers; otherwise none."""
        if self.pattern is None or self.pattern.variables != ("n",):
            return []
        fields = [self.pattern.field_of(key.name) or b"" for key in self.keys]
        return sorted(map(int, fields)) if all(b"%d" % int(n) == n for n in fields) else []


@dataclass
class KeySample:
    """What was sampled."""

    families: list[SampledFamily]
    keys: int  # how many keys there are
    seen: int  # how many of them were looked at
    used_memory: int  # of the servers


def take(
    databases: Sequence[Database],
    size: int,
    match: str | None = None,
    type_: str | None = None,
    progress: Progress = lambda keys: None,
) -> KeySample:
    """Sample ``size`` keys of each database: those of a type that match a pattern, as of SCAN.

    ``progress`` is called with the number of names that were looked at.

    Cost: SCAN for 100 names, then two exchanges for 32 keys; values of more than 16 KB are not
    read, and of large keys 5,000 members. A fifth of the time at most.
    """
    sampled: list[SampledKey] = []
    total = seen = used = 0
    homes: dict[bytes, Database] = {}
    servers = set()
    matches = glob_filter(match)
    for database in databases:
        sampled_keys: list[SampledKey] = []
        own = 0
        for names in _names(database):
            own += len(names)
            progress(seen + own)
            wanted = list(filter(matches, names))
            sampled_keys += [
                key
                for key in _described(database, wanted[: size - len(sampled_keys)])
                if type_ in (None, key.type)
            ]
            if len(sampled_keys) >= size or own >= _NAMES:
                break
        here = max(int(database.client.dbsize()), own)
        of_key, of_due = _table_bytes(database.client)
        for key in sampled_keys:
            key.weight = here / own
            key.memory += of_key + (of_due if key.due >= 0 else 0.0)
            homes[key.name] = database
        sampled += sampled_keys
        total, seen = total + here, seen + own
        info: Any = database.client.info()
        if info["run_id"] not in servers:
            servers.add(info["run_id"])
            used += int(info["used_memory"])
    by_name = {key.name: key for key in sampled}
    grouped = [
        SampledFamily(family, [by_name[name] for name in family.keys])
        for family in families((key.name, key.type) for key in sampled)
    ]
    grouped = [sample for sample in grouped if not _of_structure(databases, sample.family)]
    for sample in grouped:
        if sample.pattern is None:
            sample.keys[0].weight = 1.0  # however many the sample stands for
        if sample.large:
            largest = max(sample.keys, key=lambda key: key.length)
            sample.members = _members(homes[largest.name], largest)
        elif sample.numbers:
            sample.density = _density(databases, sample)
    grouped.sort(key=lambda sample: -sample.memory)
    return KeySample(grouped, total, seen, used)


def _names(database: Database) -> Iterator[list[bytes]]:
    client: Any = database.client
    cursor: Any = None
    seen: set[bytes] = set()
    while cursor != 0:
        with at_work(_SHARE):
            cursor, page = client.scan(cursor or 0, count=_SCAN)
        cursor = int(cursor)
        fresh = [key for key in page if key not in seen and not key.startswith(CONFIG_KEYS)]
        seen.update(fresh)
        yield fresh


def _described(database: Database, names: Sequence[bytes]) -> Iterator[SampledKey]:
    for start in range(0, len(names), _KEYS):
        page = names[start : start + _KEYS]
        kinds = [str_if_bytes(kind) for kind in _run(database, (("TYPE", name) for name in page))]
        figures = _run(
            database,
            (
                command
                for name, kind in zip(page, kinds, strict=True)
                for command in (
                    ("MEMORY USAGE", name, "SAMPLES", 20),
                    ("PTTL", name),
                    (_LENGTHS.get(kind, "EXISTS"), name),
                )
            ),
        )
        keys = []
        now = round(1000 * time.time())
        for n, (name, kind) in enumerate(zip(page, kinds, strict=True)):
            memory, left, length = figures[3 * n : 3 * n + 3]
            if isinstance(memory, int) and isinstance(length, int):  # it may be gone
                due = now + left if left > 0 else -1
                keys.append(SampledKey(name, kind, memory, length, due, 1.0))
        read = [
            key
            for key in keys
            if (key.type == "string" and key.length <= _VALUE)
            or (key.type == "hash" and key.memory <= _SMALL)
        ]
        commands = {"string": "GET", "hash": "HGETALL"}
        values = _run(database, ((commands[key.type], key.name) for key in read))
        for key, value in zip(read, values, strict=True):
            key.value = None if isinstance(value, Exception) else value
        yield from keys


def _run(database: Database, commands: Iterable[Sequence[Any]]) -> list[Any]:
    with at_work(_SHARE):
        pipe: Any = database.client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        replies = list(pipe.execute(raise_on_error=False)) if len(pipe) else []
    for reply in replies:
        if isinstance(reply, NoPermissionError):
            raise reply
    return replies


def _table_bytes(client: Any) -> tuple[float, float]:
    """Return what a key takes in the table of keys, and what its expiry takes.

    MEMORY USAGE does not count these, but for the entries of Redis' table.
    """
    number = client.connection_pool.connection_kwargs.get("db") or 0
    tables = client.memory_stats().get(f"db.{number}") or {}
    counts = client.info("keyspace").get(f"db{number}") or {}
    keys, expiring = counts.get("keys", 0), counts.get("expires", 0)
    table_bytes = tables["overhead.hashtable.main"] / keys if keys else 0.0
    counted = _WITH_ENTRY if table_bytes > _WITH_ENTRY else _OBJECT
    return (
        max(0.0, table_bytes - counted) if keys >= _LEAST_KEYS else 0.0,
        tables["overhead.hashtable.expires"] / expiring if expiring >= _LEAST_KEYS else 0.0,
    )


def _list_values(database: Database, key: SampledKey) -> list[tuple[bytes, Any]]:
    """Return some values of a LIST, from places all over it."""
    client: Any = database.client
    step = max(_SCAN, key.length // (_MEMBERS // _SCAN))
    values: list[bytes] = []
    for start in range(0, key.length, step):
        with at_work(_SHARE):
            values += client.lrange(key.name, start, start + _SCAN - 1)
    return [(b"%d" % n, value) for n, value in enumerate(values[:_MEMBERS])]


def _members(database: Database, key: SampledKey) -> list[tuple[bytes, Any]]:
    """Return some entries of a large key, in the order of their hashes."""
    if key.type == "list":
        return _list_values(database, key)
    scan = {"hash": "hscan", "set": "sscan", "zset": "zscan"}.get(key.type)
    if scan is None:
        return []
    entries: dict[bytes, Any] = {}
    cursor: Any = None
    while cursor != 0 and len(entries) < _MEMBERS:
        with at_work(_SHARE):
            cursor, page = getattr(database.client, scan)(key.name, cursor or 0, count=_SCAN)
        cursor = int(cursor)
        entries.update(
            page
            if isinstance(page, dict)
            else (entry if isinstance(entry, tuple) else (entry, None) for entry in page)
        )
    return list(entries.items())[:_MEMBERS]


def _density(databases: Sequence[Database], sampled: SampledFamily) -> float:
    """Return how many of the numbers around the sampled ones exist: 1.0 for all of them."""
    numbers, pattern = sampled.numbers, sampled.pattern
    assert pattern is not None
    chosen = numbers[:: max(1, len(numbers) // _PROBED)][:_PROBED]
    around = {
        n // _AROUND * _AROUND + (n + 1 + step * (_AROUND // _NEIGHBOURS)) % _AROUND
        for n in chosen
        for step in range(_NEIGHBOURS)
    } - set(chosen)
    wanted = sorted(n for n in around if numbers[0] <= n <= numbers[-1])
    if not wanted:
        return 1.0
    existing = 0
    for start in range(0, len(wanted), _KEYS):
        keys = [pattern.key_of(b"%d" % n) for n in wanted[start : start + _KEYS]]
        for database in databases:
            replies = _run(database, (("EXISTS", key) for key in keys))
            existing += sum(reply == 1 for reply in replies)
    return max(existing / len(wanted), 1 / _AROUND)


def _of_structure(databases: Sequence[Database], family: KeyFamily) -> bool:
    """Whether keys are the parts or the parameters of one of shardkit's structures."""
    name = re.split(r"<|:meta$", family.text)[0].rstrip("{").removesuffix(":")
    if not name or name == family.text:
        return False
    replies = [reply for at in databases for reply in _run(at, [("HGET", f"{name}:meta", "kind")])]
    return any(isinstance(reply, bytes) for reply in replies)
