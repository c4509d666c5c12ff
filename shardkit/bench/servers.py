"""The servers that benchmarks run on: fresh ones of a binary, or the user's own, if it is empty.

Memory is what ``used_memory`` grew by, when whoever loaded has left and tables have settled: a
table that grows is held twice until its entries are moved, one at each look into it, so it is
looked into until that is over::

    used_memory ─► load ─► close ─► settle ─► used_memory
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import redis

import shardkit
from shardkit.config.shard_map import ShardMap
from shardkit.errors import ShardKitError
from shardkit.kit import ShardKit
from shardkit.local import LocalServer, Setting
from shardkit.operations.operation import pages

COMPONENT: Final = "bench"
# Of every key, in a tag or not, so that what was made can be found and removed.
PREFIX: Final = "bench:"

T = TypeVar("T")

# What a server notes down for people who watch it would be weighed as well.
_QUIET: Final[Mapping[str, Setting]] = {"latency-tracking": False, "slowlog-max-len": 0}
_STEP = 0.05  # seconds between two looks
_DATABASE: Final = re.compile(r"db\d+")
_PATIENCE: Final = 30.0  # seconds until other connections are closed
_LOOKS: Final = 10_000  # into a table, by one command
_LENGTHS: Final = {"HMGET": "HLEN", "SMISMEMBER": "SCARD", "ZMSCORE": "ZCARD"}
# What measuring itself sends.
_OWN_COMMANDS: Final = ("cmdstat_info", "cmdstat_config", "cmdstat_ping", "cmdstat_client")


class NotEmptyError(ShardKitError):
    """A server that is to be measured on holds data."""


@dataclass(frozen=True)
class Software:
    """What a server is.

    Attributes:
        name: ``valkey 9.1.2``.
        allocator: ``jemalloc-5.3.0``.
    """

    name: str
    allocator: str

    def __str__(self) -> str:
        return f"{self.name}, {self.allocator}"


class BenchServer:
    """A server that holds nothing but what is being measured.

    Args:
        fields: an entry's fields.

    Attributes:
        client: a client of it, which waits a minute.
        kit: a kit whose component ``bench`` is the server; opened when it is first used.
        software: what it is.

    Raises:
        NotEmptyError: it holds data.
        ShardKitError: it cannot be measured on.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = {"socket_timeout": 60, **fields}
        self._text = json.dumps({"components": {COMPONENT: {"entry": self._fields}}})
        self._kit: ShardKit | None = None
        with shardkit.connect(ShardMap.parse(self._text)) as kit:
            client = kit.client(COMPONENT)
            if not isinstance(client, redis.Redis):
                raise ShardKitError("a cluster cannot be measured", "name one server")
            info: Any = client.info()
        held = {name: each["keys"] for name, each in info.items() if _DATABASE.fullmatch(name)}
        if held:
            what = ", ".join(f"{name}: {keys:,} keys" for name, keys in held.items())
            raise NotEmptyError(
                f"the server holds data ({what})", "name an empty one, or use embedded servers"
            )
        name = "valkey" if "valkey_version" in info else "redis"
        self.software = Software(f"{name} {info[f'{name}_version']}", info["mem_allocator"])
        self._empty = self.used()

    @property
    def kit(self) -> ShardKit:
        """The kit."""
        if self._kit is None:
            self._kit = shardkit.connect(ShardMap.parse(self._text))
        return self._kit

    @property
    def client(self) -> redis.Redis:
        """The kit's client."""
        client = self.kit.client(COMPONENT)
        assert isinstance(client, redis.Redis)
        return client

    def close(self) -> None:
        """Close all connections; what is used afterwards opens new ones."""
        if self._kit is not None:
            self._kit.close()
            self._kit = None

    def used(self) -> int:
        """Return the memory that is used when nobody else is connected and it no longer changes."""
        self.close()
        deadline = time.monotonic() + _PATIENCE
        with shardkit.connect(ShardMap.parse(self._text)) as kit:
            client = kit.client(COMPONENT)
            before, same = -1, 0
            while same < 3:
                info: Any = client.info()
                if info["connected_clients"] > 1 and time.monotonic() > deadline:
                    raise ShardKitError(
                        "the server has other clients, whose memory would be measured as well",
                        "let nobody else use it meanwhile",
                    )
                alone = info["connected_clients"] == 1
                same = same + 1 if alone and info["used_memory"] == before else 0
                before = info["used_memory"]
                time.sleep(_STEP)
        return before

    def weight(self, probe: tuple[str, str] | None = None) -> int:
        """Return what was added since the server was empty, in bytes.

        Args:
            probe: a command and the key of a large table that it looks into: ("HMGET", key).
        """
        self._settle(probe)
        return self.used() - self._empty

    def _settle(self, probe: tuple[str, str] | None) -> None:
        """Look into the table of keys, and another one, until they have moved all their entries."""
        client: Any = self.client
        nothing = ["?"] * _LOOKS
        for _ in range(0, 2 * client.dbsize(), _LOOKS):
            client.execute_command("EXISTS", *nothing)
        if probe is not None:
            command, key = probe
            for _ in range(0, 2 * client.execute_command(_LENGTHS[command], key), _LOOKS):
                client.execute_command(command, key, *nothing)

    def timed(self, calls: Callable[[], T], operations: int) -> tuple[float, float]:
        """Return how many microseconds an operation takes: here, and of the server's time.

        Args:
            calls: does the operations.
            operations: how many these are.
        """
        client = self.client
        client.config_resetstat()
        began = time.perf_counter()
        calls()
        taken = time.perf_counter() - began
        stats: Any = client.info("commandstats")
        served = sum(
            each["usec"] for name, each in stats.items() if not name.startswith(_OWN_COMMANDS)
        )
        return taken / operations * 1e6, served / operations

    def remove(self) -> None:
        """Remove everything that benchmarks make."""
        for pattern in (f"{PREFIX}*", f"{{{PREFIX}*"):
            for page in pages(self.client.scan_iter(match=pattern, count=1000), 1000):
                self.client.unlink(*page)
        self.close()

    @contextmanager
    def limits(self, settings: Mapping[str, int]) -> Iterator[None]:
        """Set limits as far as the server knows them, and restore them however this ends."""
        known: Any = {n: v for name in settings for n, v in self.client.config_get(name).items()}
        try:
            for name in known.keys() & settings.keys():
                self.client.config_set(name, settings[name])
            yield
        finally:
            for name in known.keys() & settings.keys():
                self.client.config_set(name, known[name])


class ServerSource:
    """Where sites come from.

    Args:
        binary: the server binary; None finds the embedded one.
        url: the user's own server instead, which must be empty.
    """

    def __init__(self, binary: str | None = None, url: str | None = None) -> None:
        self._binary = binary
        self._url = url

    @contextmanager
    def site(self) -> Iterator[BenchServer]:
        """Give an empty server: a fresh one, or the user's own, from which all is removed again.

        Raises:
            LocalServerError: it cannot be started.
            NotEmptyError: the user's own server holds data.
        """
        if self._url is None:
            with LocalServer(binary=self._binary, config=_QUIET) as server:
                site = BenchServer(dict(server.entry.fields))
                try:
                    yield site
                finally:
                    site.close()
            return
        site = BenchServer({"url": self._url})
        try:
            yield site
        finally:
            site.remove()

    @property
    def shared(self) -> bool:
        """Whether all sites are one server, so that only one may be in use."""
        return self._url is not None

    def software(self) -> Software:
        """Return what the servers are."""
        with self.site() as site:
            return site.software
