"""Ads and jobs on one server: memory and the server's time, beside sets and sorted sets.

The other layouts are the usual ones, as in the book: a SET of skills for each job, a SET (with
years: a ZSET) of jobs for each skill, and a ZSET of how many skills each job requires; a SET of ads
for each location, a ZSET of bonuses for each word, a ZSET of eCPMs, a SET of words for each ad.

Memory is what ``used_memory`` grew by, in a server of its own. Time is the server's processor time
for one search, which other load hardly changes.

    python benchmarks/ads_and_jobs.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import redis
from memory_set import version
from report import conditions, save, show

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.local import LocalServer, find_server

COUNT = 20_000
SEARCHES = 50
SKILLS = [f"skill {n}" for n in range(500)]
WORDS = [f"word{n}" for n in range(5_000)]
PLACES = [f"place {n}" for n in range(10)]
BATCH = 500


def few(random: Random, items: list[str], count: int) -> list[str]:
    """Different items, the first ones more often than the last, as words are."""
    weights = [1 / (n + 3) for n in range(len(items))]
    return list(dict.fromkeys(random.choices(items, weights, k=count)))


def made() -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Jobs, ads, candidates and pages, always the same ones."""
    random = Random(17)
    jobs = [
        (f"job:{n}", {s: random.randrange(10) for s in few(random, SKILLS, random.randint(1, 8))})
        for n in range(COUNT)
    ]
    ads = [
        (f"ad:{n}", [random.choice(PLACES)], " ".join(few(random, WORDS, 15)), "cpm", n % 997 + 1)
        for n in range(COUNT)
    ]
    candidates = [
        {s: random.randrange(10) for s in few(random, SKILLS, 20)} for _ in range(SEARCHES)
    ]
    pages = [([random.choice(PLACES)], few(random, WORDS, 100)) for _ in range(SEARCHES)]
    return jobs, ads, candidates, pages


JOBS, ADS, CANDIDATES, PAGES = made()


def batched(client: redis.Redis, commands: Iterator[tuple[Any, ...]]) -> None:
    pipe = client.pipeline(transaction=False)
    for n, command in enumerate(commands, 1):
        pipe.execute_command(*command)
        if n % BATCH == 0:
            pipe.execute()
    pipe.execute()


def job_sets(*, years: bool) -> Iterator[tuple[Any, ...]]:
    for job, skills in JOBS:
        yield ("SADD", job, *skills)
        yield ("ZADD", "idx:jobs:req", len(skills), job)
        for skill, number in skills.items():
            if years:
                yield ("ZADD", f"idx:skill:{skill}:years", number, job)
            else:
                yield ("SADD", f"idx:skill:{skill}", job)


def ad_sets() -> Iterator[tuple[Any, ...]]:
    for ad, places, text, kind, value in ADS:
        for place in places:
            yield ("SADD", f"idx:req:{place}", ad)
        for word in text.split():
            yield ("ZADD", f"idx:{word}", 0, ad)
        yield ("HSET", "type:", ad, kind)
        yield ("ZADD", "idx:ad:value:", value, ad)
        yield ("ZADD", "ad:base_value:", value, ad)
        yield ("SADD", f"terms:{ad}", *text.split())


def find_by_sets(client: redis.Redis, skills: Any) -> None:
    """Count each job's skills, take away how many it requires, keep those with 0."""
    keys = [f"idx:skill:{skill}" for skill in skills]
    pipe = client.pipeline()
    pipe.zunionstore("tmp", keys)
    pipe.zinterstore("tmp", {"tmp": -1, "idx:jobs:req": 1})
    pipe.zrangebyscore("tmp", 0, 0)
    pipe.delete("tmp")
    pipe.execute()


def target_by_sets(client: redis.Redis, page: Any) -> None:
    """Add half the smallest and half the largest bonus to what the ads of a place are worth."""
    places, words = page
    bonuses = [f"tmp:{word}" for word in words]
    pipe = client.pipeline()
    pipe.sunionstore("at", [f"idx:req:{place}" for place in places])
    pipe.zinterstore("base", {"at": 0, "idx:ad:value:": 1})
    for word in words:
        pipe.zinterstore(f"tmp:{word}", {"base": 0, f"idx:{word}": 1})
    for which in ("MAX", "MIN"):
        pipe.zunionstore(which, bonuses, aggregate=which)
    pipe.zunionstore("base", {"base": 1, "MAX": 0.5, "MIN": 0.5})
    pipe.zrevrange("base", 0, 0)
    pipe.delete("at", "base", "MAX", "MIN", *bonuses)
    pipe.execute()


Fill = Callable[[ShardKit, redis.Redis], Any]
Search = Callable[[ShardKit, redis.Redis], Any]


def processor_time(client: redis.Redis) -> float:
    """Return how many seconds of processor time the server has taken."""
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def measured(fill: Fill, search: Search) -> tuple[float, float]:
    """Return the bytes that each record takes, and the microseconds that a search takes."""
    with LocalServer() as server:
        shard_map = {"components": {"one": {"entry": {"port": server.port}}}}
        with server.client() as client:
            before = client.info("memory")["used_memory"]
        with shardkit.connect(ShardMap.parse(json.dumps(shard_map))) as kit, server.client() as own:
            fill(kit, own)
        with server.client() as client:
            after = client.info("memory")["used_memory"]
        with shardkit.connect(ShardMap.parse(json.dumps(shard_map))) as kit, server.client() as own:
            search(kit, own)  # scripts are loaded
            idle = processor_time(own)
            search(kit, own)
            used = processor_time(own) - idle
        return (after - before) / COUNT, 1e6 * used / SEARCHES


def main() -> None:
    """Measure, print and keep the figures."""
    cases: dict[str, tuple[Fill, Search]] = {
        "jobs: kit.job_search": (
            lambda kit, _: kit.job_search(component="one").index_many(
                (job, list(s)) for job, s in JOBS
            ),
            lambda kit, _: [kit.job_search(component="one").find(list(c)) for c in CANDIDATES],
        ),
        "jobs: sets": (
            lambda _, client: batched(client, job_sets(years=False)),
            lambda _, client: [find_by_sets(client, c) for c in CANDIDATES],
        ),
        "jobs with years: kit.job_search": (
            lambda kit, _: kit.job_search(component="one", measure="years").index_many(JOBS),
            lambda kit, _: [
                kit.job_search(component="one", measure="years").find(c) for c in CANDIDATES
            ],
        ),
        "jobs with years: sorted sets": (
            lambda _, client: batched(client, job_sets(years=True)),
            lambda _, client: None,
        ),
        "ads: kit.ads": (
            lambda kit, _: kit.ads(component="one").index_many(ADS),
            lambda kit, _: [
                kit.ads(component="one").target(places, " ".join(words)) for places, words in PAGES
            ],
        ),
        "ads: sorted sets": (
            lambda _, client: batched(client, ad_sets()),
            lambda _, client: [target_by_sets(client, page) for page in PAGES],
        ),
    }
    rows = []
    for name, (fill, search) in cases.items():
        size, used = measured(fill, search)
        rows.append((name, round(size), round(used) if used > 10 else "-"))
    columns = ("layout", "bytes a record", "microseconds a search")
    show(f"{COUNT:,} jobs, {COUNT:,} ads", columns, rows)
    figures = [dict(zip(columns, row, strict=True)) for row in rows]
    where = conditions(version(find_server()))
    save("ads_and_jobs", {"conditions": where, "records": COUNT, "figures": figures})


if __name__ == "__main__":
    main()
