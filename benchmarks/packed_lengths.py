"""How operations slow down with the length of one compact key.

The key's limit is raised, so that it stays compact at any length. Operations are those that are
slowest on it: in the middle, or at both ends. They are sent in pipelines, so that most of the time
is the server's.

Before Redis 3.2, a LIST was one block and became slow from some thousand elements. Since then it is
a linked list of small blocks: ``rotate`` does not slow down any more, and ``middle`` follows the
links. HASH, ZSET and intset still slow down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from memory_cases import PREFIX

from shardkit.cli.advise.servers import BenchServer
from shardkit.cli.output import Table, number
from shardkit.cli.rows import Field, json_rows

LENGTHS: Final = (1, 100, 1_000, 5_000, 10_000, 50_000, 100_000)
LIMIT: Final = 110_000  # more than all lengths
PASSES: Final = 1_000
PER_PASS: Final = 100
# The most time for one length; passes that are left are not sent.
SECONDS: Final = 5.0
KEY: Final = f"{PREFIX}long"
_PAGE: Final = 1_000

Commands = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class PackedKind:
    """An operation on one compact key."""

    name: str
    title: str
    # The limits that keep the key compact, under all names that servers use.
    settings: Mapping[str, int]
    # Returns the command that adds entries ``start`` to ``stop - 1``.
    fill: Callable[[int, int], Sequence[Any]]
    # Returns the commands of one operation on a key of the given length.
    work: Callable[[int], Commands]


def _limits(type_: str) -> dict[str, int]:
    return {f"{type_}-max-{name}-entries": LIMIT for name in ("listpack", "ziplist")}


KINDS: Final[Mapping[str, PackedKind]] = {
    kind.name: kind
    for kind in (
        PackedKind(
            "rotate",
            "LIST: the last element to the front (LMOVE)",
            {},
            lambda start, stop: ["RPUSH", KEY, *range(start, stop)],
            lambda length: [["LMOVE", KEY, KEY, "RIGHT", "LEFT"]],
        ),
        PackedKind(
            "middle",
            "LIST: read the middle element (LINDEX)",
            {},
            lambda start, stop: ["RPUSH", KEY, *range(start, stop)],
            lambda length: [["LINDEX", KEY, length // 2]],
        ),
        PackedKind(
            "intset",
            "SET of integers: remove the lowest and add it again (SREM, SADD)",
            {"set-max-intset-entries": LIMIT},
            lambda start, stop: ["SADD", KEY, *range(start, stop)],
            lambda length: [["SREM", KEY, 0], ["SADD", KEY, 0]],
        ),
        PackedKind(
            "hash",
            "HASH: write the middle field (HSET)",
            _limits("hash"),
            lambda start, stop: ["HSET", KEY, *(w for n in range(start, stop) for w in (n, n))],
            lambda length: [["HSET", KEY, length // 2, length // 2]],
        ),
        PackedKind(
            "zset",
            "ZSET: the highest member becomes the lowest, then the highest again (ZADD)",
            _limits("zset"),
            lambda start, stop: ["ZADD", KEY, *(w for n in range(start, stop) for w in (n, n))],
            lambda length: [["ZADD", KEY, -1, length - 1], ["ZADD", KEY, length, length - 1]],
        ),
    )
}


@dataclass(frozen=True)
class Speed:
    """The speed at one length."""

    length: int
    per_second: float
    encoding: str
    passes: int  # how many passes were sent in time


def run(
    kind: PackedKind,
    server: BenchServer,
    length: int,
    passes: int = PASSES,
    per_pass: int = PER_PASS,
    seconds: float = SECONDS,
) -> Speed:
    """Measure an operation on a key of one length.

    Afterwards, also after an error, the server's limits are restored and the key is deleted.
    """
    client: Any = server.client
    try:
        client.delete(KEY)
        # Filled as a hash table, which is fast, and then stored again as one block.
        for start in range(0, length, _PAGE):
            client.execute_command(*kind.fill(start, min(start + _PAGE, length)))
        with server.limits(kind.settings):
            client.restore(KEY, 0, client.dump(KEY), replace=True)
            encoding = client.object("encoding", KEY)
            work = kind.work(length)
            done, began = 0, time.perf_counter()
            while done < passes and time.perf_counter() - began < seconds:
                pipe = client.pipeline(transaction=False)
                for _ in range(per_pass):
                    for command in work:
                        pipe.execute_command(*command)
                pipe.execute()
                done += 1
            taken = time.perf_counter() - began
    finally:
        client.delete(KEY)
    name = encoding.decode() if isinstance(encoding, bytes) else str(encoding)
    return Speed(length, done * per_pass / taken, name, done)


def lengths_table(speeds: Mapping[str, Sequence[Speed]]) -> Table:
    """Return the table of speeds, with a column for each kind."""
    table = Table.of(number("length"), *(number(f"{name}/s") for name in speeds))
    by_length = {name: {each.length: each for each in found} for name, found in speeds.items()}
    for length in sorted({each.length for found in speeds.values() for each in found}):
        cells = [found.get(length) for found in by_length.values()]
        table.row(length, *(None if each is None else round(each.per_second) for each in cells))
    return table


def lengths_document(software: str, speeds: Mapping[str, Sequence[Speed]]) -> dict[str, Any]:
    """Return the figures of speeds."""
    kinds = [
        {"kind": name, "title": KINDS[name].title, "speeds": json_rows(_SPEED_FIELDS, found)}
        for name, found in speeds.items()
    ]
    return {"server": software, "kinds": kinds}


_SPEED_FIELDS: tuple[Field[Speed], ...] = (
    Field("length", lambda each: each.length),
    Field("a_second", lambda each: round(each.per_second)),
    Field("encoding", lambda each: each.encoding),
    Field("passes", lambda each: each.passes),
)
