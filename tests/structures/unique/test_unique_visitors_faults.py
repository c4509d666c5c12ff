"""Visits when shards fail: what was added is counted, or `recount` mends the count afterwards.

The servers here are killed and started again, so they are the module's own. A server that was
killed has lost its data.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from faces import Exchanges, Face, faced, sends, sessions

from shardkit.errors import ShardErrors, ShardUnavailable
from shardkit.local import LocalServers
from shardkit.operations import Pause

DAY = date(2015, 5, 17)
SESSIONS = sessions(600)
MAP = """
components:
  unique:
    entry: {port: 7001}
    shards: [{port: 7002}, {port: 7003}, {port: 7004}]
  alone: {entry: {port: 7001, db: 1}}
"""


@pytest.fixture
def face(mortal: Face) -> Face:
    return mortal


@pytest.fixture
def visitors(face: Face) -> Any:
    return face.kit.unique_visitors(first_day=1000, part_size=50, component="unique")


def ids_on_all(servers: LocalServers) -> int:
    """How many ids the servers that run hold."""
    total = 0
    for n in range(3):
        server = servers.server_of("unique", n)
        if server.running:
            with server.client() as client:
                total += sum(client.scard(key) for key in client.scan_iter("unique:*", _type="set"))
    return total


def test_a_dead_shard_does_not_stop_others(
    face: Face, visitors: Any, own_servers: LocalServers
) -> None:
    assert face.run(visitors.visit_many(SESSIONS[:5], DAY)) == 5
    own_servers.server_of("unique", 1).kill()
    with pytest.raises(ShardErrors) as caught:
        face.run(visitors.visit_many(SESSIONS, DAY))
    assert {failure.shard for failure in caught.value.exceptions} == {"unique:1"}
    assert all(isinstance(failure, ShardUnavailable) for failure in caught.value.exceptions)
    own_servers.server_of("unique", 1).restart()
    lost = (
        5
        - sum(  # of the first five those that the killed server had
            face.run(visitors.locate(session, DAY)).shard.number != 1 for session in SESSIONS[:5]
        )
    )
    assert face.run(visitors.count(DAY)) == ids_on_all(own_servers) + lost
    face.run(visitors.visit_many(SESSIONS, DAY))
    assert face.run(visitors.recount(DAY)) == face.run(visitors.count(DAY)) == 600


def test_recount_counts_visits_without_a_count(
    face: Face, visitors: Any, own_servers: LocalServers
) -> None:
    """The server of the counts loses everything: the count, the plan, the counter's parameters."""
    assert face.run(visitors.visit_many(SESSIONS[:100], DAY)) == 100
    own_servers.server_of("unique").kill()
    with pytest.raises(ShardErrors) as caught:
        face.run(visitors.visit_many(SESSIONS[50:300], DAY))
    assert [failure.shard for failure in caught.value.exceptions] == ["unique"]
    own_servers.server_of("unique").restart()
    assert face.run(visitors.count(DAY)) == 0
    # A counter with other defaults recovers the lost plan from the day's own parameters.
    others = face.kit.unique_visitors(first_day=7, part_size=50, component="unique")
    assert face.run(others.recount(DAY)) == 300
    assert face.run(others.expected(DAY)) == 2048
    assert face.run(others.visit_many(SESSIONS[:301], DAY)) == 1
    assert face.run(visitors.count(DAY)) == 301


def test_both_failures_are_reported(face: Face, visitors: Any, own_servers: LocalServers) -> None:
    face.run(visitors.visit(SESSIONS[0], DAY))
    own_servers.server_of("unique").kill()
    own_servers.server_of("unique", 2).kill()
    with pytest.raises(ShardErrors) as caught:
        face.run(visitors.visit_many(SESSIONS, DAY))
    assert {failure.shard for failure in caught.value.exceptions} == {"unique", "unique:2"}


@pytest.mark.parametrize("wrong_by", [0, -20, 20])
def test_concurrent_recounts_are_careful(
    face: Face, visitors: Any, own_servers: LocalServers, wrong_by: int
) -> None:
    """Fifty visitors come while the parts are counted, some before their part, some after."""
    face.run(visitors.visit_many(SESSIONS[:200], DAY))
    with (
        own_servers.server_of("unique").client() as client,
        faced("blocking", own_servers.shard_map) as other,
    ):
        client.incrby("unique:2015-05-17", wrong_by)
        mine = other.kit.unique_visitors(first_day=1000, part_size=50, component="unique")
        counted = False
        for step in Exchanges(other, mine.deferred.recount(DAY)):
            if counted:
                face.run(visitors.visit_many(SESSIONS[225:250], DAY))
            counted = sends(step, "SCARD")
            if counted:
                face.run(visitors.visit_many(SESSIONS[200:225], DAY))
    count = face.run(visitors.count(DAY))
    assert count == 250 if wrong_by == 0 else 225 <= count <= 275
    assert face.run(visitors.recount(DAY)) == 250


def test_recount_waits_for_visits(face: Face, visitors: Any, own_servers: LocalServers) -> None:
    face.run(visitors.visit_many(SESSIONS[:10], DAY))
    with faced("blocking", own_servers.shard_map) as other:
        mine = other.kit.unique_visitors(first_day=1000, part_size=50, component="unique")
        visit = Exchanges(other, mine.deferred.visit(SESSIONS[10], DAY))
        recount = Exchanges(other, mine.deferred.recount(DAY))
        visit.until("INCRBY")
        assert any(isinstance(step, Pause) for step in recount)
        assert visit.end() is True
        assert recount.end() == face.run(visitors.count(DAY)) == 11


def test_failed_visits_can_be_repeated(
    face: Face, visitors: Any, own_servers: LocalServers
) -> None:
    face.run(visitors.visit(SESSIONS[0], DAY))
    place = face.run(visitors.locate(SESSIONS[1], DAY))
    server = own_servers.server_of("unique", place.shard.number)
    server.kill()
    with pytest.raises(ShardErrors, match="unique"):
        face.run(visitors.visit(SESSIONS[1], DAY))
    server.restart()
    assert face.run(visitors.visit(SESSIONS[1], DAY)) is True
    assert face.run(visitors.visit(SESSIONS[1], DAY)) is False
