"""No call of a script looks at more than some milliseconds' worth: queries continue in slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faces import Face

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError
from shardkit.search import AllOf, AnyOf, Node, Not, Word, parts, searcher, unparse

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
    face: Face, index: Any, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    face.run(index.index("more", " ".join(f"long{n}" for n in range(2_000)) + " lo* l"))
    wanted = sorted(["l", "lo", *(f"long{n}" for n in range(2_000))])
    monkeypatch.setattr(searcher, "WORDS_PER_CALL", 10)
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


def test_documents_are_written_in_slices_by_their_words_not_by_their_count(
    face: Face, index: Any, calls: Calls
) -> None:
    def documents(words: int) -> list[tuple[str, str]]:
        return [(f"n{n}", " ".join(f"v{n * i % 977}" for i in range(words))) for n in range(60)]

    short = script_calls(calls, lambda: face.run(index.index_many(documents(5))))
    long = script_calls(calls, lambda: face.run(index.index_many(documents(200))))
    assert short == 1
    assert long >= 60 * 200 / 1_500
    assert face.run(index.count("v0")) == 60
    assert face.run(index.count("every")) == COUNT


def test_documents_are_removed_and_replaced_in_slices_by_what_their_words_take(
    face: Face, index: Any, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"d{n:03}" for n in range(COUNT)]
    whole = script_calls(calls, lambda: face.run(index.remove_many(ids[:50])))
    monkeypatch.setattr(parts, "WRITE_MICROSECONDS", 1)
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
