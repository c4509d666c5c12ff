"""The journal of a move, and the lease on it, on the config server.

::

    config:growth:move:a.internal:6379    {"format": 1, "copying": "replication", "phase": …}
    config:growth:move:timelines:3        of a move of shards, by the first of them
    config:growth:lease                   the process at work, for ten seconds at a time

Each phase is written before the next step starts, and each step first checks whether it was already
done. So a move can be resumed from any machine after a kill at any point. A process that was
stopped for longer than the lease writes nothing here and pushes no entries (`Lease`): another
process may have continued the move, and even moved everything back.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from socket import gethostname
from typing import Any

import redis

from shardkit.admin.growth.relocation import ServerAddress
from shardkit.admin.growth.servers import GrowthError
from shardkit.errors import ConfigError, InvalidArgumentError, NewerFormatError

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
_WRITE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1"""

REPLICATION, KEYS = "replication", "keys"
"""The two ways of copying: a whole server by replication, databases key by key."""
PHASES = {
    REPLICATION: ("begun", "attached", "promoted", "pushed", "done", "aborted"),
    KEYS: ("begun", "fenced", "pushed", "done", "aborted"),
}


@dataclass
class Move:
    """A move of data to another server, as the journal has it.

    Attributes:
        name: the server that is left, ``host:port``; of a move of shards, the first of them.
        copying: ``replication`` for a whole server, ``keys`` for shards.
        source: the server that is left, ``host:port``.
        target: the server that takes over.
        shards: the shards that move, as ``timelines:3``.
        databases: of a move of shards, their databases, which have the same numbers on both sides.
        id: identifies this move alone.
        phase: ``begun``; ``attached`` (the replica is filled) and ``promoted`` (the target takes
            writes), or ``fenced`` (the source is closed, the target has everything); ``pushed``
            (entries name the target); ``done`` or ``aborted``.
        keys: the number of keys of the source at the start, by database.
        held: the longest time that writers were held, in seconds; None before.
        epoch: `config:epoch` after the push.
        certificate: the result of the last comparison.
        others: the source's other replicas.
        followed: whether the target followed the source before the move of a server; None before
            it is known. An abort leaves such a replica as it was.
        notifications: the source's ``notify-keyspace-events`` before the move.
        fences: the target's fences before the move, by database; from earlier moves away from it.
        decided: when the source was closed for good, by its clock, in seconds; 0 if not known.
        copied: the bytes that were copied, as DUMP packs them.
        seconds: how long the copy took, without the hold.
    """

    name: str
    copying: str
    source: str
    target: str
    shards: list[str]
    databases: list[int] = field(default_factory=list)
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    phase: str = "begun"
    keys: dict[str, int] = field(default_factory=dict)
    held: float | None = None
    epoch: int = 0
    certificate: dict[str, Any] | None = None
    others: list[str] = field(default_factory=list)
    followed: bool | None = None
    notifications: str | None = None
    fences: dict[str, str] = field(default_factory=dict)
    decided: int = 0
    copied: int = 0
    seconds: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase in ("done", "aborted")

    @property
    def total(self) -> int:
        """The number of keys of the source at the start."""
        return sum(self.keys.values())


def read(config: redis.Redis, name: str) -> Move:
    """Read the move of a server or of a shard, even if the shard moves together with others.

    A move in progress comes first.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    names = [name]
    with suppress(InvalidArgumentError):
        names.append(str(ServerAddress.parse(name)))
    matches = [
        move
        for move in read_all(config)
        if move.name in names or (move.copying == KEYS and name in move.shards)
    ]
    if not matches:
        raise ConfigError(f"{name} has no move", "see: shardkit move status")
    return min(matches, key=lambda move: (move.is_over, move.name not in names))


def read_all(config: redis.Redis) -> list[Move]:
    """Read all moves."""
    moves = []
    for key in sorted(config.scan_iter(match=f"{_MOVE_KEY}*", count=1000)):
        text = config.get(key)
        if text is not None:
            moves.append(_parsed(text, key.decode() if isinstance(key, bytes) else key))
    return moves


def _parsed(text: Any, key: str) -> Move:
    try:
        stored = json.loads(text)
        if stored["format"] > FORMAT:
            raise NewerFormatError(
                f"{key} has format {stored['format']}", "use the release that started the move"
            )
        known = {each.name for each in fields(Move)}
        move = Move(**{name: value for name, value in stored.items() if name in known})
        if move.phase not in PHASES[move.copying]:
            raise ValueError
        ServerAddress.parse(move.target)
        return move
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{key} does not describe a move", "check it, and delete it if nothing is being moved"
        ) from None


class Lease:
    """The right to work on moves and failovers, for as long as this process renews it."""

    def __init__(self, config: redis.Redis, token: str) -> None:
        self.config = config
        self._token = token

    def check(self) -> None:
        """Check that this process still has the lease, before a step that cannot depend on it.

        Raises:
            GrowthError: the lease has ended; another process may be at work.
        """
        holder = self.config.get(_LEASE_KEY)
        if (
            holder.decode(errors="replace") if isinstance(holder, bytes) else holder
        ) != self._token:
            raise self._ended()

    def write(self, move: Move) -> None:
        """Write a move as it is now.

        Raises:
            GrowthError: as `check`; nothing was written.
        """
        text = json.dumps({"format": FORMAT, **asdict(move)})
        key = f"{_MOVE_KEY}{move.name}"
        if not self.config.eval(_WRITE, 2, _LEASE_KEY, key, self._token, text):
            raise self._ended()

    def renew(self) -> None:
        """Extend the lease to its full time from now."""
        self.config.eval(_RENEW, 1, _LEASE_KEY, self._token, round(1000 * LEASE))

    @staticmethod
    def _ended() -> GrowthError:
        return GrowthError(
            f"the lease ended: this process was stopped, or the config server was away, for longer "
            f"than {LEASE:g} s. Another process may have taken over",
            "see: shardkit move status; if none has, resume",
        )


@contextmanager
def lease(config: redis.Redis) -> Iterator[Lease]:
    """Hold the right to work on moves and failovers; one process has it at a time.

    Raises:
        GrowthError: another process has it; the error names that process.
    """
    token = f"{gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
    if not config.set(_LEASE_KEY, token, nx=True, px=round(1000 * LEASE)):
        holder = config.get(_LEASE_KEY) or b"another process"
        name = holder.decode(errors="replace") if isinstance(holder, bytes) else str(holder)
        raise GrowthError(
            f"{name.rpartition('/')[0] or name} is working on a move or failover",
            f"wait for it; if it was killed, its lease ends within {LEASE:g} s",
        )
    held, end = Lease(config, token), threading.Event()

    def renew() -> None:
        while not end.wait(LEASE / 4):
            with suppress(redis.RedisError):
                held.renew()

    renewing = threading.Thread(target=renew, name="shardkit-lease", daemon=True)
    renewing.start()
    try:
        yield held
    finally:
        end.set()
        renewing.join()
        config.eval(_RELEASE, 1, _LEASE_KEY, token)


def write_verified(config: redis.Redis, before: Move, after: Move) -> None:
    """Write the result of a verification.

    Nothing is written if another process is at work, or the move has changed since it was read.
    """
    with suppress(GrowthError), lease(config) as held:
        if before in read_all(config):
            held.write(after)
