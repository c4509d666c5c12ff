"""The memory of parts by their size, and the server's time to read and write one entry.

A compact part is searched from its beginning, so look-ups take longer the more entries it has; an
intset uses binary search. The limits are raised during the run, so that all parts are compact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import memory_data as data
from memory_cases import PREFIX
from memory_layouts import timed

from shardkit.cli.advise.servers import BenchServer, ServerSource
from shardkit.cli.output import Table, number
from shardkit.cli.rows import Field, json_rows, rounded, table_of

SIZES: Final = (64, 128, 256, 512, 1024, 2048, 4096)
ENTRIES: Final = 100_000
_LOOKS: Final = 2_000
_ROUNDS: Final = 7
_BATCH: Final = 100


@dataclass(frozen=True)
class PartKind:
    """A type that is stored in parts."""

    name: str
    settings: Mapping[str, int]
    # Returns the command that fills a part with some entries.
    load: Callable[[str, Sequence[Any]], list[Any]]
    read: Callable[[str, Any], list[Any]]  # returns the command that reads one entry
    write: Callable[[str, Any], list[Any]]  # returns the command that writes one existing entry
    entries: Callable[[int], Iterator[Any]]


def _flat(pairs: Sequence[Any], first: int = 0) -> list[Any]:
    return [value for pair in pairs for value in (pair[first], pair[1 - first])]


KINDS: Final[Mapping[str, PartKind]] = {
    kind.name: kind
    for kind in (
        PartKind(
            "hash",
            {"hash-max-listpack-entries": SIZES[-1], "hash-max-listpack-value": 1024},
            lambda key, some: ["HSET", key, *_flat(some)],
            lambda key, one: ["HGET", key, one[0]],
            lambda key, one: ["HSET", key, *one],
            lambda count: ((name, data.as_json(record)) for name, record in data.cities(count)),
        ),
        PartKind(
            "zset",
            {"zset-max-listpack-entries": SIZES[-1]},
            lambda key, some: ["ZADD", key, *_flat(some, 1)],
            lambda key, one: ["ZSCORE", key, one[0]],
            lambda key, one: ["ZADD", key, one[1], one[0]],
            data.scores,
        ),
        PartKind(
            "intset",
            {"set-max-intset-entries": SIZES[-1]},
            lambda key, some: ["SADD", key, *some],
            lambda key, one: ["SISMEMBER", key, one],
            lambda key, one: ["SADD", key, one],
            data.ids,
        ),
    )
}


@dataclass(frozen=True)
class Point:
    """The figures of parts of one size."""

    size: int
    bytes_each: float
    read: float  # the server's microseconds to read and to write one entry, in the best round
    write: float


@dataclass(frozen=True)
class Curve:
    """The figures of a kind, by the size of its parts."""

    kind: str
    software: str
    points: Sequence[Point]


def run(
    kind: PartKind,
    servers: ServerSource,
    sizes: Sequence[int] = SIZES,
    entries: int = ENTRIES,
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
) -> Curve:
    """Measure parts of several sizes, each on an empty server."""
    points = []
    software = ""
    raised = {name: max(value, *sizes) for name, value in kind.settings.items()}
    for n, size in enumerate(sizes):
        progress(f"{kind.name}, parts of {size}", n, len(sizes))
        with servers.empty_server() as server, server.limits(raised):
            points.append(_point(kind, server, size, entries))
            software = server.software
    progress(kind.name, len(sizes), len(sizes))
    return Curve(kind.name, software, points)


def _point(kind: PartKind, server: BenchServer, size: int, entries: int) -> Point:
    everything = list(kind.entries(entries))
    commands = [
        kind.load(f"{PREFIX}{n}", everything[start : start + size])
        for n, start in enumerate(range(0, entries, size))
    ]
    _send(server, commands)
    added = server.bytes_added()
    random = Random(size)
    looked = [random.randrange(entries) for _ in range(min(_LOOKS, entries))]
    times = {}
    for name, build in (("read", kind.read), ("write", kind.write)):
        commands = [build(f"{PREFIX}{n // size}", everything[n]) for n in looked]
        calls = partial(_send, server, commands)
        # Other load on the machine can only make it longer.
        times[name] = min(timed(server, calls, len(commands))[1] for _ in range(_ROUNDS))
    return Point(size, added / entries, times["read"], times["write"])


def _send(server: BenchServer, commands: Sequence[list[Any]]) -> None:
    client: Any = server.client
    for start in range(0, len(commands), _BATCH):
        pipe = client.pipeline(transaction=False)
        for command in commands[start : start + _BATCH]:
            pipe.execute_command(*command)
        pipe.execute()


def _size_fields(kind: str) -> tuple[Field[Point], ...]:
    return (
        Field("part_size", lambda point: point.size, number(f"{kind}, part size")),
        rounded("bytes_each", lambda point: point.bytes_each, number("bytes each"), 2, ".2f"),
        rounded("read_microseconds", lambda point: point.read, number("read, server µs"), 2, ".2f"),
        rounded(
            "write_microseconds", lambda point: point.write, number("write, server µs"), 2, ".2f"
        ),
    )


def sizes_table(curve: Curve) -> Table:
    """Return the table of a curve."""
    return table_of(_size_fields(curve.kind), curve.points)


def sizes_document(curve: Curve) -> dict[str, Any]:
    """Return the figures of a curve."""
    points = json_rows(_size_fields(curve.kind), curve.points)
    return {"kind": curve.kind, "server": curve.software, "points": points}
