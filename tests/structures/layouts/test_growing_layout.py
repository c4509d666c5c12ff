"""Parts that split as they fill: the arithmetic without a server, the rest on servers."""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from faces import Exchanges, Face, drawn, sends

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.structures.layouts import growing


def test_more_members_of_one_part_than_a_script_takes_go_in_several(face: Face) -> None:
    run, fields = face.run, {str(n): f"v{n}" for n in range(3000)}
    ids = face.kit.set("ids", component="one", part_size=4096, parts=1)
    assert run(ids.sadd(*fields)) == 3000
    assert set(run(ids.smembers())) == set(fields)
    assert run(ids.srem(*fields)) == 3000
    names = face.kit.hash("names", component="one", part_size=4096, parts=1)
    assert run(names.hset(mapping=fields)) == 3000
    assert run(names.hmget(list(fields))) == [value.encode() for value in fields.values()]
    assert run(names.hlen()) == 3000


@pytest.mark.long(1)
@pytest.mark.parametrize("component", ["many", "one"])
def test_no_part_ever_outgrows_its_size(face: Face, kit: ShardKit, component: str) -> None:
    ids = face.kit.set("ids", component=component, members=int, part_size=64, parts=4)
    random = Random(1)
    largest = 0
    for _ in range(4):
        face.run(ids.sadd(*(random.getrandbits(60) for _ in range(700))))
        largest = max(largest, *(size for size, _ in parts_of(kit, component, "ids")))
    assert largest <= 64
    assert {encoding for _, encoding in parts_of(kit, component, "ids")} == {b"intset"}
    assert face.run(ids.scard()) == 4 * 700 == len(set(face.run(ids.smembers())))


def parts_of(kit: ShardKit, component: str, name: str) -> list[tuple[int, bytes]]:
    """How many members each part has, and how it is stored."""
    found = kit.component(component)
    shards = [kit.client(component, n) for n in range(len(found.shards))] or [kit.client(component)]
    return [
        (shard.scard(key), shard.object("encoding", key))  # type: ignore[misc]
        for shard in shards
        for key in shard.scan_iter(f"{name}:{{*}}:*")
    ]


def test_writers_that_grow_the_same_groups_lose_nothing(kit: ShardKit) -> None:
    random = Random(2)
    members = [random.getrandbits(60) for _ in range(drawn(3000, 8000))]

    def add(some: list[int]) -> None:
        own = kit.set("ids", component="many", members=int, part_size=32, parts=2)
        for start in range(0, len(some), 100):
            own.sadd(*some[start : start + 100])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, [members[n::4] for n in range(4)]))
    ids = kit.set("ids", component="many", members=int, part_size=32, parts=2)
    assert ids.scard() == len(members)
    assert sorted(ids.smembers()) == sorted(members)


def test_members_come_once_while_parts_split(kit: ShardKit) -> None:
    ids = kit.set("ids", component="few", members=int, part_size=16, parts=1)
    ids.sadd(*range(2000))
    seen = []
    other = kit.set("ids", component="few", members=int, part_size=16, parts=1)
    for n, member in enumerate(ids.sscan_iter()):
        seen.append(member)
        if n % 400 == 0:
            other.sadd(*range(10_000 + n * 10, 10_000 + n * 10 + 1500))
    kept = [member for member in seen if member < 10_000]
    assert sorted(kept) == list(range(2000))
    assert len(seen) == len(set(seen))


def test_what_needs_fixed_parts_says_so(kit: ShardKit) -> None:
    ids = kit.set("ids", component="many")
    for ask in (lambda: ids.parts, lambda: ids.part_of("a"), lambda: ids.by_key(["a"])):
        with pytest.raises(InvalidArgumentError, match="make the set with a total"):
            ask()


@pytest.mark.parametrize("openssl", ["usual", "strict"])
def test_every_sha1_hashes_alike(monkeypatch: pytest.MonkeyPatch, openssl: str) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    def approved(*args: Any, usedforsecurity: bool = True) -> Any:
        if usedforsecurity and openssl == "strict":
            raise ValueError("disabled for FIPS")
        return hashlib.sha1(*args, usedforsecurity=False)

    expected = growing._hashes([(b"a", 1), (b"b", 2)])
    monkeypatch.setattr(growing, "import_module", missing)
    monkeypatch.setattr(growing, "sha1", approved)
    quickest = growing._quickest_sha1()
    assert quickest(b"a").digest() == hashlib.sha1(b"a").digest()
    monkeypatch.setattr(growing, "_sha1", quickest)
    assert growing._hashes([(b"a", 1), (b"b", 2)]) == expected


def test_hashes_ignore_the_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [b"a", b"b", b"c"]
    first = [hashlib.sha1(member).digest()[:4] for member in members]
    hashes = growing._hashes([(member, None) for member in members])
    assert list(hashes) == [int.from_bytes(each, "big") for each in first]
    other = "big" if sys.byteorder == "little" else "little"
    monkeypatch.setattr(sys, "byteorder", other)  # of which this machine's bytes are not
    hashes = growing._hashes([(member, None) for member in members])
    monkeypatch.undo()
    assert list(hashes) == [int.from_bytes(each, "little") for each in first]


def test_members_are_drawn_while_parts_split(kit: ShardKit) -> None:
    def opened() -> Any:
        return kit.set("ids", component="many", members=int, part_size=16, parts=4)

    opened().sadd(*range(20))
    drawing = Exchanges(kit, opened().deferred.srandmember(-50))
    drawing.until("SCARD")
    opened().sadd(*range(20, 500))
    reads: list[bool] = []
    drawn = drawing.end(before=lambda step: reads.append(sends(step, "SCARD")))
    assert any(reads)
    assert len(drawn) == 50
    assert max(drawn) >= 20
    assert set(drawn) <= set(range(500))


def test_a_set_recreated_during_a_store_is_kept(kit: ShardKit) -> None:
    source, target = (kit.set(name, component="one", part_size=16, parts=1) for name in "st")
    source.sadd(*range(50))
    target.sadd("old")
    store = Exchanges(kit, target.deferred.sunionstore(source))
    store.until("structures/layouts/replace_growing")
    assert kit.set("t", component="one", part_size=16, parts=1).delete()
    other = kit.set("t", component="one", part_size=32, parts=1)
    other.sadd("new")
    with pytest.raises(ParameterMismatchError, match="'t' was created with other parameters"):
        store.end()
    assert other.smembers() == {"new"}
