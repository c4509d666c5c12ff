"""New servers to measure on.

Memory is the growth of ``used_memory``, measured without other connections and after rehashing.
While a hash table grows, it exists twice, and each look-up moves one of its entries; so keys are
looked up until all entries have moved.
"""

from __future__ import annotations

import json
import random
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import redis
from redis.exceptions import ResponseError
from redis.utils import str_if_bytes

import shardkit
from shardkit.config.shard_map import ShardMap
from shardkit.errors import ShardKitError
from shardkit.kit.kit import ShardKit
from shardkit.local import LocalServer, Setting

COMPONENT: Final = "bench"

# The server's statistics would count as memory.
_QUIET: Final[Mapping[str, Setting]] = {"latency-tracking": False, "slowlog-max-len": 0}
_STEP = 0.05  # seconds between two measurements
_DATABASE: Final = re.compile(r"db\d+")
_CLOSE_TIMEOUT: Final = 30.0  # seconds to wait for other connections to close
_LOOK_UPS: Final = 10_000  # per command
_LENGTHS: Final = {"HMGET": "HLEN", "SMISMEMBER": "SCARD", "ZMSCORE": "ZCARD"}


class BenchServer:
    """A server that holds only the data being measured.

    With ``exact``, memory is read until it no longer changes.
    """

    def __init__(self, fields: Mapping[str, Any], exact: bool = True) -> None:
        self._exact = exact
        self._fields = {"socket_timeout": 60, **fields}
        self._text = json.dumps({"components": {COMPONENT: {"entry": self._fields}}})
        self._kit: ShardKit | None = None
        with shardkit.connect(ShardMap.parse(self._text)) as kit:
            client = kit.client(COMPONENT)
            if not isinstance(client, redis.Redis):
                raise ShardKitError("a cluster cannot be measured", "name one server")
            info: Any = client.info()
        stored = {name: stats["keys"] for name, stats in info.items() if _DATABASE.fullmatch(name)}
        if stored:
            what = ", ".join(f"{name}: {keys:,} keys" for name, keys in stored.items())
            raise ShardKitError(
                f"the server holds data ({what})", "name an empty one, or use embedded servers"
            )
        name = "valkey" if "valkey_version" in info else "redis"
        # Its software and allocator: ``valkey 9.1.2, jemalloc-5.3.0``.
        self.software = f"{name} {info[f'{name}_version']}, {info['mem_allocator']}"
        self._empty = self.used()

    @property
    def kit(self) -> ShardKit:
        """A kit whose component ``bench`` is the server; opened on first use."""
        if self._kit is None:
            self._kit = shardkit.connect(ShardMap.parse(self._text))
        return self._kit

    @property
    def client(self) -> redis.Redis:
        """The kit's client, with a timeout of a minute."""
        client = self.kit.client(COMPONENT)
        assert isinstance(client, redis.Redis)
        return client

    def close(self) -> None:
        """Close all connections; later calls open new ones."""
        if self._kit is not None:
            self._kit.close()
            self._kit = None

    def used(self) -> int:
        """Return the used memory, once it is stable and no other client is connected."""
        self.close()
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        with shardkit.connect(ShardMap.parse(self._text)) as kit:
            client = kit.client(COMPONENT)
            before, same = -1, 0
            while True:
                info: Any = client.info()
                if info["connected_clients"] > 1 and time.monotonic() > deadline:
                    raise ShardKitError(
                        "the server has other clients, whose memory would be measured too",
                        "disconnect them during the benchmark",
                    )
                buffers = info.get("mem_clients_normal", -1)  # our own; 0 until the server counts
                alone = info["connected_clients"] == 1 and buffers != 0
                used = info["used_memory"] - max(buffers, 0)
                same = same + 1 if alone and used == before else 0
                before = used
                if alone and (same == 3 or not self._exact):
                    return int(before)
                time.sleep(_STEP)

    def bytes_added(self, probe: tuple[str, str] | None = None) -> int:
        """Return how many bytes were added since the server was empty.

        ``probe`` is a command that looks up fields, and the key of a large table: ("HMGET", key).
        """
        self.finish_rehashing(probe)
        return self.used() - self._empty

    def finish_rehashing(self, probe: tuple[str, str] | None) -> None:
        """Look up keys, and fields of a large key, until all entries of their tables have moved."""
        client: Any = self.client
        nothing = ["?"] * _LOOK_UPS
        for _ in range(0, 2 * client.dbsize(), _LOOK_UPS):
            client.execute_command("EXISTS", *nothing)
        if probe is not None:
            command, key = probe
            for _ in range(0, 2 * client.execute_command(_LENGTHS[command], key), _LOOK_UPS):
                client.execute_command(command, key, *nothing)

    @contextmanager
    def limits(self, settings: Mapping[str, int]) -> Iterator[None]:
        """Set limits, of which the server may lack some, and restore them in any case."""
        known: Any = {n: v for name in settings for n, v in self.client.config_get(name).items()}
        try:
            for name in known.keys() & settings.keys():
                self.client.config_set(name, settings[name])
            yield
        finally:
            for name in known.keys() & settings.keys():
                self.client.config_set(name, known[name])


class ServerSource:
    """Provides empty servers of a binary, by default the embedded one; see `BenchServer`."""

    shared = False  # whether there is only one server, which only one layout can use at a time

    def __init__(self, binary: str | None = None, exact: bool = True) -> None:
        self._binary, self._exact = binary, exact

    @contextmanager
    def empty_server(self) -> Iterator[BenchServer]:
        """Provide a new server."""
        with LocalServer(binary=self._binary, config=_QUIET) as local:
            server = BenchServer(dict(local.entry.fields), self._exact)
            try:
                yield server
            finally:
                server.close()


_KEYS = 4_000
_NAME = "bench:12345"  # of the keys that are measured
_LONG = 2_000  # bytes of a value in a table
_TABLE = 100  # values of a table
_FIELDS, _HASHES = (32, 64), 80  # fields that expire, and in how many keys
_DUE = 10  # bytes of an entry's time in a listpack
_EMBEDDED = 128  # bytes of the largest block with a field and its value
_NODE = 8_192  # bytes of a full node of a LIST
_YEAR = 31_536_000_000  # milliseconds
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_WIDTHS = ((7, 1), (12, 2), (15, 3), (23, 4), (31, 5), (63, 9))
# jemalloc's sizes: four in each doubling.
_CLASSES: list[int] = [8, *range(16, 129, 16)]
_CLASSES += [(4 + n) << power for power in range(5, 28) for n in range(1, 5)]


@dataclass(frozen=True)
class ExpiringFields:
    """What fields of a HASH take if they expire."""

    embeds: bool  # whether a table has short fields and their values in one block
    table: float = 0.0  # the bytes of a table besides its fields
    entry: float = 0.0  # the bytes of a field in a table besides its blocks
    # The bytes of a HASH as a listpack besides the same of one that does not expire; None if there
    # is none.
    compact: float | None = None


@dataclass(frozen=True)
class MemoryModel:
    """What a kind of server takes; `measure` finds it.

    A listpack has 7 bytes and its entries; an entry of text its length and itself, a whole number
    from one to nine bytes; and each its own length once more.
    """

    jemalloc: bool  # whether that is its allocator
    key: float  # the bytes of a key besides its value, its name of 11 bytes included
    entry: float  # the bytes of an entry in a table, besides its value
    due: float = 0.0  # the bytes of a key's time to live
    fields: ExpiringFields | None = None  # what fields take that expire; None if they cannot

    def allocated(self, size: float) -> float:
        """Return the bytes that are allocated for blocks of about this size."""
        return fmean(self.block(round(size * share)) for share in (0.92, 0.96, 1.0, 1.04, 1.08))

    def block(self, size: int) -> int:
        """Return the bytes that are allocated for a block."""
        if self.jemalloc:
            return _CLASSES[bisect_left(_CLASSES, size)]
        return max(24, (size + 23) // 16 * 16 - 8)

    def part(self, name: str, size: float) -> float:
        """Return the bytes of a key with a value of one block."""
        return self.key + len(name) - len(_NAME) + self.allocated(size)

    def table(self, name: str, count: float, size: float) -> float:
        """Return the bytes of a key with a table of entries that have values of this size."""
        return self.key + len(name) - len(_NAME) + count * (self.entry + self.allocated(size + 5))

    def list_part(self, name: str, size: float) -> float:
        """Return the bytes of a key with a LIST whose values take this size."""
        if size + 7 <= _NODE:
            return self.part(name, size + 7)
        full, rest = divmod(size, _NODE - 7)
        nodes = full * self.block(_NODE) + (full + 1) * self.block(32) + self.block(40)
        return self.part(name, rest + 7) + nodes

    def expiring_part(
        self, name: str, pairs: Sequence[tuple[bytes, bytes]], count: float, compact: bool
    ) -> float:
        """Return the bytes of a HASH whose fields expire, with fields and values like some given.

        ``compact`` says that no value is too long for a listpack.
        """
        assert self.fields is not None
        key = self.key + len(name) - len(_NAME)
        if compact and self.fields.compact is not None:
            entry = fmean(entry_size(field) + entry_size(value) for field, value in pairs)
            return key + self.fields.compact + self.allocated(7 + count * (entry + _DUE))
        blocks = fmean(self._table_entry(len(field), len(value)) for field, value in pairs)
        return key + self.fields.table + count * (self.fields.entry + blocks)

    def _table_entry(self, field: int, value: int) -> int:
        """Return the bytes of a field that expires and its value, in a table."""
        together = field + value + 16
        if self.fields is not None and self.fields.embeds and together <= _EMBEDDED:
            return self.block(together)
        return self.block(field + 20) + self.block(value + (4 if value < 256 else 6))


def measure(server: BenchServer, expiring: bool = False) -> MemoryModel:
    """Measure a server's figures, also those of what expires if asked to.

    Writes some thousand keys, and removes them.
    """
    before = server.bytes_added()
    pipe: Any = server.client.pipeline(transaction=False)
    for n in range(_KEYS):
        pipe.hset(f"bench:{10_000 + n}", mapping={"7": "abcdef"})
    pipe.execute()
    first = MemoryModel("jemalloc" in server.software, 0.0, 0.0)
    memory = (server.bytes_added() - before) / _KEYS
    key = memory - first.block(7 + entry_size(b"7") + entry_size(b"abcdef"))
    keys = server.bytes_added()
    pipe = server.client.pipeline(transaction=False)
    for n in range(_TABLE // 2):
        names = {f"{i}": "x" * _LONG for i in range(_TABLE)}
        pipe.hset(f"bench:{20_000 + n}", mapping=names)
    pipe.execute()
    tables = (server.bytes_added() - keys) / (_TABLE // 2) - key
    entry = tables / _TABLE - first.block(_LONG + 5)
    server.client.flushall()
    model = MemoryModel(first.jemalloc, key, entry)
    if not expiring:
        server.close()
        return model
    return replace(model, due=_due(server), fields=_expiring_fields(server, model))


def _due(server: BenchServer) -> float:
    totals = []
    for end in (None, _YEAR):
        pipe: Any = server.client.pipeline(transaction=False)
        for n in range(_KEYS):
            pipe.set(f"bench:{10_000 + n}", "abcdef", px=end)
        pipe.execute()
        totals.append(server.bytes_added())
    server.client.flushall()
    return (totals[1] - totals[0]) / _KEYS


def _expiring_fields(server: BenchServer, model: MemoryModel) -> ExpiringFields | None:
    fields = ExpiringFields("valkey" in server.software)

    def besides(count: int, compact: bool) -> tuple[float, str]:
        """Return what a HASH takes besides what is known, and its encoding."""
        memory, encoding = _load_expiring(server, count)
        known = replace(model, fields=replace(fields, compact=0.0 if compact else None))
        return memory - known.expiring_part(_NAME, _pairs(0, count), count, compact), encoding

    short, many = _FIELDS
    try:
        with server.limits({"hash-max-listpack-entries": 0, "hash-max-ziplist-entries": 0}):
            of_short, of_many = besides(short, False)[0], besides(many, False)[0]
    except ResponseError:  # Redis before 7.4, Valkey before 9.0
        server.client.flushall()
        return None
    compact, encoding = besides(many, True)
    entry = (of_many - of_short) / (many - short)
    table = of_short - short * entry
    return replace(
        fields, table=table, entry=entry, compact=None if encoding == "hashtable" else compact
    )


def _pairs(first: int, count: int) -> list[tuple[bytes, bytes]]:
    """Return fields and values of many lengths; fields from another number on are others."""
    lengths = [(4 + 7 * n % 34, 4 + 11 * n % 56) for n in range(count)]
    return [(b"%0*d" % (wide, first + n), b"v" * long) for n, (wide, long) in enumerate(lengths)]


def _load_expiring(server: BenchServer, count: int) -> tuple[float, str]:
    """Return the bytes of a HASH with fields, and its encoding; removes it.

    It is an average of many with other fields: as many fall together in a bucket as by chance.
    """
    choose, due = random.Random(1), round(1000 * time.time()) + _YEAR
    before = server.bytes_added()
    for n in range(_HASHES):
        key, pairs = f"bench:{10_000 + n}", _pairs(count * n, count)
        pipe: Any = server.client.pipeline(transaction=False)
        pipe.hset(key, mapping=dict(pairs))
        for name, _ in pairs:
            pipe.execute_command(
                "HPEXPIREAT", key, due + choose.randrange(_YEAR), "FIELDS", 1, name
            )
        pipe.execute()
    client: Any = server.client
    encoding = str_if_bytes(client.object("encoding", key))
    memory = (server.bytes_added() - before) / _HASHES
    server.client.flushall()
    return memory, encoding


def entry_size(text: bytes) -> int:
    """Return the bytes of an entry of a listpack."""
    if _INTEGER.fullmatch(text) and -(2**63) <= (number := int(text)) < 2**63:
        bits = number if number >= 0 else ~number
        if 0 <= number < 128:
            return 2
        size = next(size for width, size in _WIDTHS[1:] if bits < 1 << width)
        return size + 1
    size = len(text) + (1 if len(text) < 64 else 2 if len(text) < 4096 else 5)
    return size + (1 if size < 128 else 2 if size < 16_384 else 3 if size < 2_097_152 else 4)


def mean_size(entries: Sequence[bytes]) -> float:
    """Return the average size of entries of a listpack."""
    return fmean(map(entry_size, entries)) if entries else 0.0


def integer_width(numbers: Iterable[int]) -> int:
    """Return the bytes of each member of an intset."""
    highest = max((n if n >= 0 else ~n for n in numbers), default=0)
    return 2 if highest < 2**15 else 4 if highest < 2**31 else 8
