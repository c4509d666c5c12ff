"""What writing to sets, hashes and sorted sets in parts takes, against the plain command.

One member added alone: the server's microseconds for a script or command, as its ``latencystats``
and ``commandstats`` have them (the mean has the splits of parts, the median has not); the quickest
twentieth of many short batches, taken in turns, because other work on the machine only ever makes
one slower. Many members loaded at once: how many times as long as plain commands of 10,000 members
each take, in wall time and in processor time of both sides; the quickest of some rounds.

``python benchmarks/growing.py [--members N] [--only one|bulk]``
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from random import Random
from statistics import quantiles
from typing import Any

from report import conditions, save, show

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.local import LocalServer

MEMBERS, BATCHES, AT_ONCE = 20_000, 200, 50
ROUNDS, PAGE = 3, 10_000
RANDOM = Random(1)


def text() -> str:
    return f"user:{RANDOM.getrandbits(40)}"


# ---- one member added alone

# For each its plain command, the structure, and what adds one member to it.
ALONE: dict[str, tuple[Callable[[], tuple[Any, ...]], Callable[[ShardKit], Any], Any]] = {
    "set of numbers": (
        lambda: ("SADD", "plain:ids", RANDOM.getrandbits(60)),
        lambda kit: kit.set("ids", component="one", members=int),
        lambda ids: ids.deferred.sadd(RANDOM.getrandbits(60)),
    ),
    "set of text": (
        lambda: ("SADD", "plain:texts", text()),
        lambda kit: kit.set("texts", component="one"),
        lambda texts: texts.deferred.sadd(text()),
    ),
    "hash": (
        lambda: ("HSET", "plain:hash", text(), "v"),
        lambda kit: kit.hash("hash", component="one"),
        lambda table: table.deferred.hset(text(), "v"),
    ),
    "sorted set": (
        lambda: ("ZADD", "plain:scores", RANDOM.random(), text()),
        lambda kit: kit.sorted_set("scores", component="one"),
        lambda scores: scores.deferred.zadd({text(): RANDOM.random()}),
    ),
}


def server_time(client: Any, send: Callable[[], object], commands: int) -> tuple[float, float]:
    """The server's microseconds for a command or script: the median, and the mean."""
    client.config_resetstat()
    send()
    spent = client.info("commandstats")
    scripts = [name for name in spent if name in ("cmdstat_evalsha", "cmdstat_eval")]
    most = max(scripts or spent, key=lambda name: float(spent[name]["usec"]))
    percentiles = client.info("latencystats")[most.replace("cmdstat", "latency_percentiles_usec")]
    return percentiles["p50"], sum(spent[name]["usec"] for name in scripts or [most]) / commands


def alone(client: Any, kit: ShardKit) -> dict[str, dict[str, float]]:
    sends: dict[tuple[str, str], Callable[[], object]] = {}
    for name, (plain, make, add) in ALONE.items():
        structure = make(kit)

        def send_plain(plain: Callable[[], tuple[Any, ...]] = plain) -> None:
            pipe = client.pipeline(transaction=False)
            for _ in range(AT_ONCE):
                pipe.execute_command(*plain())
            pipe.execute()

        def send_ours(add: Callable[[Any], Any] = add, structure: Any = structure) -> None:
            kit.together(*(add(structure) for _ in range(AT_ONCE)))

        sends |= {(name, "plain"): send_plain, (name, "to a growing one"): send_ours}
        for _ in range(MEMBERS // AT_ONCE):
            send_plain()
            send_ours()
    times: dict[tuple[str, str], list[tuple[float, float]]] = {each: [] for each in sends}
    for _ in range(BATCHES):
        for each, send in sends.items():
            times[each].append(server_time(client, send, AT_ONCE))
    found: dict[str, dict[str, float]] = {}
    for (name, kind), taken in times.items():
        for what, some in zip(("median", "mean"), zip(*taken, strict=True), strict=True):
            found.setdefault(name, {})[f"{kind}, {what}"] = quantiles(some, n=20)[0]
    return found


# ---- many at once

Load = Callable[[Any, Sequence[Any]], object]


def in_pages(load: Callable[[Any, list[Any]], object]) -> Load:
    """Load by a plain command for every page."""

    def load_all(to: Any, members: Sequence[Any]) -> None:
        rest = iter(members)
        while page := list(islice(rest, PAGE)):
            load(to, page)

    return load_all


def numbers(count: int) -> list[Any]:
    return [RANDOM.getrandbits(60) for _ in range(count)]


def texts(count: int) -> list[Any]:
    return [text() for _ in range(count)]


def fields(count: int) -> list[Any]:
    return [(text(), "value") for _ in range(count)]


def scores(count: int) -> list[Any]:
    return [(text(), RANDOM.random()) for _ in range(count)]


plain_set = in_pages(lambda client, page: client.sadd("plain", *page))

# For each its members, how the plain command loads them, and structures with how they do.
BULK: dict[str, tuple[Callable[[int], list[Any]], Load, dict[str, tuple[Any, Load]]]] = {
    "set of numbers": (
        numbers,
        plain_set,
        {
            "growing": (
                lambda kit, n: kit.set("s", component="one", members=int),
                lambda s, members: s.sadd_many(members),
            ),
            "planned": (
                lambda kit, n: kit.set("s", total=n, component="one", members=int),
                lambda s, members: s.sadd_many(members),
            ),
        },
    ),
    "set of text": (
        texts,
        plain_set,
        {
            "growing": (
                lambda kit, n: kit.set("s", component="one"),
                lambda s, members: s.sadd_many(members),
            ),
            "planned": (
                lambda kit, n: kit.set("s", total=n, component="one"),
                lambda s, members: s.sadd_many(members),
            ),
        },
    ),
    "hash": (
        fields,
        in_pages(lambda client, page: client.hset("plain", mapping=dict(page))),
        {
            "growing": (
                lambda kit, n: kit.hash("h", component="one"),
                lambda h, pairs: h.hset_many(pairs),
            ),
            "planned": (
                lambda kit, n: kit.hash("h", total=n, component="one"),
                lambda h, pairs: h.hset_many(pairs),
            ),
        },
    ),
    "sorted set": (
        scores,
        in_pages(lambda client, page: client.zadd("plain", dict(page))),
        {
            "growing": (
                lambda kit, n: kit.sorted_set("z", component="one"),
                lambda z, pairs: z.zadd_many(pairs),
            ),
        },
    ),
}


def spent(client: Any, load: Load, to: Any, members: Sequence[Any]) -> tuple[float, float]:
    """Seconds of a load: by the clock, and of both processors."""

    def processors() -> float:
        found = client.info("cpu")
        return float(time.process_time() + found["used_cpu_user"] + found["used_cpu_sys"])

    before, began = processors(), time.perf_counter()
    load(to, members)
    return time.perf_counter() - began, processors() - before


def bulk(client: Any, kit: ShardKit, count: int) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, (make_members, load_plain, structures) in BULK.items():
        members = make_members(count)
        best: dict[str, tuple[float, float]] = {}
        for _ in range(ROUNDS):
            taken = {"plain": spent(client, load_plain, client, members)}
            client.flushall()
            for kind, (make, load) in structures.items():
                structure = make(kit, count)
                taken[kind] = spent(client, load, structure, members)
                structure.delete()
                client.flushall()
            for kind, times in taken.items():
                best[kind] = tuple(map(min, best.get(kind, times), times))  # type: ignore[assignment]
        found[name] = {
            kind: {
                "seconds": best[kind][0],
                "times plain": best[kind][0] / best["plain"][0],
                "processors, times plain": best[kind][1] / best["plain"][1],
            }
            for kind in best
        }
    return found


def rows(found: Iterable[tuple[str, dict[str, dict[str, float]]]]) -> list[tuple[Any, ...]]:
    return [
        (name, kind, *figures.values()) for name, kinds in found for kind, figures in kinds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("one", "bulk"))
    chosen = parser.parse_args()
    result: dict[str, Any] = conditions()
    with LocalServer() as server, server.client() as client:
        shards = f"{{shards: [{{port: {server.port}, socket_timeout: null}}]}}"
        with shardkit.connect(ShardMap.parse(f"components: {{one: {shards}}}")) as kit:
            if chosen.only != "bulk":
                result["alone_us"] = added = alone(client, kit)
                table = [(name, *times.values()) for name, times in added.items()]
                show("One member added alone: the server's us", ("", *added["hash"]), table)
                client.flushall()
            if chosen.only != "one":
                result["members"] = chosen.members
                result["bulk"] = loaded = bulk(client, kit, chosen.members)
                columns = ("", "", "seconds", "times plain", "processors, times plain")
                show(f"{chosen.members:,} members at once", columns, rows(loaded.items()))
    if chosen.only is None:
        save("growing", result)


if __name__ == "__main__":
    main()
