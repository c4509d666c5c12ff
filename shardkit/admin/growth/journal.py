"""The journal of a move, and the lease on it, on the config server.

::

    config:growth:move:a.internal:6379    {"format": 1, "phase": "promoted", …}
    config:growth:shards:timelines:3      the same of a move of some shards, by the first of them
    config:growth:lease                   who works on a move just now, for ten seconds at a time

Each phase is written before what follows it is done, so that a move is resumed from anywhere after
a kill at any point: each step first looks whether it was done already. Who was stopped for longer
than the lease writes nothing here any more, and pushes no entries (`Lease`): somebody else may have
carried on, and even moved everything back.
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
from typing import Any, TypeVar

import redis

from shardkit.admin.growth.relocation import ServerAddress
from shardkit.admin.growth.servers import GrowthError
from shardkit.errors import ConfigError, NewerFormatError

FORMAT = 1
LEASE = 10.0  # seconds
_LEASE_KEY = "config:growth:lease"
_MOVE_KEY = "config:growth:move:"
_SHARDS_KEY = "config:growth:shards:"
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


SHARD_PHASES = ("begun", "fenced", "pushed", "done", "aborted")


@dataclass
class ShardMove:
    """A move of some of a server's databases, with the shards in them, to another server.

    Attributes:
        name: the first of the shards.
        id: of this move alone.
        shards: all of them, as ``timelines:3``.
        source: the server that they leave, ``host:port``.
        target: the server that takes them.
        databases: their databases, which have the same numbers on both.
        phase: ``begun``, ``fenced`` (the source is closed, the target has all), ``pushed`` (entries
            name the target), ``done`` or ``aborted``.
        notifications: what the source had as ``notify-keyspace-events``.
        fences: what the target had as fences, by database; from moves away from there.
        held: for how long clients were held at most, in seconds; None before.
        decided: when it was closed for good, by the source's clock, in seconds; 0 if not known.
        epoch: `config:epoch` after the push.
        keys: how many keys the source had when it began.
        copied: how many bytes were copied, as DUMP packs them.
        seconds: how long the copy took, without the hold.
        certificate: what the verification found.
    """

    name: str
    id: str
    shards: list[str]
    source: str
    target: str
    databases: list[int]
    phase: str = "begun"
    notifications: str | None = None
    fences: dict[str, str] = field(default_factory=dict)
    held: float | None = None
    decided: int = 0
    epoch: int = 0
    keys: int = 0
    copied: int = 0
    seconds: float = 0.0
    certificate: dict[str, Any] | None = None


def read(config: redis.Redis, source: str) -> ServerMove:
    """Read the move of a server.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    text = config.get(f"{_MOVE_KEY}{source}")
    if text is None:
        raise ConfigError(f"there is no move of {source}", "see: shardkit move status")
    return _parsed(text, ServerMove, f"{_MOVE_KEY}{source}", PHASES)


def read_all(config: redis.Redis) -> list[ServerMove]:
    """Read all moves of servers that were not forgotten."""
    return [_parsed(text, ServerMove, key, PHASES) for key, text in _all(config, f"{_MOVE_KEY}*")]


def read_shards(config: redis.Redis, shard: str) -> ShardMove:
    """Read the move of a shard, whichever of those that were moved together.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    found = [move for move in read_all_shards(config) if shard in (move.name, *move.shards)]
    if not found:
        raise ConfigError(f"there is no move of {shard}", "see: shardkit move status")
    running = [move for move in found if move.phase not in ("done", "aborted")]
    by_name = [move for move in found if move.name == shard]
    return (running or by_name or found)[0]


def read_all_shards(config: redis.Redis) -> list[ShardMove]:
    """Read all moves of shards that were not forgotten."""
    return [
        _parsed(text, ShardMove, key, SHARD_PHASES) for key, text in _all(config, f"{_SHARDS_KEY}*")
    ]


def _all(config: redis.Redis, pattern: str) -> Iterator[tuple[str, Any]]:
    for key in sorted(config.scan_iter(match=pattern, count=1000)):
        text = config.get(key)
        if text is not None:
            yield key.decode() if isinstance(key, bytes) else key, text


_Move = TypeVar("_Move", ServerMove, ShardMove)


def _parsed(text: Any, kind: type[_Move], key: str, phases: tuple[str, ...]) -> _Move:
    try:
        stored = json.loads(text)
        if stored["format"] > FORMAT:
            raise NewerFormatError(
                f"{key} is of format {stored['format']}", "use the release that began it"
            )
        known = {each.name for each in fields(kind)}
        move = kind(**{name: value for name, value in stored.items() if name in known})
        if move.phase not in phases:
            raise ValueError
        ServerAddress.parse(move.target)
        return move
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{key} holds no move", "look at it; delete it if nothing is moved"
        ) from None


class Lease:
    """The right to work on moves and failovers, for as long as this process renews it.

    Attributes:
        config: a client of the config server.
    """

    def __init__(self, config: redis.Redis, token: str) -> None:
        self.config = config
        self._token = token

    def check(self) -> None:
        """Look whether this process still has it, before something that cannot be bound to it.

        Raises:
            GrowthError: it has ended; somebody else may be at work.
        """
        holder = self.config.get(_LEASE_KEY)
        if (
            holder.decode(errors="replace") if isinstance(holder, bytes) else holder
        ) != self._token:
            raise self._ended()

    def write(self, move: ServerMove | ShardMove) -> None:
        """Write a move as it is now.

        Raises:
            GrowthError: as `check`; nothing was written.
        """
        if isinstance(move, ShardMove):
            key = f"{_SHARDS_KEY}{move.name}"
        else:
            key = f"{_MOVE_KEY}{move.source}"
        text = json.dumps({"format": FORMAT, **asdict(move)})
        if not self.config.eval(_WRITE, 2, _LEASE_KEY, key, self._token, text):
            raise self._ended()

    def renew(self) -> None:
        """Have it last from now on."""
        self.config.eval(_RENEW, 1, _LEASE_KEY, self._token, round(1000 * LEASE))

    def release(self) -> None:
        """Let others have it."""
        self.config.eval(_RELEASE, 1, _LEASE_KEY, self._token)

    @staticmethod
    def _ended() -> GrowthError:
        return GrowthError(
            f"this process was stopped for longer than {LEASE:g} s, or the config server was away "
            "for so long: another process may have taken over",
            "see: shardkit move status; if it has not, resume",
        )


@contextmanager
def lease(config: redis.Redis) -> Iterator[Lease]:
    """Hold the right to work on moves and failovers; one process has it at a time.

    Raises:
        GrowthError: another one has it; names it.
    """
    token = f"{gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
    if not config.set(_LEASE_KEY, token, nx=True, px=round(1000 * LEASE)):
        holder = config.get(_LEASE_KEY) or b"another process"
        name = holder.decode(errors="replace") if isinstance(holder, bytes) else str(holder)
        raise GrowthError(
            f"{name.rpartition('/')[0] or name} is at work on a move or failover",
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
        held.release()


def write_verified(config: redis.Redis, before: _Move, after: _Move) -> None:
    """Write what a verification found.

    Nothing is written if somebody is at work, or the move is another one than when it was read.
    """
    with suppress(GrowthError), lease(config) as held:
        if before in (*read_all(config), *read_all_shards(config)):
            held.write(after)
