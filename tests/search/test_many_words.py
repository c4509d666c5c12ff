"""A document of many words is written and removed in slices, and is found whole or not at all.

The other client stops, or looks, between any two exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from faces import Exchanges, Face, drawn, over, sends

from shardkit import ShardKit

WORDS = [f"w{n}" for n in range(16)]
NEW = [f"w{n}" for n in range(8, 24)]
ATTRIBUTES = {"votes": "number", "lang": "text"}


@pytest.fixture(autouse=True)
def small(lower: Any) -> None:
    """Documents of more than 8 words are written by 5 words, and removed by one."""
    lower(search_terms=8, search_slice_words=5, search_slice_time=30)
    lower(search_write_time=10, search_pending=0)


def opened(kit: Any) -> Any:
    return kit.search(
        "s", component="one", parts=1, attributes=ATTRIBUTES, chunk=64, statistics_ttl=0
    )


@pytest.fixture
def index(face: Face) -> Any:
    index = opened(face.kit)
    face.run(index.index_many([(f"d{n}", f"w{n} w{n + 1} other") for n in range(20)]))
    return index


def begin(kit: ShardKit, steps: Any, exchanges: int) -> bool:
    """Do some exchanges of steps, then stop as a killed client does; return whether it was done."""
    return not Exchanges(Face(kit, None), steps).stop_after(exchanges)


def seen(index: Any, words: list[str]) -> list[int]:
    """Whether the document ``long`` is found by each of some words."""
    return [
        sum(hit.id == "long" for hit in index.search(word, limit=1_000, attributes=True))
        for word in words
    ]


def sound(index: Any) -> bool:
    return list(index.check()) == []


def test_a_long_document_is_checked_some_words_at_a_time(face: Face, kit: ShardKit) -> None:
    index = face.kit.search("s", component="one", parts=1)
    face.run(index.index("long", " ".join(f"w{n}" for n in range(4_000))))
    calls: list[Any] = []
    check = Exchanges(face, index.deferred.check())
    check.end(lambda step: calls.append(sends(step, "search/check_documents")))
    assert (check.values, sum(calls)) == ([], 5)
    client: Any = kit.client("one")
    client.delete("{s:0}:r:0:30")
    assert "{s:0}:r:0:30" in {damage.key for damage in face.list(index.check())}


CHANGES: dict[str, tuple[list[str], Callable[[Any], Any], list[str]]] = {
    "added": ([], lambda index: index.deferred.index("long", " ".join(NEW), {"votes": 2}), NEW),
    "replaced": (
        WORDS,
        lambda index: index.deferred.index("long", " ".join(NEW), {"votes": 2, "lang": "de"}),
        NEW,
    ),
    "replaced by few words": (WORDS, lambda index: index.deferred.index("long", "w1 new"), ["w1"]),
    "removed": (WORDS, lambda index: index.deferred.remove("long"), []),
}


@pytest.mark.long(1)
@pytest.mark.parametrize("change", CHANGES)
def test_a_client_killed_between_two_exchanges_leaves_one_of_both_and_others_finish(
    kit: ShardKit, change: str
) -> None:
    before, changed, after = CHANGES[change]
    every = sorted({*WORDS, *NEW, "new"})
    exchanges, done = 0, False
    while not done:
        index = opened(kit)
        index.index_many([(f"d{n}", f"w{n} w{n + 1} other") for n in range(20)])
        if before:
            index.index("long", " ".join(before), {"votes": 1, "lang": "en"})
        done = begin(kit, changed(index), exchanges)
        other = opened(kit)
        found = seen(other, every)
        was, becomes = ([int(word in of) for word in every] for of in (before, after))
        if change == "replaced by few words":
            becomes[every.index("new")] = 1
        assert found in (was, becomes), exchanges
        assert sound(other)
        counts = {word: other.count(word) for word in every}
        assert dict(other.words("w", 1_000)) == {
            word: count for word, count in counts.items() if count and word != "new"
        }
        assert other.count() == 20 + (1 in found)
        other.index("d0", "w0 w1 other")  # whoever writes next finishes
        assert not list(kit.client("one").scan_iter("*:p:*"))
        assert seen(other, every) == found
        assert sound(other)
        other.index("long", " ".join(WORDS))
        assert seen(other, every) == [int(word in WORDS) for word in every]
        assert sound(other)
        assert other.delete() == 21
        assert kit.client("one").dbsize() == 0
        exchanges += 1
    assert exchanges >= 3, change


def test_two_clients_write_one_document_of_many_words_and_one_of_both_is_found(
    kit: ShardKit,
) -> None:
    texts = (" ".join(WORDS), " ".join(NEW))
    for stop in range(7):
        index, other = opened(kit), opened(kit)
        index.index("long", "old")
        first = Exchanges(Face(kit, None), index.deferred.index("long", texts[0]))
        first.stop_after(stop)
        other.index("long", texts[1])
        list(first)
        found = seen(other, ["w0", "w23", "old"])
        assert found in ([1, 0, 0], [0, 1, 0]), (stop, found)
        assert other.count() == 1
        assert sound(other)
        assert not list(kit.client("one").scan_iter("*:p:*"))
        index.delete()


def test_an_index_is_rebuilt_whose_documents_have_many_words(kit: ShardKit) -> None:
    index = opened(kit)
    index.index_many([("long", " ".join(WORDS)), ("short", "w1"), ("longer", " ".join(NEW))])
    assert not begin(kit, index.deferred.index("long", " ".join(NEW)), 4)
    assert not begin(kit, index.deferred.remove("longer"), 2)
    assert index.rebuild() == 2
    assert seen(index, WORDS) == [1] * len(WORDS)
    assert sound(index)
    assert not list(kit.client("one").scan_iter("*:p:*"))


def test_words_that_were_lost_before_they_were_removed_are_found_and_a_rebuild_repairs_it(
    kit: ShardKit,
) -> None:
    index = opened(kit)
    index.index_many([("long", " ".join(WORDS)), ("short", "w1")])
    assert not begin(kit, index.deferred.remove("long"), 2)
    client = kit.client("one")
    [pending] = client.scan_iter("*:p:*")
    client.delete(pending)
    assert [damage.key for damage in index.check()] == [pending.decode()]
    index.index("another", "w2")  # nobody is held up
    assert [hit.id for hit in index.search("w1")] == ["short"]
    assert index.rebuild() == 2
    assert sound(index)
    assert index.words("w") == [("w1", 1), ("w2", 1)]


@pytest.mark.long(2)
@pytest.mark.parametrize("change", ["replaced", "replaced twice", "replaced by few words"])
def test_a_document_that_is_replaced_while_a_query_continues_is_found_once(
    face: Face, index: Any, kit: ShardKit, change: str, lower: Any
) -> None:
    """It gets a number behind those that the query looks at."""
    lower(search_work=1)
    few = [(f"e{n}", "every") for n in range(60)]
    wanted = sorted([*dict(few), "long"])
    other, link = opened(kit), face.kit.driver.link
    for at in range(drawn(5, 10)):
        other.delete()
        other.index_many(few[:40])
        other.index("long", " ".join([*WORDS, "every"]), {"votes": 1, "lang": "en"})
        other.index_many(few[40:])
        asked = 0

        def interfering(batch: Any, at: int = at) -> Any:
            nonlocal asked
            if sends(batch, "search/query"):
                asked += 1
                if asked == at:
                    short = change == "replaced by few words"
                    text = "w1 every" if short else " ".join([*NEW, "every"])
                    for _ in range(1 + (change == "replaced twice")):
                        other.index("long", text, {"votes": 1, "lang": "en"})
            return link.send(batch)

        late = opened(over(face.kit, SimpleNamespace(send=interfering)))
        found = face.run(late.search("every", limit=100, facets=["lang"], cache=60))
        assert sorted(hit.id for hit in found) == wanted, at
        assert (found.total, found.facets) == (61, {"lang": [("en", 1)]}), at
        again = face.run(index.search("every", limit=100, result=found.result))
        assert sorted(hit.id for hit in again) == wanted, at
    assert asked > 7
