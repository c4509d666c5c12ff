"""The journal of a move, and the lease on it, on the config server.

::

    config:growth:move:a.internal:6379    {"format": 1, "phase": "promoted", …}
    config:growth:lease                   who works on a move just now, for ten seconds at a time

Each phase is written before what follows it is done, so that a move is resumed from anywhere after
a kill at any point: each step first looks whether it was done already.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from socket import gethostname
from typing import Any

import redis

from shardkit.errors import ConfigError, NewerFormatError
from shardkit.growth.relocation import ServerAddress
from shardkit.growth.servers import GrowthError

FORMAT = 1
LEASE = 10.0  # seconds
_LEASE_KEY = "config:growth:lease"
_MOVE_KEY = "config:growth:move:"
_RENEW = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0"""

PHASES = ("begun", "attached", "promoted", "pushed", "done", "aborted")


@dataclass
class ServerMove:
    """A move of all that a server holds to another one.

    Attributes:
        source: the server that is left, ``host:port``.
        target: the server that takes its place.
        phase: ``begun``, ``attached`` (the copy is complete), ``promoted`` (the target takes the
            writes), ``pushed`` (entries name it), ``done`` or ``aborted``.
        kept: whether the source stays as a replica that entries name.
        held: for how long writers were held at most, in seconds; None before.
        epoch: `config:epoch` after the push.
        keys: how many keys the source had when it began, by database.
        others: the source's other replicas.
        certificate: what the last verification found.
    """

    source: str
    target: str
    phase: str = "begun"
    kept: bool = False
    held: float | None = None
    epoch: int = 0
    keys: dict[str, int] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    certificate: dict[str, Any] | None = None

    @property
    def source_address(self) -> ServerAddress:
        """The server that is left."""
        return ServerAddress.parse(self.source)

    @property
    def target_address(self) -> ServerAddress:
        """The server that takes its place."""
        return ServerAddress.parse(self.target)


def write(config: redis.Redis, move: ServerMove) -> None:
    """Write a move as it is now."""
    config.set(f"{_MOVE_KEY}{move.source}", json.dumps({"format": FORMAT, **asdict(move)}))


def read(config: redis.Redis, source: str) -> ServerMove:
    """Read the move of a server.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    text = config.get(f"{_MOVE_KEY}{source}")
    if text is None:
        raise ConfigError(f"there is no move of {source}", "see: shardkit move status")
    return _parsed(text, source)


def read_all(config: redis.Redis) -> list[ServerMove]:
    """Read all moves that were not forgotten."""
    found = []
    for key in sorted(config.scan_iter(match=f"{_MOVE_KEY}*", count=1000)):
        name = key.decode() if isinstance(key, bytes) else key
        text = config.get(key)
        if text is not None:
            found.append(_parsed(text, name.removeprefix(_MOVE_KEY)))
    return found


def _parsed(text: Any, source: str) -> ServerMove:
    try:
        stored = json.loads(text)
        if stored["format"] > FORMAT:
            raise NewerFormatError(
                f"the move of {source} is of format {stored['format']}",
                "use the release that began it",
            )
        known = {each.name for each in fields(ServerMove)}
        move = ServerMove(**{name: value for name, value in stored.items() if name in known})
        if move.phase not in PHASES:
            raise ValueError
        ServerAddress.parse(move.target)
        return move
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{_MOVE_KEY}{source} holds no move", "look at it; delete it if nothing is moved"
        ) from None


@contextmanager
def lease(config: redis.Redis) -> Iterator[None]:
    """Hold the right to work on moves and failovers; one process has it at a time.

    Raises:
        GrowthError: another one has it; names it.
    """
    token = f"{gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
    milliseconds = round(1000 * LEASE)
    if not config.set(_LEASE_KEY, token, nx=True, px=milliseconds):
        holder = config.get(_LEASE_KEY) or b"another process"
        name = holder.decode(errors="replace") if isinstance(holder, bytes) else str(holder)
        raise GrowthError(
            f"{name.rpartition('/')[0] or name} is at work on a move or failover",
            f"wait for it; if it was killed, its lease ends within {LEASE:g} s",
        )
    end = threading.Event()

    def renew() -> None:
        while not end.wait(LEASE / 4):
            try:
                config.eval(_RENEW, 1, _LEASE_KEY, token, milliseconds)
            except redis.RedisError:
                continue

    renewing = threading.Thread(target=renew, name="shardkit-lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        end.set()
        renewing.join()
        config.eval(_RELEASE, 1, _LEASE_KEY, token)
