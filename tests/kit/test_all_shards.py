"""Commands of all shards answer as one server does, and say which shards failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import Face, faced
from hypothesis import HealthCheck, given, settings, strategies as st

from shardkit import ShardErrors, ShardKit, ShardMap
from shardkit.errors import InvalidArgumentError, RoutingError, ShardUnavailable
from shardkit.local import LocalServer, LocalServers

ROOT = Path(__file__).parent.parent.parent
LIBRARY = "#!lua name=own\nredis.register_function('own', function() return 1 end)"
keys = st.dictionaries(st.sampled_from([f"k{n}" for n in range(12)]), st.integers(), max_size=12)
streams = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(values=keys, read=streams, written=streams, count=st.none() | st.integers(1, 2))
def test_four_shards_equal_one_server(
    kit: ShardKit,
    servers: LocalServers,
    values: dict[str, int],
    read: list[str],
    written: list[str],
    count: int | None,
) -> None:
    router = kit.key_sharded("few")
    with redis.Redis(**servers.server_of("one").entry.fields) as one:
        everywhere = router.all
        assert everywhere.flushdb(confirm="few") is one.flushdb()
        for client in (router, one):
            for name, value in values.items():
                client.set(name, value)
            for name in written:
                for n in range(1, 4):
                    client.xadd(name, {"n": n}, id=f"{n}-1")
        assert everywhere.dbsize() == one.dbsize()
        for pattern in ("*", "k1*", "[a-f]"):
            assert sorted(everywhere.keys(pattern)) == sorted(one.keys(pattern))
        assert sorted(everywhere.scan_iter()) == sorted(one.scan_iter())
        assert (everywhere.randomkey() in set(one.keys())) is bool(one.dbsize())
        asked = dict.fromkeys(read, "1-1")
        assert router.xread(asked, count=count) == one.xread(asked, count=count)
        assert router.pipeline().xread(asked).execute() == [one.xread(asked)]


def test_what_is_loaded_is_loaded_once_on_each_server(face: Face) -> None:
    router = face.kit.key_sharded("many")
    sha = face.run(router.all.script_load("return 7"))
    assert face.run(router.execute_command("EVALSHA", sha, 1, "any")) == 7
    assert face.run(router.all.script_exists(sha, "f" * 40)) == [True, False]
    assert face.run(router.all.function_load(LIBRARY)) in ("own", b"own")
    assert face.run(router.execute_command("FCALL", "own", 1, "any")) == 1
    assert face.run(router.all.function_delete("own"))


def test_flushdb_asks_for_the_name_of_the_component(face: Face) -> None:
    router = face.kit.key_sharded("few")
    face.run(router.mset({f"k{n}": n for n in range(20)}))
    for wrong in ({}, {"confirm": "many"}):
        with pytest.raises(InvalidArgumentError, match=r"FLUSHDB deletes .*confirm='few'"):
            face.run(router.all.flushdb(**wrong))
    assert face.run(router.all.dbsize()) == 20
    assert face.run(router.all.flushdb(confirm="few")) is True
    assert face.run(router.all.dbsize()) == 0


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("FLUSHALL",), "administers one server"),
        (("SELECT", 3), "concerns one connection"),
        (("PUBLISH", "c", "m"), r"router\.publish"),
        (("SCAN", 0), r"router\.scan_iter"),
        (("GET", "a"), "has a key"),
        (("NONSENSE",), "is unknown"),
    ],
)
def test_a_command_without_a_merge_is_refused(face: Face, args: Any, why: str) -> None:
    with pytest.raises(RoutingError, match=why) as refused:
        face.run(face.kit.key_sharded("many").all.execute_command(*args))
    assert args[0] in str(refused.value)


def test_a_failed_shard_has_its_failure_in_its_place(kind: str) -> None:
    with LocalServer() as kept, LocalServer() as lost:
        entries = [dict(server.entry.fields, retries=0) for server in (kept, lost)]
        shard_map = map_of(c={"shards": entries})
        with faced(kind, shard_map) as face:
            everywhere = face.kit.key_sharded("c").all
            assert face.run(everywhere.ping()) == [True, True]
            lost.kill()
            alive, failure = face.run(everywhere.ping())
            assert alive is True
            assert isinstance(failure, ShardUnavailable)
            assert failure.shard == "c:1"
            with pytest.raises(ShardErrors, match="c:1"):
                face.run(everywhere.dbsize())


def test_all_masters_of_a_cluster_are_asked(kind: str, cluster_map: ShardMap) -> None:
    with faced(kind, cluster_map) as face:
        router = face.kit.key_sharded("cluster")
        names = [f"k{n}" for n in range(50)]
        face.run(router.mset(dict.fromkeys(names, 1)))
        assert face.run(router.all.ping()) == [True] * 3
        assert face.run(router.all.dbsize()) == 50
        assert sorted(face.run(router.all.keys())) == sorted(map(str.encode, names))
        assert face.run(router.all.randomkey()).decode() in names
        sha = face.run(router.all.script_load("return 7"))
        assert {face.run(router.execute_command("EVALSHA", sha, 1, name)) for name in names} == {7}
        for name in "abc":
            face.run(router.xadd(name, {"n": 1}, id="1-1"))
        found = face.run(router.xread({"c": 0, "b": 0, "a": 0}))
        assert [name for name, _ in found] == [b"c", b"b", b"a"]
        assert face.run(router.all.flushdb(confirm="cluster")) is True
        assert face.run(router.all.dbsize()) == 0


def test_the_page_of_commands_is_what_the_tables_say() -> None:
    written = "import command_docs as c, sys; sys.exit(c.page() != c.PAGE.read_text('utf-8'))"
    done = subprocess.run([sys.executable, "-c", written], cwd=ROOT / "tools", check=False)
    assert done.returncode == 0, "run tools/command_docs.py"
