"""New servers to measure on.

Memory is the growth of ``used_memory``, measured without other connections and after rehashing.
While a hash table grows, it exists twice, and each look-up moves one of its entries; so keys are
looked up until all entries have moved.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import redis

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

    Raises:
        ShardKitError: it is not empty, or cannot be used for measuring.
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
        held = {name: each["keys"] for name, each in info.items() if _DATABASE.fullmatch(name)}
        if held:
            what = ", ".join(f"{name}: {keys:,} keys" for name, keys in held.items())
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
    """Provides empty servers.

    Args:
        binary: the server binary; None finds the embedded one.
        exact: see `BenchServer`.
    """

    shared = False  # whether there is only one server, which only one layout can use at a time

    def __init__(self, binary: str | None = None, exact: bool = True) -> None:
        self._binary, self._exact = binary, exact

    @contextmanager
    def empty_server(self) -> Iterator[BenchServer]:
        """Provide a new server.

        Raises:
            LocalServerError: it cannot be started.
        """
        with LocalServer(binary=self._binary, config=_QUIET) as local:
            server = BenchServer(dict(local.entry.fields), self._exact)
            try:
                yield server
            finally:
                server.close()
