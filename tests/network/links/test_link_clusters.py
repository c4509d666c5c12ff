"""A real cluster and a real Sentinel: all works as redis-py has it, and follows what moves."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import pytest_asyncio
import redis
from arranged import ask
from link_helpers import (
    FACES,
    Face,
    command,
    mapped,
    of,
    opened,
    resolving,
)

import shardkit
from shardkit import AsyncShardKit, ShardFailure, ShardMap, ShardUnavailable
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.operations import Command


@pytest.mark.parametrize("block", [None, 0.1], ids=["a write", "a blocking command"])
async def test_a_node_that_is_away_keeps_no_connection_of_its_client(block: float | None) -> None:
    with LocalCluster() as own:
        entry = {**own.entry.fields, "max_connections": 2, "retries": 0, "breaker": False}
        async with opened("awaiting", mapped(entry)) as face:
            port = ask(own, "get_node_from_key", "k").port
            args = ("LPUSH", "k", "v") if block is None else ("BLPOP", "k", block)
            wanted = Command("data", "k", args, block=block)
            [node] = [each for each in own.nodes if each.port == port]
            node.kill()
            for _ in range(4):  # more than it may have connections
                [lost] = await face.send(wanted)
                assert isinstance(lost, ShardUnavailable)
                assert "connections" not in str(lost.error)


async def test_cluster_whose_nodes_all_changed_their_address_is_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LocalCluster() as after, LocalCluster() as before:
        ports = resolving("cluster.internal", before.nodes[0].port, monkeypatch)
        async with both_faces({"host": "cluster.internal", "cluster": True}) as faces:
            for n in (1, 2):
                for face in faces:
                    assert await face.client_call("data", "set", "k", n) is True
                    assert await face.send(command("data", "k", "GET")) == [b"%d" % n]
                if n == 1:
                    before.stop()
                    ports[:] = [after.nodes[0].port]


@asynccontextmanager
async def both_faces(fields: Mapping[str, Any]) -> AsyncIterator[list[Face]]:
    shard_map = mapped({**fields, "socket_timeout": 1})
    async with opened("blocking", shard_map) as one, opened("awaiting", shard_map) as other:
        yield [one, other]


@pytest.mark.parametrize("demoted", [False, True], ids=["cut off", "demoted"])
async def test_stale_sentinel_is_outvoted(demoted: bool) -> None:
    with (
        LocalSentinel("main", sentinels=1, down_after=60) as stale,
        # Two name the current master; or one, and the other's is a replica by its ROLE.
        LocalSentinel("main", sentinels=1 if demoted else 2) as current,
        stale.master.client() as old,
        current.master.client() as new,
    ):
        if demoted:
            old.replicaof("127.0.0.1", current.master.port)
        sentinels = [["127.0.0.1", each.port] for each in [*stale.sentinels, *current.sentinels]]
        described = {"service": "main", "sentinels": sentinels}
        async with both_faces({"sentinel": described}) as faces:
            for n, face in enumerate(faces):
                assert await face.client_call("data", "set", "k", n) is True
                assert new.get("k") == b"%d" % n
                assert await face.send(command("data", "k", "SET", n)) == [b"OK"]
        assert demoted or old.get("k") is None


@pytest.fixture(scope="module")
def whole() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


async def client_of(face: Face, **options: Any) -> Any:
    return await face.value(face.kit.client("data", **options))


async def test_pipelines_return_what_redis_pys_do(kind: str, whole: LocalCluster) -> None:
    async with opened(kind, mapped(whole.entry.fields)) as face:
        client = await client_of(face)
        await of(client.flushall(target_nodes="primaries"))
        pipe = client.pipeline()
        pipe.set("a", 1).hset("h", mapping={"f": 1}).hgetall("h").execute_command("PING").object(
            "encoding", "a"
        )
        pipe.zadd("z", {"m": 1}).zrange("z", 0, -1, withscores=True)
        assert len(pipe) == 7
        expected = [True, 1, {b"f": b"1"}, True, b"int", 1, [(b"m", 1.0)]]
        assert await of(pipe.execute()) == expected
        assert len(pipe) == 0
        assert await of(pipe.execute()) == []
        pipe.incr("h").get("a")
        error, value = await of(pipe.execute(raise_on_error=False))
        assert isinstance(error, redis.ResponseError)
        assert value == b"1"
        with pytest.raises(redis.exceptions.RedisClusterException, match="several nodes"):
            await of(client.pipeline().execute_command("FLUSHALL").execute())
        with pytest.raises(redis.RedisError, match="doesn't exist"):
            await of(client.pipeline().get("a").execute_command("NO.SUCH", "a").execute())
        node = client.get_node_from_key("a")
        pipe = client.pipeline()
        pipe.execute_command("PING", target_nodes=node)
        assert await of(pipe.get("a").execute()) == [True, b"1"]
        assert await of(client.mget_nonatomic("a", "b")) == [b"1", None]


async def test_transactions_of_a_cluster_are_atomic_and_watch(
    kind: str, whole: LocalCluster
) -> None:
    async with opened(kind, mapped(whole.entry.fields)) as face:
        client, other = await client_of(face), await client_of(face, private=True)
        await of(client.delete("{t}a", "{t}b", "{t}h"))
        pipe = client.pipeline(transaction=True)
        assert await of(pipe.incr("{t}a").set("{t}b", 5).get("{t}b").execute()) == [1, True, b"5"]
        crossing = redis.exceptions.CrossSlotTransactionError
        with pytest.raises(crossing, match="same slot"):
            await of(client.pipeline(transaction=True).incr("a").incr("b").execute())
        await of(pipe.watch("{t}a"))
        await of(other.incr("{t}a"))
        pipe.multi()
        pipe.incr("{t}a")
        with pytest.raises(redis.WatchError, match="Watched"):
            await of(pipe.execute())
        await of(pipe.watch("{t}a"))
        assert await of(pipe.get("{t}a")) == b"2"
        pipe.multi()
        pipe.set("{t}a", 7).hset("{t}h", mapping={"f": 1}).hgetall("{t}h").incr("{t}h")
        *values, error = await of(pipe.execute(raise_on_error=False))
        assert values == [True, 1, {b"f": b"1"}]
        assert isinstance(error, redis.ResponseError)
        pipe.incrby("{t}a", 3)  # it is queued: nothing is watched yet
        await of(pipe.watch("{t}b"))
        assert await of(pipe.get("{t}b")) == b"5"
        assert await of(pipe.execute()) == [10]


async def test_a_cluster_is_discovered_from_any_seed_or_known_node(kind: str) -> None:
    config = {"cluster-node-timeout": 1000, "cluster-require-full-coverage": False}
    with LocalCluster(masters=3, config=config) as own:
        first, second, third = own.nodes
        seeds = [["127.0.0.1", first.port], ["127.0.0.1", second.port]]
        one = {"cluster": True, "host": "127.0.0.1", "port": first.port}
        with own.client() as asking:
            owner = asking.get_node_from_key
            key = next(k for k in map(str, range(99)) if owner(k).port == third.port)
        async with opened(kind, mapped(one)) as running:
            await running.send(command("data", key, "SET", 1))
            first.kill()
            for client in (await client_of(running), await client_of(running, private=True)):
                assert await of(client.get(key)) == b"1"
        async with opened(kind, mapped({"cluster": True, "startup_nodes": seeds})) as starting:
            assert await starting.client_call("data", "get", key) == b"1"
            assert await starting.send(command("data", key, "GET")) == [b"1"]


async def test_slot_without_a_node_fails_alone(kind: str) -> None:
    with LocalCluster(config={"cluster-require-full-coverage": False}) as own:
        slot = ask(own, "keyslot", "lost")
        for node in own.nodes:
            with node.client() as client, suppress(redis.ResponseError):
                client.execute_command("CLUSTER DELSLOTS", slot)
        async with opened(kind, mapped(own.entry.fields)) as face:
            client = await client_of(face)
            assert await of(client.set("k", 1)) is True
            pipe = client.pipeline().get("lost").get("k")
            lost, found = await of(pipe.execute(raise_on_error=False))
            assert found == b"1"
            assert not getattr(lost, "maybe_executed", False)
            with pytest.raises(ShardUnavailable, match="not covered"):
                await of(client.get("lost"))


async def test_numbered_databases_of_a_cluster_are_apart(kind: str) -> None:
    with LocalCluster(config={"cluster-databases": 4}) as own:
        numbered = {**own.entry.fields, "db": 2}
        async with (
            opened(kind, mapped(numbered)) as two,
            opened(kind, mapped(own.entry.fields)) as zero,
        ):
            client = await client_of(two)
            await of(client.set("k", "two"))
            await of(client.pipeline().set("p", "two").execute())
            await two.send(command("data", "s", "SET", "two"))
            assert await zero.send(*[command("data", k, "GET") for k in "kps"]) == [None] * 3
            for key in "kps":
                assert await of(client.get(key)) == b"two"
            assert await of(client.dbsize(target_nodes="primaries")) == 3


async def test_without_numbered_databases_a_cluster_says_so(kind: str, whole: LocalCluster) -> None:
    async with opened(kind, mapped({**whole.entry.fields, "db": 2})) as face:
        with pytest.raises(ShardFailure, match=r"SELECT is not allowed|out of range"):
            await face.client_call("data", "get", "k")


def test_clients_of_a_cluster_answer_from_one_place_when_their_entry_changes(
    whole: LocalCluster, own_server: LocalServer
) -> None:
    """Both faces find the place in one way."""
    with LocalServer() as config, config.client() as entries:

        def put(port: int, **more: Any) -> None:
            entry = {"host": "127.0.0.1", "port": port, **more}
            entries.set("config:redis:data", json.dumps(entry))

        put(whole.nodes[0].port, cluster=True)
        with shardkit.connect(f"redis://{config.address}") as kit:
            clients: list[Any] = [kit.client("data"), kit.client("data", private=True)]
            clients[0].set("place", "cluster")
            ask(own_server, "set", "place", "server")
            put(own_server.port)
            kit.topology.expire()
            assert kit.client("data").get("place") == b"server"
            for client in clients:
                assert client.get("place") == b"cluster"
                assert client.pipeline().get("place").execute() == [b"cluster"]
                assert client.mget_nonatomic("place") == [b"cluster"]
                assert b"place" in list(client.scan_iter())


async def taken(client: Any, node: Any) -> tuple[Any, Callable[[], Any]]:
    """A connection of a node, as redis-py's own code takes it; and its release."""
    if isinstance(client, redis.RedisCluster):
        pool = client.get_redis_connection(node).connection_pool
        connection = pool.get_connection()
        return connection, lambda: pool.release(connection)
    connection = node.acquire_connection()
    await connection.connect()
    return connection, lambda: node.release(connection)


async def test_connections_of_nodes_are_lent_as_all_others(kind: str, whole: LocalCluster) -> None:
    limited = {**whole.entry.fields, "max_connections": 2}
    async with opened(kind, mapped(limited)) as face:
        client = await client_of(face)
        await of(client.set("k", 1))
        node = client.get_node_from_key("k")
        kept, release = await taken(client, node)
        await of(kept.send_command("CLIENT", "TRACKING", "ON"))
        await of(kept.read_response())
        _, release_other = await taken(client, node)
        with pytest.raises(redis.exceptions.MaxConnectionsError, match="2 are in use"):
            await taken(client, node)
        release()
        release_other()
        with pytest.raises(redis.ConnectionError, match="was released"):
            await of(kept.send_command("GET", "k"))
        with pytest.raises(redis.ConnectionError, match="was released"):
            release()
        server = next(each for each in whole.nodes if each.port == node.port)
        with server.client() as admin:
            ours = [each for each in admin.client_list() if each["lib-name"] != "redis-py"]
            assert not any("t" in each["flags"] for each in ours)  # it was closed
            admin.client_kill_filter(_type="normal", skipme=True)
        found, release = await taken(client, node)  # not a dead one
        await of(found.send_command("GET", "k"))
        assert await of(found.read_response()) == b"1"
        release()
        assert await of(client.dbsize(target_nodes=node)) > 0


@pytest.fixture
def shard_map(cluster: LocalCluster) -> ShardMap:
    return mapped(cluster.entry.fields)


async def bump(conn: Any, key: str) -> Any:
    return await conn.incr(key)


async def by_client(kit: AsyncShardKit, key: str) -> Any:
    return await bump(await kit.client("data"), key)


async def by_own_pipeline(kit: AsyncShardKit, key: str) -> Any:
    [added] = await (await kit.client("data")).pipeline().incr(key).execute()
    return added


async def by_pipeline(kit: AsyncShardKit, key: str) -> Any:
    [added] = await kit.key_sharded("data").pipeline().incr(key).execute()
    return added


async def by_subscriber(kit: AsyncShardKit, key: str) -> Any:
    client: Any = await kit.client("data")
    pubsub = client.pubsub()
    await pubsub.subscribe(key)
    await pubsub.aclose()
    return await client.incr(key)


WAYS: list[Callable[[AsyncShardKit, str], Any]] = [
    lambda kit, key: kit.redis_connection("data")(bump)(key),
    lambda kit, key: kit.sharded_connection("data")(bump)(key),
    by_client,
    lambda kit, key: bump(kit.key_sharded("data")[key], key),
    by_pipeline,
    by_own_pipeline,
    by_subscriber,
    lambda kit, key: kit.strings("n", component="data").incr(key),
]


def by_all(kit: AsyncShardKit, key: str) -> Any:
    return WAYS[int(key[1:]) % len(WAYS)](kit, key)


@pytest.mark.long(3)
@pytest.mark.parametrize("way", [*WAYS, by_all])
async def test_many_tasks_start_cold(way: Any, shard_map: ShardMap, cluster: LocalCluster) -> None:
    for attempt in range(5):
        async with await shardkit.aconnect(shard_map) as kit:
            found = await asyncio.gather(
                *[way(kit, f"k{n}") for n in range(100)], return_exceptions=True
            )
        failed = [each for each in found if isinstance(each, BaseException)]
        assert not failed, Counter(map(repr, failed))
        assert found == [attempt + 1] * 100


@pytest_asyncio.fixture(params=FACES)
async def client(request: pytest.FixtureRequest, cluster: LocalCluster) -> AsyncIterator[Any]:
    async with opened(request.param, mapped(cluster.entry.fields)) as face:
        yield await of(face.kit.client("data"))


async def test_a_key_may_be_a_float(client: Any) -> None:
    assert await of(client.set(1.5, "a")) is True
    assert await of(client.set(2.5, "b")) is True
    assert await of(client.get("1.5")) == b"a"
    assert await of(client.mget_nonatomic(1.5, 2.5)) == [b"a", b"b"]
    assert await of(client.pipeline().get(1.5).get(2.5).execute()) == [b"a", b"b"]
    assert await of(client.pipeline(transaction=True).get(1.5).execute()) == [b"a"]
    assert await of(client.touch(1.5, 2.5)) == 2
    assert await of(client.unlink(1.5)) == 1
    assert await of(client.delete(1.5, 2.5)) == 1


async def test_a_key_of_no_kind_is_refused_as_by_redis_py(client: Any) -> None:
    with pytest.raises(redis.DataError, match="Invalid input of type: 'NoneType'"):
        await of(client.get(None))


@pytest.mark.parametrize("watches", [False, True])
async def test_a_transaction_may_have_commands_without_a_key(client: Any, watches: bool) -> None:
    pipe = client.pipeline(transaction=True)
    if watches:
        await of(pipe.watch("k"))
        pipe.multi()
    pipe.execute_command("EVAL", "return 7", 0)
    pipe.set("k", 1)
    pipe.execute_command("PUBLISH", "channel", "text")
    assert await of(pipe.execute()) == [7, True, 0]


async def test_a_transaction_needs_no_key(client: Any) -> None:
    pipe = client.pipeline(transaction=True).execute_command("EVAL", "return 7", 0)
    assert await of(pipe.execute()) == [7]


async def test_watched_keys_are_of_one_slot(client: Any) -> None:
    pipe = client.pipeline(transaction=True)
    await of(pipe.watch("{t}a"))
    with pytest.raises(redis.exceptions.CrossSlotTransactionError, match="different slots"):
        await of(pipe.get("b"))
    for other in "bcd":  # of different nodes
        with pytest.raises(redis.exceptions.CrossSlotTransactionError, match="different slots"):
            await of(pipe.watch(other))
    pipe.multi()
    with pytest.raises(redis.RedisError, match="WATCH after a MULTI"):
        await of(pipe.watch("{t}b"))
    await of(pipe.reset())
    with pytest.raises(redis.exceptions.CrossSlotTransactionError, match="different slots"):
        await of(pipe.watch("b", "c"))
    pipe.set("b", 1)
    assert await of(pipe.execute()) == [True]


@pytest.mark.parametrize("face_kind", FACES)
async def test_a_refused_watch_keeps_no_connection(face_kind: str, cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        ask(node, "execute_command", "ACL", "SETUSER", "limited", "on", ">p", "~k*", "+@all")
    login = {"username": "limited", "password": "p", "max_connections": 2}
    async with opened(face_kind, mapped({**cluster.entry.fields, **login})) as face:
        client = await of(face.kit.client("data"))
        errors = []
        for _ in range(4):  # more than it may have connections
            with pytest.raises(redis.exceptions.NoPermissionError) as error:
                await of(client.pipeline(transaction=True).watch("of others"))
            errors.append(error)  # it refers to the pipeline
