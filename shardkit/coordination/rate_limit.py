"""Rate limits by key, counted by the servers.

Two algorithms, each one script on the server of the key, by its clock. ``gcra`` promises an even
rate, with bursts of at most ``burst``, and stores one number for a key, about 80 bytes.
``sliding_window`` promises at most ``limit`` in any ``per`` seconds, exactly, and stores one entry
a call, about 40 bytes: after ``limit`` at once, users get none for ``per`` seconds.

With GCRA up to ``burst + limit`` hits can come within ``per`` seconds: a burst, and those earned in
that time. Refused hits are not counted, so a client that tries too often is not locked out.

GCRA is ITU-T I.371's, stored as one time, as in throttled and redis-cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import NamedTuple

from shardkit.coordination.keys import MICROSECONDS, microseconds
from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.operations.arguments import Seconds, in_seconds, shown
from shardkit.operations.commands import Argument, Command, Key, Pause, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import check_integer, check_name, wait_seconds
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.server_clock import ServerClock

GCRA = "gcra"
SLIDING_WINDOW = "sliding_window"
ALGORITHMS = (GCRA, SLIDING_WINDOW)
MOST = 1_000_000
MOST_IN_WINDOW = 100_000  # entries that one script may have to remove
LONGEST = 31 * 86_400.0
SHORTEST_INTERVAL = 10.0  # microseconds
AT_ONCE = 1000


class RateDecision(NamedTuple):
    """The decision of a rate limit about one key; true if the hits were allowed.

    Attributes:
        allowed: whether the hits were allowed, and counted.
        remaining: the number of further hits that are allowed now.
        retry_after: the seconds until these hits are allowed, if no others come; infinite if there
            are too many for one call.
        reset_after: the seconds until the full burst or limit is available again.
    """

    allowed: bool
    remaining: int
    retry_after: float
    reset_after: float

    def __bool__(self) -> bool:
        return self.allowed


class RateLimit(Structure[Face]):
    """A rate limit for any number of keys. Made by ``kit.rate_limit``.

    Args:
        component: where it lives; each key on its shard.
        limit: the most hits in ``per`` seconds, 1 to 1,000,000; in a sliding window, to 100,000.
        per: the seconds; at most 31 days.
        burst: ``gcra``: the most hits at once; by default the limit.
        algorithm: ``gcra`` or ``sliding_window``.
    """

    deferred: DeferredFace[RateLimit[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        *,
        limit: int,
        per: Seconds = 1.0,
        burst: int | None = None,
        algorithm: str = GCRA,
        clock: ServerClock | None = None,
    ) -> None:
        check_name(name)
        super().__init__(driver, component, name)
        if algorithm not in ALGORITHMS:
            raise InvalidArgumentError(
                f"{name}: algorithm={shown(algorithm)}", f"give one of {', '.join(ALGORITHMS)}"
            )
        per = in_seconds(per)
        window = microseconds(name, "per", per, 0.001, LONGEST)
        check_integer(name, "limit", limit, 1, MOST if algorithm == GCRA else MOST_IN_WINDOW)
        if burst is not None:
            check_integer(name, "burst", burst, 1, MOST)
            if algorithm != GCRA:
                raise InvalidArgumentError(
                    f"{name}: burst={burst} with a sliding window",
                    "leave the burst out",
                )
        if algorithm == GCRA and window / limit < SHORTEST_INTERVAL:
            raise InvalidArgumentError(
                f"{name}: {limit:,} in {per} seconds",
                "give at most 100,000 a second for one key, or spread it over several keys",
            )
        self.limit = limit
        self.per: float = per
        self.burst = burst or limit
        self.algorithm = algorithm
        self._script = script(f"coordination/{algorithm}")
        self._interval = f"{window / limit:.6f}" if algorithm == GCRA else f"{window}"
        self._monotonic = (clock or ServerClock()).monotonic

    @operation
    def hit(self, key: Key, hits: int = 1) -> Operation[RateDecision]:
        """Count hits of a key if they are allowed, all or none.

        Raises:
            ParameterMismatchError: the other algorithm has counted hits of the key.
            ShardErrors: the server failed; the hits may have been counted.

        Cost: one exchange; O(1), in a sliding window O(log n) for n entries and each that expires.
        """
        [reply] = yield [self._command(key, hits)]
        return self._decision(key, reply)

    @operation
    def hit_many(self, keys: Iterable[Key | tuple[Key, int]]) -> Operation[list[RateDecision]]:
        """Count hits of many keys, each if it is allowed; return the decisions, see `hit`.

        Args:
            keys: keys, or pairs of a key and a number of hits. A key may come several times.

        Cost: one exchange with each server concerned for each 1,000 keys.
        """
        decisions: list[RateDecision] = []
        for page in pages(keys, AT_ONCE):
            pairs = [entry if isinstance(entry, tuple) else (entry, 1) for entry in page]
            for pair in pairs:
                if len(pair) != 2:
                    raise InvalidArgumentError(
                        f"{self.name}: {shown(pair)} is not a pair",
                        "give keys, or pairs of a key and hits",
                    )
            replies = yield [self._command(key, hits) for key, hits in pairs]
            for (key, _), reply in zip(pairs, replies, strict=True):
                decisions.append(self._decision(key, reply))
        return decisions

    @operation
    def peek(self, key: Key, hits: int = 1) -> Operation[RateDecision]:
        """Return whether hits would be allowed, without counting them; see `hit`."""
        self._check_hits(hits)
        [reply] = yield [self._call(key)]
        now = self._decision(key, reply)
        if hits <= now.remaining:
            return now
        if self.algorithm == GCRA and hits <= self.burst:
            per_hit = float(self._interval) / MICROSECONDS
            wait = max(0.0, now.reset_after - (self.burst - hits) * per_hit)
        else:  # an upper bound: when the window is empty
            wait = now.reset_after if hits <= self.burst else float("inf")
        return now._replace(allowed=False, retry_after=wait)

    @operation
    def wait(self, key: Key, hits: int = 1, *, timeout: Seconds | None = None) -> Operation[bool]:
        """Wait until hits are allowed, and count them.

        Waiters do not queue: chance decides which is served.

        Args:
            timeout: the most seconds to wait; None for ever.

        Returns:
            Whether they were allowed in time; False at once if that is impossible.

        Cost: one exchange for each attempt.
        """
        until = self._monotonic() + wait_seconds(self.name, timeout)
        while True:
            decision = yield from RateLimit.hit.steps(self, key, hits)
            if decision.allowed:
                return True
            after = decision.retry_after
            if after == float("inf") or self._monotonic() + after > until:
                return False
            yield Pause(decision.retry_after)

    @operation
    def reset(self, *keys: Key) -> Operation[int]:
        """Remove keys' hits; return how many keys had any. One exchange with each server."""
        names = [self._key(key) for key in keys]
        removed = yield [self._at(name, "DEL", name) for name in names]
        return sum(removed)

    @stream
    def check(self, key: Key) -> Stream[Damage]:
        """Return a key's damage. Cost: one exchange; in a window one more for 1,000 entries."""
        yield from check_reads(partial(RateLimit.peek.steps, self, key), partial(self._all, key))

    def _all(self, key: Key) -> Operation[None]:
        for start in count(0, AT_ONCE):
            if self.algorithm == GCRA or not (yield [self._call(key, 0, start)])[0]:
                return

    def _key(self, key: Key) -> bytes:
        return b"%b:%b" % (key_bytes(self.name), key_bytes(key))

    def _check_hits(self, hits: int) -> None:
        check_integer(self.name, "hits", hits, 1, MOST)

    def _command(self, key: Key, hits: int) -> Command:
        self._check_hits(hits)
        return self._call(key, hits)

    def _call(self, key: Key, hits: int = 0, *start: int) -> Command:
        args: list[Argument] = [self._interval, self.burst, hits, *start]
        return script_call(
            self.component, self._script, [self._key(key)], args, idempotent=not hits
        )

    def _decision(self, key: Key, reply: list[int] | bytes) -> RateDecision:
        if isinstance(reply, bytes):
            raise ParameterMismatchError(
                f"{self.name}: hits of {shown(key)} were counted by algorithm={reply.decode()!r}",
                "use that algorithm or another name, or remove the hits with reset()",
            )
        allowed, remaining, wait, rest = reply
        retry = float("inf") if wait < 0 else wait / MICROSECONDS
        return RateDecision(bool(allowed), remaining, retry, rest / MICROSECONDS)
