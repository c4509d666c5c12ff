"""An index, ads and job search are rebuilt from their documents, whatever else was damaged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from faces import Exchanges, Face, clocked

from shardkit import DamagedDataError, ShardKit
from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.search import AllOf, AnyOf, Node, Not, Word, unparse

STATE = "{s:0}:state"
OPTIONS: dict[str, Any] = {
    "component": "one",
    "parts": 1,
    "chunk": 64,
    "fields": {"title": 3.0, "text": 1.0},
    "attributes": {"lang": "text", "votes": "number", "born": "date"},
}
QUERIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fox", {"limit": 200}),
    ('"red fox" x3', {"attributes": True, "facets": ["lang"]}),
    ("title:w7", {}),
    ("w1* votes:3..100 -lang:=l1", {"sort": "lang"}),
    ("lang:=l2", {"sort": "-votes", "attributes": True}),
    ("*", {"sort": "votes", "limit": 5}),
)


def opened(face: Face, **options: Any) -> Any:
    return face.kit.search("s", **{**OPTIONS, **options})


def fill(face: Face, index: Any) -> None:
    face.run(
        index.index_many(
            (
                f"d{n:03}",
                {
                    "title": f"w{n}",
                    "text": f"red fox x{n % 5} red" if n % 2 else f"fox red x{n % 5}",
                },
                {"lang": [f"l{n % 3}", "all"] if n % 7 else f"l{n % 3}", "votes": n},
            )
            for n in range(150)
        )
    )
    face.run(index.remove_many([f"d{n:03}" for n in range(0, 150, 11)]))


def answers(face: Face, index: Any) -> list[Any]:
    found = [face.run(index.search(text, **options)) for text, options in QUERIES]
    return [
        ([(hit.id, hit.value, hit.attributes) for hit in results], results.total, results.facets)
        for results in found
    ]


def dumps(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.scan_iter()}


def restore(client: Any, held: dict[bytes, bytes]) -> None:
    client.flushdb()
    for key, dump in held.items():
        client.restore(key, 0, dump)


def _note(told: list[tuple[int, int]], done: int, total: int) -> None:
    told.append((done, total))


def remove(client: Any, pattern: str) -> None:
    client.delete(*client.scan_iter(pattern))


def other_types(client: Any) -> None:
    for key in list(client.scan_iter("{s:0}:*")):
        if b":d:" not in key:
            client.delete(key)
            client.rpush(key, "x")


def swapped_words(client: Any) -> None:
    client.rename("{s:0}:l:red", "between")
    client.rename("{s:0}:l:fox", "{s:0}:l:red")
    client.rename("between", "{s:0}:l:fox")


DAMAGES: dict[str, Any] = {
    "nothing": lambda client: None,
    "parameters": lambda client: client.delete("s:meta"),
    "the state": lambda client: client.delete(STATE),
    "a state of another type": lambda client: (client.delete(STATE), client.set(STATE, 1)),
    "its next": lambda client: client.hset(STATE, "next", 10**12),
    "its words": lambda client: client.hset(STATE, "words", 2),
    "postings": lambda client: remove(client, "{s:0}:r:*"),
    "long postings": lambda client: remove(client, "{s:0}:w:*"),
    "columns": lambda client: remove(client, "{s:0}:a:*"),
    "marks and ids": lambda client: (remove(client, "{s:0}:v:*"), remove(client, "{s:0}:n:*")),
    "values of text": lambda client: remove(client, "{s:0}:y:*"),
    "the place of a value of text": lambda client: client.hset("{s:0}:y:0", "x", "l1"),
    "the beginnings of words": lambda client: client.delete("{s:0}:starts"),
    "all but documents": lambda client: client.delete(
        *(key for key in client.scan_iter() if b":d:" not in key)
    ),
    "all but documents, by other types": other_types,
}
WITH_TEXT: dict[str, Any] = {
    "words": lambda client: remove(client, "{s:0}:l:*"),
    "two words of one id": lambda client: client.hset(
        "{s:0}:l:red", "red", client.hget("{s:0}:l:fox", "fox")
    ),
    "an id that is none": lambda client: client.hset("{s:0}:l:red", "red", "x"),
    "words elsewhere": swapped_words,
}
KEEPS_NONE = ("all but documents", "all but documents, by other types")


@pytest.mark.long(1)
@pytest.mark.parametrize("keep_text", [True, False])
def test_an_index_is_rebuilt_from_its_documents_alone(
    face: Face, kit: ShardKit, keep_text: bool
) -> None:
    index, client = opened(face, keep_text=keep_text), kit.client("one")
    fill(face, index)
    right, held = answers(face, index), dumps(client)
    documents = face.run(index.get_many([f"d{n:03}" for n in range(150)]))
    damages = {**DAMAGES, **WITH_TEXT}
    if not keep_text:
        damages = {name: act for name, act in DAMAGES.items() if name not in KEEPS_NONE}
    assert damages
    for name, act in damages.items():
        restore(client, held)
        act(client)
        again = opened(face)  # what is stored decides whether there is text
        told: list[tuple[int, int]] = []
        progress = partial(_note, told)
        assert face.run(again.rebuild(progress=progress)) == 136, name
        assert told[-1] == (136, 136)
        assert answers(face, opened(face)) == right, name
        assert face.list(again.check()) == [], name
        assert face.run(again.get_many(documents)) == documents
        assert face.run(again.index("new", "red whale", {"lang": "l9"})) == 2
        assert list(client.scan_iter("{s:0}:o:*")) == []


def test_an_index_with_neither_text_nor_the_order_of_words_is_refused_unchanged(
    face: Face, kit: ShardKit
) -> None:
    index = opened(face, keep_text=False, phrases=False)
    fill(face, index)
    before = dumps(kit.client("one"))
    with pytest.raises(DamagedDataError, match="neither text nor the order of words"):
        face.run(index.rebuild())
    assert dumps(kit.client("one")) == before


LOST: dict[str, Any] = {
    "deleted": lambda client: client.delete("{s:0}:d:d007"),
    "cut": lambda client: client.set("{s:0}:d:d007", "short"),
    "of another type": lambda client: (
        client.delete("{s:0}:d:d007"),
        client.rpush("{s:0}:d:d007", "x"),
    ),
    "garbage": lambda client: client.set("{s:0}:d:d007", b"\0" * 8 + b"\2\0\0\0xx" + b"\1yy"),
    "of an id that is no text": lambda client: client.rename("{s:0}:d:d007", b"{s:0}:d:\xff"),
    "with a text for a number": lambda client: client.set(
        "{s:0}:d:d007", b"\0" * 8 + b"\x0d\0\0\0" + b'[null,"many"]' + b"\0[]"
    ),
}


@pytest.mark.long(4)
@pytest.mark.parametrize("how", LOST)
def test_a_document_that_is_lost_is_given_up_only_if_that_is_said(
    face: Face, kit: ShardKit, how: str
) -> None:
    index, client = opened(face), kit.client("one")
    fill(face, index)
    LOST[how](client)
    before = dumps(client)
    with pytest.raises(DamagedDataError, match=r"s:0.*rebuild\(lossy=True\)|s:0.*is damaged"):
        face.run(index.rebuild())
    assert dumps(client) == before
    assert any(each.repair.startswith("rebuild()") for each in face.list(index.check()))
    assert face.run(index.rebuild(lossy=True)) == 135
    assert face.list(index.check()) == []


@pytest.mark.long(2)
@pytest.mark.parametrize("wrong", ["no id", "an id of two words", "a key of another type"])
def test_a_word_whose_id_is_lost_is_given_up_only_if_that_is_said(
    face: Face, kit: ShardKit, wrong: str
) -> None:
    index, client = opened(face, keep_text=False), kit.client("one")
    fill(face, index)
    lost = ["red", "x0"] if wrong == "an id of two words" else ["red"]
    if wrong == "a key of another type":
        client.delete("{s:0}:l:red")
        client.rpush("{s:0}:l:red", "x")
    else:
        id_ = "x" if wrong == "no id" else client.hget("{s:0}:l:x0", "x0")
        client.hset("{s:0}:l:red", "red", id_)
    before = dumps(client)
    with pytest.raises(DamagedDataError, match=r"word \d+, .*rebuild\(lossy=True\)"):
        face.run(index.rebuild())
    assert dumps(client) == before
    assert face.run(index.rebuild(lossy=True)) == 136
    assert [face.run(index.count(word)) for word in ["fox", *lost]] == [136, *(0 for _ in lost)]
    assert face.list(index.check()) == []
    assert face.run(index.index("new", "red x0")) == 2
    for word in lost:
        assert [hit.id for hit in face.run(index.search(word))] == ["new"]
    assert face.list(index.check()) == []


@pytest.mark.long(1)
def test_a_rebuild_that_is_interrupted_anywhere_is_begun_again(face: Face, kit: ShardKit) -> None:
    index, client = opened(face, keep_text=False), kit.client("one")
    fill(face, index)
    right, held = answers(face, index), dumps(client)
    exchanges = interrupted = 0
    while True:
        restore(client, held)
        if not Exchanges(face, index.deferred.rebuild()).stop_after(exchanges + 1):
            break
        if client.hexists(STATE, "rebuild"):
            interrupted += 1
            for write in (
                lambda: index.index("new", "blue whale"),
                lambda: index.remove("d001"),
                lambda: index.remove_many(["d001", "d002"]),
            ):
                with pytest.raises(DamagedDataError, match="rebuild that has not ended"):
                    face.run(write())
            assert any("rebuild" in each.found for each in face.list(index.check()))
        if exchanges % 3 == 0:
            assert face.run(index.rebuild()) == 136
            assert answers(face, index) == right
            assert face.list(index.check()) == []
        exchanges += 1
    assert interrupted > 5
    restore(client, held)
    assert Exchanges(face, index.deferred.rebuild()).stop_after(exchanges - 1)
    assert face.run(index.delete()) == 136
    assert list(client.scan_iter("{s:0}:*")) == []


def test_of_two_rebuilds_the_one_that_began_first_writes_no_more(face: Face, kit: ShardKit) -> None:
    index, client = opened(face), kit.client("one")
    fill(face, index)
    right = answers(face, index)
    first = Exchanges(face, index.deferred.rebuild())
    assert any(client.hexists(STATE, "rebuild") for _ in first)
    assert face.run(opened(face).rebuild()) == 136
    with pytest.raises(ShardKitError, match="no rebuild"):
        list(first)
    assert answers(face, opened(face)) == right


def test_ads_keep_what_they_earned_when_they_are_rebuilt(face: Face, kit: ShardKit) -> None:
    client = kit.client("one")
    ads = clocked(face.kit, new_id=iter(map(str, range(999))).__next__).ads(component="one")
    for n in range(9):
        face.run(ads.index(f"ad{n}", ["Berlin", f"town {n}"], f"running shoes {n}", "cpc", n + 1))
    face.run(ads.index("wine", ["Rome"], "red wine", "cpm", 0.1))
    for _ in range(20):
        served = face.run(ads.target(["Berlin"], "running in shoes 5"))
        face.run(ads.record_click(served.target, served.ad))
    face.run(ads.remove("ad3"))
    ids = [*(f"ad{n}" for n in range(9)), "wine"]
    right = [face.run(ads.get(ad)) for ad in ids]
    counts = set(client.scan_iter("{ads:0}:ad:*"))
    assert 0 < len(counts) < len(ids)
    for pattern in ("{ads:0}:bonus:*", "{ads:0}:a:*", "{ads:0}:r:*", "{ads:0}:state", "ads:meta"):
        remove(client, pattern)
        again = face.kit.ads(component="one")
        assert face.run(again.rebuild()) == 9
        assert [face.run(again.get(ad)) for ad in ids] == right, pattern
        assert face.list(again.check()) == []
        assert set(client.scan_iter("{ads:0}:ad:*")) == counts
    assert face.run(again.target(["Rome"])).ad == "wine"
    damaged = min(counts)
    client.hset(damaged, "v", "x")
    assert face.run(again.rebuild()) == 9
    assert [each.key for each in face.list(again.check())] == [damaged.decode()]


def test_jobs_are_rebuilt_from_what_they_require(face: Face, kit: ShardKit) -> None:
    client = kit.client("one")
    jobs = face.kit.job_search(component="one", measure="years")
    face.run(jobs.index_many((f"j{n}", {"python": n % 5, f"skill {n % 9}": 1}) for n in range(60)))
    face.run(jobs.index("any", {}))

    def found() -> Any:
        again = face.kit.job_search(component="one", measure="years")
        return face.run(again.find({"python": 3, "skill 7": 2, "skill 2": 1}, limit=99))

    right = found()
    remove(client, "{jobs:0}:[^d]*")
    assert face.run(jobs.rebuild()) == 61
    assert found() == right
    assert face.list(jobs.check()) == []


COUNT = 400


@pytest.fixture
def index(face: Face) -> Any:
    index = face.kit.search("s", component="one", parts=1, attributes={"lang": "text"}, chunk=128)
    documents = [
        (f"d{n:03}", f"every w{n % 40} x{n}", {"lang": "en" if n % 3 else "de"})
        for n in range(COUNT)
    ]
    face.run(index.index_many(documents))
    return index


class Calls:
    """Counts the calls of scripts on a server."""

    def __init__(self, kit: ShardKit) -> None:
        self._client: Any = kit.client("one")

    def reset(self) -> None:
        self._client.config_resetstat()

    @property
    def count(self) -> int:
        return int(self._client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.fixture
def calls(kit: ShardKit) -> Calls:
    return Calls(kit)


def test_a_query_of_more_words_than_a_call_can_look_up_is_refused(face: Face, index: Any) -> None:
    text = " ".join(f"x{n}" for n in range(8_000))
    for query in (f'"{text}"', text, AllOf((Word("every"), Not(Word(text))))):
        with pytest.raises(InvalidArgumentError, match=r"8,00[01] different words"):
            face.run(index.search(query))


def test_words_with_a_prefix_are_listed_some_at_a_time(
    face: Face, index: Any, calls: Calls, lower: Any
) -> None:
    face.run(index.index("more", " ".join(f"long{n}" for n in range(2_000)) + " lo* l"))
    wanted = sorted(["l", "lo", *(f"long{n}" for n in range(2_000))])
    lower(search_words=10)
    for prefix in ("long", "lon", "lo", "l", "long11"):
        expected = [word for word in wanted if word.startswith(prefix)]
        calls.reset()
        assert face.run(index.words(prefix, 20)) == [(word, 1) for word in expected[:20]]
        assert calls.count >= 3
        assert [word for word, _ in face.run(index.words(prefix, 1_000))] == expected[:1_000]
    with pytest.raises(InvalidArgumentError, match="more than 1,000 words begin with long"):
        face.run(index.search("long*"))


WRAPS: list[Callable[[Node], Node]] = [
    lambda tree: AllOf((Word("every"), tree)),
    lambda tree: AnyOf((tree, Word("nothing"))),
    lambda tree: Not(tree),
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_trees_of_a_hundred_levels_are_searched_and_deeper_ones_are_refused(
    face: Face, index: Any, wrap: Callable[[Node], Node]
) -> None:
    tree: Node = Word("w7")
    for _ in range(99):
        tree = wrap(tree)
    expected = 0 if isinstance(tree, Not) else 10
    assert face.run(index.count(tree)) == expected
    assert unparse(tree)
    for deeper in (1, 150, 5_000):
        for _ in range(deeper):
            tree = wrap(tree)
        with pytest.raises(InvalidArgumentError, match="more than 100 levels"):
            face.run(index.search(tree))
        with pytest.raises(InvalidArgumentError, match="more than 100 levels"):
            unparse(tree)


def script_calls(calls: Calls, action: Callable[[], Any]) -> int:
    calls.reset()
    action()
    return calls.count


def test_documents_are_removed_and_replaced_in_slices_by_what_their_words_take(
    face: Face, index: Any, calls: Calls, lower: Any
) -> None:
    ids = [f"d{n:03}" for n in range(COUNT)]
    whole = script_calls(calls, lambda: face.run(index.remove_many(ids[:50])))
    lower(search_write_time=1)
    assert whole == 1
    assert script_calls(calls, lambda: face.run(index.remove_many(ids[50:100]))) == 50
    replaced = [(doc_id, "every changed", {"lang": "fr"}) for doc_id in ids[90:130]]
    assert script_calls(calls, lambda: face.run(index.index_many(replaced))) == 30
    assert face.run(index.remove_many(ids[:60])) == 0
    assert [hit.id for hit in face.run(index.search("changed", sort="lang", limit=100))] == ids[
        90:130
    ]
    assert face.run(index.count("every")) == face.run(index.count()) == COUNT - 90
    assert face.run(index.count("lang:=fr")) == 40
