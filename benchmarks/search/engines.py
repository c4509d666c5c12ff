"""Engines: each indexes the corpus, and answers a query with how many match and the first 20.

None of them stems or leaves out stop words, and all rank by BM25 with three times the weight for a
title, except the book's way, which has no relevance: it gives the documents updated last.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self, TypeAlias
from zlib import crc32

import redis

import shardkit
from search.corpus import Passage
from search.queries import Query
from shardkit import ShardMap
from shardkit.local import LocalServer, LocalServers, find_server
from shardkit.local.server import Setting
from shardkit.operations.operation import pages
from shardkit.search.text import Analyzer

WANTED: Final = 20
AT_ONCE: Final = 1_000
STATISTICS_TTL: Final = 60.0  # counts of words are known, but for the first round
MODULE: Final = Path("/usr/lib/redis/modules/redisearch.so")  # Debian's redis-redisearch
Found: TypeAlias = "tuple[int, list[str]]"


class Engine:
    """What is measured. A context manager: its servers run meanwhile.

    Attributes:
        name: for tables.
        unable: the kinds of query that it cannot answer.
    """

    name = ""
    unable: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.stack = ExitStack()
        self._clients: list[redis.Redis] = []

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stack.close()

    def open(self) -> None:
        """Start what it needs."""

    def index(self, corpus: Sequence[Passage]) -> None:
        """Index all documents."""
        raise NotImplementedError

    def ask(self, query: Query) -> Found:
        """Return how many documents match, and the ids of the first 20."""
        raise NotImplementedError

    def memory(self) -> int:
        """Return the bytes that the index takes."""
        raise NotImplementedError

    def processor(self) -> list[float]:
        """Return the seconds of processor time that each of its servers has used."""
        return [_processor(client) for client in self._clients]


class Sqlite(Engine):
    """SQLite's FTS5, in this process: the index in memory, or in a file."""

    def __init__(self, file: bool) -> None:
        super().__init__()
        self.name = f"SQLite FTS5, {'a file' if file else 'in memory'}"
        self._file = file

    def open(self) -> None:
        """Open a new database."""
        where = ":memory:"
        if self._file:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="shardkit-"))
            where = f"{folder}/search.db"
        self._db = sqlite3.connect(where)
        self.stack.callback(self._db.close)
        if self._file:
            self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(
            "CREATE VIRTUAL TABLE docs USING fts5(title, text, id UNINDEXED, kind UNINDEXED, "
            "updated UNINDEXED, size UNINDEXED, tokenize = 'unicode61')"
        )
        self._db.execute("INSERT INTO docs(docs, rank) VALUES ('rank', 'bm25(3.0, 1.0)')")
        self._db.commit()

    def index(self, corpus: Sequence[Passage]) -> None:
        """Insert all documents."""
        for page in pages(iter(corpus), AT_ONCE):  # a transaction each, as the others' batches are
            with self._db:
                self._db.executemany(
                    "INSERT INTO docs VALUES (?, ?, ?, ?, ?, ?)",
                    [(p.title, p.text, p.id, p.kind, p.updated, p.size) for p in page],
                )

    def ask(self, query: Query) -> Found:
        """Ask twice: for the number, and for the first."""
        match = _SQLITE[query.kind](query.words)
        [total] = self._db.execute("SELECT count(*) FROM docs WHERE docs MATCH ?", (match,))
        found = self._db.execute(
            f"SELECT id FROM docs WHERE docs MATCH ? ORDER BY rank LIMIT {WANTED}", (match,)
        )
        return total[0], [row[0] for row in found]

    def memory(self) -> int:
        """Return the size of the database."""
        [count] = self._db.execute("PRAGMA page_count")
        [size] = self._db.execute("PRAGMA page_size")
        return int(count[0] * size[0])


_SQLITE: Final[dict[str, Callable[[Sequence[str]], str]]] = {
    "frequent word": lambda w: w[0],
    "rare word": lambda w: w[0],
    "two words": " ".join,
    "three words": " ".join,
    "either": " OR ".join,
    "without": " NOT ".join,
    "phrase": lambda w: f'"{" ".join(w)}"',
    "prefix": lambda w: f"{w[0]}*",
}


class RediSearch(Engine):
    """RediSearch 1.2, as a module of a server."""

    name = "RediSearch 1.2.2"

    def open(self) -> None:
        """Start a server with the module."""
        options = (str(MODULE), "MAXEXPANSIONS", "10000", "TIMEOUT", "0")
        _, self._client = served(self.stack, {"loadmodule": options})
        self._clients = [self._client]
        self._empty = settled(self._client)
        self._client.execute_command(
            *(
                "FT.CREATE",
                "docs",
                "STOPWORDS",
                0,
                "SCHEMA",
                "title",
                "TEXT",
                "NOSTEM",
                "WEIGHT",
                3,
            ),
            *("text", "TEXT", "NOSTEM", "kind", "TAG"),
            *("updated", "NUMERIC", "SORTABLE", "size", "NUMERIC", "SORTABLE"),
        )

    def index(self, corpus: Sequence[Passage]) -> None:
        """Add all documents, in pipelines."""
        for page in pages(iter(corpus), AT_ONCE):
            pipe = self._client.pipeline(transaction=False)
            for p in page:
                fields = ("title", p.title, "text", p.text, "kind", p.kind)
                numbers = ("updated", p.updated, "size", p.size)
                pipe.execute_command("FT.ADD", "docs", p.id, 1.0, "FIELDS", *fields, *numbers)
            pipe.execute()

    def ask(self, query: Query) -> Found:
        """Ask for the number and the first."""
        total, *ids = self._client.execute_command(
            *("FT.SEARCH", "docs", _REDISEARCH[query.kind](query.words), "NOCONTENT", "VERBATIM"),
            *("SCORER", "BM25", "LIMIT", 0, WANTED),
        )
        return int(total), [one.decode() for one in ids]

    def memory(self) -> int:
        """Return what the server's memory grew by."""
        return settled(self._client) - self._empty


_REDISEARCH: Final = _SQLITE | {"either": "|".join, "without": " -".join}


class Book(Engine):
    """The book's way: a SET a word, a transaction a document, one shard after another.

    A query stores its result with a TTL, and the shard sorts it by the time of update. It has no
    phrases and no beginnings of words.
    """

    unable = frozenset(("phrase", "prefix"))

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.name = f"the book's way, {shards} shards" if shards > 1 else "the book's way"
        self._shards = shards
        self._words = Analyzer(stop_words=frozenset()).terms

    def open(self) -> None:
        """Start servers."""
        pairs = [served(self.stack) for _ in range(self._shards)]
        self._clients = [client for _, client in pairs]
        self._empty = sum(map(settled, self._clients))

    def index(self, corpus: Sequence[Passage]) -> None:
        """Index all documents, a transaction each."""
        for p in corpus:
            pipe = self._clients[crc32(p.id.encode()) % self._shards].pipeline(transaction=True)
            words = dict.fromkeys((*self._words(p.title), *self._words(p.text)))
            for word in words:
                pipe.sadd(f"idx:{word}", p.id)
            pipe.sadd(f"doc:words:{p.id}", *words)  # so that it can be indexed anew
            about = {"title": p.title, "text": p.text, "kind": p.kind}
            pipe.hset(f"kb:doc:{p.id}", mapping={**about, "updated": p.updated, "size": p.size})
            pipe.execute()

    def ask(self, query: Query) -> Found:
        """Ask one shard after another, and merge."""
        total = 0
        found: list[tuple[float, str]] = []
        keys = [f"idx:{word}" for word in query.words]
        for client in self._clients:
            pipe = client.pipeline(transaction=True)
            if query.kind == "either":
                pipe.sunionstore("result", keys)
            elif query.kind == "without":
                pipe.sdiffstore("result", keys)
            else:
                pipe.sinterstore("result", keys)
            pipe.expire("result", 300)
            by = "kb:doc:*->updated"
            pipe.sort("result", 0, WANTED, by=by, get=["#", by], desc=True)
            stored, _, listed = pipe.execute()
            total += stored
            ids = (one.decode() for one in listed[::2])
            found += zip(map(float, listed[1::2]), ids, strict=True)
        found.sort(reverse=True)
        return total, [one for _, one in found[:WANTED]]

    def memory(self) -> int:
        """Return what the servers' memory grew by."""
        return sum(map(settled, self._clients)) - self._empty


class Ours(Engine):
    """shardkit's index over servers of its own.

    Args:
        shards: how many.
        name: for tables.
        options: of the index.
    """

    def __init__(self, shards: int, name: str = "", **options: Any) -> None:
        super().__init__()
        self.name = name or f"shardkit, {counted_shards(shards)}"
        self.shards = shards
        self._options = options

    def open(self) -> None:
        """Start servers, and open the index."""
        shard_map = self.stack.enter_context(
            LocalServers(
                map_of(range(7001, 7001 + self.shards)),
                ports="free",
                config=QUIET,
                binary=binary(),
            )
        ).shard_map
        self.ports = [entry.resolved("")["port"] for entry in shard_map.components["search"].shards]
        self._clients = [self.stack.enter_context(client_of(port)) for port in self.ports]
        self._empty = sum(map(settled, self._clients))
        self.connect(self.ports)

    def connect(self, ports: Sequence[int]) -> None:
        """Use the index at other addresses."""
        self.kit: Any = self.stack.enter_context(shardkit.connect(map_of(ports)))
        self.search = self.kit.search(
            "search",
            component="search",
            parts=self.shards,
            fields={"title": 3.0, "text": 1.0},
            attributes={"kind": "text", "updated": "number", "size": "number"},
            analyzer=Analyzer(stop_words=frozenset()),
            statistics_ttl=STATISTICS_TTL,
            **self._options,
        )

    def index(self, corpus: Sequence[Passage]) -> None:
        """Index all documents."""
        self.search.index_many(
            (
                p.id,
                {"title": p.title, "text": p.text},
                {"kind": p.kind, "updated": p.updated, "size": p.size},
            )
            for p in corpus
        )

    def ask(self, query: Query, **options: Any) -> Found:
        """Ask all shards at once."""
        found = self.search.search(query_text(query), **options)
        return found.total, [hit.id for hit in found]

    def memory(self) -> int:
        """Return what the servers' memory grew by."""
        return sum(map(settled, self._clients)) - self._empty


def query_text(query: Query) -> str:
    """Return a query in shardkit's language."""
    return _OURS[query.kind](query.words)


_OURS: Final = _SQLITE | {"either": " +".join, "without": " -".join}

# ---- servers

QUIET: Final[dict[str, Setting]] = {"save": "", "appendonly": False}


def binary() -> Path:
    """Return the server that all use: the system's, which the module is for, if there is one."""
    found = shutil.which("redis-server")
    return Path(found) if found else Path(find_server())


def served(
    stack: ExitStack, config: dict[str, Setting] | None = None
) -> tuple[LocalServer, redis.Redis]:
    """Start a server; return it and a client."""
    server = stack.enter_context(LocalServer(binary=binary(), config={**QUIET, **(config or {})}))
    return server, stack.enter_context(server.client())


def client_of(port: int) -> redis.Redis:
    return redis.Redis(port=port, protocol=2)


def map_of(ports: Sequence[int]) -> ShardMap:
    """Return a map of a component ``search``, a shard a server."""
    entries = "".join(f"      - {{port: {port}}}\n" for port in ports)
    return ShardMap.parse(f"components:\n  search:\n    shards:\n{entries}")


def settled(client: redis.Redis) -> int:
    """Return a server's ``used_memory`` once it does not change any more."""
    last = -1
    for _ in range(100):
        used = int(client.info("memory")["used_memory"])
        if abs(used - last) < 4096:
            break
        last = used
        time.sleep(0.05)
    return last


def _processor(client: redis.Redis) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def counted_shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count} shards"


def version_of(server: Path) -> str:
    """Return a server's name and version."""
    with LocalServer(binary=server) as running, running.client() as client:
        info = client.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"
