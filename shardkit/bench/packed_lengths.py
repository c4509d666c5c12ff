"""How operations slow down with the length of one compact key (spec 34).

A key of so many entries, forced to stay compact by raising its limit, is worked on at its worst
place: the middle, or both ends. Commands go out in pipelines, so that exchanges do not hide what
the server does::

    fill ─► passes times: per_pass commands in one pipeline ─► operations a second

Redis before 3.2 kept a LIST in one block, and slowed down from some thousand elements on. Servers
since then keep it in a chain of small blocks: for ``rotate`` there is nothing left to see, and
``middle`` walks the chain. HASH, ZSET and intset still show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardkit.bench.servers import PREFIX, BenchServer

LENGTHS: Final = (1, 100, 1_000, 5_000, 10_000, 50_000, 100_000)
LIMIT: Final = 110_000  # of all of these
PASSES: Final = 1_000
PER_PASS: Final = 100
# A length whose passes would take longer is cut short: it says enough.
SECONDS: Final = 5.0
KEY: Final = f"{PREFIX}long"
_PAGE: Final = 1_000

Commands = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class PackedKind:
    """An operation on one compact key.

    Attributes:
        name: what it is called on the command line.
        title: what it does.
        settings: the limits that keep the key compact, under all names that servers have.
        fill: returns the commands that make a key of entries ``start`` to ``stop - 1``.
        work: returns the commands of one pass, each counted as one operation, of a key so long.
        operations: how many commands make one operation.
        length: tells how many entries there are.
    """

    name: str
    title: str
    settings: Mapping[str, int]
    fill: Callable[[int, int], Sequence[Any]]
    work: Callable[[int], Commands]
    operations: int = 1


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
            "SET of integers: take the lowest out and put it back (SREM, SADD)",
            {"set-max-intset-entries": LIMIT},
            lambda start, stop: ["SADD", KEY, *range(start, stop)],
            lambda length: [["SREM", KEY, 0], ["SADD", KEY, 0]],
            2,
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
            "ZSET: the highest member becomes the lowest, and again the highest (ZADD)",
            _limits("zset"),
            lambda start, stop: ["ZADD", KEY, *(w for n in range(start, stop) for w in (n, n))],
            lambda length: [["ZADD", KEY, -1, length - 1], ["ZADD", KEY, length, length - 1]],
        ),
    )
}


@dataclass(frozen=True)
class Speed:
    """What was measured at one length.

    Attributes:
        length: how many entries the key had.
        per_second: operations a second.
        encoding: what OBJECT ENCODING said.
        passes: how many passes there was time for.
    """

    length: int
    per_second: float
    encoding: str
    passes: int


def run(
    kind: PackedKind,
    server: BenchServer,
    length: int,
    passes: int = PASSES,
    per_pass: int = PER_PASS,
    seconds: float = SECONDS,
) -> Speed:
    """Work on a key of one length.

    The limits are those of the server again afterwards, however this ends, and the key is gone.

    Args:
        kind: the operation.
        server: the server.
        length: how many entries the key has.
        passes: how many pipelines to send.
        per_pass: how many operations each has.
        seconds: when to stop although not all are sent.
    """
    client: Any = server.client
    try:
        client.delete(KEY)
        # Filled as a table, which is quick, and then written anew as one block.
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
