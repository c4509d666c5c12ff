"""One command for many keys, wherever they live: as redis-py does it for the keys of one server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from faces import Face

import shardkit
from shardkit import CommandRefused, ShardErrors, ShardMap, ShardUnavailable
from shardkit.errors import InvalidArgumentError, InvalidKeyError, RoutingError
from shardkit.kit import bulk
from shardkit.local import LocalServers

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
    assert face.run(router.each("ZADD", ["z"], 1.5, "m")) == [1]
    assert face.run(router.each("ZSCORE", ["z", "y"], "m")) == [1.5, None]
    assert face.run(router.each("TTL", iter(blocking[:2]))) == [100, 100]


def test_any_number_of_keys_goes_in_pages(
    face: Face, router: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 7)
    face.run(router.mset({key: key for key in KEYS[:100]}))
    assert face.run(router.mget(KEYS[:100])) == [key.encode() for key in KEYS[:100]]
    for size in (1, 9):
        found = face.list(router.mget_iter(iter(KEYS[:100]), page_size=size))
        assert found == [key.encode() for key in KEYS[:100]]
    assert face.run(router.delete(*KEYS[:100])) == 100
    with pytest.raises(InvalidArgumentError, match="page_size=0"):
        face.list(router.mget_iter(KEYS, page_size=0))


def test_a_cluster_is_asked_slot_by_slot(kind: str, cluster_map: ShardMap) -> None:
    from faces import faced

    with faced(kind, cluster_map) as face:
        router = face.kit.key_sharded("cluster")
        face.run(router.mset({key: n for n, key in enumerate(KEYS)}))
        assert face.run(router.mget(KEYS)) == [b"%d" % n for n in range(1000)]
        assert face.run(router.exists(*KEYS, "missing")) == 1000
        assert face.run(router.each("INCR", KEYS)) == list(range(1, 1001))
        assert face.run(router.delete(*KEYS)) == 1000
        face.run(router.each("LPUSH", ["list"], "x"))
        assert face.run(router.mget(["list", "missing"])) == [None, None]


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
        (None, "is unknown"),
    ]:
        with pytest.raises(RoutingError, match=reason):
            face.run(router.each(command, ["a"]))
    assert face.run(router.mget(["a"])) == [None]


def test_a_refused_key_does_not_lose_the_replies_of_others(face: Face, router: Any) -> None:
    face.run(router.mset({"a": 1, "b": 2}))
    face.run(router.each("LPUSH", ["list"], "x"))
    found = face.run(router.each("INCR", ["a", "list", "b"], raise_on_error=False))
    assert (found[0], found[2]) == (2, 3)
    assert isinstance(found[1], CommandRefused)
    with pytest.raises(ShardErrors, match="1 shard failed"):
        face.run(router.each("INCR", ["a", "list", "b"]))
    assert face.run(router.mget(["a", "list", "b"])) == [b"3", None, b"4"]


def test_a_server_that_is_down_costs_only_its_own_keys(shard_map: ShardMap) -> None:
    components = {"own": {"shards": [{"port": 7001}, {"port": 7002}]}}
    with (
        LocalServers(ShardMap.parse(json.dumps({"components": components})), ports="free") as local,
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
