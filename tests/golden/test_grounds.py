"""Each structure answers on a cluster, over shards in memory, and decoding, as on one server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from damages import SUBJECTS
from golden import plain
from subjects import MAP, Calls

from shardkit import ShardKit, ShardMap, connect
from shardkit.errors import ChannelError, InvalidArgumentError, StructureError
from shardkit.local import LocalCluster, LocalServers
from shardkit.testing import MemoryServers

APART = {"market", "transfers"}  # accounts that live apart change in several steps
# What answers otherwise, as it should.
OTHERWISE = {
    "decoding": set(),
    "cluster": APART,
    # The ranges are of three sorted sets, and fakeredis has estimates of its own.
    "memory": APART | {"score ranges", "unique hyperloglog"},
}
CASES = [(where, name) for where in OTHERWISE for name in SUBJECTS if name not in OTHERWISE[where]]
# What tells times or places, or is told how many shards there are; and what ZRANGEBYLEX and its
# like return of members with different scores.
TOLD = "ttl pttl httl hexpiretime info locate gather zcount zrangebylex lex_range_iter"
UNLIKE = {f"{name} {call}" for name in SUBJECTS for call in TOLD.split()}
UNLIKE |= {"network get", "network lists", "ip to city import_from"}  # its generation is a time
SHARDS = "{shards: {count: 16, over: [{port: 1}, {port: 2}]}}"
SHARDED = MAP.replace("{entry: {port: 7001}}", SHARDS)


@pytest.fixture(scope="module")
def running() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        yield servers


@pytest.fixture
def in_memory() -> Iterator[ShardKit]:
    """A kit whose component ``data`` has 16 shards in memory."""
    memory = MemoryServers(ShardMap.parse(SHARDED))
    with connect(memory.shard_map, connector=memory) as kit:
        yield kit


@pytest.fixture
def ground(request: pytest.FixtureRequest, running: LocalServers) -> Iterator[ShardKit]:
    """A kit whose component ``data`` is a cluster, decodes replies, or is in memory."""
    if request.param == "memory":
        yield request.getfixturevalue("in_memory")
        return
    entries = {name: dict(each.entry.fields) for name, each in running.shard_map.components.items()}
    if request.param == "cluster":
        cluster: LocalCluster = request.getfixturevalue("cluster")
        entries["data"] = dict(cluster.entry.fields)
    else:
        entries["data"] |= {"decode_responses": True, "protocol": 3}
    described = {"components": {name: {"entry": entry} for name, entry in entries.items()}}
    with connect(ShardMap.parse(json.dumps(described))) as kit:
        yield kit


def answers(kit: ShardKit, name: str) -> dict[str, Any]:
    """What all calls return, in turn; those that read before and after the others."""
    subject = SUBJECTS[name]
    subject.fill(subject.open(kit))
    found: dict[str, Any] = {}

    def make(calls: Calls, after: str) -> None:
        for called, call in calls.items():
            if called not in subject.passing and f"{name} {called}" not in UNLIKE:
                try:
                    found[f"{called} after {after}"] = plain(call(subject.open(kit)))
                except (ChannelError, StructureError, InvalidArgumentError) as error:
                    found[f"{called} after {after}"] = type(error)  # of what is gone by then

    deletion = {called: call for called, call in subject.writes.items() if called == "delete"}
    make(subject.reads, "filling")
    make({called: subject.writes[called] for called in subject.writes if called != "delete"}, "it")
    make(subject.reads, "changes")
    make(deletion, "changes")
    make(subject.reads, "all")
    assert list(subject.check(subject.open(kit))) == []
    return found


@pytest.mark.parametrize(("ground", "name"), CASES, indirect=["ground"])
def test_a_structure_answers_as_on_one_server(
    ground: ShardKit, running: LocalServers, name: str
) -> None:
    def flush() -> None:
        for server in running.servers:
            with server.client() as client:
                client.flushall()

    flush()
    with connect(running.shard_map) as kit:
        expected = answers(kit, name)
    flush()
    assert answers(ground, name) == expected


def test_every_structure_is_tried(in_memory: ShardKit) -> None:
    opened = set()
    catalogue = next(kind for kind in ShardKit.__mro__ if "unique_visitors" in vars(kind))
    public = {name for name in vars(catalogue) if not name.startswith("_")}

    class Recording:
        def __getattr__(self, name: str) -> Any:
            opened.add(name)
            return getattr(in_memory, name)

    for subject in SUBJECTS.values():
        subject.open(Recording())
    assert public - opened == {"access_times", "timed"}  # they are made of statistics and a log
