"""Damaged data of an index: what is wrong is said by its key, and nothing new joins what is old."""

from __future__ import annotations

import random
from typing import Any

import pytest
from faces import Face

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, ShardKitError

STATE = "{s:0}:state"
ATTRIBUTES = {"lang": "text", "votes": "number"}


@pytest.fixture
def index(face: Face) -> Any:
    index = face.kit.search("s", component="one", shards=1, attributes=ATTRIBUTES, chunk=64)
    face.run(
        index.index_many(
            (f"d{n:03}", f"red fox w{n} x{n % 5}", {"lang": f"l{n % 3}", "votes": n})
            for n in range(150)
        )
    )
    return index


@pytest.fixture
def client(kit: ShardKit) -> Any:
    return kit.client("one")


def words(client: Any) -> dict[bytes, bytes]:
    return {
        word: number
        for key in client.scan_iter("{s:0}:l:*")
        for word, number in client.hgetall(key).items()
    }


LOST = {
    "all of the state": lambda client: client.delete(STATE),
    **{
        f"{name} of the state": lambda client, name=name: client.hdel(STATE, name)
        for name in ("next", "words", "docs", "version", "c1")
    },
    **{
        f"{name}={value}": lambda client, name=name, value=value: client.hset(STATE, name, value)
        for name, value in [
            ("next", 5),
            ("next", "1e9"),
            ("next", 10**12),
            ("words", 0),
            ("words", "x"),
            ("docs", -1),
            ("docs", 149),
            ("c0", 10**9),
            ("c99", 1),
        ]
    },
}


@pytest.mark.parametrize("lost", sorted(LOST))
def test_without_its_state_a_part_is_neither_read_nor_written(
    face: Face, index: Any, client: Any, lost: str
) -> None:
    before = words(client)
    LOST[lost](client)
    for use in (
        lambda: index.index("new", "blue whale", {"lang": "new"}),
        lambda: index.remove("d001"),
        lambda: index.search("fox"),
        lambda: index.words("w"),
        lambda: index.search("w1*"),
    ):
        with pytest.raises(DamagedDataError, match=r"s:0.:state is damaged"):
            face.run(use())
    assert words(client) == before
    assert face.run(index.delete()) == 150
    assert list(client.scan_iter("{s:0}:*")) == []
    assert face.run(index.index("new", "blue whale")) == 2
    assert [hit.id for hit in face.run(index.search("whale"))] == ["new"]


@pytest.mark.parametrize(("name", "value"), [("words", 7), ("words", 40), ("next", 150)])
def test_a_number_that_is_in_use_is_not_given_again(
    face: Face, index: Any, client: Any, name: str, value: int
) -> None:
    if name == "next":
        face.run(index.remove_many(["d000", "d001"]))
        value = 148
    client.hset(STATE, name, value)
    before = words(client)
    with pytest.raises(DamagedDataError, match=f"s:0.:state is damaged: {name}={value}"):
        face.run(index.index("new", "blue whale"))
    assert words(client) == before
    assert face.run(index.count()) == (148 if name == "next" else 150)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_damaged_the_error_is_one_of_ours(
    face: Face, index: Any, client: Any, seed: int
) -> None:
    chance = random.Random(seed)
    dumps = {key: client.dump(key) for key in client.scan_iter("*")}
    for key in sorted(dumps):
        kind = client.type(key)
        how = chance.choice(["delete", "other type", "cut", "garbage"])
        client.delete(key)
        if how == "other type":
            client.rpush(key, "x")
        elif how != "delete" and kind == b"string":
            client.restore(key, 0, dumps[key])
            held = client.get(key)
            client.set(key, held[: len(held) // 2] if how == "cut" else b"\xff" * len(held))
        elif how != "delete" and kind == b"hash":
            client.restore(key, 0, dumps[key])
            for field in client.hkeys(key)[:: 2 if how == "cut" else 1]:
                client.hdel(key, field) if how == "cut" else client.hset(key, field, "\xff")
        for use in (
            lambda: index.search('"red fox" x1', attributes=True, snippets=True, facets=["lang"]),
            lambda: index.search("w1* votes:3..100 -lang:=l1", sort="lang", cache=10),
            lambda: index.search("*", sort="-votes", attributes=True),
            lambda: index.get_many([f"d{n:03}" for n in range(0, 150, 10)]),
            lambda: index.words("w", 10),
            lambda: index.info(),
            lambda: index.index("d003", "green whale", {"lang": "new"}),
            lambda: index.remove_many(["d004", "d005"]),
        ):
            try:
                face.run(use())
            except ShardKitError as error:
                assert "user_script" not in str(error), (key, how)  # noqa: PT017
        client.flushdb()
        for each, dump in dumps.items():
            client.restore(each, 0, dump)
