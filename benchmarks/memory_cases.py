"""The cases of `memory.py`: the same entries, stored in several layouts.

A layout is a few short functions: they create its handle, load a page of entries, and read and
write one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Final

import memory_data as data

from shardkit.cli.advise.servers import COMPONENT, BenchServer
from shardkit.structures.packed.locations import decode, encode

# The prefix of all keys, inside a hash tag or not, by which they are found and removed.
PREFIX: Final = "bench:"
KEY: Final = f"{PREFIX}x"
DAY: Final = date(2015, 5, 17)

Load = Callable[[Any, Sequence[Any]], object]
One = Callable[[Any, Any], object]


@dataclass(frozen=True)
class CaseLayout:
    """One way to store the entries of a case."""

    name: str
    # Returns the handle for the other functions, given the number of entries: redis-py's client, or
    # a structure.
    make: Callable[[BenchServer, int], Any]
    load: Load
    get: One | None = None
    put: One | None = None
    # Reads or aggregates everything, if the case has such an operation.
    whole: Callable[[Any], object] | None = None
    # A command that looks up fields of its one large key: see `BenchServer.bytes_added`.
    probe: tuple[str, str] | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    share: int = 1  # one in ``share`` of the case's entries is loaded, if all would take too long
    # Called with a sample of the entries before loading; counts as loading.
    prepare: Load | None = None


@dataclass(frozen=True)
class Case:
    """Entries and their layouts; savings are relative to the first layout, the plain one."""

    name: str
    title: str
    entry: str
    entries: int
    data: Callable[[int], Iterable[Any]]
    layouts: Sequence[CaseLayout]


def _client(server: BenchServer, _: int) -> Any:
    return server.client


# ---- hash


def _json_page(page: Sequence[Any]) -> dict[str, str]:
    return {field: data.as_json(record) for field, record in page}


def _hash(**options: Any) -> Callable[[BenchServer, int], Any]:
    return lambda server, _: server.kit.hash(KEY, component=COMPONENT, **options)


def _cities_in_parts(name: str, size: int, settings: Mapping[str, int]) -> CaseLayout:
    return CaseLayout(
        name,
        _hash(part_size=size),
        load=lambda cities, page: cities.hset(mapping=_json_page(page)),
        get=lambda cities, entry: cities.hget(entry[0]),
        put=lambda cities, entry: cities.hset(entry[0], data.as_json(entry[1])),
        settings=settings,
    )


def _fields(name: str, prepare: Load | None = None, **options: Any) -> CaseLayout:
    return CaseLayout(
        name,
        _hash(**options),
        load=lambda fields, page: fields.hset(mapping=dict(page)),
        get=lambda fields, entry: fields.hget(entry[0]),
        put=lambda fields, entry: fields.hset(*entry),
        prepare=prepare,
    )


def _train(cities: Any, entries: Sequence[Any]) -> None:
    cities.train([record for _, record in entries])


# The limits of "Redis in Action".
_BOOK = {"hash-max-listpack-entries": 1024, "hash-max-listpack-value": 256}

_HASH = Case(
    "hash",
    "city records by id, as JSON",
    "record",
    370_000,
    data.cities,
    [
        CaseLayout(
            "one HASH",
            _client,
            load=lambda client, page: client.hset(KEY, mapping=_json_page(page)),
            get=lambda client, entry: client.hget(KEY, entry[0]),
            put=lambda client, entry: client.hset(KEY, entry[0], data.as_json(entry[1])),
            probe=("HMGET", KEY),
        ),
        _cities_in_parts("parts of 128", 128, {}),
        _cities_in_parts("parts of 128, limit 256 bytes", 128, {"hash-max-listpack-value": 256}),
        _cities_in_parts("parts of 1024, limits 1024, 256", 1024, _BOOK),
        _fields("parts of 128, codec=msgpack", part_size=128, codec="msgpack"),
        _fields("parts of 128, codec=zstd", _train, part_size=128, codec="zstd"),
        _fields("parts of 128, codec=tokens", _train, part_size=128, codec="tokens"),
    ],
)

_STRINGS = Case(
    "strings",
    "short strings by number",
    "string",
    1_000_000,
    data.tokens,
    [
        CaseLayout(
            "keys",
            _client,
            load=lambda client, page: client.mset({f"{PREFIX}{n}": v for n, v in page}),
            get=lambda client, entry: client.get(f"{PREFIX}{entry[0]}"),
            put=lambda client, entry: client.set(f"{PREFIX}{entry[0]}", entry[1]),
        ),
        _fields("fields of parts of 128", part_size=128),
        _fields("fields of parts that grow", partition="crc32"),
    ],
)


# ---- set


def _set_layout(
    name: str, settings: Mapping[str, int] | None = None, *, planned: bool = False, **options: Any
) -> CaseLayout:
    def make(server: BenchServer, count: int) -> Any:
        kit: Any = server.kit
        return kit.set(KEY, component=COMPONENT, total=count if planned else None, **options)

    return CaseLayout(
        name,
        make,
        load=lambda members, page: members.sadd(*page),
        get=lambda members, member: members.sismember(member),
        put=lambda members, member: members.sadd(member),
        settings=settings or {},
    )


_ONE_SET = CaseLayout(
    "one SET",
    _client,
    load=lambda client, page: client.sadd(KEY, *page),
    get=lambda client, member: client.sismember(KEY, member),
    put=lambda client, member: client.sadd(KEY, member),
    probe=("SMISMEMBER", KEY),
)

_IDS = Case(
    "ids",
    "random ids of 60 bits in a SET",
    "id",
    1_000_000,
    data.ids,
    [
        _ONE_SET,
        _set_layout("parts that grow", members=int),
        _set_layout("parts of 512, planned", planned=True, members=int),
        _set_layout(
            "parts of 4096, planned",
            {"set-max-intset-entries": 4096},
            planned=True,
            members=int,
            part_size=4096,
        ),
    ],
)

_TEXTS = Case(
    "texts",
    "members of 32 characters in a SET",
    "member",
    1_000_000,
    data.texts,
    [
        _ONE_SET,
        _set_layout("parts that grow"),
        _set_layout("parts of 128, planned", planned=True, part_size=128),
    ],
)


# ---- sorted set


def _scores_in_parts(name: str, *, planned: bool = False, **options: Any) -> CaseLayout:
    def make(server: BenchServer, count: int) -> Any:
        total = count if planned else None
        return server.kit.sorted_set(KEY, component=COMPONENT, total=total, **options)

    return CaseLayout(
        name,
        make,
        load=lambda scores, page: scores.zadd(dict(page)),
        get=lambda scores, entry: scores.zscore(entry[0]),
        put=lambda scores, entry: scores.zadd(dict([entry])),
        whole=lambda scores: scores.top(100),
    )


_ZSET = Case(
    "zset",
    "players and scores in a ZSET; all is the first hundred",
    "member",
    1_000_000,
    data.scores,
    [
        CaseLayout(
            "one ZSET",
            _client,
            load=lambda client, page: client.zadd(KEY, dict(page)),
            get=lambda client, entry: client.zscore(KEY, entry[0]),
            put=lambda client, entry: client.zadd(KEY, dict([entry])),
            whole=lambda client: client.zrange(KEY, 0, 99, desc=True, withscores=True),
            probe=("ZMSCORE", KEY),
        ),
        _scores_in_parts("parts that grow"),
        _scores_in_parts("parts that grow, planned", planned=True),
    ],
)


# ---- unique visitors


def _unique(precision: str) -> CaseLayout:
    def make(server: BenchServer, count: int) -> Any:
        first = None if precision == "hyperloglog" else count
        return server.kit.unique_visitors(
            KEY, component=COMPONENT, precision=precision, first_day=first
        )

    return CaseLayout(
        precision,
        make,
        load=lambda visitors, page: visitors.visit_many(page, DAY),
        put=lambda visitors, session: visitors.visit(session, DAY),
        whole=lambda visitors: visitors.count(DAY),
    )


_UNIQUE = Case(
    "unique",
    "a day's unique visitors, version 4 UUIDs",
    "visitor",
    1_000_000,
    data.sessions,
    [
        replace(_ONE_SET, get=None, whole=lambda client: client.scard(KEY)),
        _unique("exact"),
        _unique("60-bit"),
        _unique("compact"),
        _unique("hyperloglog"),
    ],
)


# ---- list


_LIST = Case(
    "list",
    "elements of 7 characters in a LIST",
    "element",
    1_000_000,
    data.messages,
    [
        CaseLayout(
            "one LIST",
            _client,
            load=lambda client, page: client.rpush(KEY, *page),
            get=lambda client, _: client.lindex(KEY, 100),
            put=lambda client, element: client.rpush(KEY, element),
        ),
        CaseLayout(
            "parts",
            lambda server, _: server.kit.list(KEY, component=COMPONENT),
            load=lambda items, page: items.rpush_many(page),
            get=lambda items, _: items.lindex(100),
            put=lambda items, element: items.rpush(element),
        ),
    ],
)


# ---- packed records


def _key_of(user: int) -> str:
    return f"{PREFIX}{user}"


def _count_by_scan(client: Any) -> dict[Any, int]:
    """Count users by country without packing, which reads every field."""
    counts: dict[Any, int] = {}
    for _, code in client.hscan_iter(KEY, count=10_000):
        country = decode(code).country
        counts[country] = counts.get(country, 0) + 1
    return counts


_LOCATIONS = Case(
    "locations",
    "country and region of users, who come in random order",
    "user",
    10_000_000,
    data.locations,
    [
        CaseLayout(
            "keys",
            _client,
            load=lambda client, page: client.mset({_key_of(u): encode(*at) for u, at in page}),
            get=lambda client, entry: client.get(_key_of(entry[0])),
            put=lambda client, entry: client.set(_key_of(entry[0]), encode(*entry[1])),
            share=10,
        ),
        CaseLayout(
            "one HASH",
            _client,
            load=lambda client, page: client.hset(KEY, mapping={u: encode(*at) for u, at in page}),
            get=lambda client, entry: client.hget(KEY, entry[0]),
            put=lambda client, entry: client.hset(KEY, entry[0], encode(*entry[1])),
            whole=_count_by_scan,
            probe=("HMGET", KEY),
            share=10,
        ),
        CaseLayout(
            "packed",
            lambda server, _: server.kit.locations(KEY, component=COMPONENT),
            load=lambda users, page: users.set_many(page),
            get=lambda users, entry: users.get(entry[0]),
            put=lambda users, entry: users.set(entry[0], *entry[1]),
            whole=lambda users: users.aggregate(),
        ),
    ],
)

# By name.
CASES: Final[Mapping[str, Case]] = {
    case.name: case for case in (_HASH, _STRINGS, _IDS, _TEXTS, _ZSET, _UNIQUE, _LIST, _LOCATIONS)
}
