"""Pages of home timelines a second: 30 statuses each, nothing else running.

Over four servers and over one, blocking (1 and 4 threads) and awaiting (64 tasks), one process; and
as Redis in Action reads a page from one server, with redis-py: ZREVRANGE, then a pipeline of 30
HGETALL. Rounds alternate; a rate is the median of its rounds.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import redis
from report import conditions, show
from rich.progress import track

import shardkit
from examples.social.people import People, message
from shardkit.social.keys import USER
from social.networks import Site, options_of, site

USERS = 2000
FOLLOWS = 20
POSTS = 4000
COUNT = 30
SECONDS = 2.0
ROUNDS = 3
TASKS = 64


class Rate(NamedTuple):
    """How fast pages were read.

    Attributes:
        pages: a second.
        caller: microseconds of the caller's processor for each.
        servers: of all servers' together.
    """

    pages: float
    caller: float
    servers: float = 0.0


def _fill(at: Site) -> None:
    """Have people post, until most homes have more than a page."""
    people, dice = People(USERS, FOLLOWS, 1000, 1), random.Random(1)
    at.build(USERS, list(people.following()))
    post = at.network.deferred.post
    for _ in range(0, POSTS, 200):
        authors = [at.uids[people.author(dice)] for _ in range(200)]
        at.kit.together(*(post(uid, message(dice)) for uid in authors))


def _readers(at: Site) -> list[int]:
    """Return those whose homes have a whole page."""
    pages = []
    for start in range(0, USERS, 20):
        uids = at.uids[start : start + 20]
        read = at.kit.together(*(at.network.deferred.home(uid) for uid in uids))
        pages += [uid for uid, page in zip(uids, read, strict=True) if len(page) == COUNT]
    return pages


def _threads(at: Site, uids: Sequence[int], count: int) -> Rate:
    """Have so many threads read."""
    return _read_by(count, lambda uid: at.network.home(uid, limit=COUNT), uids)


def _read_by(count: int, read: Callable[[int], Any], uids: Sequence[int]) -> Rate:
    done, until = [0] * count, time.perf_counter() + SECONDS

    def work(n: int) -> None:
        dice = random.Random(n)
        while time.perf_counter() < until:
            assert len(read(dice.choice(uids))) == COUNT
            done[n] += 1

    began, used = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _rate(sum(done), began, used)


def _rate(done: int, began: float, used: float) -> Rate:
    return Rate(done / (time.perf_counter() - began), (time.process_time() - used) / done * 1e6)


def _awaiting(at: Site, uids: Sequence[int], count: int) -> Rate:
    """Have so many tasks read."""

    async def main() -> Rate:
        async with await shardkit.aconnect(at.shard_map) as kit:
            network, done = kit.social(**options_of(at.name)), 0
            await network.home(uids[0])
            began, used = time.perf_counter(), time.process_time()
            until = began + SECONDS

            async def work(n: int) -> None:
                nonlocal done
                dice = random.Random(n)
                while time.perf_counter() < until:
                    assert len(await network.home(dice.choice(uids), limit=COUNT)) == COUNT
                    done += 1

            await asyncio.gather(*map(work, range(count)))
            return _rate(done, began, used)

    return asyncio.run(main())


def _book(at: Site, uids: Sequence[int], count: int) -> Rate:
    """Have so many threads read in the book's way."""
    layout, [server] = at.network.layout, at.servers
    clients = [redis.Redis(port=server.port) for _ in range(count)]
    free = list(clients)

    def read(uid: int) -> list[dict[bytes, bytes]]:
        client = free.pop()
        try:
            ids = client.zrevrange(layout.timeline(USER, uid), 0, COUNT - 1)
            pipe = client.pipeline(transaction=True)
            for id_ in ids:
                pipe.hgetall(layout.owned("status", int(id_)))
            return [status for status in pipe.execute() if status]
        finally:
            free.append(client)

    return _read_by(count, read, uids)


def measure() -> dict[str, dict[str, float]]:
    """Return the figures of each way."""
    with ExitStack() as stack:
        sites = [stack.enter_context(site(name)) for name in ("4 servers", "1 server")]
        for at in track(sites, "posting"):
            _fill(at)
        readers = {at.name: _readers(at) for at in sites}
        works: dict[str, Callable[[], Rate]] = {}
        for at in sites:
            for count in (1, 4):
                name = f"{at.name}, blocking, {count} thread{'s' * (count > 1)}"
                works[name] = _work(_threads, at, readers, count)
            works[f"{at.name}, awaiting, {TASKS} tasks"] = _work(_awaiting, at, readers, TASKS)
        for count in (1, 4):
            name = f"1 server, the book's, {count} thread{'s' * (count > 1)}"
            works[name] = _work(_book, sites[1], readers, count)
        taken: dict[str, list[Rate]] = defaultdict(list)
        for _ in track(range(ROUNDS), "reading"):
            for name, work in works.items():
                taken[name].append(work())
    return {
        name: {
            "pages a second": round(median(rate.pages for rate in rates)),
            "caller, us a page": round(median(rate.caller for rate in rates)),
            "servers, us a page": round(median(rate.servers for rate in rates)),
        }
        for name, rates in taken.items()
    }


def _work(
    way: Callable[[Site, Sequence[int], int], Rate],
    at: Site,
    readers: dict[str, list[int]],
    count: int,
) -> Callable[[], Rate]:
    def work() -> Rate:
        before, began = at.spent(), time.perf_counter()
        rate = way(at, readers[at.name], count)
        done = rate.pages * (time.perf_counter() - began)
        return rate._replace(servers=(at.spent() - before) / done * 1e6)

    return work


def run() -> dict[str, Any]:
    """Measure and show."""
    found = measure()
    title = f"Pages of {COUNT} statuses"
    columns = list(next(iter(found.values())))
    show(title, ["", *columns], [[name, *figures.values()] for name, figures in found.items()])
    return {
        "conditions": conditions(),
        "users": USERS,
        "posts": POSTS,
        "count": COUNT,
        "rounds": ROUNDS,
        "figures": found,
    }
