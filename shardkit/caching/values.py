"""Cached values on the servers: who computes one, who waits, and when it is no longer valid.

::

    take ─► hit                                  fresh, or stale while somebody else computes it
        ├─► yours ─ the caller computes ─► put   one at a time; or fail, and the next one does
        └─► wait ─ woken by put or fail ─► take  there is nothing to use meanwhile

A value and the lease to compute it are one HASH, so each step is one script on its server, by that
server's clock. A fresh value without a lease needs no script: two plain commands read it, and how
long its key has left. The holder's process extends the lease while it computes; a killed one's
expires. A removed value takes the lease with it: what was being computed is returned to its caller,
and not stored.

**Early**: the nearer a value's end, the likelier a caller computes it although it is fresh, so one
that is often used never runs out, and callers do not compute it at the same moment. The time is
drawn from an exponential distribution, scaled by how long the value took: Vattani, Chierichetti and
Lowenstein, "Optimal Probabilistic Cache Stampede Prevention", PVLDB 8 (2015).

**Tags**: a tag has a random version on the shard of its name, and a value remembers those of its
tags when its computation began. To invalidate a tag is to delete its version: the next reader makes
another, and no value has that. So nothing stale can be stored after an invalidation, however late,
and a version that a server evicts costs no more than a computation.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

from shardkit.caching.near import NearCopies
from shardkit.coordination.hold import RENEWED_AFTER, RETRIED_AFTER
from shardkit.coordination.holdable import ASKS_AGAIN, FIRST_PAUSE, LONGEST_POLL
from shardkit.errors import (
    ClosedError,
    CoordinationError,
    DamagedDataError,
    ShardErrors,
    ShardKitError,
)
from shardkit.operations.cancellation import Interrupted, surely
from shardkit.operations.commands import Abandon, Argument, AwaitWakeup, Command, Subscribe
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation

LEASE = 10.0  # seconds after which a lease is lost if its process was killed

# What the caller computes now: to wait for one of these would be to wait for itself.
computing: ContextVar[tuple[ComputingLease, ...]] = ContextVar("shardkit_computing", default=())


class ComputingLease:
    """What a caller has that computes a value; renewed like a lock's hold."""

    ttl = LEASE

    def __init__(self, values: CachedValues[Any], key: str, id_: str, tags: bytes) -> None:
        self._values = values
        self.key = key
        self.id = id_
        self.tags = tags  # the versions of the value's tags
        self.released = False
        self.place = (values.component, key)

    def renew(self) -> Operation[float | None]:
        """Extend it; return the seconds until the next time, None at its end."""
        try:
            if not self.released:
                milliseconds = round(1000 * self.ttl)
                [extended] = yield [self._values.update(self.key, self.id, "extend", milliseconds)]
                return self.ttl * RENEWED_AFTER if extended else None
        except ClosedError:
            pass
        except ShardKitError:
            return self.ttl * RETRIED_AFTER
        return None

    def computes(self, values: CachedValues[Any], key: str) -> bool:
        """Whether it is the lease of a value, and not released."""
        same = (self._values._driver, self.place) == (values._driver, (values.component, key))
        return same and not self.released

    def patience(self) -> float:
        """Return the seconds that a renewal may take."""
        return self.ttl / 2


# A stored value or the lease to compute it, and for how many seconds nobody need ask for the value.
CacheRead: TypeAlias = tuple[bytes, ComputingLease | None, float]


class CachedValues(Structure[Face]):
    """The values of a cached function: fresh for ``ttl`` seconds, then used for ``stale`` more."""

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        ttl: float,
        stale: float,
        near: NearCopies | None = None,
    ) -> None:
        super().__init__(driver, component, name)
        self.near = near  # of the values in the process
        self._fresh = max(1, round(1000 * ttl))
        self._lifetime = self._fresh + round(1000 * stale)

    @operation
    def take(self, key: str, tags: Sequence[str], anew: bool = False) -> Operation[CacheRead]:
        """Return a value, or the lease to compute it; wait while somebody else has that.

        ``anew`` says to compute it whatever is stored, and whoever else does.

        Cost: one exchange for a hit; otherwise two, three if a tag was invalidated.
        """
        early = -math.log(1 - random.random())
        if not anew:
            fields = ("format", "lease", "value", "tags", "stale", "took")
            reads = [("HMGET", key, *fields), ("PTTL", key), *(("GET", tag) for tag in tags)]
            batch = [self._at(read[1], *read, idempotent=True) for read in reads]
            if (hit := self._hit((yield batch), early)) is not None:
                return hit
        caller, pause, channel = secrets.token_hex(8), FIRST_PAUSE, ""
        use: tuple[Argument, ...] = ("anew",) if anew else ("any",)
        try:
            while True:
                args = (caller, round(1000 * LEASE), channel, f"{early:.6f}", *use)
                call = self._call("caching/take", key, args)
                (reply, *tag_versions) = yield [call, *map(self._version, tags)]
                versions = b" ".join(tag_versions)
                if reply[0] == b"yours":
                    return b"", ComputingLease(self, key, caller, versions), 0
                if reply[0] == b"hit":
                    if reply[2] == versions:
                        return _read(reply[1], reply[3])
                    use = ("of", versions)
                    continue
                if any(lease.computes(self, key) for lease in computing.get()):
                    raise CoordinationError(
                        f"{key}: the computation of this value needs the value itself",
                        "call the function's __wrapped__ there",
                    )
                if not channel:
                    channel = yield Subscribe(self.component, key)
                    if channel:
                        continue
                longest = min(reply[1] / 1000 + 0.001, ASKS_AGAIN if channel else pause)
                pause = min(LONGEST_POLL, 1.5 * pause)
                yield AwaitWakeup(self.component, key, caller, longest)
                channel = yield Subscribe(self.component, key)
        except (ShardErrors, DamagedDataError, Interrupted):
            yield Abandon(self.update(key, caller, "fail"))
            raise

    @operation
    def end(self, lease: ComputingLease, value: bytes | None, took: float) -> Operation[None]:
        """Store a value unless it was removed, and wake callers; None frees the lease for one.

        Cost: one exchange.
        """
        times = (self._fresh, self._lifetime, round(1000 * took))
        outcome = ("fail",) if value is None else ("put", value, lease.tags, *times)
        yield from self._write([lease.key], [self.update(lease.key, lease.id, *outcome)])

    @operation
    def remove(self, keys: Sequence[str]) -> Operation[None]:
        """Remove values, and keep what is being computed from being stored. Cost: one exchange."""
        yield from self._write(keys, [self.update(key, "", "remove") for key in keys])

    @operation
    def remove_tags(self, tags: Sequence[str]) -> Operation[None]:
        """Invalidate all values that have one of some tags. Cost: one exchange."""
        unlink = [self._at(tag, "UNLINK", tag, idempotent=True) for tag in tags]
        yield from self._write(tags, unlink)

    def _write(self, keys: Sequence[str], batch: list[Command]) -> Operation[None]:
        try:
            yield from surely(batch)
        finally:  # no later call of this process gets a copy of before
            if self.near is not None:
                self.near.forget(map(str.encode, keys))

    def update(self, key: str, lease: str, *args: Argument) -> Command:
        """Return the command that ends or extends a lease."""
        return self._call("caching/settle", key, (lease, *args))

    def _hit(self, replies: Sequence[Any], early: float) -> CacheRead | None:
        """Return a fresh value that nobody computes; of all others, a script decides."""
        [[form, lease, value, tags, stale, took], left, *versions] = replies
        if form != b"1" or lease is not None or None in (value, tags, *versions):
            return None
        try:
            left, took = left - int(stale), int(took)
        except (TypeError, ValueError):  # damaged
            return None
        if tags != b" ".join(versions) or left <= took * early:
            return None
        return _read(value, left - 5 * took)

    def _call(self, name: str, key: str, args: tuple[Argument, ...]) -> Command:
        keys = (key, f"{key}:waiters")
        return lua_call(self.component, name, keys, args, idempotent=True)

    def _version(self, tag: str) -> Command:
        args = (secrets.token_hex(8), self._lifetime + 60_000)
        return lua_call(self.component, "caching/tag", (tag,), args, idempotent=True)


def _read(value: Any, milliseconds: int) -> CacheRead:
    if not isinstance(value, bytes):
        raise TypeError(f"a value is a {type(value).__name__}")
    return value, None, max(0, milliseconds) / 1000
