"""Damages what structures store, one thing at a time, and looks at what calls make of it.

A *subject* is a structure with some data and its documented calls. A *case* is one damage to one of
its keys; of keys that differ only in their numbers, the first, the last and one between them are
damaged. After each, every call is made on a new object, from the same state. Its outcome is

* ``same``: what it returns on undamaged data;
* ``damage``: a DamagedDataError (or another ShardKitError that says what is wrong);
* ``blind``: a DamagedDataError for what `check()` does not name, of a subject that has one;
* ``other``: such an error that names no shard or none of the keys, or, of a key of another type,
  another key;
* ``check``: another result, silently, of damage that `check()` names;
* ``wrong``: another result, silently, of damage that even `check()` does not find: only who wrote
  the data, or a checksum, could tell;
* ``spread``: after a write `check()` names a key that it did not name before the write, unless
  what repairs a key that it did name repairs that one, too;
* ``raw``: an error of Python, of redis-py or of the server;
* ``slow``: out of proportion to what is stored: over SLOW commands more than on undamaged data;
* ``hang``: over ENDLESS commands, or a minute;
* ``ended``: of the subject: its process ended abruptly, as one that another has killed.

``make damage`` makes all cases, in as many processes as there are cores, and prints a table.
``python tests/damage/damages.py awaiting 100 set hash`` makes those of one face, and at most 100,
drawn by lot, of each of these subjects; ``2/3`` instead of ``100`` the second third of all.
"""

from __future__ import annotations

import asyncio
import bz2
import faulthandler
import inspect
import os
import re
import signal
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import product
from multiprocessing import get_context
from random import Random
from typing import Any, NamedTuple, TypeVar

import lz4.frame
import redis
from further import FURTHER, USED
from resources import bounded
from subjects import MAP, SUBJECTS as FIRST, unchecked
from zstandard import ZstdCompressor

import shardkit
from shardkit import DamagedDataError, ShardErrors, ShardKit, ShardKitError, ShardMap
from shardkit.errors import StructureError
from shardkit.local import LocalServers
from shardkit.operations import Structure
from shardkit.operations.drivers import AwaitingDriver

SUBJECTS = {
    name: subject._replace(
        reads={**subject.reads, **FURTHER.get(name.removeprefix("used "), ({}, {}))[0]},
        writes={**subject.writes, **FURTHER.get(name.removeprefix("used "), ({}, {}))[1]},
    )
    for name, subject in {**FIRST, **USED}.items()
}
SLOW = 5_000
ENDLESS = 1_000_000
SECONDS = 60
INDEXED_AGAIN = "rebuild() indexes all documents again"


class EndlessError(BaseException):
    """A call has not ended."""


Act = Callable[[Any], Any]  # on a client


class Case(NamedTuple):
    """A damage to one key."""

    key: bytes
    what: str
    act: Act


RETYPED = ("a set", "a hash", "a string")
NUMBERS = (*b"0 1 -1 3 2147483648 1000000000000 1e3 x 007".split(b" "), b"", b"9" * 30)
DEEP = b"[" * 100_000 + b"]" * 100_000  # JSON
_SPACES = b" " * 20_000_000
BOMBS = {
    "deep": DEEP,
    "zlib": zlib.compress(_SPACES),
    "bz2": bz2.compress(_SPACES),
    "zstd": ZstdCompressor().compress(_SPACES),
    "zstd that claims 2**50 bytes": b"\x28\xb5\x2f\xfd\xe0"
    + (1 << 50).to_bytes(8, "little")
    + b"\1\0\0",
    "lz4": lz4.frame.compress(_SPACES),
    "digits": b"9" * 100_000,
    "high bytes": b"\xff" * 100_000,  # the longest lengths of all formats
}
BOMBS |= {f"packed {name}": b"\1" + bomb for name, bomb in BOMBS.items()}  # by dictionary 1


def _chosen(client: redis.Redis, random: Random) -> Iterator[bytes]:
    """The keys to damage: at most three of those that differ only in their numbers."""
    alike = defaultdict(list)
    for key in sorted(client.scan_iter(count=1000), key=lambda each: (len(each), each)):
        alike[client.type(key), re.sub(rb"\d+", b"#", key)].append(key)
    for keys in alike.values():
        yield from keys if len(keys) <= 3 else (keys[0], random.choice(keys[1:-1]), keys[-1])


def cases(client: redis.Redis, random: Random) -> Iterator[Case]:
    """All damages to what a server holds, a few of each kind for each of the chosen keys."""
    for key in _chosen(client, random):
        for what, act in _damages(client, key, random):
            yield Case(key, what, act)


def _damages(client: Any, key: bytes, random: Random) -> Iterator[tuple[str, Act]]:
    kind = client.type(key).decode()
    other = "set" if kind == "hash" else "hash"
    yield "deleted", lambda c: c.delete(key)
    yield f"a {other}", lambda c: _retype(c, key, other)
    yield "a string", lambda c: c.set(key, "a string")
    if kind == "string":
        yield from _damaged_strings(client.get(key), key, random)
    elif kind == "hash":
        fields = sorted(client.hgetall(key).items())
        whole = (b":meta", b":ends", b":generations", b":state")
        if not (key.endswith(whole) or b"parts" in dict(fields) or len(fields) <= 6):
            fields = random.sample(fields, min(2, len(fields)))
        yield "further field", lambda c: c.hset(key, "unheard of", 1)
        for field, value in fields:
            name = field.decode(errors="replace")
            yield f"{name} deleted", lambda c, field=field: c.hdel(key, field)
            bomb = random.choice(sorted(BOMBS))
            yield (
                f"{name} a bomb: {bomb}",
                partial(_write_field, key=key, field=field, value=BOMBS[bomb]),
            )
            for text in _instead(value):
                if text != value:
                    write = partial(_write_field, key=key, field=field, value=text)
                    yield f"{name}={text[:40]!r}", write
    elif kind == "set":
        member = random.choice(sorted(client.smembers(key)))
        yield "a member lost", lambda c: c.srem(key, member)
        yield "a member more", lambda c: c.sadd(key, b"\xff\0")
        yield "a number more", lambda c: c.sadd(key, 2**62)
    elif kind == "list":
        yield "cut", lambda c: c.lpop(key)
        yield "longer", lambda c: c.rpush(key, "y")
    elif kind == "zset":
        yield "a member lost", lambda c: c.zpopmin(key)
        yield "a member more", lambda c: c.zadd(key, {b"\xff\0": 7})
        member = random.choice(sorted(client.zrange(key, 0, -1)))
        for score in ("inf", "-inf", 0, -5, 0.5, 1e17):
            what = f"{member.decode(errors='replace')} at {score}"
            yield what, lambda c, score=score: c.zadd(key, {member: score})


def _damaged_strings(held: bytes, key: bytes, random: Random) -> Iterator[tuple[str, Act]]:
    if held.isdigit():
        for number in NUMBERS:
            yield f"={number!r}", lambda c, number=number: c.set(key, number)
        return
    for cut in {0, 1, len(held) // 2, len(held) - 1}:
        yield f"cut to {cut}", lambda c, cut=cut: c.set(key, held[:cut])
    yield "longer", lambda c: c.append(key, b"\0x")
    for name in random.sample(sorted(BOMBS), 3):
        yield f"a bomb: {name}", lambda c, name=name: c.set(key, BOMBS[name])
    for at in random.sample(range(8 * len(held)), min(8 * len(held), 6)):
        yield f"bit {at}", lambda c, at=at: c.setbit(key, at, 1 - c.getbit(key, at))


def _write_field(client: redis.Redis, key: bytes, field: bytes, value: bytes) -> None:
    client.hset(key, field, value)


def _instead(value: bytes) -> list[bytes]:
    """What a field could have instead of a value: a number, numbers among words, or other text."""
    if value.lstrip(b"-").isdigit():
        return list(NUMBERS)
    found = [b"", b"\xff\0", value[:-1]]
    if value[:1] in (b"[", b"{"):
        found.append(DEEP)
    words = value.split(b" ")
    for n, word in enumerate(words):
        if len(words) > 2 and word.lstrip(b"-").isdigit():
            others = (b"0", b"1", b"-1", b"3", b"1000000000000", b"-1000000000000")
            found += [b" ".join((*words[:n], other, *words[n + 1 :])) for other in others]
    return found


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
        self.structure = structure
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.structure, name)
        if isinstance(found, AwaitingDriver | Structure):
            return Waited(found, self._runner)
        return partial(self.call, found) if callable(found) else found

    def call(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def collect(stream: Any) -> list[Any]:
            return [value async for value in stream]

        result = call(*args, **options)
        if hasattr(result, "__aiter__"):
            result = collect(result)
        return self._runner.run(result) if inspect.iscoroutine(result) else result


# What a subject has stored, what is left of it after a damage, and nothing.
STORED, DAMAGED, NOTHING = 8, 9, 10
_COPY = """
for _, to in ipairs(ARGV[2] == '0' and {2, 1, 0} or {ARGV[2]}) do
    redis.call('SELECT', to)
    redis.call('FLUSHDB')
end
redis.call('SELECT', ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do
    redis.call('COPY', key, key, 'DB', ARGV[2])
    if ARGV[2] ~= '0' then
        redis.call('SELECT', ARGV[2])
        redis.call('PERSIST', key)
        redis.call('SELECT', ARGV[1])
    end
end
"""
_DIGEST = """
local held = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
    held[#held + 1] = #key .. key .. redis.sha1hex(redis.call('DUMP', key) or '')
end
table.sort(held)
return redis.sha1hex(table.concat(held))
"""


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
        self._copy = self.client.register_script(_COPY)
        self._digest = self.client.register_script(_DIGEST)
        self._names: dict[tuple[str, str], dict[str, str] | None] = {}  # by state
        self.left = ENDLESS  # commands that a call may still send
        if runner is not None:
            self.awaiting = runner.run(shardkit.aconnect(shard_map))
        driver = kit.driver if runner is None else self.awaiting.driver
        self.send = driver._send  # which a test may replace
        driver._send = self._counted

    def _counted(self, batch: Any) -> Any:
        """Count what is sent, so that what never ends is ended."""
        self.left -= len(batch) + 1
        if self.left < 0:
            raise EndlessError
        return self.send(batch)

    def end(self) -> None:
        """End the running call where it sends something next."""
        self.left = 0

    def prepare(self, name: str) -> int:
        """Fill the server with a subject; return where all of it is kept."""
        subject = SUBJECTS[name]
        self.client.flushall()
        self.left = ENDLESS
        subject.fill(subject.open(self.kit))
        return self.keep(STORED)

    def keep(self, database: int) -> int:
        """Keep all that is stored in a database of its own, where nothing expires."""
        self._copy(args=(0, database))
        return database

    def restore(self, database: int) -> None:
        """Make the server hold what was kept, and nothing else."""
        self._copy(args=(database, 0))

    def all_keys(self) -> list[bytes]:
        """Return the keys of all that is stored."""
        return list(self.client.scan_iter(count=1000))

    def digest(self) -> str:
        """Return a digest of all that is stored."""
        return self._digest().decode()

    def cases(self, name: str, random: Random) -> list[Case]:
        """Return the damages of what is stored now."""
        return [*cases(self.client, random), *swaps(self.client, random)]

    def open(self, name: str) -> Any:
        """Return a new object, whose calls wait."""
        self.left = ENDLESS
        if self.runner is None:
            return SUBJECTS[name].open(self.kit)
        return Waited(SUBJECTS[name].open(self.awaiting), self.runner)

    def call(self, name: str, call: Callable[[Any], Any]) -> Any:
        """Make a call on a new object."""
        return call(self.open(name))

    def named(self, name: str) -> dict[str, str] | None:
        """Return the keys that `check` names, and what repairs them; None if it refuses."""
        state = name, self.digest()
        if state not in self._names:
            try:
                found = list(self.call(name, SUBJECTS[name].check))
                self._names[state] = {damage.key: damage.repair for damage in found}
            except ShardKitError as error:
                if isinstance(error, ShardErrors):
                    raise
                self._names[state] = None
        return self._names[state]

    def tried(
        self,
        name: str,
        called: str,
        call: Callable[[Any], Any],
        right: dict[str, Any],
        usual: Mapping[str, int],
        keys: Collection[str],
    ) -> tuple[str, str]:
        """Make a call; return what came of it, and what it says; ``keys`` may be named."""
        result, detail = "same", ""
        try:
            with bounded():
                found = self.call(name, call)
            if called in right and found != right[called]:
                result, detail = "wrong", f"{found!r}"[:80]
        except DamagedDataError as error:
            named = any(
                key in keys or key.rpartition(":")[0] + ":" in keys
                for key in error.key.removeprefix("one of ").split(", ")
            )
            result = "damage" if error.shard and named else "other"
            detail = str(error)
        except ShardErrors as error:
            result, detail = "raw", str(error)
        except ShardKitError as error:
            names = {key.split(":")[0].strip("{}") for key in keys}
            told = type(error) is not StructureError or any(name in str(error) for name in names)
            result = "damage" if told else "other"
            detail = f"{type(error).__name__}: {error}"
        except EndlessError:
            return "hang", ""
        except Exception as error:
            result, detail = "raw", f"{type(error).__name__}: {error}"
        sent = ENDLESS - self.left
        if result != "raw" and sent > usual[called] + SLOW:
            return "slow", f"{sent:,} commands, {result} {detail}"
        return result, detail

    def run(
        self,
        name: str,
        stored: Collection[bytes],
        right: dict[str, Any],
        usual: Mapping[str, int],
        case: Case,
    ) -> Iterator[Outcome]:
        """Make one case: all calls, each from the same damaged state."""
        self.restore(STORED)
        case.act(self.client)
        self.keep(DAMAGED)
        subject = SUBJECTS[name]
        keys = set[str]().union(*map(_spelled, stored))
        keys |= {key.rpartition(":")[0] + ":" for key in keys}  # others beside them
        if case.what in RETYPED:
            keys = _spelled(case.key)
        named: dict[str, str] | None = None
        if self.checks:
            try:
                named = self.named(name)
            except (Exception, EndlessError) as error:
                found = (case.key.decode(errors="replace"), case.what, "check", "raw", str(error))
                yield Outcome(name, *found)
        for called, call in {**subject.reads, **subject.writes}.items():
            if called in subject.writes:
                self.restore(DAMAGED)
            result, detail = self.tried(name, called, call, right, usual, keys)
            if result == "wrong" and self.checks and named != {}:
                result = "check"
            if result == "damage" and named == {} and " is damaged" in detail:
                result = "damage" if subject.check is unchecked else "blind"
            if called in subject.writes and self.checks and named is not None and result == "same":
                after = self.named(name) or {}
                # An index is indexed again as a whole, whatever else became damaged.
                again = {key for key in after if after[key].startswith(INDEXED_AGAIN)}
                new = after.keys() - named - (again if again & named.keys() else set())
                # A part that is split hands on what nobody of ours wrote: as much as before.
                if new and (called == "delete" or not named.keys() - after.keys()):
                    result, detail = "spread", f"{sorted(new)[:3]}, of {sorted(named)[:3]}"
            yield Outcome(
                name, case.key.decode(errors="replace"), case.what, called, result, detail
            )

    def outcomes(self, name: str, seed: int = 0, some: str = "") -> Iterator[Outcome]:
        """Make the cases of a subject, or some: ``100`` of them, or ``2/3``, the second third."""
        random = Random(f"{name} {seed}")
        self.prepare(name)
        stored = self.all_keys()
        right: dict[str, Any] = {}
        usual: dict[str, int] = {}
        for called, call in {**SUBJECTS[name].reads, **SUBJECTS[name].writes}.items():
            if called in SUBJECTS[name].writes:
                self.restore(STORED)
            right[called] = self.call(name, call)
            usual[called] = ENDLESS - self.left
        self.restore(STORED)
        made = self.cases(name, random)
        if "/" in some:
            part, parts = map(int, some.split("/"))
            made = made[part - 1 :: parts]
        elif some:
            made = random.sample(made, min(int(some), len(made)))
        for case in made:
            yield from self.run(name, stored, right, usual, case)


def _spelled(key: bytes) -> set[str]:
    """How Python's errors spell a key, and those of scripts."""
    return {key.decode(errors="backslashreplace"), re.sub("[^ -~]", "?", key.decode("latin-1"))}


WRONG = ("blind", "other", "spread", "raw", "slow", "hang", "ended")
RESULTS = ("same", "damage", "check", "wrong", *WRONG)
FACES = ("blocking", "awaiting")


def main(*given: str) -> int:
    """Make the cases of the faces and subjects given, or of all; return 1 if any went wrong."""
    faces = [face for face in FACES if face in given] or FACES
    names = [name for name in SUBJECTS if name in given] or list(SUBJECTS)
    some = next((word for word in given if word[0].isdigit()), "")
    counts = in_processes(damage, list(product(faces, names, [some])))
    print(f"{'':35}{_row(RESULTS)}")
    for face in faces:
        every: Counter[str] = sum((counts[each] for each in counts if each[0] == face), Counter())
        print(f"{face:10}{'all':25}{_row(f'{every[each]:,}' for each in RESULTS)}")
    return int(any(each[result] for each in counts.values() for result in WRONG))


Given = TypeVar("Given", bound=tuple[str, ...])


def in_processes(
    call: Callable[..., Counter[str]], given: list[Given]
) -> dict[Given, Counter[str]]:
    """Make calls, each in a process of its own, whose abrupt end takes no other along."""

    def alone(args: Given) -> Counter[str]:
        with ProcessPoolExecutor(1, get_context("spawn"), faulthandler.enable) as pool:
            try:
                return pool.submit(call, *args).result()
            except BrokenProcessPool:
                print(f"{' | '.join(args)} | its process ended abruptly", flush=True)
                return Counter({"ended": 1})

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return dict(zip(given, threads.map(alone, given), strict=True))


def damage(face: str, name: str, some: str = "") -> Counter[str]:
    """Make all cases of a subject; print what went wrong; return how many had which result."""
    counts, began = Counter[str](), time.monotonic()
    servers = LocalServers(ShardMap.parse(MAP), ports="free")
    with servers, shardkit.connect(servers.shard_map) as kit, asyncio.Runner() as runner:
        waits = None if face == "blocking" else runner
        driver = Driver(kit, servers.shard_map, waits, checks=True)
        signal.signal(signal.SIGALRM, lambda *_: driver.end())
        for outcome in driver.outcomes(name, some=some):
            signal.alarm(SECONDS)
            counts[outcome.result] += 1
            if outcome.result not in ("same", "damage", "check"):
                print(f"{face} | {' | '.join(outcome)}", flush=True)
        signal.alarm(0)
        if driver.awaiting is not None:
            runner.run(driver.awaiting.aclose())
    row = _row(f"{counts[each]:,}" for each in RESULTS)
    print(f"{face:10}{name:25}{row}  {time.monotonic() - began:.0f} s", flush=True)
    return counts


def _row(texts: Iterable[str]) -> str:
    return "".join(f"{text:>9}" for text in texts)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
