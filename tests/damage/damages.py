"""Damages what structures store, one thing at a time, and looks at what calls make of it.

A *subject* is a structure with some data and its documented calls. A *case* is one damage to one of
its keys. After each, every call is made on a new object, from the same state. Its outcome is

* ``same``: what it returns on undamaged data;
* ``damage``: a DamagedDataError (or another ShardKitError that says what is wrong);
* ``check``: another result, silently, of damage that `check()` names;
* ``wrong``: another result, silently, of damage that even `check()` does not find: only who wrote
  the data, or a checksum, could tell;
* ``spread``: after a write `check()` names a key that it did not name before the write;
* ``raw``: an error of Python, of redis-py or of the server;
* ``hang``: no answer in time.

``python tests/damage/damages.py`` makes all cases and prints a table; ``make damage`` does that.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import redis
from subjects import SUBJECTS

import shardkit
from shardkit import DamagedDataError, ShardErrors, ShardKit, ShardKitError, ShardMap
from shardkit.local import LocalServers
from shardkit.operations.drivers import AwaitingDriver
from shardkit.operations.operation import Structure

MAP = "components: {data: {entry: {port: 7001}}}"
SECONDS = 5.0  # after which a call hangs


class Case(NamedTuple):
    """A damage to one key."""

    key: bytes
    what: str
    act: Callable[[redis.Redis], Any]


NUMBERS = (b"0", b"1", b"-1", b"3", b"2147483648", b"1000000000000", b"1e3", b"x", b"", b"9" * 30)


def cases(client: redis.Redis, random: Random) -> Iterator[Case]:
    """All damages to what a server holds, a few of each kind for each key."""
    for key in sorted(client.scan_iter()):
        kind = client.type(key).decode()
        yield Case(key, "deleted", lambda c, k=key: c.delete(k))
        other = "set" if kind == "hash" else "hash"
        yield Case(key, f"a {other}", lambda c, k=key, o=other: _retype(c, k, o))
        yield Case(key, "a string", lambda c, k=key: c.set(k, "a string"))
        if kind == "string":
            held = client.get(key)
            if held.isdigit():
                for number in NUMBERS:
                    yield Case(key, f"={number!r}", lambda c, k=key, n=number: c.set(k, n))
                continue
            for cut in {0, 1, len(held) // 2, len(held) - 1}:
                short = held[:cut]
                yield Case(key, f"cut to {cut}", lambda c, k=key, s=short: c.set(k, s))
            yield Case(key, "longer", lambda c, k=key: c.append(k, b"\0x"))
            for at in random.sample(range(8 * len(held)), min(8 * len(held), 6)):
                yield Case(
                    key, f"bit {at}", lambda c, k=key, n=at: c.setbit(k, n, 1 - c.getbit(k, n))
                )
        elif kind == "hash":
            fields = sorted(client.hgetall(key).items())
            whole = (b":meta", b":ends", b":generations", b":state")
            if key.endswith(whole) or b"parts" in dict(fields) or len(fields) <= 6:
                chosen = fields
            else:
                chosen = random.sample(fields, min(2, len(fields)))
            yield Case(key, "further field", lambda c, k=key: c.hset(k, "unheard of", 1))
            for field, value in chosen:
                name = field.decode(errors="replace")
                yield Case(key, f"{name} deleted", lambda c, k=key, f=field: c.hdel(k, f))
                new = list(
                    NUMBERS if value.lstrip(b"-").isdigit() else (b"", b"\xff\0", value[:-1])
                )
                for other in new:
                    if other != value:
                        yield Case(
                            key,
                            f"{name}={other!r}",
                            lambda c, k=key, f=field, v=other: c.hset(k, f, v),
                        )
        elif kind == "set":
            member = random.choice(sorted(client.smembers(key)))
            yield Case(key, "a member lost", lambda c, k=key, m=member: c.srem(k, m))
            yield Case(key, "a member more", lambda c, k=key: c.sadd(k, b"\xff\0"))
            yield Case(key, "a number more", lambda c, k=key: c.sadd(k, 2**62))
        elif kind == "list":
            yield Case(key, "cut", lambda c, k=key: c.lpop(k))
            yield Case(key, "longer", lambda c, k=key: c.rpush(k, "y"))
        elif kind == "zset":
            yield Case(key, "a member lost", lambda c, k=key: c.zpopmin(k))
            yield Case(key, "a member more", lambda c, k=key: c.zadd(k, {b"\xff\0": 7}))
            member = random.choice(sorted(client.zrange(key, 0, -1)))
            for score in ("inf", "-inf", 0, -5, 0.5, 1e17):
                yield Case(
                    key,
                    f"{member.decode(errors='replace')} at {score}",
                    lambda c, k=key, m=member, s=score: c.zadd(k, {m: s}),
                )


def swaps(client: redis.Redis, random: Random) -> Iterator[Case]:
    """Two keys of a structure that changed places, and the loss of half of all keys."""
    keys = sorted(client.scan_iter())
    kinds = {key: (client.type(key), key.rpartition(b":")[0]) for key in keys}
    pairs = [(a, b) for n, a in enumerate(keys) for b in keys[n + 1 :] if kinds[a] == kinds[b]]
    for one, other in random.sample(pairs, min(4, len(pairs))):
        yield Case(one, f"swapped with {other.decode()}", partial(_swap, one=one, other=other))
    for _ in range(4):
        lost = random.sample(keys, len(keys) // 2)
        if lost:
            yield Case(lost[0], "and half of the keys gone", partial(_lose, keys=lost))


def _swap(client: redis.Redis, one: bytes, other: bytes) -> None:
    client.rename(one, "between")
    client.rename(other, one)
    client.rename("between", other)


def _lose(client: redis.Redis, keys: Sequence[bytes]) -> None:
    client.delete(*keys)


def _retype(client: redis.Redis, key: bytes, kind: str) -> None:
    client.delete(key)
    if kind == "set":
        client.sadd(key, "a")
    else:
        client.hset(key, "a", "b")


class Outcome(NamedTuple):
    """What a call made of a damage."""

    subject: str
    key: str
    what: str
    call: str
    result: str
    detail: str


class Waited:
    """A structure of the awaiting face whose calls wait, as those of the blocking face do."""

    def __init__(self, structure: Any, runner: asyncio.Runner) -> None:
        self._structure = structure
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._structure, name)
        if isinstance(found, AwaitingDriver | Structure):
            return Waited(found, self._runner)
        return partial(self._call, found) if callable(found) else found

    def _call(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def collect(stream: Any) -> list[Any]:
            return [value async for value in stream]

        result = call(*args, **options)
        if hasattr(result, "__aiter__"):
            result = collect(result)
        return self._runner.run(result) if inspect.iscoroutine(result) else result


class Driver:
    """Makes cases on a server of its own.

    Args:
        kit: a kit of MAP.
        shard_map: the map, with the ports of the servers.
        runner: runs calls on the awaiting face; None for the blocking one.
        checks: whether to ask `check` what it says of each damage, before and after writes.
    """

    def __init__(
        self,
        kit: ShardKit,
        shard_map: ShardMap,
        runner: asyncio.Runner | None = None,
        checks: bool = False,
    ) -> None:
        self.kit = kit
        self.client: Any = kit.client("data")
        self.runner = runner
        self.checks = checks
        self.awaiting: Any = None
        if runner is not None:
            self.awaiting = runner.run(shardkit.aconnect(shard_map))

    def prepare(self, name: str) -> dict[bytes, bytes]:
        """Fill the server with a subject; return all of it."""
        subject = SUBJECTS[name]
        self.client.flushall()
        subject.fill(subject.open(self.kit))
        return self.snapshot()

    def snapshot(self) -> dict[bytes, bytes]:
        """Return all that is stored."""
        return {key: self.client.dump(key) for key in self.client.scan_iter()}

    def restore(self, stored: dict[bytes, bytes]) -> None:
        """Make the server hold this and nothing else."""
        pipe = self.client.pipeline(transaction=False)
        pipe.flushall()
        for key, value in stored.items():
            pipe.restore(key, 0, value)
        pipe.execute()

    def cases(self, name: str, random: Random) -> list[Case]:
        """Return the damages of what is stored now."""
        return [*cases(self.client, random), *swaps(self.client, random)]

    def call(self, name: str, call: Callable[[Any], Any]) -> Any:
        """Make a call on a new object."""
        if self.runner is None:
            return call(SUBJECTS[name].open(self.kit))
        return call(Waited(SUBJECTS[name].open(self.awaiting), self.runner))

    def named(self, name: str) -> set[str] | None:
        """Return the keys that `check` names as damaged; None if it refuses."""
        try:
            return {damage.key for damage in list(self.call(name, SUBJECTS[name].check))}
        except ShardKitError as error:
            if isinstance(error, ShardErrors):
                raise
            return None

    def tried(
        self, name: str, called: str, call: Callable[[Any], Any], right: dict[str, Any]
    ) -> tuple[str, str]:
        """Make a call; return what came of it, and what it says."""
        begin = time.monotonic()
        result, detail = "same", ""
        try:
            found = self.call(name, call)
            if called in right and found != right[called]:
                result, detail = "wrong", f"{found!r}"[:80]
        except DamagedDataError as error:
            result, detail = "damage", str(error)
        except ShardErrors as error:
            result, detail = "raw", str(error)
        except ShardKitError as error:
            result, detail = "damage", f"{type(error).__name__}: {error}"
        except Exception as error:
            result, detail = "raw", f"{type(error).__name__}: {error}"
        return "hang" if time.monotonic() - begin > SECONDS else result, detail

    def run(
        self, name: str, stored: dict[bytes, bytes], right: dict[str, Any], case: Case
    ) -> Iterator[Outcome]:
        """Make one case: all calls, each from the same damaged state."""
        self.restore(stored)
        case.act(self.client)
        damaged = self.snapshot()
        subject = SUBJECTS[name]
        named: set[str] | None = None
        if self.checks:
            try:
                named = self.named(name)
            except Exception as error:
                found = (case.key.decode(errors="replace"), case.what, "check", "raw", str(error))
                yield Outcome(name, *found)
        for called, call in {**subject.reads, **subject.writes}.items():
            if called in subject.writes:
                self.restore(damaged)
            result, detail = self.tried(name, called, call, right)
            if result == "hang":  # for good, or on a busy machine?
                self.restore(damaged)
                result, detail = self.tried(name, called, call, right)
            if result == "wrong" and self.checks and named != set():
                result = "check"
            if called in subject.writes and self.checks and named is not None and detail == "":
                after = self.named(name) or set()
                # A part that is split hands on what nobody of ours wrote: as much as before.
                if after - named and (called == "delete" or not named - after):
                    result, detail = "spread", f"{sorted(after)[:3]}, of {sorted(named)[:3]}"
            yield Outcome(
                name, case.key.decode(errors="replace"), case.what, called, result, detail
            )

    def outcomes(self, name: str, seed: int = 0, most: int | None = None) -> Iterator[Outcome]:
        """Make the cases of a subject, or so many of them."""
        random = Random(f"{name} {seed}")
        stored = self.prepare(name)
        right: dict[str, Any] = {}
        for called, call in SUBJECTS[name].reads.items():
            right[called] = self.call(name, call)
        for called, call in SUBJECTS[name].writes.items():
            self.restore(stored)
            right[called] = self.call(name, call)
        self.restore(stored)
        made = self.cases(name, random)
        if most is not None:
            made = random.sample(made, min(most, len(made)))
        for case in made:
            yield from self.run(name, stored, right, case)


RESULTS = ("same", "damage", "check", "wrong", "spread", "raw", "hang")


def main() -> int:
    """Make all cases, or those of the subjects given; print what went wrong, and a table a face."""
    names = [name for name in SUBJECTS if not sys.argv[1:] or name in sys.argv[1:]]
    failed = False
    servers = LocalServers(ShardMap.parse(MAP), ports="free")
    with servers, shardkit.connect(servers.shard_map) as kit, asyncio.Runner() as runner:
        blocking = Driver(kit, servers.shard_map, checks=True)
        awaiting = Driver(kit, servers.shard_map, runner)
        for driver in (blocking, awaiting):
            counts: Counter[tuple[str, str]] = Counter()
            for name in names:
                for outcome in driver.outcomes(name):
                    counts[name, outcome.result] += 1
                    silent = outcome.result in ("same", "damage", "check")
                    if not silent and (driver.checks or outcome.result != "wrong"):
                        print(*outcome, sep=" | ", flush=True)
            print(f"{'blocking' if driver.checks else 'awaiting, without check()':25}", end="")
            print(*(f"{result:>8}" for result in RESULTS))
            for name in names:
                print(f"{name:25}", *(f"{counts[name, result]:8,}" for result in RESULTS))
            print(f"{'all':25}", *(f"{_sum(counts, result):8,}" for result in RESULTS), flush=True)
            failed = failed or any(_sum(counts, each) for each in ("spread", "raw", "hang"))
        runner.run(awaiting.awaiting.aclose())
    return int(failed)


def _sum(counts: Counter[tuple[str, str]], result: str) -> int:
    return sum(count for (_, each), count in counts.items() if each == result)


if __name__ == "__main__":
    sys.exit(main())
