"""Parts that split as they fill, while servers fail too: the arithmetic, the rest on servers."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from faces import Exchanges, Face, drawn, over, sends

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import (
    InvalidArgumentError,
    ParameterMismatchError,
    ShardErrors,
    ShardUnavailable,
)
from shardkit.local import LocalServer, LocalServers
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


MAP = """
components:
  data: {shards: [{port: 7001}, {port: 7002}]}
"""


def test_writes_can_be_repeated_after_a_dead_shard(mortal: Face, own_servers: LocalServers) -> None:
    ids = mortal.kit.set("ids", component="data", members=int, part_size=64)
    assert mortal.run(ids.sadd_many(range(2000))) == 2000
    own_servers.server_of("data", 1).kill()
    with pytest.raises(ShardErrors) as caught:
        mortal.run(ids.sadd_many(range(2000, 4000)))
    assert {failure.shard for failure in caught.value.exceptions} == {"data:1"}
    assert all(isinstance(failure, ShardUnavailable) for failure in caught.value.exceptions)
    own_servers.server_of("data", 1).restart()
    # That server lost its data, and its groups are as at first: no client was told.
    mortal.run(ids.sadd_many(range(4000)))
    assert mortal.run(ids.scard()) == 4000
    assert sorted(mortal.run(ids.smembers())) == list(range(4000))
    assert mortal.run(ids.smismember(3999, 4000)) == [True, False]


def test_no_field_is_in_two_parts_when_a_server_dies_while_parts_split(
    mortal: Face, own_servers: LocalServers
) -> None:
    killer = threading.Thread(target=own_servers.server_of("data", 0).kill)
    link = mortal.kit.driver.link

    def kill_at_a_split(batch: Any) -> Any:
        if written and sends(batch, "structures/layouts/write_growing") and not killer.ident:
            killer.start()
        return link.send(batch)

    kit = over(mortal.kit, SimpleNamespace(send=kill_at_a_split))
    fields = kit.hash("h", component="data", part_size=16, parts=2, partition="crc32")
    written = 0

    def write() -> None:
        nonlocal written
        while written < 200_000:
            some = {f"f{n}": str(n) for n in range(written, written + 100)}
            mortal.run(fields.hset(mapping=some))
            written += 100

    with pytest.raises(ShardErrors, match="data:0"):
        write()
    killer.join()
    with own_servers.server_of("data", 1).client() as client:
        held = [field for key in client.scan_iter("h:*:*") for field in client.hkeys(key)]
    assert len(held) == len(set(held))
    own_servers.server_of("data", 0).restart()
    every = {f"f{n}": str(n).encode() for n in range(written + 100)}
    mortal.run(fields.hset(mapping={field: value.decode() for field, value in every.items()}))
    assert mortal.run(fields.hgetall()) == every


@pytest.fixture
def watched(own_map: ShardMap) -> Iterator[ShardKit]:
    with shardkit.connect(own_map) as watched:
        yield watched


@pytest.fixture
def client(own_server: LocalServer) -> Iterator[Any]:
    with own_server.client() as client:
        yield client


def state_key(client: Any) -> bytes:
    [key] = client.keys("ids:{*}")
    assert isinstance(key, bytes)
    return key


def test_full_groups_report_expiring_fields(watched: ShardKit, client: Any) -> None:
    table = watched.hash("ids", component="own", parts=1, partition="crc32")
    table.hset(mapping={f"f{n}": "v" for n in range(20)})
    # Another client has given fields a time to live, and most have expired since.
    client.hset(state_key(client), mapping={"expiring": 1, "count": 50_000})
    assert table.hset("new", "v") == 1
    assert table.hset("newer", "v") == 1
    assert client.hgetall(state_key(client))[b"parts"] == b"1"
    assert client.hgetall(state_key(client))[b"count"] == b"22"


def test_a_bulk_load_sends_dozens_of_members_in_a_command(watched: ShardKit, client: Any) -> None:
    ids = watched.set("ids", component="own", members=int)
    ids.sadd_many(range(60_000))
    client.config_resetstat()
    ids.sadd_many(range(60_000, 120_000))
    calls = client.info("commandstats")["cmdstat_sadd"]["calls"]
    assert 60_000 / calls > 24
    assert ids.scard() == 120_000
    assert all(client.object("encoding", key) == b"intset" for key in client.keys("ids:{*}:*"))
