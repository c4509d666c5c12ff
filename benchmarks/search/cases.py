"""The cases: what is measured, and over what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from throughput.proxy import delayed

from search.corpus import Passage
from search.engines import (
    MODULE,
    Book,
    Engine,
    Ours,
    RediSearch,
    Sqlite,
    counted_shards,
    query_text,
)
from search.queries import Query
from search.timing import Used, indexing, latencies, processor, summary
from shardkit.operations.commands import Command, Replies, ShardOf
from shardkit.operations.drivers import BlockingDriver

Figures = dict[str, Any]
SHARDS = (1, 2, 4, 8)
DELAY = 0.0005  # seconds in either direction: one millisecond there and back


def peers(corpus: Sequence[Passage], queries: dict[str, list[Query]], rounds: int) -> Figures:
    """Compare engines on the same documents and queries."""
    engines: list[Engine] = [Ours(1), Ours(4), Sqlite(False), Sqlite(True)]
    if MODULE.exists():
        engines.append(RediSearch())
    else:
        print(f"RediSearch is left out: there is no {MODULE} (Debian's redis-redisearch)")
    engines.append(Book(4))
    found: Figures = {"indexing": {}, "queries": {}, "matches": {}}
    with ExitStack() as stack:
        for engine in engines:
            stack.enter_context(engine)
            found["indexing"][engine.name] = indexing(engine, corpus)
        for kind, asked in queries.items():
            able = [engine for engine in engines if kind not in engine.unable]
            times = latencies({e.name: e.ask for e in able}, asked, rounds)
            found["queries"][kind] = {
                e.name: summary(times[e.name]) | processor(e, asked, 2) for e in able
            }
            found["matches"][kind] = {
                e.name: round(sum(e.ask(q)[0] for q in asked) / len(asked), 1) for e in able
            }
    return found


def over_shards(corpus: Sequence[Passage], queries: dict[str, list[Query]], rounds: int) -> Figures:
    """Compare numbers of shards, all asked at the same time, and one after another."""
    found: Figures = {"indexing": {}, "queries": {}, "one after another": {}}
    asked = [query for each in queries.values() for query in each]
    with ExitStack() as stack:
        ours = [stack.enter_context(Ours(shards)) for shards in SHARDS]
        for one in ours:
            found["indexing"][counted_shards(one.shards)] = indexing(one, corpus)
        asks: dict[str, Callable[[Query], object]] = {one.name: one.ask for one in ours}
        asks |= {f"{one.name}, in turn": in_turn(one) for one in ours[1:]}
        for name, times in latencies(asks, asked, rounds).items():
            shards, _, turn = name.removeprefix("shardkit, ").partition(", ")
            found["one after another" if turn else "queries"][shards] = summary(times)
        for one in ours:
            found["queries"][counted_shards(one.shards)] |= processor(one, asked, 2)
        found["1 ms away"] = far(stack, ours, queries["rare word"] + queries["three words"], rounds)
    return found


class _InTurn:
    """A link that sends the commands of a batch one after another, each when the last is answered.

    That is how the book asks shards. All else is the same code.
    """

    def __init__(self, link: Any) -> None:
        self._link = link
        self.locate = link.locate
        self.pause = link.pause

    def send(self, batch: Sequence[Any]) -> Replies:
        return Replies([reply for command in batch for reply in self._link.send([command])])


def in_turn(ours: Ours) -> Callable[[Query], object]:
    """Return what asks an index whose shards are asked one after another."""
    driver = BlockingDriver(_InTurn(ours.kit._driver.link))
    search = ours.search.deferred.search
    return lambda query: driver.run(search(query_text(query)))


def pinging(ours: Ours) -> Callable[[Query], object]:
    """Return what asks all shards at once for next to nothing: what distance and proxy cost."""
    batch = [
        Command(ShardOf("search", number, ours.shards), "k", ("EXISTS", "k"))
        for number in range(ours.shards)
    ]
    send = ours.kit._driver.link.send
    return lambda query: send(batch)


def far(
    stack: ExitStack, ours: Sequence[Ours], asked: Sequence[Query], rounds: int
) -> dict[str, dict[str, float]]:
    """Ask the same servers from a millisecond away."""
    asks: dict[str, Callable[[Query], object]] = {}
    for one in ours:
        away = stack.enter_context(delayed([("127.0.0.1", port, 0) for port in one.ports], DELAY))
        ports = [port for _, port, _ in away]
        distant = Ours(one.shards)
        stack.callback(distant.stack.close)
        distant.connect(ports)
        asks[counted_shards(one.shards)] = distant.ask
        asks[f"{counted_shards(one.shards)}, EXISTS"] = pinging(distant)
        if one.shards > 1:
            name = f"{counted_shards(one.shards)}, one after another"
            asks[name] = in_turn(distant)
    return {name: summary(times) for name, times in latencies(asks, asked, rounds).items()}


def depth(corpus: Sequence[Passage], rounds: int, deepest: int = 1_000) -> Figures:
    """Measure pages of 10, from the first to the thousandth, by number and by cursor.

    Returns the milliseconds of processor time that a page takes, the caller's and the servers'.
    """
    deepest = min(deepest, len(corpus) // 10)
    pages = [page for page in (1, 3, 10, 30, 100, 300, 1_000) if page <= deepest]
    found: dict[str, dict[str, float]] = {"start, num": {}, "cursor": {}}
    with Ours(4) as ours:
        indexing(ours, corpus)
        search = ours.search.search
        cursors: dict[int, str | None] = {1: None}
        after = None
        for page in range(1, pages[-1]):
            after = search("*", sort="-updated", limit=10, cursor=after).cursor
            cursors[page + 1] = after
        for page in pages:
            options: list[dict[str, Any]] = [{"offset": (page - 1) * 10}, {"cursor": cursors[page]}]
            listed = [
                [hit.id for hit in search("*", sort="-updated", limit=10, **each)]
                for each in options
            ]
            assert listed[0] == listed[1], page
            for each, figures in zip(options, found.values(), strict=True):
                used = Used(ours)
                for _ in range(2 * rounds):
                    search("*", sort="-updated", limit=10, **each)
                spent = used.each(2 * rounds)
                figures[str(page)] = round((spent["caller, us"] + spent["servers, us"]) / 1000, 2)
    return found
