"""One command for many keys, or all shards: as redis-py does it for one server, whatever fails."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import Face, faced
from hypothesis import given, settings, strategies as st
from relays import Relay

import shardkit
from shardkit import ShardErrors, ShardKit, ShardMap
from shardkit.errors import InvalidArgumentError, InvalidKeyError, RoutingError, ShardUnavailable
from shardkit.local import LocalServer, LocalServers

KEYS = [f"k{n}" for n in range(1000)]


@pytest.fixture(params=["many", "one"])
def router(face: Face, request: pytest.FixtureRequest) -> Any:
    """A router over 16 shards, or over a component that is not sharded."""
    return face.kit.key_sharded(request.param)


def test_values_are_set_and_read_in_the_order_of_the_keys(face: Face, router: Any) -> None:
    assert face.run(router.mset({key: n for n, key in enumerate(KEYS)})) is True
    asked = [*reversed(KEYS), "missing", b"k1", "k1"]
    found = face.run(router.mget(asked))
    assert found == [*(b"%d" % n for n in reversed(range(1000))), None, b"1", b"1"]
    assert face.run(router.mget("k1", "k2")) == [b"1", b"2"]
    assert face.run(router.mget(f"k{n}" for n in (5, 6))) == [b"5", b"6"]
    assert face.run(router.mget([])) == []


def test_counts_are_summed_over_shards(face: Face, router: Any) -> None:
    face.run(router.mset(dict.fromkeys(KEYS, "v")))
    assert face.run(router.exists(*KEYS, "missing", "k1")) == 1001
    assert face.run(router.touch(*KEYS, "missing")) == 1000
    assert face.run(router.delete(*KEYS[:400], "missing")) == 400
    assert face.run(router.unlink(*KEYS)) == 600
    assert face.run(router.exists(*KEYS)) == 0
    assert face.run(router.delete()) == 0


def test_a_command_for_each_key_has_the_replies_of_redis_pys_method(
    face: Face, router: Any
) -> None:
    blocking = KEYS[:50]
    assert face.run(router.each("HSET", blocking, "f", "v")) == [1] * 50
    assert face.run(router.each("HGETALL", blocking)) == [{b"f": b"v"}] * 50
    assert face.run(router.each("EXPIRE", blocking, 100)) == [True] * 50
    assert face.run(router.each("SET", ["a", "b"], "1")) == [True, True]
    assert face.run(router.each("get", ["a", "c"])) == [b"1", None]
    assert face.run(router.each(b"GET", ["a", "c"])) == [b"1", None]
    assert face.run(router.each("ZADD", ["z"], 1.5, "m")) == [1]
    assert face.run(router.each("ZSCORE", ["z", "y"], "m")) == [1.5, None]
    assert face.run(router.each("TTL", iter(blocking[:2]))) == [100, 100]


def test_any_number_of_keys_goes_in_pages(face: Face, router: Any, lower: Any) -> None:
    lower(bulk_page=7)
    face.run(router.mset({key: key for key in KEYS[:100]}))
    assert face.run(router.mget(KEYS[:100])) == [key.encode() for key in KEYS[:100]]
    for size in (1, 9):
        found = face.list(router.mget_iter(iter(KEYS[:100]), page_size=size))
        assert found == [key.encode() for key in KEYS[:100]]
    assert face.run(router.delete(*KEYS[:100])) == 100
    with pytest.raises(InvalidArgumentError, match="page_size=0"):
        face.list(router.mget_iter(KEYS, page_size=0))


def test_a_callback_of_one_shards_client_is_called_for_its_keys_only(kit: Any) -> None:
    router = kit.key_sharded("few")
    router.mset(dict.fromkeys(KEYS[:20], "v"))
    client = router["k0"]
    client.set_response_callback("GET", lambda reply: ("mine", reply))
    owner = router.shard_of("k0")
    expected = [("mine", b"v") if router.shard_of(key) == owner else b"v" for key in KEYS[:20]]
    assert router.each("GET", KEYS[:20]) == expected
    pipe = router.pipeline()
    for key in KEYS[:20]:
        pipe.get(key)
    assert pipe.execute() == expected
    pipe.get("k0").mget(KEYS[:20]).get("k1")
    found = pipe.execute()
    assert (found[0], found[1]) == (expected[0], [b"v"] * 20)


def test_bytearrays_and_memoryviews_are_taken_as_redis_py_takes_them(face: Face) -> None:
    router = face.kit.key_sharded("many")
    face.run(router.mset({b"a": bytearray(b"1"), "b": memoryview(b"2")}))
    assert face.run(router.mget([bytearray(b"a"), memoryview(b"b")])) == [b"1", b"2"]
    gaps = memoryview(b"123456")
    client = face.run(face.kit.client("many", 0))
    face.run(client.mset({"gaps": gaps[::2], "reversed": gaps[::-2]}))
    assert face.run(client.mget("gaps", "reversed")) == [b"135", b"642"]
    pipe = router.pipeline()
    pipe.set(bytearray(b"c"), bytearray(b"3")).get("c").hset("h", "f", memoryview(b"4"))
    assert face.run(pipe.execute()) == [True, b"3", 1]


def test_what_cannot_be_right_is_refused(face: Face, router: Any) -> None:
    with pytest.raises((InvalidKeyError, InvalidArgumentError), match="NoneType"):
        face.run(router.mget(["a", None]))
    with pytest.raises(InvalidArgumentError, match=r"keys=5\.5"):
        face.run(router.mget(5.5))
    with pytest.raises(InvalidArgumentError, match="mapping is a list; pass a dict"):
        face.run(router.mset([1]))
    with pytest.raises(InvalidArgumentError, match="a list that cannot be sent"):
        face.run(router.mset({"a": [1]}))
    for command, reason in [
        ("MGET", "its first argument is not its only key"),
        ("BLPOP", "its first argument is not its only key"),
        ("EVAL", "its first argument is not its only key"),
        ("HGET", "its first argument is not its only key"),  # without a field
        ("NONSENSE", "is unknown"),
        (None, "a command without a name"),
    ]:
        with pytest.raises(RoutingError, match=reason):
            face.run(router.each(command, ["a"]))
    assert face.run(router.mget(["a"])) == [None]


def test_a_server_that_is_down_costs_only_its_own_keys(shard_map: ShardMap) -> None:
    components = {"own": {"shards": [{"port": 7001}, {"port": 7002}]}}
    with (
        LocalServers(map_of(**components), ports="free") as local,
        shardkit.connect(local.shard_map) as kit,
    ):
        router = kit.key_sharded("own")
        router.mset(dict.fromkeys(KEYS[:40], "v"))
        port = router["k0"].connection_pool.connection_kwargs["port"]
        next(server for server in local.servers if server.port == port).kill()
        found = router.each("GET", KEYS[:40], raise_on_error=False)
        down = router.shard_of("k0")
        for key, reply in zip(KEYS[:40], found, strict=True):
            if router.shard_of(key) == down:
                assert isinstance(reply, ShardUnavailable)
            else:
                assert reply == b"v"
        for call in (
            lambda: router.mget(KEYS[:40]),
            lambda: list(router.mget_iter(KEYS[:40])),
            lambda: router.mset(dict.fromkeys(KEYS[:40], "w")),
            lambda: router.exists(*KEYS[:40]),
        ):
            with pytest.raises(ShardErrors, match="own:"):
                call()
        others = [key for key in KEYS[:40] if router.shard_of(key) != down]
        assert router.mget(others) == [b"w"] * len(others)


ROOT = Path(__file__).parent.parent.parent
LIBRARY = "#!lua name=own\nredis.register_function('own', function() return 1 end)"
keys = st.dictionaries(st.sampled_from([f"k{n}" for n in range(12)]), st.integers(), max_size=12)
streams = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


@settings(max_examples=20)
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


def json_mget(args: list[bytes]) -> bytes:
    """As RedisJSON replies: a match of the path for each key, or null."""
    assert args[-1] == b"$.n"
    texts = [None if key == b"gone" else b'["%s"]' % key for key in args[1:-1]]
    rows = (b"$-1\r\n" if each is None else b"$%d\r\n%s\r\n" % (len(each), each) for each in texts)
    return b"*%d\r\n" % len(texts) + b"".join(rows)


def ts_madd(args: list[bytes]) -> bytes:
    """As RedisTimeSeries replies: the time of each sample, or an error in its place."""
    samples = [args[n : n + 3] for n in range(1, len(args), 3)]
    gone = b"-ERR TSDB: the key does not exist\r\n"
    rows = (gone if key == b"gone" else b":%d\r\n" % int(at) for key, at, _ in samples)
    return b"*%d\r\n" % len(samples) + b"".join(rows)


def test_many_keys_of_modules_are_split_and_merged(kind: str, servers: LocalServers) -> None:
    """No server of the tests has these modules; what the modules reply was recorded."""
    port = servers.server_of("one").port
    with ExitStack() as stack:
        relays = [stack.enter_context(closing(Relay(port))) for _ in range(3)]
        for relay in relays:
            relay.replaced = {"JSON.MGET": json_mget, "TS.MADD": ts_madd}
        entries = [{"port": relay.port, "db": n} for n, relay in enumerate(relays)]
        face = stack.enter_context(faced(kind, map_of(docs={"shards": entries})))
        router, names = face.kit.key_sharded("docs"), [*KEYS[:20], "gone", "k3"]
        assert {router.shard_of(name) for name in names} == {0, 1, 2}
        values = [None if name == "gone" else f'["{name}"]'.encode() for name in names]
        asked = ("JSON.MGET", *names, "$.n")
        assert face.run(router.execute_command(*asked)) == values
        pipe = router.pipeline()
        pipe.execute_command(*asked)
        added = pipe.execute_command(
            "TS.MADD", *chain(*((key, n, 1) for n, key in enumerate(names)))
        )
        assert added is pipe
        found, times = face.run(pipe.execute())
        assert found == values
        assert [n for n, at in enumerate(times) if at != n] == [names.index("gone")]
        assert str(times[names.index("gone")]) == "TSDB: the key does not exist"


def test_what_is_loaded_is_loaded_once_on_each_server(face: Face) -> None:
    router = face.kit.key_sharded("many")
    sha = face.run(router.all.script_load("return 7"))
    assert face.run(router.execute_command("EVALSHA", sha, 1, "any")) == 7
    assert face.run(router.all.script_exists(sha, "f" * 40)) == [True, False]
    assert face.run(router.all.function_load(LIBRARY)) in ("own", b"own")
    assert face.run(router.execute_command("FCALL", "own", 1, "any")) == 1
    assert face.run(router.all.function_delete("own"))


def test_the_slow_log_of_all_shards_has_texts_of_any_bytes(kind: str) -> None:
    with LocalServer() as server, server.client() as client:
        entry = {"port": server.port, "decode_responses": True}
        with faced(kind, map_of(t={"shards": [entry]})) as face:
            client.config_set("slowlog-log-slower-than", 0)
            client.get(b"\xff")
            router = face.kit.key_sharded("t")
            logs = face.run(router.all.slowlog_get(20))
            assert b"GET \xff" in [row["command"] for row in logs[0]]
            with pytest.raises(RoutingError, match=r"SLOWLOG GET has no key to route by"):
                face.run(router.pipeline().slowlog_get().execute())


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
