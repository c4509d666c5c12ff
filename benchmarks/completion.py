"""Completing names in one group: by a range of bytes, and by markers as in the book.

A form adds two markers around the prefix, takes their ranks, removes them, and reads what was
between: under WATCH, with a try for every conflict; under a lock; and in one script. Against them
stand the range, by redis-py alone, and the address book, which is the same range.

Each of 1, 2, 5 and 10 processes completes random prefixes in one group for some seconds, in three
rounds in which each form has its turn; the median counts. An attempt is a try that a WATCH refused,
or to take the lock, or the call itself. Beside completions a second stand the microseconds of
processor time that one took, of the server and of the caller, which other load hardly changes.

    python benchmarks/completion.py [SECONDS]
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from random import Random
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import redis
from memory_set import version
from report import conditions, save, show

import shardkit
from shardkit import ShardMap
from shardkit.completion.address_book import AddressBook
from shardkit.local import LocalServer, find_server
from shardkit.operations.operation import Blocking

SECONDS = 3.0
ROUNDS = 3
PROCESSES = [1, 2, 5, 10]
MEMBERS = 5_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
KEY, LOCK = "members:guild", "lock:guild"
LIMIT = 10

# What a form does for one prefix: it gives the attempts that it took, and the names.
Complete: TypeAlias = Callable[[str], tuple[int, list[bytes]]]


def names() -> list[str]:
    """Lower-case names, always the same ones: other letters the markers get wrong."""
    random = Random(17)
    return ["".join(random.choices(LETTERS, k=random.randint(5, 12))) for _ in range(MEMBERS)]


def prefixes(seed: int) -> Iterator[str]:
    random = Random(seed)
    while True:
        yield "".join(random.choices(LETTERS, k=random.randint(1, 3)))


def markers(prefix: str) -> tuple[str, str]:
    """Two members that no other has, just before and just after all names with the prefix."""
    unique = uuid.uuid4()
    before = prefix[:-1] + chr(ord(prefix[-1]) - 1)
    return f"{before}{{{unique}", f"{prefix}{{{unique}"


def cleared(found: list[bytes]) -> list[bytes]:
    """The names without the markers of others."""
    return [name for name in found if b"{" not in name][:LIMIT]


def under_watch(client: redis.Redis) -> Complete:
    def complete(prefix: str) -> tuple[int, list[bytes]]:
        start, end = markers(prefix)
        client.zadd(KEY, {start: 0, end: 0})
        attempts = 0
        with client.pipeline() as pipe:
            while True:
                attempts += 1
                try:
                    pipe.watch(KEY)
                    first, last = pipe.zrank(KEY, start), pipe.zrank(KEY, end)
                    pipe.multi()
                    pipe.zrem(KEY, start, end)
                    pipe.zrange(KEY, first, min(first + LIMIT - 1, last - 2))
                    return attempts, cleared(pipe.execute()[-1])
                except redis.WatchError:
                    continue

    return complete


RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"


def under_lock(client: redis.Redis) -> Complete:
    release = client.register_script(RELEASE)

    def complete(prefix: str) -> tuple[int, list[bytes]]:
        start, end = markers(prefix)
        holder, attempts = str(uuid.uuid4()), 1
        while not client.set(LOCK, holder, nx=True, px=10_000):
            attempts += 1
            time.sleep(0.001)
        with client.pipeline(transaction=False) as pipe:
            pipe.zadd(KEY, {start: 0, end: 0})
            pipe.zrank(KEY, start)
            pipe.zrank(KEY, end)
            _, first, last = pipe.execute()
            pipe.zrem(KEY, start, end)
            pipe.zrange(KEY, first, min(first + LIMIT - 1, last - 2))
            found = pipe.execute()[-1]
        release(keys=[LOCK], args=[holder])
        return attempts, found

    return complete


MARKERS = """
redis.call('ZADD', KEYS[1], 0, ARGV[1], 0, ARGV[2])
local first = redis.call('ZRANK', KEYS[1], ARGV[1])
local last = redis.call('ZRANK', KEYS[1], ARGV[2])
local found = redis.call('ZRANGE', KEYS[1], first + 1, math.min(first + ARGV[3], last - 1))
redis.call('ZREM', KEYS[1], ARGV[1], ARGV[2])
return found
"""


def in_lua(client: redis.Redis) -> Complete:
    script = client.register_script(MARKERS)

    def complete(prefix: str) -> tuple[int, list[bytes]]:
        return 1, script(keys=[KEY], args=[*markers(prefix), LIMIT])

    return complete


def by_range(client: redis.Redis) -> Complete:
    def complete(prefix: str) -> tuple[int, list[bytes]]:
        begin, end = b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff"
        return 1, client.zrange(KEY, begin, end, bylex=True, offset=0, num=LIMIT)

    return complete


def address_book(client: redis.Redis) -> AddressBook[Blocking]:
    port = client.connection_pool.connection_kwargs["port"]
    described = {"components": {"guilds": {"entry": {"port": port}}}}
    return shardkit.connect(ShardMap.parse(json.dumps(described))).address_book(component="guilds")


def by_book(client: redis.Redis) -> Complete:
    book = address_book(client)

    def complete(prefix: str) -> tuple[int, list[bytes]]:
        return 1, [name.encode() for name in book.complete("guild", prefix)]

    return complete


FORMS: dict[str, Callable[[redis.Redis], Complete]] = {
    "markers, WATCH": under_watch,
    "markers, lock": under_lock,
    "markers, Lua": in_lua,
    "range, redis-py": by_range,
    "address book": by_book,
}


def work(form: str, port: int, seed: int, seconds: float, ready: Any, counts: Any) -> None:
    """Complete prefixes for some seconds, when everybody is ready; tell how often."""
    client = redis.Redis(port=port, protocol=2)
    complete, attempts, done = FORMS[form](client), 0, 0
    wanted = prefixes(seed)
    complete(next(wanted))  # scripts and parameters are known, connections there
    ready.wait()
    spent = time.process_time()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        tries, _ = complete(next(wanted))
        attempts += tries
        done += 1
    counts.put((attempts, done, time.process_time() - spent))


class Measured(NamedTuple):
    """Attempts and completions a second; processor time of one, in microseconds."""

    attempts: float
    done: float
    server: float
    caller: float


def server_time(client: redis.Redis) -> float:
    spent = client.info("cpu")
    return float(spent["used_cpu_user"] + spent["used_cpu_sys"])


def measured(form: str, client: redis.Redis, processes: int, seconds: float) -> Measured:
    """Let so many processes complete for some seconds."""
    port = client.connection_pool.connection_kwargs["port"]
    before = server_time(client)
    fork = multiprocessing.get_context("fork")
    ready, counts = fork.Barrier(processes), fork.Queue()
    workers = [
        fork.Process(target=work, args=(form, port, seed, seconds, ready, counts), daemon=True)
        for seed in range(processes)
    ]
    for worker in workers:
        worker.start()
    found = [counts.get(timeout=30 + seconds) for _ in workers]
    for worker in workers:
        worker.join()
    attempts, done, caller = (sum(column) for column in zip(*found, strict=True))
    server = server_time(client) - before
    return Measured(attempts / seconds, done / seconds, server / done * 1e6, caller / done * 1e6)


def agree(client: redis.Redis) -> None:
    """All forms give the same names."""
    completes = [form(client) for form in FORMS.values()]
    for prefix, _ in zip(prefixes(0), range(300), strict=False):
        answers = [complete(prefix)[1] for complete in completes]
        assert all(answer == answers[-1] for answer in answers), (prefix, answers)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    rows: list[list[Any]] = []
    with LocalServer() as server, server.client() as client:
        address_book(client).join_many("guild", names())
        agree(client)
        for processes in PROCESSES:
            turns: dict[str, list[Measured]] = {form: [] for form in FORMS}
            for _ in range(ROUNDS):
                for form in FORMS:
                    turns[form].append(measured(form, client, processes, seconds / ROUNDS))
            typical = {
                form: Measured(*(median(column) for column in zip(*turn, strict=True)))
                for form, turn in turns.items()
            }
            watched = typical["markers, WATCH"]
            for form, found in typical.items():
                rows.append([form, processes, *map(round, found), found.done / watched.done])
        server_version = version(find_server())
        left = client.zcard(KEY) - len(set(names()))
    columns = [
        "form",
        "processes",
        "attempts/s",
        "completions/s",
        "server us",
        "caller us",
        "ratio",
    ]
    show(f"Completing in a group of {MEMBERS:,}", columns, rows)
    result = {
        "conditions": conditions(server_version),
        "members": MEMBERS,
        "seconds": seconds,
        "rounds": ROUNDS,
        "markers_left": left,
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
    }
    save("completion", result)


if __name__ == "__main__":
    main()
