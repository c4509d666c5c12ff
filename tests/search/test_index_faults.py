"""An index whose parts fail or forget scripts; read from replicas; damaged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from faces import Exchanges, Face, faced

from shardkit import ShardKit, ShardMap
from shardkit.errors import DamagedDataError, InvalidArgumentError, ShardErrors, ShardUnavailable
from shardkit.local import LocalServers
from shardkit.operations import Page

MAP = """
components:
  data: {shards: [{port: 7001}, {port: 7002}]}
  copy: {shards: [{port: 7003}, {port: 7003, db: 1}]}
  kept_copy: {shards: [{port: 7004}, {port: 7004, db: 1}]}
  source: {shards: [{port: 7005}, {port: 7005, db: 1}]}
"""
ATTRIBUTES = {"votes": "number", "lang": "text"}


@pytest.fixture(scope="module")
def own_servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as running:
        source = running.server_of("source", 0).port
        for name, read_only in (("copy", "yes"), ("kept_copy", "no")):
            with running.server_of(name, 0).client() as client:
                client.config_set("replica-read-only", read_only)
                client.replicaof("127.0.0.1", source)
        yield running


@pytest.fixture(params=["blocking", "awaiting"])
def own(request: pytest.FixtureRequest, own_servers: LocalServers) -> Iterator[Face]:
    for component in ("data", "source"):
        for shard in (0, 1):
            server = own_servers.server_of(component, shard)
            if not server.running:
                server.restart()
            with server.client() as client:
                client.flushall()
    with faced(request.param, own_servers.shard_map) as opened:
        yield opened


def filled(face: Face, component: str, **options: Any) -> Any:
    index = face.kit.search(
        "s", component=component, parts=2, attributes=ATTRIBUTES, statistics_ttl=0, **options
    )
    many = [(str(n), f"x y{n % 3}", {"votes": n, "lang": "en"}) for n in range(40)]
    face.run(index.index_many(many))
    return index


def first_part(servers: LocalServers) -> set[str]:
    """The ids of the documents of the first part."""
    with servers.server_of("data", 0).client() as client:
        return {key.decode().split(":d:")[1] for key in client.scan_iter("{s:0}:d:*")}


def ids(results: Any) -> list[str]:
    return [hit.id for hit in results]


def settled(servers: LocalServers, *components: str) -> None:
    """Wait until replicas have what their source has."""
    with servers.server_of("source", 0).client() as client:
        for _ in range(200):
            ended = client.info("replication")["master_repl_offset"]
            offsets = []
            for component in components:
                with servers.server_of(component, 0).client() as replica:
                    said = replica.info("replication")
                    up = said["master_link_status"] == "up"
                    offsets.append(said["slave_repl_offset"] if up else -1)
            if min(offsets) >= ended:
                return
            time.sleep(0.05)
    raise AssertionError("replicas did not catch up")


def test_a_part_that_is_gone_is_named_or_left_out(own: Face, own_servers: LocalServers) -> None:
    index = filled(own, "data")
    whole = own.run(index.search("x", sort="votes", limit=100, attributes=True, facets=["lang"]))
    there = [hit.id for hit in whole if hit.id in first_part(own_servers)]
    cursor = own.run(index.search("x", sort="votes", limit=2)).cursor
    own_servers.server_of("data", 1).kill()
    for query in ("x", "y*"):
        with pytest.raises(ShardErrors) as caught:
            own.run(index.search(query))
        assert {failure.shard for failure in caught.value.exceptions} == {"data:1"}
        assert all(isinstance(failure, ShardUnavailable) for failure in caught.value.exceptions)
    some = own.run(index.search("x", sort="votes", limit=100, facets=["lang"], partial=True))
    assert (ids(some), some.total, some.missing) == (there, len(there), (1,))
    assert some.partial
    assert some.facets == {"lang": [("en", len(there))]}
    scored = own.run(index.search("y*", limit=100, partial=True, snippets=True, cache=30))
    assert sorted(ids(scored)) == sorted(there)
    assert scored.result is None
    after = own.run(index.search("x", sort="votes", limit=100, cursor=cursor, partial=True))
    assert ids(after) == [one for one in there if one not in ("0", "1")]
    with pytest.raises(ShardErrors, match=r"1 shard failed \(data:1\)"):
        own.run(index.index_many([(str(n), "new") for n in range(40, 60)]))
    own_servers.server_of("data", 0).kill()
    with pytest.raises(ShardErrors, match="2 shards failed"):
        own.run(index.search("x", sort="votes", partial=True))


def test_a_part_that_goes_while_the_words_of_a_prefix_are_read_counts_for_nothing(
    own: Face, own_servers: LocalServers, lower: Any
) -> None:
    lower(search_words=1)
    index = filled(own, "data")
    there = sorted(map(int, first_part(own_servers)))
    search = Exchanges(own, index.deferred.search("x y*", limit=100, partial=True))
    assert search.stop_after(1)  # the words of the query were counted; those of the prefix not yet
    own_servers.server_of("data", 1).kill()
    assert len(list(search)) > 1
    found = search.result
    assert (sorted(map(int, ids(found))), found.missing) == (there, (1,))
    alone = own.run(index.search("x y*", limit=100, partial=True))
    assert [(hit.id, hit.value) for hit in found] == [(hit.id, hit.value) for hit in alone]


def test_a_read_only_replica_answers_and_caches_nothing(
    own: Face, own_servers: LocalServers
) -> None:
    index = filled(own, "source", read_from=["copy"])
    settled(own_servers, "copy", "kept_copy")
    with own_servers.server_of("source", 0).client() as client:
        client.config_resetstat()
    for sort in ("relevance", "-votes", "lang"):
        found = own.run(index.search("x", sort=sort, limit=3, cache=30, attributes=True))
        assert (found.total, len(found), found.result) == (40, 3, None)
        again = own.run(index.search("x", sort=sort, limit=3, cursor=found.cursor))
        assert not {*ids(again)} & {*ids(found)}
    with own_servers.server_of("source", 0).client() as client:
        assert not {"cmdstat_evalsha", "cmdstat_eval"} & client.info("commandstats").keys()
    assert own.run(index.count()) == 40


def test_replicas_answer_while_their_source_is_down(own: Face, own_servers: LocalServers) -> None:
    filled(own, "source")
    settled(own_servers, "copy", "kept_copy")
    own_servers.server_of("source", 0).kill()
    index = own.kit.search(
        "s", component="source", parts=2, attributes=ATTRIBUTES, read_from=["kept_copy"]
    )
    assert own.run(index.search("x y1")).total == 13
    with pytest.raises(ShardErrors, match=r"2 shards failed \(source:0, source:1\)"):
        own.run(index.count())


def test_a_writable_replica_caches_results_for_its_sessions(
    own: Face, own_servers: LocalServers
) -> None:
    index = filled(own, "source", read_from=["copy", "kept_copy"])
    settled(own_servers, "copy", "kept_copy")
    with pytest.raises(InvalidArgumentError, match="s: session=7; give text"):
        own.run(index.search("x", session=7))
    sessions = {f"session {n}" for n in range(20)}
    results = {
        session: own.run(index.search("x", sort="votes", limit=3, cache=30, session=session))
        for session in sessions
    }
    kept = {session for session, found in results.items() if found.result}
    assert kept
    assert kept != sessions  # those that read-only replica answers
    for session in sorted(kept)[:3]:
        result = results[session].result
        again = own.run(
            index.search("x", sort="votes", offset=3, limit=3, result=result, session="another")
        )
        assert ids(again) == ["3", "4", "5"]
        assert again.result == result
    with own_servers.server_of("kept_copy", 0).client() as client:
        for key in [*client.scan_iter("*:q:*")]:
            assert client.ttl(key) > 0
            client.delete(key)
    again = own.run(index.search("x", sort="votes", offset=3, limit=3, result=result))
    assert ids(again) == ["3", "4", "5"]
    assert again.result not in (None, result)
    single = own.kit.search("s", component="source", parts=2, attributes=ATTRIBUTES)
    with pytest.raises(InvalidArgumentError, match="same read_from"):
        own.run(single.search("x", sort="votes", result=again.result))


STATE = "{s:0}:state"


@pytest.fixture
def index(face: Face) -> Any:
    attributes = {"lang": "text", "votes": "number"}  # their order numbers them
    index = face.kit.search("s", component="one", parts=1, attributes=attributes, chunk=64)
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


@pytest.mark.long(3)
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


def flip(client: Any, key: str, value: bytes) -> None:
    held = client.get(key)
    client.set(key, value + held[len(value) :])


DAMAGES: dict[str, tuple[Any, str, str]] = {
    "a lost document": (lambda c: c.delete("{s:0}:d:d007"), "{s:0}:d:d007", "0 bytes"),
    "a cut document": (
        lambda c: c.set("{s:0}:d:d007", c.get("{s:0}:d:d007")[:20]),
        "{s:0}:d:d007",
        "20 bytes",
    ),
    "another's document": (
        lambda c: c.set("{s:0}:d:d007", c.get("{s:0}:d:d008")),
        "{s:0}:d:d007",
        "number 8",
    ),
    "an unmarked document": (lambda c: c.setbit("{s:0}:v:0", 7, 0), "{s:0}:v:0", "no mark at 7"),
    "a mark without a document": (lambda c: c.hdel("{s:0}:n:0", 7), "{s:0}:n:0", "nothing at 7"),
    "a cut column": (
        lambda c: c.set("{s:0}:a:2:1", c.get("{s:0}:a:2:1")[:-8]),
        "{s:0}:a:2:1",
        "504 bytes",
    ),
    "a lost value": (lambda c: c.delete("{s:0}:y:0"), "{s:0}:y:0", "no value"),
    "lost postings": (lambda c: c.delete("{s:0}:r:0:0"), "{s:0}:r:0:0", "no posting of word"),
    "lost long postings": (
        lambda c: c.delete(next(c.scan_iter("{s:0}:w:1:*"))),
        "{s:0}:w:1:",
        "0 bytes of word",
    ),
    "cut long postings": (
        lambda c: flip(c, next(c.scan_iter("{s:0}:w:1:*")), b"\0\5"),
        "{s:0}:w:1:",
        "in no order",
    ),
    "a posting of no document": (
        lambda c: c.append(next(c.scan_iter("{s:0}:w:2:*")), b"\0\x3f\1\1"),
        "{s:0}:w:2:",
        "a posting of word",
    ),
    "lost words": (lambda c: c.delete("{s:0}:l:red"), "{s:0}:starts", "words"),
    "a word's id": (lambda c: c.hset("{s:0}:l:red", "red", 2), "{s:0}:l:", "id 2 of another word"),
    "no id of a word": (lambda c: c.hset("{s:0}:l:red", "red", "x"), "{s:0}:l:red", "x"),
    "a state of another type": (lambda c: c.set(STATE, "x"), STATE, ""),
    "a word elsewhere": (
        lambda c: (c.hset("{s:0}:l:fox", "red", 1), c.hdel("{s:0}:l:red", "red")),
        "{s:0}:l:fox",
        "b'red'",
    ),
    "marks of another type": (
        lambda c: (c.delete("{s:0}:v:0"), c.rpush("{s:0}:v:0", "x")),
        "{s:0}:v:0",
        "a LIST",
    ),
}


def test_numbers_of_documents_that_cannot_be_are_named(face: Face, index: Any, client: Any) -> None:
    for bucket, place in ((0, "x"), (0, "-1"), (0, "128"), (0, "130"), (1, "22")):  # 150 exist
        key = f"{{s:0}}:n:{bucket}"
        client.hset(key, place, "d007")
        found = [(each.key, each.found, each.expected) for each in face.list(index.check())]
        assert (key, f"number {place}", "one below 150") in found
        client.hdel(key, place)


@pytest.mark.parametrize("number", [2**31, 2**32])
def test_however_high_the_next_number_is_said_to_be_only_documents_are_looked_at(
    face: Face, index: Any, client: Any, number: int
) -> None:
    client.hset(STATE, "next", number)
    before = client.info("commandstats")
    assert face.list(index.check()) == []
    after = client.info("commandstats")
    calls = {name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in after}
    assert sum(calls.values()) < 10_000, calls
    assert face.run(index.remove("d001")) is True
    assert face.run(index.delete()) == 149
    assert list(client.scan_iter("{s:0}:*")) == []


@pytest.mark.long(1)
def test_a_check_names_what_is_damaged_in_an_index(face: Face, index: Any, client: Any) -> None:
    dumps = {each: client.dump(each) for each in client.scan_iter()}
    for name, (act, key, what) in DAMAGES.items():
        act(client)
        before = {each: client.dump(each) for each in client.scan_iter()}
        found = face.list(index.check())
        named = [each for each in found if each.key.startswith(key) and what in each.found]
        assert named, (name, found)
        assert all(each.repair == "rebuild() indexes all documents again" for each in found)
        assert {each: client.dump(each) for each in client.scan_iter()} == before
        client.flushdb()
        for each, dump in dumps.items():
            client.restore(each, 0, dump)


def test_a_check_in_small_pieces_looks_at_everything(
    face: Face, index: Any, client: Any, lower: Any
) -> None:
    lower(index_check=50)
    assert face.list(index.check()) == []
    lost = ["{s:0}:d:d000", "{s:0}:d:d077", "{s:0}:d:d149"]
    client.delete(*lost)
    found = face.list(index.check())
    assert sorted(each.key for each in found if ":d:" in each.key) == lost


def test_words_that_come_while_the_lexicon_is_read_are_no_damage(face: Face, index: Any) -> None:
    damage, written = [], 0
    for step in Exchanges(face, index.deferred.check()):
        if isinstance(step, Page):
            damage += step
        elif isinstance(step, list) and getattr(step[0], "args", ("",))[0] == "SSCAN":
            face.run(index.index(f"new{written}", f"red blue new{written}"))
            written += 1
    assert written
    assert damage == []


def test_a_document_that_says_anothers_number_is_neither_replaced_nor_removed(
    face: Face, index: Any, client: Any
) -> None:
    DAMAGES["another's document"][0](client)
    before = {each: client.dump(each) for each in client.scan_iter()}
    for write in (lambda: index.index("d007", "green whale"), lambda: index.remove("d007")):
        with pytest.raises(DamagedDataError, match="d:d007 is damaged: number 8"):
            face.run(write())
    assert {each: client.dump(each) for each in client.scan_iter()} == before
