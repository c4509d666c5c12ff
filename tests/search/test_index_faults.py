"""An index whose parts fail or forget scripts; read from replicas; on a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from faces import Exchanges, Face, faced

from shardkit import ShardMap
from shardkit.errors import InvalidArgumentError, ShardErrors, ShardUnavailable
from shardkit.local import LocalServers

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
